"""The public grid: images keep the order of floats, and counts in cells equal those of a loop."""

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from silvan.data.bins.grid import (
    CELL_BUDGET,
    FINE_BITS,
    FINE_BUDGET,
    LARGEST,
    Grid,
    Heavy,
    coarse_counts,
    fine_counts,
    heavy_cells,
    images,
    values,
)

SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
LAST = float(np.finfo(np.float32).max)
EXTREMES = np.array([-LAST, -1.0, -SMALLEST, -0.0, 0.0, SMALLEST, 1.0, LAST], np.float32)

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
columns = arrays(np.float32, st.integers(0, 60), elements=st.floats(width=32, allow_infinity=False))
shifts = st.sampled_from([18, 20, 24, 28])


def naive_cell(image, shift):
    """The k with (k - 1) 2^s < image <= k 2^s."""
    return math.ceil(int(image) / 2**shift)


def naive_image(x):
    """Counts the floats between zero and x: the image without bit operations."""
    magnitude = abs(float(x))
    fraction, power = math.frexp(magnitude)
    if magnitude < 2.0**-126:  # no normal number
        steps = int(magnitude / SMALLEST)
    else:
        steps = (power + 126) * 2**23 + int((fraction - 0.5) * 2**24)
    return steps if x >= 0 else -steps


@given(columns)
@example(EXTREMES)
def test_values_undo_images(column):
    present = ~np.isnan(column)
    image = images(column)
    np.testing.assert_array_equal(values(image[present]), column[present])
    assert (image[~present] > LARGEST).all()
    assert (np.abs(image[present].astype(np.int64)) <= LARGEST).all()


@given(arrays(np.int32, 50, elements=st.integers(-LARGEST, LARGEST)))
def test_images_undo_values(image):
    np.testing.assert_array_equal(images(values(image)), image)


@given(floats, floats)
@example(-0.0, 0.0)
@example(-SMALLEST, SMALLEST)
@example(0.0, SMALLEST)
@example(1.0, float(np.nextafter(np.float32(1), np.float32(2))))
def test_images_keep_the_order(a, b):
    one, other = images(np.array([a, b], np.float32)).tolist()
    assert (a < b, a == b, a > b) == (one < other, one == other, one > other)


@given(floats)
@example(SMALLEST)
@example(-(2.0**-126))
@example(LAST)
def test_images_count_floats(x):
    assert images(np.array([x], np.float32))[0] == naive_image(np.float32(x))


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF])
def test_every_kind_of_nan_is_missing(bits):
    assert images(np.array([bits], np.uint32).view(np.float32))[0] > LARGEST


def test_images_of_a_slice_and_of_wider_floats():
    table = np.arange(12, dtype=np.float64).reshape(4, 3)
    np.testing.assert_array_equal(images(table[:, 1]), images(np.array([1, 4, 7, 10], np.float32)))


@given(columns, shifts)
@example(EXTREMES, 18)
def test_coarse_counts(column, shift):
    grid = Grid(shift, 0)
    expected = np.zeros(grid.n_cells, np.int64)
    for image in images(column[~np.isnan(column)]):
        expected[naive_cell(image, shift) + grid.middle] += 1
    np.testing.assert_array_equal(coarse_counts(images(column), shift, grid.n_cells), expected)


@given(columns, shifts, st.randoms(use_true_random=False))
@example(EXTREMES, 18, None)
def test_fine_counts(column, shift, random):
    grid = Grid(shift, 0)
    image = images(column)
    occupied = np.flatnonzero(coarse_counts(image, shift, grid.n_cells))
    cells = [c for c in occupied if random is None or random.random() < 0.7]
    bits = [12 if random is None else random.randint(0, 12) for _ in cells]
    heavy = Heavy(np.array(cells, np.int32), shift - np.array(bits, np.int32))
    expected = [np.zeros(1 << b, np.int64) for b in bits]
    for v in image[image <= LARGEST]:
        coarse = naive_cell(v, shift) + grid.middle
        if coarse in cells:
            j = cells.index(coarse)
            first = (naive_cell(v, shift) - 1) * (1 << bits[j]) + 1  # the first fine cell in the coarse one
            expected[j][naive_cell(v, shift - bits[j]) - first] += 1
    expected = np.concatenate([*expected, np.zeros(0, np.int64)])
    np.testing.assert_array_equal(fine_counts(image, heavy, grid), expected)


def test_zero_ends_a_cell():
    grid = Grid.for_columns(10)
    around = images(np.array([-SMALLEST, -0.0, 0.0, SMALLEST], np.float32))
    cells = [np.flatnonzero(coarse_counts(around[i : i + 1], grid.coarse, grid.n_cells))[0] for i in range(4)]
    assert cells == [grid.middle, grid.middle, grid.middle, grid.middle + 1]


@pytest.mark.parametrize("max_bins", [2, 64, 255, 1020])
@pytest.mark.parametrize("n_columns", [1, 9, 4095])
def test_tables_of_not_too_many_columns_have_the_same_cut_points(n_columns, max_bins):
    """So a party need not know how many columns the others have."""
    told, own = (Grid.for_columns(n) for n in (Grid.columns_alike(), n_columns))
    counts = np.random.default_rng(0).integers(0, 2000, own.n_cells)
    counts[::97] = 10**6
    assert Grid.columns_alike() == 4096
    assert own.coarse == told.coarse
    for mine, alike in zip(heavy_cells(counts, own, max_bins), heavy_cells(counts, told, max_bins), strict=True):
        assert np.array_equal(mine, alike)


@given(st.integers(0, 2**17), st.lists(st.integers(1, 10**6), min_size=1, max_size=200), st.integers(2, 255))
@example(1 << 12, [1], 64)
@example(20_000, [10] * 30, 64)
@example(1, [10**6, 1], 255)
@example(129_056, [2, 2, 342], 44)  # one cell uses the whole budget, and there are two more
def test_all_columns_fit_the_cell_budgets(n_columns, rows, max_bins):
    grid = Grid.for_columns(n_columns)
    assert n_columns * grid.n_cells <= 2**CELL_BUDGET
    counts = np.zeros(grid.n_cells, np.int64)
    counts[: min(len(rows), grid.n_cells)] = rows[: grid.n_cells]
    heavy = heavy_cells(counts, grid, max_bins)
    n_parts = np.diff(heavy.starts(grid.coarse))
    assert n_parts.min(initial=2) == 2  # whatever the budget
    assert n_columns * n_parts[n_parts > 2].sum() <= 2**FINE_BUDGET
    assert n_parts.max(initial=1) <= 2**FINE_BITS
    assert (np.diff(n_parts[np.argsort(counts[heavy.cells])]) >= 0).all()  # more rows, finer cells


@given(columns)
@example(EXTREMES)
def test_bounds_hold_all_values(column):
    present = column[~np.isnan(column)]
    assume(len(present) > 0)
    grid = Grid.for_columns(1)
    cells = np.flatnonzero(coarse_counts(images(column), grid.coarse, grid.n_cells))
    low, high = grid.bounds(cells[0], cells[-1])
    assert low <= present.min()
    assert present.max() <= high
    lowest, highest = (abs(float(x)) for x in (present.min(), present.max()))
    assert present.min() - low <= lowest / 31 + 2.0**-130
    assert high - present.max() <= highest / 31 + 2.0**-130


@given(arrays(np.int32, 30, elements=st.integers(0, 50)), st.integers(2, 255), st.integers(1, 20))
def test_refined_cells_hold_a_quarter_of_a_share(counts, max_bins, floor):
    total = int(counts.sum())
    expected = [i for i, c in enumerate(counts.tolist()) if 4 * max_bins * c > total and c >= floor]
    assert heavy_cells(counts, Grid.for_columns(1), max_bins, floor).cells.tolist() == expected
