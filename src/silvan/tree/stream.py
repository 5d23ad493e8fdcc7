"""Fill the histograms of a level in one walk along a tree's rows.

Where a node's rows are gathered from all over a large table, most time goes into waiting for memory. Here rows are
read in the order in which they lie; each has its node, goes on to where the splits made since send it, and is
counted there. What is written at random are the histograms of one tree's level, which stay in the processor's cache.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from silvan.forest.category_set import SET_WORDS, in_set
from silvan.tree.split import Splits

U = np.uint64  # unsigned indices spare the check for negative ones in the inner loops


class SplitsMade(NamedTuple):
    """The splits made so far, by node; ``child`` is the number of the left side, -1 where there is no split."""

    child: np.ndarray
    feature: np.ndarray
    last: np.ndarray  # last code on the left
    missing: np.ndarray  # what a missing value's code is raised by, to send it right
    words: np.ndarray

    @classmethod
    def none(cls, n_nodes: int) -> "SplitsMade":
        """Return so many nodes without splits."""
        return cls(np.full(n_nodes, -1, np.int32), *_blank(n_nodes))

    def add(self, nodes: np.ndarray, splits: Splits, needed: np.ndarray) -> "SplitsMade":
        """Return the splits with those of some more nodes; their children get the next numbers."""
        n, new = len(self.child), 2 * len(nodes)
        grown = SplitsMade(*(np.concatenate(pair) for pair in zip(self, SplitsMade.none(new), strict=True)))
        grown.child[nodes] = np.where(needed, n + 2 * np.arange(len(nodes)), -1)
        grown.feature[nodes] = splits.feature
        grown.last[nodes] = splits.bin
        grown.missing[nodes] = np.where(splits.missing_left, 0, 256)
        grown.words[nodes] = splits.words
        return grown


def _blank(n: int) -> tuple[np.ndarray, ...]:
    feature, last, missing = np.zeros((3, n), np.int32)
    return feature, last, missing, np.zeros((n, SET_WORDS), np.uint64)


@njit(nogil=True, cache=True, inline="always")
def _descend(flat: np.ndarray, at: np.uint64, node: np.uint64, made: SplitsMade, categorical: np.ndarray) -> np.uint64:
    """Take a row, whose codes begin at ``flat[at]``, down from a node as far as there are splits."""
    while made.child[node] >= 0:
        f = U(made.feature[node])
        code = int(flat[at + f])
        if categorical[f]:
            right = not in_set(made.words[node], code)
        else:
            right = code + (made.missing[node] if code == 0 else 0) > made.last[node]
        node = U(made.child[node]) + U(right)
    return node


@njit(nogil=True, cache=True)
def stream(
    codes: np.ndarray,
    target: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    made: SplitsMade,
    categorical: np.ndarray,
    slots: np.ndarray,
    features: np.ndarray,
    starts: np.ndarray,
    shift: np.ndarray,
    hist: np.ndarray,
) -> None:
    """Move a tree's rows to their nodes and add them to the histograms there.

    ``places`` holds each row's node and is brought up to date. ``slots`` is the number of each node's histograms, -1
    for none; those of slot s are of ``features[s]`` (-1 after the last) and begin
    at ``starts[s]``, by ``place_level``.
    """
    width, stats = U(codes.shape[1]), U(hist.shape[1])
    flat, out = codes.ravel(), hist.ravel()
    counts = np.zeros(features.shape[0], np.int64)
    for k in range(features.shape[0]):
        while counts[k] < features.shape[1] and features[k, counts[k]] >= 0:
            counts[k] += 1
    # nearly always all columns have the same shift, which then need not be read for every value
    first, same = U(shift[0]), True
    for column in range(shift.shape[0]):
        same &= shift[column] == shift[0]
    for i in range(rows.shape[0]):
        at = U(rows[i]) * width
        node = _descend(flat, at, U(places[i]), made, categorical)
        places[i] = node
        if slots[node] < 0:
            continue
        s = U(slots[node])
        if target.ndim == 2:
            for j in range(counts[s]):
                f = U(features[s, j])
                here = ((U(starts[s, j]) + U(flat[at + f])) >> (first if same else U(shift[f]))) * stats
                for k in range(target.shape[1]):
                    out[here + U(k)] += target[rows[i], k]
        elif same:
            c = U(target[rows[i]])
            for j in range(counts[s]):
                out[((U(starts[s, j]) + U(flat[at + U(features[s, j])])) >> first) * stats + c] += 1
        else:
            c = U(target[rows[i]])
            for j in range(counts[s]):
                f = U(features[s, j])
                out[((U(starts[s, j]) + U(flat[at + f])) >> U(shift[f])) * stats + c] += 1


@njit(nogil=True, cache=True)
def sort_rows(
    codes: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    made: SplitsMade,
    categorical: np.ndarray,
    stops: np.ndarray,
) -> np.ndarray:
    """Return the rows of all trees in the order of their nodes, the order within a node kept.

    ``stops`` must be zeros and receives where each node's rows end.
    """
    flat, width = codes.ravel(), U(codes.shape[1])
    for i in range(rows.shape[0]):
        places[i] = _descend(flat, U(rows[i]) * width, U(places[i]), made, categorical)
        stops[places[i]] += 1
    start = 0
    for node in range(stops.shape[0]):
        start, stops[node] = start + stops[node], start
    out = np.empty(rows.shape[0], np.uint32)
    for i in range(rows.shape[0]):
        out[stops[places[i]]] = rows[i]
        stops[places[i]] += 1
    return out
