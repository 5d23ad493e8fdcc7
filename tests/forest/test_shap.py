from itertools import combinations
from math import factorial

import numpy as np
import pytest
from helpers.forests import random_forest
from helpers.naive_answers import goes_left

import silvan as sv
from silvan.data.schema import Feature, Label, Schema
from silvan.forest.node_counts import rows_at_nodes

MIXED = Schema(
    (Feature("a"), Feature("b", "categorical", categories=("u", "v", "w")), Feature("c"), Feature("d")),
    Label("label", (0, 1)),
)


def shap_naive(forest, x, counts):
    """One row's Shapley values by all subsets of features: (features, outputs)."""
    n = forest.n_features

    def answer(node, known):
        if forest.feature[node] < 0:
            return forest.value[forest.leaf[node]]
        left, right = int(forest.left[node]), int(forest.right[node])
        if forest.feature[node] in known:
            return answer(left if goes_left(forest, node, x) else right, known)
        share = counts[left] / counts[node] if counts[node] else 0.5
        return share * answer(left, known) + (1 - share) * answer(right, known)

    def mean(known):
        roots = zip(forest.offsets[:-1], forest.weights, strict=True)
        return sum(weight * answer(int(root), known) for root, weight in roots) / forest.weights.sum()

    values = np.zeros((n, forest.n_outputs))
    for i in range(n):
        others = [j for j in range(n) if j != i]
        for size in range(n):
            orders = factorial(size) * factorial(n - 1 - size) / factorial(n)
            for some in combinations(others, size):
                values[i] += orders * (mean({*some, i}) - mean(set(some)))
    return values


def some_rows(n, seed):
    rng = np.random.default_rng(seed)
    X = (rng.integers(-8, 9, (n, 4)) / 4).astype(np.float32)
    X[:, 1] = rng.integers(0, 3, n)
    X[rng.random(X.shape) < 0.15] = np.nan
    return X


@pytest.mark.parametrize("n_classes", [0, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_shapley_values_equal_brute_force(seed, n_classes):
    forest = random_forest(seed, schema=MIXED, n_classes=n_classes, n_trees=3, max_nodes=31, equal_weights=False)
    X, background = some_rows(12, seed), some_rows((40, 3)[seed % 2], seed + 100)  # three rows leave most nodes empty
    counts = rows_at_nodes(forest, background)
    found = forest.shap(X, background)
    expected = [shap_naive(forest, x, counts) for x in X]
    np.testing.assert_allclose(found.values, expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.base + found.values.sum(axis=1), forest.scores(X), rtol=0, atol=1e-12)
    np.testing.assert_allclose(found.base, forest.scores(background).mean(axis=0), rtol=0, atol=1e-12)


def test_deep_trees_add_up_on_any_number_of_threads():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 30))
    forest = sv.ForestRegressor(5, min_samples_leaf=1).fit(X, X @ rng.normal(size=30)).forest_
    one, two = forest.shap(X[:40], X, n_jobs=1), forest.shap(X[:40], X, n_jobs=2)
    np.testing.assert_array_equal(one.values, two.values)
    np.testing.assert_allclose(one.base + one.values.sum(axis=1), forest.scores(X[:40]), rtol=0, atol=1e-9)


def test_an_unused_column_has_value_zero():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    X[:, 2] = 1.0
    forest = sv.ForestClassifier(5).fit(X, X[:, 0] > 0).forest_
    values = forest.shap(X).values
    assert (values[:, 2] == 0).all()
    assert np.abs(values[:, 0]).mean() > 3 * np.abs(values[:, 1]).mean()


def test_unsupported_explanations_are_refused():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    forest = sv.ForestClassifier(3).fit(X, X[:, 0] > 0).forest_
    with pytest.raises(sv.InputError, match="need background rows"):
        forest.shap(X, X[:0])
    fed = sv.federate_rows({"a": (X[:30], X[:30, 0] > 0), "b": (X[30:], X[30:, 0] > 0)})
    stages = sv.AdaBoostPL(n_estimators=2).fit(fed).forest_
    with pytest.raises(sv.InputError, match="average their trees"):
        stages.shap(X)
