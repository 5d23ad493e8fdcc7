"""Proofs of sums: what sites counted passes, and nothing else does."""

import numpy as np
import pytest

from silvan.federation.proven_sums import PRIME, is_proven, prove

KEY, NAME, SITES = np.array([3, 4], np.uint64), ["study", "", "ward"], ["a", "b", "c"]


@pytest.fixture
def counted():
    rng = np.random.default_rng(0)
    counts = {site: rng.integers(0, 50, (2, 100)).astype(np.int32) for site in SITES}
    proof = sum(prove(KEY, NAME, site, own) for site, own in counts.items())
    return sum(counts.values()), proof


def test_the_sum_of_what_sites_counted_is_proven(counted):
    assert is_proven(KEY, NAME, SITES, *counted)


def test_nothing_else_is_proven(counted):
    counts, proof = counted
    more = counts.copy()
    more[1, 7] += 1
    forged = [
        (NAME, SITES, more, proof),
        (NAME, SITES, more, proof + 1),
        (NAME, SITES, 2 * counts, 2 * proof),  # a multiple
        (NAME, [*SITES, *SITES], 2 * counts, 2 * proof),
        (NAME, SITES, 0 * counts, 0 * proof),
        (NAME, SITES[:2], counts, proof),
        (NAME, SITES, counts[::-1], proof),  # the columns changed places
        (["study", "another task", "ward"], SITES, counts, proof),
        (NAME, SITES, counts, proof[:1]),
    ]
    assert [case for case in forged if is_proven(KEY, *case)] == []
    assert not is_proven(KEY + np.uint64(1), NAME, SITES, counts, proof)
    assert is_proven(KEY, NAME, SITES, counts, proof % PRIME)  # sums may wrap


def test_a_proof_reveals_nothing_about_the_counts():
    """A number under a key that is new for every site and every count."""
    zero, one = np.zeros((1, 10), np.int32), np.ones((1, 10), np.int32)
    proofs = [prove(KEY, [*NAME, str(i)], "a", counts).tolist() for i in range(3) for counts in (zero, one)]
    assert len({tuple(proof) for proof in proofs}) == len(proofs)
