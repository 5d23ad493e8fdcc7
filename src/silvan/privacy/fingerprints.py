"""Fingerprints of sums: two numbers that a part of a sum is reduced to, and that add up as the parts do.

A part is read as the coefficients of a polynomial, all counters of all fields one after the other, and evaluated modulo
the prime p = 2^61 - 1 at two points that only the sites know. The fingerprint of a sum is the sum of the fingerprints
of its parts. A sum that differs from the true one in any way has another fingerprint at a point unless that point is a
root of the difference. With n counters that has at most n roots: a chance of n / 2^61, and its square for two points.

Differences are found in full where no counter is 2^60 or larger: neither in the sum nor, for n sites, 2^60 / n in a
part. A fingerprint says whether that is so.
"""

import hmac
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from silvan.util.kernels import njit

PRIME = (1 << 61) - 1

ROOM = 1 << 60
"""No counter of a sum, nor all parts of one together, may be so large: or it could hide a difference of p."""

Points = tuple[int, int]

_P, _P_BITS = np.uint64(PRIME), np.uint64(61)
_LOW, _LOW_BITS = np.uint64((1 << 31) - 1), np.uint64(31)
_MIDDLE, _MIDDLE_BITS = np.uint64((1 << 30) - 1), np.uint64(30)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_BLOCK = 1024
"""Counters whose products with powers are added up at a time."""

_SMALL = 1 << 21
"""A block of counters below this, times 31 bits of a power each, adds up in 63 bits."""

_SIGN = np.int64(63)
_PIECE = 1 << 16


class Fingerprint(NamedTuple):
    """A part, or a sum, at both points; ``largest`` is a bound on its counters, without their signs."""

    values: tuple[int, int]
    largest: int


def points_of(key: bytes, study: str) -> Points:
    """Derive the two points of a study from the key that its sites share."""
    words = hmac.digest(key, b"points of " + study.encode(), "sha512")
    return int.from_bytes(words[:32], "big") % PRIME, int.from_bytes(words[32:], "big") % PRIME


def fingerprint_of(reply: msgspec.Struct, points: Points) -> Fingerprint | None:
    """Return the fingerprint of a part or a sum, all of whose fields are arrays of integers; None if one is not."""
    powers = _powers(points)
    values, start, largest = np.zeros(2, np.uint64), 0, 0
    for name in reply.__struct_fields__:
        array: Any = getattr(reply, name)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
            return None
        flat = np.ascontiguousarray(array).reshape(-1)
        if flat.dtype == np.uint64:
            largest = max(largest, int(flat.max(initial=0)))
        for first in range(0, len(flat), _PIECE):
            counters = flat[first : first + _PIECE].astype(np.int64, copy=False)
            at = np.array([pow(point, start, PRIME) for point in points], np.uint64)
            largest = max(largest, int(_add_up(counters, *powers, at, values)))
            start += len(counters)
    return Fingerprint((int(values[0]), int(values[1])), largest)


@lru_cache(maxsize=4)
def _powers(points: Points) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first powers of the points, in a low and a high part of 31 and 30 bits, and those of a whole block."""
    rows = []
    for point in points:
        row = [point]
        while len(row) < _BLOCK:
            row.append(row[-1] * point % PRIME)
        rows.append(row)
    powers = np.array(rows, np.int64)
    return powers & int(_LOW), powers >> 31, powers[:, -1].astype(np.uint64)


@njit(nogil=True, cache=True)
def _reduce(number: np.uint64) -> np.uint64:
    """Reduce a number modulo p: 2^61 counts as 1."""
    number = (number & _P) + (number >> _P_BITS)
    return number - _P if number >= _P else number


@njit(nogil=True, cache=True)
def _times(a: np.uint64, b: np.uint64) -> np.uint64:
    """Multiply two numbers below p, modulo p, in halves of 31 bits."""
    a_high, a_low, b_high, b_low = a >> _LOW_BITS, a & _LOW, b >> _LOW_BITS, b & _LOW
    middle = a_high * b_low + a_low * b_high
    folded = (middle >> _MIDDLE_BITS) + ((middle & _MIDDLE) << _LOW_BITS)
    return _reduce((a_high * b_high << _ONE) + folded + a_low * b_low)


@njit(nogil=True, cache=True)
def _signed(number: np.int64) -> np.uint64:
    """Reduce a number with a sign modulo p."""
    if number >= 0:
        return _reduce(np.uint64(number))
    rest = _reduce(np.uint64(-number))
    return _P - rest if rest > _ZERO else rest


@njit(nogil=True, cache=True)
def _add_up(
    counters: np.ndarray, low: np.ndarray, high: np.ndarray, step: np.ndarray, at: np.ndarray, values: np.ndarray
) -> np.int64:
    """Add counters times powers of both points, the first of them ``at``, to ``values``; return the largest counter."""
    largest = np.int64(0)
    for start in range(0, len(counters), _BLOCK):
        stop = min(start + _BLOCK, len(counters))
        bits, size = np.int64(0), np.int64(0)
        for i in range(start, stop):
            bits |= counters[i]
            size |= counters[i] ^ (counters[i] >> _SIGN)  # of a negative number, one less without its sign
        if size >= largest:
            largest = size + np.int64(1) if size < np.int64(ROOM) else np.int64(ROOM)
        for k in range(2):
            if bits != 0:  # most counters of histograms are zero
                part = _block(counters, low[k], high[k], start, stop, size < _SMALL)
                values[k] = _reduce(values[k] + _times(part, at[k]))
            at[k] = _times(at[k], step[k])
    return largest


@njit(nogil=True, cache=True)
def _block(counters: np.ndarray, low: np.ndarray, high: np.ndarray, start: int, stop: int, small: Any) -> np.uint64:
    """Return counters times the first powers of a point, added up; where all are small, without a remainder each."""
    if small:
        lower, upper = np.int64(0), np.int64(0)
        for i in range(start, stop):
            lower += counters[i] * low[i - start]
            upper += counters[i] * high[i - start]
        return _reduce(_signed(lower) + _times(_signed(upper), _LOW + _ONE))
    total = _ZERO
    for i in range(start, stop):
        power = np.uint64(low[i - start]) + (np.uint64(high[i - start]) << _LOW_BITS)
        total = _reduce(total + _times(_signed(counters[i]), power))
    return total
