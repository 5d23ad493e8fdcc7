"""Trees reconstructed from their splits, without statistics, and counts at the leaves that remain in the end.

Requests repeat all splits of a forest. Splits that led to no gain are undone at the end, which requests do not show: so
rows are counted at the leaves of all splits, and counts below an undone split are added up.
"""

from collections.abc import Mapping

import numpy as np

from silvan.data.bins.bins import Bins
from silvan.data.schema import Schema
from silvan.forest.forest import Forest
from silvan.tree.fit import assemble, level_order
from silvan.tree.grow import Grown
from silvan.tree.objectives import Measure

Columns = Mapping[str, np.ndarray]
"""The columns of splits in a request about a level."""


def _grown(n_trees: int, columns: Columns, n_stats: int) -> Grown:
    """Return the trees of all splits."""
    node = columns["split_node"].astype(np.int64)
    tree = np.arange(n_trees + 2 * len(node))
    parents = np.repeat(node, 2)
    while len(parents) and (tree[n_trees:] >= n_trees).any():  # a level of all trees at a time
        tree[n_trees:] = tree[parents]
    empty, stats = np.zeros(len(tree), np.int64), np.ones((len(tree), n_stats), np.int64)
    split = {name: columns[f"split_{name}"] for name in ("feature", "bin", "missing_left", "words")}
    return Grown(n_trees, 0, tree, empty, stats, node, **split, gain=np.zeros(len(node)))


def trees_of_splits(n_trees: int, columns: Columns, schema: Schema, bins: Bins, measure: Measure) -> Forest:
    """Return the trees of all splits as a forest with meaningless leaf values."""
    grown = _grown(n_trees, columns, measure.n_stats)
    return assemble([(grown, bins.cut(grown.feature, grown.bin))], schema, measure)


def leaves_of_splits(n_trees: int, columns: Columns) -> np.ndarray:
    """Return the numbers of the leaves of these trees, in their order."""
    nodes, split_of = level_order(_grown(n_trees, columns, 1))
    return nodes[split_of < 0]


def at_kept_leaves(grown: Grown, leaves: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return counts for the leaves of grown trees, from counts at the leaves of all of their splits."""
    by_node = np.zeros((len(grown.tree), counts.shape[1]), counts.dtype)
    by_node[leaves] = counts
    for k in np.flatnonzero([] if grown.kept is None else ~grown.kept)[::-1].tolist():
        left = grown.n_trees + 2 * k
        by_node[grown.node[k]] = by_node[left] + by_node[left + 1]
    nodes, split_of = level_order(grown)
    return np.asarray(by_node[nodes[split_of < 0]])
