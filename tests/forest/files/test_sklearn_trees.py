"""Forests from scikit-learn and back: predictions agree bit for bit, on rows close to every threshold."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers.forests import CLASSES, MIXED, random_forest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import ensemble, tree

from silvan import ExportError, Forest, InputError, Label, Schema
from silvan.forest.parity import probing_rows
from silvan.forest.sklearn_trees import not_above

pytestmark = pytest.mark.filterwarnings("ignore:scikit-learn's copy predicts the same")

LARGEST = float(np.finfo(np.float32).max)


def table(missing=True):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 5)).astype(np.float32)
    classes = (X[:, 0] + X[:, 1] ** 2 > 1).astype(int) + (X[:, 2] > 0.5)
    numbers = X[:, 0] * 3 + rng.normal(size=300)
    if missing:
        X[rng.random(X.shape) < 0.1] = np.nan
    return X, classes, numbers


def answers(model, rows):
    if hasattr(model, "feature_names_in_"):
        rows = pd.DataFrame(rows, columns=model.feature_names_in_)
    # scikit-learn adds all values to see whether they are finite; ours go up to the largest there are
    with np.errstate(over="ignore", invalid="ignore"):
        if hasattr(model, "classes_"):
            return model.predict_proba(rows), model.predict(rows)
        return model.predict(rows)[:, None], model.predict(rows)


def assert_same(model, forest):
    rows = probing_rows(forest)
    scores, predictions = answers(model, rows)
    np.testing.assert_array_equal(forest.scores(rows), scores)
    np.testing.assert_array_equal(forest.predict(rows), predictions)


CLASSIFIERS = [
    ensemble.RandomForestClassifier(8, random_state=0),
    ensemble.RandomForestClassifier(8, random_state=0, criterion="entropy", max_leaf_nodes=20),
    ensemble.RandomForestClassifier(8, random_state=0, class_weight="balanced_subsample", ccp_alpha=0.01),
    ensemble.ExtraTreesClassifier(8, random_state=0, bootstrap=True),
    tree.DecisionTreeClassifier(random_state=0, max_features=2),
    tree.ExtraTreeClassifier(random_state=0),
]
REGRESSORS = [
    ensemble.RandomForestRegressor(8, random_state=0),
    ensemble.RandomForestRegressor(8, random_state=0, criterion="absolute_error", max_depth=3),
    ensemble.ExtraTreesRegressor(8, random_state=0),
    tree.DecisionTreeRegressor(random_state=0),
    tree.ExtraTreeRegressor(random_state=0),
]


@pytest.mark.parametrize("model", CLASSIFIERS + REGRESSORS, ids=lambda model: str(model).replace(" ", ""))
def test_same_predictions_from_and_to(model):
    X, classes, numbers = table()
    model.fit(X, classes if model in CLASSIFIERS else numbers)
    forest = Forest.from_sklearn(model)
    assert_same(model, forest)
    back = forest.to_sklearn()
    assert_same(back, forest)
    assert Forest.from_sklearn(back) == forest
    np.testing.assert_allclose(list(forest.importances().values()), model.feature_importances_)


def test_level_order_against_a_naive_queue():
    X, classes, _ = table()
    model = ensemble.RandomForestClassifier(3, random_state=0, max_leaf_nodes=30).fit(X, classes)
    forest = Forest.from_sklearn(model)
    for t, estimator in enumerate(model.estimators_):
        theirs, nodes = estimator.tree_, [0]
        for node in nodes:
            if theirs.children_left[node] >= 0:
                nodes += [theirs.children_left[node], theirs.children_right[node]]
        ours = forest.take(t)
        np.testing.assert_array_equal(ours.feature, np.maximum(theirs.feature[nodes], -1))
        np.testing.assert_array_equal(ours.value, theirs.value[nodes][ours.feature < 0, 0])
        inner = ours.feature >= 0
        np.testing.assert_array_equal(ours.missing_left[inner], theirs.missing_go_to_left[nodes][inner])


@given(st.floats(allow_nan=False), st.floats(width=32, allow_nan=False, allow_infinity=False), st.integers(-2, 2))
def test_rounded_threshold_decides_the_same(threshold, x, steps):
    rounded = not_above(np.array([threshold]))
    candidates = [np.float32(x)]
    if abs(threshold) < LARGEST:
        near = np.float32(threshold)
        for _ in range(abs(steps)):
            near = np.nextafter(near, np.float32(np.sign(steps) * LARGEST))
        candidates.append(near)
    if threshold >= -LARGEST:  # no smaller float32 exists; thresholds lie between data
        assert np.isfinite(rounded[0])
    for value in candidates:
        assert (value <= rounded[0]) == (np.float64(value) <= threshold)


def test_splits_that_separate_missing_values():
    X = np.array([[1], [1], [2], [np.nan], [np.nan], [np.nan]], np.float32)
    model = tree.DecisionTreeClassifier().fit(X, [0, 0, 0, 1, 1, 1])
    assert np.isinf(model.tree_.threshold[0])
    forest = Forest.from_sklearn(model)
    assert forest.threshold[0] == LARGEST
    assert_same(model, forest)
    assert_same(forest.to_sklearn(), forest)
    assert forest.to_sklearn().predict([[1e38], [np.nan]]).tolist() == [0, 1]


@pytest.mark.parametrize("names", [[False, True], ["no", "yes"], [3, -7], [1.0, 2.0]], ids=str)
def test_classes_become_plain_values(names):
    X, classes, _ = table()
    y = np.array(names)[(classes > 0).astype(int)]
    model = ensemble.RandomForestClassifier(3, random_state=0).fit(X, y)
    forest = Forest.from_sklearn(model)
    assert forest.schema.label.classes == tuple(sorted(names))
    assert {type(name) for name in forest.schema.label.classes} == {type(names[0])}
    assert_same(model, forest)
    assert_same(forest.to_sklearn(), forest)


def test_feature_names():
    X, classes, _ = table()
    frame = pd.DataFrame(X, columns=["a", "b", "c", "label", "e"])
    model = ensemble.RandomForestClassifier(2, random_state=0).fit(frame, classes)
    forest = Forest.from_sklearn(model)
    assert forest.schema.names == ("a", "b", "c", "label", "e")
    assert forest.schema.label.name == "label_"
    back = forest.to_sklearn()
    np.testing.assert_array_equal(back.predict_proba(frame), forest.predict_proba(frame))
    with pytest.raises(ValueError, match="feature names"):
        back.predict(frame.rename(columns={"a": "z"}))
    plain = Forest.from_sklearn(ensemble.RandomForestClassifier(2, random_state=0).fit(X, classes))
    assert plain.schema.names == ("x0", "x1", "x2", "x3", "x4")


def test_weighted_rows_give_probabilities():
    X, classes, _ = table()
    weight = np.random.default_rng(1).random(len(X)) * 10
    model = ensemble.RandomForestClassifier(10, random_state=0).fit(X, classes, sample_weight=weight)
    forest = Forest.from_sklearn(model)
    rows = probing_rows(forest)
    # not bit for bit: a fraction just above 1 becomes 1
    np.testing.assert_allclose(forest.scores(rows), answers(model, rows)[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("n_classes", CLASSES)
def test_random_forests_survive_the_round_trip(n_classes):
    for seed in range(3):
        forest = random_forest(seed, n_classes=n_classes)
        model = forest.to_sklearn()
        assert_same(model, forest)
        assert Forest.from_sklearn(model) == forest


def test_exported_trees_are_sound():
    forest = random_forest(5, n_classes=3, n_trees=4)
    model = forest.to_sklearn()
    for estimator in model.estimators_:
        theirs = estimator.tree_
        inner = theirs.children_left >= 0
        below = [theirs.children_left[inner], theirs.children_right[inner]]
        for counts in (theirs.n_node_samples, theirs.weighted_n_node_samples):
            np.testing.assert_array_equal(counts[inner], counts[below[0]] + counts[below[1]])
        value = theirs.value[:, 0] * theirs.n_node_samples[:, None]
        np.testing.assert_allclose(value[inner], value[below[0]] + value[below[1]], atol=1e-12)
        assert theirs.n_node_samples[0] == theirs.n_leaves
        assert theirs.max_depth == theirs.compute_node_depths().max() - 1
    importances = model.feature_importances_
    assert (importances >= 0).all()
    assert importances.sum() == pytest.approx(1)
    assert tree.export_text(model.estimators_[0])


@pytest.mark.parametrize("number", [False, True], ids=["classes", "number"])
def test_rows_restore_scikit_learns_counts(number):
    X, classes, numbers = table()
    y = numbers if number else np.array(["a", "b", "c", "d"])[classes % 4]
    kind = ensemble.RandomForestRegressor if number else ensemble.RandomForestClassifier
    model = kind(4, random_state=0, bootstrap=False, max_features=2, max_depth=5).fit(X, y)
    back = Forest.from_sklearn(model).to_sklearn(X, y)
    np.testing.assert_allclose(back.feature_importances_, model.feature_importances_, rtol=1e-6)
    nodes = [np.sort(m.estimators_[0].tree_.n_node_samples) for m in (back, model)]
    np.testing.assert_array_equal(*nodes)
    impurities = [np.sort(m.estimators_[0].tree_.impurity) for m in (back, model)]
    np.testing.assert_allclose(*impurities, atol=1e-9)
    means = [np.sort(m.estimators_[0].tree_.value, axis=0) for m in (back, model)]
    np.testing.assert_allclose(*means, atol=1e-6)
    with pytest.raises(InputError, match="not a class of this forest" if not number else "one label per row"):
        Forest.from_sklearn(model).to_sklearn(X, y[:-1] if number else np.full(len(X), "z"))


def test_without_rows_a_warning_names_what_is_missing():
    with pytest.warns(UserWarning, match="pass rows"):
        random_forest(5).to_sklearn()


def test_variance_of_exported_trees():
    forest = random_forest(6, n_classes=0, n_trees=1, max_nodes=31)
    theirs = forest.to_sklearn().estimators_[0].tree_
    leaves = theirs.value[theirs.children_left < 0, 0, 0]
    assert theirs.value[0, 0, 0] == pytest.approx(leaves.mean())
    assert theirs.impurity[0] == pytest.approx(leaves.var())


def test_unsupported_scikit_learn_forests():
    X, classes, numbers = table(missing=False)
    odd = tree.DecisionTreeClassifier().fit(X, classes)
    odd.classes_ = np.array([None, 1, 2], object)
    below_zero = tree.DecisionTreeClassifier(max_depth=2).fit(X, classes, sample_weight=numbers)
    for model, said in (
        (ensemble.GradientBoostingClassifier(), "received GradientBoostingClassifier"),
        (ensemble.RandomForestClassifier(), "not fitted"),
        (tree.DecisionTreeRegressor(), "not fitted"),
        (tree.DecisionTreeRegressor().fit(X, np.stack([numbers, numbers], axis=1)), "2 outputs"),
        (odd, "a class is of type NoneType"),
        (below_zero, r"DecisionTreeClassifier cannot be converted: .*outside 0 to 1"),
    ):
        with pytest.raises(InputError, match=said):
            Forest.from_sklearn(model)


def test_what_scikit_learn_cannot_express():
    for forest, said in (
        (random_forest(0, schema=MIXED), "'sex', 'ward', 'code', 'never'; use to_onnx"),
        (replace(random_forest(0, n_trees=2), weights=np.array([1.0, 3.0])), r"weights here range from 1.0 to 3.0"),
    ):
        with pytest.raises(ExportError, match=said):
            forest.to_sklearn()
    # a categorical column that no tree uses is no obstacle
    schema = Schema((*MIXED.features[1:2], *random_forest(0).schema.features), Label("label", (0, 5)))
    shifted = replace(random_forest(0), schema=schema, feature=np.where((f := random_forest(0).feature) < 0, -1, f + 1))
    assert_same(shifted.to_sklearn(), shifted)
