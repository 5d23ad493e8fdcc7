"""Tables with what counts as public about them: bounds that anybody could name, documented levels."""

import numpy as np
import polars as pl
from experiments import tables_by_name as datasets

import silvan as sv

SETS = {"Telco": "telco_churn", "Adult": "adult", "spambase": "spambase", "Pima": "pima", "covertype": "covtype"}
MOST_ROWS = 20_000
TEST = 0.2

_BOUNDS: dict[str, dict[str, tuple[float, float]]] = {
    "Telco": {"tenure": (0, 72), "MonthlyCharges": (0, 150), "TotalCharges": (0, 10_000)},
    "Adult": {
        "age": (17, 90),
        "fnlwgt": (0, 1.5e6),
        "education-num": (1, 16),
        "capital-gain": (0, 1e5),
        "capital-loss": (0, 5000),
        "hours-per-week": (1, 99),
    },
    "Pima": {
        "preg": (0, 20),
        "plas": (0, 200),
        "pres": (0, 130),
        "skin": (0, 100),
        "insu": (0, 900),
        "mass": (0, 70),
        "pedi": (0, 2.5),
        "age": (21, 90),
    },
    "spambase": {
        "capital_run_length_average": (1, 1200),
        "capital_run_length_longest": (1, 10_000),
        "capital_run_length_total": (1, 16_000),
    },
    "covertype": {
        "Elevation": (1800, 4000),
        "Aspect": (0, 360),
        "Slope": (0, 90),
        "Horizontal_Distance_To_Hydrology": (0, 1500),
        "Vertical_Distance_To_Hydrology": (-200, 700),
        "Horizontal_Distance_To_Roadways": (0, 7500),
        "Horizontal_Distance_To_Fire_Points": (0, 7500),
        "Hillshade_9am": (0, 255),
        "Hillshade_Noon": (0, 255),
        "Hillshade_3pm": (0, 255),
    },
}
_FREQUENCIES = (0.0, 100.0)  # spambase: percentages of words or characters


def load(name: str) -> tuple[pl.DataFrame, sv.Schema]:
    """Return a table, at most as many rows as are sampled of covertype, and its public schema."""
    data = datasets.load(SETS[name])
    frame = pl.DataFrame(data.frame.to_native()).rename({data.label: "label"})
    if name == "covertype":
        rows = np.sort(np.random.default_rng(0).choice(len(frame), MOST_ROWS, replace=False))
        # the most common of seven kinds of forest, about half of the rows, against the others
        frame = frame[rows].with_columns((pl.col("label") == 2).cast(pl.Int64).alias("label"))
    features = [_feature(name, frame[c]) for c in frame.columns if c != "label"]
    classes = tuple(sorted(frame["label"].unique().to_list()))
    return frame, sv.Schema(tuple(features), sv.Label("label", classes))


def _feature(name: str, column: pl.Series) -> sv.Feature:
    known = _BOUNDS[name].get(column.name)
    if known is not None:
        return sv.Feature(column.name, bounds=known)
    if not column.dtype.is_numeric():
        levels = tuple(sorted(column.drop_nulls().unique().to_list()))
        return sv.Feature(column.name, "categorical", categories=levels, other=column.null_count() > 0)
    if "freq" in column.name:
        return sv.Feature(column.name, bounds=_FREQUENCIES)
    return sv.Feature(column.name, "categorical", categories=("0", "1"))  # yes or no


def split(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the training rows and the test rows."""
    order = np.random.default_rng([seed, n]).permutation(n)
    cut = round(TEST * n)
    return order[cut:], order[:cut]
