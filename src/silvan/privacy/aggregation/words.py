"""Counters that share words of 64 bits, each some bits above the last: words add up as their counters do.

Rows of counters come in blocks. Every block and column has a number of bits per counter; as many counters of a column
as fit share a word, and lane i of a block's words is the i-th run of its rows.
"""

import msgspec
import numpy as np

from silvan.util.kernels import njit

WORD = np.dtype("<u8")
BITS = 64
STEPS = np.array([8, 10, 12, 16, 21, 32, BITS], np.uint8)
"""Bits of counters if bounds differ: sites learn the number for every block, and nothing more about small counts."""

_PIECE = 1 << 11  # words that stay in the processor's cache while they are filled


class Widths(msgspec.Struct, frozen=True):
    """How many bits the counters of an array take, by block of rows and by column."""

    lengths: np.ndarray  # int64, rows of each block
    bits: np.ndarray  # uint8 (blocks, columns)

    @classmethod
    def alike(cls, size: int, width: int) -> "Widths":
        """Return equal widths for counters in one column."""
        return cls(np.array([size], np.int64), np.array([[width]], np.uint8))

    @classmethod
    def holding(cls, lengths: np.ndarray, most: np.ndarray) -> "Widths":
        """Return the smallest of ``STEPS`` that fits the bounds, by block and column."""
        bits = np.minimum(np.frexp(most.astype(np.float64))[1], BITS)
        return cls(lengths, STEPS[np.searchsorted(STEPS, bits)])

    def fit(self, shape: tuple[int, ...]) -> bool:
        """Whether the widths fit an array of this shape."""
        lengths, bits = self.lengths, self.bits
        if lengths.dtype != np.int64 or bits.dtype != np.uint8 or bits.ndim != 2 or lengths.shape != bits.shape[:1]:
            return False
        right = shape[1:] == bits.shape[1:] and not (lengths < 0).any() and not (lengths > shape[0]).any()
        return right and int(lengths.sum()) == shape[0] and bool(((bits >= 1) & (bits <= BITS)).all())

    def words(self) -> int:
        """Return the number of words for the counters."""
        lanes = BITS // self.bits.astype(np.int64)
        return int((-(-self.lengths[:, None] // lanes)).sum())


def pack(counters: np.ndarray, widths: Widths) -> np.ndarray:
    """Pack counters into words. Those that do not fit are not checked: see ``flatten``."""
    counters = (counters if counters.dtype == np.int32 else counters.astype(np.int64)).reshape(-1)
    words = np.zeros(widths.words(), np.uint64)
    paired = counters.dtype == np.dtype("<i4") and widths.bits.shape[1] == 2
    _fill_words(counters.view(np.int64) if paired else counters, paired, widths.lengths, widths.bits, words)
    return words.astype(WORD, copy=False)


def unpack(words: np.ndarray, widths: Widths, dtype: np.dtype, most: np.ndarray | None = None) -> np.ndarray | None:
    """Read what ``pack`` wrote, or a sum of it; None if a counter is above its bound or does not fit the type."""
    rows, columns = int(widths.lengths.sum()), widths.bits.shape[1]
    counters = np.empty(rows * columns, np.int32 if dtype == np.int32 else np.int64)
    if most is None:
        most = np.full(widths.bits.shape, np.iinfo(np.int64).max)
    limits = np.iinfo(np.int64 if dtype == WORD else dtype)
    words = words.astype(np.uint64, copy=False)
    if not _read_words(words, widths.lengths, widths.bits, most, int(limits.min), int(limits.max), counters):
        return None
    return counters.astype(dtype, copy=False).reshape(rows, columns)


@njit(nogil=True, cache=True)
def _fill_words(counters: np.ndarray, paired: bool, lengths: np.ndarray, bits: np.ndarray, words: np.ndarray) -> None:
    """Add counters to words; where they are paired, a number of 64 bits holds those of both columns."""
    columns, row, at = bits.shape[1], 0, 0
    for b in range(len(lengths)):
        for c in range(columns):
            width = np.int64(bits[b, c])
            lanes = BITS // width
            n = -(-lengths[b] // lanes)
            for start in range(0, n, _PIECE):
                some = words[at + start : at + min(start + _PIECE, n)]
                for lane in range(lanes):
                    first = lane * n + start
                    size = min(len(some), lengths[b] - first)
                    if paired:
                        _add_half(counters, row + first, size, c, lane * width, some)
                    else:
                        _add_run(counters, (row + first) * columns + c, columns, size, lane * width, some)
            at += n
        row += lengths[b]


@njit(nogil=True, cache=True)
def _add_run(counters: np.ndarray, start: int, step: int, size: int, bit: np.int64, words: np.ndarray) -> None:
    """Add a run of counters to words, from a bit on; the compiler is quick where indices cannot be negative."""
    first, by, shift = np.uint64(start), np.uint64(step), np.uint64(bit)
    if step == 1:
        for i in range(size):
            words[i] += np.uint64(np.int64(counters[first + np.uint64(i)])) << shift
    else:
        for i in range(size):
            words[i] += np.uint64(np.int64(counters[first + by * np.uint64(i)])) << shift


@njit(nogil=True, cache=True)
def _add_half(pairs: np.ndarray, start: int, size: int, column: int, bit: np.int64, words: np.ndarray) -> None:
    """Add a run of counters of one column to words, from a bit on."""
    first, shift, half = np.uint64(start), np.uint64(bit), np.int64(32)
    if column == 0:
        for i in range(size):
            words[i] += np.uint64(pairs[first + np.uint64(i)] << half >> half) << shift
    else:
        for i in range(size):
            words[i] += np.uint64(pairs[first + np.uint64(i)] >> half) << shift


@njit(nogil=True, cache=True)
def _read_words(
    words: np.ndarray,
    lengths: np.ndarray,
    bits: np.ndarray,
    most: np.ndarray,
    low: int,
    high: int,
    counters: np.ndarray,
) -> bool:
    """Read the counters; return whether all are within bounds."""
    columns, row, at, fits = bits.shape[1], 0, 0, True
    for b in range(len(lengths)):
        for c in range(columns):
            width = np.int64(bits[b, c])
            lanes = BITS // width
            n = -(-lengths[b] // lanes)
            ones = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(BITS - width)
            largest, smallest = np.int64(0), np.int64(0)
            some = words[at : at + n]
            for lane in range(lanes):
                shift, first = np.uint64(lane * width), lane * n
                start, step = np.uint64((row + first) * columns + c), np.uint64(columns)
                for i in range(min(n, lengths[b] - first)):
                    value = np.int64(some[i] >> shift & ones)
                    largest, smallest = max(largest, value), min(smallest, value)
                    counters[start + step * np.uint64(i)] = value
            if largest > min(most[b, c], high) or smallest < low:
                fits = False
            at += n
        row += lengths[b]
    return fits
