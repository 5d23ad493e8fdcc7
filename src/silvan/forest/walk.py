"""Pass rows down trees in blocks of 64, so that the steps of many rows overlap.

A leaf points to itself, so a block takes as many steps as its deepest row, without testing whether a row has arrived.
"""

from typing import NamedTuple

import numpy as np

from silvan.forest.arrays import ForestArrays
from silvan.forest.category_set import is_category_split
from silvan.util.kernels import njit

MISSING_RIGHT, MISSING_LEFT = -1, -2
"""Kinds of numeric splits; a kind of 0 or more is a split by category, with this row of ``sets``."""

BLOCK = 64  # rows that walk together
U = np.uint64  # unsigned indices need no check for negative values in inner loops


class Nodes(NamedTuple):
    """Nodes in the layout for walking; a leaf is a split that sends everything left, to itself."""

    feature: np.ndarray  # uint32
    threshold: np.ndarray  # float32
    left: np.ndarray  # uint32
    kind: np.ndarray  # int32
    sets: np.ndarray
    offsets: np.ndarray
    depth: np.ndarray  # int32, of each tree
    leaf: np.ndarray


def pack(forest: ForestArrays) -> Nodes:
    """Return the nodes of a forest laid out for walking."""
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


@njit(nogil=True, cache=True, inline="always")
def goes_right(x: float, node: np.uint64, nodes: Nodes) -> bool:
    """Whether a value goes right at a split."""
    kind = nodes.kind[node]
    if kind >= 0:
        code = 0 if x != x else np.int64(x) + 1  # bin 0 is for missing values
        right = (nodes.sets[kind, code >> 6] >> U(code & 63)) & U(1) == 0
    else:
        # no "or": two comparisons that are always made cost less than a branch that is predicted wrong
        right = (x > nodes.threshold[node]) | ((x != x) & (kind == MISSING_RIGHT))
    return right


@njit(nogil=True, cache=True)
def walk(X: np.ndarray, first: int, n: int, tree: int, nodes: Nodes, place: np.ndarray) -> None:
    """Pass rows ``first`` to ``first + n`` down a tree; ``place`` receives the leaves."""
    flat, width = X.ravel(), U(X.shape[1])
    # all rows take one step at a time, because a step waits for memory and other rows' steps fill the wait
    for i in range(n):
        place[i] = nodes.offsets[tree]
    for _ in range(nodes.depth[tree]):
        moved = False
        if nodes.sets.shape[0] == 0:  # without a test for the kind of split, which most forests do not need
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
                to = nodes.left[p] + np.uint32(goes_right(x, p, nodes))
                moved |= to != place[i]
                place[i] = to
        if not moved:  # the tree is deeper elsewhere
            break
