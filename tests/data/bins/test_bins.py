"""Bins: values in the bins of the table and of each tree, with any number of threads."""

import numpy as np
import pytest
from helpers.binned_columns import LAST, bin_column, columns, every_shape, naive_bins, numbers_of_bins, shapes
from hypothesis import example, given
from hypothesis import strategies as st

from silvan.data.bins.bins import find_bins, make_bins
from silvan.data.bins.cut_points import staggered_bins
from silvan.data.schema import MAX_CATEGORIES, Feature, Schema

# -- cut points that differ from tree to tree


def assert_trees_share_the_cuts(x, max_bins):
    """A tree uses some of the cut points, all values, and a limited number of bins; all trees use all cut points."""
    X = np.asarray(x, np.float32)[:, None]
    bins, codes = find_bins(X, Schema.of(["x"]), max_bins, staggered=True)
    np.testing.assert_array_equal(bins.apply(X), codes)
    cuts, code = bins.cuts[0], codes[:, 0].astype(np.int64)
    n_sets = 2 ** int(bins.shift[0])
    assert len(cuts) + 1 <= staggered_bins(max_bins)
    assert bins.n_bins[0] <= max_bins + 1
    assert code.max(initial=0) <= bins.last[0] <= 255
    assert (n_sets > 1) == (len(cuts) + 1 > max_bins)
    assert n_sets == 1 or len(np.unique(X[~np.isnan(X)])) > max_bins
    zeros, used = np.zeros(1, np.int64), []
    for offset in range(n_sets):
        bin_ = (code + offset) // n_sets
        np.testing.assert_array_equal(bin_ == 0, np.isnan(X[:, 0]))
        assert bin_.max(initial=0) < bins.n_bins[0]
        for b in range(1, bins.n_bins[0] - 1):
            end = (b + 1) * n_sets - 1 - offset
            if n_sets <= end < bins.last[0]:
                threshold = bins.cut(zeros, zeros + end)
                used.append(threshold[0])
                np.testing.assert_array_equal((bin_ > 0) & (bin_ <= b), X[:, 0] <= threshold)
    steps = np.diff(bins.codes[0].astype(np.int64)) if n_sets > 1 else np.ones(len(cuts), np.int64)
    np.testing.assert_array_equal(np.sort(used), np.repeat(cuts, steps))  # each cut in as many sets as there are steps
    assert bins.cut(zeros, zeros + bins.last[0])[0] == LAST


@given(columns, numbers_of_bins)
@example(np.arange(80, dtype=np.float32), 40)
@example(np.arange(80, dtype=np.float32), 20)
@example(np.append(np.zeros(40), np.arange(40)).astype(np.float32), 8)
def test_each_tree_has_some_cuts_and_all_trees_have_all(x, max_bins):
    assert_trees_share_the_cuts(x, max_bins)


@every_shape
@pytest.mark.parametrize("max_bins", [2, 3, 64, 127, 128, 129, 252, 255])
def test_bins_of_columns_of_all_shapes(x, max_bins):
    assert_trees_share_the_cuts(x, max_bins)


def test_frequent_values_have_their_own_cut_in_every_tree():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(5000) < 0.5, 0, rng.normal(size=5000))
    _, codes = find_bins(x[:, None].astype(np.float32), Schema.of(["x"]), 64, staggered=True)
    for offset in range(4):
        shared = (codes[:, 0].astype(np.int64) + offset) // 4
        assert (x[shared == shared[x == 0][0]] == 0).all()


# -- values in bins


@given(columns, numbers_of_bins)
@example(np.array([-LAST, -1e-45, -0.0, 0.0, 1e-45, LAST, np.nan], np.float32), 255)
def test_a_bin_ends_with_its_cut(x, max_bins):
    cuts, codes = bin_column(x, max_bins)
    np.testing.assert_array_equal(codes, naive_bins(x, cuts))


@given(columns, st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=254))
def test_other_rows_in_given_bins(x, edges):
    bins = make_bins(Schema.of(["x"]), [np.unique(np.array(edges, np.float32))])
    np.testing.assert_array_equal(bins.apply(x[:, None])[:, 0], naive_bins(x, bins.cuts[0]))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("n_cuts", [0, 1, 7, 8, 9, 251, 254])
def test_many_rows_between_cuts_near_each_other(n_cuts, wide):
    """All cuts in one cell of the lookup table, or one far away on either side."""
    cuts = np.arange(1000, 1000 + n_cuts, dtype=np.float32) / 1024
    if wide and n_cuts > 2:
        cuts[[0, -1]] = -1e30, 1e30
    beside = [np.nextafter(cuts, np.float32(to)) for to in (-np.inf, np.inf)]
    x = np.concatenate([np.linspace(0.9, 1.3, 70_000), cuts, *beside, [-LAST, 0, LAST, np.nan]]).astype(np.float32)
    bins = make_bins(Schema.of(["x"]), [cuts])
    np.testing.assert_array_equal(bins.apply(x[:, None])[:, 0], naive_bins(x, cuts))


@every_shape
@pytest.mark.parametrize("max_bins", [2, 3, 64, 255])
def test_number_of_bins(x, max_bins):
    cuts, codes = bin_column(x, max_bins)
    assert len(cuts) + 1 <= max_bins
    assert (cuts[:-1] < cuts[1:]).all()
    assert np.isfinite(cuts).all()
    np.testing.assert_array_equal(codes, naive_bins(x, cuts))
    # every bin between two cuts was made for rows that are in it
    present = codes[~np.isnan(x)]
    assert set(present) == set(range(1, len(cuts) + 2)) or len(present) == 0


def test_the_bin_of_a_category_is_its_code_plus_one():
    wide = Feature("w", "categorical", categories=tuple(map(str, range(MAX_CATEGORIES))), other=True)
    narrow = Feature("n", "categorical", categories=("a", "b"))
    codes = np.arange(MAX_CATEGORIES + 1, dtype=np.float32)
    X = np.stack([codes, codes % 2], axis=1)
    X[5] = np.nan
    bins, found = find_bins(X, Schema.of([wide, narrow]), 64)
    np.testing.assert_array_equal(found, np.where(np.isnan(X), 0, X + 1))
    assert bins.n_bins.tolist() == [256, 3]


@pytest.mark.parametrize("code", [-1, -1000, 2, 254, 255, 1e30, -1e30, np.inf, -np.inf])
def test_an_unknown_code_is_missing(code):
    """A bin beyond the last would write outside the histogram."""
    narrow = Feature("n", "categorical", categories=("a", "b"))
    bins, found = find_bins(np.array([[code], [1.0]], np.float32), Schema.of([narrow]), 64)
    assert found[:, 0].tolist() == [0, 2]
    assert bins.apply(np.array([[code]], np.float32)).tolist() == [[0]]


def test_threads_do_not_matter():
    X = np.stack([np.resize(x, 5000) for x in shapes().values()], axis=1).astype(np.float32)
    schema = Schema.of([f"x{i}" for i in range(X.shape[1])])
    (one, one_codes), (two, two_codes) = (
        find_bins(X, schema, 64, n_jobs=1),
        find_bins(X, schema, 64, n_jobs=2),
    )
    np.testing.assert_array_equal(one_codes, two_codes)
    np.testing.assert_array_equal(one.thresholds, two.thresholds)


def test_thresholds_are_increasing():
    features = [Feature("a", edges=(1.0, 2.0)), Feature("b", "categorical", categories=("u",)), Feature("c")]
    bins, _ = find_bins(np.array([[0, 0, 5], [3, 0, 5]], np.float32), Schema.of(features), 64)
    assert bins.n_bins.tolist() == [4, 2, 2]
    assert bins.starts.tolist() == [0, 3, 4, 5]
    assert bins.thresholds.tolist() == [1.0, 2.0, LAST, LAST, LAST]


def test_no_rows():
    bins, codes = find_bins(np.empty((0, 2), np.float32), Schema.of(["a", "b"]), 64)
    assert codes.shape == (0, 2)
    assert bins.n_bins.tolist() == [2, 2]
