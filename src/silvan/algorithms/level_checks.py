"""Checks of questions about a level of trees and of the histograms in reply: kernels trust what they are given."""

import numpy as np

from silvan.data.bins.bins import Bins
from silvan.errors import FormatError
from silvan.federation import wire
from silvan.tree.objectives import Measure
from silvan.util.kernels import njit


def check_arrays(complaint: str, *expected: tuple[np.ndarray, tuple[int, ...], type[np.generic]]) -> None:
    """Raise ``FormatError`` with a text unless each array has the shape and element type beside it."""
    if any(array.shape != shape or array.dtype != dtype for array, shape, dtype in expected):
        raise FormatError(complaint)


def check_nodes(nodes: np.ndarray, features: np.ndarray, n_nodes: int, n_features: int) -> None:
    """Raise ``FormatError`` for a question about nodes or features that do not exist, or come twice."""
    if nodes.ndim != 1 or features.ndim != 2 or len(features) != len(nodes):
        raise FormatError("features do not match nodes")
    if nodes.dtype != np.int32 or features.dtype != np.int32:
        raise FormatError("nodes or features are of another type")
    if not are_different(nodes, n_nodes):
        raise FormatError("an open node does not exist, or comes twice")
    if not 1 <= features.shape[1] <= n_features or features.min(initial=0) < -1:
        raise FormatError("features do not match nodes")
    if features.max(initial=0) >= n_features:
        raise FormatError("a feature does not exist")
    before, after = features[:, :-1], features[:, 1:]
    if not ((after == -1) | ((before >= 0) & (after > before))).all():
        raise FormatError("features must rise, and those that are lacking come last")


def are_different(nodes: np.ndarray, n_nodes: int) -> bool:
    """Whether all nodes are among so many, and none comes twice."""
    if nodes.min(initial=0) < 0 or nodes.max(initial=0) >= n_nodes:
        return False
    listed = np.zeros(n_nodes, np.bool_)
    listed[nodes] = True
    return np.count_nonzero(listed) == len(nodes)


def check_histograms(sums: np.ndarray, features: np.ndarray, bins: Bins, measure: Measure) -> None:
    """Raise ``FormatError`` for histograms that no rows can have: a site may be wrong."""
    size = int(bins.n_bins[features[features >= 0]].sum())
    if sums.shape != (size, measure.n_stats) or wire.element_type(sums) != measure.count_type:
        raise FormatError("its histograms are of another size than asked for")
    if not histograms_add_up(sums, features, bins.n_bins, measure.lead or measure.n_stats):
        raise FormatError("its histograms do not add up")


@njit(nogil=True, cache=True)
def histograms_add_up(sums: np.ndarray, features: np.ndarray, n_bins: np.ndarray, n_counts: int) -> bool:
    """Return whether no count is below zero, and all features of a node have the same rows."""
    flat, n = sums.ravel(), sums.shape[1]
    first, here, signs = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    start = 0
    for node in range(features.shape[0]):
        for j in range(features.shape[1]):
            if features[node, j] < 0:
                break
            stop = start + n * n_bins[features[node, j]]
            if n == 2:
                here[0], here[1], signs[0], signs[1] = _add_pairs(flat[start:stop])
            else:
                for s in range(n):
                    here[s], signs[s] = _add_each(flat[start + s : stop : n])
            for s in range(n):
                if j == 0:
                    first[s] = here[s]
                if first[s] != here[s] or (s < n_counts and signs[s] < 0):
                    return False
            start = stop
    return True


@njit(nogil=True, cache=True)
def _add_pairs(flat: np.ndarray) -> tuple[np.int64, np.int64, np.int64, np.int64]:
    """Add up two statistics, the most common case, many bins at once: sums, and numbers below zero if an element is."""
    a, b, a_signs, b_signs = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for i in range(flat.shape[0] // 2):
        x, y = flat[np.uint64(2 * i)], flat[np.uint64(2 * i + 1)]
        a += x
        b += y
        a_signs |= x
        b_signs |= y
    return a, b, a_signs, b_signs


@njit(nogil=True, cache=True)
def _add_each(stat: np.ndarray) -> tuple[np.int64, np.int64]:
    """Add up one of many statistics: the sum, and a number below zero if an element is."""
    total, signs = np.int64(0), np.int64(0)
    for x in stat:
        total += x
        signs |= x
    return total, signs
