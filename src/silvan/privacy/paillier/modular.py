"""Modular arithmetic: many products modulo a large odd number at once.

Numbers come in and go out as rows of 64-bit words, lowest first. In between they are in Montgomery form, in limbs of
whatever size suits the processor (``modular_kernels.py``): ``to_montgomery`` and ``from_montgomery`` convert.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from silvan.privacy.paillier.modular_kernels import (
    LIMB,
    SQUARE,
    WORD,
    has_vectors,
    is_below,
    vector_chains,
    word_chains,
)
from silvan.util.kernels import njit
from silvan.util.threads import thread_map

_LONGEST = 64
"""Products of more numbers are computed in parts, so that all lanes and threads have work."""


class Modulus(NamedTuple):
    """An odd number, with precomputed values for products modulo it."""

    number: int
    radix: int
    words: np.ndarray
    limbs: np.ndarray
    inverse: np.uint64  # minus one over the modulus, modulo 2^radix
    square: np.ndarray  # R R: times this, a plain number is in Montgomery form


def make_modulus(number: int, radix: int | None = None) -> Modulus:
    """Prepare products modulo an odd number."""
    if radix is None:
        radix = LIMB if has_vectors() else WORD
    words = to_words([number], _word_count(number))
    # numbers below twice the modulus remain so if R is over four times the modulus
    size = words.shape[1] if radix == WORD else -(-(number.bit_length() + 2) // LIMB)
    square = to_words([pow(2, 2 * radix * size, number)], words.shape[1])
    inverse = -pow(number, -1, 1 << radix) % (1 << radix)
    limbs = _split(np.concatenate([words, square]), radix, size)
    return Modulus(number, radix, words[0], limbs[0], np.uint64(inverse), limbs[1])


def _word_count(number: int) -> int:
    return -(-number.bit_length() // WORD)


def to_words(numbers: Iterable[int], count: int) -> np.ndarray:
    """Write numbers with a fixed number of words each."""
    data = b"".join(int(x).to_bytes(WORD // 8 * count, "little") for x in numbers)
    return np.frombuffer(data, "<u8").astype(np.uint64).reshape(-1, count)


def to_bytes(words: np.ndarray) -> np.ndarray:
    """Write words as bytes, lowest first: uint8 (numbers, bytes)."""
    return np.ascontiguousarray(words, "<u8").view(np.uint8)


def from_bytes(data: np.ndarray) -> np.ndarray:
    """Read what ``to_bytes`` wrote."""
    return np.ascontiguousarray(data).view("<u8").astype(np.uint64)


def to_montgomery(words: np.ndarray, modulus: Modulus, threads: int = 1) -> np.ndarray:
    """Convert numbers below the modulus to Montgomery form."""
    limbs = _split(words, modulus.radix, len(modulus.limbs))
    return multiply(limbs, np.broadcast_to(modulus.square, limbs.shape), modulus, threads)


def from_montgomery(numbers: np.ndarray, modulus: Modulus, threads: int = 1) -> np.ndarray:
    """Convert numbers back from Montgomery form."""
    one = np.zeros_like(numbers)
    one[:, :1] = 1
    words = np.zeros((len(numbers), len(modulus.words)), np.uint64)
    _join(multiply(numbers, one, modulus, threads), modulus.radix, modulus.limbs, words)
    return words


def multiply(a: np.ndarray, b: np.ndarray, modulus: Modulus, threads: int = 1) -> np.ndarray:
    """Multiply numbers pair by pair."""
    pairs = np.stack([np.arange(len(a)), len(a) + np.arange(len(b))], axis=1)
    return run_chains(np.concatenate([a, b]), pairs.reshape(-1), 2 * np.arange(len(a) + 1), modulus, threads)


def products(
    numbers: np.ndarray, listed: np.ndarray, starts: np.ndarray, modulus: Modulus, threads: int = 1
) -> np.ndarray:
    """Multiply lists of numbers: the i-th result is the product of ``numbers[listed[starts[i] : starts[i + 1]]]``."""
    while len(starts) > 1 and np.diff(starts).max() > _LONGEST:
        pieces = -(-np.diff(starts) // _LONGEST)
        ends = np.cumsum(pieces)
        within = np.arange(ends[-1]) - np.repeat(ends - pieces, pieces)
        cuts = np.append(np.repeat(starts[:-1], pieces) + _LONGEST * within, starts[-1])
        numbers = run_chains(numbers, listed, cuts, modulus, threads)
        listed, starts = np.arange(len(numbers)), np.append(0, ends)
    return run_chains(numbers, listed, starts, modulus, threads)


def power(numbers: np.ndarray, exponent: int, modulus: Modulus, threads: int = 1) -> np.ndarray:
    """Raise all numbers to one exponent above 0, four bits per product."""
    table = np.empty((len(numbers), 16, numbers.shape[1]), np.uint64)
    table[:, 0], table[:, 1], square = to_montgomery(to_words([1], len(modulus.words)), modulus), numbers, numbers
    for k in (2, 4, 8):
        square = multiply(square, square, modulus, threads)
        known = table[:, :k].reshape(-1, numbers.shape[1])
        more = multiply(known, np.repeat(square, k, axis=0), modulus, threads)
        table[:, k : 2 * k] = more.reshape(len(numbers), k, numbers.shape[1])
    first, *digits = (int(d, 16) for d in f"{exponent:x}")
    steps = np.array([first, *(step for d in digits for step in (SQUARE, SQUARE, SQUARE, SQUARE, d))])
    operations = np.where(steps == SQUARE, SQUARE, steps + 16 * np.arange(len(numbers))[:, None])
    starts = len(steps) * np.arange(len(numbers) + 1)
    return run_chains(table.reshape(-1, numbers.shape[1]), operations.reshape(-1), starts, modulus, threads)


def run_chains(
    numbers: np.ndarray, operations: np.ndarray, starts: np.ndarray, modulus: Modulus, threads: int = 1
) -> np.ndarray:
    """Run chains of products (``modular_kernels.py``), none of them empty; long ones first."""
    kernel = vector_chains if modulus.radix == LIMB else word_chains
    out = np.empty((len(starts) - 1, len(modulus.limbs)), np.uint64)
    order = np.argsort(-np.diff(starts), kind="stable")
    operations = operations.astype(np.int32, copy=False)

    def run_some(first: int) -> None:
        which = np.ascontiguousarray(order[first::threads])  # a strided one would be compiled separately
        kernel(numbers, operations, starts, which, modulus.limbs, modulus.inverse, out)

    thread_map(run_some, range(min(threads, len(order))), threads)
    return out


def all_below(words: np.ndarray, modulus: Modulus) -> bool:
    """Whether all numbers are below the modulus."""
    return bool(_count_below(words, modulus.words) == len(words))


@njit(nogil=True, cache=True)
def _count_below(words: np.ndarray, bound: np.ndarray) -> int:
    below = 0
    for i in range(words.shape[0]):
        below += is_below(words[i], bound)
    return below


def _split(words: np.ndarray, radix: int, size: int) -> np.ndarray:
    """Cut words into limbs."""
    if radix == WORD:
        return np.array(words)
    out = np.empty((len(words), size), np.uint64)
    row = np.repeat(np.arange(len(words)), size)
    shift = np.tile(radix * np.arange(size), len(words))
    cut_bits(words, row, shift, np.full(len(row), radix), out.reshape(-1))
    return out


@njit(nogil=True, cache=True)
def cut_bits(words: np.ndarray, row: np.ndarray, shift: np.ndarray, width: np.ndarray, out: np.ndarray) -> None:
    """Extract fields of fewer than 64 bits from numbers; above a number there are zeros."""
    for i in range(row.shape[0]):
        at, rest, value = shift[i] >> 6, np.uint64(shift[i] & 63), np.uint64(0)
        if at < words.shape[1]:
            value = words[row[i], at] >> rest
        if rest and at + 1 < words.shape[1]:
            value |= words[row[i], at + 1] << (np.uint64(64) - rest)
        out[i] = value & ((np.uint64(1) << np.uint64(width[i])) - np.uint64(1))


@njit(nogil=True, cache=True)
def _join(limbs: np.ndarray, radix: int, modulus: np.ndarray, out: np.ndarray) -> None:
    """Join limbs to words, after a final reduction by the modulus if needed."""
    size = modulus.shape[0]
    mask = ~np.uint64(0) >> np.uint64(64 - radix)
    number = np.empty_like(modulus)
    for row in range(limbs.shape[0]):
        take = np.uint64(0 if is_below(limbs[row], modulus) else 1)
        borrow = np.uint64(0)
        for i in range(size):
            number[i] = (limbs[row, i] - take * modulus[i] - borrow) & mask
            borrow = np.uint64(limbs[row, i] < take * modulus[i] or limbs[row, i] - take * modulus[i] < borrow)
            at, rest = (radix * i) >> 6, np.uint64((radix * i) & 63)
            if at < out.shape[1]:
                out[row, at] |= number[i] << rest
            if rest and at + 1 < out.shape[1]:
                out[row, at + 1] |= number[i] >> (np.uint64(64) - rest)


class Powers(NamedTuple):
    """Powers of one number, tabulated: base^(d 2^(window i)) is row i 2^window + d."""

    modulus: Modulus
    window: int
    table: np.ndarray

    @classmethod
    def of(cls, squares: np.ndarray, window: int, modulus: Modulus, threads: int = 1) -> "Powers":
        """Tabulate, given base^(2^k) for all k as words; a table has ``window`` of them a digit.

        Entries double: those below 2^k times base^(2^k) are those from 2^k on.
        """
        windows, count = len(squares) // window, 1 << window
        steps = to_montgomery(squares, modulus, threads).reshape(windows, window, -1)
        table = np.empty((windows, count, steps.shape[2]), np.uint64)
        table[:, 0] = to_montgomery(to_words([1], squares.shape[1]), modulus)
        for k in range(window):
            known = table[:, : 1 << k].reshape(-1, steps.shape[2])
            step = np.repeat(steps[:, k], 1 << k, axis=0)
            table[:, 1 << k : 2 << k] = multiply(known, step, modulus, threads).reshape(windows, 1 << k, -1)
        return cls(modulus, window, table.reshape(windows * count, -1))

    @property
    def digits(self) -> int:
        """Digits of an exponent."""
        return len(self.table) >> self.window

    def raise_to(self, digits: np.ndarray, threads: int = 1) -> np.ndarray:
        """Return the powers whose exponents have these digits, lowest first: (exponents, digits)."""
        listed = digits + (np.arange(self.digits, dtype=np.int32) << self.window)
        return run_chains(
            self.table, listed.reshape(-1), self.digits * np.arange(len(digits) + 1), self.modulus, threads
        )
