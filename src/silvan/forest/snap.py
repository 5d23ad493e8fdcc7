"""Adapt trees grown elsewhere: move thresholds to given cut points, cut off branches that few rows reach.

A forest that was grown elsewhere has thresholds between two values of rows, and leaves of any size. After ``snap`` its
thresholds are on the public grid; after ``trim`` every leaf has as many of the given rows as a policy requires.
``prune`` cuts off named nodes, without access to rows.
"""

from dataclasses import replace

import numpy as np

from silvan.data.bins.bins import Bins
from silvan.errors import InputError
from silvan.forest.category_set import is_category_split
from silvan.forest.forest import Forest
from silvan.forest.walk import Nodes, U, goes_right, pack
from silvan.util.kernels import njit

_LARGEST = np.finfo(np.float32).max


def snap(forest: Forest, bins: Bins) -> Forest:
    """Move every threshold to the nearest cut point of its column, the lower one in case of a tie.

    A threshold above all values separates missing values from others. It stays, and in columns without cut points all
    thresholds become that one.
    """
    numeric = (forest.feature >= 0) & ~is_category_split(forest.schema, forest.feature)
    threshold = forest.threshold.copy()
    for f in np.unique(forest.feature[numeric]):
        here = numeric & (forest.feature == f) & (forest.threshold < _LARGEST)
        cuts = bins.cuts[f].astype(np.float64)
        if not len(cuts):
            threshold[here] = _LARGEST
            continue
        wish = forest.threshold[here].astype(np.float64)
        above = np.searchsorted(cuts, wish).clip(1, max(len(cuts) - 1, 1))
        low, high = cuts[above - 1], cuts[np.minimum(above, len(cuts) - 1)]
        threshold[here] = np.where(np.abs(wish - low) <= np.abs(high - wish), low, high)
    return replace(forest, threshold=threshold)


def trim(forest: Forest, X: np.ndarray, min_leaf: int) -> Forest:
    """Cut off every side of a split that fewer than ``min_leaf`` rows reach; the other side replaces the split."""
    if len(X) < min_leaf:
        raise InputError(f"there are {len(X)} rows, and leaves must hold {min_leaf}: no tree fits them")
    few = np.zeros(len(forest.feature), np.bool_)
    _mark_few(X, min_leaf, pack(forest), few)
    return prune(forest, few)


@njit(nogil=True, cache=True)
def _mark_few(X: np.ndarray, min_leaf: int, nodes: Nodes, few: np.ndarray) -> None:
    """Mark the sides of splits that too few rows reach; the rows of a marked side go to the other one."""
    rows = np.empty(len(X), np.uint32)
    stack = np.empty((nodes.depth.max() + 2, 3), np.int64)  # nodes to visit, and which rows are there
    for root in nodes.offsets[:-1]:
        for i in range(len(X)):
            rows[i] = i
        stack[0, 0], stack[0, 1], stack[0, 2] = root, 0, len(X)
        top = 0
        while top >= 0:
            node, begin, stop = stack[top]
            top -= 1
            if nodes.leaf[node] >= 0:
                continue
            left, right = begin, stop  # rows from begin to left go left, those from right to stop go right
            while left < right:
                row = rows[left]
                if goes_right(X[row, nodes.feature[node]], U(node), nodes):
                    right -= 1
                    rows[left], rows[right] = rows[right], row
                else:
                    left += 1
            child = np.int64(nodes.left[node])
            if min(left - begin, stop - left) < min_leaf:
                larger = child if 2 * left >= begin + stop else child + 1
                few[2 * child + 1 - larger] = True
                top += 1
                stack[top, 0], stack[top, 1], stack[top, 2] = larger, begin, stop
            else:
                stack[top + 1, 0], stack[top + 1, 1], stack[top + 1, 2] = child, begin, left
                top += 2
                stack[top, 0], stack[top, 1], stack[top, 2] = child + 1, left, stop


def prune(forest: Forest, few: np.ndarray) -> Forest:
    """Cut off the sides of splits that ``few`` rows reach: bool (nodes,).

    The other side replaces the split. If few rows reach both sides, the split becomes a leaf, and the caller sets its
    value.
    """
    level, tree_of = forest.offsets[:-1], np.arange(len(forest))
    levels, owners, splits = [], [], []
    while len(level):
        level, inner = _bypass_few(forest, level, few)
        levels.append(level)
        owners.append(tree_of)
        splits.append(inner)
        parents = level[inner]
        level = np.stack([forest.left[parents], forest.right[parents]], axis=1).reshape(-1)
        tree_of = np.repeat(tree_of[inner], 2)
    owner = np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=len(forest))
    return forest.take_nodes(np.concatenate(levels)[order], sizes, np.concatenate(splits)[order])


def _bypass_few(forest: Forest, level: np.ndarray, few: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replace splits with one side that few rows reach by the other side; return which nodes remain splits."""
    while True:
        inner = forest.feature[level] >= 0
        no_left, no_right = inner & few[forest.left[level]], inner & few[forest.right[level]]
        if not (no_left ^ no_right).any():
            return level, inner & ~no_left
        level = np.where(no_left & ~no_right, forest.right[level], level)
        level = np.where(no_right & ~no_left, forest.left[level], level)
