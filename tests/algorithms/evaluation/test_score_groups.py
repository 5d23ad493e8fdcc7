"""Rows in groups that share a score: how large they are, what they keep, and what a model made to single out tells."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import silvan as sv
from silvan.algorithms.evaluation.figures import Answer
from silvan.algorithms.evaluation.score_groups import in_groups
from silvan.metrics import classification


def answer(n, n_classes, seed=0, levels=50):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (n, n_classes or 1)) / levels
    return Answer(scores, scores.argmax(axis=1))


@given(
    st.integers(1, 60), st.sampled_from([0, 2, 3, 5]), st.integers(2, 7), st.integers(0, 99), st.sampled_from([2, 50])
)
def test_groups_are_large_enough_and_in_order(n, n_classes, least, seed, levels):
    before = answer(n, n_classes, seed, levels)
    after = in_groups(before, n_classes, least)
    _, sizes = np.unique(np.column_stack([after.scores, after.decided]), axis=0, return_counts=True)
    assert sizes.min() >= min(least, n)
    np.testing.assert_allclose(after.scores.mean(axis=0), before.scores.mean(axis=0), atol=1e-8)
    if n_classes != 0:
        assert set(after.decided) <= set(before.decided)
    if n_classes in (0, 2):
        order = np.argsort(before.scores[:, -1], kind="stable")
        assert (np.diff(after.scores[order, -1]) >= 0).all()


def test_every_row_by_itself():
    before = answer(30, 2)
    assert in_groups(before, 2, 1) is before
    silent = Answer(np.full((9, 2), np.nan), np.zeros(9, int))
    assert in_groups(silent, 2, 5) is silent


def test_one_row_set_apart_is_not_seen():
    """Whatever its label, a row that scores unlike all others changes nothing."""
    scores = np.zeros((40, 2))
    scores[7] = [0.0, 1.0]
    scores[:, 0] = 1.0 - scores[:, 1]
    y = np.arange(40) % 2
    figures = []
    for label in (0, 1):
        y[7] = label
        grouped = in_groups(Answer(scores, scores.argmax(axis=1)), 2, 5)
        figures.append(classification(grouped.scores, y, grouped.decided))
    assert figures[0]["auc"] == figures[1]["auc"] == 0.5
    assert np.unique(grouped.scores, axis=0).shape == (1, 2)


@pytest.mark.parametrize("n", [100, 1000])
def test_an_honest_models_figures_hardly_change(n):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    score = 1 / (1 + np.exp(-(1.5 * y + rng.normal(size=n))))
    before = Answer(np.column_stack([1 - score, score]), (score > 0.5).astype(int))
    after = in_groups(before, 2, 5)
    for name, value in classification(before.scores, y, before.decided).items():
        assert classification(after.scores, y, after.decided)[name] == pytest.approx(value, abs=5 / n), name


def test_of_fewer_rows_than_a_group_there_are_no_figures():
    assert not sv.Policy(score_groups=5).allows_figures(np.array([0, 1, 0, 1]), 2)
    assert sv.Policy(score_groups=5).allows_figures(np.array([0, 1, 0, 1, 1]), 2)
