"""Checks of the claims of the BOFRF paper and the thesis, on rows of the environments and of the combinations."""

from collections.abc import Callable

import numpy as np
import polars as pl
from experiments.bofrf.combinations import tested

WHERE = "environment, site"
"""The column that names a site of an environment."""

Check = Callable[[pl.DataFrame], tuple[bool | None, str] | None]


def sure(values: pl.Series, than: float = 0.0) -> tuple[bool | None, float]:
    """Return whether the mean over repetitions is above a value, None within two standard errors, and the error.

    Fewer than three repetitions are inconclusive.
    """
    if len(values) < 2:
        return None, float("nan")
    mean, error = float(values.mean()) - than, float(values.std()) / np.sqrt(len(values))
    return bool(mean > 0) if len(values) > 2 and abs(mean) > 2 * error else None, error


def percent(share: float) -> str:
    """Return a share as a text."""
    return f"{100 * share:.1f} %"


def by_draw(rows: pl.DataFrame, figure: pl.Expr) -> pl.Series:
    """Return the mean of a metric over the sites of every repetition: a seed, or an environment and a seed."""
    draws = [c for c in ("environment", "seed") if c in rows.columns]
    return rows.group_by(draws, maintain_order=True).agg(figure.mean().alias("figure"))["figure"].drop_nulls()


def above(better: str, worse: str, told: str = "AUC {:.3f} against {:.3f}", digits: int = 4) -> Check:
    """Check that a model is better than another on the same rows; the error is that of the mean over repetitions."""

    def check(rows: pl.DataFrame) -> tuple[bool | None, str] | None:
        if better not in rows.columns or worse not in rows.columns:
            return None
        gains = by_draw(rows, pl.col(better) - pl.col(worse))
        held, error = sure(gains)
        means = told.format(float(rows[better].mean()), float(rows[worse].mean()))
        surely = f"with a standard error of {error:.{digits}f}" if len(gains) > 1 else "on one draw"
        return held, f"{means}, {float(gains.mean()):+.{digits}f} {surely}"

    return check


def every_site(base: str, figure: str = "") -> Check:
    """Check that BOFRF is above a baseline at every site: in every repetition or, for combinations, on average."""

    def check(rows: pl.DataFrame) -> tuple[bool, str]:
        model = f"bofrf_{figure}" if figure else "bofrf"
        gain = pl.col(model) - pl.col(base)
        sites = rows.group_by("site" if figure else ["environment", "site"]).agg(gain.mean().alias("gain"))["gain"]
        n = int((sites > 0).sum())
        if figure:
            return n == len(sites), f"at {n} of {len(sites)}, in the mean over combinations and seeds"
        single = float(rows.select((gain > 0).mean()).item())
        chosen = float(rows.select((pl.col("bofrf_paper") > pl.col(base)).mean()).item())
        told = f"in {percent(single)} of single draws, {percent(chosen)} where the choice is made on test rows"
        return single == 1.0, f"{told}; in the mean over seeds at {n} of {len(sites)} sites"

    return check


def wins(of: str, against: str = "boppid") -> Check:
    """Check that BOFRF beats BOPPID, in either reading, in more than half of the cases; ties count half."""

    def share(better: str, worse: str) -> pl.Expr:
        a, b = pl.col(better + of), pl.col(worse + of)
        return (a > b).cast(pl.Float64) + (a == b).cast(pl.Float64) / 2

    def check(rows: pl.DataFrame) -> tuple[bool | None, str]:
        held, _ = sure(by_draw(rows, share("bofrf", against)), 0.5)
        pairs = ("bofrf", "boppid"), ("bofrf_paper", "boppid"), ("bofrf", "boppid_printed")
        a, b, c = (float(rows.select(share(*pair).mean()).item()) for pair in pairs)
        return held, (
            f"in {percent(a)}; {percent(b)} where it chooses on test rows; {percent(c)} against BOPPID as printed"
        )

    return check


def best_draws(rows: pl.DataFrame) -> tuple[bool, str]:
    """Check the published gain if environments are chosen in hindsight, and models on test rows.

    For each environment, use the repetition in which BOFRF, chosen on test rows, gains most.
    """
    gain = 100 * (pl.col("bofrf_paper") / pl.col("local") - 1)
    draws = rows.group_by("environment", "seed").agg(gain.mean().alias("gain"))
    best = draws.sort("gain", "seed", descending=[True, False]).group_by("environment", maintain_order=True).first()
    taken = rows.join(best.select("environment", "seed"), on=["environment", "seed"])
    mean = float(taken.select(gain.mean()).item())
    above_local = int(taken.select((pl.col("bofrf_paper") > pl.col("local")).sum()).item())
    won = float(taken.select((pl.col("bofrf_paper") > pl.col("boppid")).mean()).item())
    told = (
        f"{mean:+.1f} %, above the local forest at {above_local} of {len(taken)} sites, above BOPPID in {percent(won)}"
    )
    return mean >= 9.04, told


def poor_sites_gain_most(rows: pl.DataFrame) -> tuple[bool | None, str] | None:
    """Check that sites with a low local AUC gain more.

    The AUC is the mean over even seeds and the gain that over odd ones: within one repetition, a site with an unlucky
    sample would gain by chance alone.
    """
    gain = pl.col("bofrf") - pl.col("local")
    known = rows.filter(pl.col("seed") % 2 == 0).group_by(WHERE).agg(pl.col("local").mean().alias("alone"))
    gains = rows.filter(pl.col("seed") % 2 == 1).group_by(WHERE, "seed").agg(gain.mean().alias("gain"))
    both = gains.join(known, on=WHERE)
    parts = [both.filter(pl.col("alone") < 0.75), both.filter(pl.col("alone") >= 0.75)]
    if any(len(part) < 3 for part in parts):
        return None
    (a, u), (b, v) = ((float(p["gain"].mean()), float(p["gain"].var()) / len(p)) for p in parts)
    told = f"gain of {a:+.4f} at sites with a local AUC below 0.75, {b:+.4f} at the others"
    return bool(a > b) if abs(a - b) > 2 * np.sqrt(u + v) else None, told


def z_test(figure: str) -> Check:
    """Check by the publication's test that BOFRF is above BOPPID at seven of eight sites, averaged over seeds."""

    def check(rows: pl.DataFrame) -> tuple[bool, str]:
        n = {}
        for against in ("boppid", "printed"):
            found = tested(rows, against, figure)
            n[against] = float((found["p"] <= 0.05).sum()) / found["seed"].n_unique()
        told = f"at {n['boppid']:.1f}, and at {n['printed']:.1f} against BOPPID as printed"
        return n["boppid"] >= 7, f"{told} (of eight, mean over seeds)"

    return check


def more_sites_help(figure: str) -> Check:
    """Check that BOFRF is better in the largest than in the smallest combinations at most sites."""

    def check(rows: pl.DataFrame) -> tuple[bool, str] | None:
        few, many = rows["sites"].min(), rows["sites"].max()
        if few == many:
            return None
        means = rows.pivot(on="sites", index="site", values=f"bofrf_{figure}", aggregate_function="mean")
        n = int((means[str(many)] > means[str(few)]).sum())
        a, b = float(means[str(few)].mean()), float(means[str(many)].mean())
        return n >= 5, f"at {n} of {len(means)}; {a:.3f} with {few} sites and {b:.3f} with {many} on average"

    return check
