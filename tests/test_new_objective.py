"""A custom objective takes a few lines: statistics of a row, gain of a split, value of a leaf."""

import numpy as np
import polars as pl
import pytest
from helpers import private_study
from helpers.studies import federate, parts, table
from sklearn.metrics import mean_poisson_deviance

import silvan as sv
from silvan.errors import InputError
from silvan.tree.objectives import Classes, Measure, Objective, register


class Events(Objective):
    """Events per year, observed for two years: Poisson deviance, a rate per leaf; a node without events is pure."""

    name = "events"

    def shape(self, n_classes):
        return 3, 1

    def measure(self, labels, class_weight=None):
        return Measure(self.name, 3, 1, (1, 1), labels.n_rows, offset=0.0, scale=2.0)

    def rows(self, measure, y):
        return np.stack([np.ones(len(y), np.int64), y == 0, measure.to_integers(y)], axis=1)

    def is_pure(self, stats, lead):
        return stats[:, 0] == stats[:, 1]

    def gain(self, left, total):
        return self.explained(left) + self.explained(total - left) - self.explained(total)

    def explained(self, stats):
        return stats[:, 2] * np.log(np.maximum(stats[:, 2], 1) / np.maximum(stats[:, 0], 1))

    def category_order(self, stats):
        return stats[:, 2] / stats[:, 0]

    def leaf_values(self, measure, stats):
        return stats[:, 2:] / np.maximum(stats[:, :1], 1) / measure.scale


class PlainSquaredError(Objective):
    """A naive version of the kernels."""

    name = "plain squared error"

    def gain(self, left, total):
        (a, p), (b, q) = (side[:, -2:].T.astype(float) for side in (left, total - left))
        return (p * b - q * a) ** 2 / (a * b * (a + b))


class PlainGini(Classes):
    def gain(self, left, total):
        sides = (side.astype(float) for side in (left, total - left, total))
        a, b, c = ((side**2).sum(axis=1) / side.sum(axis=1) for side in sides)
        return a + b - c


for objective in (Events(), PlainSquaredError(), PlainGini("plain gini")):
    register(objective)

PARAMETERS = [{}, {"max_features": 1, "max_depth": 7}, {"min_samples_leaf": 9}]


@pytest.fixture(scope="module")
def events():
    frame = table("number", 400)
    rate = np.exp((frame["label"].to_numpy() - 1000) / 20 - 3)
    return frame.with_columns(label=pl.Series(np.random.default_rng(0).poisson(rate) / 2))


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
def test_three_sites_grow_the_forest_of_one_table(events, parameters):
    fed = federate(parts(events, 3))
    settings = {"n_estimators": 6, "max_depth": 4, "criterion": "events", **parameters}
    forest = sv.HistogramForest(**settings).fit(fed).forest_
    assert forest.hash == sv.PooledForest(**settings).fit(fed).forest_.hash
    assert forest.depth.max() > 2


def test_one_table(events):
    X, y = events.drop("label"), events["label"].to_numpy()
    model = sv.ForestRegressor(criterion="events", n_estimators=20, max_depth=4, random_state=0).fit(X, y)
    found, known = np.maximum(model.predict(X), 1e-9), np.full(len(y), y.mean())
    assert mean_poisson_deviance(y, found) < 0.7 * mean_poisson_deviance(y, known)


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
@pytest.mark.parametrize(
    ("task", "plain", "compiled"),
    [
        ("number", "plain squared error", "squared_error"),
        ("binary", "plain gini", "gini"),
        ("several", "plain gini", "gini"),
    ],
)
def test_numpy_gains_choose_the_same_splits_as_kernels(task, plain, compiled, parameters):
    """The naive version follows the rules of the kernels: missing values, sets of categories, ties, minimum sizes."""
    fed = federate(parts(table(task), 3))
    settings = {"n_estimators": 6, "max_depth": 5, **parameters}
    first, second = (sv.HistogramForest(criterion=name, **settings).fit(fed).forest_ for name in (plain, compiled))
    assert first.hash == second.hash


def test_one_table_without_kernels():
    frame = table("number")
    X, y = frame.drop("label"), frame["label"].to_numpy()
    settings = {"n_estimators": 6, "max_features": 0.5, "min_weight_fraction_leaf": 0.03, "random_state": 0}
    models = [sv.ForestRegressor(criterion=name, **settings) for name in ("plain squared error", "squared_error")]
    first, second = (model.fit(X, y).forest_ for model in models)
    assert first.hash == second.hash
    assert first.depth.max() > 3


@pytest.mark.parametrize(
    "parameters",
    [{"epsilon": 1.0, "private": "levels"}, {"monotonic_cst": {"age": 1}}, {"class_weight": {"yes": 2.0, "no": 1.0}}],
    ids=str,
)
def test_operations_that_need_a_compiled_gain_say_so(parameters):
    fed = private_study.federate()
    with pytest.raises(InputError, match="cannot be used with"):
        sv.HistogramForest(criterion="plain gini", max_depth=3, **parameters).fit(fed)


def test_names_of_objectives_are_unique():
    with pytest.raises(InputError, match="already"):
        register(Events())
