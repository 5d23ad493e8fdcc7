"""Cut points: by their rules, however rows are ordered or distributed, or as a schema gives them."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.binned_columns import LAST, bin_column, columns, every_shape, naive_bins, numbers_of_bins, shapes
from hypothesis import assume, example, given
from hypothesis import strategies as st

from silvan.data.bins import grid
from silvan.data.bins.bins import find_bins
from silvan.data.bins.cut_points import check_max_bins, choose_cuts, staggered_bins
from silvan.data.bins.grid import Grid
from silvan.data.schema import Feature, Schema
from silvan.errors import FormatError, InputError

GRID = Grid.for_columns(1)


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
    """A cut may equal a value by chance, but only where anybody's cuts could."""
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
    """Heaped values, as people round them: each spike gets a bin, up to the largest value."""
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


def test_fine_counts_of_other_cells_are_refused():
    """A kernel that looked for a cell beyond them would access foreign memory."""
    image = grid.images(np.linspace(1.0, 2.0, 200, dtype=np.float32))
    counts = grid.coarse_counts(image, GRID.coarse, GRID.n_cells)
    heavy = grid.heavy_cells(counts, GRID, 8)
    fine = grid.fine_counts(image, heavy, GRID)
    assert len(fine)
    for other in (fine[:-1], np.append(fine, 1), fine[:0], fine[None]):
        with pytest.raises(FormatError, match="other cells"):
            choose_cuts(counts, heavy, other, GRID, 8, staggered=True)


# -- what cuts do not depend on


def cuts_of_parts(parts, max_bins):
    """Two rounds of sums over sites, none of which sees another's rows."""
    seen = [grid.images(part) for part in parts]
    counts = sum(grid.coarse_counts(image, GRID.coarse, GRID.n_cells).astype(np.int64) for image in seen)
    heavy = grid.heavy_cells(counts, GRID, max_bins)
    fine = sum(grid.fine_counts(image, heavy, GRID).astype(np.int64) for image in seen)
    return grid.values(choose_cuts(counts, heavy, fine, GRID, max_bins, staggered=False)[0])


@given(columns, numbers_of_bins, st.randoms(use_true_random=False), st.integers(1, 4))
def test_order_and_owners_of_rows_do_not_matter(x, max_bins, random, n_parts):
    cuts, _ = bin_column(x, max_bins)
    order = random.sample(range(len(x)), len(x))
    np.testing.assert_array_equal(bin_column(x[order], max_bins)[0], cuts)
    np.testing.assert_array_equal(cuts_of_parts(np.array_split(x[order], n_parts), max_bins), cuts)


@every_shape
def test_sums_over_sites_give_the_same_cuts(x):
    x = np.asarray(x, np.float32)
    np.testing.assert_array_equal(cuts_of_parts([x[::3], x[1::3], x[2::3]], 64), bin_column(x)[0])


# -- cut points in a schema


@given(columns, st.sets(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_edges_are_the_cuts(x, edges):
    edges = sorted(edges)
    assume(all(a < b for a, b in pairwise(edges)))  # not -0.0 and 0.0
    cuts, codes = bin_column(x, 2, Feature("x", edges=tuple(edges)))
    assert cuts.tolist() == edges
    np.testing.assert_array_equal(codes, naive_bins(x, cuts))


def test_edges_beyond_32_bit_precision():
    feature = Feature("x", edges=(-1e300, 0.1, 0.1 + 1e-12, 7.0, 1e300))
    cuts, codes = bin_column([-LAST, 0.1, 5, LAST, np.nan], 64, feature)
    assert cuts.tolist() == [np.float32(0.1), 7.0]
    assert codes.tolist() == [1, 1, 2, 3, 0]


def test_the_number_of_cuts_over_all_trees():
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


@pytest.mark.parametrize("max_bins", [-1, 0, 1, 256])
def test_a_bin_fits_a_byte(max_bins):
    with pytest.raises(InputError, match="max_bins must be between 2 and 255"):
        check_max_bins(max_bins)
