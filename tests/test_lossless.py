"""The forest of sites that send only sums equals, bit for bit, the forest of all rows in one place."""

from functools import cache

import numpy as np
import polars as pl
import pytest
from helpers.examples import examples
from helpers.studies import TASKS, federate, parts, table
from hypothesis import given
from hypothesis import strategies as st

import silvan as sv
from silvan import Feature, Label, Schema

SMALL = {"n_estimators": 6, "max_depth": 4}


def summed(fed, **parameters):
    return sv.HistogramForest(**{**SMALL, **parameters}).fit(fed).forest_


def both(fed, **parameters):
    """Fits both ways; the pooled forest sends nothing."""
    pooled = sv.PooledForest(**{**SMALL, **parameters}).fit(fed)
    assert pooled.rounds_ == 0
    return summed(fed, **parameters), pooled.forest_


def assert_same(fed, **parameters):
    forest, pooled = both(fed, **parameters)
    assert forest.hash == pooled.hash
    assert np.array_equal(forest.gain, pooled.gain)  # not in the hash, and equal anyway
    return forest


@cache
def three_sites(task):
    """A federation for many forests."""
    return federate(parts(table(task), 3))


@pytest.mark.parametrize(
    ("task", "n_sites"), [*((task, n_sites) for task in TASKS for n_sites in (1, 2, 3, 8)), ("several", 50)]
)
def test_number_of_sites(task, n_sites):
    forest = assert_same(federate(parts(table(task), n_sites)))
    assert forest.depth.max() > 1  # so that the comparison is not empty


@pytest.mark.parametrize("task", ["several", "number"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"bootstrap": False},
        {"feature_sampling": "tree"},
        {"max_features": None},
        {"max_features": 1, "max_depth": 7},  # nodes that sample again
        {"max_features": 0.5, "min_samples_leaf": 7},
        {"min_samples_leaf": 1, "min_samples_split": 20},
        {"max_bins": 4},
        {"max_bins": 255},
        {"max_depth": 1},
        {"max_depth": None, "n_estimators": 3},
        {"random_state": 5},
    ],
    ids=str,
)
def test_parameters(task, parameters):
    assert_same(three_sites(task), **parameters)


@pytest.mark.parametrize("task", ["binary", "several"])
@pytest.mark.parametrize(
    "parameters",
    [{"criterion": "entropy"}, {"class_weight": "balanced"}, {"class_weight": "some"}],
    ids=str,
)
def test_parameters_of_classification(task, parameters):
    weight = {"yes": 3.5} if task == "binary" else {"low": 0.25, "top": 7}
    if parameters.get("class_weight") == "some":
        parameters = {"class_weight": weight}
    fed = three_sites(task)
    forest = assert_same(fed, **parameters)
    assert forest != sv.PooledForest(**SMALL).fit(fed).forest_


@pytest.mark.parametrize("task", ["binary", "several"])
@pytest.mark.parametrize("learner", [sv.MergedForest, sv.BOFRF])
def test_class_weights_balance_all_sites_together(task, learner):
    """As if every site knew the weights that balance the rows of all sites, which no site knows."""
    tables = parts(table(task), 3)
    tables["site 0"] = tables["site 0"].filter(pl.col("label") != "yes")  # it would not know of the class
    counts = pl.concat(tables.values())["label"].value_counts()
    n = counts["count"].sum()
    weights = {c: n / (len(counts) * times) for c, times in counts.iter_rows()}
    fed = federate(tables)
    balanced = learner(6, max_depth=4, class_weight="balanced").fit(fed)
    given = learner(6, max_depth=4, class_weight=weights).fit(fed)
    assert balanced.forest_.hash == given.forest_.hash
    assert balanced.forest_ != learner(6, max_depth=4).fit(fed).forest_
    assert balanced.rounds_ == given.rounds_ + 1 == balanced.expected_rounds
    assert "CountClasses" in [kind.kind() for kind in balanced.asks(fed.schema)]


def test_other_samples_give_another_forest():
    """Otherwise the equalities here would prove nothing."""
    fed = federate(parts(table(), 3))
    forest = summed(fed)
    assert forest != summed(fed, random_state=1)
    assert forest != summed(federate(parts(table(), 3), random_state=1))
    assert forest != summed(federate(parts(table(seed=1), 3)))


def test_test_rows_are_left_out():
    fed = federate(parts(table(), 3), test=0.3)
    assert sum(fed.rows.values()) == 240 - 72
    assert_same(fed)


# -- sites that differ


@pytest.mark.parametrize("task", ["binary", "several"])
def test_sites_that_lack_a_class(task):
    frame = table(task)
    tables = {str(c): frame.filter(pl.col("label") == c) for c in frame["label"].unique(maintain_order=True)}
    tables["mixed"] = table(task, seed=1)
    fed = federate(tables)
    assert len(fed.schema.label.classes) == frame["label"].n_unique()
    assert_same(fed)


@pytest.mark.parametrize("task", TASKS)
def test_sites_that_lack_a_category(task):
    frame = table(task)
    fed = federate({str(w): frame.filter(pl.col("ward").eq_missing(w)) for w in ("a", "b", "c", None)})
    [ward] = [f for f in fed.schema.features if f.name == "ward"]
    assert ward.categories == ("a", "b", "c")
    assert_same(fed)


@pytest.mark.parametrize("task", TASKS)
def test_sites_of_three_rows(task):
    frame = table(task, n=30)
    fed = federate({f"s{i}": frame[3 * i : 3 * i + 3] for i in range(10)})
    assert set(fed.rows.values()) == {3}
    assert_same(fed, n_estimators=4)


def test_sites_of_one_row():
    frame = table("several", n=24)
    assert_same(federate({f"s{i}": frame[i : i + 1] for i in range(24)}), bootstrap=False)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.filterwarnings("ignore:.* absent at")
def test_columns_absent_reordered_and_empty(task):
    frame = table(task, n=300)
    a, b, c = (frame[100 * i : 100 * i + 100] for i in range(3))
    b = b.drop("age", "ward")
    c = c.select(reversed(c.columns)).with_columns(sex=pl.lit(None, pl.String), late=pl.Series(range(1, 101)))
    fed = federate({"a": a, "b": b, "c": c})
    assert fed.schema.names == ("age", "dose", "sex", "ward", "noise", "late")
    assert_same(fed, max_features=None)


@pytest.mark.parametrize("task", TASKS)
def test_edges_given_in_the_schema(task):
    frame = table(task)
    found = federate(parts(frame, 3)).schema
    # two edges that are equal as 32-bit floats, and one beyond the largest
    edges = (30.0, 45.0, 45.0 + 1e-12, 60.0, 1e300)
    features = tuple(Feature("age", edges=edges) if f.name == "age" else f for f in found.features)
    fed = federate(parts(frame, 3), schema=Schema(features, found.label))
    forest = assert_same(fed, max_features=None)
    ages = forest.threshold[forest.feature == 0]
    assert set(ages.tolist()) <= {30.0, 45.0, 60.0, np.finfo(np.float32).max}
    assert len(ages)


@pytest.mark.filterwarnings("ignore:all rows of all sites are of one class")
def test_one_class_everywhere():
    frame = table().with_columns(label=pl.lit("yes"))
    forest = assert_same(federate(parts(frame, 2)))
    assert (forest.feature < 0).all()


def test_a_constant_target():
    assert_same(federate(parts(table("number").with_columns(label=pl.lit(2.5)), 2)))


def test_targets_far_from_zero():
    frame = table("number").with_columns(label=pl.col("label") * 1e-3 + 1e7)
    forest = assert_same(federate(parts(frame, 3)), bootstrap=False)
    assert forest.value.min() >= frame["label"].min()
    assert forest.value.max() <= frame["label"].max()


# -- what must not matter


@pytest.mark.parametrize("task", TASKS)
def test_order_of_the_sites(task):
    """Site name and position identify a row, and sums have no order."""
    tables = parts(table(task), 4)
    forest = summed(federate(tables))
    turned = dict(reversed(list(tables.items())))
    assert summed(federate(turned)) == forest
    renamed = {f"other {name}": rows for name, rows in tables.items()}
    assert summed(federate(renamed)) != forest  # other keys, other samples


@pytest.mark.parametrize("task", TASKS)
def test_the_distribution_of_rows_without_sampling(task):
    """Without row sampling nothing could depend on where a row is."""
    frame = table(task)
    forests = {
        summed(federate(parts(rows, n_sites, seed)), bootstrap=False).hash
        for rows, n_sites, seed in (
            (frame, 1, 0),
            (frame, 2, 1),
            (frame.sample(fraction=1.0, shuffle=True, seed=3), 9, 0),
        )
    }
    assert len(forests) == 1


def test_one_table_with_a_column_that_names_the_site():
    tables = parts(table(), 3)
    joined = pl.concat([rows.with_columns(hospital=pl.lit(name)) for name, rows in tables.items()])
    assert summed(federate(joined, site="hospital")) == summed(federate(tables))


@pytest.mark.parametrize("parameters", [{}, {"criterion": "entropy"}, {"class_weight": "balanced"}], ids=str)
@pytest.mark.parametrize("task", ["binary", "several"])
def test_names_of_classes(task, parameters):
    """With renamed and reordered classes: the same splits, probabilities in the other order."""
    frame = table(task)
    names = sorted(frame["label"].unique())
    new = dict(zip(names, [f"class {c}" for c in "dacb"], strict=False))
    forest = summed(federate(parts(frame, 3)), **parameters)
    other, other_pooled = both(
        federate(parts(frame.with_columns(label=pl.col("label").replace_strict(new)), 3)), **parameters
    )
    assert other == other_pooled
    for name in ("offsets", "feature", "threshold", "missing_left", "sets", "weights"):
        assert np.array_equal(getattr(forest, name), getattr(other, name)), name
    order = [names.index(old) for renamed in sorted(new.values()) for old in names if new[old] == renamed]
    assert np.array_equal(forest.value[:, order], other.value)


def test_threads():
    tables = parts(table(), 3)
    assert summed(federate(tables, n_jobs=1)) == summed(federate(tables, n_jobs=2))


@given(data=st.data(), seed=st.integers(0, 2**32 - 1), task=st.sampled_from(TASKS))
@examples(30)
def test_any_small_federation(data, seed, task):
    rng = np.random.default_rng(seed)
    n, width = data.draw(st.integers(5, 60), "rows"), data.draw(st.integers(1, 4), "columns")
    n_sites = data.draw(st.integers(1, min(n, 6)), "sites")
    X = rng.integers(-3, 4, (n, width)) * data.draw(st.sampled_from([1.0, 0.37, 1e-30, 1e30]), "unit")
    X[rng.random(X.shape) < data.draw(st.sampled_from([0.0, 0.3]), "missing")] = np.nan
    y = rng.integers(0, {"binary": 2, "several": 4, "number": 9}[task], n)
    y = y + 0.25 if task == "number" else y
    site = rng.permutation(np.concatenate([np.arange(n_sites), rng.integers(0, n_sites, n - n_sites)]))
    label = Label("label", None if task == "number" else tuple(range(4)))
    fed = federate(
        {f"s{i}": (X[site == i], y[site == i]) for i in range(n_sites)},
        schema=Schema.of([f"x{f}" for f in range(width)], label),
    )
    assert_same(
        fed,
        n_estimators=data.draw(st.integers(1, 4), "trees"),
        max_depth=data.draw(st.integers(1, 5), "depth"),
        max_features=data.draw(st.sampled_from([None, 1, "sqrt"]), "max_features"),
        min_samples_leaf=data.draw(st.integers(1, 3), "leaf"),
        bootstrap=False,
        class_weight=None if task == "number" else data.draw(st.sampled_from([None, "balanced"]), "class_weight"),
    )
