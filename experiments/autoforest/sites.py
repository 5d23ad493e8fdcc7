"""The sites of each data set: real ones, by a column, or sampled."""

from functools import cache

import polars as pl
from experiments.bofrf.combinations import eight_sites
from experiments.bofrf.environments import ENVIRONMENTS, draw_environment
from experiments.reproduce.data import load

_MOST_CLASSES = 20
"""A label with more values is a number, of which it is asked whether it is above the median."""

DATA = {
    "heart": "heart_disease",
    **{f"E{n}": name for n, name in ENVIRONMENTS.select("environment", "dataset").unique().iter_rows()},
    "turned": "pima",
    "adult": "adult",
    "telco": "telco_churn",
    "liver": "ilpd",
    "HCC": "hcc_best2016",
    "ionosphere": "ionosphere",
    "spam": "spambase",
    "waveform": "waveform_v1",
    "Parkinson": "parkinson_speech_subject_mean",
    "airfoil": "airfoil_regression",
    "superconductors": "superconductivity_20pct",
    "education": "adult",
    "moved": "waveform_v1",
    "land": "satimage",
    "yeast": "yeast",
    "accidents": "fars",
    "chess": "kr-vs-k",
    "abalone": "abalone",
    "adult x 4": "adult",
    "accidents x 4": "fars",
    "chess x 4": "kr-vs-k",
    "land x 3": "satimage",
    "moved x 5": "waveform_v1",
    "moved spam": "spambase",
    "moved superconductors": "superconductivity_20pct",
    "moved protein": "protein_casp_regression",
    "TCGA": "tcga_brca_subtype_12sites_top1000genes",
    "covertype": "covtype",
    "covertype x 4": "covtype",
    "occupations": "adult",
}
"""Files by set."""

DRAWN = {
    "liver": (150, 250, 183),
    "HCC": (100, 150, 200, 235),
    "ionosphere": (100, 140, 111),
    "spam": (200, 300, 100, 150),
    "waveform": (200, 150, 300),
    "Parkinson": (80, 90, 82),
    "moved": (300, 200, 400),
    "moved x 5": (1600, 1200, 2000),
    "moved spam": (1500, 1000, 2000),
    "moved superconductors": (1500, 1000, 1700),
    "moved protein": (6000, 1500, 6000),
}
"""Rows of sites that are drawn at random."""

MOVED = {"moved": 4, "moved x 5": 4, "moved spam": 10, "moved superconductors": 20, "moved protein": 3}
"""By how many places columns are moved from a site to the next: what they are called tells nothing there."""

ROWS = {
    "adult": 5000,
    "telco": 5000,
    "covertype": 5000,
    "covertype x 4": 20_000,
    "superconductors": 2500,
    "education": 2500,
    "land": 1500,
    "accidents": 3000,
    "chess": 3000,
    "abalone": 2000,
    "adult x 4": 20_000,
    "accidents x 4": 12_000,
    "chess x 4": 12_000,
    "land x 3": 4400,
}
"""Rows that are drawn of large tables before they are split by a column."""


def sites_of(data: str, seed: int) -> dict[str, pl.DataFrame]:
    """Return every site's table."""
    if data == "heart":
        return _by_column(load(DATA[data]), "hospital")
    if data == "occupations":  # the eight sites that stand in for those of the thesis
        return {site: pl.concat(parts) for site, parts in eight_sites("Adult", seed).items()}
    if data == "turned":  # at the third site the label means the opposite
        tables = sites_of("E2", seed)
        return tables | {"S3": tables["S3"].with_columns(label=1 - pl.col("label"))}
    if data in MOVED:  # at the second and third site column names are rotated
        tables, step = _drawn(data, seed), MOVED[data]
        names = [name for name in tables["S1"].columns if name != "label"]
        moved = {site: names[step * i :] + names[: step * i] for i, site in enumerate(tables)}
        return {
            site: t.rename(dict(zip(names, moved[site], strict=True))).select(*names, "label")
            for site, t in tables.items()
        }
    if data in DRAWN:
        return _drawn(data, seed)
    if data.startswith("E") and data[1:].isdigit():
        return draw_environment(ENVIRONMENTS.filter(environment=int(data[1:])), seed)
    frame, column = _with_sites(data)
    return _by_column(frame.sample(ROWS[data], shuffle=True, seed=seed) if data in ROWS else frame, column)


def _drawn(data: str, seed: int) -> dict[str, pl.DataFrame]:
    """Return tables of randomly sampled rows."""
    frame, tables, start = load(DATA[data]), {}, 0
    if frame["label"].n_unique() > _MOST_CLASSES:
        frame = _above_the_median(frame)
    frame = frame.sample(fraction=1.0, shuffle=True, seed=seed)
    for i, n in enumerate(DRAWN[data], 1):
        tables[f"S{i}"], start = frame[start : start + n], start + n
    return tables


@cache
def _with_sites(data: str) -> tuple[pl.DataFrame, str]:
    """Return a table, and the column that names its sites."""
    frame = load(DATA[data])
    match data.removesuffix(" x 4").removesuffix(" x 3"):
        case "adult":
            some = pl.col("relationship").is_in(["Husband", "Not-in-family", "Unmarried", "Wife"])
            return frame.filter(some), "relationship"
        case "education":
            some = pl.col("education").is_in(["Bachelors", "HS-grad", "Some-college", "Masters", "Assoc-voc"])
            return frame.filter(some).drop("education-num"), "education"
        case "telco":
            return frame, "Contract"
        case "airfoil":
            return _above_the_median(frame), "chord_length"
        case "superconductors":
            elements = pl.format("{} elements", pl.col("number_of_elements").clip(2, 6).cast(pl.Int64))
            return _above_the_median(frame).with_columns(site=elements).drop("number_of_elements"), "site"
        case "land":  # by the brightness of the middle pixel
            return _by_range(frame, "x16", [0.1, 0.35, 0.7]), "site"
        case "yeast":  # by one of the measures of a protein
            return _by_range(frame, "x1", [0.2, 0.5]), "site"
        case "accidents":  # some states, large and small
            some = pl.col("CASE_STATE").is_in(["California", "Texas", "Florida", "Ohio", "Montana", "Delaware"])
            return frame.filter(some), "CASE_STATE"
        case "chess":
            return frame, "White_king_col"
        case "abalone":
            return frame, "sex"
        case "TCGA":  # luminal A against the rest
            return frame.with_columns(label=(pl.col("label") == 0).cast(pl.Int64)), "site"
    areas = [f"Wilderness_Area{n}" for n in range(1, 5)]
    number = pl.sum_horizontal(pl.col(area).cast(pl.Int64) * n for n, area in enumerate(areas, 1))
    return frame.with_columns(site=pl.format("area {}", number)).drop(areas), "site"


def _above_the_median(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(label=(pl.col("label") > pl.col("label").median()).cast(pl.Int64))


def _by_range(frame: pl.DataFrame, column: str, quantiles: list[float]) -> pl.DataFrame:
    """Name sites by ranges of a column, which is left out."""
    cuts = [float(frame[column].quantile(q, "linear") or 0.0) for q in quantiles]
    number = pl.sum_horizontal((pl.col(column) > cut).cast(pl.Int64) for cut in cuts)
    return frame.with_columns(site=pl.format("range {}", number + 1)).drop(column)


def _by_column(frame: pl.DataFrame, column: str) -> dict[str, pl.DataFrame]:
    parts = {str(name): part.drop(column) for (name,), part in frame.group_by(column, maintain_order=True)}
    return dict(sorted(parts.items()))
