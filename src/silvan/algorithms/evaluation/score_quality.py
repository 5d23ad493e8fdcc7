"""How good a model's scores of rows are, and whether another model's scores of the same rows are better.

Sites choose between models by it on training rows: the error of a difference follows from each row's influence.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from silvan.algorithms.evaluation.intervals import placements

MetricName = Literal["auc", "accuracy", "rmse", ""]

_SURE = 2.0
"""Standard errors by which one must be ahead of the other: about the 95 % interval of the difference."""


@dataclass(frozen=True)
class ScoreQuality:
    """How good scores are: a metric, a merit of which more is better, and the influence of each row on the merit."""

    metric: MetricName
    value: float
    merit: float
    influence: np.ndarray

    def lead(self, other: "ScoreQuality") -> tuple[float, float]:
        """Return by how much it is better, and the standard error of that, on the same rows."""
        n, gap = len(self.influence), self.influence - other.influence
        error = float(np.sqrt((gap * gap).sum() * n / (n - 1))) if n > 1 else np.inf
        return self.merit - other.merit, error

    def beats(self, other: "ScoreQuality") -> bool:
        """Return whether it is better by more than two standard errors of the difference."""
        gain, error = self.lead(other)
        return gain > _SURE * error


def score_quality(answer: np.ndarray, y: np.ndarray, n_classes: int, by_pairs: bool = False) -> ScoreQuality:
    """Evaluate scores by AUC, averaged over the classes that have one, or by accuracy; numbers by squared error.

    With ``by_pairs``, an AUC of several classes counts by the pairs of rows that it compares, and not as much as any
    other: that of a class with few rows is mostly luck.
    """
    n = len(y)
    if not n_classes:
        square = (answer[:, 0] - y) ** 2
        return ScoreQuality("rmse", float(np.sqrt(square.mean())), -float(square.mean()), (square.mean() - square) / n)
    parts, pairs = [], []
    for c in [1] if n_classes == 2 else range(n_classes):
        here = y == c
        if 0 < here.sum() < n:
            parts.append(_auc_influence(answer[:, c], here))
            pairs.append(float(here.sum()) * float((~here).sum()))
    if parts:
        weights = pairs if by_pairs else None
        auc = float(np.average([one for one, _ in parts], weights=weights))
        return ScoreQuality("auc", auc, auc, np.average([influence for _, influence in parts], axis=0, weights=weights))
    right = (answer.argmax(axis=1) == y).astype(np.float64)
    return ScoreQuality("accuracy", float(right.mean()), float(right.mean()), (right - right.mean()) / n)


def _auc_influence(score: np.ndarray, here: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the AUC and how much each row adds to or takes from it: the components of DeLong's variance."""
    placement = np.empty(len(score))
    placement[here], placement[~here] = placements(score, here)
    auc = float(placement[here].mean())
    return auc, (placement - auc) / np.where(here, here.sum(), (~here).sum())
