"""Rows of tables larger than memory: read in pieces, and passed down from the roots whenever a level is counted.

Nothing about a row is stored between levels. Its trees are sampled again, with the same keys, and its node follows from
the splits made so far, so the required memory grows with the trees and not with the rows.
"""

from collections.abc import Callable, Iterator

import numpy as np

from silvan.data.bins.bins import Bins
from silvan.tree.level import fill_bases, place_level
from silvan.tree.node_rows import Binned
from silvan.tree.sampling import TREES_A_HASH, RowSampling, cut_offsets, list_rows, rows_of_trees
from silvan.tree.split import Splits
from silvan.tree.stream import SplitsMade, list_counted, stream
from silvan.util.threads import thread_map


class RoutedRows:
    """The rows of some trees, for a table that is read in pieces."""

    def __init__(
        self, pieces: Callable[[], Iterator[Binned]], bins: Bins, key: np.ndarray, n_trees: int, draw: RowSampling
    ) -> None:
        self.pieces, self.bins = pieces, bins
        self.key, self.n_trees, self.draw = key, n_trees, draw
        self.made = SplitsMade.none(n_trees)
        self.tree = np.arange(n_trees)  # of each node

    def apply(self, nodes: np.ndarray, splits: Splits, needed: np.ndarray, threads: int = 1) -> None:
        """Record splits; children get the next numbers."""
        self.made = self.made.add(nodes, splits, needed)
        self.tree = np.concatenate([self.tree, np.repeat(self.tree[nodes], 2)])

    def fill(self, nodes: np.ndarray, features: np.ndarray, threads: int) -> np.ndarray:
        """Fill the histograms of some nodes, for the features listed for each: (bins of all, statistics)."""
        bases = fill_bases(features, self.bins.n_bins)
        begin = place_level(features, bases, self.bins.shift, cut_offsets(self.tree[nodes]))
        counted = list_counted(len(self.made.child), nodes, features, begin, self.bins.shift)
        trees = np.unique(self.tree[nodes])
        # trees sampled by the same hash are processed together
        tasks = [trees[trees // TREES_A_HASH == group] for group in np.unique(trees // TREES_A_HASH)]
        hist = np.zeros((0, 0), np.int32)
        for piece in self.pieces():
            if not hist.size:
                hist = np.zeros((bases[-1, 0], piece.n_stats), piece.count_type)

            def some(task: np.ndarray, piece: Binned = piece, hist: np.ndarray = hist) -> None:
                first = int(task[0])
                sampled = rows_of_trees(self.key, piece.row_keys, first, int(task[-1]) - first + 1, self.draw)
                for tree in task:
                    rows = list_rows(sampled[tree - first : tree - first + 1], np.zeros(1, np.int64))
                    places = np.full(len(rows), tree, np.uint32)
                    stream(piece.codes, piece.target, rows, places, self.made, self.bins.categorical, counted, hist)

            thread_map(some, tasks, threads)
        return hist
