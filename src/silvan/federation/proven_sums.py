"""Proofs that counts are the sum of the sites' counts, with a key that the coordinator does not have.

With its counts c a site sends a few numbers modulo a prime: r c + s. Both r (random, one per count) and s (one per
site) are derived from the shared key and from what is counted. These numbers add up like the counts. So the coordinator
can send the sum T together with r T plus the sum of all s, and every site can check it. To forge another sum it would
need r. This is a one-time code: each set of counts has a name, and a site counts once under a name.

The fingerprints that verify a finished study (``privacy/fingerprints.py``) do not work here: proofs are summed with the
counts in 64-bit counters, and several numbers below their 61-bit prime would overflow.

Anybody with the key can forge proofs: a site that colludes with the coordinator, or anybody at all if the key is
public, as in one process.
"""

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np

PRIME = (1 << 31) - 1

PARTS = 2
"""Numbers in a proof: a wrong sum passes with probability 2^-62."""


def prove(key: np.ndarray, name: Sequence[str], site: str, counts: np.ndarray) -> np.ndarray:
    """Return the proof that a site sends with its counts: int64 (parts,)."""
    return (_inner(key, name, counts) + _own(key, name, site)) % PRIME


def is_proven(
    key: np.ndarray, name: Sequence[str], sites: Sequence[str], counts: np.ndarray, proof: np.ndarray
) -> bool:
    """Check that counts are the sum of these sites' counts."""
    wanted = _inner(key, name, counts) + sum(_own(key, name, site) for site in sites)
    return proof.shape == (PARTS,) and len(set(sites)) == len(sites) and bool((wanted % PRIME == proof % PRIME).all())


def _inner(key: np.ndarray, name: Sequence[str], counts: np.ndarray) -> np.ndarray:
    """Return the inner products of counts, (columns, cells), with random numbers, modulo the prime."""
    total = np.zeros(PARTS, np.int64)
    for column, row in enumerate(counts.astype(np.int64)):
        random = _numbers(key, [*name, "column", str(column)], len(row))
        total += (random * (row % PRIME) % PRIME).sum(axis=1)
    return total % PRIME


def _own(key: np.ndarray, name: Sequence[str], site: str) -> np.ndarray:
    return _numbers(key, [*name, "site", site], 1)[:, 0]


def _numbers(key: np.ndarray, name: Sequence[str], n: int) -> np.ndarray:
    """Derive numbers below the prime: int64 (parts, n)."""
    seed = b"silvan proven sum\0" + key.astype("<u8").tobytes() + msgspec.json.encode(list(name))
    words = np.frombuffer(hashlib.shake_256(seed).digest(4 * PARTS * n), "<u4").astype(np.int64)
    return words.reshape(PARTS, n) % PRIME
