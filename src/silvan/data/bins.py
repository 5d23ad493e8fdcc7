"""Bins: cut points from counts on the public grid, and values put into bins of one byte.

Bin 0 holds missing values. A numeric column's bin b >= 1 holds the values above cut b-1 and at most cut b; a
categorical column's bin is its code plus one. Cut points are chosen so that bins hold about equally many
rows, at the roundest number near the middle of the gap between two occupied cells: 0.5 between 0 and 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit

from silvan.data import grid
from silvan.data.grid import LARGEST, Grid, Heavy
from silvan.data.schema import MAX_BINS, MISSING_BIN, Schema
from silvan.errors import InputError
from silvan.util.threads import thread_map


@dataclass(frozen=True)
class Bins:
    """The cut points of every column (none for a categorical one) and how many bins that makes."""

    cuts: tuple[np.ndarray, ...]
    categorical: np.ndarray
    n_codes: np.ndarray

    @cached_property
    def n_bins(self) -> np.ndarray:
        """Bins of each column, the one of missing values included."""
        cut = np.array([len(c) + 2 for c in self.cuts], np.int32)
        return np.where(self.categorical, self.n_codes + 1, cut).astype(np.int32)

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each column's thresholds begin in ``thresholds``."""
        return np.concatenate([[0], np.cumsum([len(c) + 1 for c in self.cuts])]).astype(np.int64)

    @cached_property
    def thresholds(self) -> np.ndarray:
        """All columns' cut points in one array, each column's followed by the largest float.

        The threshold of a split after bin b of column f is ``thresholds[starts[f] + b - 1]``; after the last
        bin it is the largest float: all values on one side, missing ones on the other.
        """
        largest = np.array([np.finfo(np.float32).max], np.float32)
        return np.concatenate([part for c in self.cuts for part in (c, largest)] or [largest[:0]])

    def cut(self, feature: np.ndarray, bin_: np.ndarray) -> np.ndarray:
        """Return the threshold of splits after these bins; arbitrary for a categorical column."""
        return self.thresholds[self.starts[feature] + np.maximum(bin_ - 1, 0)]

    def apply(self, X: np.ndarray, n_jobs: int = 1) -> np.ndarray:
        """Return the bin of every value of an encoded table: uint8, one row after the other."""
        codes = np.empty(X.shape, np.uint8)
        _put_columns(X, codes, self, n_jobs)
        return codes


def find_bins(
    X: np.ndarray, schema: Schema, max_bins: int, n_jobs: int = 1, floor: int = 1, n_columns: int | None = None
) -> tuple[Bins, np.ndarray]:
    """Choose cut points for one table and bin it: both passes over the grid, column by column.

    ``n_columns`` decides the grid, if the table is only some columns of a wider one.
    """
    table_grid = Grid.for_columns(X.shape[1] if n_columns is None else n_columns)
    codes = np.empty(X.shape, np.uint8)

    def one(f: int) -> np.ndarray:
        feature = schema.features[f]
        if feature.categorical:
            _put_codes(X[:, f], feature.n_codes, codes[:, f])
            return np.empty(0, np.float32)
        image = grid.images(X[:, f])
        if feature.edges is not None:
            cuts = given_cuts(feature.edges)
        else:
            counts = grid.coarse_counts(image, table_grid.coarse, table_grid.n_cells)
            heavy = grid.heavy_cells(counts, table_grid, max_bins, floor)
            fine = grid.fine_counts(image, heavy, table_grid)
            cuts = choose_cuts(counts, heavy, fine, table_grid, max_bins)
        _put_values(image, cuts, codes[:, f])
        return grid.values(cuts)

    cuts = thread_map(one, range(X.shape[1]), n_jobs)
    return make_bins(schema, cuts), codes


def make_bins(schema: Schema, cuts: Sequence[np.ndarray]) -> Bins:
    """Return the bins that cut points make of the columns of a schema."""
    return Bins(
        tuple(cuts),
        np.array([f.categorical for f in schema.features], np.bool_),
        np.array([f.n_codes for f in schema.features], np.int32),
    )


def check_max_bins(max_bins: int) -> None:
    """Raise ``InputError`` for a number of bins that one byte cannot hold."""
    if not 2 <= max_bins <= MAX_BINS:
        raise InputError(f"max_bins must be between 2 and {MAX_BINS}, got {max_bins}")


def given_cuts(edges: Sequence[float]) -> np.ndarray:
    """Return given edges as images; two may become one, and one beyond all 32-bit floats is no cut."""
    with np.errstate(over="ignore"):
        values = np.array(edges, np.float32)
    return np.unique(grid.images(values[np.isfinite(values)]))


def _put_columns(X: np.ndarray, codes: np.ndarray, bins: Bins, n_jobs: int) -> None:
    def one(f: int) -> None:
        if bins.categorical[f]:
            _put_codes(X[:, f], int(bins.n_codes[f]), codes[:, f])
        else:
            _put_values(grid.images(X[:, f]), grid.images(bins.cuts[f]), codes[:, f])

    thread_map(one, range(X.shape[1]), n_jobs)


@njit(nogil=True, cache=True)
def _put_codes(column: np.ndarray, n_codes: int, out: np.ndarray) -> None:
    """Put codes into bins; an unknown one counts as missing, like NaN."""
    for i in range(column.shape[0]):
        out[i] = np.uint8(column[i] + 1) if 0 <= column[i] < n_codes else MISSING_BIN


_TABLE_SHIFT = 20


@njit(nogil=True, cache=True)
def _put_values(image: np.ndarray, cuts: np.ndarray, out: np.ndarray) -> None:
    """Find each value's bin: a table over coarse cells narrows the search to the cuts inside one."""
    middle = (LARGEST >> _TABLE_SHIFT) + 1
    below = np.empty(2 * middle + 2, np.int32)
    c = 0
    for cell in range(2 * middle + 2):
        end = (np.int64(cell) - middle) << _TABLE_SHIFT
        while c < cuts.shape[0] and cuts[c] < end - (1 << _TABLE_SHIFT) + 1:
            c += 1
        below[cell] = c
    up = (1 << _TABLE_SHIFT) - 1
    for i in range(image.shape[0]):
        v = np.int64(image[i])
        if v > LARGEST:
            out[i] = MISSING_BIN
            continue
        at = ((v + up) >> _TABLE_SHIFT) + middle
        low, high = below[at], below[at + 1]
        while low < high:
            mid = (low + high) >> 1
            if v <= cuts[mid]:
                high = mid
            else:
                low = mid + 1
        out[i] = np.uint8(low + 1)


@njit(nogil=True, cache=True)
def _occupied(
    counts: np.ndarray, cells: np.ndarray, shifts: np.ndarray, starts: np.ndarray, fine: np.ndarray, coarse: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List the occupied cells in order, fine ones where they were counted: lower end, upper end, rows."""
    most = 0
    for cell in range(counts.shape[0]):
        most += counts[cell] > 0
    for part in range(fine.shape[0]):
        most += fine[part] > 0
    low, high = np.empty(most, np.int64), np.empty(most, np.int64)
    rows = np.empty(most, np.int64)
    middle = counts.shape[0] >> 1
    n, j = 0, 0
    for cell in range(counts.shape[0]):
        if counts[cell] == 0:
            continue
        start = (np.int64(cell) - middle - 1) << coarse
        while j < cells.shape[0] and cells[j] < cell:
            j += 1
        if j < cells.shape[0] and cells[j] == cell:
            for part in range(starts[j], starts[j + 1]):
                if fine[part] > 0:
                    low[n] = start + ((part - starts[j]) << shifts[j])
                    high[n] = low[n] + (1 << shifts[j])
                    rows[n] = fine[part]
                    n += 1
        else:
            low[n], high[n], rows[n] = start, start + (np.int64(1) << coarse), counts[cell]
            n += 1
    return low[:n], high[:n], rows[:n]


@njit(nogil=True, cache=True)
def _cut_after(rows: np.ndarray, max_bins: int) -> np.ndarray:
    """Choose after which cells to cut so that bins hold about equally many rows.

    A cell with a whole bin's share has a bin of its own, which leaves a smaller share for the others.
    """
    n = rows.shape[0]
    # loops instead of np.arange and np.sum, which take long to compile
    if n <= max_bins:
        every = np.empty(n - 1, np.int64)
        for i in range(n - 1):
            every[i] = i
        return every
    light, light_bins = 0, max_bins
    for i in range(n):
        light += rows[i]
    heavy_share, share = np.inf, light / light_bins
    while share < heavy_share:
        heavy_share = share
        light, light_bins = 0, max_bins
        for i in range(n):
            if rows[i] >= heavy_share:
                light_bins -= 1
            else:
                light += rows[i]
        share = light / light_bins  # at least one: cells outnumber bins, so not all can be heavy
    cuts = np.empty(max_bins - 1, np.int64)
    found, held = 0, 0
    for i in range(n - 1):
        if found == max_bins - 1:
            break
        heavy, before_heavy = rows[i] >= heavy_share, rows[i + 1] >= heavy_share
        held += rows[i]
        if not heavy:
            light -= rows[i]
            enough = held >= 0.5 * share if before_heavy else held + 0.5 * rows[i + 1] >= share
            if not enough or light_bins == 0:
                continue
            light_bins -= 1
            share = light / max(light_bins, 1)
        cuts[found] = i
        found += 1
        held = 0
    return cuts[:found]


@njit(nogil=True, cache=True)
def _value_of(image: int, bits: np.ndarray, value: np.ndarray) -> float:
    bits[0] = abs(image)
    return np.float64(value[0]) if image >= 0 else -np.float64(value[0])


@njit(nogil=True, cache=True)
def _roundest(low: int, high: int, finest: int, bits: np.ndarray, value: np.ndarray) -> int:
    """Return the image with the most trailing zeros in the middle half of a gap between two cells.

    ``bits`` and ``value`` are one number seen as int32 and as float32.
    """
    if high <= low:
        return low
    low_value, high_value = _value_of(low, bits, value), _value_of(min(high, LARGEST), bits, value)
    middle = 0.5 * (low_value + high_value)
    if low <= 0 <= high and abs(middle) <= 0.25 * (high_value - low_value):
        return 0
    value[0] = abs(middle)
    image = bits[0] * (1 if middle >= 0 else -1)
    for shift in range(30, finest - 1, -1):
        rounded = ((image + (1 << shift >> 1)) >> shift) << shift
        if low <= rounded <= high:
            off = abs(_value_of(rounded, bits, value) - middle)
            if off <= 0.25 * (high_value - low_value):
                return rounded
    return low


@njit(nogil=True, cache=True)
def _choose_cuts(
    counts: np.ndarray,
    cells: np.ndarray,
    shifts: np.ndarray,
    starts: np.ndarray,
    fine: np.ndarray,
    coarse: int,
    finest: int,
    max_bins: int,
    bits: np.ndarray,
    value: np.ndarray,
) -> np.ndarray:
    low, high, rows = _occupied(counts, cells, shifts, starts, fine, coarse)
    if rows.shape[0] == 0:
        return np.empty(0, np.int32)
    after = _cut_after(rows, max_bins)
    cuts = np.empty(after.shape[0], np.int32)
    for i in range(after.shape[0]):
        cuts[i] = _roundest(high[after[i]], low[after[i] + 1], finest, bits, value)
    return cuts


def choose_cuts(counts: np.ndarray, heavy: Heavy, fine: np.ndarray, table_grid: Grid, max_bins: int) -> np.ndarray:
    """Choose one column's cut points, as images, from its counts in coarse and fine cells."""
    bits = np.zeros(1, np.int32)
    starts, coarse = heavy.starts(table_grid.coarse), table_grid.coarse
    return _choose_cuts(counts, *heavy, starts, fine, coarse, table_grid.finest, max_bins, bits, bits.view(np.float32))
