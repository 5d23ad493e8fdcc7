"""Take rows down small trees as bit masks: one bit a row, thousands of rows at a time.

First the rows above each cut of the trees are marked. A node then splits its rows by an operation or two on words of 64
rows. A mask costs the same at the top of a tree and far down, where few rows are left in it; so this is for trees of up
to about a thousand splits, and for splits by number. Where all leaves below a node vote alike, its rows go no further,
unless leaves are to be noted.
"""

from typing import NamedTuple

import numpy as np

from silvan.forest.mask_descent import (
    count_bits,
    descend,
    descend_to_leaves,
    number_paths,
    ones,
    write_numbers,
)
from silvan.forest.tree_cuts import Cuts, RankedRows, find_cuts, mark_rows, rank_rows
from silvan.forest.walk import Nodes, U
from silvan.util.kernels import njit
from silvan.util.threads import thread_map

MOST_SPLITS = 1 << 10
"""For larger trees ``flow`` is faster."""

MOST_CUTS = 1 << 13
"""Different cuts of a batch of trees: their marks for ``WORDS`` words take eight megabytes."""

_FEW_TREES = 32
"""Fewer trees are not shared out to threads: to mark the rows takes longer than to take them down."""

WORDS = 128
"""Length of a mask: a longer one makes nodes cheaper, and the marks larger."""

MOST_TURNS = 16
"""For the leaves of deeper trees ``flow`` is used."""

_MOST_ROWS = 1 << 16
"""Rows whose order by each column is in memory at a time."""


class SortedRows(NamedTuple):
    """Rows sorted by class; with ``leaves``, the leaf of each is noted, by its number in the tree."""

    X: np.ndarray
    ends: np.ndarray  # (classes,) where each class ends
    columns: np.ndarray  # (rows,) each row's column of leaves
    leaves: np.ndarray  # uint16 (trees, rows), or without columns


def splits_of(nodes: Nodes) -> np.ndarray:
    """Count the splits of every tree."""
    return np.add.reduceat(nodes.leaf < 0, nodes.offsets[:-1], dtype=np.int64)


def are_small(nodes: Nodes) -> np.ndarray:
    """Return which trees are small enough for masks and have no splits by category."""
    by_category = np.logical_or.reduceat(nodes.kind >= 0, nodes.offsets[:-1])
    return (splits_of(nodes) <= MOST_SPLITS) & ~by_category


@njit(nogil=True, cache=True)
def add_verdicts(nodes: Nodes, vote: np.ndarray, verdict: np.ndarray) -> None:
    """Write the class that all leaves below a node vote for, -1 if they differ."""
    for node in range(len(verdict) - 1, -1, -1):  # children come after parents
        if nodes.leaf[node] >= 0:
            verdict[node] = vote[nodes.leaf[node]]
        else:
            left, right = verdict[nodes.left[node]], verdict[nodes.left[node] + 1]
            verdict[node] = left if left == right else -1


def count_by_masks(
    rows: list[SortedRows], trees: np.ndarray, nodes: Nodes, vote: np.ndarray, out: np.ndarray, threads: int
) -> None:
    """Count rows by class and by the vote of their leaf, for small trees."""
    verdict = np.empty(len(nodes.leaf), np.int64)
    add_verdicts(nodes, vote, verdict)
    noting = any(some.leaves.shape[1] for some in rows)
    chosen = np.zeros(len(nodes.offsets) - 1, np.bool_)
    chosen[trees] = True
    asked = (nodes.leaf < 0 if noting else verdict < 0) & np.repeat(chosen, np.diff(nodes.offsets))
    cuts = find_cuts(nodes, asked)
    number, most_trees = np.empty(len(trees), np.int64), max(_FEW_TREES, -(-len(trees) // threads))
    _share_out(trees, nodes.offsets, asked, cuts.cut, len(cuts.threshold), most_trees, MOST_CUTS, number)
    batches = [_Batch.of(trees[number == k], nodes, asked, cuts) for k in range(number[-1] + 1)]
    for some in rows:
        for first in range(0, len(some.X), _MOST_ROWS):
            _count_some(some, first, cuts, batches, nodes, vote, verdict, out, threads)


def _count_some(
    rows: SortedRows,
    first: int,
    cuts: Cuts,
    batches: "list[_Batch]",
    nodes: Nodes,
    vote: np.ndarray,
    verdict: np.ndarray,
    out: np.ndarray,
    threads: int,
) -> None:
    """Count the rows from ``first`` on that are in memory by their order at a time."""
    piece = slice(first, first + _MOST_ROWS)
    X, columns = rows.X[piece], rows.columns[piece]
    ends, length = np.clip(rows.ends - first, 0, len(X)), _even_length(len(X))
    ranked = rank_rows(X, cuts, length, threads)

    def count(batch: _Batch) -> None:
        _count(ranked, cuts.starts, length, ends, columns, rows.leaves, batch, nodes, vote, verdict, out)

    thread_map(count, batches, threads)


def _even_length(n: int) -> int:
    """Return how many rows go down together, so that all stretches are about as long."""
    words = -(-n // 64)
    return -(-words // max(1, -(-words // WORDS))) * 64


class _Batch(NamedTuple):
    """Trees with few different cuts, and where the marks of these are."""

    trees: np.ndarray
    listed: np.ndarray  # the cuts
    missing_right: np.ndarray  # (cuts,)
    start: int  # the first node
    place: np.ndarray  # (nodes,) which of the batch's cuts a split has

    @classmethod
    def of(cls, trees: np.ndarray, nodes: Nodes, asked: np.ndarray, cuts: Cuts) -> "_Batch":
        """List the cuts of some trees."""
        start, stop = nodes.offsets[trees[0]], nodes.offsets[trees[-1] + 1]
        splits = np.flatnonzero(asked[start:stop])
        cut, used = cuts.cut[start:stop][splits], np.zeros(len(cuts.threshold), np.bool_)
        used[cut] = True
        place = np.zeros(stop - start, np.int32)
        place[splits] = (np.cumsum(used, dtype=np.int32) - 1)[cut]
        return cls(trees, np.flatnonzero(used), cuts.missing_right[used], int(start), place)


@njit(nogil=True, cache=True)
def _share_out(
    trees: np.ndarray,
    offsets: np.ndarray,
    asked: np.ndarray,
    cut: np.ndarray,
    n_cuts: int,
    most_trees: int,
    most_cuts: int,
    number: np.ndarray,
) -> None:
    """Write the batch of every tree: of so many trees and different cuts at most, but of one tree at least."""
    last = np.full(n_cuts, -1)  # the batch in which a cut was met last
    batch, size, begun = 0, 0, 0
    for i in range(len(trees)):
        for again in range(2):
            fresh = 0
            for node in range(offsets[trees[i]], offsets[trees[i] + 1]):
                if asked[node] and last[cut[node]] != batch:
                    last[cut[node]] = batch
                    fresh += 1
            if again or i == begun or (size + fresh <= most_cuts and i - begun < most_trees):
                break
            batch, size, begun = batch + 1, 0, i
        size += fresh
        number[i] = batch


@njit(nogil=True, cache=True)
def _count(
    ranked: RankedRows,
    starts: np.ndarray,
    length: int,
    ends: np.ndarray,
    columns: np.ndarray,
    leaves: np.ndarray,
    batch: _Batch,
    nodes: Nodes,
    vote: np.ndarray,
    verdict: np.ndarray,
    out: np.ndarray,
) -> None:
    """Take rows down the trees of a batch and count them, stretch after stretch."""
    n_words, deepest, largest = length >> 6, 0, 0
    for t in batch.trees:
        deepest = max(deepest, nodes.depth[t])
        largest = max(largest, nodes.offsets[t + 1] - nodes.offsets[t])
    marks = np.empty((len(batch.listed), n_words), np.uint64)
    masks, stack = np.empty((deepest + 1, n_words), np.uint64), np.empty((deepest + 1, 3), np.int64)
    voted, turns = np.empty((len(ends), n_words), np.uint64), np.empty((MOST_TURNS, n_words), np.uint64)
    path, number = np.empty(largest, np.int64), np.empty(1 << MOST_TURNS, np.uint16)
    for first in range(0, len(columns), length):
        n = min(length, len(columns) - first)
        mark_rows(ranked, first, n, first // length, starts, batch.listed, batch.missing_right, marks)
        for t in batch.trees:
            root, depth = nodes.offsets[t], nodes.depth[t]
            voted[:] = U(0)
            for w in range(n_words):
                masks[0, w] = voted[0, w] = ones(n - 64 * w)
            if leaves.shape[1] == 0:
                descend(root, nodes, batch.start, batch.place, marks, verdict, masks, stack, voted)
            else:
                turns[:depth] = U(0)
                descend_to_leaves(root, nodes, batch.start, batch.place, marks, vote, masks, stack, voted, turns)
                number_paths(root, nodes.offsets[t + 1], nodes, path, number)
                write_numbers(turns[:depth], number, columns[first : first + n], leaves[t])
            _add_votes(voted, first, n, ends, out[t])


@njit(nogil=True, cache=True)
def _add_votes(voted: np.ndarray, first: int, n: int, ends: np.ndarray, out: np.ndarray) -> None:
    """Count the rows of each class that voted for each; those that did not vote for another voted for the first."""
    for k in range(1, len(ends)):
        for w in range(voted.shape[1]):
            voted[0, w] &= ~voted[k, w]
    for k in range(len(ends)):
        begin = 0
        for label in range(len(ends)):
            end = min(max(ends[label] - first, 0), n)
            out[label, k] += count_bits(voted[k], begin, end)
            begin = end
