"""Intervals, quantiles and sets of classes, from out-of-bag errors.

A forest may contain such errors (``Forest.errors``): increasing values, and how many rows have at most each. For a
number an error is the label less the prediction; for classes it is 1 less the probability of the true class. This is
split conformal prediction with out-of-bag rows in place of a calibration set. If out-of-bag errors were those of new
rows, an interval with the k-th smallest of n errors, k = (n + 1) times the coverage rounded up, would cover at least
so many new rows. They nearly are: the forest that predicts has more trees than the part of it that scores an
out-of-bag row, so coverage is close to the requested one, and slightly above it.
"""

import math
from typing import Any

import numpy as np

from silvan.errors import InputError
from silvan.forest.arrays import ForestArrays, not_none
from silvan.util.user_warnings import warn_user


def predict_interval(forest: ForestArrays, scores: np.ndarray, coverage: float) -> np.ndarray:
    """Return lower and upper ends around predicted numbers: (rows, 2)."""
    if forest.schema.n_classes:
        raise InputError("predict_interval is for numbers; this forest predicts a class: use predict_set")
    reach = interval_reach(_errors_of(forest), coverage)
    _warn_if_all(forest, coverage, reach)
    return scores[:, :1] + np.array([-reach, reach])


def reach_of(forest: ForestArrays, coverage: float) -> float:
    """Return the reach of intervals, or the limit of sets; NaN if the forest has no errors or too few."""
    if forest.errors is None:
        return np.nan
    errors = not_none(forest.errors)
    reach = set_limit(errors, coverage) if forest.schema.n_classes else interval_reach(errors, coverage)
    return reach if np.isfinite(reach) else np.nan


def interval_reach(errors: np.ndarray, coverage: float) -> float:
    """Return the distances of an interval's ends from the prediction; infinite with too few rows."""
    values, rows = errors
    least = _least_rows(rows[-1], coverage)
    sizes = np.unique(np.abs(values))
    inside = np.interp(sizes, values, rows) - np.interp(-sizes, values, rows)
    return _value_at(sizes, np.maximum.accumulate(inside), least)


def predict_set(forest: ForestArrays, scores: np.ndarray, coverage: float) -> np.ndarray:
    """Return which classes are in the prediction set: bool (rows, classes)."""
    if not forest.schema.n_classes:
        raise InputError("predict_set is for classes; this forest predicts a number: use predict_interval")
    most = set_limit(_errors_of(forest), coverage)
    _warn_if_all(forest, coverage, most)
    return np.asarray(1.0 - scores <= most)


def set_limit(errors: np.ndarray, coverage: float) -> float:
    """Return the largest error, 1 less the probability, of a class in a set; infinite with too few rows."""
    values, rows = errors
    return _value_at(values, rows, _least_rows(rows[-1], coverage))


def predict_quantiles(forest: ForestArrays, scores: np.ndarray, q: Any) -> np.ndarray:
    """Return quantiles of each row's number: (rows, quantiles)."""
    if forest.schema.n_classes:
        raise InputError("predict_quantiles is for numbers; this forest predicts a class: use predict_proba")
    wanted: np.ndarray = np.asarray(q, np.float64)
    possible = ((wanted > 0) & (wanted < 1)).all()
    if not possible or len(wanted.shape) > 1:
        raise InputError.about("q", f"must be between 0 and 1, as 0.5 or [0.05, 0.95]; got {q!r}")
    values, rows = _errors_of(forest)
    return scores[:, :1] + np.array([_value_at(values, rows, float(share * rows[-1])) for share in wanted.ravel()])


def _errors_of(forest: ForestArrays) -> np.ndarray:
    if forest.errors is None:
        raise InputError(
            "this forest has no errors for intervals: fit its learner with intervals=True, which needs bootstrap=True "
            "and enough rows"
        )
    return not_none(forest.errors)


def _least_rows(n: float, coverage: Any) -> float:
    """Return how many of ``n`` rows must be covered to cover this share of new rows."""
    if not isinstance(coverage, int | float) or not 0.0 < coverage < 1.0:
        raise InputError.about("coverage", f"must be between 0 and 1, as 0.9; got {coverage!r}")
    return float(math.ceil((n + 1.0) * coverage - 1e-9))


def _value_at(values: np.ndarray, rows: np.ndarray, least: float) -> float:
    """Return the value that ``least`` rows do not exceed, by linear interpolation; infinite if there is none.

    ``rows`` never falls.
    """
    if least > rows[-1]:
        return np.inf
    after = int(np.searchsorted(rows, least, "left"))
    if after == 0:
        return float(values[0])
    low, high = rows[after - 1], rows[after]
    return float(values[after - 1] + (values[after] - values[after - 1]) * (least - low) / (high - low))


def _warn_if_all(forest: ForestArrays, coverage: float, reach: float) -> None:
    if np.isinf(reach):
        n = int(not_none(forest.errors)[1, -1])
        warn_user(
            f"coverage={coverage:g} needs more than the {n} rows with known errors, so every "
            f"{'class' if forest.schema.n_classes else 'number'} is possible; use at most {n / (n + 1):.4g}"
        )
