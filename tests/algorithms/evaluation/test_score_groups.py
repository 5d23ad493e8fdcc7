"""Groups of rows that share a score: their size, what they preserve, and that no label is disclosed."""

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silvan.algorithms.evaluation.score_groups import Answer, arrange, in_groups, one_class
from silvan.algorithms.evaluation.score_quality import delong
from silvan.metrics import classification
from silvan.privacy.policy import PolicyBetweenMachines


def answer(n, n_classes, seed=0, levels=50):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (n, n_classes or 1)) / levels
    return Answer(scores, scores.argmax(axis=1))


def of_two(score):
    return Answer(np.column_stack([1 - score, score]), (score > 0.5).astype(int))


def told(answer, labels):
    """What is counted: labels by score and decision, in no order."""
    columns = np.column_stack([answer.scores, answer.decided, labels])
    return columns[np.lexsort(columns.T)].tobytes()


@given(
    st.integers(3, 60), st.sampled_from([0, 2, 3, 5]), st.integers(3, 7), st.integers(0, 99), st.sampled_from([2, 50])
)
def test_groups_are_large_enough_and_in_order(n, n_classes, least, seed, levels):
    before = answer(n, n_classes, seed, levels)
    y = np.random.default_rng(seed).integers(0, n_classes or 9, n)
    after, labels = in_groups(before, y, n_classes, least)
    if n < least:
        assert after.silent
        return
    _, sizes = np.unique(np.column_stack([after.scores, after.decided]), axis=0, return_counts=True)
    assert sizes.min() >= least
    np.testing.assert_allclose(after.scores.mean(axis=0), before.scores.mean(axis=0), atol=1e-8)
    if n_classes:
        assert set(after.decided) <= set(before.decided)
        # only a row of another class where there was none
        change = np.bincount(labels, minlength=n_classes) - np.bincount(y, minlength=n_classes)
        assert np.abs(change).sum() <= 2 * n_classes
    else:
        np.testing.assert_array_equal(labels, y)
    if n_classes in (0, 2):
        order = np.argsort(before.scores[:, -1], kind="stable")
        assert (np.diff(after.scores[order, -1]) >= 0).all()


def test_groups_of_one_row():
    before, y = answer(30, 2), np.arange(30) % 2
    assert in_groups(before, y, 2, 1)[0] is before
    assert in_groups(before, y, 2, 1)[1] is y
    silent = Answer(np.full((30, 2), np.nan), np.zeros(30, int))
    assert in_groups(silent, y, 2, 5)[0] is silent


@pytest.mark.parametrize(
    ("n", "n_classes", "least", "levels"),
    [(5, 2, 5, 50), (10, 2, 5, 50), (9, 2, 3, 50), (10, 2, 5, 3), (9, 2, 4, 2), (6, 3, 3, 50), (6, 3, 4, 2)],
)
def test_no_label_is_disclosed(n, n_classes, least, levels):
    """Labellings that give the same report leave at least two possible classes for every row."""
    for seed in range(2):
        before = answer(n, n_classes, seed, levels)
        alike = defaultdict(list)
        for labels in product(range(n_classes), repeat=n):
            y = np.array(labels)
            alike[told(*in_groups(before, y, n_classes, least))].append(y)
        for found in alike.values():
            assert all(len(np.unique(row)) > 1 for row in np.array(found).T)
        assert len(alike) > n // least  # and something is disclosed


def test_assigned_labels_follow_from_the_report():
    """Also the order within a group, because models are compared row by row."""
    before, seen = answer(8, 2, levels=50), {}
    for labels in product(range(2), repeat=8):
        after, counted = in_groups(before, np.array(labels), 2, 3)
        assert seen.setdefault(told(after, counted), counted.tobytes()) == counted.tobytes()


def test_an_isolated_row_has_no_effect():
    """A row whose score is unlike all others changes nothing, whatever its label."""
    score, y = np.zeros(40), np.arange(40) % 2
    score[7] = 1.0
    figures = []
    for label in (0, 1):
        y[7] = label
        grouped, labels = in_groups(of_two(score), y, 2, 5)
        figures.append(classification(grouped.scores, labels, grouped.decided))
    assert figures[0]["auc"] == figures[1]["auc"] == 0.5
    assert np.unique(grouped.scores, axis=0).shape == (1, 2)


def honest(n, seed=0, signal=1.5, sure=1.0):
    """Scores of a model that ranks rows well and may be over- or underconfident; and labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    return 1 / (1 + np.exp(-sure * signal * (signal * (y - 0.5) + rng.normal(size=n)))), y


@pytest.mark.parametrize("n", [170, 1000])
@pytest.mark.parametrize("signal", [0.7, 1.5, 3.0])
@pytest.mark.parametrize("sure", [0.4, 1.0, 2.0])
def test_metrics_of_an_honest_model_hardly_change(n, signal, sure):
    """Far less than by chance: on other rows, the AUC varies by about 0.5 / sqrt(n)."""
    change = defaultdict(list)
    for seed in range(20):
        score, y = honest(n, seed, signal, sure)
        before = of_two(score)
        after, labels = in_groups(before, y, 2, 5)
        for name, value in classification(before.scores, y, before.decided).items():
            change[name].append(classification(after.scores, labels, after.decided)[name] - value)
    for name in ("auc", "accuracy", "f1"):
        assert abs(np.mean(change[name])) < 0.06 / n**0.5, name
        assert np.std(change[name]) < 0.15 / n**0.5, name


def test_a_perfect_model_seems_to_err_once_per_class():
    y = np.arange(100) % 2
    after, labels = in_groups(of_two(0.1 + 0.8 * y), y, 2, 5)
    assert (labels != y).sum() == 2
    assert classification(after.scores, labels, after.decided)["accuracy"] == 0.98


def test_intervals_of_gains_are_about_as_wide():
    for seed in range(5):
        score, y = honest(300, seed)
        other = np.clip(score + np.random.default_rng(seed).normal(size=300) / 8, 0, 1)
        (one, labels), (base, base_labels) = (in_groups(of_two(s), y, 2, 5) for s in (score, other))
        exact = np.diff(delong(score, other, y == 1))
        arranged = arrange(one, labels, base_labels)
        assert told(one, arranged) == told(one, labels)
        assert np.diff(delong(one.scores[:, 1], base.scores[:, 1], arranged == 1)) == pytest.approx(exact, rel=0.3)


def test_rows_of_one_class():
    assert one_class(np.array([0, 0, 1, 0]), 2)
    assert not one_class(np.array([0, 1, 1, 0]), 2)
    assert not one_class(np.array([0.0, 0.0]), 0)
    assert not one_class(np.array([0, 1, 2]), 3)


def test_fewer_rows_than_a_group_have_no_metrics():
    assert not PolicyBetweenMachines().allows_metrics(4)
    assert PolicyBetweenMachines().allows_metrics(5)
