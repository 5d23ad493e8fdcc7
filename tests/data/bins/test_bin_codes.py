"""Codes: as many as a byte holds, shared by trees."""

import numpy as np
import pytest

from silvan.data.bins.bins import find_bins
from silvan.data.bins.cut_points import check_max_bins, staggered_bins
from silvan.data.schema import Feature, Schema
from silvan.errors import InputError


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


@pytest.mark.parametrize("max_bins", [-1, 0, 1, 256])
def test_a_bin_fits_a_byte(max_bins):
    with pytest.raises(InputError, match="max_bins must be between 2 and 255"):
        check_max_bins(max_bins)
