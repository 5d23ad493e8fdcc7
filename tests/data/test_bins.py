"""Bins: cut points by their rules, however rows are ordered or shared out, and values in their bins."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from silvan.data import grid
from silvan.data.bins import check_max_bins, choose_cuts, find_bins, make_bins, staggered_bins
from silvan.data.grid import Grid
from silvan.data.schema import MAX_CATEGORIES, Feature, Schema
from silvan.errors import InputError

LAST = np.finfo(np.float32).max
GRID = Grid.for_columns(1)
NUMBER = Feature("x")

columns = arrays(np.float32, st.integers(1, 80), elements=st.floats(width=32, allow_infinity=False))
max_bins = st.integers(2, 255)


def bin_column(x, max_bins=64, feature=NUMBER):
    """Cut points and bins of one column."""
    X = np.asarray(x, np.float32)[:, None]
    bins, codes = find_bins(X, Schema.of([feature]), max_bins)
    np.testing.assert_array_equal(bins.apply(X), codes)
    return bins.cuts[0], codes[:, 0]


def naive_bins(x, cuts):
    x = np.asarray(x, np.float32)
    return np.where(np.isnan(x), 0, 1 + np.searchsorted(cuts, x, "left"))


def shapes():
    rng = np.random.default_rng(0)
    return {
        "constant": np.full(500, 3.7),
        "two values": rng.integers(0, 2, 500),
        "few values": rng.integers(-3, 4, 500) / 10,
        "normal": rng.normal(size=5000),
        "uniform": rng.random(5000),
        "years": rng.integers(1900, 2030, 5000),
        "heavy ties": np.where(rng.random(5000) < 0.9, 0, rng.normal(size=5000)),
        "heaped": np.where(rng.random(5000) < 0.9, rng.integers(0, 50, 5000) * 5, rng.random(5000) * 250),
        "skewed": np.exp(3 * rng.normal(size=5000)),
        "both tails": rng.standard_cauchy(5000),
        "tiny": rng.normal(size=5000) * 1e-40,
        "huge": rng.uniform(-1, 1, 5000) * LAST,
        "all magnitudes": 10.0 ** rng.uniform(-44, 38, 5000),
        "far from zero": 1e6 + rng.random(5000),
        "half missing": np.where(rng.random(5000) < 0.5, np.nan, rng.normal(size=5000)),
        "all missing": np.full(500, np.nan),
        "ends of the line": np.array([-LAST, 0, LAST, np.nan] * 5),
    }


every_shape = pytest.mark.parametrize("x", shapes().values(), ids=shapes())


# -- cut points that differ from tree to tree


def assert_trees_share_the_cuts(x, max_bins):
    """A tree has some of the cut points, all of the values, and at most so many bins; all trees have all cut points."""
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


@given(columns, max_bins)
@example(np.arange(80, dtype=np.float32), 40)
@example(np.arange(80, dtype=np.float32), 20)
@example(np.append(np.zeros(40), np.arange(40)).astype(np.float32), 8)
def test_every_tree_has_some_of_the_cuts_and_together_they_have_all(x, max_bins):
    assert_trees_share_the_cuts(x, max_bins)


@every_shape
@pytest.mark.parametrize("max_bins", [2, 3, 64, 127, 128, 129, 252, 255])
def test_shares_of_all_shapes(x, max_bins):
    assert_trees_share_the_cuts(x, max_bins)


def test_how_many_cuts_trees_have_together():
    assert [staggered_bins(n) for n in (2, 3, 16, 63, 64)] == [4, 8, 60, 248, 252]
    assert [staggered_bins(n) for n in (65, 100, 127, 128)] == [128, 198, 252, 254]
    assert [staggered_bins(n) for n in (129, 200, 254, 255)] == [129, 200, 254, 255]
    x = np.random.default_rng(0).normal(size=(5000, 1)).astype(np.float32)
    for max_bins in (16, 64, 100, 128, 200, 255):
        bins, _ = find_bins(x, Schema.of(["x"]), max_bins, staggered=True)
        assert len(bins.cuts[0]) + 1 == staggered_bins(max_bins)
    few, _ = find_bins(np.round(x), Schema.of(["x"]), 64, staggered=True)
    given, _ = find_bins(x, Schema.of([Feature("x", edges=tuple(range(-100, 101)))]), 64, staggered=True)
    assert few.shift.tolist() == given.shift.tolist() == [0]  # as they are


def test_a_value_that_many_rows_have_is_cut_off_in_every_tree():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(5000) < 0.5, 0, rng.normal(size=5000))
    _, codes = find_bins(x[:, None].astype(np.float32), Schema.of(["x"]), 64, staggered=True)
    for offset in range(4):
        shared = (codes[:, 0].astype(np.int64) + offset) // 4
        assert (x[shared == shared[x == 0][0]] == 0).all()


# -- values in bins


@given(columns, max_bins)
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
    """All cuts in one cell of the table that narrows the search, or one far away on either side."""
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


def test_a_category_is_its_code_plus_one():
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
    """A bin beyond the last would be a write outside the histogram."""
    narrow = Feature("n", "categorical", categories=("a", "b"))
    bins, found = find_bins(np.array([[code], [1.0]], np.float32), Schema.of([narrow]), 64)
    assert found[:, 0].tolist() == [0, 2]
    assert bins.apply(np.array([[code]], np.float32)).tolist() == [[0]]


# -- where cuts are


@given(st.sets(st.integers(-50, 50), min_size=1, max_size=20), st.sampled_from([1.0, 0.1, 0.01, 1e4, 2.0**-130]))
@example({0, 1}, 1.0)
@example({-1, 1}, 1.0)
def test_few_values_have_their_own_bins(numbers, unit):
    distinct = np.array(sorted(numbers), np.float32) * np.float32(unit)
    cuts, _ = bin_column(np.repeat(distinct, 3))
    assert len(cuts) == len(distinct) - 1
    assert (distinct[:-1] < cuts).all()
    assert (cuts < distinct[1:]).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1], [0.5]),
        ([-1, 1], [0]),
        ([0, 1, 2, 3], [0.5, 1.5, 2.5]),
        ([-2, -1, 0], [-1.5, -0.5]),
        ([1, 2, 4], [1.5, 3]),
        ([0, 100], [32]),
        ([-3, 1000], [512]),
        ([0.1, 0.2], [0.15625]),
        ([1900, 2000], [1952]),
    ],
)
def test_cuts_are_round(values, expected):
    assert bin_column(values)[0].tolist() == expected


@every_shape
def test_cuts_are_on_the_public_grid(x):
    """A cut may meet a value by chance, but only where anybody's cuts could be."""
    cuts, _ = bin_column(x, 255)
    assert (grid.images(cuts) % (1 << GRID.finest) == 0).all()


@pytest.mark.parametrize("shape", ["normal", "uniform", "skewed", "both tails", "tiny", "huge", "half missing"])
def test_bins_hold_about_equally_many(shape):
    x = shapes()[shape]
    for max_bins in (8, 64):
        mass = np.bincount(bin_column(x, max_bins)[1], minlength=max_bins + 1)[1:]
        share = mass.sum() / max_bins
        assert mass.max() < 1.8 * share
        assert mass.min() > 0.4 * share


def test_spikes_do_not_use_up_the_bins():
    """Heaped values, as people round them: each spike has a bin, up to the end of the line."""
    rng = np.random.default_rng(0)
    spikes = np.repeat(np.arange(40) * 5.0, 100)
    x = np.concatenate([spikes, rng.random(200) * 200])
    codes = bin_column(x, 64)[1]
    assert len(set(codes[: len(spikes)])) == 40
    assert np.bincount(codes).max() < 130


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=150), st.integers(2, 40))
@example([1, 100] * 40, 50)
@example([1000] + [1] * 20 + [50] * 20, 30)
def test_no_bin_holds_much_more_than_its_share(rows, max_bins):
    x = np.repeat(np.arange(len(rows)), rows)
    mass = np.bincount(bin_column(x, max_bins)[1])[1:]
    assert mass.max() <= max(rows) + 2.5 * sum(rows) / max_bins
    if len(rows) <= max_bins:
        assert mass.tolist() == rows


# -- what cuts do not depend on


def cuts_of_parts(parts, max_bins):
    """Two rounds of sums over sites, none of which sees another's rows."""
    seen = [grid.images(part) for part in parts]
    counts = sum(grid.coarse_counts(image, GRID.coarse, GRID.n_cells).astype(np.int64) for image in seen)
    heavy = grid.heavy_cells(counts, GRID, max_bins)
    fine = sum(grid.fine_counts(image, heavy, GRID).astype(np.int64) for image in seen)
    return grid.values(choose_cuts(counts, heavy, fine, GRID, max_bins, staggered=False)[0])


@given(columns, max_bins, st.randoms(use_true_random=False), st.integers(1, 4))
def test_order_and_owners_of_rows_do_not_matter(x, max_bins, random, n_parts):
    cuts, _ = bin_column(x, max_bins)
    order = random.sample(range(len(x)), len(x))
    np.testing.assert_array_equal(bin_column(x[order], max_bins)[0], cuts)
    np.testing.assert_array_equal(cuts_of_parts(np.array_split(x[order], n_parts), max_bins), cuts)


@every_shape
def test_sums_over_sites_give_the_same_cuts(x):
    x = np.asarray(x, np.float32)
    np.testing.assert_array_equal(cuts_of_parts([x[::3], x[1::3], x[2::3]], 64), bin_column(x)[0])


def test_threads_do_not_matter():
    X = np.stack([np.resize(x, 5000) for x in shapes().values()], axis=1).astype(np.float32)
    schema = Schema.of([f"x{i}" for i in range(X.shape[1])])
    (one, one_codes), (two, two_codes) = (
        find_bins(X, schema, 64, n_jobs=1),
        find_bins(X, schema, 64, n_jobs=2),
    )
    np.testing.assert_array_equal(one_codes, two_codes)
    np.testing.assert_array_equal(one.thresholds, two.thresholds)


# -- what a schema says


@given(columns, st.sets(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_edges_are_the_cuts(x, edges):
    edges = sorted(edges)
    assume(all(a < b for a, b in pairwise(edges)))  # not -0.0 and 0.0
    cuts, codes = bin_column(x, 2, Feature("x", edges=tuple(edges)))
    assert cuts.tolist() == edges
    np.testing.assert_array_equal(codes, naive_bins(x, cuts))


def test_edges_that_32_bits_cannot_tell_apart_or_hold():
    feature = Feature("x", edges=(-1e300, 0.1, 0.1 + 1e-12, 7.0, 1e300))
    cuts, codes = bin_column([-LAST, 0.1, 5, LAST, np.nan], 64, feature)
    assert cuts.tolist() == [np.float32(0.1), 7.0]
    assert codes.tolist() == [1, 1, 2, 3, 0]


def test_thresholds_lie_behind_each_other():
    features = [Feature("a", edges=(1.0, 2.0)), Feature("b", "categorical", categories=("u",)), Feature("c")]
    bins, _ = find_bins(np.array([[0, 0, 5], [3, 0, 5]], np.float32), Schema.of(features), 64)
    assert bins.n_bins.tolist() == [4, 2, 2]
    assert bins.starts.tolist() == [0, 3, 4, 5]
    assert bins.thresholds.tolist() == [1.0, 2.0, LAST, LAST, LAST]


@pytest.mark.parametrize("max_bins", [-1, 0, 1, 256])
def test_a_bin_fits_a_byte(max_bins):
    with pytest.raises(InputError, match="max_bins must be between 2 and 255"):
        check_max_bins(max_bins)


def test_no_rows():
    bins, codes = find_bins(np.empty((0, 2), np.float32), Schema.of(["a", "b"]), 64)
    assert codes.shape == (0, 2)
    assert bins.n_bins.tolist() == [2, 2]
