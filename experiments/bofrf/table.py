"""Figures of ``run.py`` as tables: environment by environment, poorest sites apart, the published ones beside.

python -m experiments.bofrf.table [auc.csv]
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

HERE = Path(__file__).parent
MODELS = (
    "local forest",
    "BOFRF",
    "personalised BOFRF",
    "pooled",
    "local AdaBoost",
    "BOPPID",
    "BOPPID as printed",
    "AdaBoost.PL",
    "MultBoost",
)
PUBLISHED = {"local forest": "local_forest", "BOFRF": "bofrf", "local AdaBoost": "local_adaboost", "BOPPID": "boppid"}


def lines(header: list[str], rows: list[list[str]]) -> str:
    """Write a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def by_environment(auc: pl.DataFrame) -> str:
    """Mean AUC over sites and seeds, and its standard error over seeds, of every model in every environment."""
    rows = []
    for (number,), part in auc.group_by("environment", maintain_order=True):
        cells = []
        for model in MODELS:
            seeds = part.filter(pl.col("model") == model).group_by("seed").agg(pl.col("auc").mean())["auc"].to_numpy()
            cells.append(f"{seeds.mean():.3f} ± {seeds.std(ddof=1) / np.sqrt(len(seeds)):.3f}")
        rows.append([f"E{number}", *cells])
    means = [auc.filter(pl.col("model") == m).group_by("environment").agg(pl.col("auc").mean())["auc"] for m in MODELS]
    rows.append(["mean", *(f"**{m.mean():.4f}**" for m in means)])
    return lines(["", *MODELS], rows)


def by_site(auc: pl.DataFrame, published: pl.DataFrame) -> str:
    """Every site's mean AUC and standard deviation over seeds, with the paper's one figure in brackets."""
    rows = []
    for site in published.iter_rows(named=True):
        here = auc.filter((pl.col("environment") == site["environment"]) & (pl.col("site") == site["site"]))
        cells = []
        for model, column in PUBLISHED.items():
            values = here.filter(pl.col("model") == model)["auc"]
            cells.append(f"{values.mean():.3f} ± {values.std():.3f} ({site[column]:.3f})")
        rows.append([f"E{site['environment']} {site['site']}", str(site["rows"]), *cells])
    return lines(["site", "rows", *PUBLISHED], rows)


def poorest(auc: pl.DataFrame) -> str:
    """Gains at each environment's poorest site: the one whose local forest is worst on average over all seeds.

    One site for all seeds: the poorest of each seed would gain by chance alone.
    """
    rows = []
    for (number,), part in auc.group_by("environment", maintain_order=True):
        local = part.filter(pl.col("model") == "local forest").group_by("site").agg(pl.col("auc").mean())
        site = local.sort("auc")["site"][0]
        here = part.filter(pl.col("site") == site).pivot(on="model", index="seed", values="auc")
        cells = []
        for model in ("BOFRF", "personalised BOFRF"):
            gain = (here[model] - here["local forest"]).to_numpy()
            cells.append(f"{gain.mean():+.3f} ± {gain.std(ddof=1) / np.sqrt(len(gain)):.3f}")
        rows.append([f"E{number} {site}", f"{here['local forest'].mean():.3f}", *cells])
    return lines(["poorest site", "local forest", "gain by BOFRF", "gain by personalised BOFRF"], rows)


def main() -> None:
    """Print all tables."""
    auc = pl.read_csv(sys.argv[1] if len(sys.argv) > 1 else HERE / "auc.csv")
    print(by_environment(auc), poorest(auc), by_site(auc, pl.read_csv(HERE / "environments.csv")), sep="\n\n")


if __name__ == "__main__":
    main()
