"""Bounds on histograms, from what is known of a tree's nodes: sums that hide their parts take less room with them."""

import numpy as np

from silvan.data.bins.bins import Bins
from silvan.federation.question import Bounds
from silvan.tree.objectives import Measure
from silvan.tree.split import Splits


class RowBounds:
    """The rows of each node at most: of every class, or of all if a number is predicted.

    ``label`` counts training rows by label, ``in_bins`` the most rows of a bin of each feature.
    """

    def __init__(self, n_trees: int, measure: Measure, label: np.ndarray, in_bins: np.ndarray) -> None:
        self.counts = measure.row_counts
        self.n_stats, self.in_bins = measure.n_stats, in_bins
        at_root = label if measure.counts_rows else label.sum(keepdims=True)
        self.rows = np.broadcast_to(at_root.astype(np.int64), (n_trees, len(at_root)))

    def add(self, splits: Splits) -> None:
        """Add the nodes that a round's splits make."""
        children = np.stack([splits.left, splits.total - splits.left], axis=1)[:, :, self.counts]
        self.rows = np.concatenate([self.rows, children.reshape(-1, children.shape[2])])

    def of(self, nodes: np.ndarray, features: np.ndarray, bins: Bins) -> Bounds:
        """Return what no sum of the nodes' histograms is above; sums of a number's values have no bound."""
        drawn = features >= 0
        in_bin = np.where(drawn, self.in_bins[features], 0).max(axis=1, initial=0)
        most = np.full((len(nodes), self.n_stats), np.iinfo(np.int64).max)
        most[:, self.counts] = np.minimum(self.rows[nodes], in_bin[:, None])
        return Bounds(np.where(drawn, bins.n_bins[features], 0).sum(axis=1, dtype=np.int64), most)
