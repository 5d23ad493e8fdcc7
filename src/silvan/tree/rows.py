"""Rows at hand: one table's rows sorted into the open nodes of some trees."""

from dataclasses import dataclass

import numpy as np

from silvan.data.bins import Bins
from silvan.threads import thread_map
from silvan.tree.draw import list_rows, make_deck, rows_of_trees
from silvan.tree.gain import Rule
from silvan.tree.grow import Frontier, Plan
from silvan.tree.histogram import find_splits
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

    @property
    def count_type(self) -> type:
        """Element type of its histograms: rows are counted in 32 bits, other sums need 64."""
        return np.int32 if self.target.ndim == 1 else np.int64


class Rows:
    """The rows of some trees, node by node; a node's rows are a stretch of one array."""

    def __init__(self, table: Binned, drawn: np.ndarray) -> None:
        """Begin with every drawn row at its tree's root; ``drawn`` is (tree, row)."""
        self.table = table
        sizes = np.zeros(len(drawn), np.int64)
        self.order = list_rows(drawn, sizes)
        self.stops = np.cumsum(sizes)
        self.starts = self.stops - sizes

    @classmethod
    def of_trees(cls, table: Binned, key: np.ndarray, trees: range, bootstrap: bool) -> "Rows":
        """Draw the rows of consecutive trees."""
        return cls(table, rows_of_trees(key, table.row_keys, trees.start, len(trees), bootstrap))

    @property
    def n_nodes(self) -> int:
        """How many nodes there are so far."""
        return len(self.starts)

    def find(self, frontier: Frontier, plan: Plan, rule: Rule) -> Splits:
        """Decide every open node with the rows at hand."""
        table, bins = self.table, self.table.bins
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
            plan.tries,
            bins.n_bins,
            bins.categorical,
            np.zeros((plan.handful * widest, table.n_stats), table.count_type),
            np.arange(plan.handful) * widest,
            np.zeros(plan.handful, np.int64),
            make_deck(plan.n_features),
            rule,
            splits,
            make_scratch(table.n_stats),
        )
        return splits

    def apply(self, nodes: np.ndarray, splits: Splits, needed: np.ndarray, threads: int = 1) -> None:
        """Sort the nodes' rows into their children, which get the next numbers.

        Rows of splits that are not ``needed`` stay unsorted: nobody will look.
        """
        starts, stops = self.starts[nodes], self.stops[nodes]
        middles = starts.copy()

        def some(which: np.ndarray) -> None:
            spare = np.empty(int((stops[which] - starts[which]).max(initial=0)) + 1, np.uint32)
            middles[which] = partition(
                self.table.codes, self.order, starts, stops, splits, self.table.bins.categorical, which, spare
            )

        thread_map(some, np.array_split(np.flatnonzero(needed), 4 * threads if threads > 1 else 1), threads)
        begin = np.stack([starts, middles], axis=1).reshape(-1)
        end = np.stack([middles, stops], axis=1).reshape(-1)
        self.starts = np.concatenate([self.starts, begin])
        self.stops = np.concatenate([self.stops, end])
