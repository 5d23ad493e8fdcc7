"""The curves of a survival forest's leaves, from counts of times at leaves."""

from dataclasses import replace

import numpy as np

from silvan.forest.forest import Forest
from silvan.forest.score import labels_at_leaves
from silvan.tree.objectives import Measure


def times_at_leaves(
    forest: Forest, measure: Measure, X: np.ndarray, codes: np.ndarray, drawn: np.ndarray, n_jobs: int | None = None
) -> np.ndarray:
    """Count the sampled rows of each tree, bool (trees, rows), by leaf and time: int64 (leaves, codes)."""
    out, trees = np.zeros((len(forest.value), measure.n_codes), np.int64), np.arange(len(forest))
    labels_at_leaves(forest, X, codes, np.zeros(0, np.int64), trees, drawn, trees, out, n_jobs)
    return out


def curved(forest: Forest, measure: Measure, counts: np.ndarray) -> Forest:
    """Return the forest with the curves computed from counts of times."""
    return replace(forest, value=measure.leaf_curves(counts), times=np.array(measure.times))


def with_curves(
    forest: Forest, measure: Measure, X: np.ndarray, codes: np.ndarray, drawn: np.ndarray, n_jobs: int | None = None
) -> Forest:
    """Return the forest with curves of the sampled rows of its trees."""
    return curved(forest, measure, times_at_leaves(forest, measure, X, codes, drawn, n_jobs))
