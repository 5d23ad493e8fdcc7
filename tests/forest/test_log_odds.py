"""Forests that add log-odds: predictions, file format, and invalid input."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.forests import random_forest, random_rows
from helpers.naive_answers import goes_left

from silvan.errors import ExportError, FormatError, InputError
from silvan.forest.arrays import CALIBRATION_ARRAYS
from silvan.forest.check import ODDS_CAP
from silvan.forest.forest import Forest, join_forests
from silvan.forest.predict import scores

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")


def added(n_classes=3, seed=0, n_knots=4):
    """A random forest whose leaf values are log-odds, with a random calibration."""
    rng = np.random.default_rng(seed)
    forest = random_forest(seed, n_classes=n_classes, n_trees=4, equal_weights=False)
    return replace(
        forest,
        value=rng.normal(size=forest.value.shape),
        combine="log_odds",
        knots=np.cumsum(rng.uniform(0.1, 2.0, (n_classes, n_knots)), axis=1) - 3,
        odds=np.cumsum(rng.uniform(0.0, 1.5, (n_classes, n_knots)), axis=1) - 2,
    )


def naive(forest, X):
    """Scores as docs/format.md defines them, row by row."""
    answers = []
    for x in X:
        sums = np.zeros(forest.n_outputs)
        for t in range(len(forest)):
            node = int(forest.offsets[t])
            while forest.feature[node] >= 0:
                node = int(forest.left[node] if goes_left(forest, node, x) else forest.right[node])
            sums += forest.weights[t] * forest.value[forest.leaf[node]]
        p = []
        for s, knots, odds in zip(sums, forest.knots, forest.odds, strict=True):
            i = 0
            while i < len(knots) - 2 and s > knots[i + 1]:
                i += 1
            line = odds[i] + (odds[i + 1] - odds[i]) * (s - knots[i]) / (knots[i + 1] - knots[i])
            p.append(1 / (1 + np.exp(-min(max(line, -500), 500))))
        answers.append(np.array(p) / sum(p))
    return np.array(answers)


@pytest.mark.parametrize("n_classes", [2, 3, 4])
def test_scores_follow_the_documented_formula(n_classes):
    forest = added(n_classes)
    X = random_rows(forest, 0, n=200)
    got = forest.scores(X)
    np.testing.assert_allclose(got, naive(forest, X), rtol=1e-9)
    np.testing.assert_allclose(got.sum(axis=1), 1.0)
    assert (forest.predict(X) == forest.classes[got.argmax(axis=1)]).all()


def test_sums_far_beyond_the_knots():
    forest = added()
    far = replace(forest, value=forest.value * 1e5)
    answers = far.scores(random_rows(forest, 1, n=100))
    assert np.isfinite(answers).all()
    np.testing.assert_allclose(answers.sum(axis=1), 1.0)


def test_a_file_keeps_the_calibration():
    forest = added()
    data = forest.to_bytes()
    again = Forest.from_bytes(data)
    assert again == forest
    for name in CALIBRATION_ARRAYS:
        np.testing.assert_array_equal(getattr(again, name), getattr(forest, name))
    assert again.to_bytes() == data


def test_the_hash_distinguishes_calibrations():
    forest = added()
    assert replace(forest, odds=forest.odds + 0.5).hash != forest.hash
    assert replace(forest, knots=forest.knots + 0.5).hash != forest.hash


def test_the_page_names_the_arrays():
    for name, dtype in CALIBRATION_ARRAYS.items():
        row = re.search(rf"^\| `{name}` \|.*$", PAGE, re.MULTILINE)[0]
        assert np.dtype(dtype).name in row
    assert "`log_odds`" in PAGE


WRONG = {
    "no knots": {"knots": None},
    "no odds": {"odds": None},
    "one knot": {"knots": np.zeros((3, 1)), "odds": np.zeros((3, 1))},
    "other classes": {"knots": np.tile([0.0, 1.0], (2, 1)), "odds": np.tile([0.0, 1.0], (2, 1))},
    "other shape": {"odds": np.zeros((3, 2))},
    "knots that fall": {"knots": np.tile([0.0, 2.0, 1.0, 3.0], (3, 1))},
    "equal knots": {"knots": np.tile([0.0, 1.0, 1.0, 3.0], (3, 1))},
    "odds that fall": {"odds": np.tile([0.0, 2.0, 1.0, 3.0], (3, 1))},
    "no number": {"odds": np.full((3, 4), np.nan)},
    "endless": {"knots": np.tile([0.0, 1.0, 2.0, np.inf], (3, 1))},
    "too far": {"odds": np.tile([0.0, 1.0, 2.0, 2 * ODDS_CAP], (3, 1))},
    "another way": {"combine": "mean"},
    "log-odds beyond": {"value": added().value * 1e7},
    "weights": {"weights": added().weights * 1e9},
}
KNOTS = {"knots": np.array([[0.0, 1.0]]), "odds": np.array([[0.0, 1.0]])}


@pytest.mark.parametrize("what", WRONG)
def test_refused_settings(what):
    with pytest.raises(FormatError, match="not a forest"):
        replace(added(), **WRONG[what])


def test_log_odds_are_for_trees_of_classes_that_add_them():
    for forest, changes, said in (
        (random_forest(0, n_classes=0), {"combine": "log_odds", **KNOTS}, "need classes"),
        (random_forest(0), {"knots": np.array([[0.0, 1.0]] * 2)}, "for trees that combine log-odds"),
    ):
        with pytest.raises(FormatError, match=said):
            replace(forest, **changes)


def test_unsupported_operations_on_log_odds(tmp_path):
    forest = added()
    X = random_rows(forest, 0, n=5)
    for export in (forest.to_sklearn, lambda: forest.to_onnx(tmp_path / "f"), forest.to_treelite):
        with pytest.raises(ExportError, match="log_odds"):
            export()
    for use, said in (
        (lambda: join_forests([forest, forest]), "its own calibration"),
        (lambda: scores(forest, X, skip=np.zeros((4, 5), np.bool_)), "cannot be skipped"),
    ):
        with pytest.raises(InputError, match=said):
            use()


def test_some_of_its_trees():
    forest = added()
    some = forest.take([0, 2])
    assert isinstance(some, Forest)
    assert some.combine == "log_odds"
    X = random_rows(forest, 0, n=50)
    np.testing.assert_allclose(some.scores(X), naive(some, X), rtol=1e-9)
