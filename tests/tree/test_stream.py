"""Counting a level in one walk along the rows: compared with naive versions in NumPy."""

import numpy as np
import pytest
from helpers.naive_kernels import fill_naive, partition_naive
from helpers.tables import binned
from hypothesis import given
from hypothesis import strategies as st

from silvan.forest.category_set import SET_WORDS
from silvan.tree import rows as rows_module
from silvan.tree.level import fill_bases, place_level
from silvan.tree.rows import TreeRows
from silvan.tree.split import Splits
from silvan.tree.stream import SplitsMade, list_counted, sort_rows, stream


def random_splits(rng, table, n):
    """Splits of n nodes by features of both kinds, good or bad."""
    feature = rng.integers(0, table.codes.shape[1], n).astype(np.int32)
    by_set = table.bins.categorical[feature]
    words = np.where(by_set[:, None], rng.integers(0, 2**63, (n, SET_WORDS), dtype=np.uint64), np.uint64(0))
    bins = np.where(by_set, 0, rng.integers(0, table.bins.last[feature] + 1)).astype(np.int32)
    missing_left = np.where(by_set, words[:, 0] & np.uint64(1), rng.integers(0, 2, n)).astype(np.bool_)
    stats = np.zeros((n, table.n_stats), np.int64)
    return Splits(feature, bins, missing_left, words, stats, stats, np.zeros(n), np.ones(n, np.bool_))


def descend_naive(table, roots, rounds):
    """Each node's rows after some rounds of splits, node by node."""
    nodes = list(roots)
    for which, splits in rounds:
        for k, node in enumerate(which):
            nodes += partition_naive(table.codes, nodes[node], splits, k, table.bins.categorical)
            nodes[node] = nodes[node][:0]
    return nodes


@st.composite
def walks(draw):
    """A table, the rows of two trees, and up to three rounds of splits of some of their nodes."""
    n_classes = draw(st.sampled_from([0, 2, 3]))
    table, _, _ = binned(draw(st.integers(0, 2**32)), n_classes=n_classes, weighted=draw(st.booleans()))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    drawn = rng.random((2, len(table))) < 0.7
    rounds, open_nodes, n = [], np.arange(2), 2
    for _ in range(draw(st.integers(0, 3))):
        which = open_nodes[rng.random(len(open_nodes)) < 0.8]
        rounds.append((which, random_splits(rng, table, len(which))))
        open_nodes = np.arange(n, n + 2 * len(which))
        n += 2 * len(which)
    return table, drawn, rounds, n, rng


@given(walks())
def test_rows_are_counted_where_the_splits_send_them(walk):
    """Two trees with all nodes requested at once, each for some features."""
    table, drawn, rounds, n_nodes, rng = walk
    made = SplitsMade.none(2)
    for which, splits in rounds:
        made = made.add(which, splits, np.ones(len(which), np.bool_))
    listed = [np.flatnonzero(tree).astype(np.uint32) for tree in drawn]
    expected = descend_naive(table, listed, rounds)
    width = table.codes.shape[1]
    nodes = rng.permutation(n_nodes)[: rng.integers(1, n_nodes + 1)]
    features = np.full((len(nodes), width), -1, np.int32)
    for i in range(len(nodes)):
        some = np.sort(rng.permutation(width)[: rng.integers(1, width + 1)])
        features[i, : len(some)] = some
    bases = fill_bases(features, table.bins.n_bins)
    hist = np.zeros((bases[-1, 0], table.n_stats), table.count_type)
    for root, rows in enumerate(listed):
        places = np.full(len(rows), root, np.uint32)
        bins = table.bins
        begin = place_level(features, bases, bins.shift, np.full(len(nodes), root + 1))
        counted = list_counted(n_nodes, nodes, features, begin, bins.shift)
        stream(table.codes, table.target, rows, places, made, bins.categorical, counted, hist)
        for node in np.unique(places):
            np.testing.assert_array_equal(rows[places == node], expected[node])
    tree = [0, 1]
    for which, _ in rounds:
        tree += np.repeat(np.array(tree)[which], 2).tolist()
    for i, node in enumerate(nodes):
        for j, f in enumerate(features[i][features[i] >= 0]):
            here, bins = hist[bases[i, j] : bases[i, j] + table.bins.n_bins[f]], table.bins.in_histograms
            there = fill_naive(table.codes, table.target, expected[node], f, bins, tree[node] + 1, table.n_stats)
            np.testing.assert_array_equal(here, there)


@given(walks())
def test_sorting_gathers_each_nodes_rows(walk):
    table, drawn, rounds, n_nodes, _ = walk
    made = SplitsMade.none(2)
    for which, splits in rounds:
        made = made.add(which, splits, np.ones(len(which), np.bool_))
    listed = [np.flatnonzero(tree).astype(np.uint32) for tree in drawn]
    places = np.repeat(np.arange(2, dtype=np.uint32), [len(rows) for rows in listed])
    stops = np.zeros(n_nodes, np.int64)
    order = sort_rows(table.codes, np.concatenate(listed), places, made, table.bins.categorical, stops)
    starts = np.concatenate([[0], stops[:-1]])
    for node, rows in enumerate(descend_naive(table, listed, rounds)):
        np.testing.assert_array_equal(order[starts[node] : stops[node]], rows)


@pytest.mark.parametrize("limit", ["STREAM_BYTES", "STREAM_ROUNDS"])
def test_large_levels_and_long_trees_are_sorted(monkeypatch, limit):
    """Walking along all rows does not pay off at every depth."""
    monkeypatch.setattr(rows_module, "SMALL_TABLE", -1)
    table, _, _ = binned(1)
    rows = TreeRows(table, np.ones((2, len(table)), np.bool_), np.arange(2))
    features = np.zeros((2, 1), np.int32)
    before = rows.fill(np.arange(2), features, 1)
    assert rows.places is not None
    monkeypatch.setattr(rows_module, limit, 0)
    np.testing.assert_array_equal(rows.fill(np.arange(2), features, 1), before)
    assert rows.places is None
