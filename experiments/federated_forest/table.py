"""Put the figures of ``run.py`` into README.md as tables, the paper's beside ours.

python -m experiments.federated_forest.table
"""

import re
from math import erfc, sqrt
from pathlib import Path

import polars as pl

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def lines(header: list[str], rows: list[list[str]]) -> str:
    """Write a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def z_test(a: pl.Series, b: pl.Series) -> float:
    """Give the p-value of the paper's test, that the means of two samples are the same."""
    error = sqrt(a.var() / len(a) + b.var() / len(b))
    return erfc(abs(a.mean() - b.mean()) / error / sqrt(2)) if error else 1.0


def format_mean(values: pl.Series, spread: bool = True) -> str:
    """Write a mean, and the standard deviation; shares with three digits, errors with two."""
    values = values.drop_nulls()
    digits = 3 if values.max() <= 1 else 2
    return f"{values.mean():.{digits}f}" + (f" ± {values.std():.{digits}f}" if spread else "")


def published(row: dict[str, object] | None, *names: str) -> str:
    """Give the paper's figure in brackets, if it has one."""
    values = [] if row is None else [row[name] for name in names]
    return "" if not values or values[0] is None else f" ({' ± '.join(f'{v:g}' for v in values)})"


def tables(measure: str) -> str:
    """Tables 3 (accuracy) and 4 (root mean squared error)."""
    found = pl.read_csv(RESULTS / "tables.csv", infer_schema_length=None)
    paper = {row["data"]: row for row in pl.read_csv(HERE / "paper.csv").iter_rows(named=True)}
    rows = []
    for (name,), part in found.group_by("data", maintain_order=True):
        if ("accuracy" if part["ff"].max() <= 1 else "rmse") != measure:
            continue
        theirs = paper.get(name)
        p_theirs = published(theirs, "p")
        rows.append(
            [
                name,
                *(format_mean(part[key], spread=False) + published(theirs, key) for key in ("rf1", "rf2", "flr")),
                format_mean(part["nonff_other"]) + published(theirs, "nonff", "nonff_sd"),
                format_mean(part["ff"]) + published(theirs, "ff", "ff_sd"),
                f"{z_test(part['nonff_other'], part['ff']):.2f}{p_theirs}",
                f"{part['equal'].sum()} of {len(part)}",
            ]
        )
    head = ["", "party 1 alone", "party 2 alone", "linear, federated", "pooled, other draws", "federated", "p of Z"]
    return lines([*head, "hash equal to pooled"], rows)


def linear() -> str:
    """Give the federated linear model beside that of the joined table."""
    found = pl.read_csv(RESULTS / "tables.csv", infer_schema_length=None).filter(pl.col("flr").is_not_null())
    rows = []
    for (name,), part in found.group_by("data", maintain_order=True):
        gap = (part["flr"] - part["lr"]).abs().max()
        cells = [format_mean(part[key]) for key in ("flr", "lr")]
        rows.append([name, str(len(part)), *cells, f"{gap:.2g}", f"{part['flr_rounds'].mean():.0f}"])
    return lines(["", "seeds", "federated", "joined table", "largest difference", "rounds"], rows)


def cost() -> str:
    """Give rounds and bytes of training."""
    found = pl.read_csv(RESULTS / "tables.csv", infer_schema_length=None)
    rows = [
        [name, f"{part['rows'].mean():,.0f}", str(part["rounds"].max()), f"{part['sent'].mean() / 1e6:.2f}"]
        for (name,), part in found.group_by("data", maintain_order=True)
    ]
    return lines(["", "training rows", "rounds at most", "sent by the busier party, MB"], rows)


def parties() -> str:
    """Figure 4."""
    found = pl.read_csv(RESULTS / "parties.csv")
    rows = []
    for (n,), part in found.group_by("parties", maintain_order=True):
        times = [f"{part[key].mean():.2f}" for key in ("fit", "predict")]
        equal = f"{part['equal'].sum()} of {len(part)}"
        rows.append([str(n), format_mean(part["accuracy"]), *times, str(part["rounds"].max()), equal])
    return lines(
        ["parties", "accuracy", "training, s", "prediction, s", "rounds at most", "hash equal to pooled"], rows
    )


def trees() -> str:
    """Figure 5."""
    found = pl.read_csv(RESULTS / "trees.csv")
    rows = []
    for (n,), part in found.group_by("trees", maintain_order=True):
        by_data = [format_mean(part.filter(data=name)["accuracy"]) for name in ("spambase", "waveform")]
        rows.append([str(n), *by_data, f"{part['equal'].sum()} of {len(part)}"])
    return lines(["trees", "spambase", "waveform", "hash equal to pooled"], rows)


def prediction() -> str:
    """Figures 6 to 8."""
    found = pl.read_csv(RESULTS / "prediction.csv")
    rows = []
    for over in ("trees", "depth", "rows"):
        for (_, *_), part in found.filter(over=over).group_by("trees", "depth", "share", maintain_order=True):
            first = part.row(0, named=True)
            cells = []
            for name in ("spambase", "waveform"):
                own = part.filter(data=name)
                if not own["same"].all():
                    raise RuntimeError("the two ways to predict disagree")
                one, classical = (1000 * own[key].mean() for key in ("one_round", "classical"))
                cells += [f"{one:.1f} and {classical:.0f}", f"{own['classical_rounds'].mean():.0f}"]
            rows.append([over, *(f"{first[key]:g}" for key in ("trees", "depth", "share")), *cells])
    head = ["over", "trees", "depth", "share of rows scored"]
    return lines(head + [f"{name}: {what}" for name in ("spambase", "waveform") for what in ("ms", "rounds")], rows)


TABLES = {
    "table 3": lambda: tables("accuracy"),
    "table 4": lambda: tables("rmse"),
    "linear": linear,
    "cost": cost,
    "figure 4": parties,
    "figure 5": trees,
    "figures 6 to 8": prediction,
}


def main() -> None:
    """Write every table between its marks."""
    page = HERE / "README.md"
    text = page.read_text()
    for name, make in TABLES.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text, n = re.subn(pattern, lambda m, made=make: f"{m[1]}\n{made()}\n\n{m[2]}", text, flags=re.S)
        if n != 1:
            raise RuntimeError(f"README.md has no place for {name}")
    page.write_text(text)


if __name__ == "__main__":
    main()
