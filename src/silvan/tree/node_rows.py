"""Rows of trees sorted by node: a node's rows are consecutive entries of one list, in ascending order."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from silvan.data.bins.bins import Bins
from silvan.tree.draw import RowDraw, count_drawn, cut_offsets, rows_of_trees, write_rows
from silvan.util.threads import thread_map

_TREES_A_DRAW = 4  # which share their hashes
_TASKS_A_THREAD = 4


@dataclass(frozen=True)
class Binned:
    """A table ready to grow on: the codes of a row, its target in the layout of ``gain.py``, and its key."""

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


@dataclass
class NodeRows:
    """A table's rows in the nodes of some trees: node k has ``order[starts[k]:stops[k]]``."""

    table: Binned
    order: np.ndarray  # uint32
    starts: np.ndarray
    stops: np.ndarray
    offsets: np.ndarray  # uint8: which cut points the node's tree has

    @classmethod
    def draw(cls, table: Binned, key: np.ndarray, n_trees: int, draw: RowDraw, threads: int = 1) -> "NodeRows":
        """Return the rows that each tree draws, all at its root."""

        def some(first: int) -> tuple[np.ndarray, list[int]]:
            drawn = rows_of_trees(key, table.row_keys, first, min(_TREES_A_DRAW, n_trees - first), draw)
            return drawn, count_drawn(drawn)

        groups = range(0, n_trees, _TREES_A_DRAW)
        parts = thread_map(some, groups, threads)
        sizes = np.concatenate([sizes for _, sizes in parts])
        stops = np.cumsum(sizes)
        starts, order = stops - sizes, np.empty(stops[-1], np.uint32)

        def write(first: int) -> None:
            trees, (drawn, _) = slice(first, first + _TREES_A_DRAW), parts[first // _TREES_A_DRAW]
            write_rows(drawn, starts[trees], stops[trees], order)

        thread_map(write, groups, threads)
        return cls(table, order, starts, stops, cut_offsets(np.arange(n_trees)))

    def add(self, nodes: np.ndarray, middles: np.ndarray) -> None:
        """Add the children of nodes whose right sides begin at ``middles``; they get the next numbers."""
        starts, stops = self.starts[nodes], self.stops[nodes]
        self.starts = np.concatenate([self.starts, np.stack([starts, middles], axis=1).reshape(-1)])
        self.stops = np.concatenate([self.stops, np.stack([middles, stops], axis=1).reshape(-1)])
        self.offsets = np.concatenate([self.offsets, np.repeat(self.offsets[nodes], 2)])


def split_evenly(sizes: np.ndarray, threads: int) -> list[slice]:
    """Return slices of nodes with about equally many rows, a few for each thread."""
    tasks = _TASKS_A_THREAD * threads if threads > 1 else 1
    ends = np.cumsum(sizes)
    wanted = np.arange(1, tasks) * (int(ends[-1]) if len(ends) else 0) / tasks
    bounds = [0, *np.searchsorted(ends, wanted).tolist(), len(sizes)]
    return [slice(a, b) for a, b in pairwise(bounds) if b > a]
