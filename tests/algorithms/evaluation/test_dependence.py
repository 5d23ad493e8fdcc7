"""Partial dependence from sums equals a brute-force computation."""

import numpy as np
import polars as pl
import pytest
from helpers.limits import limited
from helpers.studies import TASKS, federate, parts, table

import silvan as sv
from silvan.algorithms.evaluation.column_effects import ColumnGrid, SetColumns, make_grid, set_columns
from silvan.errors import FormatError, InputError
from silvan.forest.forest import Forest
from silvan.forest.predict import scores
from silvan.privacy.policy import PolicyBetweenMachines

SMALL = {"n_estimators": 12, "max_depth": 4}


def fitted(task="binary", learner=sv.HistogramForest, **settings):
    fed = federate(parts(table(task), 3), test=0.4, **settings)
    return fed, learner(**SMALL).fit(fed)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("column", ["age", "ward"])
def test_it_equals_brute_force(task, column):
    fed, model = fitted(task, sv.MergedForest)
    found = model.partial_dependence(fed, column)
    place, feature = fed.schema.names.index(column), fed.schema.features[fed.schema.names.index(column)]
    rows = np.concatenate([fed.site(name).part(fed.schema, test=True).X for name in fed.sites])
    for line in found.iter_rows():
        rows[:, place] = line[0] if feature.categories is None else feature.categories.index(line[0])
        wanted = scores(model.forest_, rows).mean(axis=0)
        wanted = wanted[1:] if task == "binary" else wanted
        spread = np.ptp(model.forest_.value) if task == "number" else 1.0
        np.testing.assert_allclose(line[1:], wanted, atol=1e-4 * spread)


def test_values():
    fed, model = fitted(sums="masked")
    assert model.partial_dependence(fed, "age", grid=[40, 60])["age"].to_list() == [40, 60]
    assert model.partial_dependence(fed, "ward", grid=["a"]).columns == ["ward", "yes"]
    rising = model.partial_dependence(fed, "age")["yes"].to_list()
    assert rising[-1] > rising[0] + 0.2
    bounded = sv.Schema.of([sv.Feature("age", bounds=(0, 100))], sv.Label("label", classes=("no", "yes")))
    narrow = sv.federate_rows(parts(table().select("age", "label"), 2), schema=bounded, test=0.4)
    forest = sv.MergedForest(**SMALL).fit(narrow).forest_
    assert make_grid(bounded, forest, "age").values.tolist() == np.linspace(0, 100, 21).tolist()
    constant = sv.MergedForest(2, max_depth=1).fit(fed).forest_
    assert len(make_grid(fed.schema, constant, "noise").values) >= 1


def test_splits_of_missing_cells_make_no_values():
    """A threshold above all numbers separates rows with a number from those without; no row has such a value."""
    frame = table(n=300)
    gone = frame.with_columns(age=pl.when(pl.col("label") == "no").then(pl.col("age")))
    fed = federate(parts(gone, 3), test=0.4)
    model = sv.MergedForest(**SMALL).fit(fed)
    thresholds = model.forest_.threshold[model.forest_.feature == fed.schema.names.index("age")]
    assert thresholds.max() > 1e30
    assert max(model.partial_dependence(fed, "age")["age"].to_list()) < 200


def test_impossible_grids_are_refused():
    fed, model = fitted()
    for column, grid, why in [
        ("agee", None, "no column 'agee'"),
        ("age", ["a"], "grid must be"),
        ("age", [np.nan], "grid must be"),
        ("age", [], "grid must be"),
        ("ward", ["nowhere"], "no category 'nowhere'"),
        ("ward", [], "empty"),
    ]:
        with pytest.raises(InputError, match=why):
            model.partial_dependence(fed, column, grid)
    model_sent, blob = model._explained(fed)[1], fed.blob(fed.schema.to_json().encode())
    model.partial_dependence(fed, "age")
    ward = fed.schema.names.index("ward")
    bad = [
        ColumnGrid(99, np.zeros(1)),
        ColumnGrid(0, np.zeros(0)),
        ColumnGrid(0, np.array([np.nan])),
        ColumnGrid(ward, np.array([0.5])),
    ]
    bad += [ColumnGrid(0, np.zeros((2, 2))), ColumnGrid(0, np.zeros(301)), ColumnGrid(0, np.zeros(2, np.float32))]
    for grids, why in [*(([grid], "not possible") for grid in bad), ([], "must be 1 to")]:
        with pytest.raises(FormatError, match=why):
            set_columns(fed.site("site 0"), SetColumns(schema=blob, model=model_sent, grids=grids))


def test_few_rows_disclose_nothing():
    fed, model = fitted(policy=sv.Policy(min_test=200))
    with pytest.raises(InputError, match="enough test rows"):
        model.partial_dependence(fed, "age")


def singling_out(schema, age, low=0.0, high=128.0, step=0.25):
    """Makes a forest of one tree that scores 0, except for rows of one age, which it scores by their noise."""
    asked, told = schema.names.index("age"), schema.names.index("noise")
    nodes, values, level = [], [], [(asked, age - 1e-3, 0.0, (asked, age + 1e-3, (low, high), 0.0))]
    while level:
        below = []
        for node in level:
            if isinstance(node, float):
                nodes.append((-1, 0.0))
                values.append(node)
            elif len(node) == 2:
                middle = sum(node) / 2
                nodes.append((told, middle))
                halves = [(node[0], middle), (middle, node[1])]
                below += [(b - low) / (high - low) if b - a <= step else (a, b) for a, b in halves]
            else:
                nodes.append(node[:2])
                below += node[2:]
        level = below
    feature, threshold = np.array(nodes).T
    p, n = np.array(values), len(nodes)
    arrays = {"offsets": np.array([0, n]), "feature": feature.astype(np.int32), "weights": np.ones(1)}
    arrays |= {"threshold": threshold.astype(np.float32), "missing_left": np.zeros(n, np.bool_)}
    return Forest(schema, value=np.column_stack([1 - p, p]), sets=np.zeros((0, 4), np.uint64), **arrays)


def test_a_crafted_model_reveals_a_cell_of_one_row():
    """Neither masked sums nor groups of rows stop this: see docs/security.md, what these rules do not stop."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"age": rng.permutation(180.0 + np.arange(180)), "noise": rng.uniform(0, 120, 180)})
    frame = frame.with_columns(other=rng.normal(size=180), label=rng.integers(0, 2, 180))
    fed = limited(federate(parts(frame, 3), test=0.5, sums="masked", policy=PolicyBetweenMachines()), models=1)
    known = [fed.site(name).part(fed.schema, test=True).X for name in fed.sites]
    age, noise = known[1][7, [fed.schema.names.index(name) for name in ("age", "noise")]]
    model = sv.HistogramForest(1, max_depth=1).fit(fed)
    model.forest_ = singling_out(fed.schema, float(age))
    mean = model.partial_dependence(fed, "other", grid=[0.0])["1"][0]
    assert mean * sum(map(len, known)) * 128 == pytest.approx(float(noise), abs=0.5)
