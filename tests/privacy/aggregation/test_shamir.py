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
    """Shares by the definition: values of the polynomial that has the secret and random rows as coefficients."""
    shares = [[value(byte, place + 1) for byte in zip(*rows, strict=True)] for place in range(n)]
    return np.array(shares, np.uint8).reshape(n, len(rows[0]))


@given(cases())
def test_some_shares_and_the_secret_determine_the_others(case):
    n, rows, order = case
    shares, secret = shares_of(n, rows), np.frombuffer(rows[0], np.uint8)
    drawn, others = order[: len(rows) - 1], order[len(rows) - 1 :]
    at = [shamir.SECRET, *(place + 1 for place in drawn)]
    found = shamir.interpolate(at, np.stack([secret, *shares[drawn]]), [place + 1 for place in others])
    assert found.tolist() == shares[others].tolist()


@pytest.mark.parametrize("size", [1, 127, 128, 129, 300])
def test_long_secrets_are_shared_byte_by_byte(size):
    rng = np.random.default_rng(size)
    rows = np.frombuffer(rng.bytes(4 * size), np.uint8).reshape(4, size)
    at, wanted = [0, 3, 5, 7], [1, 2, 4, 6]
    bytewise = [shamir.interpolate(at, rows[:, i : i + 1], wanted)[:, 0] for i in range(size)]
    assert (shamir.interpolate(at, rows, wanted) == np.transpose(bytewise)).all()


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
    given_ = np.frombuffer(rng.bytes(170 * 16), np.uint8).reshape(170, 16)
    shares = np.concatenate([given_[1:], shamir.interpolate(range(170), given_, range(170, 256))])
    places = rng.permutation(255)[:170]
    assert shamir.join(places, shares[places]).tobytes() == given_[0].tobytes()
    assert len(np.unique(shares, axis=0)) == 255


def test_shares_that_are_determined_look_like_noise():
    """For a secret of zeros, each share by itself."""
    rng = np.random.default_rng(0)
    rows = np.frombuffer(bytes(20_000) + rng.bytes(40_000), np.uint8).reshape(3, 20_000)
    for share in shamir.interpolate([0, 1, 2], rows, [3, 4, 5]):
        counts = np.bincount(share, minlength=256)
        assert abs(counts - 20_000 / 256).max() < 6 * (20_000 / 256) ** 0.5


@pytest.mark.parametrize(("at", "wanted"), [((0, 1, 1), (2,)), ((0, 1), (1,)), ((0, 256), (1,)), ((0, 1), (256,))])
def test_invalid_elements(at, wanted):
    with pytest.raises(ValueError, match="twice, or none"):
        shamir.interpolate(at, np.zeros((len(at), 3), np.uint8), wanted)


@pytest.mark.parametrize("places", [(0, 0), (0, -1), (0, 255)])
def test_malformed_shares_are_refused(places):
    with pytest.raises(ValueError, match="twice, or none"):
        shamir.join(places, np.zeros((2, 3), np.uint8))
