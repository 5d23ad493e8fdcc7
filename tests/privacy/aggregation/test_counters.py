"""Replies as counters modulo 2^64: round trips, and sums that equal plain addition."""

import numpy as np
import pytest
from helpers.summing import Numbers, fields, of
from hypothesis import given
from hypothesis import strategies as st

from silvan.errors import RefusedError
from silvan.privacy.aggregation.counters import flatten, offsets, unflatten
from silvan.privacy.aggregation.words import WORD


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(fields(n), fields(n))), st.binary(min_size=32, max_size=32))
def test_round_trip_of_counters(both, seed):
    x, y = both
    n = len(x)
    flat = [flatten(Numbers(x=a, y=b), n) for a, b in zip(x, y, strict=True)]
    assert len({repr(layout) for layout, _ in flat}) == 1
    layout, hidden = flat[0][0], offsets(seed, flat[0][0].words())
    for _, counters in flat:
        hidden = hidden + counters
    got = unflatten(layout, hidden - offsets(seed, layout.words()), Numbers)
    for mine, parts in ((got.x, x), (got.y, y)):
        true = sum(part.astype(object) for part in parts)
        assert mine.dtype == parts[0].dtype.newbyteorder("<")
        assert mine.shape == parts[0].shape
        assert np.array_equal(mine.astype(object), true)


@pytest.mark.parametrize("value", [2**62, -(2**62), -(2**63), 2**63 - 1])
def test_a_part_whose_sum_might_overflow(value):
    with pytest.raises(RefusedError, match=r"Numbers\.x is too large to be added"):
        flatten(of(value, dtype=np.int64), 3)


def test_a_sum_too_large_for_its_type():
    layout, counters = flatten(of(2**31 - 1, -(2**31)), 3)
    assert unflatten(layout, counters, Numbers).x.tolist() == [2**31 - 1, -(2**31)]
    for over in (np.array([1, 0], WORD), np.array([0, 2**64 - 1], WORD)):
        with pytest.raises(RefusedError, match=r"Numbers\.x is too large when all are added"):
            unflatten(layout, counters + over, Numbers)


@pytest.mark.parametrize("dtype", [np.float32, np.bool_])
def test_only_integers_are_added(dtype):
    for part in (of(1, dtype=dtype), Numbers(x=3, y=of(1).y)):
        with pytest.raises(RefusedError, match=r"Numbers\.x cannot be summed"):
            flatten(part, 3)
