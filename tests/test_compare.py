"""Comparing learners on many splits, as a user does."""

import numpy as np
import polars as pl
import pytest
import sklearn.base
from helpers.studies import federate, parts, table
from sklearn.metrics import roc_auc_score

import silvan as sv


@pytest.fixture(scope="module")
def found():
    fed = federate(parts(table(n=150), 3), test=0.25)
    learners = {"merged": sv.MergedForest(n_estimators=6, max_depth=3), "exact": sv.HistogramForest(n_estimators=6)}
    return fed, sv.compare(fed, learners, repeats=2)


def test_one_line_per_site_and_model(found):
    _, got = found
    assert got.frame.select("site", "model").rows() == [
        (site, model) for site in ("site 0", "site 1", "site 2", "all") for model in ("local", "merged", "exact")
    ]
    assert got.frame.filter(model="local", site="site 1")["rows"].item() == len(parts(table(n=150), 3)["site 1"])
    assert got.frame.filter(site="all")["rows"].to_list() == [150] * 3
    assert (got.repeats, got.folds, len(got.splits)) == (2, 4, 2 * 4 * 3 * 3)
    assert got.frame.filter(pl.col("best"))["site"].to_list() == ["site 0", "site 1", "site 2"]


def test_metrics_are_means_over_splits(found):
    _, got = found
    by_hand = got.splits.group_by("site", "model").agg(pl.col("auc").mean())
    for row in by_hand.iter_rows(named=True):
        [line] = got.frame.filter(site=row["site"], model=row["model"]).iter_rows(named=True)
        assert line["auc"] == pytest.approx(row["auc"])
    wide = got.splits.filter(site="site 0").pivot(on="model", index=["repeat", "fold"], values="auc")
    gains = (wide["exact"] - wide["local"]).to_numpy()
    [line] = got.frame.filter(site="site 0", model="exact").iter_rows(named=True)
    assert line["gain"] == pytest.approx(np.mean(gains))
    middle = (line["gain_low"] + line["gain_high"]) / 2
    assert middle == pytest.approx(line["gain"])


def test_the_model_in_use_is_never_significantly_worse(found):
    used = found[1].frame.filter(pl.col("best"))
    assert "lost" not in used["certainty"].to_list()


def test_comparisons_are_reproducible(found):
    fed, got = found
    again = sv.compare(fed, [sv.MergedForest(n_estimators=6, max_depth=3)], repeats=2)
    ours = got.frame.filter(pl.col("model") == "merged").drop("model", "best")
    assert again.frame.filter(pl.col("model") == "MergedForest").drop("model", "best").equals(ours)


def test_a_split_is_what_federating_its_rows_gives(found):
    """Nothing of one split remains in the next."""
    _, got = found
    learner = sv.HistogramForest(n_estimators=6)
    alone = sv.compare(federate(parts(table(n=150), 3), test=0.25), {"exact": learner}, repeats=2)
    assert alone.splits.filter(model="exact")["auc"].to_list() == got.splits.filter(model="exact")["auc"].to_list()


def test_it_prints_within_80_columns(found):
    text = str(found[1])
    assert repr(found[1]) == text
    assert max(map(len, text.splitlines())) <= 80
    for word in ("site 0", "mean of all", "merged", "95% CI", "Every row is evaluated 2 times"):
        assert word in text


def test_long_names_and_numbers_print_within_80_columns():
    rows = table(n=80).with_columns(pl.Series("label", np.arange(80) * 1.5))
    tables = {"the university hospital": rows[:40], "x": rows[40:]}
    fed = sv.federate_rows(tables, label="label")
    text = str(sv.compare(fed, [sv.HistogramForest(n_estimators=2, max_depth=2)] * 2, repeats=1))
    assert max(map(len, text.splitlines())) <= 80
    assert "HistogramForest" in text
    assert "HistogramFor… 2" in text
    assert "RMSE" in text
    assert "nan" not in text


def test_traffic_is_counted():
    fed = federate(parts(table(n=60), 2), test=0.5)
    before = sum(fed.traffic.values())
    sv.compare(fed, [sv.MergedForest(n_estimators=2, max_depth=2)], repeats=1)
    assert sum(fed.traffic.values()) > before


@pytest.mark.parametrize(
    ("learners", "said"),
    [
        ([], "between 1 and 7"),
        (sv.MergedForest(), "a list of learners"),
        ([sv.MergedForest], "learners must be learners"),
        ([sv.ForestClassifier()], "learners must be learners"),
        ([sv.HistogramForest(epsilon=1.0)], "without epsilon"),
        ({"local": sv.MergedForest()}, "cannot be called 'local'"),
        ([sv.MergedForest()] * 8, "between 1 and 7, got 8"),
    ],
)
def test_invalid_comparisons(found, learners, said):
    with pytest.raises(sv.InputError, match=said):
        sv.compare(found[0], learners)


def test_federations_that_cannot_be_split():
    rows = table(n=40).with_columns(id=pl.Series(range(40)))
    columns = [name for name in rows.columns if name not in ("id", "label")]
    fed = sv.federate_columns(
        {"a": rows.select("id", "label"), "b": rows.select("id", *columns)}, id="id", label="label", test=0.2
    )
    with pytest.raises(sv.InputError, match="repeats need rows at sites of a federation that can split them anew"):
        sv.compare(fed, [sv.MergedForest()])


# -- at a site that took no part


def test_a_site_left_out_is_evaluated_by_models_of_the_others():
    tables = parts(table(n=150), 3)
    learners = {"exact": sv.HistogramForest(n_estimators=6), "merged": sv.MergedForest(n_estimators=4, max_depth=3)}
    fed = federate(tables)
    found = sv.compare(fed, learners, split="sites")
    assert (found.split, found.repeats, found.folds) == ("sites", 1, 3)
    assert found.frame.select("site", "model").rows() == [
        (site, model) for site in ("site 0", "site 1", "site 2", "all") for model in learners
    ]
    for site, rows in tables.items():
        others = federate({name: rows for name, rows in tables.items() if name != site}, schema=fed.schema)
        for name, learner in learners.items():
            scores = sklearn.base.clone(learner).fit(others).forest_.predict_proba(rows.drop("label"))[:, 1]
            classes = np.asarray(rows["label"]) == others.schema.label.classes[1]
            [got] = found.frame.filter(site=site, model=name)["auc"].to_list()
            assert got == pytest.approx(roc_auc_score(classes, scores), abs=6e-4), "three digits leave a site"
    for name in learners:
        by_site = found.frame.filter(pl.col("site") != "all", model=name)["auc"]
        assert found.frame.filter(site="all", model=name)["auc"].item() == pytest.approx(by_site.mean())


def test_a_site_left_out_has_no_local_model():
    found = sv.compare(federate(parts(table(n=90), 3)), [sv.HistogramForest(n_estimators=3)], split="sites")
    assert found.frame["gain"].null_count() == len(found.frame)
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80
    assert "gain" not in text.splitlines()[0]
    assert "Each site is left out in turn" in text
    assert found.splits["fold"].to_list() == [0, 1, 2]


def test_the_test_rows_of_a_federation_are_evaluated_too():
    tables = parts(table(n=90), 3)
    some, none = (
        sv.compare(federate(tables, test=test), [sv.HistogramForest(n_estimators=3)], split="sites")
        for test in (0.5, 0.0)
    )
    assert some.frame.equals(none.frame)


def test_a_number_is_predicted_at_a_site_left_out():
    rows = table(n=90).with_columns(pl.Series("label", np.arange(90) * 1.5))
    found = sv.compare(federate(parts(rows, 3)), [sv.HistogramForest(n_estimators=3)], split="sites")
    assert found.metric == "rmse"
    assert not found.frame["rmse"].is_nan().any()


@pytest.mark.parametrize(
    ("options", "learner", "parameter"),
    [
        ({}, sv.BOFRF(n_estimators=2), "split"),
        ({}, sv.LocalForest(n_estimators=2), "split"),
        ({"sums": "ring"}, sv.HistogramForest(n_estimators=2), "sums"),
        ({"sums": "masked"}, sv.HistogramForest(n_estimators=2), "sums"),
    ],
)
def test_what_cannot_be_evaluated_at_a_site_left_out(options, learner, parameter):
    with pytest.raises(sv.errors.InputError) as error:
        sv.compare(federate(parts(table(n=90), 3), **options), [learner], split="sites")
    assert error.value.parameter == parameter


def test_wrong_splits():
    with pytest.raises(sv.errors.InputError, match="split must be 'rows' or 'sites', got 'hospital'"):
        sv.compare(federate(parts(table(n=60), 2)), [sv.HistogramForest(n_estimators=2)], split="hospital")
    with pytest.raises(sv.errors.InputError, match="at least two sites"):
        sv.compare(federate({"only": table(n=60)}), [sv.HistogramForest(n_estimators=2)], split="sites")
