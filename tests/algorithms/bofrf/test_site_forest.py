"""Pretrained forests that sites bring, from scikit-learn or silvan, fitted or not, adapted to the agreed schema."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from helpers.studies import federate, parts, table
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.tree import DecisionTreeClassifier

import silvan as sv
from silvan.algorithms.bofrf.site_forest import conform, fit_estimator, from_codes, name_of, site_forest
from silvan.algorithms.keyed_rows import learning_rows
from silvan.data.bins.bins import find_bins
from silvan.errors import FormatError, InputError, RefusedError, SiteError
from silvan.forest.score import score_trees

PARAMETERS = {"n_estimators": 5, "max_depth": 4, "validation": 0.2}


def numbers(n=240, seed=0):
    return table(n=n, seed=seed).drop("sex", "ward").drop_nulls()


def fitted(frame, **parameters):
    X, y = frame.drop("label").to_pandas(), frame["label"].to_list()
    return RandomForestClassifier(6, min_samples_leaf=3, random_state=0, **parameters).fit(X, y)


def fit(fed, **parameters):
    return sv.BOFRF(**{**PARAMETERS, **parameters}).fit(fed)


def pretrained(fed, site, min_leaf=2, validation=0.2):
    member = fed.site(site)
    return site_forest(member, fed.schema, learning_rows(member, fed.schema, validation)[0], min_leaf)


def sources(frame, tmp_path):
    own = sv.ForestClassifier(n_estimators=6, min_samples_leaf=3).fit(frame.drop("label"), frame["label"])
    path = tmp_path / "own.silvan"
    own.forest_.save(path)
    return {
        "fitted": fitted(frame),
        "not fitted": RandomForestClassifier(6, min_samples_leaf=3),
        "a single tree": DecisionTreeClassifier(min_samples_leaf=3, random_state=0).fit(
            frame.drop("label").to_pandas(), frame["label"].to_list()
        ),
        "silvan's": own.forest_,
        "an estimator": own,
        "a path": path,
        "a path in text": str(path),
        "silvan's, not fitted": sv.ForestClassifier(n_estimators=6, min_samples_leaf=3),
    }


@pytest.mark.parametrize(
    "kind",
    [
        "fitted",
        "not fitted",
        "a single tree",
        "silvan's",
        "an estimator",
        "a path",
        "a path in text",
        "silvan's, not fitted",
    ],
)
def test_all_kinds(kind, tmp_path):
    tables = parts(numbers(), 3)
    source = sources(tables["site 1"], tmp_path)[kind]
    models = []
    for cold in (False, True):
        fed = federate(tables, test=0.2, forests={"site 1": source}, cold=cold)
        models.append(fit(fed))
    model, cold = models
    assert model.forest_ == cold.forest_
    assert (model.owners_ == "site 1").sum() == (1 if kind == "a single tree" else 6)
    assert (model.owners_ == "site 0").sum() == 5
    assert (model.weights_[model.owners_ == "site 1"] != 0).any()
    model.evaluate(fed)


def test_released_trees_are_on_the_grid_without_small_leaves():
    tables = parts(numbers(), 2)
    model = fitted(tables["site 1"])
    fed = federate(tables, forests={"site 1": model})
    forest = pretrained(fed, "site 1", min_leaf=4)
    part = learning_rows(fed.site("site 1"), fed.schema, 0.2)[0]
    bins, _ = find_bins(part.X, fed.schema, 255, floor=10)
    values = set(part.X.reshape(-1).tolist())
    before = sv.Forest.from_sklearn(model)
    for f in range(3):
        mine = forest.threshold[forest.feature == f]
        assert set(mine.tolist()) <= {*bins.cuts[f].tolist(), float(np.finfo(np.float32).max)}
    assert not set(before.threshold.tolist()) <= set(forest.threshold.tolist())
    assert not values & set(forest.threshold[forest.feature == 0].tolist())
    for t in range(len(forest)):
        tree = replace(forest.take([t]), value=np.zeros((int((forest.take([t]).feature < 0).sum()), 2)))
        leaves = np.zeros(len(tree.value), np.int64)
        for i in range(len(leaves)):
            value = np.tile([1.0, 0.0], (len(leaves), 1))
            value[i] = [0.0, 1.0]
            leaves[i] = score_trees(replace(tree, value=value), part.X, part.y)[0][:, 1].sum()
        assert leaves.min() >= 4
        assert leaves.sum() == len(part)


def test_snapping_hardly_changes_predictions():
    frame = numbers(n=600)
    tables = parts(frame, 2)
    model = fitted(tables["site 1"])
    forest = pretrained(federate(tables, forests={"site 1": model}), "site 1", min_leaf=2, validation=0.0)
    X = numbers(n=300, seed=4).drop("label")
    gap = np.abs(forest.scores(X)[:, 1] - model.predict_proba(X.to_pandas())[:, 1])
    assert gap.mean() < 0.05


def test_columns_are_matched_by_name():
    tables = parts(numbers(), 2)
    shuffled = tables["site 1"].select("noise", "age", "dose", "label")
    model = fitted(shuffled)
    one = pretrained(federate(tables, forests={"site 1": model}), "site 1")
    two = pretrained(federate({**tables, "site 1": shuffled}, forests={"site 1": model}), "site 1")
    assert one == two


@pytest.mark.filterwarnings("ignore:'age' is absent at site 1")
def test_unnamed_columns_follow_the_tables_order():
    """The columns of an array follow the order of the site's table, which may lack some columns of other sites."""
    tables = parts(numbers(), 2)
    own = tables["site 1"].select("noise", "dose", "label")
    X, y = own.drop("label").to_numpy(), own["label"].to_list()
    by_place = RandomForestClassifier(4, min_samples_leaf=3, random_state=0).fit(X, y)
    by_name = RandomForestClassifier(4, min_samples_leaf=3, random_state=0).fit(own.drop("label").to_pandas(), y)
    one, two = (
        pretrained(federate({**tables, "site 1": own}, forests={"site 1": model}), "site 1")
        for model in (by_place, by_name)
    )
    assert one == two
    assert not (one.feature == 0).any()  # age
    wide = RandomForestClassifier(4).fit(np.hstack([X, X]), y)
    fed = federate({**tables, "site 1": own}, forests={"site 1": wide})
    with pytest.raises(InputError, match="4 columns without names, the table has 2"):
        pretrained(fed, "site 1")


def test_classes_are_matched_by_name():
    frame = table("several").drop("sex", "ward").drop_nulls()
    tables = parts(frame, 2)
    some = tables["site 1"].filter(pl.col("label").is_in(["top", "low"]))
    forest = pretrained(federate(tables, forests={"site 1": fitted(some)}), "site 1")
    assert forest.classes.tolist() == ["high", "low", "middle", "top"]
    assert (forest.value[:, [0, 2]] == 0).all()
    assert np.allclose(forest.value.sum(axis=1), 1)
    unknown = some.with_columns(label=pl.col("label").replace("low", "nothing"))
    with pytest.raises(InputError, match="knows a class 'nothing'"):
        pretrained(federate(tables, forests={"site 1": fitted(unknown)}), "site 1")


def test_integers_and_their_texts_are_one_class():
    frame = numbers().with_columns(label=(pl.col("label") == "yes").cast(pl.Int64))
    tables = parts(frame, 2)
    text = tables["site 1"].with_columns(pl.col("label").cast(pl.String))
    one, two = (
        pretrained(federate(tables, forests={"site 1": fitted(source)}), "site 1")
        for source in (text, tables["site 1"])
    )
    assert one == two


def test_categories_are_matched_by_name():
    """The forest orders categories differently, has some that were not agreed on, and lacks some that were."""
    tables = parts(table(n=400), 2)
    frame = tables["site 1"].filter(pl.col("ward") != "c")
    frame = frame.with_columns(pl.col("ward").replace("b", "0b"))
    own = sv.ForestClassifier(n_estimators=20, max_depth=6).fit(frame.drop("label"), frame["label"]).forest_
    assert own.schema.features[3].categories != ("a", "b", "c")
    fed = federate(tables, forests={"site 1": own})
    forest = conform(own, fed.schema, [])
    back = tables["site 1"].drop("label").with_columns(pl.col("ward").replace("b", "0b"))
    rows = tables["site 1"].drop("label")
    assert len(forest.sets) > 5
    # known categories follow the forest; unknown ones go where missing values go
    same = rows["ward"].is_in(["a"]) | rows["ward"].is_null()
    assert np.array_equal(forest.scores(rows.filter(same)), own.scores(back.filter(same)))
    void = rows.with_columns(ward=pl.when(pl.col("ward") == "b").then(None).otherwise(pl.col("ward")))
    b = rows["ward"] == "b"
    other = own.schema.features[3].other
    assert other or np.array_equal(forest.scores(rows.filter(b)), forest.scores(void.filter(b)))


@pytest.mark.parametrize("task", ["binary", "number"])
def test_a_forest_fitted_at_the_site_supports_categories(task):
    """Fitted on codes, a split by code becomes a set of categories, and the trees predict as in scikit-learn."""
    tables = parts(table(task, n=300), 2)
    kind = RandomForestClassifier if task == "binary" else ExtraTreesRegressor
    source = kind(5, min_samples_leaf=8, random_state=1)
    fed = federate(tables, forests={"site 1": source})
    part = fed.site("site 1").part(fed.schema)
    forest = from_codes(fit_estimator(source, part, 0), fed.schema)
    model = source.fit(part.X, part.y)
    expected = model.predict_proba(part.X) if task == "binary" else model.predict(part.X)[:, None]
    assert len(forest.sets) > 3
    assert np.allclose(forest.scores(part.X), expected, atol=1e-9)
    fit(fed)


def test_it_is_fitted_without_validation_rows():
    tables = parts(numbers(), 2)
    fed = federate(tables, test=0.2, forests={"site 1": RandomForestClassifier(4, random_state=0, min_samples_leaf=3)})
    part = learning_rows(fed.site("site 1"), fed.schema, 0.2)[0]
    alone = RandomForestClassifier(4, random_state=0, min_samples_leaf=3).fit(part.X, part.y)
    rows = [tree.tree_.n_node_samples[0] for tree in alone.estimators_]
    assert max(rows) <= len(part) < fed.site("site 1").n_train
    assert pretrained(fed, "site 1") != pretrained(fed, "site 1", validation=0.4)


def test_without_validation_rows_it_is_refused():
    fed = federate(parts(numbers(), 2), test=0.2, forests={"site 1": RandomForestClassifier(4)})
    with pytest.raises(
        RefusedError, match=r"'site 1' refused BringTrees: the site has a pretrained forest, .*: set validation"
    ):
        fit(fed, validation=None)
    assert len(fit(fed, validation=None, protocol="paper").forest_) == 9  # chosen on the test set


def test_invalid_pretrained_forests():
    tables = parts(numbers(), 2)
    other = HistGradientBoostingClassifier(max_iter=2).fit(tables["site 1"].select("age"), tables["site 1"]["label"])
    for forests, said in (
        ({"site 7": fitted(tables["site 1"])}, "names 'site 7', which is not a site; the sites are site 0, site 1"),
        ({"site 1": 5}, "from_sklearn takes"),
        ([fitted(tables["site 1"])], "forests must be a dict of forests by site, got list"),
        ({"site 1": "nowhere.silvan"}, "'nowhere.silvan', cannot be read: No such file"),
        # not mistaken for an unfitted forest
        ({"site 1": other}, "from_sklearn takes .* received HistGradientBoostingClassifier"),
    ):
        with pytest.raises(InputError, match=said):
            federate(tables, forests=forests)
    for source, said in [
        (fitted(tables["site 1"].rename({"age": "years"})), "asks about 'years', which is not an agreed column"),
        (
            RandomForestRegressor(3).fit(
                tables["site 1"].select("age", "dose").to_pandas(), range(len(tables["site 1"]))
            ),
            "predicts a number, the agreed label has classes",
        ),
        (fit(federate(tables)).forest_, "must average its trees"),
    ]:
        fed = federate(tables, forests={"site 1": source})
        with pytest.raises(SiteError) as error:
            fit(fed)
        assert said in str(error.value.__cause__)
        assert said in str(error.value)  # in one process; what left the site does not reveal it
    mixed = parts(table().drop_nulls(), 2)
    codes = mixed["site 1"].with_columns(sex=(pl.col("sex") == "f").cast(pl.Int8)).drop("ward")
    fed = federate(mixed, forests={"site 1": fitted(codes)})
    with pytest.raises(InputError, match="column 'sex' is categorical by agreement and not so to the forest"):
        pretrained(fed, "site 1")


def test_the_journal_records_pretrained_forests(tmp_path):
    tables = parts(numbers(), 2)
    path = str(tmp_path / "journal.db")
    one, two = fitted(tables["site 1"]), fitted(tables["site 1"], max_depth=2)
    assert name_of(one) != name_of(two)
    assert name_of(RandomForestClassifier(3)) != name_of(RandomForestClassifier(4))
    fed = federate(tables, journal=path, forests={"site 1": one})
    fit(fed)
    fed.close()
    with pytest.raises(FormatError, match="another study"):
        federate(tables, journal=path, forests={"site 1": two})


def test_local_is_the_pretrained_forest():
    tables = parts(numbers(), 2)
    fed = federate(tables, test=0.2, forests={"site 1": fitted(tables["site 1"])})
    model = fit(fed)
    listed = dict(model.candidates(fed))
    assert len(listed["local"]["site 1"]) == 6
    assert listed["local"]["site 1"].combine == "mean"
