"""Walking trees: rows go down all trees in blocks, so that the steps of many rows overlap.

A leaf points to itself, so a block takes as many steps as its deepest row and needs no test for having
arrived.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import njit

from silvan.data.encode import encode_features
from silvan.data.schema import Schema
from silvan.data.table import read_table
from silvan.errors import InputError
from silvan.threads import thread_count, thread_map
from silvan.tree.check import is_category_split

if TYPE_CHECKING:
    from silvan.tree.forest import Forest

MISSING_RIGHT, MISSING_LEFT = -1, -2
"""Kinds of numeric split; a kind of 0 or more is a split by category and says which row of ``sets``."""

BLOCK = 64
"""Rows that walk together."""

U = np.uint64  # unsigned indices spare the check for negative ones in the inner loops


class Nodes(NamedTuple):
    """Nodes laid out for walking; a leaf is a split that sends everything left, to itself."""

    feature: np.ndarray  # uint32
    threshold: np.ndarray  # float32
    left: np.ndarray  # uint32
    kind: np.ndarray  # int32
    sets: np.ndarray
    offsets: np.ndarray
    depth: np.ndarray  # int32, of each tree
    leaf: np.ndarray


def as_matrix(schema: Schema, X: Any) -> np.ndarray:
    """Turn what a user passes into float32 (rows, features).

    A table is read by column names. In an array, categories are codes; an unknown one counts as missing.
    """
    if isinstance(X, np.ndarray | list):
        try:
            with np.errstate(over="ignore"):
                matrix = np.array(X, np.float32, order="C")
        except (TypeError, ValueError):
            raise InputError("X must hold numbers; pass columns of text in a data frame") from None
        if matrix.ndim != 2 or matrix.shape[1] != len(schema.features):
            raise InputError(f"X must have {len(schema.features)} columns, got shape {matrix.shape}")
        if np.isinf(matrix).any():
            raise InputError("X holds infinite values; replace them by missing ones (NaN) or large finite numbers")
        for f, feature in enumerate(schema.features):
            if feature.categorical:
                matrix[:, f][~((matrix[:, f] >= 0) & (matrix[:, f] < feature.n_codes))] = np.nan
        return matrix
    return encode_features(read_table(X), schema)


def pack(forest: "Forest") -> Nodes:
    """Lay out the nodes for walking."""
    is_leaf = forest.feature < 0
    kind = np.where(is_leaf | forest.missing_left, MISSING_LEFT, MISSING_RIGHT)
    by_category = is_category_split(forest.schema, forest.feature)
    kind[by_category] = np.arange(by_category.sum())
    return Nodes(
        np.where(is_leaf, 0, forest.feature).astype(np.uint32),
        np.where(is_leaf, np.inf, forest.threshold).astype(np.float32),
        np.where(is_leaf, np.arange(len(is_leaf)), forest.left).astype(np.uint32),
        kind.astype(np.int32),
        forest.sets,
        forest.offsets,
        np.maximum.reduceat(forest.depth, forest.offsets[:-1]),
        forest.leaf,
    )


@njit(nogil=True, cache=True)
def _walk(X: np.ndarray, first: int, n: int, tree: int, nodes: Nodes, place: np.ndarray) -> None:
    """Take rows ``first`` to ``first + n`` down a tree; ``place`` receives the leaves."""
    flat, width = X.ravel(), U(X.shape[1])
    for i in range(n):
        place[i] = nodes.offsets[tree]
    for _ in range(nodes.depth[tree]):
        moved = False
        if nodes.sets.shape[0] == 0:
            for i in range(n):
                p = U(place[i])
                x = flat[U(first + i) * width + U(nodes.feature[p])]
                right = (x > nodes.threshold[p]) | ((x != x) & (nodes.kind[p] == MISSING_RIGHT))
                to = nodes.left[p] + np.uint32(right)
                moved |= to != place[i]
                place[i] = to
        else:
            for i in range(n):
                p = U(place[i])
                x = flat[U(first + i) * width + U(nodes.feature[p])]
                kind = nodes.kind[p]
                if kind >= 0:
                    code = 0 if x != x else np.int64(x) + 1
                    right = (nodes.sets[kind, code >> 6] >> U(code & 63)) & U(1) == 0
                else:
                    right = (x > nodes.threshold[p]) | ((x != x) & (kind == MISSING_RIGHT))
                to = nodes.left[p] + np.uint32(right)
                moved |= to != place[i]
                place[i] = to
        if not moved:
            break


@njit(nogil=True, cache=True)
def _add_scores(
    X: np.ndarray,
    first: int,
    stop: int,
    nodes: Nodes,
    value: np.ndarray,
    weights: np.ndarray,
    skip: np.ndarray,
    out: np.ndarray,
    weight: np.ndarray,
) -> None:
    """Add each tree's leaf values to ``out``, its weight to ``weight``; ``skip`` (tree, row) may be empty."""
    place = np.empty(BLOCK, np.uint32)
    for begin in range(first, stop, BLOCK):
        n = min(BLOCK, stop - begin)
        for t in range(weights.shape[0]):
            if weights[t] == 0.0:
                continue
            _walk(X, begin, n, t, nodes, place)
            for i in range(n):
                if skip.shape[0] > 0 and skip[t, begin + i]:
                    continue
                at = nodes.leaf[U(place[i])]
                for k in range(out.shape[1]):
                    out[begin + i, k] += weights[t] * value[at, k]
                weight[begin + i] += weights[t]


def scores(forest: "Forest", X: np.ndarray, n_jobs: int | None = None, skip: np.ndarray | None = None) -> np.ndarray:
    """Average the leaf values of all trees by weight; a row that every tree skips gets NaN.

    ``skip`` is (tree, row): out-of-bag scores leave out the trees that saw a row.
    """
    n = len(X)
    nodes = pack(forest)
    out, weight = np.zeros((n, forest.n_outputs)), np.zeros(n)
    mask = np.zeros((0, 0), np.bool_) if skip is None else skip
    threads = thread_count(n_jobs)
    step = max(BLOCK, -(-n // (4 * threads)) // BLOCK * BLOCK)

    def one(first: int) -> None:
        _add_scores(X, first, min(first + step, n), nodes, forest.value, forest.weights, mask, out, weight)

    thread_map(one, range(0, n, step), threads)
    with np.errstate(invalid="ignore"):
        return out / weight[:, None]


def scores_naive(forest: "Forest", X: np.ndarray) -> np.ndarray:
    """Do what ``scores`` does, row by row and tree by tree: the twin that tests hold it to."""
    rows = []
    for x in X:
        total = np.zeros(forest.n_outputs)
        for t in range(len(forest)):
            node = int(forest.offsets[t])
            while forest.feature[node] >= 0:
                node = int(forest.left[node] if goes_left(forest, node, x) else forest.right[node])
            total += forest.weights[t] * forest.value[forest.leaf[node]]
        rows.append(total / forest.weights.sum())
    return np.array(rows).reshape(len(X), forest.n_outputs)


def goes_left(forest: "Forest", node: int, x: np.ndarray) -> bool:
    """Say where one row goes at one inner node."""
    f = forest.feature[node]
    if np.isnan(x[f]):
        return bool(forest.missing_left[node])
    if not forest.schema.features[f].categorical:
        return bool(x[f] <= forest.threshold[node])
    words = forest.sets[is_category_split(forest.schema, forest.feature[:node]).sum()]
    code = int(x[f]) + 1
    return bool(int(words[code >> 6]) >> (code & 63) & 1)
