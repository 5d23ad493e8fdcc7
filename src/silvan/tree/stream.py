"""Fill the histograms of a level in one walk along a tree's rows.

Gathering a node's rows from all over a large table spends most of the time waiting for memory. Here rows are
read in table order; each is at its node, moves along the splits made since, and is counted there. Only the histograms
of one tree's level are written in random order, and they stay in the processor's cache. Moving and counting are
separate loops over some thousand rows at a time, because in one loop rows would wait for each other.
"""

from typing import NamedTuple

import numpy as np

from silvan.forest.category_set import SET_WORDS, in_set
from silvan.tree.split import Splits
from silvan.util.kernels import njit

U = np.uint64  # unsigned indices need no check for negative values in inner loops


class SplitsMade(NamedTuple):
    """The splits made so far, by node; ``child`` is the number of the left side, -1 without a split."""

    child: np.ndarray
    feature: np.ndarray
    last: np.ndarray  # last code on the left
    missing: np.ndarray  # added to a missing value's code, to send it right
    words: np.ndarray

    @classmethod
    def none(cls, n_nodes: int) -> "SplitsMade":
        """Return a number of nodes without splits."""
        feature, last, missing = np.zeros((3, n_nodes), np.int32)
        return cls(np.full(n_nodes, -1, np.int32), feature, last, missing, np.zeros((n_nodes, SET_WORDS), np.uint64))

    def add(self, nodes: np.ndarray, splits: Splits, needed: np.ndarray) -> "SplitsMade":
        """Return the splits including those of more nodes; their children get the next numbers."""
        n, new = len(self.child), 2 * len(nodes)
        grown = SplitsMade(*(np.concatenate(pair) for pair in zip(self, SplitsMade.none(new), strict=True)))
        grown.child[nodes] = np.where(needed, n + 2 * np.arange(len(nodes)), -1)
        grown.feature[nodes] = splits.feature
        grown.last[nodes] = splits.bin
        grown.missing[nodes] = np.where(splits.missing_left, 0, 256)
        grown.words[nodes] = splits.words
        return grown


@njit(nogil=True, cache=True, inline="always")
def _descend(flat: np.ndarray, at: np.uint64, node: np.uint64, made: SplitsMade, categorical: np.ndarray) -> np.uint64:
    """Pass a row, whose codes begin at ``flat[at]``, down from a node as far as there are splits."""
    while made.child[node] >= 0:
        f = U(made.feature[node])
        code = int(flat[at + f])
        if categorical[f]:
            right = not in_set(made.words[node], code)
        else:
            right = code + (made.missing[node] if code == 0 else 0) > made.last[node]
        node = U(made.child[node]) + U(right)
    return node


class Counted(NamedTuple):
    """The nodes whose rows are counted, and the features of each."""

    slots: np.ndarray  # int32, for every node: its index below, -1 if its rows are not counted
    entries: np.ndarray  # uint64 (counted nodes, features): where a histogram begins, the feature, its shift
    sizes: np.ndarray  # uint32, how many features each has


_FEATURE_BITS, _SHIFT_BITS = 24, 2


def list_counted(
    n_nodes: int, nodes: np.ndarray, features: np.ndarray, starts: np.ndarray, shift: np.ndarray
) -> Counted:
    """Return how to count some of all nodes: of features -1 after the last, whose ``starts`` are by ``place_level``.

    One number describes a histogram, so each counted value takes one read.
    """
    slots = np.full(n_nodes, -1, np.int32)
    slots[nodes] = np.arange(len(nodes))
    listed = np.maximum(features, 0)
    entries = (starts << _FEATURE_BITS | listed) << _SHIFT_BITS | shift[listed]
    return Counted(slots, entries.astype(np.uint64), (features >= 0).sum(axis=1).astype(np.uint32))


_ROWS_A_WALK = 1 << 13  # this many rows are moved, then counted: their codes stay in the processor's cache meanwhile


@njit(nogil=True, cache=True)
def stream(
    codes: np.ndarray,
    target: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    made: SplitsMade,
    categorical: np.ndarray,
    counted: Counted,
    hist: np.ndarray,
) -> None:
    """Move a tree's rows to their nodes and add them to the histograms there.

    ``places`` holds each row's node and is brought up to date.
    """
    flat, width = codes.ravel(), U(codes.shape[1])
    for first in range(0, rows.shape[0], _ROWS_A_WALK):
        some = slice(first, min(first + _ROWS_A_WALK, rows.shape[0]))
        here, at = rows[some], places[some]
        for i in range(here.shape[0]):
            at[i] = _descend(flat, U(here[i]) * width, U(at[i]), made, categorical)
        if target.ndim == 2:
            _add_vectors(flat, width, target, here, at, counted, hist)
        elif hist.shape[1] == 2:
            _add_classes(flat, width, target, here, at, counted, U(2), hist.ravel())
        else:
            _add_classes(flat, width, target, here, at, counted, U(hist.shape[1]), hist.ravel())


@njit(nogil=True, cache=True, inline="always")
def _place(flat: np.ndarray, at: np.uint64, entry: np.uint64) -> np.uint64:
    """Return the bin of a row, whose codes start at ``flat[at]``, among the bins of all histograms."""
    feature = (entry >> U(_SHIFT_BITS)) & U((1 << _FEATURE_BITS) - 1)
    return ((entry >> U(_FEATURE_BITS + _SHIFT_BITS)) + U(flat[at + feature])) >> (entry & U((1 << _SHIFT_BITS) - 1))


@njit(nogil=True, cache=True, inline="always")
def _add_classes(
    flat: np.ndarray,
    width: np.uint64,
    target: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    counted: Counted,
    n_classes: np.uint64,
    out: np.ndarray,
) -> None:
    """Count classes; for two classes the compiler knows their number, which saves a multiplication."""
    entries, most = counted.entries.ravel(), U(counted.entries.shape[1])
    for i in range(rows.shape[0]):
        slot = counted.slots[places[i]]
        if slot < 0:
            continue
        at, c = U(rows[i]) * width, U(target[rows[i]])
        j = U(slot) * most
        stop = j + U(counted.sizes[slot])
        while j < stop:
            out[_place(flat, at, entries[j]) * n_classes + c] += 1
            j += U(1)


@njit(nogil=True, cache=True)
def _add_vectors(
    flat: np.ndarray,
    width: np.uint64,
    target: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    counted: Counted,
    hist: np.ndarray,
) -> None:
    entries, most = counted.entries.ravel(), U(counted.entries.shape[1])
    for i in range(rows.shape[0]):
        slot = counted.slots[places[i]]
        if slot < 0:
            continue
        at, row = U(rows[i]) * width, rows[i]
        j = U(slot) * most
        stop = j + U(counted.sizes[slot])
        if target.shape[1] == 2:
            first, second = target[row, 0], target[row, 1]
            while j < stop:
                here = _place(flat, at, entries[j])
                hist[here, 0] += first
                hist[here, 1] += second
                j += U(1)
            continue
        while j < stop:
            here = _place(flat, at, entries[j])
            for s in range(target.shape[1]):
                hist[here, s] += target[row, s]
            j += U(1)


@njit(nogil=True, cache=True)
def sort_rows(
    codes: np.ndarray,
    rows: np.ndarray,
    places: np.ndarray,
    made: SplitsMade,
    categorical: np.ndarray,
    stops: np.ndarray,
) -> np.ndarray:
    """Return the rows of all trees sorted by node, keeping their order within a node.

    ``stops`` must be zero and receives the end of each node's rows.
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
