"""Bins: cut points from counts on the public grid, and values put into bins of one byte.

Code 0 is for missing values. A categorical column's next codes are its categories, a numeric column's the values
between two cut points, the upper one included. Cut points are chosen so that about equally many rows lie between two,
at the roundest number near the middle of the gap between two occupied cells: 0.5 between 0 and 1.

Where a numeric column has more values than a tree has bins, it gets up to four times as many cut points, of which each
tree has some. A value's bin in the histograms of a tree is (code + offset) >> shift, and the offset differs from tree
to tree: a cut between neighbouring codes is in one of four sets, one whose codes are four apart is in all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numba import njit

from silvan.data import grid
from silvan.data.grid import LARGEST, Grid, Heavy
from silvan.data.schema import MAX_BINS, MISSING_BIN, Schema
from silvan.errors import FormatError, InputError
from silvan.util.threads import thread_map

R = TypeVar("R")

CODES = 256
"""How many codes one byte has."""

_MUCH = 4
"""A value with the rows of so many bins, such as zero in many columns, has cuts on both sides in every tree."""


class HistogramBins(NamedTuple):
    """The bins of a tree's histograms, by column: a value of some code is in bin (code + offset) >> shift.

    An offset counts modulo 2^shift. Missing values, of code 0, are in bin 0 whatever it is.
    """

    last: np.ndarray  # int32, the highest code
    shift: np.ndarray  # uint8
    n_bins: np.ndarray  # int32, the bin of missing values included

    @classmethod
    def of(cls, last: np.ndarray, shift: np.ndarray) -> "HistogramBins":
        """Return the bins, as many as the largest offset needs."""
        n_bins = ((last + (1 << shift.astype(np.int32)) - 1) >> shift) + 1
        return cls(last, shift, n_bins.astype(np.int32))


@dataclass(frozen=True)
class Bins:
    """The cut points of every column (none for a categorical one), and the codes of the values between them."""

    cuts: tuple[np.ndarray, ...]
    codes: tuple[np.ndarray, ...]  # uint8, one more than cut points
    categorical: np.ndarray
    n_codes: np.ndarray  # of categorical columns
    shift: np.ndarray  # uint8: so many times the codes are halved to make the bins of a tree's histograms

    @cached_property
    def in_histograms(self) -> HistogramBins:
        """What the histograms of a tree have of each column."""
        last = np.array([c[-1] for c in self.codes], np.int32)
        return HistogramBins.of(np.where(self.categorical, self.n_codes, last).astype(np.int32), self.shift)

    @property
    def n_bins(self) -> np.ndarray:
        """Bins of each column in a tree's histograms, the one of missing values included."""
        return self.in_histograms.n_bins

    @property
    def last(self) -> np.ndarray:
        """The highest code of each column."""
        return self.in_histograms.last

    @cached_property
    def starts(self) -> np.ndarray:
        """Where each column's thresholds begin in ``thresholds``."""
        return np.concatenate([[0], np.cumsum([len(c) + 1 for c in self.cuts])]).astype(np.int64)

    @cached_property
    def thresholds(self) -> np.ndarray:
        """All columns' cut points in one array, each column's followed by the largest float.

        After the highest code, a split's threshold is the largest float: all values on one side, missing ones on the
        other.
        """
        largest = np.array([np.finfo(np.float32).max], np.float32)
        return np.concatenate([part for c in self.cuts for part in (c, largest)] or [largest[:0]])

    @cached_property
    def _places(self) -> np.ndarray:
        """The codes of all columns, each column's above those of the column before: rising, beside the thresholds."""
        return np.concatenate(
            [f * CODES + c.astype(np.int64) for f, c in enumerate(self.codes)] or [np.zeros(0, np.int64)]
        )

    def cut(self, feature: np.ndarray, code: np.ndarray) -> np.ndarray:
        """Return the threshold of splits after these codes; arbitrary for a categorical column."""
        at = np.searchsorted(self._places, feature.astype(np.int64) * CODES + code, side="right") - 1
        return self.thresholds[np.maximum(at, self.starts[feature])]

    def apply(self, X: np.ndarray, n_jobs: int = 1) -> np.ndarray:
        """Return the code of every value of an encoded table: uint8, one row after the other."""
        codes = np.empty(X.shape, np.uint8)
        _put_columns(X, codes, self, n_jobs)
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
    """Choose cut points for one table and put its values between them: both passes over the grid, column by column.

    ``n_columns`` decides the grid, if the table is only some columns of a wider one. ``staggered`` is for trees that
    differ in their cut points, and so have more of them together.
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

    found = _map_columns(one, X, n_jobs)
    return make_bins(schema, [cuts for cuts, _ in found], [steps for _, steps in found], max_bins), codes


def make_bins(
    schema: Schema,
    cuts: Sequence[np.ndarray],
    steps: Sequence[np.ndarray | None] | None = None,
    max_bins: int = MAX_BINS,
) -> Bins:
    """Return the bins that cut points make of the columns of a schema.

    ``steps`` are how far the codes on both sides of a cut are apart, where a column has more than ``max_bins``; edges
    that a schema gives have none, and all trees use them all.
    """
    given = [None] * len(cuts) if steps is None else steps
    own = [None if f.categorical or f.edges is not None else s for f, s in zip(schema.features, given, strict=True)]
    n_sets = 1 << table_shift(max_bins)
    codes = tuple(value_codes(len(c), s, max_bins) for c, s in zip(cuts, own, strict=True))
    spread = [c[0] > 1 for c in codes]
    return Bins(
        tuple(cuts),
        codes,
        np.array([f.categorical for f in schema.features], np.bool_),
        np.array([f.n_codes for f in schema.features], np.int32),
        np.where(spread, n_sets.bit_length() - 1, 0).astype(np.uint8),
    )


def value_codes(n_cuts: int, steps: np.ndarray | None, max_bins: int) -> np.ndarray:
    """Return the codes of the values between cut points; raise ``FormatError`` for steps that cannot be.

    They begin with 1, without gaps, where there are no more than ``max_bins`` or no steps.
    """
    if steps is None or n_cuts < max_bins:
        return np.arange(1, n_cuts + 2).astype(np.uint8)
    shift = table_shift(max_bins)
    codes = (1 << shift) + np.append(0, np.cumsum(steps, dtype=np.int64))
    if steps.shape != (n_cuts,) or not 1 <= steps.min() <= steps.max() <= 1 << shift:
        raise FormatError("the steps between codes are not possible")
    if codes[-1] >= min(max_bins << shift, CODES):
        raise FormatError(f"there are more codes than trees of {max_bins} bins have room for")
    return codes.astype(np.uint8)


def table_shift(max_bins: int) -> int:
    """Return how many times codes are halved to make bins: four codes a bin if a byte holds them, else two or one."""
    return sum(max_bins << shift <= CODES for shift in (1, 2))


def staggered_bins(max_bins: int) -> int:
    """Return how many value bins the cut points of all trees make together at most."""
    shift = table_shift(max_bins)
    return min(max_bins << shift, CODES) - (1 << shift) if shift else max_bins


def check_max_bins(max_bins: int) -> None:
    """Raise ``InputError`` for a number of bins that one byte cannot hold."""
    if not 2 <= max_bins <= MAX_BINS:
        raise InputError(f"max_bins must be between 2 and {MAX_BINS}, got {max_bins}")


def given_cuts(edges: Sequence[float]) -> np.ndarray:
    """Return given edges as images; two may become one, and one beyond all 32-bit floats is no cut."""
    with np.errstate(over="ignore"):
        values = np.array(edges, np.float32)
    return np.unique(grid.images(values[np.isfinite(values)]))


def _map_columns(work: Callable[[int, np.ndarray], R], X: np.ndarray, n_jobs: int) -> list[R]:
    """Call ``work`` with every column's number and images."""

    def some(columns: range) -> list[R]:
        images = grid.column_images(X, columns)
        return [work(f, image) for f, image in zip(columns, images, strict=True)]

    # a few columns at a time, since values of a row lie side by side; one at a time where that takes much memory
    step = max(1, min(8, (1 << 22) // max(len(X), 1), -(-X.shape[1] // n_jobs)))
    parts = [range(f, min(f + step, X.shape[1])) for f in range(0, X.shape[1], step)]
    return [done for part in thread_map(some, parts, n_jobs) for done in part]


def _put_columns(X: np.ndarray, codes: np.ndarray, bins: Bins, n_jobs: int) -> None:
    def one(f: int, image: np.ndarray) -> None:
        if bins.categorical[f]:
            _put_codes(X[:, f], int(bins.n_codes[f]), codes[:, f])
        else:
            _put_values(image, grid.images(bins.cuts[f]), bins.codes[f], codes[:, f])

    _map_columns(one, X, n_jobs)


@njit(nogil=True, cache=True)
def _put_codes(column: np.ndarray, n_codes: int, out: np.ndarray) -> None:
    """Put codes into bins; an unknown one counts as missing, like NaN."""
    for i in range(column.shape[0]):
        out[i] = np.uint8(column[i] + 1) if 0 <= column[i] < n_codes else MISSING_BIN


_MOST_CELLS = 14
"""Cells of a table that narrows the search for a value's code number at most 2 to this power."""

U = np.uint64  # unsigned indices spare the check for negative ones in the inner loops


@njit(nogil=True, cache=True)
def _put_values(image: np.ndarray, cuts: np.ndarray, codes: np.ndarray, out: np.ndarray) -> None:
    """Find each value's code: a table over equal cells narrows the search to the few cuts inside one.

    All values take the same steps from there, so that the processor need not guess which way a value goes.
    """
    n = cuts.shape[0]
    low, high = (np.int64(cuts[0]), np.int64(cuts[n - 1]) + 1) if n > 0 else (np.int64(0), np.int64(0))
    bits, shift = 4, U(0)
    while bits < _MOST_CELLS and 4 << bits < image.shape[0]:
        bits += 1
    while U(high - low) >> shift >= U(1 << bits):
        shift += U(1)
    after = np.empty(n + CODES, np.int64)  # the cuts, and enough that nothing is above
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
def _cut_in_steps(rows: np.ndarray, max_bins: int, n_sets: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose after which cells to cut, and in how many of the sets of cut points each is: as many as codes fit a byte.

    Cuts beside a bin that holds much of all rows are in all sets, the others in equally many.
    """
    room = min(max_bins * n_sets, CODES) - n_sets - 1  # of all steps together
    n = room + 1
    while True:
        after = _cut_after(rows, n)
        steps = np.empty(after.shape[0], np.uint8)
        total = _first_steps(rows, after, max_bins, n_sets, steps)
        if total <= room:
            break
        n = max(n - (total - room + n_sets - 1) // n_sets, room // n_sets + 1)
    while True:
        more = 0
        for i in range(steps.shape[0]):
            more += steps[i] < n_sets
        if more == 0 or total + more > room:
            return after, steps
        for i in range(steps.shape[0]):
            steps[i] = min(steps[i] + 1, n_sets)
        total += more


@njit(nogil=True, cache=True)
def _first_steps(rows: np.ndarray, after: np.ndarray, max_bins: int, n_sets: int, steps: np.ndarray) -> int:
    """Write in how many sets each cut is at least; return the sum."""
    all_rows = 0
    for i in range(rows.shape[0]):
        all_rows += rows[i]
    total, cell, before = 0, 0, 0
    for i in range(after.shape[0] + 1):
        held, end = 0, after[i] if i < after.shape[0] else rows.shape[0] - 1
        while cell <= end:
            held += rows[cell]
            cell += 1
        if i > 0:
            steps[i - 1] = n_sets if max(before, held) * max_bins >= _MUCH * all_rows else 1
            total += steps[i - 1]
        before = held
    return total


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
    shift: int,
    bits: np.ndarray,
    value: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    low, high, rows = _occupied(counts, cells, shifts, starts, fine, coarse)
    if rows.shape[0] == 0:
        return np.empty(0, np.int32), np.empty(0, np.uint8)
    if shift == 0 or rows.shape[0] <= max_bins:
        after = _cut_after(rows, max_bins)
        steps = np.empty(after.shape[0], np.uint8)
        for i in range(after.shape[0]):
            steps[i] = 1
    else:
        after, steps = _cut_in_steps(rows, max_bins, 1 << shift)
    cuts = np.empty(after.shape[0], np.int32)
    for i in range(after.shape[0]):
        cuts[i] = _roundest(high[after[i]], low[after[i] + 1], finest, bits, value)
    return cuts, steps


def most_in_a_bin(bins: Bins, f: int, counts: np.ndarray, heavy: Heavy, fine: np.ndarray, table_grid: Grid) -> int:
    """Return the most rows with a value in any bin of any tree's histograms of a column, from the counts of its cells.

    The cut points must have been chosen from these counts: then none goes through a cell.
    """
    starts, coarse = heavy.starts(table_grid.coarse), table_grid.coarse
    _, high, rows = _occupied(counts, *heavy, starts, fine, coarse)
    codes = bins.codes[f][np.searchsorted(grid.images(bins.cuts[f]), high)].astype(np.int64)
    shift = int(bins.shift[f])
    held = [np.bincount((codes + offset) >> shift, rows).max(initial=0) for offset in range(1 << shift)]
    return int(max(held))


def choose_cuts(
    counts: np.ndarray, heavy: Heavy, fine: np.ndarray, table_grid: Grid, max_bins: int, *, staggered: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Choose one column's cut points, as images, from its counts in coarse and fine cells, and the steps of codes."""
    bits, shift = np.zeros(1, np.int32), table_shift(max_bins) if staggered else 0
    starts, coarse, finest = heavy.starts(table_grid.coarse), table_grid.coarse, table_grid.finest
    value = bits.view(np.float32)
    return _choose_cuts(counts, *heavy, starts, fine, coarse, finest, max_bins, shift, bits, value)
