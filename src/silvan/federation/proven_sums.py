"""Proofs that counts are the sum of what sites counted, by a key that sites share and the coordinator does not have.

A site adds to its counts c a few numbers modulo a prime: r c + s, where r (a random number for each count) and s (one
for each site) follow from the shared key and from what is counted. They add up with the counts, so that the coordinator
can send the sum T with r T + the sum of all s, and every site can check it. For another sum it would have to know r.
This is a one-time code: what is counted has a name, and under one name a site counts once.

The fingerprints by which a study is verified at its end (``privacy/fingerprints.py``) could not serve here: proofs are
added up with the counts, in counters of 64 bits, and several numbers below their prime of 61 bits would overflow one.

Whoever has the key can forge proofs: a site that colludes with the coordinator, and everybody where the key is public,
as in one process.
"""

import hashlib
from collections.abc import Sequence

import msgspec
import numpy as np

PRIME = (1 << 31) - 1

PARTS = 2
"""Numbers of a proof: a wrong sum passes with a probability of 2^-62."""


def prove(key: np.ndarray, name: Sequence[str], site: str, counts: np.ndarray) -> np.ndarray:
    """Return what a site adds to its counts: int64 (parts,)."""
    return (_inner(key, name, counts) + _own(key, name, site)) % PRIME


def is_proven(
    key: np.ndarray, name: Sequence[str], sites: Sequence[str], counts: np.ndarray, proof: np.ndarray
) -> bool:
    """Check that counts are the sum of what these sites counted."""
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
