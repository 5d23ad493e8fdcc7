"""Make trees grown elsewhere fit to be used: move thresholds to given cut points, cut off what few rows reach.

A forest that was grown elsewhere has thresholds between two values of rows, and leaves of any size. After ``snap`` its
thresholds are on the public grid; after ``trim`` every leaf holds as many of the rows at hand as a policy asks for.
``prune`` cuts off nodes that are named, where the rows are not at hand.
"""

from dataclasses import replace

import numpy as np

from silvan.data.bins.bins import Bins
from silvan.errors import InputError
from silvan.forest.category_set import is_category_split, set_bits
from silvan.forest.forest import Forest

_LARGEST = np.finfo(np.float32).max
_CELLS_AT_ONCE = 1 << 22
"""Trees are trimmed in batches of about so many (tree, row) pairs."""


def snap(forest: Forest, bins: Bins) -> Forest:
    """Move every threshold to the nearest cut point of its column, the lower one of two.

    A threshold above all values separates missing values from others; it stays, and where a column has no cut points
    all thresholds become that one.
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
    """Cut off every side of a split that fewer than ``min_leaf`` of the rows reach; the other side takes its place."""
    if len(X) < min_leaf:
        raise InputError(f"there are {len(X)} rows, and leaves must hold {min_leaf}: no tree fits them")
    step = max(1, _CELLS_AT_ONCE // max(len(X), 1))
    kept = [_kept(forest, X, np.arange(t, min(t + step, len(forest))), min_leaf) for t in range(0, len(forest), step)]
    nodes = np.concatenate([nodes for nodes, _ in kept])
    return _take_nodes(forest, nodes, np.concatenate([sizes for _, sizes in kept]), forest.feature[nodes] >= 0)


def prune(forest: Forest, few: np.ndarray) -> Forest:
    """Cut off the sides of splits that ``few`` rows reach: bool (nodes,).

    The other side takes the split's place. If few rows reach both, the split becomes a leaf; whoever prunes gives it a
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
    return _take_nodes(forest, np.concatenate(levels)[order], sizes, np.concatenate(splits)[order])


def _bypass_few(forest: Forest, level: np.ndarray, few: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Replace splits with one side that few rows reach by the other side; return which nodes are splits still."""
    while True:
        inner = forest.feature[level] >= 0
        no_left, no_right = inner & few[forest.left[level]], inner & few[forest.right[level]]
        if not (no_left ^ no_right).any():
            return level, inner & ~no_left
        level = np.where(no_left & ~no_right, forest.right[level], level)
        level = np.where(no_right & ~no_left, forest.left[level], level)


def _take_nodes(forest: Forest, nodes: np.ndarray, sizes: np.ndarray, inner: np.ndarray) -> Forest:
    """Return trees of some of the nodes, level by level, of which some are splits and the others leaves."""
    by_category = is_category_split(forest.schema, forest.feature)
    set_of = np.cumsum(by_category) - 1
    return replace(
        forest,
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        feature=np.where(inner, forest.feature[nodes], -1),
        threshold=np.where(inner, forest.threshold[nodes], 0.0),
        missing_left=inner & forest.missing_left[nodes],
        sets=forest.sets[set_of[nodes[inner & by_category[nodes]]]],
        value=forest.value[np.maximum(forest.leaf[nodes[~inner]], 0)],
        gain=None,
    )


def _kept(forest: Forest, X: np.ndarray, trees: np.ndarray, min_leaf: int) -> tuple[np.ndarray, np.ndarray]:
    """List the nodes that stay, tree by tree and level by level, and how many each tree has.

    ``place`` is the entry of the level that a row is at in each tree; rows of finished branches are at -1.
    """
    level, tree_of = forest.offsets[trees], np.arange(len(trees))
    place = np.repeat(tree_of[:, None], len(X), axis=1)
    levels, owners = [], []
    while len(level):
        level, left = _bypass(forest, X, level, place, min_leaf)
        levels.append(level)
        owners.append(tree_of)
        inner = forest.feature[level] >= 0
        rank = np.where(inner, np.cumsum(inner) - 1, -1)
        on = inner[place] & (place >= 0)
        place = np.where(on, 2 * rank[place] + ~left, -1)
        parents = level[inner]
        level = np.stack([forest.left[parents], forest.right[parents]], axis=1).reshape(-1)
        tree_of = np.repeat(tree_of[inner], 2)
    owner = np.concatenate(owners)
    nodes = np.concatenate(levels)[np.argsort(owner, kind="stable")]
    return nodes, np.bincount(owner, minlength=len(trees))


def _bypass(
    forest: Forest, X: np.ndarray, level: np.ndarray, place: np.ndarray, min_leaf: int
) -> tuple[np.ndarray, np.ndarray]:
    """Replace splits with a side that too few rows reach by the other side, until there is none in the level."""
    level = level.copy()
    while True:
        left = goes_left_all(forest, X, level, place)
        here = place >= 0
        size = np.bincount(place[here], minlength=len(level))
        size_left = np.bincount(place[here & left], minlength=len(level))
        small = (forest.feature[level] >= 0) & (np.minimum(size_left, size - size_left) < min_leaf)
        if not small.any():
            return level, left
        to_left = 2 * size_left >= size
        child = np.where(to_left, forest.left[level], forest.right[level])
        level = np.where(small, child, level)


def goes_left_all(forest: Forest, X: np.ndarray, level: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return for every tree and row whether the row goes left at its node ``level[place]``; arbitrary at leaves."""
    feature = forest.feature[level]
    values = X.T[np.maximum(feature, 0)[place], np.arange(len(X))]
    missing = np.isnan(values)
    left = np.where(missing, forest.missing_left[level][place], values <= forest.threshold[level][place])
    by_category = is_category_split(forest.schema, feature)
    if by_category.any():
        set_of = np.cumsum(is_category_split(forest.schema, forest.feature)) - 1
        bits = set_bits(forest.sets[set_of[np.where(by_category, level, 0)]])
        code = np.where(missing, 0, values).astype(np.int64) + np.where(missing, 0, 1)
        left = np.where(by_category[place], bits[place, np.clip(code, 0, 255)], left)
    return left
