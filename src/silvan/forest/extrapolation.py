"""Extrapolation: numbers far beyond all thresholds of their column.

Sites do not disclose the ranges of their columns, but thresholds lie among the training values. Beyond the outermost
ones a forest predicts the same for all numbers.
"""

from typing import NamedTuple

import numpy as np

from silvan.forest.forest import Forest

_LARGEST = np.finfo(np.float32).max

_FAR, _SHARE = 1.0, 0.1
"""Distance beyond the outermost thresholds, in multiples of their range, and the minimum share of rows."""

_VERY_FAR = 3.0
"""The distance at which a single row suffices: heavy tails of training rows hardly reach this far."""


class Outside(NamedTuple):
    """The number of rows of a column far outside the range of the model's thresholds."""

    column: str
    rows: int
    low: float
    high: float


def far_outside(forest: Forest, X: np.ndarray) -> list[Outside]:
    """Return the columns of encoded rows with numbers far outside the training range, most first."""
    found = []
    for place, feature in enumerate(forest.schema.features):
        thresholds = np.unique(forest.threshold[forest.feature == place])
        thresholds = thresholds[np.abs(thresholds) < _LARGEST]  # other thresholds only separate missing values
        if feature.categorical or len(thresholds) < 2:
            continue
        low, high = float(thresholds[0]), float(thresholds[-1])
        numbers = X[:, place].astype(np.float64)
        beyond = np.maximum(low - numbers, numbers - high) / (high - low)  # NaN compares as not beyond
        rows = int(np.count_nonzero(beyond > _FAR))
        if rows >= _SHARE * len(X) > 0 or np.any(beyond > _VERY_FAR):
            found.append(Outside(feature.name, rows, low, high))
    return sorted(found, key=lambda one: (-one.rows, one.column))
