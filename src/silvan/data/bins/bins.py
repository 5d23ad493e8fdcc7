"""Bins: one byte per value, the interval between cut points in which a value lies.

Code 0 stands for missing values. Further codes of a categorical column are its categories; those of a numeric column
are intervals between cut points, the upper end included. ``cut_points.py`` chooses cut points and codes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np

from silvan.data.bins import grid
from silvan.data.bins.cut_points import (
    CODES,
    choose_cuts,
    given_cuts,
    occupied_cells,
    staggered_bins,
    table_shift,
    value_codes,
)
from silvan.data.bins.grid import LARGEST, Grid, Heavy
from silvan.data.schema import MAX_BINS, MISSING_BIN, Schema
from silvan.util.kernels import njit
from silvan.util.threads import thread_map

R = TypeVar("R")


class HistogramBins(NamedTuple):
    """The bins of a tree's histograms, by column: a code belongs to bin (code + offset) >> shift.

    Offsets count modulo 2^shift. Missing values, with code 0, are always in bin 0.
    """

    last: np.ndarray  # int32, the highest code
    shift: np.ndarray  # uint8
    n_bins: np.ndarray  # int32, including the bin of missing values

    @classmethod
    def of(cls, last: np.ndarray, shift: np.ndarray) -> "HistogramBins":
        """Return the bins that the largest offset needs."""
        n_bins = ((last + (1 << shift.astype(np.int32)) - 1) >> shift) + 1
        return cls(last, shift, n_bins.astype(np.int32))


@dataclass(frozen=True)
class Bins:
    """The cut points of every column (none for a categorical one), and the codes of the values between them."""

    cuts: tuple[np.ndarray, ...]
    codes: tuple[np.ndarray, ...]  # uint8, one more than cut points
    categorical: np.ndarray
    n_codes: np.ndarray  # of categorical columns
    shift: np.ndarray  # uint8: how often codes are halved to get the bins of a tree's histograms

    @cached_property
    def in_histograms(self) -> HistogramBins:
        """The bins of each column in a tree's histograms."""
        last = np.array([c[-1] for c in self.codes], np.int32)
        return HistogramBins.of(np.where(self.categorical, self.n_codes, last).astype(np.int32), self.shift)

    @property
    def n_bins(self) -> np.ndarray:
        """The number of bins of each column in a tree's histograms, including the bin of missing values."""
        return self.in_histograms.n_bins

    @property
    def last(self) -> np.ndarray:
        """The highest code of each column."""
        return self.in_histograms.last

    @cached_property
    def starts(self) -> np.ndarray:
        """The start of each column's cut points in ``thresholds``."""
        return np.concatenate([[0], np.cumsum([len(c) + 1 for c in self.cuts])]).astype(np.int64)

    @cached_property
    def thresholds(self) -> np.ndarray:
        """All columns' cut points in one array, each column's followed by the largest float.

        A split after the highest code has the largest float as its threshold: all values on one side, missing values on
        the other.
        """
        largest = np.array([np.finfo(np.float32).max], np.float32)
        return np.concatenate([part for c in self.cuts for part in (c, largest)] or [largest[:0]])

    @cached_property
    def _places(self) -> np.ndarray:
        """The codes of all columns, rising and parallel to ``thresholds``; each column starts above the last one."""
        return np.concatenate(
            [f * CODES + c.astype(np.int64) for f, c in enumerate(self.codes)] or [np.zeros(0, np.int64)]
        )

    def cut(self, feature: np.ndarray, code: np.ndarray) -> np.ndarray:
        """Return the threshold of splits after these codes; arbitrary for a categorical column."""
        at = np.searchsorted(self._places, feature.astype(np.int64) * CODES + code, side="right") - 1
        return self.thresholds[np.maximum(at, self.starts[feature])]

    def apply(self, X: np.ndarray, n_jobs: int = 1) -> np.ndarray:
        """Return the codes of an encoded table: uint8 (rows, features)."""
        codes = np.empty(X.shape, np.uint8)

        def one(f: int, image: np.ndarray) -> None:
            if self.categorical[f]:
                _put_codes(X[:, f], int(self.n_codes[f]), codes[:, f])
            else:
                _put_values(image, grid.images(self.cuts[f]), self.codes[f], codes[:, f])

        _map_columns(one, X, n_jobs)
        return codes


def find_bins(
    X: np.ndarray,
    schema: Schema,
    max_bins: int,
    n_jobs: int = 1,
    floor: int = 1,
    n_columns: int | None = None,
    *,
    staggered: bool = False,
) -> tuple[Bins, np.ndarray]:
    """Choose cut points for one table and return the codes of its values: both passes over the grid, column by column.

    ``n_columns`` determines the grid, if the table is part of a wider one. With ``staggered``, trees differ in their
    cut points, so together they have more of them.
    """
    table_grid = Grid.for_columns(X.shape[1] if n_columns is None else n_columns)
    codes, most = np.empty(X.shape, np.uint8), staggered_bins(max_bins) if staggered else max_bins

    def one(f: int, image: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        feature = schema.features[f]
        if feature.categorical:
            _put_codes(X[:, f], feature.n_codes, codes[:, f])
            return np.empty(0, np.float32), None
        if feature.edges is not None:
            cuts, steps = given_cuts(feature.edges), None
        else:
            counts = grid.coarse_counts(image, table_grid.coarse, table_grid.n_cells)
            heavy = grid.heavy_cells(counts, table_grid, most, floor)
            fine = grid.fine_counts(image, heavy, table_grid)
            cuts, steps = choose_cuts(counts, heavy, fine, table_grid, max_bins, staggered=staggered)
        _put_values(image, cuts, value_codes(len(cuts), steps, max_bins), codes[:, f])
        return grid.values(cuts), steps

    found = list(_map_columns(one, X, n_jobs))  # none, for a party that has the label alone
    return make_bins(schema, [cuts for cuts, _ in found], [steps for _, steps in found], max_bins), codes


def make_bins(
    schema: Schema,
    cuts: Sequence[np.ndarray],
    steps: Sequence[np.ndarray | None] | None = None,
    max_bins: int = MAX_BINS,
) -> Bins:
    """Return the bins given by cut points for the columns of a schema.

    ``steps`` are the distances between the codes on both sides of a cut, for columns with more than ``max_bins`` bins.
    Edges from a schema have no steps: all trees use all of them.
    """
    given = [None] * len(cuts) if steps is None else steps
    used = [None if f.categorical or f.edges is not None else s for f, s in zip(schema.features, given, strict=True)]
    codes = tuple(value_codes(len(c), s, max_bins) for c, s in zip(cuts, used, strict=True))
    return Bins(
        tuple(cuts),
        codes,
        np.array([f.categorical for f in schema.features], np.bool_),
        np.array([f.n_codes for f in schema.features], np.int32),
        np.array([table_shift(max_bins) if c[0] > 1 else 0 for c in codes], np.uint8),
    )


def most_in_a_bin(bins: Bins, f: int, counts: np.ndarray, heavy: Heavy, fine: np.ndarray, table_grid: Grid) -> int:
    """Return the largest number of rows in any bin of any tree's histograms of a column, from the counts of its cells.

    The cut points must come from these counts, so that none lies inside a cell.
    """
    _, high, rows = occupied_cells(counts, heavy, fine, table_grid)
    codes = bins.codes[f][np.searchsorted(grid.images(bins.cuts[f]), high)].astype(np.int64)
    shift = int(bins.shift[f])
    held = [np.bincount((codes + offset) >> shift, rows).max(initial=0) for offset in range(1 << shift)]
    return int(max(held))


def _map_columns(work: Callable[[int, np.ndarray], R], X: np.ndarray, n_jobs: int) -> list[R]:
    """Call ``work`` with the number and the images of each column."""

    def some(columns: range) -> list[R]:
        images = grid.column_images(X, columns)
        return [work(f, image) for f, image in zip(columns, images, strict=True)]

    # a few columns at a time, since a row's values are adjacent; only one if that would take too much memory
    step = max(1, min(8, (1 << 22) // max(len(X), 1), -(-X.shape[1] // n_jobs)))
    parts = [range(f, min(f + step, X.shape[1])) for f in range(0, X.shape[1], step)]
    return [done for part in thread_map(some, parts, n_jobs) for done in part]


@njit(nogil=True, cache=True)
def _put_codes(column: np.ndarray, n_codes: int, out: np.ndarray) -> None:
    """Write the codes of categories; unknown ones count as missing, like NaN."""
    for i in range(column.shape[0]):
        out[i] = np.uint8(column[i] + 1) if 0 <= column[i] < n_codes else MISSING_BIN


_MOST_CELLS = 14  # log2 of the most cells of the lookup table that narrows the search for a value's code
U = np.uint64  # unsigned indices need no check for negative values in inner loops


@njit(nogil=True, cache=True)
def _put_values(image: np.ndarray, cuts: np.ndarray, codes: np.ndarray, out: np.ndarray) -> None:
    """Write the code of each value: a lookup table over equal cells narrows the search to the few cuts inside one.

    From there all values take the same steps, without branches that the processor could mispredict.
    """
    n = cuts.shape[0]
    low, high = (np.int64(cuts[0]), np.int64(cuts[n - 1]) + 1) if n > 0 else (np.int64(0), np.int64(0))
    bits, shift = 4, U(0)
    while bits < _MOST_CELLS and 4 << bits < image.shape[0]:
        bits += 1
    while U(high - low) >> shift >= U(1 << bits):
        shift += U(1)
    after = np.empty(n + CODES, np.int64)  # the cuts, padded with values above everything
    for c in range(after.shape[0]):
        after[c] = np.int64(cuts[c]) if c < n else 1 << 40
    below, step, c = np.empty((U(high - low) >> shift) + U(1), np.uint8), U(4), 0
    for cell in range(below.shape[0]):
        first, below[cell] = c, c
        while c < n and U(after[c] - low) >> shift == U(cell):
            c += 1
        while U(2) * step <= U(c - first):
            step *= U(2)
    for i in range(image.shape[0]):
        v = np.int64(image[i])
        at, more = U(below[U(min(max(v, low), high) - low) >> shift]), step
        while more > U(4):
            at += more * U(after[at + more - U(1)] < v)
            more >>= U(1)
        at += U(after[at + U(3)] < v) << U(2)
        at += U(after[at + U(1)] < v) << U(1)
        at += U(after[at] < v)
        out[i] = codes[at] if v <= LARGEST else MISSING_BIN
