"""The distinct cuts of trees, and which rows are above each of them.

A cut is a feature with a threshold. Each value is looked up once among the cuts of its column. Trees are then processed
in batches with few distinct cuts, so that their marks stay in the cache: the rows above the highest cut of a column are
marked first, and each lower cut adds some.
"""

from typing import NamedTuple

import numpy as np

from silvan.forest.walk import MISSING_RIGHT, Nodes, U
from silvan.util.kernels import njit
from silvan.util.threads import thread_map


class Cuts(NamedTuple):
    """The distinct cuts of some trees, sorted by column and threshold."""

    features: np.ndarray  # (columns,)
    starts: np.ndarray  # (columns + 1,) the start of each column's cuts
    threshold: np.ndarray  # (cuts,)
    missing_right: np.ndarray  # (cuts,) whether missing values count as above
    cut: np.ndarray  # int32 (nodes,) the cut of every requested split


class RankedRows(NamedTuple):
    """Rows by column, block by block, from the highest value to the lowest; missing ones come last."""

    order: np.ndarray  # uint16 (columns, rows) positions within a block
    above: np.ndarray  # int32 (stretches, cuts) rows above each cut
    known: np.ndarray  # int32 (stretches, columns) rows with a value


def find_cuts(nodes: Nodes, splits: np.ndarray) -> Cuts:
    """List the distinct cuts of some splits: bool (nodes,)."""
    at = np.flatnonzero(splits)
    asked = np.bincount(nodes.feature[at]) > 0
    features, keys = np.flatnonzero(asked), np.empty(len(at), np.uint64)
    _write_keys(at, nodes, np.cumsum(asked) - 1, keys)
    order = _sorting(keys)
    ranked = keys[order]
    fresh = np.ones(len(at), np.bool_)
    fresh[1:] = ranked[1:] != ranked[:-1]
    cut = np.zeros(len(nodes.leaf), np.int32)
    cut[at[order]] = np.cumsum(fresh, dtype=np.int32) - 1
    first = at[order[fresh]]
    starts = np.searchsorted(ranked[fresh] >> U(33), np.arange(len(features) + 1, dtype=np.uint64))
    return Cuts(features, starts, nodes.threshold[first], nodes.kind[first] == MISSING_RIGHT, cut)


@njit(nogil=True, cache=True)
def _write_keys(at: np.ndarray, nodes: Nodes, column: np.ndarray, keys: np.ndarray) -> None:
    """Write a number for each split that identifies and sorts cuts."""
    bits = nodes.threshold.view(np.uint32)
    for i in range(len(at)):
        word = U(bits[at[i]])
        # thresholds as integers in the same order: negative ones flip all bits, others the first
        image = word ^ (U(0xFFFFFFFF) if word >> U(31) else U(0x80000000))
        right = U(nodes.kind[at[i]] == MISSING_RIGHT)
        keys[i] = (U(column[nodes.feature[at[i]]]) << U(33)) | (image << U(1)) | right


def _sorting(keys: np.ndarray) -> np.ndarray:
    """Return the order of keys; NumPy sorts by 16 bits at a time much faster than by 64."""
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    for shift in (16, 32, 48):
        part = (keys >> U(shift)).astype(np.uint16)
        if part.any():
            order = order[np.argsort(part[order], kind="stable")]
    return order


def rank_rows(X: np.ndarray, cuts: Cuts, length: int, threads: int) -> RankedRows:
    """Sort rows by the number of cuts below their values, in blocks of ``length`` rows."""
    n = -(-len(X) // length)
    ranked = RankedRows(
        np.empty((len(cuts.features), len(X)), np.uint16),
        np.empty((n, len(cuts.threshold)), np.int32),
        np.empty((n, len(cuts.features)), np.int32),
    )
    thread_map(lambda column: _rank(X, cuts, length, column, ranked), range(len(cuts.features)), threads)
    return ranked


@njit(nogil=True, cache=True)
def _rank(X: np.ndarray, cuts: Cuts, length: int, column: int, ranked: RankedRows) -> None:
    start, n_cuts = cuts.starts[column], cuts.starts[column + 1] - cuts.starts[column]
    feature, order, steps = cuts.features[column], ranked.order[column], 0
    while (1 << steps) <= n_cuts:
        steps += 1
    ladder = np.full(1 << steps, np.inf, np.float32)
    ladder[:n_cuts] = cuts.threshold[start : start + n_cuts]
    codes, end = np.empty(length, np.int32), np.empty(n_cuts + 2, np.int64)
    for first in range(0, len(X), length):
        n, stretch = min(length, len(X) - first), first // length
        end[:] = 0
        for i in range(n):
            x = X[first + i, feature]
            # the number of cuts below, by bisection; added, to avoid a branch that is hard to predict
            below = np.int64(0)
            for step in range(steps - 1, -1, -1):
                below += np.int64(ladder[U(below + (1 << step) - 1)] < x) << step
            codes[i] = n_cuts - below if x == x else n_cuts + 1  # cuts not below; one more for a missing value
            end[codes[i]] += 1
        for code in range(1, n_cuts + 2):
            end[code] += end[code - 1]
        for j in range(n_cuts):
            ranked.above[stretch, start + j] = end[n_cuts - 1 - j]
        ranked.known[stretch, column] = end[n_cuts]
        for i in range(n - 1, -1, -1):
            end[codes[i]] -= 1
            order[first + end[codes[i]]] = i


@njit(nogil=True, cache=True)
def mark_rows(
    ranked: RankedRows,
    first: int,
    n: int,
    stretch: int,
    starts: np.ndarray,
    listed: np.ndarray,
    missing_right: np.ndarray,
    marks: np.ndarray,
) -> None:
    """Mark which of the ``n`` rows of a block are above each of the ``listed`` cuts, one bit per row."""
    so_far, missing = np.empty((2, marks.shape[1]), np.uint64)
    j = len(listed) - 1
    for column in range(len(starts) - 2, -1, -1):
        if j < 0 or listed[j] < starts[column]:
            continue
        order, done = ranked.order[column, first : first + n], 0
        so_far[:] = U(0)
        missing[:] = U(0)
        for i in range(ranked.known[stretch, column], n):
            missing[order[i] >> 6] |= U(1) << U(order[i] & 63)
        while j >= 0 and listed[j] >= starts[column]:
            above = ranked.above[stretch, listed[j]]
            for i in range(done, above):
                so_far[U(order[i] >> 6)] |= U(1) << U(order[i] & 63)
            done = above
            if missing_right[j]:
                for w in range(marks.shape[1]):
                    marks[j, w] = so_far[w] | missing[w]
            else:
                for w in range(marks.shape[1]):
                    marks[j, w] = so_far[w]
            j -= 1
