"""Targets as integers: small ones are kept, others are scaled, and sums stay exact."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from silvan.errors import InputError
from silvan.tree.objectives import OBJECTIVES, fixed_point, whole_masses

class_target = OBJECTIVES["gini"].target
number_target = OBJECTIVES["squared_error"].target

positive = st.floats(0, exclude_min=True, allow_infinity=False, allow_nan=False)
finite = st.floats(allow_infinity=False, allow_nan=False)
plain = st.floats(-1e300, 1e300, allow_subnormal=False)


@given(arrays(np.float64, st.integers(1, 30), elements=positive), st.integers(20, 31))
@example(np.full(9, 1.5e308), 31)
@example(np.full(9, 5e-324), 31)
@example(np.array([1e-300, 1e300]), 28)
def test_masses_are_proportional(weight, bits):
    masses = whole_masses(weight, np.ones(len(weight), np.int64), bits)
    assert (masses >= 1).all()
    assert masses.sum() <= 2**bits
    if (weight == np.rint(weight)).all() and weight.max() < 1000:
        np.testing.assert_array_equal(masses, weight)
    else:
        share = weight / weight.max()
        assert np.abs(masses / masses.max() - share).max() <= 2 / masses.max()


def test_masses_of_classes_count_their_rows():
    masses = whole_masses(np.array([0.1, 12.7]), np.array([10**8, 10**3]), 31)
    assert (masses * [10**8, 10**3]).sum() < 2**31
    assert masses[1] / masses[0] == pytest.approx(127, rel=0.05)


@given(finite, finite, st.integers(1, 2**28))
@example(1e300, -1e300, 1)
@example(1e200, 1e200, 100)
@example(1.7976931348623157e308, -1.7976931348623157e308, 2**28)
def test_fixed_point_sums_stay_exact(a, b, mass):
    low, high = min(a, b), max(a, b)
    offset, scale = fixed_point(low, high, mass)
    assert math.isfinite(offset)
    assert math.frexp(scale)[0] == 0.5  # a power of two
    for y in (low, high):
        assert mass * abs(round((y - offset) * scale)) < 2**53


@given(arrays(np.float64, st.integers(1, 40), elements=plain))
@example(np.array([1e200, -1e200, 3e199]))
@example(np.array([1e9 + 1, 1e9 + 2, 1e9 + 4]))
@example(np.full(5, 0.1))
@example(np.full(5, 1e100))
def test_means_of_numbers(y):
    target = number_target(y, 0)
    found = target.measure.leaf_values(target.rows.sum(axis=0, keepdims=True))[0, 0]
    mean = math.fsum(y / len(y))
    assert found == pytest.approx(mean, rel=1e-9, abs=1e-9 * float(y.max() / 2 - y.min() / 2) + 1e-300)


def test_means_of_weighted_numbers():
    rng = np.random.default_rng(0)
    y, weight = rng.normal(size=1000) + 50, rng.random(1000) + 0.01
    target = number_target(y, 0, weight)
    found = target.measure.leaf_values(target.rows.sum(axis=0, keepdims=True))[0, 0]
    assert found == pytest.approx(np.average(y, weights=weight), rel=1e-6)
    assert target.rows[:, 0].sum() == 1000  # rows are counted beside their mass


def test_shares_of_classes():
    codes = np.array([0, 1, 1, 2])
    for target, expected in (
        (class_target(codes, 3), [0.25, 0.5, 0.25]),
        (class_target(codes, 3, np.array([1.0, 1, 1, 5])), [0.125, 0.25, 0.625]),
        (class_target(codes, 3, None, np.array([1.0, 1, 5])), [0.125, 0.25, 0.625]),
        (class_target(codes, 3, np.array([1.0, 1, 1, 2.5]), np.array([1.0, 1, 2])), [0.125, 0.25, 0.625]),
    ):
        vectors = target.rows if target.rows.ndim == 2 else np.eye(3, dtype=np.int64)[target.rows]
        np.testing.assert_allclose(
            target.measure.leaf_values(vectors.sum(axis=0, keepdims=True))[0], expected, atol=1e-8
        )
        np.testing.assert_array_equal(target.measure.leaf_values(0 * vectors[:1])[0], [1 / 3] * 3)  # no rows


@pytest.mark.parametrize("codes", [[-1, 0], [0, 3], [0, 65536]])
def test_codes_of_no_class(codes):
    """A code beyond the last would write outside the histogram."""
    with pytest.raises(InputError, match="between 0 and 2"):
        class_target(np.array(codes), 3)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_weights_of_classes_are_positive(weight):
    with pytest.raises(InputError, match="class_weight must be above 0"):
        class_target(np.array([0, 1]), 2, None, np.array([1.0, weight]))


def test_too_many_classes():
    with pytest.raises(InputError, match="at most 65536"):
        class_target(np.zeros(1, np.int64), 65537)
