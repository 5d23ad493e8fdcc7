"""Columns of all shapes, their bins, and a naive version of binning."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from silvan.data.bins.bins import find_bins
from silvan.data.schema import Feature, Schema

LAST = np.finfo(np.float32).max
NUMBER = Feature("x")

columns = arrays(np.float32, st.integers(1, 80), elements=st.floats(width=32, allow_infinity=False))
numbers_of_bins = st.integers(2, 255)


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
