"""Applying splits: the kernel compared with masks, and rows are neither lost nor reordered."""

import numpy as np
from helpers.naive_kernels import partition_naive
from hypothesis import given
from hypothesis import strategies as st

from silvan.tree.partition import partition
from silvan.tree.split import Splits


@st.composite
def nodes(draw):
    """Rows of some nodes, gaps between them, and a split of each."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_features = draw(st.integers(1, 4))
    codes = rng.integers(0, draw(st.sampled_from([2, 6, 256])), (60, n_features)).astype(np.uint8)
    order = rng.permutation(60).astype(np.uint32)
    ends = np.sort(rng.integers(0, 61, 2 * draw(st.integers(1, 5))))
    starts, stops = ends[::2], ends[1::2]
    splits = Splits.empty(len(starts), 2)
    splits.feature[:] = rng.integers(0, n_features, len(starts))
    splits.bin[:] = rng.integers(0, 256, len(starts))
    splits.missing_left[:] = rng.random(len(starts)) < 0.5
    splits.words[:] = rng.integers(0, 2**64, splits.words.shape, np.uint64)
    which = np.flatnonzero(rng.random(len(starts)) < 0.8)
    return codes, order, starts, stops, splits, rng.random(n_features) < 0.5, which


@given(nodes())
def test_partition(case):
    codes, order, starts, stops, splits, categorical, which = case
    expected = order.copy()
    middles = []
    for node in which:
        left, right = partition_naive(codes, order[starts[node] : stops[node]], splits, node, categorical)
        expected[starts[node] : stops[node]] = np.concatenate([left, right])
        middles.append(starts[node] + len(left))
    spare = np.empty(int((stops - starts).max()) + 1, np.uint32)
    found = partition(codes, order, starts, stops, splits, categorical, which, spare)
    np.testing.assert_array_equal(found, middles)
    np.testing.assert_array_equal(order, expected)  # the order within a side is kept, other nodes are unchanged


def test_where_rows_go():
    codes = np.array([[0], [1], [2], [3]], np.uint8)
    for missing_left, expected in ((True, [0, 1, 2, 3]), (False, [1, 2, 0, 3])):
        splits = Splits.empty(1, 2)
        splits.feature[0], splits.bin[0], splits.missing_left[0] = 0, 2, missing_left
        order, zero = np.arange(4, dtype=np.uint32), np.zeros(1, np.int64)
        numeric = np.zeros(1, np.bool_)
        middle = partition(codes, order, zero, zero + 4, splits, numeric, zero, np.empty(5, np.uint32))
        assert order.tolist() == expected
        assert middle.tolist() == [3 if missing_left else 2]
