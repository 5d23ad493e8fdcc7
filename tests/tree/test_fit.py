"""From a table to a forest: the same wherever it is grown, within every limit, and with correct leaves."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.naive_answers import goes_left
from helpers.tables import random_table
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from silvan import ForestClassifier, ForestRegressor
from silvan.errors import InputError
from silvan.tree import fit
from silvan.tree.fit import Settings, fit_forest
from silvan.tree.objectives import OBJECTIVES
from silvan.tree.sampling import SamplingKeys, make_key, rows_of_trees

rng = np.random.default_rng(0)
NUMBERS = rng.normal(size=(300, 6))
CLASSES = (NUMBERS[:, :3].sum(axis=1) + rng.normal(size=300) * 0.5 > 0).astype(int)


def keys(seed=0):
    return SamplingKeys(make_key(seed, "rows"), make_key(seed, "features"))


def fit_random(seed=0, settings=None, **arguments):
    shape = {"n_rows": 200, "n_features": 6, "n_classes": 3} | arguments.pop("shape", {})
    X, schema, target = random_table(seed, **shape)
    settings = settings or Settings(n_estimators=9)
    return (
        fit_forest(X, target, schema, settings, keys(arguments.pop("random_state", 0)), **arguments).forest,
        X,
        target,
    )


def leaf_of(forest, tree, x):
    node = int(forest.offsets[tree])
    while forest.feature[node] >= 0:
        node = int(forest.left[node] if goes_left(forest, node, x) else forest.right[node])
    return node


def rows_by_leaf(forest, X, bootstrap=True, seed=0):
    """Yields the training rows of every leaf, tree by tree."""
    drawn = rows_of_trees(keys(seed)[0], np.arange(len(X), dtype=np.uint64), 0, len(forest), bootstrap)
    for tree in range(len(forest)):
        rows = np.flatnonzero(drawn[tree])
        leaves = np.array([leaf_of(forest, tree, X[i]) for i in rows])
        for leaf in np.unique(leaves):
            yield leaf, rows[leaves == leaf]


# -- the same everywhere


@pytest.mark.parametrize("n_classes", [0, 3])
def test_threads_do_not_matter(n_classes):
    settings = Settings(n_estimators=30, criterion="gini" if n_classes else "squared_error")
    forests = [fit_random(settings=settings, shape={"n_classes": n_classes}, n_jobs=n)[0] for n in (1, 2, 5)]
    assert len({forest.hash for forest in forests}) == 1
    assert len({forest.gain.tobytes() for forest in forests}) == 1  # importances too, bit for bit


def test_batches_do_not_matter(monkeypatch):
    together = fit_random()[0]
    monkeypatch.setattr(fit, "tree_batches", lambda n_trees, *_: [range(t, t + 1) for t in range(n_trees)])
    apart = fit_random()[0]
    assert apart.hash == together.hash
    assert apart.gain.tobytes() == together.gain.tobytes()


@given(st.integers(1, 300), st.integers(1, 10**7), st.integers(1, 64))
def test_batches_hold_every_tree_once(n_trees, n_rows, threads):
    batches = fit.tree_batches(n_trees, n_rows, threads)
    assert [t for batch in batches for t in batch] == list(range(n_trees))


def test_another_process_grows_the_same_forest():
    code = "from tree.test_fit import fit_random; print(fit_random()[0].hash)"
    tests = Path(__file__).parents[1]
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tests, check=True)
    assert run.stdout.strip() == fit_random()[0].hash


def test_rows_may_come_in_any_order_with_their_keys():
    X, schema, target = random_table(0, n_rows=200, n_features=6, n_classes=3)
    order = np.random.default_rng(1).permutation(200)
    shuffled = OBJECTIVES["gini"].target(target.rows[order], 3)
    names = np.arange(200, dtype=np.uint64)
    settings = Settings(n_estimators=9)
    first = fit_forest(X, target, schema, settings, keys(), row_keys=names).forest
    assert fit_forest(X[order], shuffled, schema, settings, keys(), row_keys=names[order]).forest.hash == first.hash
    assert fit_forest(X[order], shuffled, schema, settings, keys(), row_keys=names).forest.hash != first.hash


@pytest.mark.parametrize("criterion", ["gini", "entropy"])
def test_relabelled_classes_grow_the_same_trees(criterion):
    X, schema, target = random_table(0, n_rows=200, n_features=6, n_classes=3)
    settings = Settings(n_estimators=9, criterion=criterion)
    first = fit_forest(X, target, schema, settings, keys()).forest
    order = np.array([2, 0, 1])
    other = fit_forest(X, OBJECTIVES["gini"].target(order[target.rows], 3), schema, settings, keys()).forest
    for name in ("offsets", "feature", "threshold", "missing_left", "sets"):
        np.testing.assert_array_equal(getattr(other, name), getattr(first, name))
    np.testing.assert_array_equal(other.value[:, order], first.value)


def test_random_state_matters():
    assert fit_random()[0].hash == fit_random(random_state=0)[0].hash
    assert fit_random()[0].hash != fit_random(random_state=1)[0].hash


# -- limits


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize(("min_leaf", "min_split"), [(1, 2), (7, 2), (2, 30)])
def test_leaves_and_splits_have_enough_rows(bootstrap, min_leaf, min_split):
    settings = Settings(n_estimators=5, min_samples_leaf=min_leaf, min_samples_split=min_split, bootstrap=bootstrap)
    forest, X, target = fit_random(settings=settings)
    below = np.zeros(len(forest.feature), int)
    leaves = list(rows_by_leaf(forest, X, bootstrap))
    for leaf, rows in leaves:
        assert len(rows) >= min_leaf
        shares = np.bincount(target.rows[rows], minlength=3) / len(rows)
        np.testing.assert_allclose(forest.value[forest.leaf[leaf]], shares, rtol=1e-15)
        below[leaf] = len(rows)
    assert {leaf for leaf, _ in leaves} == set(np.flatnonzero(forest.feature < 0))  # no leaf without rows
    for node in np.flatnonzero(forest.feature >= 0)[::-1]:
        below[node] = below[forest.left[node]] + below[forest.right[node]]
        assert below[node] >= min_split


@pytest.mark.parametrize("weighted", [True, False])
def test_leaves_have_enough_mass(weighted):
    settings = Settings(n_estimators=5, min_samples_leaf=1, min_weight_fraction_leaf=0.05)
    forest, X, target = fit_random(settings=settings, shape={"weighted": weighted})
    mass = target.rows[:, 1:].sum(axis=1) if weighted else np.ones(200)
    smallest = min(mass[rows].sum() for _, rows in rows_by_leaf(forest, X))
    assert 0.05 * mass.sum() <= smallest < 0.15 * mass.sum()


@pytest.mark.parametrize("max_depth", [1, 3, None])
def test_depth(max_depth):
    forest = fit_random(settings=Settings(n_estimators=5, max_depth=max_depth))[0]
    deepest = np.maximum.reduceat(forest.depth, forest.offsets[:-1])
    assert (deepest > 3).all() if max_depth is None else (deepest == max_depth).all()


def test_without_limits_leaves_are_pure():
    model = ForestClassifier(10, min_samples_leaf=1, max_bins=255, bootstrap=False).fit(NUMBERS, CLASSES)
    assert np.isin(model.forest_.value, [0, 1]).all()
    assert (model.predict(NUMBERS) == CLASSES).all()


def test_constant_columns_do_not_end_a_branch():
    X = np.zeros((300, 200))
    X[:, 150] = NUMBERS[:, 0]
    y = (NUMBERS[:, 0] > 0).astype(int)
    model = ForestClassifier(10, max_features=1).fit(X, y)
    assert model.score(X, y) > 0.98
    assert set(model.forest_.feature) == {-1, 150}


def test_columns_with_too_few_rows_per_side_end_a_branch():
    X = np.zeros((40, 2))
    X[0, 0], X[:, 1] = 1.0, np.arange(40) % 2
    model = ForestClassifier(20, max_features=1, bootstrap=False).fit(X, np.arange(40) % 2)
    used = np.split(model.forest_.feature, model.forest_.offsets[1:-1])
    assert {tuple(tree) for tree in used} == {(-1,), (1, -1, -1)}  # those that sampled the first column have no split


@pytest.mark.parametrize(("max_features", "n_sampled"), [("sqrt", 2), (1, 1), (0.5, 3), (None, 6), ("log2", 2)])
def test_features_by_tree(max_features, n_sampled):
    settings = Settings(20, feature_sampling="tree", max_features=max_features)
    forest = fit_random(settings=settings)[0]
    assert settings.n_sampled(6) == n_sampled
    used = [set(forest.feature[a:b]) - {-1} for a, b in zip(forest.offsets[:-1], forest.offsets[1:], strict=True)]
    assert max(map(len, used)) == n_sampled
    assert n_sampled == 6 or len(set(map(frozenset, used))) > 3  # trees differ


# -- weights


def test_class_weights_are_row_weights():
    model = ForestClassifier(10)
    by_row = model.fit(NUMBERS, CLASSES, np.where(CLASSES == 1, 3.0, 1.0)).forest_
    by_class = ForestClassifier(10, class_weight={1: 3}).fit(NUMBERS, CLASSES).forest_
    assert by_class.hash == by_row.hash
    assert by_class.hash != model.fit(NUMBERS, CLASSES).forest_.hash


@pytest.mark.parametrize("model", [ForestClassifier(3), ForestRegressor(3)], ids=["classes", "number"])
def test_a_weight_of_two_is_two_rows(model):
    model.set_params(bootstrap=False, max_features=None, min_samples_leaf=1)
    X = np.random.default_rng(0).permutation(60).reshape(20, 3)  # few values, so that each has its own bin
    y = X[:, 0] % 7 % 3
    weight = np.arange(20) % 4
    repeated = np.repeat(np.arange(20), weight)
    one, other = model.fit(X, y, weight).forest_, model.fit(X[repeated], y[repeated]).forest_
    # without missing values, these follow the larger side, and here rows differ
    for name in ("offsets", "feature", "threshold"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    np.testing.assert_allclose(one.value, other.value, rtol=1e-9, atol=1e-9)


# -- the result


def test_importances_find_the_important_columns():
    informative = ForestClassifier(50, random_state=1).fit(NUMBERS, CLASSES).forest_.importances()
    assert sum(informative.values()) == pytest.approx(1)
    assert min(informative[f"x{i}"] for i in range(3)) > 2 * max(informative[f"x{i}"] for i in range(3, 6))
    nothing = ForestClassifier(5).fit(np.ones((50, 2)), CLASSES[:50]).forest_.importances()
    assert nothing == {"x0": 0, "x1": 0}


@pytest.mark.parametrize("unit", [1.0, 1e-30, 1e30, 1e200])
def test_leaf_means(unit):
    y = (NUMBERS[:, 0] * 10 + NUMBERS[:, 1] + 1000) * unit
    model = ForestRegressor(3, max_depth=4).fit(NUMBERS, y)
    X = NUMBERS.astype(np.float32)
    for leaf, rows in rows_by_leaf(model.forest_, X):
        assert model.forest_.value[model.forest_.leaf[leaf], 0] == pytest.approx(y[rows].mean(), rel=1e-9)
    assert np.corrcoef(model.predict(NUMBERS) / unit, y / unit)[0, 1] > 0.8


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("bootstrap", [True, False])
def test_tiny_tables(n, bootstrap):
    """Many trees sample no row at all; they must not count."""
    X, y = np.arange(n)[:, None], np.arange(n)
    model = ForestClassifier(50, bootstrap=bootstrap, min_samples_leaf=1).fit(X, y)
    drawn = rows_of_trees(keys()[0], np.arange(n, dtype=np.uint64), 0, 50, bootstrap)
    np.testing.assert_array_equal(model.forest_.weights, drawn.any(axis=1))
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    assert (model.predict(X) == y).all()
    mean = ForestRegressor(50, bootstrap=bootstrap).fit(X, y).predict(X)
    assert (mean >= 0).all()
    assert (mean <= n - 1).all()


def test_a_forest_without_any_row_is_refused():
    seed = next(s for s in range(99) if not rows_of_trees(keys(s)[0], np.zeros(1, np.uint64), 0, 1, True))
    with pytest.raises(InputError, match="no tree sampled any row"):
        ForestClassifier(1, random_state=seed).fit([[1.0]], [0])


def test_as_good_as_scikit_learn():
    X, y = load_breast_cancer(return_X_y=True)
    X_fit, X_test, y_fit, y_test = train_test_split(X, y, random_state=0)
    ours, theirs = (
        roc_auc_score(y_test, m(100, random_state=0).fit(X_fit, y_fit).predict_proba(X_test)[:, 1])
        for m in (ForestClassifier, RandomForestClassifier)
    )
    assert ours > theirs - 0.01
    X, y = load_diabetes(return_X_y=True)
    X_fit, X_test, y_fit, y_test = train_test_split(X, y, random_state=0)
    ours, theirs = (
        m(100, random_state=0, min_samples_leaf=2).fit(X_fit, y_fit).score(X_test, y_test)
        for m in (ForestRegressor, RandomForestRegressor)
    )
    assert ours > theirs - 0.05
