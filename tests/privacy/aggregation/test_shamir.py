"""Shamir's shares: enough of them give the secret, fewer fit every secret; compared with naive arithmetic."""

from itertools import combinations

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import given
from hypothesis import strategies as st

from silvan.privacy.aggregation import shamir


def times(a, b):
    """Multiplies in the field, bit by bit."""
    product = 0
    while b:
        product ^= a * (b & 1)
        a, b = a << 1, b >> 1
        a ^= 0x11B * (a >> 8)
    return product


def value(coefficients, x):
    """Evaluates a polynomial by Horner's rule."""
    result = 0
    for c in reversed(coefficients):
        result = times(result, x) ^ c
    return result


@st.composite
def cases(draw, most=12):
    n = draw(st.integers(1, most))
    enough = draw(st.integers(1, n))
    size = draw(st.integers(1, 9))
    bytes_ = st.binary(min_size=size, max_size=size)
    return n, draw(st.lists(bytes_, min_size=enough, max_size=enough)), draw(st.permutations(range(n)))


def shares_of(n, rows):
    secret = np.frombuffer(rows[0], np.uint8)
    return shamir.split(secret, len(rows), b"".join(rows[1:]), n)


@given(cases())
def test_shares_are_values_of_the_polynomial(case):
    n, rows, _ = case
    expected = [[value(byte, place + 1) for byte in zip(*rows, strict=True)] for place in range(n)]
    assert shares_of(n, rows).tolist() == expected


@pytest.mark.parametrize("size", [1, 127, 128, 129, 300])
def test_long_secrets_are_shared_byte_by_byte(size):
    rng = np.random.default_rng(size)
    rows = [rng.bytes(size) for _ in range(4)]
    bytewise = [shares_of(7, [row[i : i + 1] for row in rows])[:, 0] for i in range(size)]
    assert (shares_of(7, rows) == np.transpose(bytewise)).all()


@given(cases())
def test_one_share_is_that_of_its_place(case):
    n, rows, _ = case
    secret, drawn = np.frombuffer(rows[0], np.uint8), b"".join(rows[1:])
    alone = [shamir.share(secret, len(rows), drawn, place).tolist() for place in range(n)]
    assert alone == shares_of(n, rows).tolist()


@given(cases())
def test_enough_shares_give_the_secret(case):
    n, rows, order = case
    places = order[: len(rows)]
    shares = shares_of(n, rows)
    assert shamir.join(places, shares[places]).tobytes() == rows[0]


@given(cases(), st.integers(1, 255))
def test_fewer_shares_fit_every_secret_equally(case, other):
    """For each other secret exactly one polynomial goes through the same shares: the last coefficient compensates."""
    n, rows, order = case
    if len(rows) == 1:
        return
    places = order[: len(rows) - 1]
    # differ by a multiple of the polynomial that is zero at all known places
    zero = [other]
    for place in places:
        shifted, scaled = [0, *zero], [times(c, place + 1) for c in zero] + [0]
        zero = [a ^ b for a, b in zip(shifted, scaled, strict=True)]
    changed = [bytes(b ^ z for b in row) for row, z in zip(rows, zero, strict=True)]
    assert changed[0] != rows[0]
    assert (shares_of(n, changed)[places] == shares_of(n, rows)[places]).all()


@given(st.binary(min_size=4, max_size=4), st.integers(0, 10))
@examples(20)
def test_one_share_too_few_gives_something_else(secret, seed):
    rng = np.random.default_rng(seed)
    shares = shares_of(6, [secret, *(rng.bytes(4) for _ in range(3))])
    got = [shamir.join(places, shares[list(places)]).tobytes() for places in combinations(range(6), 3)]
    assert got.count(secret) <= 2  # one in 2^32 each
    assert all(shamir.join(p, shares[list(p)]).tobytes() == secret for p in combinations(range(6), 4))


def test_as_many_shares_as_there_can_be():
    rng = np.random.default_rng(0)
    rows = [rng.bytes(64) for _ in range(170)]
    shares = shares_of(255, rows)
    places = rng.permutation(255)[:170]
    assert shamir.join(places, shares[places]).tobytes() == rows[0]
    assert len(np.unique(shares, axis=0)) == 255


def test_shares_look_like_noise():
    """For a secret of zeros, each share by itself."""
    rng = np.random.default_rng(0)
    shares = shares_of(5, [bytes(20_000), *(rng.bytes(20_000) for _ in range(2))])
    for share in shares:
        counts = np.bincount(share, minlength=256)
        assert abs(counts - 20_000 / 256).max() < 6 * (20_000 / 256) ** 0.5


@pytest.mark.parametrize(("n", "enough"), [(3, 4), (256, 3), (3, 0), (0, 0)])
def test_impossible_shares(n, enough):
    with pytest.raises(ValueError, match="cannot be split"):
        shamir.split(np.zeros(3, np.uint8), enough, bytes(3 * max(enough - 1, 0)), n)


@pytest.mark.parametrize("places", [(0, 0), (0, -1), (0, 255)])
def test_malformed_shares_are_refused(places):
    with pytest.raises(ValueError, match="twice, or none"):
        shamir.join(places, np.zeros((2, 3), np.uint8))
