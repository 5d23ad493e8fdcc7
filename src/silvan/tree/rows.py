"""Rows at hand: one table's rows sorted into the open nodes of some trees.

``find`` decides nodes where all rows are here; ``histograms`` only adds up, for a site that is one of
several.
"""

from dataclasses import dataclass

import numpy as np

from silvan.data.bins import Bins
from silvan.tree.draw import make_deck, rows_of_trees
from silvan.tree.gain import Rule
from silvan.tree.grow import Frontier, Plan
from silvan.tree.histogram import find_splits, level_histograms, level_size
from silvan.tree.partition import partition
from silvan.tree.split import Splits, make_scratch


@dataclass(frozen=True)
class Binned:
    """A table ready to grow on: bins a row, the target in the layout of ``gain.py``, and a key a row."""

    codes: np.ndarray  # uint8 (rows, features)
    target: np.ndarray  # uint16 (rows,) class codes, or int64 (rows, statistics)
    row_keys: np.ndarray  # uint64 (rows,)
    bins: Bins
    n_stats: int

    def __len__(self) -> int:
        return len(self.codes)


class Rows:
    """The rows of some trees, node by node; a node's rows are a stretch of one array."""

    def __init__(self, table: Binned, plan: Plan, rule: Rule, drawn: np.ndarray) -> None:
        """Begin with every drawn row at its tree's root; ``drawn`` is (tree, row)."""
        self.table, self.plan, self.rule = table, plan, rule
        sizes = drawn.sum(axis=1)
        self.order = np.nonzero(drawn)[1].astype(np.uint32)
        self.stops = np.cumsum(sizes)
        self.starts = self.stops - sizes
        self.spare = np.empty(int(sizes.max(initial=0)) + 1, np.uint32)
        self.deck, self.scratch = make_deck(plan.n_features), make_scratch(table.n_stats)

    @classmethod
    def of_trees(
        cls, table: Binned, plan: Plan, rule: Rule, key: np.ndarray, trees: range, bootstrap: bool
    ) -> "Rows":
        """Draw the rows of consecutive trees."""
        drawn = rows_of_trees(key, table.row_keys, trees.start, len(trees), bootstrap)
        return cls(table, plan, rule, drawn)

    def find(self, frontier: Frontier) -> Splits:
        """Decide every open node."""
        table, bins, handful = self.table, self.table.bins, self.plan.handful
        splits = Splits.empty(len(frontier), table.n_stats)
        widest = int(bins.n_bins.max())
        find_splits(
            table.codes,
            table.target,
            self.order,
            self.starts[frontier.node],
            self.stops[frontier.node],
            frontier.seed,
            frontier.attempt,
            self.plan.tries,
            bins.n_bins,
            bins.categorical,
            np.zeros((handful * widest, table.n_stats), np.int32 if table.target.ndim == 1 else np.int64),
            np.arange(handful) * widest,
            np.zeros(handful, np.int64),
            self.deck,
            self.rule,
            splits,
            self.scratch,
        )
        return splits

    def histograms(self, frontier: Frontier) -> np.ndarray:
        """Add up the histograms of every open node: (bins of all nodes and features, statistics)."""
        table, n_bins = self.table, self.table.bins.n_bins
        bases, drawn = np.zeros((2, self.plan.handful), np.int64)
        n = level_size(frontier.seed, frontier.attempt, n_bins, drawn, self.deck)
        hist = np.zeros((n, table.n_stats), np.int64)
        level_histograms(
            table.codes,
            table.target,
            self.order,
            self.starts[frontier.node],
            self.stops[frontier.node],
            frontier.seed,
            frontier.attempt,
            n_bins,
            bases,
            drawn,
            self.deck,
            hist,
        )
        return hist

    def apply(self, frontier: Frontier, splits: Splits, is_open: np.ndarray) -> None:
        """Sort rows into the children; those of splits with no open child stay unsorted, nobody will look."""
        starts, stops = self.starts[frontier.node], self.stops[frontier.node]
        found = np.flatnonzero(splits.feature >= 0)
        needed = is_open.any(axis=1)
        middles = starts[found]
        middles[needed] = partition(
            self.table.codes,
            self.order,
            starts,
            stops,
            splits,
            self.table.bins.categorical,
            found[needed],
            self.spare,
        )
        begin = np.stack([starts[found], middles], axis=1).reshape(-1)
        end = np.stack([middles, stops[found]], axis=1).reshape(-1)
        self.starts = np.concatenate([self.starts, begin])
        self.stops = np.concatenate([self.stops, end])
