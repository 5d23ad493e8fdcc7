"""The rows of a table in memory, sorted into the open nodes of some trees."""

from dataclasses import replace
from typing import Protocol

import numpy as np

from silvan.tree.gain import Rule
from silvan.tree.grow import Frontier, Plan
from silvan.tree.histogram import NodeDraws
from silvan.tree.level import choose_level, fill_bases, fill_nodes, find_sorted, place_level, sample_level
from silvan.tree.node_rows import Binned, NodeRows
from silvan.tree.partition import partition
from silvan.tree.sampling import Ties, make_feature_order
from silvan.tree.split import Splits
from silvan.tree.stream import SplitsMade, list_counted, sort_rows, stream
from silvan.util.threads import thread_map

SMALL_TABLE = 1 << 20
"""A table of this many bytes stays in the processor's cache, so that rows can be gathered from anywhere in it."""

STREAM_BYTES, STREAM_ROUNDS = 1 << 22, 16
"""A tree's level is counted in row order while its histograms take at most this much, and for this many rounds."""


class Fillable(Protocol):
    """The rows of a table in the nodes of some trees: in memory, on a graphics card or in pieces."""

    def fill(self, nodes: np.ndarray, features: np.ndarray, threads: int) -> np.ndarray:
        """Add up the histograms of some nodes, of the features listed for each: (bins of all, statistics)."""

    def apply(self, nodes: np.ndarray, splits: Splits, needed: np.ndarray, threads: int = 1) -> None:
        """Send the nodes' rows to their children."""


class Rows(Fillable, Protocol):
    """All rows of a forest, so that splits can be chosen at once."""

    table: Binned
    offsets: np.ndarray

    def find(self, frontier: Frontier, plan: Plan, rule: Rule, tie_key: np.ndarray) -> Splits:
        """Decide every open node."""


def find_counted(
    rows: Rows,
    frontier: Frontier,
    features: np.ndarray,
    plan: Plan,
    rule: Rule,
    tie_key: np.ndarray,
    threads: int = 1,
) -> Splits:
    """Decide every open node by the histograms of the features sampled for it; if all are constant, sample others."""
    hist, offsets = rows.fill(frontier.node, features, threads), rows.offsets[frontier.node]
    splits = choose_level(hist, features, rows.table.bins, rule, frontier.ties(tie_key, plan), threads, offsets)
    stuck = np.flatnonzero(~splits.varies & rule.open_nodes(splits.total))
    if len(stuck) and plan.tries > 1:
        again = frontier.take(stuck)
        again = replace(again, attempt=again.attempt + 1)
        other = rows.find(again, replace(plan, tries=plan.tries - 1), rule, tie_key)
        for column, some in zip(splits, other, strict=True):
            column[stuck] = some
    return splits


class TreeRows(NodeRows):
    """The rows of some trees while they grow.

    At first, the rows of a large table stay in order, ``places`` has the node of each row, and a level is counted in
    one pass over a tree's rows. When nodes become many and small, or for a small table, rows are sorted: a node's rows
    are then ``order[start:stop]``.
    """

    def __init__(self, table: Binned, drawn: np.ndarray, numbers: np.ndarray, threads: int = 1) -> None:
        """Start with every sampled row at its tree's root; ``drawn`` is (tree, row), ``numbers`` those of the trees."""
        super().__init__(table, drawn, numbers, threads)
        self.places: np.ndarray | None = None
        self.rounds = 0
        if table.codes.nbytes > SMALL_TABLE:
            self.trees = list(zip(self.starts.tolist(), self.stops.tolist(), strict=True))
            self.places = np.empty(len(self.order), np.uint32)
            for tree, (start, stop) in enumerate(self.trees):
                self.places[start:stop] = tree
            self.made = SplitsMade.none(len(drawn))

    @classmethod
    def sorted(
        cls, table: Binned, order: np.ndarray, starts: np.ndarray, stops: np.ndarray, offsets: np.ndarray
    ) -> "TreeRows":
        """Return rows that are sorted by node already."""
        rows = cls(table, np.zeros((0, len(table)), np.bool_), np.zeros(0, np.int64))
        rows.order, rows.starts, rows.stops, rows.offsets, rows.places = order, starts, stops, offsets, None
        return rows

    @property
    def n_nodes(self) -> int:
        """The number of nodes so far."""
        return len(self.starts if self.places is None else self.made.child)

    def find(self, frontier: Frontier, plan: Plan, rule: Rule, tie_key: np.ndarray, threads: int = 1) -> Splits:
        """Decide every open node with the available rows; ``tie_key`` breaks ties."""
        ties, compiled = frontier.ties(tie_key, plan), rule.objective.compiled
        if compiled and (self.places is None or frontier.attempt.any()):
            return self._find_sorted(frontier, plan, rule, ties, threads)
        features = sample_level(frontier, plan)
        if compiled and not self._streams(fill_bases(features, self.table.bins.n_bins)):
            return self._find_sorted(frontier, plan, rule, ties, threads)
        return find_counted(self, frontier, features, plan, rule, tie_key, threads)

    def _find_sorted(self, frontier: Frontier, plan: Plan, rule: Rule, ties: Ties, threads: int) -> Splits:
        self.sort()
        draws = NodeDraws(frontier.seed, frontier.attempt, plan.tries, make_feature_order(plan.n_features))
        return find_sorted(self, frontier.node, plan.n_sampled, rule, ties, draws, threads=threads)

    def fill(self, nodes: np.ndarray, features: np.ndarray, threads: int) -> np.ndarray:
        """Fill the histograms of some nodes, for the features listed for each: (bins of all, statistics)."""
        table = self.table
        bases = fill_bases(features, table.bins.n_bins)
        hist = np.zeros((bases[-1, 0], table.n_stats), table.count_type)
        if not self._streams(bases):
            self.sort()
            starts, stops, offsets = self.starts[nodes], self.stops[nodes], self.offsets[nodes]
            fill_nodes(table, self.order, starts, stops, offsets, features, bases, hist, threads)
            return hist
        places: np.ndarray = self.places  # type: ignore[assignment]
        begin = place_level(features, bases, table.bins.shift, self.offsets[nodes])
        counted = list_counted(len(self.made.child), nodes, features, begin, table.bins.shift)

        def tree(rows: tuple[int, int]) -> None:
            order, at = self.order[slice(*rows)], places[slice(*rows)]
            stream(table.codes, table.target, order, at, self.made, table.bins.categorical, counted, hist)

        thread_map(tree, self.trees, threads)
        self.rounds += 1
        return hist

    def apply(self, nodes: np.ndarray, splits: Splits, needed: np.ndarray, threads: int = 1) -> None:
        """Move the nodes' rows to their children, which get the next numbers.

        Rows of splits that are not ``needed`` stay.
        """
        if self.places is not None:
            self.made = self.made.add(nodes, splits, needed)
            self.offsets = np.concatenate([self.offsets, np.repeat(self.offsets[nodes], 2)])
            return
        starts, stops = self.starts[nodes], self.stops[nodes]
        middles = starts.copy()

        def some(which: np.ndarray) -> None:
            spare = np.empty(int((stops[which] - starts[which]).max(initial=0)) + 1, np.uint32)
            middles[which] = partition(
                self.table.codes, self.order, starts, stops, splits, self.table.bins.categorical, which, spare
            )

        thread_map(some, np.array_split(np.flatnonzero(needed), 4 * threads if threads > 1 else 1), threads)
        self.add(nodes, middles)

    def sort(self) -> None:
        """Sort the rows by node from now on."""
        if self.places is None:
            return
        stops = np.zeros(len(self.made.child), np.int64)
        categorical = self.table.bins.categorical
        self.order = sort_rows(self.table.codes, self.order, self.places, self.made, categorical, stops)
        self.starts, self.stops = np.concatenate([[0], stops[:-1]]), stops
        self.places = None

    def _streams(self, bases: np.ndarray) -> bool:
        """Whether a walk along all rows pays off for a level with such histograms."""
        size = bases[-1, 0] * self.table.n_stats * np.dtype(self.table.count_type).itemsize
        return self.places is not None and size <= STREAM_BYTES * len(self.trees) and self.rounds < STREAM_ROUNDS
