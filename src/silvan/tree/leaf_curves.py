"""The curves of a survival forest's leaves, from counts of times at leaves."""

from dataclasses import replace

import numpy as np

from silvan.forest.forest import Forest
from silvan.forest.score import labels_at_leaves
from silvan.tree.objectives import Measure

_COUNT_BYTES = 1 << 27  # memory for counts at leaves at a time


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
    """Return the forest with curves of the sampled rows of its trees, counted a few trees at a time."""
    leaves = np.diff(forest.offsets) // 2 + 1
    value = np.empty((int(leaves.sum()), len(measure.times)))
    size, first = np.cumsum(leaves) * measure.n_codes * 8, 0
    for stop in [*(1 + np.flatnonzero(np.diff(size // _COUNT_BYTES))).tolist(), len(forest)]:
        start = int(leaves[:first].sum())
        some = forest.take(slice(first, stop))
        counts = times_at_leaves(some, measure, X, codes, drawn[first:stop], n_jobs)
        value[start : start + len(counts)] = measure.leaf_curves(counts)
        first = stop
    return replace(forest, value=value, times=np.array(measure.times))
