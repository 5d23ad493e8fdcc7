"""Cut points of a numeric column, chosen from counts on the public grid.

About equally many rows lie between two cut points. A cut point is the roundest number near the middle of the gap
between two occupied cells, such as 0.5 between 0 and 1.

The values between two cut points share a one-byte code; code 0 stands for missing values. If a numeric column has more
values than a tree has bins, it gets up to four times as many cut points, and each tree uses some of them. A value's bin
in a tree's histograms is (code + offset) >> shift, with an offset that differs from tree to tree: a cut between
adjacent codes is in one of four sets, a cut between codes four apart in all of them.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from silvan.data.bins import grid
from silvan.data.bins.grid import LARGEST, Grid, Heavy
from silvan.data.schema import MAX_BINS
from silvan.errors import FormatError, InputError
from silvan.util.kernels import njit

CODES = 256  # codes that fit in one byte
_MUCH = 4  # a value with the rows of this many bins (often zero) has cuts on both sides in every tree


def check_max_bins(max_bins: int) -> None:
    """Raise ``InputError`` for a number of bins that does not fit in one byte."""
    if not 2 <= max_bins <= MAX_BINS:
        raise InputError.wrong("max_bins", f"between 2 and {MAX_BINS}", max_bins)


@cache
def table_shift(max_bins: int) -> int:
    """Return the shift from codes to bins: four codes per bin if they fit in a byte, otherwise two or one."""
    return sum(max_bins << shift <= CODES for shift in (1, 2))


def staggered_bins(max_bins: int) -> int:
    """Return the largest number of value bins given by the cut points of all trees together."""
    shift = table_shift(max_bins)
    return min(max_bins << shift, CODES) - (1 << shift) if shift else max_bins


def value_codes(n_cuts: int, steps: np.ndarray | None, max_bins: int) -> np.ndarray:
    """Return the codes of the values between cut points; raise ``FormatError`` for impossible steps.

    With at most ``max_bins`` bins, or without steps, codes are 1, 2, 3, ...
    """
    if steps is None or n_cuts < max_bins:
        return np.arange(1, n_cuts + 2).astype(np.uint8)
    shift = table_shift(max_bins)
    codes = (1 << shift) + np.append(0, np.cumsum(steps, dtype=np.int64))
    if steps.shape != (n_cuts,) or not 1 <= steps.min() <= steps.max() <= 1 << shift:
        raise FormatError("the steps between codes are impossible")
    if codes[-1] >= min(max_bins << shift, CODES):
        raise FormatError(f"there are more codes than trees of {max_bins} bins have room for")
    return codes.astype(np.uint8)


def choose_cuts(
    counts: np.ndarray, heavy: Heavy, fine: np.ndarray, table_grid: Grid, max_bins: int, *, staggered: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Choose one column's cut points (as images) and steps of codes, from its counts in coarse and fine cells."""
    bits, shift = np.zeros(1, np.int32), table_shift(max_bins) if staggered else 0
    starts, coarse, finest = heavy.starts(table_grid.coarse), table_grid.coarse, table_grid.finest
    if fine.shape != (starts[-1],):
        raise FormatError("fine counts are of other cells than the heavy ones")
    value = bits.view(np.float32)
    return _choose_cuts(counts, *heavy, starts, fine, coarse, finest, max_bins, shift, bits, value)


def given_cuts(edges: Sequence[float]) -> np.ndarray:
    """Return given edges as images; two may coincide, and edges beyond the range of 32-bit floats are dropped."""
    with np.errstate(over="ignore"):
        values = np.array(edges, np.float32)
    return np.unique(grid.images(values[np.isfinite(values)]))


def occupied_cells(
    counts: np.ndarray, heavy: Heavy, fine: np.ndarray, table_grid: Grid
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the occupied cells of one column in order, as images: lower ends, upper ends, rows."""
    return _occupied(counts, *heavy, heavy.starts(table_grid.coarse), fine, table_grid.coarse)


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


@njit(nogil=True, cache=True)
def _occupied(
    counts: np.ndarray, cells: np.ndarray, shifts: np.ndarray, starts: np.ndarray, fine: np.ndarray, coarse: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List the occupied cells in order, fine ones where available: lower ends, upper ends, rows."""
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
    """Choose the cells to cut after, so that bins hold about equally many rows.

    A cell with at least one bin's share of the rows gets a bin of its own, which leaves a smaller share for the others.
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
    """Choose the cells to cut after, and the number of sets that contain each cut point; codes fit in a byte.

    Cuts next to a bin with many of the rows are in all sets; all others are in equally many.
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
    """Write the smallest number of sets for each cut, and return their sum."""
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
def _value_of(image: int, bits: np.ndarray, value: np.ndarray) -> float:
    bits[0] = abs(image)
    return np.float64(value[0]) if image >= 0 else -np.float64(value[0])
