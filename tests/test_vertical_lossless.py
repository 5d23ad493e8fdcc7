"""The forest of parties that keep their columns equals, node for node, that of the joined table."""

from functools import cache

import numpy as np
import polars as pl
import pytest
from helpers import column_studies as columns
from helpers.column_studies import ID, SMALL, federate, split, wide
from helpers.examples import examples
from helpers.studies import TASKS, Reversed, Shuffled
from hypothesis import given
from hypothesis import strategies as st

import silvan as sv
from silvan.data.bins import grid


def assert_same(fed, **parameters):
    parameters = {**SMALL, **parameters}
    pooled = sv.PooledForest(**parameters).fit(fed)
    assert pooled.rounds_ == 0
    model = sv.VerticalForest(**parameters).fit(fed)
    assert model.forest_.hash == pooled.forest_.hash
    assert np.allclose(model.forest_.gain, pooled.forest_.gain, rtol=1e-12)
    depth = parameters["max_depth"]
    assert depth is None or model.rounds_ <= 2 * depth + 3
    return model


@cache
def three_parties(task):
    """A federation for many forests: matching its rows takes longer than a forest."""
    return federate(split(wide(task), 3))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("n_parties", [1, 2, 3, 8])
def test_number_of_parties(task, n_parties):
    model = assert_same(federate(split(wide(task), n_parties, holder=n_parties // 2)))
    assert model.forest_.depth.max() == 4
    assert (np.bincount(model.structure_.owner + 1, minlength=n_parties + 1) > 0).sum() > min(n_parties, 3)


@pytest.mark.parametrize("task", ["several", "number"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"bootstrap": False},
        {"feature_sampling": "tree"},
        {"max_features": None},
        {"max_features": 1, "max_depth": 7},  # nodes that sample again
        {"max_features": 0.5, "min_samples_leaf": 7},
        {"min_samples_split": 20, "max_bins": 4},
        {"max_bins": 255},
        {"max_depth": 1},
        {"max_depth": None, "n_estimators": 3},
        {"random_state": 5},
    ],
    ids=str,
)
def test_parameters(task, parameters):
    assert_same(three_parties(task), **parameters)


@pytest.mark.parametrize("task", ["binary", "several"])
@pytest.mark.parametrize("parameters", [{"criterion": "entropy"}, {"class_weight": "balanced"}, {}], ids=str)
def test_parameters_of_classification(task, parameters):
    weight = {"class_weight": {"yes": 3.5} if task == "binary" else {"low": 0.25, "top": 7}}
    assert_same(three_parties(task), **(parameters or weight))


@pytest.mark.parametrize("task", TASKS)
def test_leaves_of_one_row(task):
    assert_same(federate(split(wide(task), 2), policy=sv.Policy(min_leaf=1)), min_samples_leaf=1, max_depth=9)


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        *((task, settings) for task in TASKS for settings in ({"cold": True}, {"kind": Shuffled})),
        *(("binary", settings) for settings in ({"kind": Reversed}, {"timeout": 60})),
    ],
    ids=str,
)
def test_however_the_parties_run(task, settings):
    assert_same(federate(split(wide(task), 3), **settings))


@pytest.mark.parametrize("task", TASKS)
def test_threads_change_nothing(task):
    hashes = {assert_same(federate(split(wide(task), 2), n_jobs=n)).forest_.hash for n in (1, 3)}
    assert len(hashes) == 1


@pytest.mark.parametrize("cold", [False, True])
def test_a_secret_sampling_key(cold):
    fed = federate(split(wide(), 3), random_state=None, cold=cold)
    forest = assert_same(fed).forest_
    assert assert_same(fed).forest_ == forest
    assert assert_same(federate(split(wide(), 3), random_state=None)).forest_ != forest


def test_other_samples_give_another_forest():
    """Otherwise the equalities here would prove nothing."""
    tables = split(wide(), 2)
    fed = federate(tables)
    first = assert_same(fed).forest_
    assert assert_same(federate(tables)).forest_ == first
    assert assert_same(fed, random_state=1).forest_ != first
    assert assert_same(federate(tables, random_state=1)).forest_ != first


@pytest.mark.parametrize("task", TASKS)
def test_rows_that_some_party_lacks_take_no_part(task):
    frame = wide(task)
    tables = split(frame, 3)
    tables["party 1"] = tables["party 1"][:200]
    tables["party 2"] = tables["party 2"][30:]
    fed = federate(tables, test=0.25)
    common = set(tables["party 1"][ID]) & set(tables["party 2"][ID])
    assert len(fed.columns.common) == len(common)
    assert 0 < fed.rows["party 0"] < len(common)
    forest = assert_same(fed).forest_
    alone = {name: table.filter(pl.col(ID).is_in(list(common))) for name, table in tables.items()}
    assert assert_same(federate(alone, test=0.25)).forest_ == forest


def test_a_party_with_the_label_alone():
    frame = wide()
    tables = {"labels": frame.select(ID, "label"), **split(frame.drop("label"), 2, holder=-1)}
    model = assert_same(federate(tables))
    assert len(model.shares_["labels"]) == 0


def test_rare_categories_are_not_named():
    fed = federate(split(wide(), 2))
    [ward] = [f for f in fed.schema.features if f.name == "ward"]
    assert "very rare" not in ward.categories
    assert ward.other


def test_a_given_schema_is_distributed():
    fed = federate(split(wide(), 3))
    turned = sv.Schema(fed.schema.features[::-1], fed.schema.label)
    again = federate(split(wide(), 3), schema=turned)
    assert sorted(again.schema.names) == sorted(fed.schema.names)
    assert again.owners == fed.owners
    assert_same(again)


def test_the_grid_depends_on_the_columns_of_all_parties(monkeypatch):
    """The grid is coarser for wide tables; a party with few of the columns must use that one too."""
    monkeypatch.setattr(grid, "CELL_BUDGET", 15)
    monkeypatch.setattr(grid, "FINE_BUDGET", 8)
    assert grid.Grid.for_columns(9) != grid.Grid.for_columns(3)
    assert_same(federate(split(wide(), 3)), max_features=None)


@examples(15)
@given(
    n=st.integers(12, 60),
    n_parties=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    task=st.sampled_from(TASKS),
    n_sampled=st.integers(1, 9),
    by_tree=st.booleans(),
)
def test_small_tables(n, n_parties, seed, task, n_sampled, by_tree):
    fed = federate(columns.split(wide(task, n, seed), n_parties, seed % n_parties, seed))
    assert_same(fed, max_features=n_sampled, feature_sampling="tree" if by_tree else "node", max_depth=5)
