"""Keyed sampling: the hash is SipHash-2-4, samples are fair, and depend only on key, tree, row and path."""

import math
import struct
from collections import Counter
from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silvan.errors import FormatError
from silvan.tree.sampling import (
    child_seeds,
    draw_limit,
    list_rows,
    make_feature_order,
    make_key,
    mix,
    root_seeds,
    rows_of_trees,
    sample_features,
    siphash,
)

MASK = 2**64 - 1
KEY = make_key(0, "rows")

words = st.integers(0, MASK)


def naive_siphash(key: bytes, message: bytes) -> int:
    """SipHash-2-4 after the paper (Aumasson and Bernstein 2012), for messages of any length."""
    k0, k1 = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def turn(x, n):
        return (x << n | x >> (64 - n)) & MASK

    def rounds(n):
        for _ in range(n):
            v[0] = (v[0] + v[1]) & MASK
            v[2] = (v[2] + v[3]) & MASK
            v[1] = turn(v[1], 13) ^ v[0]
            v[3] = turn(v[3], 16) ^ v[2]
            v[0] = turn(v[0], 32)
            v[2] = (v[2] + v[1]) & MASK
            v[0] = (v[0] + v[3]) & MASK
            v[1] = turn(v[1], 17) ^ v[2]
            v[3] = turn(v[3], 21) ^ v[0]
            v[2] = turn(v[2], 32)

    padded = message + bytes(-(len(message) + 1) % 8) + bytes([len(message) % 256])
    for i in range(0, len(padded), 8):
        word = int.from_bytes(padded[i : i + 8], "little")
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xFF
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def u64(*numbers):
    return np.array(numbers, np.uint64)


def features_drawn(seed, attempt, feature_order, size):
    out = np.zeros(size, np.int64)
    return out[: sample_features(np.uint64(seed), attempt, feature_order, out)].tolist()


def fair(counts, expected):
    """Chi-square, at a level that one fair sample in ten thousand fails; all random choices here are fixed by keys."""
    freedom = len(counts) - 1
    statistic = sum((c - expected) ** 2 / expected for c in counts)
    return statistic < freedom + 4 * math.sqrt(2 * freedom) + 6


# -- the hash


def test_reference_vectors():
    key = bytes(range(16))
    assert naive_siphash(key, bytes(range(15))) == 0xA129CA6149BE45E5  # the vector printed in the paper
    assert naive_siphash(key, bytes(range(16))) == 0x3F2ACC7F57C29BDB  # of the reference implementation
    a, b = np.frombuffer(bytes(range(16)), "<u8")
    assert siphash(np.frombuffer(key, "<u8").astype(np.uint64), a, b) == 0x3F2ACC7F57C29BDB


@given(words, words, words, words)
def test_siphash(k0, k1, a, b):
    key, message = (struct.pack("<QQ", *pair) for pair in [(k0, k1), (a, b)])
    assert siphash(u64(k0, k1), np.uint64(a), np.uint64(b)) == naive_siphash(key, message)


def test_keys_differ_by_seed_and_purpose():
    keys = [tuple(make_key(seed, purpose)) for seed in (0, 1, -1, 2**70) for purpose in ("rows", "features")]
    assert len(set(keys)) == len(keys)
    assert make_key(7, "rows").tolist() == make_key(np.int64(7), "rows").tolist()


# -- rows


@pytest.mark.parametrize("first", [0, 1, 3, 4, 7])
@pytest.mark.parametrize("n_trees", [1, 2, 5, 8])
def test_samples_do_not_depend_on_the_batch_of_trees(first, n_trees):
    keys = np.arange(50, dtype=np.uint64)
    together = rows_of_trees(KEY, keys, 0, 15, True)
    np.testing.assert_array_equal(rows_of_trees(KEY, keys, first, n_trees, True), together[first : first + n_trees])


def test_samples_do_not_depend_on_other_rows():
    keys = np.random.default_rng(0).integers(0, 2**64, 100, np.uint64)
    np.testing.assert_array_equal(
        rows_of_trees(KEY, keys[::-3], 0, 9, True), rows_of_trees(KEY, keys, 0, 9, True)[:, ::-3]
    )


def test_samples_computed_by_hand():
    """Four trees share a hash, sixteen bits each, with a tag for row sampling."""
    keys = u64(0, 1, 99, MASK)
    key = KEY.astype("<u8").tobytes()
    for tree in range(10):
        message = (1 << 56 | tree // 4).to_bytes(8, "little")
        bits = [naive_siphash(key, message + int(k).to_bytes(8, "little")) >> 16 * (tree % 4) & 0xFFFF for k in keys]
        expected = [b < round(2**16 * (1 - 1 / math.e)) for b in bits]
        assert rows_of_trees(KEY, keys, tree, 1, True)[0].tolist() == expected


def test_the_sampled_share_is_exact():
    """Rows whose sixteen bits are the last to be sampled and the first not to be."""
    limit = round(2**16 * (1 - 1 / math.e))
    message = np.uint64(1 << 56)
    found = {}
    for k in range(400_000):
        bits = int(siphash(KEY, message, np.uint64(k))) & 0xFFFF
        if bits in (limit - 1, limit):
            found[bits] = k
    drawn = rows_of_trees(KEY, u64(found[limit - 1], found[limit]), 0, 1, True)
    assert drawn.tolist() == [[True, False]]


def test_rows_are_sampled_independently():
    n, share = 20_000, 1 - 1 / math.e
    drawn = rows_of_trees(KEY, np.arange(n, dtype=np.uint64), 0, 24, True)
    assert np.abs(drawn.mean(axis=1) - share).max() < 4.5 * math.sqrt(share * (1 - share) / n)
    between_trees = np.corrcoef(drawn) - np.eye(24)
    assert np.abs(between_trees).max() < 4.5 / math.sqrt(n)
    next_row = [np.corrcoef(tree[1:], tree[:-1])[0, 1] for tree in drawn]
    assert np.abs(next_row).max() < 4.5 / math.sqrt(n)
    other = rows_of_trees(make_key(1, "rows"), np.arange(n, dtype=np.uint64), 0, 24, True)
    assert abs(np.corrcoef(drawn.ravel(), other.ravel())[0, 1]) < 4.5 / math.sqrt(24 * n)


@given(st.integers(0, 2**32), st.integers(0, 5), st.integers(0, 30))
def test_listed_rows(seed, n_trees, n_rows):
    drawn = np.random.default_rng(seed).random((n_trees, n_rows)) < 0.6
    sizes = np.full(n_trees, -1)
    np.testing.assert_array_equal(list_rows(drawn, sizes), np.nonzero(drawn)[1])
    np.testing.assert_array_equal(sizes, drawn.sum(axis=1))


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.999])
def test_samples_of_two_shares_are_independent(share):
    """A tree samples a row with probability 1 - exp(-share), whatever trees with another share sampled."""
    keys = np.arange(20_000, dtype=np.uint64)
    drawn, others = rows_of_trees(KEY, keys, 0, 8, share), rows_of_trees(KEY, keys, 0, 8, share + 0.0005)
    expected = 1 - math.exp(-share)
    assert abs(drawn.mean() - expected) < 4.5 * math.sqrt(expected / drawn.size) + 2**-16
    for other in (others, rows_of_trees(KEY, keys, 0, 8, True)):
        assert abs(np.corrcoef(drawn.ravel(), other.ravel())[0, 1]) < 4.5 / math.sqrt(drawn.size)


def test_all_rows_as_a_share():
    assert draw_limit(1.0) == draw_limit(True) == 41427
    assert draw_limit(1e-9) == 1
    for wrong in (0, 0.0, -0.1, 1.1, math.nan, math.inf):
        with pytest.raises(FormatError):
            draw_limit(wrong)


def test_without_bootstrap_all_rows():
    assert rows_of_trees(KEY, np.arange(9, dtype=np.uint64), 3, 5, False).all()
    assert rows_of_trees(KEY, np.empty(0, np.uint64), 0, 5, True).shape == (5, 0)


# -- features


@given(words, st.integers(1, 40), st.integers(1, 45))
def test_the_samples_of_a_node_partition_the_columns(seed, n_features, size):
    feature_order = make_feature_order(n_features)
    draws = []
    for attempt in range(50):
        draws.append(features_drawn(seed, attempt, feature_order, size))
        np.testing.assert_array_equal(feature_order.features, np.arange(n_features))  # put back in order
        if not draws[-1]:
            break
    assert draws.pop() == []
    assert [len(h) for h in draws[:-1]] == [size] * (len(draws) - 1)
    assert all(h == sorted(h) for h in draws)
    assert sorted(chain(*draws)) == list(range(n_features))


@given(words, st.integers(1, 30), st.integers(1, 6), st.integers(0, 4))
def test_sampled_columns_depend_on_the_seed_only(seed, n_features, size, attempt):
    used = make_feature_order(n_features)
    features_drawn(seed ^ 12345, 0, used, size)
    features_drawn(seed, attempt + 1, used, size)
    assert features_drawn(seed, attempt, used, size) == features_drawn(
        seed, attempt, make_feature_order(n_features), size
    )


@pytest.mark.parametrize("attempt", [0, 1])
def test_sampled_columns_are_uniform(attempt):
    seeds = root_seeds(make_key(0, "features"), np.arange(21_000))
    feature_order = make_feature_order(7)
    drawn = Counter(tuple(features_drawn(seed, attempt, feature_order, 3)) for seed in seeds)
    assert set(drawn) == set(combinations(range(7), 3))
    assert fair(drawn.values(), 21_000 / 35)


@pytest.mark.parametrize("side", [0, 1])
def test_a_child_samples_independently_of_its_parent(side):
    seeds = root_seeds(make_key(0, "features"), np.arange(16_000))
    feature_order = make_feature_order(8)
    pairs = Counter(
        (*features_drawn(seed, 0, feature_order, 1), *features_drawn(child, 0, feature_order, 1))
        for seed, child in zip(seeds, child_seeds(seeds)[:, side], strict=True)
    )
    assert len(pairs) == 64
    assert fair(pairs.values(), 16_000 / 64)


# -- seeds


def test_a_roots_seed_depends_on_key_and_tree():
    key = make_key(0, "features")
    np.testing.assert_array_equal(root_seeds(key, np.array([7, 3])), root_seeds(key, np.arange(10))[[7, 3]])
    assert root_seeds(key, np.array([3])) != root_seeds(make_key(1, "features"), np.array([3]))


def test_a_nodes_seed_depends_on_its_path():
    level = root_seeds(make_key(0, "features"), np.arange(5))
    seen = set(level.tolist())
    for _ in range(9):
        below = child_seeds(level)
        np.testing.assert_array_equal(child_seeds(level[::-1]), below[::-1])  # whatever else is requested
        level = below.reshape(-1)
        seen |= set(level.tolist())
    assert len(seen) == 5 * (2**10 - 1)


@given(words, words)
def test_mix_is_one_to_one(a, b):
    assert (mix(np.uint64(a)) == mix(np.uint64(b))) == (a == b)
