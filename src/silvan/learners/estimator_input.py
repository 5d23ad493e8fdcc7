"""Inputs of estimators for one table: tables, labels, weights, persons of rows, shares of rows."""

import math
from typing import Any

import narwhals as nw
import numpy as np
from sklearn.utils import column_or_1d
from sklearn.utils.validation import _check_sample_weight

from silvan.data.groups import Groups
from silvan.data.schema import Feature, Label
from silvan.data.table import read_table
from silvan.errors import InputError


def rows_in_share(name: str, share: float, n_rows: int, least: int) -> int:
    """Return the number of rows in a share of all rows, rounded up, as in scikit-learn."""
    if not 0.0 < share < 1.0:
        raise InputError(f"{name} as a share must be above 0 and below 1, got {share}")
    return max(least, math.ceil(share * n_rows))


def mixed_frame(X: Any) -> nw.DataFrame[Any] | None:
    """Return X as a data frame if it is one with non-numeric columns, otherwise None."""
    if not nw.dependencies.is_into_dataframe(X):
        return None
    frame = read_table(X)
    return None if all(t.is_numeric() or t == nw.Boolean for t in frame.schema.values()) else frame


def check_labels_present(y: Any) -> None:
    """Raise ``InputError`` if labels are missing; other errors are left to scikit-learn's checks."""
    labels = np.asarray(y)
    if labels.dtype.kind == "U" and not isinstance(y, np.ndarray):
        labels = np.asarray(y, object)  # in a list of text, NaN would become "nan"
    if labels.ndim != 1 or labels.dtype.kind not in "fO":
        return
    missing = int(np.isnan(labels).sum()) if labels.dtype.kind == "f" else sum(map(is_missing, labels))
    if missing:
        raise InputError.about("y", f"is missing in {missing} of {len(labels)} rows; fill in or drop them")


def is_missing(value: Any) -> bool:
    """Return whether a value is missing: None, NaN or NA."""
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas' NA is neither true nor false
        return True


def label_of(features: tuple[Feature, ...], classes: tuple[Any, ...] | None = None) -> Label:
    """Return a label with a name that no column has."""
    name = "y"
    while any(feature.name == name for feature in features):
        name += "_"
    return Label(name, classes)


def label_numbers(y: np.ndarray) -> np.ndarray:
    """Return labels as numbers; raise ``InputError`` if they are not numbers, or not finite."""
    try:
        y = y.astype(np.float64)
    except (TypeError, ValueError):
        raise InputError.about("y", f"must be numbers for regression, got dtype {y.dtype}") from None
    if not np.isfinite(y).all():
        raise InputError.about("y", f"is missing or infinite in {(~np.isfinite(y)).sum()} of {len(y)} rows; drop them")
    return y


def used_rows(X: np.ndarray, weight: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return which rows count, and their weights: rows of weight zero are left out."""
    if weight is None:
        return np.ones(len(X), np.bool_), None
    weight = _check_sample_weight(weight, X, dtype=np.float64)
    if (weight < 0).any():
        raise InputError.about("sample_weight", "must not be negative")
    used = weight > 0
    if not used.any():
        raise InputError.about("sample_weight", "is zero for every row")
    return used, weight[used]


def keys_of(groups: Any, used: np.ndarray) -> np.ndarray | None:
    """Return the keys of the used rows, by person; None if each row is a person."""
    if groups is None:
        return None
    groups = column_or_1d(groups)
    if len(groups) != len(used):
        raise InputError.about("groups", f"has {len(groups)} rows and X has {len(used)}; they must match")
    missing = sum(map(is_missing, groups.tolist()))
    if missing:
        raise InputError.about("groups", f"is missing in {missing} of {len(groups)} rows; fill in or drop them")
    texts, person = np.unique([str(one) for one in groups[used].tolist()], return_inverse=True)
    return Groups(texts.tolist(), person, b"").keys


def spread_over_rows(values: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Return the values of used rows at their positions, NaN elsewhere."""
    out = np.full((len(used), *values.shape[1:]), np.nan)
    out[used] = values
    return out
