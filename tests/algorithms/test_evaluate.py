"""Figures per site and overall: what scikit-learn says of the same rows, without the rows."""

from dataclasses import replace

import msgspec
import numpy as np
import polars as pl
import pytest
from sklearn import metrics as sk
from studies import TASKS, Recorded, federate, parts, table

import silvan as sv
from silvan.algorithms.evaluate import Contender, Judge, Tally
from silvan.errors import InputError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.tree.fit import Settings
from silvan.tree.save import to_bytes

CLASSES = ["auc", "pr_auc", "accuracy", "f1", "mcc", "calibration"]


def fitted(task, n_sites=3, n=400, **settings):
    fed = federate(parts(table(task, n=n), n_sites), Recorded, test=0.3, **settings)
    return fed, sv.HistogramForest(n_estimators=8, max_depth=4).fit(fed)


def judged(fed, site):
    """The rows a site judges on, encoded."""
    return fed.site(site).part(fed.schema, test=True)


def by_sklearn(forest, parts_):
    """Judge a forest on the rows themselves."""
    y = np.concatenate([p.y for p in parts_])
    scores = np.concatenate([forest.scores(p.X) for p in parts_])
    if not forest.schema.n_classes:
        return {"rmse": sk.root_mean_squared_error(y, scores[:, 0]), "r2": sk.r2_score(y, scores[:, 0])}
    votes = scores.argmax(axis=1)
    two = forest.schema.n_classes == 2
    one = [1] if two else range(forest.schema.n_classes)
    return {
        "auc": np.mean([sk.roc_auc_score(y == c, scores[:, c]) for c in one]),
        "pr_auc": np.mean([sk.average_precision_score(y == c, scores[:, c]) for c in one]),
        "accuracy": sk.accuracy_score(y, votes),
        "f1": sk.f1_score(y, votes, average="binary" if two else "macro"),
        "mcc": sk.matthews_corrcoef(y, votes),
    }


def figures(frame, site, model):
    [row] = frame.filter(site=site, model=model).to_dicts()
    return row


@pytest.mark.parametrize("task", TASKS)
def test_figures_of_each_site_and_of_all(task):
    fed, model = fitted(task)
    frame = model.evaluate(fed)
    local = sv.LocalForest(n_estimators=8, max_depth=4).fit(fed).forests_
    everyone = [judged(fed, site) for site in fed.sites]
    assert frame.columns == ["site", "model", "rows", *(["rmse", "r2"] if task == "number" else CLASSES)]
    assert frame["site"].unique(maintain_order=True).to_list() == [*fed.sites, "all"]
    for site in fed.sites:
        for name, forest in (("federated", model.forest_), ("local", local[site]), ("pooled", model.forest_)):
            row = figures(frame, site, name)
            assert row["rows"] == len(judged(fed, site))
            for metric, value in by_sklearn(forest, [judged(fed, site)]).items():
                assert row[metric] == pytest.approx(value, rel=1e-9), (site, name, metric)
    overall = figures(frame, "all", "federated")
    assert overall["rows"] == sum(map(len, everyone))
    for metric, value in by_sklearn(model.forest_, everyone).items():
        near = {"auc": 2e-3, "pr_auc": 1e-2}.get(metric, 1e-9)  # by the grid of scores; the others are exact
        assert overall[metric] == pytest.approx(value, abs=near), metric


def test_overall_figures_of_the_sites_own_models():
    """Each site's rows are scored by its own forest; the counts are added."""
    fed, model = fitted("binary")
    local = sv.LocalForest(n_estimators=8, max_depth=4).fit(fed).forests_
    y = np.concatenate([judged(fed, s).y for s in fed.sites])
    scores = np.concatenate([local[s].scores(judged(fed, s).X) for s in fed.sites])
    row = figures(model.evaluate(fed), "all", "local")
    assert row["accuracy"] == pytest.approx(sk.accuracy_score(y, scores.argmax(axis=1)))
    assert row["auc"] == pytest.approx(sk.roc_auc_score(y, scores[:, 1]), abs=2e-3)


@pytest.mark.parametrize("task", TASKS)
def test_cold_sites_judge_the_same(task):
    warm, model = fitted(task)
    cold = federate(parts(table(task, n=400), 3), test=0.3, cold=True)
    assert repr(model.evaluate(warm).rows()) == repr(model.evaluate(cold).rows())


def test_each_site_its_own_model():
    fed, _ = fitted("binary")
    model = sv.LocalForest(n_estimators=8, max_depth=4).fit(fed)
    frame = model.evaluate(fed)
    for site in fed.sites:
        assert figures(frame, site, "federated")["accuracy"] == figures(frame, site, "local")["accuracy"]
        [other] = [s for s in fed.sites if s != site][:1]
        assert model.forests_[site] != model.forests_[other]


def test_a_site_that_was_not_there():
    fed, _ = fitted("binary")
    model = sv.LocalForest(n_estimators=2, max_depth=2).fit(fed)
    with pytest.raises(InputError, match="no model for site 'site 3'"):
        model.evaluate(federate(parts(table(n=400), 4), test=0.3, schema=fed.schema))


# -- parts on which little can be said


def test_a_test_part_of_one_class_shows_what_is_undefined():
    frame = table(n=200)
    fed = federate({"no": frame.filter(pl.col("label") == "no"), "mixed": frame, "tiny": frame[:1]}, test=0.3)
    told = sv.HistogramForest(n_estimators=4, max_depth=3).fit(fed).evaluate(fed)
    row = figures(told, "no", "federated")
    assert np.isnan(row["auc"])
    assert np.isnan(row["mcc"])
    assert row["accuracy"] > 0.5
    nothing = figures(told, "tiny", "federated")
    assert nothing["rows"] == 0
    assert all(np.isnan(nothing[metric]) for metric in CLASSES)
    assert np.isfinite(figures(told, "all", "federated")["auc"])


def test_a_site_without_test_rows_in_regression():
    frame = table("number", n=100)
    fed = federate({"tiny": frame[:1], "most": frame[1:]}, test=0.3)
    told = sv.HistogramForest(n_estimators=4, max_depth=3).fit(fed).evaluate(fed)
    assert np.isnan(figures(told, "tiny", "federated")["rmse"])
    assert figures(told, "all", "federated")["rmse"] == figures(told, "most", "federated")["rmse"]


def test_without_test_rows_or_a_table():
    fed = federate(parts(table(), 3))
    model = sv.HistogramForest(n_estimators=2, max_depth=2).fit(fed)
    with pytest.raises(InputError, match=r"no site has test rows: set test=0\.2"):
        model.evaluate(fed)


def test_before_it_is_fitted():
    with pytest.raises(InputError, match="not fitted yet"):
        sv.HistogramForest().evaluate(federate(parts(table(), 2), test=0.2))


@pytest.mark.parametrize("task", TASKS)
def test_on_a_table(task):
    """Every model is judged on the same rows, a path or a frame."""
    fed, model = fitted(task)
    other = table(task, n=150, seed=5)
    told = model.evaluate(fed, other)
    X, y = other.drop("label"), other["label"]
    scores = model.forest_.scores(X)
    row = figures(told, "all", "federated")
    assert row["rows"] == 150
    if task == "number":
        assert row["rmse"] == pytest.approx(sk.root_mean_squared_error(y, scores[:, 0]))
    else:
        assert row["accuracy"] == pytest.approx(sk.accuracy_score(y, model.predict(X)))
    for site in fed.sites:
        assert figures(told, site, "federated") == {**row, "site": site}
        assert figures(told, site, "local")["rows"] == 150


# -- what is told, and to whom


def test_only_figures_and_counts_leave_a_site():
    fed, model = fitted("binary")
    before = len(fed.record)
    model.evaluate(fed)
    kinds = [wire.decode(d, Envelope).kind for _, way, d in fed.record[before:] if way == "sent"]
    assert kinds == ["Figures"] * 3 + ["Counts"] * 3
    assert model.counts_.confusion.sum() == 3 * sum(len(judged(fed, s)) for s in fed.sites)


def test_models_travel_once():
    fed, model = fitted("binary")
    for _ in range(2):
        model.evaluate(fed)
    blobs = [(s, h) for s, way, d in fed.record if way == "received" for h in wire.decode(d, Envelope).blobs]
    assert len(blobs) == len(set(blobs))


@pytest.mark.parametrize("kind", [Judge, Tally])
def test_a_model_of_another_schema_is_refused(kind):
    """Its features may be more than the rows have: walking it would read beyond them."""
    fed, model = fitted("binary")
    few = replace(model.forest_, gain=None)
    schema = fed.schema
    narrow = msgspec.structs.replace(schema, features=schema.features[:1])
    question = {
        site: kind(
            schema=fed.blob(narrow.to_json().encode()),
            contenders=[Contender(sent=fed.blob(to_bytes(few)))],
            feature_key=np.zeros(2, np.uint64),
        )
        for site in fed.sites
    }
    with pytest.raises(sv.SiteError, match="could not read what it was sent"):
        fed.ask(question) if kind is Judge else fed.total(question)


def test_a_question_without_a_model_is_refused():
    fed, _ = fitted("binary")
    named = fed.blob(fed.schema.to_json().encode())
    for contender in (Contender(), Contender(own=Settings(n_estimators=2))):
        question = Judge(schema=named, contenders=[contender], feature_key=np.zeros(2, np.uint64))
        if contender.own is None:
            with pytest.raises(sv.RefusedError, match="names no model"):
                fed.ask(question)
        else:
            assert len(fed.ask(question)) == 3
