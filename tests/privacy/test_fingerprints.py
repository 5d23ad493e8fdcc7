"""Fingerprints of sums: equal to a naive version, additive, and changed by any difference."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from silvan.federation.message import Reply
from silvan.privacy.fingerprints import PRIME, ROOM, fingerprint_of, points_of

POINTS = points_of(b"k" * 32, "a study")


class Counts(Reply, frozen=True, kw_only=True):
    """Two fields of counters."""

    first: np.ndarray
    second: np.ndarray


def naive(reply, points):
    """The same with Python's integers, counter by counter."""
    counters = [int(c) for name in reply.__struct_fields__ for c in getattr(reply, name).reshape(-1)]
    return tuple(sum(c * pow(point, i + 1, PRIME) for i, c in enumerate(counters)) % PRIME for point in points)


def counts(first, second=()):
    return Counts(first=np.asarray(first), second=np.asarray(second, np.int64))


TYPES = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64]


@given(st.data())
def test_the_kernel_equals_the_naive_version(data):
    """For every width and sign, every size of counters, across the end of a block and of a field."""
    dtype = data.draw(st.sampled_from(TYPES))
    some = hnp.arrays(dtype, hnp.array_shapes(max_dims=2, max_side=9))
    reply = counts(data.draw(some), data.draw(hnp.arrays(np.int64, st.integers(0, 5))))
    assert fingerprint_of(reply, POINTS).values == naive(reply, POINTS)


@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 3000])
@pytest.mark.parametrize("size", [1, 1 << 20, 1 << 22, 1 << 40, 1 << 62])
def test_over_the_ends_of_blocks(n, size):
    draw = np.random.default_rng(n)
    reply = counts(draw.integers(-size, size, n), draw.integers(0, size, 7))
    assert fingerprint_of(reply, POINTS).values == naive(reply, POINTS)


def test_over_the_end_of_a_piece():
    first = np.zeros((1 << 16) + 5, np.uint16)
    first[[0, 1023, 1024, -6, -1]] = 1, 2, 3, 4, 5
    assert fingerprint_of(counts(first, [6]), POINTS).values == naive(counts(first, [6]), POINTS)


def test_fingerprints_add_up():
    draw = np.random.default_rng(1)
    parts = [counts(draw.integers(0, 1 << 30, (40, 50)), draw.integers(-9, 9, 30)) for _ in range(5)]
    whole = Counts(first=sum(p.first for p in parts), second=sum(p.second for p in parts))
    each = [fingerprint_of(part, POINTS).values for part in parts]
    assert fingerprint_of(whole, POINTS).values == tuple(sum(of) % PRIME for of in zip(*each, strict=True))


def test_one_changed_count_in_a_million_changes_every_point():
    first = np.random.default_rng(2).integers(0, 1000, 1_000_000)
    before = fingerprint_of(counts(first), POINTS).values
    for at in (0, 517_213, 999_999):
        first[at] += 1
        after = fingerprint_of(counts(first), POINTS).values
        assert all(a != b for a, b in zip(before, after, strict=True))
        first[at] -= 1


def test_swapped_counts_are_detected():
    before = fingerprint_of(counts([1, 2, 3], [4]), POINTS).values
    for other in (counts([2, 1, 3], [4]), counts([1, 2, 4], [3]), counts([0, 1, 2], [3])):
        assert fingerprint_of(other, POINTS).values != before


def test_even_differences_are_detected():
    """Modulo 2^64, differences by large powers of two vanish in products with even numbers; modulo a prime none do."""
    before = fingerprint_of(counts(np.zeros(8, np.int64)), (2, 4)).values
    other = np.zeros(8, np.int64)
    other[[1, 6]] = 1 << 58, 1 << 57
    assert fingerprint_of(counts(other), (2, 4)).values != before


@pytest.mark.parametrize("value", [ROOM, -ROOM - 1, -(1 << 63)])
def test_counters_that_could_hide_a_difference_are_noticed(value):
    """A difference of p vanishes modulo p, so the comparison needs a bound on counters."""
    honest, lied = counts([value]), counts([value + PRIME])
    assert fingerprint_of(honest, POINTS).values == fingerprint_of(lied, POINTS).values
    assert max(fingerprint_of(one, POINTS).largest for one in (honest, lied)) >= ROOM
    assert fingerprint_of(counts([ROOM // 2 - 1, 1 - ROOM // 2]), POINTS).largest < ROOM
    assert fingerprint_of(Counts(first=np.array([1 << 63], np.uint64), second=np.array([0])), POINTS).largest >= ROOM


def test_points_depend_on_key_and_study():
    assert len({*POINTS, *points_of(b"k" * 32, "another"), *points_of(b"o" * 32, "a study")}) == 6


def test_only_whole_numbers_have_fingerprints():
    class Words(msgspec.Struct):
        texts: list[str]

    assert fingerprint_of(Words(["a"]), POINTS) is None
    assert fingerprint_of(counts(np.array([0.5])), POINTS) is None
