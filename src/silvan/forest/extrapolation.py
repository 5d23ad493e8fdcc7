"""Numbers far beyond all thresholds of their column, which the forest has probably not seen in training.

Sites do not disclose the ranges of their columns, but thresholds lie among the training values. Beyond the outermost
thresholds, a forest predicts the same for all numbers.
"""

from typing import NamedTuple

import numpy as np

from silvan.forest.forest import Forest

_LARGEST = np.finfo(np.float32).max

_FAR, _SHARE = 1.0, 0.1
"""Distance beyond the outermost thresholds, relative to their range, and the least share of rows so far outside."""

_VERY_FAR = 3.0
"""Distance at which one row suffices, because heavy tails of training data hardly reach so far."""


class Outside(NamedTuple):
    """The number of rows of a column far outside the range of the forest's thresholds."""

    column: str
    rows: int
    low: float
    high: float


def far_outside(forest: Forest, X: np.ndarray) -> list[Outside]:
    """Return the columns of encoded rows with numbers far outside the training values, most rows first."""
    outside = []
    for place, feature in enumerate(forest.schema.features):
        thresholds = np.unique(forest.threshold[forest.feature == place])
        thresholds = thresholds[np.abs(thresholds) < _LARGEST]  # other thresholds only separate missing values
        if feature.categorical or len(thresholds) < 2:
            continue
        low, high = float(thresholds[0]), float(thresholds[-1])
        numbers = X[:, place].astype(np.float64)
        beyond = np.maximum(low - numbers, numbers - high) / (high - low)  # NaN does not count as beyond
        rows = int(np.count_nonzero(beyond > _FAR))
        if rows >= _SHARE * len(X) > 0 or np.any(beyond > _VERY_FAR):
            outside.append(Outside(feature.name, rows, low, high))
    return sorted(outside, key=lambda one: (-one.rows, one.column))
