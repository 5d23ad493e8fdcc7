"""Histograms: kernels compared with NumPy, the fused search with sums, parts with the whole."""

import numpy as np
import pytest
from helpers.naive_kernels import fill_naive
from helpers.tables import Sites, binned, take
from hypothesis import given
from hypothesis import strategies as st

from silvan.tree.gain import Rule
from silvan.tree.grow import Frontier, Plan
from silvan.tree.histogram import fill, occupied_few, place_bins
from silvan.tree.level import sample_level
from silvan.tree.objectives import ENTROPY, GINI, SQUARED_ERROR
from silvan.tree.rows import TreeRows
from silvan.tree.sampling import make_key, root_seeds
from silvan.tree.split import Splits, occupied_bins

seeds = st.integers(0, 2**32)
KEY = make_key(0, "features")


@st.composite
def searches(draw):
    """A table with its target, a plan and a rule."""
    n_classes = draw(st.sampled_from([0, 2, 3]))
    table, target, _ = binned(
        draw(seeds),
        n_rows=draw(st.integers(1, 80)),
        n_features=draw(st.integers(1, 9)),
        n_classes=n_classes,
        weighted=draw(st.booleans()),
        missing=draw(st.sampled_from([0.0, 0.3, 1.0])),
    )
    criterion = draw(st.sampled_from([GINI, ENTROPY])) if n_classes else SQUARED_ERROR
    rule = Rule(
        criterion,
        target.measure.lead,
        2,
        draw(st.integers(1, 3)),
        draw(st.integers(0, 9)),
        np.array(target.measure.class_weight),
    )
    width = table.codes.shape[1]
    return table, Plan(width, draw(st.integers(1, width))), rule


def begin(table, n_trees=3):
    drawn = np.random.default_rng(0).random((n_trees, len(table))) < 0.7
    drawn[0] = False  # a tree without rows
    roots = np.arange(n_trees)
    zeros = np.zeros(n_trees, np.int32)
    return TreeRows(table, drawn, roots), Frontier(roots, roots, zeros, root_seeds(KEY, roots), zeros, zeros > 0), drawn


def assert_same(one, other):
    """Except for splits without gain, which are omitted where all rows are alike."""
    for splits in (one, other):
        splits.feature[splits.gain <= 0] = -1
    found = one.feature >= 0
    for name in one._fields:
        a, b = getattr(one, name), getattr(other, name)
        if name != "total":  # the statistics of a node are known without a split too
            a, b = a[found], b[found]
        np.testing.assert_array_equal(a, b, err_msg=name)
    np.testing.assert_array_equal(one.feature, other.feature)


@given(seeds, st.sampled_from([0, 1, 3]), st.booleans(), st.integers(0, 50), st.integers(1, 9), st.integers(0, 3))
def test_fill(seed, n_classes, weighted, n_rows, n_features, offset):
    table, target, _ = binned(seed, n_features=n_features, n_classes=n_classes, weighted=weighted)
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(table), n_rows).astype(np.uint32)  # in any order, some twice
    features = rng.permutation(n_features)
    n_bins = table.bins.n_bins[features]
    bases = np.concatenate([[0], np.cumsum(n_bins)[:-1]])
    dtype = np.int32 if table.target.ndim == 1 else np.int64
    hist = np.full((n_bins.sum() + 1, target.measure.n_stats), 7, dtype)
    for some in range(n_features + 1):
        hist[:] = 7  # added to what is there
        begin = np.zeros(n_features, np.int64)
        place_bins(bases, features, some, table.bins.shift, offset, begin)
        fill(table.codes, table.target, rows, features, begin, some, table.bins.shift, hist)
        bins, n_stats = table.bins.in_histograms, target.measure.n_stats
        naive = [fill_naive(table.codes, table.target, rows, f, bins, offset, n_stats) for f in features]
        expected = np.concatenate([np.zeros((0, target.measure.n_stats), np.int64), *naive[:some]])
        np.testing.assert_array_equal(hist[: len(expected)] - 7, expected)
        assert (hist[len(expected) :] == 7).all()


@given(st.lists(st.integers(0, 255), max_size=40), st.integers(0, 2), st.integers(0, 3))
def test_occupied_bins(values, shift, offset):
    codes = np.array(values, np.uint8)[:, None]
    expected = sorted({(v + offset % 2**shift) // 2**shift for v in values} - {0})
    out, rows = np.zeros(256, np.int64), np.arange(len(values), dtype=np.uint32)
    n = occupied_few(codes, rows, 0, np.array([shift], np.uint8), offset, out)
    assert out[:n].tolist() == expected
    expected = sorted(set(values) - {0})
    for lead, column in ((0, 1), (1, 0)):
        hist = np.zeros((256, 2), np.int64)
        np.add.at(hist, (codes[:, 0], column), 1)
        n = occupied_bins(hist, 0, 256, lead, out)
        assert out[:n].tolist() == expected


@given(searches())
def test_fused_search_and_search_from_sums(search):
    table, plan, rule = search
    rows, frontier, _ = begin(table)
    for _ in range(3):
        splits = Sites([rows], plan, rule, KEY).find(frontier)
        assert_same(rows.find(frontier, plan, rule, KEY), splits)
        found = np.flatnonzero(splits.feature >= 0)
        if not len(found):
            break
        made = Splits(*(column[found] for column in splits))
        children = np.arange(rows.n_nodes, rows.n_nodes + 2 * len(found))
        rows.apply(frontier.node[found], made, np.ones(len(found), np.bool_))
        zeros = np.zeros(len(children), np.int32)
        frontier = Frontier(children, children, zeros, root_seeds(KEY, children), zeros, zeros > 0)


@given(searches(), st.integers(1, 4))
def test_histograms_of_parts_add_up(search, n_parts):
    table, plan, _ = search
    whole, frontier, drawn = begin(table)
    owner = np.random.default_rng(1).integers(0, n_parts, len(table))
    numbers = np.arange(len(drawn))
    parts = [TreeRows(take(table, np.flatnonzero(owner == p)), drawn[:, owner == p], numbers) for p in range(n_parts)]
    features = sample_level(frontier, plan)
    added = sum(part.fill(frontier.node, features, 2) for part in parts)
    np.testing.assert_array_equal(added, whole.fill(frontier.node, features, 2))


def test_total_of_a_node_without_a_split():
    table, target, _ = binned(0, n_classes=3)
    rule = Rule(GINI, target.measure.lead, 1000, 1, 0, np.array(target.measure.class_weight))
    rows, frontier, drawn = begin(table)
    splits = rows.find(frontier, Plan(5, 2), rule, KEY)
    np.testing.assert_array_equal(splits.total, [np.bincount(table.target[t], minlength=3) for t in drawn])
    assert (splits.feature == -1).all()


@pytest.mark.parametrize("n_classes", [0, 2])
def test_a_node_samples_until_it_finds_a_split(n_classes):
    """Constant columns offer none; with enough tries the one that varies is found, whatever its position."""
    table, target, _ = binned(0, n_rows=40, n_features=9, n_classes=n_classes)
    table.codes[:] = 1
    table.codes[:, 7] += (np.arange(40) % 2).astype(np.uint8)
    table.target[:] = 0
    if n_classes:
        table.target[::2] = 1
    else:
        table.target[:, 0] = 1
        table.target[::2, 1] = 1
    rule = Rule(
        GINI if n_classes else SQUARED_ERROR,
        target.measure.lead,
        2,
        1,
        0,
        np.array(target.measure.class_weight),
    )
    for tries in (1, 9):
        rows, frontier, _ = begin(table, n_trees=20)
        found = rows.find(frontier, Plan(9, 1, tries=tries), rule, KEY).feature[1:]
        assert set(found) <= {-1, 7}
        assert (found == 7).all() == (tries == 9)
