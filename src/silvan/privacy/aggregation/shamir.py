"""Shamir's secret sharing, byte by byte over the field of 256 elements.

A secret is the value at zero of a random polynomial, a share its value at a place of its own: as many
shares as the polynomial has coefficients recover it, fewer fit every secret equally well. Places are public and
secrets are not: all that is done to secrets is shifts and exclusive ors that the places choose, so the work and
the memory that is touched are the same for every secret.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from silvan.util.kernels import njit

MOST = 255
"""Most shares of a secret: the number of elements of the field besides zero, where the secret is."""

SECRET = 0
"""The element where the secret is; the share of place i is at element i + 1."""

_MODULUS = 0x11B  # x^8 + x^4 + x^3 + x + 1
_PIECE = 64  # words of a row that are worked on together: fewer take longer, more are not in the cache


def join(places: Sequence[int], shares: np.ndarray) -> np.ndarray:
    """Recover a secret from as many shares as are enough, uint8 (shares, bytes), and their places from 0 on."""
    return interpolate([place + 1 for place in places], shares, [SECRET])[0]


def interpolate(at: Sequence[int], rows: np.ndarray, wanted: Sequence[int]) -> np.ndarray:
    """Evaluate the polynomial of least degree through rows, uint8 (elements, bytes), at other elements.

    A secret, at ``SECRET``, and random shares at some places determine the shares of all other places: whoever can
    draw such a share need not be sent it. As many rows as ``at`` has elements recover the secret.
    """
    return _combine(_weights(tuple(at), tuple(wanted)), rows)


def _combine(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Multiply a public matrix with a secret one."""
    (n, size), words = rows.shape, _PIECE * 8
    pieces = np.zeros((n, -(-size // words), words), np.uint8)
    pieces.reshape(n, -1)[:, :size] = rows
    out = _multiply(weights, pieces.view(np.uint64))
    return out.view(np.uint8).reshape(len(weights), -1)[:, :size]


@njit(nogil=True, cache=True)
def _multiply(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Multiply with rows of words, eight elements in each: uint64 (rows, pieces, words of a piece).

    A weight times a row is the sum of two of 32 multiples of the row: one for each half of the weight's bits.
    """
    out = np.zeros((len(weights), *rows.shape[1:]), np.uint64)
    sums = np.zeros((len(weights), _PIECE), np.uint64)
    low, high = np.zeros((16, _PIECE), np.uint64), np.zeros((16, _PIECE), np.uint64)
    for piece in range(rows.shape[1]):  # what is worked on stays in the processor's cache
        sums[:] = 0
        for j in range(len(rows)):
            for k in range(_PIECE):
                word = rows[j, piece, k]
                for bit in range(4):
                    low[1 << bit, k] = word
                    word = _double(word)
                for bit in range(4):
                    high[1 << bit, k] = word
                    word = _double(word)
            for top in (2, 4, 8):
                for i in range(1, top):
                    low[top + i] = low[top] ^ low[i]
                    high[top + i] = high[top] ^ high[i]
            for i in range(len(weights)):
                near, far = weights[i, j] & 15, weights[i, j] >> 4
                for k in range(_PIECE):
                    sums[i, k] ^= low[near, k] ^ high[far, k]
        out[:, piece] = sums
    return out


@njit(nogil=True, cache=True)
def _double(word: np.uint64) -> np.uint64:
    """Double the eight elements in a word."""
    top = word >> np.uint64(7) & np.uint64(0x0101010101010101)
    return (word & np.uint64(0x7F7F7F7F7F7F7F7F)) << np.uint64(1) ^ top * np.uint64(_MODULUS & 0xFF)


@lru_cache
def _tables() -> tuple[np.ndarray, np.ndarray]:
    """List the powers of 3, which are all elements but zero, twice over; and the exponent of every element."""
    powers, element = np.zeros(2 * MOST, np.uint8), 1
    for i in range(MOST):
        powers[i] = powers[i + MOST] = element
        element ^= element << 1
        element ^= _MODULUS * (element >> 8)
    exponents = np.zeros(MOST + 1, np.int64)
    exponents[powers[:MOST]] = np.arange(MOST)
    return powers, exponents


@lru_cache(maxsize=2 * MOST)
def _weights(at: tuple[int, ...], wanted: tuple[int, ...]) -> np.ndarray:
    """Return the weights of some elements' values in those of others (Lagrange's): (wanted, at)."""
    powers, exponents = _tables()
    x, y = np.array(at), np.array(wanted)
    every = np.concatenate([x, y])
    if len(np.unique(every)) < len(every) or every.min() < SECRET or every.max() > MOST:
        raise ValueError("a share is there twice, or none")
    apart = exponents[x[:, None] ^ x[None, :]]
    np.fill_diagonal(apart, 0)
    away = exponents[y[:, None] ^ x[None, :]]
    weights = powers[(away.sum(axis=1, keepdims=True) - away - apart.sum(axis=1)) % MOST]
    weights.setflags(write=False)
    return weights
