"""Metrics compared with scikit-learn."""

import numpy as np
import pytest
from helpers.examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn import metrics as sk

from silvan import metrics

figures = st.fixed_dictionaries(
    {"n": st.integers(2, 80), "seed": st.integers(0, 2**32 - 1), "levels": st.sampled_from([2, 3, 10, 10**6])}
)


def scored(n, seed, levels, n_classes):
    """Probabilities with ties, and classes that depend on them; every class occurs."""
    rng = np.random.default_rng(seed)
    proba = rng.integers(1, levels + 1, (n, n_classes)) / levels
    proba /= proba.sum(axis=1, keepdims=True)
    y = np.where(rng.random(n) < 0.5, proba.argmax(axis=1), rng.integers(0, n_classes, n))
    y[: min(n, n_classes)] = np.arange(min(n, n_classes))
    return proba, y


def close(a, b):
    return np.isclose(a, b, rtol=1e-12, atol=1e-12)


@given(figures)
@examples(50)
def test_two_classes(shape):
    proba, y = scored(n_classes=2, **shape)
    votes = proba.argmax(axis=1)
    ours = metrics.classification(proba, y)
    assert tuple(ours) == tuple(metric.key for metric in metrics.main_metrics(2))
    assert close(ours["auc"], sk.roc_auc_score(y, proba[:, 1]))
    assert close(ours["pr_auc"], sk.average_precision_score(y, proba[:, 1]))
    assert close(ours["accuracy"], sk.accuracy_score(y, votes))
    assert close(ours["f1"], sk.f1_score(y, votes, zero_division=np.nan))
    assert close(ours["mcc"], sk.matthews_corrcoef(y, votes))


@given(figures, st.integers(3, 5))
@examples(50)
def test_several_classes(shape, n_classes):
    shape["n"] = max(shape["n"], n_classes)
    proba, y = scored(n_classes=n_classes, **shape)
    votes = proba.argmax(axis=1)
    ours = metrics.classification(proba, y)
    assert close(ours["auc"], sk.roc_auc_score(y, proba, multi_class="ovr", average="macro"))
    each = [sk.average_precision_score(y == c, proba[:, c]) for c in range(n_classes)]
    assert close(ours["pr_auc"], np.mean(each))
    assert close(ours["accuracy"], sk.accuracy_score(y, votes))
    assert close(ours["f1"], sk.f1_score(y, votes, average="macro"))
    assert close(ours["mcc"], sk.matthews_corrcoef(y, votes))


def test_an_absent_class():
    """As in scikit-learn: the mean is over classes that occur or are predicted; other classes have no ranking."""
    proba = np.array([[0.8, 0.1, 0.1, 0.0], [0.2, 0.7, 0.1, 0.0], [0.6, 0.3, 0.1, 0.0], [0.5, 0.4, 0.1, 0.0]])
    y = np.array([0, 1, 1, 0])
    ours = metrics.classification(proba, y)
    assert close(ours["f1"], sk.f1_score(y, proba.argmax(axis=1), average="macro"))
    assert close(ours["mcc"], sk.matthews_corrcoef(y, proba.argmax(axis=1)))
    assert close(ours["auc"], np.mean([sk.roc_auc_score(y == c, proba[:, c]) for c in (0, 1)]))
    assert close(ours["pr_auc"], np.mean([sk.average_precision_score(y == c, proba[:, c]) for c in (0, 1)]))


@pytest.mark.parametrize("c", [0, 1])
def test_rows_of_one_class(c):
    """Undefined metrics are NaN, never 0: a site without positives does not have a bad model."""
    proba = np.array([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]])
    ours = metrics.classification(proba, np.full(3, c))
    assert np.isnan(ours["auc"])
    assert np.isnan(ours["mcc"])
    assert ours["accuracy"] == pytest.approx([2 / 3, 1 / 3][c])
    assert ours["f1"] == pytest.approx([0.0, 0.5][c])
    assert np.isnan(metrics.classification(proba[[0, 2]], np.zeros(2, int))["f1"])


def test_votes_that_differ_from_probabilities():
    """Decisions determine right and wrong; ranking and calibration use the probabilities."""
    proba, y = scored(60, 3, 10, 3)
    votes = np.random.default_rng(0).integers(0, 3, 60)
    ours, plain = metrics.classification(proba, y, votes), metrics.classification(proba, y)
    assert close(ours["accuracy"], sk.accuracy_score(y, votes))
    assert close(ours["f1"], sk.f1_score(y, votes, average="macro"))
    assert close(ours["mcc"], sk.matthews_corrcoef(y, votes))
    assert all(ours[name] == plain[name] for name in ("auc", "pr_auc", "calibration"))


def test_a_model_without_predictions():
    assert all(np.isnan(v) for v in metrics.classification(np.full((4, 2), np.nan), np.array([0, 1, 1, 0])).values())
    assert all(np.isnan(v) for v in metrics.regression(np.full(4, np.nan), np.arange(4.0)).values())
    together = np.array([metrics.moments(np.full(4, np.nan), np.arange(4.0)), metrics.moments(np.ones(2), np.zeros(2))])
    assert metrics.from_moments(together)["rmse"] == 1.0


def test_one_vote_for_all():
    proba = np.full((4, 2), 0.5)
    ours = metrics.classification(proba, np.array([0, 1, 1, 0]))
    assert ours["auc"] == 0.5
    assert ours["mcc"] == 0.0


@pytest.mark.parametrize("n_classes", [1, 2, 4])
def test_no_rows(n_classes):
    ours = metrics.classification(np.zeros((0, n_classes)), np.zeros(0, np.int32))
    assert all(np.isnan(value) for value in ours.values())
    assert all(np.isnan(value) for value in metrics.regression(np.zeros(0), np.zeros(0)).values())


@given(figures, st.integers(2, 4))
def test_metrics_from_sums_over_parts(shape, n_classes):
    """Counts of parts add up to the counts of all; a grid of scores costs little accuracy."""
    proba, y = scored(n_classes=n_classes, **{**shape, "n": max(shape["n"], n_classes)})
    part = np.arange(len(y)) % 3
    tables = [
        (
            np.array(metrics.count_scores(proba[part == i], y[part == i], exact=False)),
            metrics.confusion(proba[part == i], y[part == i]),
            metrics.calibration_sums(proba[part == i], y[part == i]),
        )
        for i in range(3)
    ]
    summed = metrics.from_counts(*(sum(column) for column in zip(*tables, strict=True)))
    exact = metrics.classification(proba, y)
    for name in ("accuracy", "f1", "mcc", "calibration"):
        assert summed[name] == exact[name] or np.isnan([summed[name], exact[name]]).all()
    coarse = np.minimum((proba * metrics.GRID).astype(int), metrics.GRID - 1)
    on_grid = metrics.from_counts(
        metrics.count_scores(coarse / metrics.GRID, y, exact=True), tables[0][1], tables[0][2]
    )
    assert close(summed["auc"], on_grid["auc"])
    assert close(summed["pr_auc"], on_grid["pr_auc"])


def test_the_grid_is_fine_enough():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 5000)
    p = np.clip(rng.normal(0.4 + 0.2 * y, 0.2), 0, 1)
    proba = np.stack([1 - p, p], axis=1)
    exact = metrics.classification(proba, y)
    summed = metrics.from_counts(
        metrics.count_scores(proba, y, exact=False), metrics.confusion(proba, y), metrics.calibration_sums(proba, y)
    )
    assert abs(summed["auc"] - exact["auc"]) < 1e-3
    assert abs(summed["pr_auc"] - exact["pr_auc"]) < 1e-2


def test_the_roc_curve():
    proba, y = scored(60, 1, 7, 2)
    [counts] = metrics.count_scores(proba, y, exact=True)
    x, true = metrics.roc_curve(*counts)
    expected = sk.roc_curve(y, proba[:, 1], drop_intermediate=False)
    assert np.allclose(x, expected[0])
    assert np.allclose(true, expected[1])
    assert np.trapezoid(true, x) == pytest.approx(metrics.roc_auc(*counts))


def test_calibration():
    """Scores that are right as often as they claim are calibrated."""
    proba = np.tile([0.25, 0.75], (400, 1))
    right = np.array([1] * 300 + [0] * 100)
    assert metrics.classification(proba, right)["calibration"] == pytest.approx(0.0)
    assert metrics.classification(proba, 1 - right)["calibration"] == pytest.approx(0.5)


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=2, max_size=40),
    st.sampled_from([0.0, 1e3, 1e9]),
)
@example([(0.0, 0.0), (1.0, 5e-157)], 0.0)
def test_numbers(pairs, shift):
    predicted, y = np.array(pairs).T + shift
    ours = metrics.regression(predicted, y)
    assert np.isclose(ours["rmse"], sk.root_mean_squared_error(y, predicted), rtol=1e-9, atol=1e-12)
    if np.ptp(y) > 1e-3:
        assert np.isclose(ours["r2"], sk.r2_score(y, predicted), rtol=1e-6, atol=1e-6)


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from([0.0, 1e3, 1e9]))
def test_numbers_from_moments_of_parts(seed, n_parts, shift):
    """Also far from zero, where sums of squares would have lost the spread."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=50) + shift
    predicted = y + rng.normal(size=50) / 3
    part = rng.integers(0, n_parts, 50)
    moments = np.array([metrics.moments(predicted[part == i], y[part == i]) for i in range(n_parts)])
    whole = metrics.from_moments(moments)
    assert whole["rmse"] == pytest.approx(sk.root_mean_squared_error(y, predicted), rel=1e-9)
    assert whole["r2"] == pytest.approx(sk.r2_score(y, predicted), rel=1e-5)


def test_constant_numbers():
    assert np.isnan(metrics.regression(np.ones(3), np.ones(3))["r2"])
    assert metrics.regression(np.ones(3), np.ones(3))["rmse"] == 0.0
