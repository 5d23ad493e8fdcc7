"""Shamir's secret sharing, byte by byte over the field of 256 elements.

A secret is the value at zero of a polynomial drawn at random, a share its value at a place of its own: as many
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

_MODULUS = 0x11B  # x^8 + x^4 + x^3 + x + 1


def split(secret: np.ndarray, n: int, threshold: int, random: bytes) -> np.ndarray:
    """Make n shares of a secret, of which ``threshold`` recover it: uint8 (n, bytes of the secret).

    ``random`` are the other coefficients: (threshold - 1) times as many bytes as the secret has, never used again.
    """
    if not 1 <= threshold <= n <= MOST:
        raise ValueError(f"a secret cannot be split into {n} shares of which {threshold} are enough")
    drawn = np.frombuffer(random, np.uint8).reshape(threshold - 1, secret.size)
    return _combine(_powers(n, threshold), np.concatenate([secret.reshape(1, -1), drawn]))


def join(places: Sequence[int], shares: np.ndarray) -> np.ndarray:
    """Recover a secret from as many shares as are enough, uint8 (shares, bytes), and their places from 0 on."""
    return _combine(_at_zero(tuple(places)), shares)[0]


@njit(nogil=True, cache=True)
def _combine(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Multiply a public matrix with a secret one."""
    out = np.zeros((len(weights), rows.shape[1]), np.uint8)
    doubled = rows.copy()  # times 1, 2, 4 ...
    for bit in range(8):
        for j in range(len(rows)):
            row = doubled[j]
            for i in range(len(weights)):
                if weights[i, j] >> bit & 1:
                    out[i] ^= row
            doubled[j] = (row << 1) ^ ((row >> 7) * np.uint8(_MODULUS & 0xFF))
    return out


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


@lru_cache
def _powers(n: int, threshold: int) -> np.ndarray:
    """Return the weights of coefficients in shares: (n, threshold)."""
    powers, exponents = _tables()
    weights = powers[exponents[1 : n + 1, None] * np.arange(threshold) % MOST]
    weights.setflags(write=False)
    return weights


@lru_cache
def _at_zero(places: tuple[int, ...]) -> np.ndarray:
    """Return the weights of shares in the secret (Lagrange's, at zero): (1, shares)."""
    powers, exponents = _tables()
    x = np.array(places) + 1
    if len(np.unique(x)) < len(x) or x.min() < 1 or x.max() > MOST:
        raise ValueError("a share is there twice, or none")
    apart = exponents[x[:, None] ^ x[None, :]]
    np.fill_diagonal(apart, 0)
    weights = powers[(exponents[x].sum() - exponents[x] - apart.sum(axis=1)) % MOST][None]
    weights.setflags(write=False)
    return weights
