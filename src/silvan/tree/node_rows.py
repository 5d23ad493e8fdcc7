"""Rows of trees sorted by node: a node's rows are consecutive entries of one list, in ascending order."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

from silvan.data.bins.bins import Bins
from silvan.tree.sampling import RowSampling, cut_offsets, list_rows, rows_of_trees

_TASKS_A_THREAD = 4


@dataclass(frozen=True)
class Binned:
    """A table ready for growing: the codes of each row, its target in the layout of ``gain.py``, and its key."""

    codes: np.ndarray  # uint8 (rows, features)
    target: np.ndarray  # uint16 (rows,) class codes, or int64 (rows, statistics)
    row_keys: np.ndarray  # uint64 (rows,)
    bins: Bins
    n_stats: int

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def count_type(self) -> type:
        """Element type of its histograms: 32 bits for counts of rows, 64 for other sums."""
        return np.int32 if self.target.ndim == 1 else np.int64


class NodeRows:
    """A table's rows in the nodes of some trees: node k has ``order[starts[k]:stops[k]]``."""

    def __init__(self, table: Binned, drawn: np.ndarray, numbers: np.ndarray, threads: int = 1) -> None:
        """Start with every sampled row at its tree's root; ``drawn`` is (tree, row), ``numbers`` those of the trees."""
        self.table = table
        sizes = np.zeros(len(drawn), np.int64)
        self.order = list_rows(drawn, sizes, threads)  # uint32
        self.stops = np.cumsum(sizes)
        self.starts = self.stops - sizes
        self.offsets = cut_offsets(numbers)  # uint8: the set of cut points of the node's tree

    @classmethod
    def of_trees(cls, table: Binned, key: np.ndarray, trees: range, draw: RowSampling, threads: int = 1) -> Self:
        """Sample the rows of consecutive trees."""
        sampled = rows_of_trees(key, table.row_keys, trees.start, len(trees), draw)
        return cls(table, sampled, np.arange(trees.start, trees.stop), threads)

    def add(self, nodes: np.ndarray, middles: np.ndarray) -> None:
        """Add the children of nodes whose right sides start at ``middles``; they get the next numbers."""
        starts, stops = self.starts[nodes], self.stops[nodes]
        self.starts = np.concatenate([self.starts, np.stack([starts, middles], axis=1).reshape(-1)])
        self.stops = np.concatenate([self.stops, np.stack([middles, stops], axis=1).reshape(-1)])
        self.offsets = np.concatenate([self.offsets, np.repeat(self.offsets[nodes], 2)])


def split_evenly(sizes: np.ndarray, threads: int) -> list[slice]:
    """Return slices of nodes with about equal numbers of rows, a few per thread."""
    if threads == 1:
        return [slice(0, len(sizes))] if len(sizes) else []
    tasks = _TASKS_A_THREAD * threads
    ends = np.cumsum(sizes)
    wanted = np.arange(1, tasks) * (int(ends[-1]) if len(ends) else 0) / tasks
    bounds = [0, *np.searchsorted(ends, wanted).tolist(), len(sizes)]
    return [slice(a, b) for a, b in pairwise(bounds) if b > a]
