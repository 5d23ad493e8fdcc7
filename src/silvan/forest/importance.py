"""Importance of features: by the gains of splits, or by shuffling a column."""

from typing import Any

import numpy as np

from silvan.errors import InputError
from silvan.forest.arrays import ForestArrays
from silvan.forest.predict import as_rows, decide
from silvan.util.readable import html_table


class Importances(dict[str, float]):
    """The importance of each feature, by name; prints as a list, the most important first."""

    def _ranked(self) -> list[tuple[str, float]]:
        return sorted(self.items(), key=lambda item: -item[1])

    def __repr__(self) -> str:
        wide = max(map(len, self), default=0)
        return "\n".join(f"{name:{wide}}  {value:7.4f}" for name, value in self._ranked())

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        return html_table(["feature", "importance"], [[name, round(value, 4)] for name, value in self._ranked()])


def permutation_importances(
    forest: ForestArrays, X: Any, y: Any, repeats: int = 5, random_state: int = 0, n_jobs: int | None = None
) -> Importances:
    """Return each feature's drop in accuracy (or in R2) when its column is shuffled, the mean over repeats.

    Columns that no tree uses are skipped, because they have no effect.
    """
    (matrix, absent), y = as_rows(forest, X), np.asarray(y)
    if len(matrix) != len(y) or len(y) == 0:
        raise InputError(f"X has {len(matrix)} rows and y has {len(y)}; they must match and not be 0")
    rng = np.random.default_rng(random_state)
    base = _score(forest, matrix, y, absent, n_jobs)
    drops = dict.fromkeys(forest.schema.names, 0.0)
    for f in np.unique(forest.feature[forest.feature >= 0]):
        column = matrix[:, f].copy()
        scores = []
        for _ in range(repeats):
            matrix[:, f] = rng.permutation(column)
            scores.append(_score(forest, matrix, y, absent, n_jobs))
        matrix[:, f] = column
        drops[forest.schema.names[f]] = base - float(np.mean(scores))
    return Importances(drops)


def gain_shares(tree: np.ndarray, feature: np.ndarray, gain: np.ndarray, n_trees: int, n_features: int) -> np.ndarray:
    """Return each feature's share of the gains of each tree: (trees, features), zeros for a tree without gains.

    ``tree``, ``feature`` and ``gain`` are given for each split.
    """
    gains = np.zeros((n_trees, n_features))
    np.add.at(gains, (tree, feature), gain)
    total = gains.sum(axis=1, keepdims=True)
    return np.divide(gains, total, out=np.zeros_like(gains), where=total > 0)


def mean_shares(shares: np.ndarray) -> np.ndarray:
    """Average the trees' shares and scale the result to add up to 1."""
    mean = shares.sum(axis=0) / len(shares)
    return mean / mean.sum() if mean.sum() > 0 else mean


def _score(
    forest: ForestArrays, matrix: np.ndarray, y: np.ndarray, absent: np.ndarray | None, n_jobs: int | None
) -> float:
    answer = decide(forest, matrix, n_jobs, absent)
    if forest.classes is not None:
        return float((forest.classes[answer] == y).mean())
    spread = float(((y - y.mean()) ** 2).sum())
    return 1.0 - float(((y - answer) ** 2).sum()) / spread if spread > 0 else 0.0
