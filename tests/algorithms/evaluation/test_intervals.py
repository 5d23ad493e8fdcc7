"""Significance of gains: DeLong against its definition, resampling against explicit rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from silvan.algorithms.evaluation.score_quality import (
    FEWEST_NUMBERS,
    Z,
    delong,
    intervals,
    midranks,
    placements,
    resampled_metrics,
)
from silvan.algorithms.keyed_rows import draw_times, folds_of
from silvan.metrics import FEWEST_OF_A_CLASS, FEWEST_ROWS
from silvan.tree.sampling import make_key

KEY = make_key(0, "rows")


def two(n, seed, levels=10**6, strength=(1.0, 0.5)):
    """Scores of two models that share some noise, with ties if levels are few; classes as bools."""
    rng = np.random.default_rng(seed)
    positive = rng.permutation(np.arange(n) < max(2, n // 3))
    shared = rng.normal(size=n)
    scores = [s * positive + 0.7 * shared + 0.7 * rng.normal(size=n) for s in strength]
    return [np.rint(levels / 20 * (s + 5)) / levels for s in scores], positive


def columns(scores):
    return np.stack([1 - scores, scores], axis=1)


# -- DeLong


def delong_naive(a, b, positive):
    """By definition: every pair of a positive and a negative row, O(n^2)."""

    def psi(scores):
        x, y = scores[positive][:, None], scores[~positive][None, :]
        return (x > y) + 0.5 * (x == y)

    difference = psi(a) - psi(b)
    by_positive, by_negative = difference.mean(axis=1), difference.mean(axis=0)
    p, n = len(by_positive), len(by_negative)
    m = difference.mean()
    variance = ((by_positive - m) ** 2).sum() / (p - 1) / p + ((by_negative - m) ** 2).sum() / (n - 1) / n
    return m - Z * np.sqrt(variance), m + Z * np.sqrt(variance), variance


@given(st.integers(6, 80), st.integers(0, 2**32 - 1), st.sampled_from([2, 5, 20, 10**6]))
def test_delong_equals_its_definition_by_pairs(n, seed, levels):
    (a, b), positive = two(n, seed, levels)
    low, high, variance = delong_naive(a, b, positive)
    found = delong(a, b, positive)
    if variance < 1e-20:
        assert np.isnan(found).all()
    else:
        assert found == pytest.approx((max(low, -1.0), min(high, 1.0)), abs=1e-9)


@given(st.integers(6, 60), st.integers(0, 2**32 - 1), st.sampled_from([2, 7, 10**6]))
def test_the_mean_placement_is_the_auc(n, seed, levels):
    (a, _), positive = two(n, seed, levels)
    auc = sk.roc_auc_score(positive, a)
    assert [p.mean() for p in placements(a, positive)] == pytest.approx([auc, auc])


def test_midranks():
    assert midranks(np.array([3.0, 1.0, 3.0, 2.0, 3.0])).tolist() == [4.0, 1.0, 4.0, 2.0, 4.0]


@pytest.mark.parametrize("strength", [(0.8, 0.8), (1.2, 0.6)])
def test_intervals_have_their_nominal_coverage(strength):
    """Over many samples, 95 in 100 intervals contain the true difference."""
    from math import erf

    def auc(s):
        return 0.5 * (1 + erf(s / (2 * np.sqrt(0.98))))

    true = auc(strength[0]) - auc(strength[1])
    held = 0
    for seed in range(400):
        (a, b), positive = two(90, seed, strength=strength)
        low, high = delong(a, b, positive)
        held += low <= true <= high
    assert 0.92 <= held / 400 <= 0.98


# -- resamples


def naive_resamples(answers, y, n_classes, numbers):
    """Writes out the sampled rows and evaluates them with scikit-learn."""
    groups = [np.flatnonzero(y == c) for c in range(n_classes)] if n_classes else [np.arange(len(y))]
    starts, members = np.cumsum([0, *map(len, groups)]), np.concatenate(groups)
    found = []
    for number in numbers:
        times = np.empty(len(y), np.int32)
        draw_times(KEY, number, starts, members, times)
        rows = np.repeat(np.arange(len(y)), times)
        if n_classes:
            assert (np.bincount(y[rows]) == np.bincount(y)).all()
            each = [np.mean([sk.roc_auc_score(y[rows] == c, a[rows, c]) for c in range(n_classes)]) for a in answers]
        else:
            assert len(rows) == len(y)
            each = [sk.root_mean_squared_error(y[rows], a[rows, 0]) for a in answers]
        found.append(each)
    return np.array(found)


def several(n=60, n_classes=3, seed=0, levels=8):
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % n_classes).astype(np.int32)
    answers = []
    for strength in (0.3, 0.9):
        scores = np.rint(levels * (rng.random((n, n_classes)) + strength * np.eye(n_classes)[y]))
        answers.append((scores + 1) / (scores + 1).sum(axis=1, keepdims=True))
    return answers, y


def numbers(n=60, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=n)
    return [(y + rng.normal(size=n) * s)[:, None] for s in (1.0, 0.5)], y


@pytest.mark.parametrize("n_classes", [0, 3])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_resampling_equals_explicit_rows(n_classes, n_jobs):
    answers, y = several() if n_classes else numbers()
    found = resampled_metrics(answers, y, n_classes, KEY, n_jobs)
    assert found.shape == (1000, 2)
    assert found[:20] == pytest.approx(naive_resamples(answers, y, n_classes, range(20)), abs=1e-12)
    assert len(np.unique(found[:, 0])) > 500, "draws must differ"


def test_rows_are_sampled_equally_often():
    times, total = np.empty(50, np.int32), np.zeros(50)
    for number in range(2000):
        draw_times(KEY, number, np.array([0, 20, 50]), np.arange(50), times)
        total += times
    assert np.abs(total / 2000 - 1.0).max() < 0.12  # 5 standard deviations
    assert total[:20].sum() == 2000 * 20


@pytest.mark.parametrize("n_classes", [0, 3])
def test_intervals_of_resamples(n_classes):
    """A clear gain is significant, also for errors; no gain is not; and the order of models does not matter."""
    answers, y = several(300, 3) if n_classes else numbers(300)
    found = intervals([*answers, answers[0]], 0, y, n_classes, KEY)
    assert np.isnan(found[0]).all()
    assert 0.0 < found[1][0] < found[1][1]
    assert found[2].tolist() == [0.0, 0.0]
    turned = intervals(answers, 1, y, n_classes, KEY)
    assert turned[0] == pytest.approx(-found[1][::-1], abs=1e-12)


def test_large_tables_use_fewer_resamples(monkeypatch):
    monkeypatch.setattr("silvan.algorithms.evaluation.score_quality.ROWS_DRAWN", 60 * 250)
    answers, y = numbers()
    assert len(resampled_metrics(answers, y, 0, KEY, 1)) == 250


# -- where there is no interval


def test_few_rows_have_no_interval():
    (a, b), positive = two(40, 0)
    y = positive.astype(np.int32)
    order = np.argsort(~positive, kind="stable")

    def found(n_positive, n):
        rows = np.concatenate([order[:n_positive], order[::-1][: n - n_positive]])
        return intervals([columns(a[rows]), columns(b[rows])], 0, y[rows], 2, KEY)[1]

    assert np.isfinite(found(FEWEST_OF_A_CLASS, 20)).all()
    assert np.isfinite(found(FEWEST_OF_A_CLASS, FEWEST_ROWS)).all()
    assert np.isnan(found(FEWEST_OF_A_CLASS - 1, 20)).all()
    assert np.isnan(found(0, 20)).all()
    for n, known in ((FEWEST_NUMBERS - 1, False), (FEWEST_NUMBERS, True)):
        answers, y_ = numbers(n)
        assert np.isfinite(intervals(answers, 0, y_, 0, KEY)[1]).all() == known
    assert np.isnan(intervals([np.zeros((0, 2))] * 2, 0, np.zeros(0, np.int32), 2, KEY)).all()


def test_a_rare_or_absent_class():
    answers, y = several(60)
    y[np.flatnonzero(y == 2)[3:]] = 0
    assert np.isnan(intervals(answers, 0, y, 3, KEY)).all()
    y[y == 2] = 0
    assert np.isfinite(intervals(answers, 0, y, 3, KEY)[1]).all(), "the interval is of the two others"


def test_a_constant_model():
    (a, b), positive = two(40, 0)
    silent = np.full((40, 2), np.nan)
    y = positive.astype(np.int32)
    found = intervals([columns(a), silent, columns(b)], 0, y, 2, KEY)
    assert np.isnan(found[:2]).all()
    assert np.isfinite(found[2]).all()
    assert np.isnan(intervals([silent, columns(a)], 0, y, 2, KEY)).all()
    assert np.isnan(intervals([columns(a), columns(b)], -1, y, 2, KEY)).all()


def test_zero_spread_is_not_certainty():
    """Two models that rank all rows correctly have different scores; that they are equally good is not certain."""
    y = np.array([0, 1] * 10, np.int32)
    right, other = columns(y * 0.5 + 0.25), columns(y * 0.8 + 0.1)
    assert np.isnan(intervals([right, other], 0, y, 2, KEY)[1]).all()
    assert intervals([right, right], 0, y, 2, KEY)[1].tolist() == [0.0, 0.0]
    assert np.isnan(intervals([columns(np.full(20, 0.5)), right], 0, y, 2, KEY)[1]).all()


# -- folds


@given(st.integers(2, 12), st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(0, 100))
def test_folds_are_stratified(n_folds, sizes, seed):
    groups = np.repeat(np.arange(len(sizes)), sizes)
    fold = folds_of(make_key(seed, "rows"), np.arange(len(groups), dtype=np.uint64), groups, n_folds)
    for group in [groups >= 0, *(groups == g for g in range(len(sizes)))]:
        counts = np.bincount(fold[group], minlength=n_folds)
        assert counts.max() - counts.min() <= 1


def test_folds_follow_from_rows_and_key():
    keys, groups = np.arange(50, dtype=np.uint64), np.arange(50) % 2
    fold = folds_of(KEY, keys, groups, 5)
    turned = np.random.default_rng(0).permutation(50)
    assert folds_of(KEY, keys[turned], groups[turned], 5).tolist() == fold[turned].tolist()
    assert folds_of(make_key(1, "rows"), keys, groups, 5).tolist() != fold.tolist()
