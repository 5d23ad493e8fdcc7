"""Splits of equal gain: no column is favoured for its position, in one table, over rows and over columns."""

import numpy as np
import polars as pl
import pytest
from numba import config

import silvan as sv


def table(seed=0, n=400):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    return X, (X[:, 0] + X[:, 1] + rng.normal(scale=0.5, size=n) > 0).astype(int)


@pytest.mark.parametrize("max_features", [None, "sqrt"])
def test_a_repeated_column_shares_its_importance(max_features):
    X, y = table()
    twice = np.column_stack([X[:, 0], X])
    shares = sv.ForestClassifier(100, max_features=max_features).fit(twice, y).forest_.importances()
    assert 0.67 < shares["x0"] / shares["x1"] < 1.5


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="ids are matched by products of two words, an instruction of LLVM")
def test_parties_with_the_same_column_win_equally_often():
    X, y = table()
    bank = pl.DataFrame({"id": range(len(X)), "a": X[:, 0], "label": y})
    shop = pl.DataFrame({"id": range(len(X)), "b": X[:, 0], "c": X[:, 1]})
    fed = sv.federate_columns({"bank": bank, "shop": shop}, label="label", id="id")
    model = sv.VerticalForest(n_estimators=60, max_depth=4, max_features=None).fit(fed)
    assert model.forest_ == sv.PooledForest(n_estimators=60, max_depth=4, max_features=None).fit(fed).forest_
    feature = model.forest_.feature
    a, b = (feature == 0).sum(), (feature == 1).sum()
    assert min(a, b) > 0.8 * max(a, b) > 50


def test_a_repeated_column_at_sites_is_used_in_both_places():
    X, y = table()
    twice = np.column_stack([X[:, 0], X])
    fed = sv.federate_rows({"north": (twice[:200], y[:200]), "south": (twice[200:], y[200:])})
    feature = sv.HistogramForest(n_estimators=60, max_depth=4, max_features=None).fit(fed).forest_.feature
    assert min((feature == f).sum() for f in (0, 1)) > 0.8 * max((feature == f).sum() for f in (0, 1)) > 50


def test_a_node_whose_columns_vary_without_a_split_is_a_leaf():
    """As in scikit-learn: a node samples again only where all sampled columns are constant."""
    X = np.zeros((40, 2), np.float32)
    X[0, 0] = 1  # varies, but its only split leaves a single row
    X[:, 1] = np.arange(40) % 2
    y = X[:, 1].astype(int)
    settings = {"max_features": 1, "min_samples_leaf": 5, "bootstrap": False, "max_depth": 1}
    forest = sv.ForestClassifier(60, **settings).fit(X, y).forest_
    roots = forest.feature[forest.offsets[:-1]]
    assert set(roots.tolist()) == {-1, 1}
    X[0, 0] = 0  # constant
    forest = sv.ForestClassifier(60, **settings).fit(X, y).forest_
    assert (forest.feature[forest.offsets[:-1]] == 1).all()
