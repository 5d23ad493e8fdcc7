"""Partitions as bits: the kernels compared with masks, rows are neither lost nor reordered, and bits are counted."""

import numpy as np
import pytest
from helpers.naive_kernels import pack_sides_naive, route_naive
from hypothesis import given
from hypothesis import strategies as st

from silvan.data.bins.bins import make_bins
from silvan.data.schema import Feature, Schema
from silvan.tree.node_rows import Binned, NodeRows, split_evenly
from silvan.tree.partition import (
    byte_starts,
    count_sides,
    is_bit_per_row,
    pack_sides,
    route,
    spread,
)
from silvan.tree.sampling import list_rows, make_key, rows_of_trees
from silvan.tree.split import Splits


def table(rng, n_rows, n_features, n_codes=256):
    """Random bins; every other column is categorical."""
    features = [
        Feature(f"x{f}", "categorical", categories=tuple(map(str, range(254)))) if f % 2 else Feature(f"x{f}")
        for f in range(n_features)
    ]
    schema = Schema.of(features)
    bins = make_bins(
        schema, [np.zeros(0, np.float32) if f.categorical else np.arange(254, dtype=np.float32) for f in features]
    )
    codes = rng.integers(0, n_codes, (n_rows, n_features)).astype(np.uint8)
    return Binned(codes, np.zeros(n_rows, np.uint16), rng.integers(0, 2**63, n_rows).astype(np.uint64), bins, 2)


def random_splits(rng, n, n_features):
    splits = Splits.empty(n, 2)
    splits.feature[:] = rng.integers(0, n_features, n)
    splits.bin[:] = rng.integers(0, 256, n)
    splits.missing_left[:] = rng.random(n) < 0.5
    splits.words[:] = rng.integers(0, 2**64, splits.words.shape, np.uint64)
    splits.words[:, 0] = (splits.words[:, 0] & ~np.uint64(1)) | splits.missing_left
    return splits


@given(
    seed=st.integers(0, 2**32),
    n_trees=st.integers(1, 9),
    n_features=st.integers(1, 4),
    n_codes=st.sampled_from([2, 5, 256]),
    threads=st.sampled_from([1, 3]),
)
def test_rows_go_where_the_bits_say(seed, n_trees, n_features, n_codes, threads):
    rng = np.random.default_rng(seed)
    binned = table(rng, 50, n_features, n_codes)
    rows = NodeRows.of_trees(binned, make_key(seed, "rows"), range(n_trees), True, threads)
    open_nodes = set(range(n_trees))
    for _ in range(3):
        n_nodes = len(rows.starts)
        nodes = rng.permutation(sorted(open_nodes))[: rng.integers(1, len(open_nodes) + 1)]
        open_nodes = (open_nodes - set(nodes.tolist())) | set(range(n_nodes, n_nodes + 2 * len(nodes)))
        splits = random_splits(rng, len(nodes), n_features)
        needed = rng.random(len(nodes)) < 0.7
        some = np.flatnonzero(needed)
        before = [rows.order[rows.starts[k] : rows.stops[k]].copy() for k in nodes]
        bits = pack_sides(rows, nodes[some], Splits(*(c[some] for c in splits)), threads)
        begin = byte_starts(np.array([len(before[k]) for k in some], np.int64))
        for i, k in enumerate(some):
            expected = pack_sides_naive(binned.codes, before[k], splits, k, binned.bins.categorical)
            assert bits[begin[i] : begin[i + 1]].tobytes() == expected
        counts = count_sides(bits, np.array([len(before[k]) for k in some], np.int64))
        route(rows, nodes, needed, bits, threads)
        assert len(rows.starts) == n_nodes + 2 * len(nodes)
        for k in range(len(nodes)):
            left, right = (rows.order[rows.starts[c] : rows.stops[c]] for c in (n_nodes + 2 * k, n_nodes + 2 * k + 1))
            if needed[k]:
                i = int(np.flatnonzero(some == k)[0])
                expected = route_naive(before[k], bits[begin[i] : begin[i + 1]].tobytes())
                assert counts[i] == len(left)
            else:
                expected = before[k][:0], before[k]
            np.testing.assert_array_equal(left, expected[0])  # the order within a side is kept
            np.testing.assert_array_equal(right, expected[1])


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("n_trees", [1, 3, 4, 11])
def test_samples_equal_those_of_other_forests(bootstrap, n_trees):
    binned = table(np.random.default_rng(0), 40, 2)
    key = make_key(3, "rows")
    drawn = rows_of_trees(key, binned.row_keys, 0, n_trees, bootstrap)
    sizes = np.zeros(n_trees, np.int64)
    order = list_rows(drawn, sizes)
    for threads in (1, 2):
        rows = NodeRows.of_trees(binned, key, range(n_trees), bootstrap, threads)
        np.testing.assert_array_equal(rows.order, order)
        np.testing.assert_array_equal(rows.stops - rows.starts, sizes)
        np.testing.assert_array_equal(rows.stops, np.cumsum(sizes))


def test_bits_are_counted():
    sizes = np.array([3, 0, 8, 9])
    bits = np.array([0b101, 0xFF, 0x01, 0x01], np.uint8)
    assert count_sides(bits, sizes).tolist() == [2, 0, 8, 2]
    assert count_sides(bits[:-1], sizes) is None
    assert count_sides(np.append(bits, 0).astype(np.uint8), sizes) is None
    assert count_sides(np.array([0b1101, 0xFF, 0x01, 0x01], np.uint8), sizes) is None  # a bit for no row
    assert count_sides(np.array([0b101, 0xFF, 0x01, 0x03], np.uint8), sizes) is None
    assert count_sides(np.zeros(0, np.uint8), np.zeros(0, np.int64)).tolist() == []
    assert is_bit_per_row(bits, sizes)
    assert not is_bit_per_row(bits[:-1], sizes)
    assert not is_bit_per_row(bits | np.array([0, 0, 0, 0b10], np.uint8), sizes)


def test_segments_are_ordered():
    out = np.zeros(6, np.uint8)
    spread(np.array([1, 2, 3], np.uint8), np.array([1, 2]), np.array([4, 0]), out)
    spread(np.array([7, 8, 9], np.uint8), np.array([0, 2, 1]), np.array([3, 2, 5]), out)
    assert out.tolist() == [2, 3, 7, 8, 1, 9]


@given(sizes=st.lists(st.integers(0, 100), max_size=40), threads=st.integers(1, 4))
def test_work_is_shared_out_once(sizes, threads):
    some = split_evenly(np.array(sizes, np.int64), threads)
    assert [i for here in some for i in range(here.start, here.stop)] == list(range(len(sizes)))
