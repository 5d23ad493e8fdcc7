"""Score each tree of a forest separately: counts and fixed-point sums that can be added up over sites.

Rows go down together, as bit masks in small trees and as lists in large ones; trees are distributed over threads.
"""

from collections.abc import Callable

import numpy as np

from silvan.errors import InputError
from silvan.forest.arrays import ForestArrays
from silvan.forest.flow import ROWS, Buffers, FlowColumns, flow, lay_out, make_buffers
from silvan.forest.noted_leaves import Noted
from silvan.forest.predict import abstaining, leaf_votes
from silvan.forest.small_trees import MOST_TURNS, SortedRows, are_small, count_by_masks
from silvan.forest.walk import Nodes, pack
from silvan.util.kernels import njit
from silvan.util.threads import thread_count, thread_map

ERROR_CAP = 1 << 31  # largest squared error of a row in fixed point; sums over up to 2^31 rows fit 62 bits

_NOTHING = Noted(np.zeros(0, np.int64), np.zeros((0, 0), np.uint16))


@njit(nogil=True, cache=True)
def _note(first: int, tree: int, nodes: Nodes, buffers: Buffers, noted: Noted) -> None:
    """Record the leaves of rows that have gone down a tree; ``noted.rows`` has each row's column."""
    if noted.leaves.shape[1] == 0:
        return
    root, first_leaf = nodes.offsets[tree], (nodes.offsets[tree] + tree) >> 1  # a tree has one leaf more than splits
    for node in range(root, nodes.offsets[tree + 1]):
        if nodes.leaf[node] >= 0:
            for i in range(buffers.begin[node - root], buffers.end[node - root]):
                noted.leaves[tree, noted.rows[first + buffers.rows[i]]] = nodes.leaf[node] - first_leaf


@njit(nogil=True, cache=True)
def _add_errors(
    columns: FlowColumns,
    y: np.ndarray,
    scale: float,
    trees: np.ndarray,
    nodes: Nodes,
    value: np.ndarray,
    buffers: Buffers,
    noted: Noted,
    out: np.ndarray,
) -> None:
    """Count rows and sum squared errors of some trees, each rounded to a multiple of 1 / scale."""
    for first in range(0, len(y), ROWS):
        n = min(ROWS, len(y) - first)
        for t in trees:
            for i in range(n):
                buffers.rows[i] = i
            flow(columns, first, n, n, t, nodes, buffers)
            _note(first, t, nodes, buffers, noted)
            root = nodes.offsets[t]
            for node in range(root, nodes.offsets[t + 1]):
                if nodes.leaf[node] < 0:
                    continue
                begin, stop = buffers.begin[node - root], buffers.end[node - root]
                out[t, 0] += stop - begin
                for i in range(begin, stop):
                    gap = y[first + buffers.rows[i]] - value[nodes.leaf[node], 0]
                    error = gap * gap * scale
                    out[t, 1] += np.int64(np.rint(error)) if error < ERROR_CAP else ERROR_CAP


def score_trees(
    forest: ForestArrays,
    X: np.ndarray,
    y: np.ndarray,
    absent: np.ndarray | None = None,
    n_jobs: int | None = None,
    noted: Noted | None = None,
) -> np.ndarray:
    """Count the votes of each tree on rows: int64 (trees, true class, predicted class).

    ``y`` holds class codes. A tree that uses an ``absent`` feature abstains and counts nothing. With ``noted``, the
    leaves of its rows are recorded.
    """
    if forest.classes is None:
        raise InputError("score_trees is for classification; score_numbers is for forests that predict a number")
    _check_rows(forest, X, y)
    n_classes = len(forest.classes)
    if y.dtype.kind not in "iu" or (len(y) and not 0 <= y.min() <= y.max() < n_classes):
        raise InputError.about("y", f"must hold class codes between 0 and {n_classes - 1}")
    nodes, vote, threads = pack(forest), leaf_votes(forest), thread_count(n_jobs)
    out = np.zeros((len(forest), n_classes, n_classes), np.int64)
    asked = np.ones(len(forest), np.bool_) if absent is None else ~abstaining(forest, absent)
    small = asked & are_small(nodes)
    if noted is not None:
        small &= nodes.depth <= MOST_TURNS
    if small.sum() < forest.n_features:
        small[:] = False  # marking many columns for few trees would not pay off
    rows = [_sort(X, y, n_classes, *some) for some in _noted_and_others(len(X), len(forest), noted)]
    if small.any():
        count_by_masks(rows, np.flatnonzero(small), nodes, vote, out, threads)
    if (asked & ~small).any():
        for some in rows:
            _count_by_flow(forest, some, np.flatnonzero(asked & ~small), vote, out, threads)
    return out


def _sort(X: np.ndarray, y: np.ndarray, n_classes: int, rows: np.ndarray, leaves: np.ndarray) -> SortedRows:
    """Sort some rows by class."""
    order = np.argsort(y[rows].astype(np.min_scalar_type(n_classes)), kind="stable")  # fewer bits sort faster
    ends = np.cumsum(np.bincount(y[rows], minlength=n_classes))
    return SortedRows(X[rows[order]], ends, order, leaves)


def _count_by_flow(
    forest: ForestArrays, rows: SortedRows, trees: np.ndarray, vote: np.ndarray, out: np.ndarray, threads: int
) -> None:
    """Count rows by class and by the vote of their leaf, for trees of any size."""
    n_classes, n = len(rows.ends), len(rows.X)
    codes, counts = (
        np.repeat(np.arange(n_classes), np.diff(rows.ends, prepend=0)),
        np.zeros(forest.value.shape, np.int64),
    )
    every, line_of, noted = np.ones((1, n), np.bool_), np.zeros(len(forest), np.int64), Noted(rows.columns, rows.leaves)
    labels_at_leaves(forest, rows.X, codes, codes[:0], trees, every, line_of, counts, threads, noted)
    tree_of = np.repeat(np.arange(len(forest)), np.diff(forest.offsets) // 2 + 1)  # of each leaf
    places = (tree_of[:, None] * n_classes + np.arange(n_classes)) * n_classes + vote[:, None]
    out += np.bincount(places.ravel(), counts.ravel(), out.size).astype(np.int64).reshape(out.shape)


def _noted_and_others(n: int, n_trees: int, noted: Noted | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return rows and the place to record their leaves: first those to be recorded, if any, then all others."""
    others, nothing = np.ones(n, np.bool_), np.zeros((n_trees, 0), np.uint16)
    if noted is None:
        return [(np.arange(n), nothing)]
    others[noted.rows] = False
    listed = [tuple(noted), (np.flatnonzero(others), nothing)]
    return [(rows, leaves) for rows, leaves in listed if len(rows)]


def score_numbers(
    forest: ForestArrays,
    X: np.ndarray,
    y: np.ndarray,
    scale: float,
    absent: np.ndarray | None = None,
    n_jobs: int | None = None,
    noted: Noted | None = None,
) -> np.ndarray:
    """Sum the squared errors of each tree: int64 (trees, 2), the rows scored and the sum times ``scale``.

    Each row's error is rounded and capped at ``ERROR_CAP`` separately, so sums do not depend on how rows are spread
    over sites. A tree that uses an ``absent`` feature abstains: no rows, no error. With ``noted``, the leaves of its
    rows are recorded.
    """
    if forest.classes is not None:
        raise InputError("score_numbers is for regression; score_trees is for classification")
    _check_rows(forest, X, y)
    if not 0.0 < scale < np.inf:
        raise InputError.wrong("scale", "above 0 and finite", scale)
    numbers = y.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise InputError.about("y", "must be finite")
    out = np.zeros((len(forest), 2), np.int64)
    asked = np.ones(len(forest), np.bool_) if absent is None else ~abstaining(forest, absent)
    trees, nodes = np.flatnonzero(asked), pack(forest)
    for rows, leaves in _noted_and_others(len(X), len(forest), noted):
        some, labels = (X, numbers) if len(rows) == len(X) else (X[rows], numbers[rows])
        columns, place = lay_out(forest, some), Noted(np.arange(len(some)), leaves)

        def add(
            part: np.ndarray, columns: FlowColumns = columns, labels: np.ndarray = labels, place: Noted = place
        ) -> None:
            buffers = make_buffers(forest, len(labels))
            _add_errors(columns, labels, scale, part, nodes, forest.value, buffers, place, out)

        _by_trees(trees, thread_count(n_jobs), add)
    return out


def _check_rows(forest: ForestArrays, X: np.ndarray, y: np.ndarray | None = None) -> None:
    if X.dtype != np.float32 or X.ndim != 2 or X.shape[1] != forest.n_features:
        raise InputError.about(
            "X", f"must be 32-bit floats with {forest.n_features} columns, got {X.dtype} of {X.shape}"
        )
    if y is not None and y.shape != (len(X),):
        raise InputError.about("y", f"must have one entry for each of the {len(X)} rows, got shape {y.shape}")


def _by_trees(trees: np.ndarray, threads: int, work: Callable[[np.ndarray], None]) -> None:
    """Call ``work`` for parts of the trees on threads, each part with large and small trees."""
    parts = min(8 * threads, len(trees))
    thread_map(work, [trees[i::parts].copy() for i in range(parts)], threads)


def labels_at_leaves(
    forest: ForestArrays,
    X: np.ndarray,
    codes: np.ndarray,
    amounts: np.ndarray,
    trees: np.ndarray,
    drawn: np.ndarray,
    line_of: np.ndarray,
    out: np.ndarray,
    n_jobs: int | None = None,
    noted: Noted = _NOTHING,
) -> None:
    """Add to ``out``, int64 (leaves, columns), the number of rows of each code in the leaves of some ``trees``.

    ``drawn`` has lines of rows that count, and ``line_of`` is the line of each tree. ``amounts``, one per row or none,
    are summed in the second column. With ``noted``, leaves are recorded.
    """
    _check_rows(forest, X, codes)
    lines = line_of[trees] if len(line_of) == len(forest) else np.array([-1])
    if drawn.shape[1] != len(X) or not ((lines >= 0) & (lines < len(drawn))).all():
        raise InputError("every tree needs a line with its sampled rows")
    columns, nodes = lay_out(forest, X), pack(forest)

    def count(some: np.ndarray) -> None:
        buffers = make_buffers(forest, len(X))
        _count_labels(columns, codes, amounts, drawn, line_of, some, nodes, buffers, noted, out)

    _by_trees(trees, thread_count(n_jobs), count)


@njit(nogil=True, cache=True)
def _count_labels(
    columns: FlowColumns,
    codes: np.ndarray,
    amounts: np.ndarray,
    drawn: np.ndarray,
    line_of: np.ndarray,
    trees: np.ndarray,
    nodes: Nodes,
    buffers: Buffers,
    noted: Noted,
    out: np.ndarray,
) -> None:
    for first in range(0, len(codes), ROWS):
        n = min(ROWS, len(codes) - first)
        for t in trees:
            listed, here = 0, drawn[line_of[t]]
            for i in range(n):
                buffers.rows[listed] = i  # overwritten unless the row was sampled
                listed += here[first + i]
            flow(columns, first, n, listed, t, nodes, buffers)
            _note(first, t, nodes, buffers, noted)
            root = nodes.offsets[t]
            for node in range(root, nodes.offsets[t + 1]):
                leaf = nodes.leaf[node]
                if leaf < 0:
                    continue
                begin, stop = buffers.begin[node - root], buffers.end[node - root]
                if len(amounts) == 0 and out.shape[1] == 1:
                    out[leaf, 0] += stop - begin
                    continue
                for i in range(begin, stop):
                    row = first + buffers.rows[i]
                    out[leaf, codes[row]] += 1
                    if len(amounts) > 0:
                        out[leaf, 1] += amounts[row]
