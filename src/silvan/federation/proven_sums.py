"""Proofs of sums: five numbers that each part of a sum carries, and that add up as the parts do.

A part is read as the coefficients of a polynomial, all counters of all fields one after the other, and evaluated modulo
the prime p = 2^61 - 1 at two points that follow from a key of the sites. To each of the two values a site adds a number
of its own, which follows from the key and from all that the sum is about. So the coordinator receives, with each sum,
its values at two points that it does not know, and for another sum it would have to know them: with n counters, others
fit with a chance of n / 2^61, and its square for two points. Whoever has the key can check: sites while the study runs
(``describe.py``), and everybody once it is closed and its sites reveal the key (``privacy/close_study.py``).

The numbers of a site are for one part: under one name a site counts once. A proof reveals nothing that the sum does
not. A site that colludes with the coordinator knows the key, and can forge proofs.

Differences are found in full where no counter is 2^60 or larger: neither in the sum nor, for n sites, 2^60 / n in a
part. The fifth number says in how many parts one is; it is proved like a last counter.
"""

import hmac
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from silvan.federation.message import PROOF, Reply, SummedReply
from silvan.util.kernels import njit

PRIME = (1 << 61) - 1

ROOM = 1 << 60
"""Limit on counters of a sum and on the total of their parts: larger ones could hide a difference of p."""

Points = tuple[int, int]

R = TypeVar("R", bound=SummedReply)

_P, _P_BITS = np.uint64(PRIME), np.uint64(61)
_LOW, _LOW_BITS = np.uint64((1 << 31) - 1), np.uint64(31)
_MIDDLE, _MIDDLE_BITS = np.uint64((1 << 30) - 1), np.uint64(30)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_BLOCK = 1024
"""Number of counters whose products with powers are added at a time."""

_SMALL = 1 << 21
"""A block of counters below this, times 31 bits of a power each, adds up in 63 bits."""

_SIGN = np.int64(63)
_PIECE = 1 << 16


class SumName(NamedTuple):
    """What a sum is about, but for the requests to its sites: its study and task, and the sites in it."""

    study: str
    task: str
    over: list[str]


class Fingerprint(NamedTuple):
    """A part, or a sum, at both points; ``largest`` is a bound on its counters, without their signs."""

    values: Points
    counters: int
    largest: int

    def with_last(self, counter: int, points: Points) -> list[int]:
        """Return the values with one more counter."""
        place = self.counters + 1
        return [value + counter * pow(point, place, PRIME) for value, point in zip(self.values, points, strict=True)]


def prove(key: bytes, name: SumName, asked: str, site: str, part: R) -> R:
    """Return a site's part of a sum with its proof; ``asked`` is the digest of the request that it answers."""
    points = points_of(key, name.study)
    found = fingerprint_of(part, points)
    large = int(found.largest * len(name.over) >= ROOM)
    proof: list[int] = []
    for value, own in zip(found.with_last(large, points), _own(key, name, asked, site), strict=True):
        proof += divmod((value + own) % PRIME, 1 << int(_LOW_BITS))
    return msgspec.structs.replace(part, proof=np.array([*proof, large], np.int64))


def is_proven(key: bytes, name: SumName, asked: Mapping[str, str], total: Reply) -> bool | None:
    """Whether a sum is that of what its sites answered, ``asked`` by site; None if its counters are too large to tell.

    Both parts of a number were below 2^31, so that sums of them fit a counter.
    """
    if not isinstance(total, SummedReply) or total.proof.shape != (5,):
        return False
    *proof, large = total.proof.tolist()
    points = points_of(key, name.study)
    found = fingerprint_of(total, points)
    wanted = found.with_last(large, points)
    for site, digest in asked.items():
        wanted = [value + own for value, own in zip(wanted, _own(key, name, digest, site), strict=True)]
    given = [(high << int(_LOW_BITS)) + low for high, low in (proof[:2], proof[2:])]
    if any((a - b) % PRIME for a, b in zip(given, wanted, strict=True)):
        return False
    return None if large else found.largest < ROOM


def points_of(key: bytes, study: str) -> Points:
    """Derive the two points of a study from the key that its sites share."""
    return _two_numbers(key, b"points of " + study.encode())


def _own(key: bytes, name: SumName, asked: str, site: str) -> Points:
    """Return what a site adds to the values of its part, so that they are known to nobody without the key."""
    return _two_numbers(key, b"part of " + msgspec.json.encode([name.study, name.task, sorted(name.over), asked, site]))


def _two_numbers(key: bytes, about: bytes) -> Points:
    words = hmac.digest(key, about, "sha512")
    return int.from_bytes(words[:32], "big") % PRIME, int.from_bytes(words[32:], "big") % PRIME


def fingerprint_of(reply: SummedReply, points: Points) -> Fingerprint:
    """Return the values of a part or a sum at both points."""
    powers = _powers(points)
    values, start, largest = np.zeros(2, np.uint64), 0, 0
    for name in reply.__struct_fields__:
        array: Any = getattr(reply, name)
        if name == PROOF:
            continue
        flat = np.ascontiguousarray(array).reshape(-1)
        if flat.dtype == np.uint64:
            largest = max(largest, int(flat.max(initial=0)))
        for first in range(0, len(flat), _PIECE):
            counters = flat[first : first + _PIECE].astype(np.int64, copy=False)
            at = np.array([pow(point, start, PRIME) for point in points], np.uint64)
            largest = max(largest, int(_add_up(counters, *powers, at, values)))
            start += len(counters)
    return Fingerprint((int(values[0]), int(values[1])), start, largest)


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
