"""The public grid: cells of the float32 line that do not depend on data, and counts of values in them.

Every float32 has an integer image that preserves the order: its bits, read as a sign and a magnitude. Dropping low bits
of the image gives cells that are narrow near zero and wide far out, the same for everybody. A cell of width 2^s holds
the images in ((k-1) 2^s, k 2^s]: its upper end is a round number and belongs to the cell, and zero is the upper end of
a cell. Both zeros have image 0.

Cut points follow from counts in cells, in two passes: first all cells of a coarse grid, then finer cells inside those
with many values. No row's value is ever a cut point.
"""

from typing import NamedTuple

import numpy as np

from silvan.util.kernels import njit

COARSE_BITS = 14  # most bits in the first pass: the sign, the exponent and five bits of the fraction
FINE_BITS = 12  # most bits that the second pass adds inside a heavy cell

_DETAIL, _MOST_DETAIL = 64, 4096
"""Fine cells per bin's share of rows in a coarse cell, and per column: fewer bins need more precise cut points."""

CELL_BUDGET = 26  # log2 of the most coarse cells of all columns together
FINE_BUDGET = 25
"""Log2 of the most fine cells of all columns together, not counting heavy cells with only two.

So wide tables get a coarser grid."""

LARGEST = 0x7F7FFFFF  # image of the largest float32; images above are infinite or not a number


class Grid(NamedTuple):
    """The grid of one column: the low bits that its coarse cells drop, and its maximum number of fine cells."""

    coarse: int
    budget: int

    @classmethod
    def for_columns(cls, n_columns: int) -> "Grid":
        """Return the grid for a table, which depends only on the number of columns."""
        share = 2**CELL_BUDGET // max(n_columns, 1)
        bits = min(COARSE_BITS, share.bit_length() - 1)
        return cls(32 - max(bits, 4), 2**FINE_BUDGET // max(n_columns, 1))

    @staticmethod
    def columns_alike() -> int:
        """Return the number of columns up to which the budgets do not affect cut points."""
        return min(2 ** (CELL_BUDGET - COARSE_BITS), 2**FINE_BUDGET // (2 * _MOST_DETAIL))

    @property
    def n_cells(self) -> int:
        """The number of coarse cells of a column."""
        return 2 * self.middle + 1

    @property
    def middle(self) -> int:
        """The index of the cell whose upper end is zero."""
        return (LARGEST >> self.coarse) + 1

    @property
    def finest(self) -> int:
        """The number of low bits dropped by the finest cells."""
        return max(self.coarse - FINE_BITS, 0)

    def bounds(self, first: int, last: int) -> tuple[float, float]:
        """Return the lower end of one coarse cell and the upper end of another."""
        ends = [(first - self.middle - 1) << self.coarse, (last - self.middle) << self.coarse]
        low, high = values(np.clip(ends, -LARGEST, LARGEST))
        return float(low), float(high)


def images(column: np.ndarray) -> np.ndarray:
    """Map a float32 column to its order-preserving integers; missing values stay above ``LARGEST``."""
    bits = np.ascontiguousarray(column, np.float32).view(np.int32)
    out = np.empty(len(bits), np.int32)
    _write_images(bits, out)
    return out


def column_images(X: np.ndarray, columns: range) -> np.ndarray:
    """Return the images of some adjacent columns: int32 (columns, rows)."""
    out = np.empty((len(columns), len(X)), np.int32)
    _write_column_images(np.asarray(X, np.float32).view(np.int32), columns.start, out)
    return out


# The kernels of this module write to arrays passed in, because allocation adds to compile time and everybody's first
# forest needs these kernels.


@njit(nogil=True, cache=True, inline="always")
def _image(b: int) -> int:
    # a quiet NaN may carry a sign bit; keep it out of the ordered range
    return b if b >= 0 else (-(b & 0x7FFFFFFF) if (b & 0x7FFFFFFF) <= LARGEST else 0x7FFFFFFF)


@njit(nogil=True, cache=True)
def _write_images(bits: np.ndarray, out: np.ndarray) -> None:
    for i in range(bits.shape[0]):  # a loop over rows of columns would take 1.5 times as long for one column
        out[i] = _image(bits[i])


@njit(nogil=True, cache=True)
def _write_column_images(bits: np.ndarray, first: int, out: np.ndarray) -> None:
    for i in range(bits.shape[0]):
        for k in range(out.shape[0]):
            out[k, i] = _image(bits[i, first + k])


def values(image: np.ndarray) -> np.ndarray:
    """Map images back to float32: the inverse of ``images``, except for the sign of zero."""
    image = np.asarray(image, np.int32)
    bits = np.where(image >= 0, image, np.int32(-0x80000000) | -image)
    return bits.astype(np.int32).view(np.float32)


def coarse_counts(image: np.ndarray, shift: int, n_cells: int) -> np.ndarray:
    """Count the values in each coarse cell."""
    counts = np.zeros(n_cells, np.int32)
    _add_coarse(image, shift, counts)
    return counts


@njit(nogil=True, cache=True)
def _add_coarse(image: np.ndarray, shift: int, counts: np.ndarray) -> None:
    middle = counts.shape[0] >> 1
    up = (1 << shift) - 1
    for i in range(image.shape[0]):
        v = np.int64(image[i])
        if v <= LARGEST:
            counts[((v + up) >> shift) + middle] += 1


def coarse_cells(image: np.ndarray, shift: int, n_cells: int) -> np.ndarray:
    """Return the coarse cell of each value; no value may be missing."""
    return ((image.astype(np.int64) + (1 << shift) - 1) >> shift) + (n_cells >> 1)


class Heavy(NamedTuple):
    """Coarse cells that are divided further, ascending, and how finely."""

    cells: np.ndarray  # int32
    shifts: np.ndarray  # int32, low bits that its fine cells drop

    def starts(self, coarse: int) -> np.ndarray:
        """Return the start of each cell's fine counts, and the end of the last ones."""
        return np.concatenate([[0], np.cumsum(1 << (coarse - self.shifts).astype(np.int64))])


def heavy_cells(counts: np.ndarray, grid: Grid, max_bins: int, floor: int = 1) -> Heavy:
    """Return the cells with more than a quarter of a bin's share of the rows, and at least ``floor`` rows.

    A cell with the share of r bins is divided into about 64 r parts (for 64 bins; 16 r for 256), so that cuts inside it
    can be placed well.
    """
    share = counts.sum(dtype=np.int64) / max_bins
    cells = np.flatnonzero((counts > share / 4) & (counts >= floor)).astype(np.int32)
    parts = _detail(grid, max_bins) * counts[cells] / max(share, 1e-9)
    bits = np.clip(np.frexp(parts)[1], 1, FINE_BITS)  # frexp is exact on every machine, log2 is not
    return Heavy(cells, np.maximum(grid.coarse - bits, 0).astype(np.int32))


def _detail(grid: Grid, max_bins: int) -> float:
    return min(_DETAIL, _MOST_DETAIL / max_bins, grid.budget / (2 * max_bins))


def most_fine_cells(grid: Grid, max_bins: int) -> int:
    """Return an upper bound on the fine cells that ``heavy_cells`` requests for a column, whatever the counts.

    Parts are rounded up to a power of two, at least two for each of the fewer than 4 ``max_bins`` cells.
    """
    return int(2 * _detail(grid, max_bins) * max_bins) + 8 * max_bins


def fine_counts(image: np.ndarray, heavy: Heavy, grid: Grid) -> np.ndarray:
    """Count the values in the fine cells of all heavy cells."""
    starts = heavy.starts(grid.coarse)
    slot = np.full(grid.n_cells, -1, np.int32)
    slot[heavy.cells] = np.arange(len(heavy.cells))
    counts = np.zeros(starts[-1], np.int32)
    _add_fine(image, slot, heavy.shifts, starts, grid.coarse, counts)
    return counts


@njit(nogil=True, cache=True)
def _add_fine(
    image: np.ndarray, slot: np.ndarray, shifts: np.ndarray, starts: np.ndarray, coarse: int, counts: np.ndarray
) -> None:
    """Add the values to the counts of the fine cells; ``slot`` is the number of a heavy cell, -1 for others."""
    middle = slot.shape[0] >> 1
    up = (1 << coarse) - 1
    for i in range(image.shape[0]):
        v = np.int64(image[i])
        if v <= LARGEST:
            cell = (v + up) >> coarse
            j = slot[cell + middle]
            if j >= 0:
                counts[starts[j] + ((v - 1 - ((cell - 1) << coarse)) >> shifts[j])] += 1
