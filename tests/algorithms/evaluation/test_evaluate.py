"""Metrics per site and overall equal scikit-learn's on the same rows, without moving the rows."""

from dataclasses import replace

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.limits import in_groups_of
from helpers.studies import TASKS, Recorded, disturbed, federate, parts, table
from sklearn import metrics as sk

import silvan as sv
from silvan import metrics
from silvan.algorithms.evaluation.candidates import LocalModel, SentModel
from silvan.algorithms.evaluation.evaluate import CountByScore, EvaluateModels, SiteMetrics, evaluate
from silvan.algorithms.evaluation.evaluation import Row, answer_of, compared
from silvan.algorithms.evaluation.score_groups import in_groups
from silvan.algorithms.evaluation.score_quality import intervals
from silvan.errors import InputError, SiteError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.forest.forest import join_forests
from silvan.privacy.policy import PolicyBetweenMachines
from silvan.tree.fit import Settings

CLASSES = ["auc", "pr_auc", "accuracy", "f1", "mcc", "calibration"]
GAINS = ["gain", "gain_low", "gain_high", "use"]
DIGITS = {"binary": {"abs": 5.1e-4}, "several": {"abs": 5.1e-4}, "number": {"rel": 5e-3}}
"""How near figures of a site are to what is worked out from its rows: they have three digits."""


def fitted(task, n_sites=3, n=400, **settings):
    fed = federate(parts(table(task, n=n), n_sites), Recorded, test=0.3, **settings)
    return fed, sv.HistogramForest(n_estimators=8, max_depth=4).fit(fed)


def judged(fed, site):
    """The test rows of a site, encoded."""
    return fed.site(site).part(fed.schema, test=True)


def answered(forest, part):
    """The predictions of a forest for the rows of a site: scores and decisions."""
    return answer_of(forest, part.X, np.zeros(part.X.shape[1], bool))


def by_sklearn(forest, parts_, least=1):
    """Evaluates a forest on the actual rows, which each site scores and counts in groups."""
    found = [in_groups(answered(forest, p), p.y, forest.schema.n_classes, least) for p in parts_]
    scores, votes, y = (np.concatenate(all_) for all_ in zip(*((*answer, y) for answer, y in found), strict=True))
    if not forest.schema.n_classes:
        return {"rmse": sk.root_mean_squared_error(y, scores[:, 0]), "r2": sk.r2_score(y, scores[:, 0])}
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


@pytest.mark.parametrize("least", [1, 5])
@pytest.mark.parametrize("task", TASKS)
def test_metrics_of_each_site_and_overall(task, least):
    fed, model = fitted(task, policy=in_groups_of(least))
    frame = model.evaluate(fed)
    local = sv.LocalForest(n_estimators=8, max_depth=4).fit(fed).forests_
    everyone = [judged(fed, site) for site in fed.sites]
    first = [
        *(["rmse", "r2"] if task == "number" else CLASSES),
        *(metric.key for metric in metrics.further_metrics(fed.schema.n_classes)),
    ]
    assert frame.columns == ["site", "model", "rows", *first, *GAINS, *["positive"] * (task == "binary"), "note"]
    assert frame["site"].unique(maintain_order=True).to_list() == [*fed.sites, "all"]
    for site in fed.sites:
        for name, forest in (("federated", model.forest_), ("local", local[site]), ("pooled", model.forest_)):
            row = figures(frame, site, name)
            assert row["rows"] == len(judged(fed, site))
            for metric, value in by_sklearn(forest, [judged(fed, site)], least).items():
                assert row[metric] == pytest.approx(value, **DIGITS[task]), (site, name, metric)
    overall = figures(frame, "all", "federated")
    assert overall["rows"] == sum(map(len, everyone))
    for metric, value in by_sklearn(model.forest_, everyone, least).items():
        near = {"auc": 2e-3, "pr_auc": 1e-2}.get(metric, 1e-9)  # by the grid of scores; the others are exact
        digits = DIGITS[task] if task == "number" else {"abs": near}
        assert overall[metric] == pytest.approx(value, **digits), metric


def test_overall_metrics_of_site_specific_models():
    """Each site's rows are scored by its own forest; the counts are added."""
    fed, model = fitted("binary")
    local = sv.LocalForest(n_estimators=8, max_depth=4).fit(fed).forests_
    y = np.concatenate([judged(fed, s).y for s in fed.sites])
    answers = [answered(local[s], judged(fed, s)) for s in fed.sites]
    scores, decided = (np.concatenate(both) for both in zip(*answers, strict=True))
    row = figures(model.evaluate(fed), "all", "local")
    assert row["accuracy"] == pytest.approx(sk.accuracy_score(y, decided))
    assert row["auc"] == pytest.approx(sk.roc_auc_score(y, scores[:, 1]), abs=2e-3)


@pytest.mark.parametrize("task", TASKS)
def test_cold_sites_evaluate_the_same(task):
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


def test_an_absent_site():
    fed, _ = fitted("binary")
    model = sv.LocalForest(n_estimators=2, max_depth=2).fit(fed)
    with pytest.raises(InputError, match="no model for site 'site 3'"):
        model.evaluate(federate(parts(table(n=400), 4), test=0.3, schema=fed.schema))


# -- does joining help?


@pytest.mark.parametrize("task", TASKS)
def test_gains_over_the_local_model(task):
    fed, model = fitted(task)
    frame = model.evaluate(fed)
    local = sv.LocalForest(n_estimators=8, max_depth=4).fit(fed).forests_
    first = "rmse" if task == "number" else "auc"
    for site in fed.sites:
        alone, joined, pooled = (figures(frame, site, name) for name in ("local", "federated", "pooled"))
        assert [alone[name] for name in GAINS] == [None, None, None, False]
        better = alone[first] - joined[first] if task == "number" else joined[first] - alone[first]
        assert joined["gain"] == pytest.approx(better)  # of rounded metrics
        part, at = judged(fed, site), fed.site(site)
        answers = [answered(forest, part).scores for forest in (local[site], model.forest_)]
        between = intervals(answers, 0, part.y, fed.schema.n_classes, at.sampling_key)[1]
        assert [joined["gain_low"], joined["gain_high"]] == pytest.approx(list(between), **DIGITS[task])
        assert joined["use"] == (joined["gain_low"] > 0)
        assert not pooled["use"]
        assert pooled["gain"] == joined["gain"], "it is the same forest"
    overall = figures(frame, "all", "federated")
    assert overall["gain"] is not None
    assert (overall["gain_low"], overall["gain_high"], overall["use"]) == (None, None, False)


def test_identical_models_have_no_gain():
    fed, _ = fitted("binary")
    frame = sv.LocalForest(n_estimators=8, max_depth=4).fit(fed).evaluate(fed)
    for site in fed.sites:
        row = figures(frame, site, "federated")
        assert (row["gain"], row["gain_low"], row["gain_high"]) == (0.0, 0.0, 0.0)


def test_few_test_rows_give_no_interval():
    frame = table(n=200)
    fed = federate({"few": frame[:12], "many": frame[12:]}, test=0.4)
    evaluated = sv.HistogramForest(n_estimators=4, max_depth=3).fit(fed).evaluate(fed)
    assert figures(evaluated, "few", "federated")["gain_low"] is None
    assert not any(figures(evaluated, "few", name)["use"] for name in ("local", "federated"))
    assert figures(evaluated, "many", "federated")["gain_low"] is not None


def test_votes_decide_classes_and_scores_rank():
    """A forest whose trees vote is right where its votes are, which may differ from where its scores are."""
    fed, _ = fitted("binary", n=600)
    model = sv.HistogramForest(n_estimators=5, max_depth=2, max_features=1).fit(fed)
    voting = replace(model.forest_, combine="vote", gain=None)
    part = judged(fed, "site 0")
    decided = voting.predict(part.X)
    assert (decided != voting.classes[voting.scores(part.X).argmax(axis=1)]).any(), "or this test shows nothing"
    model.forests_ = dict.fromkeys(fed.sites, voting)
    model.forest_ = voting
    frame = model.evaluate(fed)
    row = figures(frame, "site 0", "federated")
    scores, decided = answered(voting, part)
    assert (decided != scores.argmax(axis=1)).any()
    assert row["accuracy"] == pytest.approx(sk.accuracy_score(part.y, decided), abs=5e-4)
    assert row["mcc"] == pytest.approx(sk.matthews_corrcoef(part.y, decided), abs=5e-4)
    assert row["auc"] == pytest.approx(sk.roc_auc_score(part.y, scores[:, 1]), abs=5e-4)
    everyone = [judged(fed, site) for site in fed.sites]
    right = sum((answered(voting, p).decided == p.y).sum() for p in everyone)
    assert figures(frame, "all", "federated")["accuracy"] == pytest.approx(right / sum(map(len, everyone)))


@pytest.mark.parametrize("task", ["binary", "number"])
@pytest.mark.filterwarnings("ignore:.* absent at")
def test_a_site_with_missing_columns(task):
    """Trees that use a column which a site lacks abstain there; if all do, there are no metrics and no crash."""
    tables = parts(table(task, n=400), 3)
    tables["site 1"] = tables["site 1"].drop("age")
    fed = federate(tables, test=0.3)
    model = sv.HistogramForest(n_estimators=20, max_depth=2, max_features=2).fit(fed)
    asking = model.forest_.uses[:, fed.schema.names.index("age")]
    silent, voting = (replace(model.forest_.take(trees), combine="vote") for trees in (asking, ~asking))
    mixed = join_forests([silent, voting])
    first = "rmse" if task == "number" else "auc"

    model.forest_, model.forests_ = silent, dict.fromkeys(fed.sites, silent)
    evaluated = model.evaluate(fed)
    assert np.isnan(figures(evaluated, "site 1", "federated")[first])
    assert figures(evaluated, "site 1", "federated")["gain"] is None
    assert np.isfinite(figures(evaluated, "site 0", "federated")[first])
    rows = len(judged(fed, "site 0")) + len(judged(fed, "site 2"))
    assert figures(evaluated, "all", "federated")["rows"] == rows
    assert np.isfinite(figures(evaluated, "all", "federated")[first])
    table_ = table(task, n=60, seed=3).drop("age")
    assert np.isnan(figures(model.evaluate(fed, table_), "all", "federated")[first])

    model.forest_, model.forests_ = mixed, dict.fromkeys(fed.sites, mixed)
    part, y = judged(fed, "site 1"), judged(fed, "site 1").y
    scores = answered(voting, part).scores
    expected = sk.root_mean_squared_error(y, scores[:, 0]) if task == "number" else sk.roc_auc_score(y, scores[:, 1])
    assert figures(model.evaluate(fed), "site 1", "federated")[first] == pytest.approx(expected, rel=5e-3)


def lying(change):
    """Makes a kind of federation whose first site changes its metrics before they leave."""

    def twist(site, data):
        envelope = wire.decode(data, Envelope)
        if site == "site 0" and envelope.kind == "SiteMetrics":
            reply = wire.decode(envelope.body, SiteMetrics)
            body = wire.encode(msgspec.structs.replace(reply, **change(reply)))
            data = wire.encode(msgspec.structs.replace(envelope, body=body))
        return [(site, data)]

    return disturbed(twist)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda r: {"intervals": r.intervals[:1]},
        lambda r: {"intervals": r.intervals.astype(np.float32)},
        lambda r: {"intervals": r.intervals[:, ::-1].copy()},
        lambda r: {"intervals": r.intervals + 5.0},
        lambda r: {"intervals": np.where([True, False], r.intervals, np.nan)},
        lambda r: {"intervals": np.where([True, False], r.intervals, np.inf)},
    ],
)
def test_impossible_intervals_are_refused(wrong):
    fed = federate(parts(table(n=400), 3), lying(wrong), test=0.3)
    model = sv.HistogramForest(n_estimators=4, max_depth=3).fit(fed)
    with pytest.raises(SiteError, match="site 'site 0': answered EvaluateModels with something unusable"):
        model.evaluate(fed)


def test_gains_over_a_missing_model():
    fed, _ = fitted("binary")
    named, own = fed.blob(fed.schema.to_json().encode()), [LocalModel(Settings(n_estimators=2))]
    for against in (-2, 1):
        with pytest.raises(SiteError, match="could not read"):
            fed.ask(EvaluateModels(schema=named, candidates=own, feature_key=np.zeros(2, np.uint64), against=against))


# -- parts with too few rows


def test_a_test_set_of_one_class_has_undefined_metrics():
    frame = table(n=200)
    fed = federate({"no": frame.filter(pl.col("label") == "no"), "mixed": frame, "tiny": frame[:1]}, test=0.3)
    evaluated = sv.HistogramForest(n_estimators=4, max_depth=3).fit(fed).evaluate(fed)
    row = figures(evaluated, "no", "federated")
    assert np.isnan(row["auc"])
    assert np.isnan(row["mcc"])
    assert row["accuracy"] > 0.5
    nothing = figures(evaluated, "tiny", "federated")
    assert nothing["rows"] == 0
    assert all(np.isnan(nothing[metric]) for metric in CLASSES)
    assert np.isfinite(figures(evaluated, "all", "federated")["auc"])


def test_a_site_without_test_rows_in_regression():
    frame = table("number", n=100)
    fed = federate({"tiny": frame[:1], "most": frame[1:]}, test=0.3)
    evaluated = sv.HistogramForest(n_estimators=4, max_depth=3).fit(fed).evaluate(fed)
    assert np.isnan(figures(evaluated, "tiny", "federated")["rmse"])
    assert figures(evaluated, "all", "federated")["rmse"] == figures(evaluated, "most", "federated")["rmse"]


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
    """Every model is evaluated on the same rows, from a path or a data frame."""
    fed, model = fitted(task)
    other = table(task, n=150, seed=5)
    evaluated = model.evaluate(fed, other)
    X, y = other.drop("label"), other["label"]
    scores = model.forest_.scores(X)
    row = figures(evaluated, "all", "federated")
    assert row["rows"] == 150
    if task == "number":
        assert row["rmse"] == pytest.approx(sk.root_mean_squared_error(y, scores[:, 0]))
    else:
        assert row["accuracy"] == pytest.approx(sk.accuracy_score(y, model.predict(X)))
    for site in fed.sites:
        federated, local = figures(evaluated, site, "federated"), figures(evaluated, site, "local")
        assert federated["use"] == (federated["gain_low"] > 0)
        assert federated["gain_low"] < federated["gain"] < federated["gain_high"]
        first = "rmse" if task == "number" else "auc"
        assert abs(federated["gain"]) == pytest.approx(abs(federated[first] - local[first]))
        assert local["rows"] == 150
        same = [{k: v for k, v in one.items() if k not in GAINS} for one in (federated, {**row, "site": site})]
        assert repr(same[0]) == repr(same[1])


# -- what is disclosed, and to whom


def test_only_metrics_and_counts_leave_a_site():
    fed, model = fitted("binary")
    before = len(fed.transport.record)
    model.evaluate(fed)
    kinds = [wire.decode(d, Envelope).kind for _, way, d in fed.transport.record[before:] if way == "sent"]
    assert kinds == ["SiteMetrics"] * 3 + ["ScoreCounts"] * 3
    overall = [row.detail for row in model.evaluation(fed).rows if row.site == "all"]
    assert sum(detail.confusion.sum() for detail in overall) == 3 * sum(len(judged(fed, s)) for s in fed.sites)


def test_models_travel_once():
    fed, model = fitted("binary")
    for _ in range(2):
        model.evaluate(fed)
    blobs = [(s, h) for s, way, d in fed.transport.record if way == "received" for h in wire.decode(d, Envelope).blobs]
    assert len(blobs) == len(set(blobs))


@pytest.mark.parametrize("kind", [EvaluateModels, CountByScore])
def test_a_model_of_another_schema_is_refused(kind):
    """It may have more features than the rows: walking it would read beyond them."""
    fed, model = fitted("binary")
    few = replace(model.forest_, gain=None)
    schema = fed.schema
    narrow = msgspec.structs.replace(schema, features=schema.features[:1])
    question = {
        site: kind(
            schema=fed.blob(narrow.to_json().encode()),
            candidates=[SentModel(fed.blob(few.to_bytes()))],
            feature_key=np.zeros(2, np.uint64),
        )
        for site in fed.sites
    }
    fed.study = "another"  # in one study a site has one schema
    with pytest.raises(sv.SiteError, match="could not read what it was sent"):
        fed.ask(question) if kind is EvaluateModels else fed.total(question)


def test_a_request_without_a_model_is_refused():
    fed, _ = fitted("binary")
    named = fed.blob(fed.schema.to_json().encode())
    for candidate in (named, LocalModel(Settings(n_estimators=2))):  # of unknown kind, and of a single one
        question = EvaluateModels(schema=named, candidates=[candidate], feature_key=np.zeros(2, np.uint64))
        if candidate is named:
            with pytest.raises(sv.SiteError, match="could not read what it was sent"):
                fed.ask(question)
        else:
            assert len(fed.ask(question)) == 3


def test_groups_of_one_class_have_no_metrics():
    """Nor groups with one row of another class: the two cannot be distinguished. Sums count all rows."""
    frames = parts(table(), 2)
    for other in (0, 1):
        first = pl.int_range(pl.len()) < other
        same = frames["site 0"].with_columns(label=pl.when(first).then(pl.lit("yes")).otherwise(pl.lit("no")))
        fed = federate({**frames, "site 0": same}, test=0.5, policy=PolicyBetweenMachines())
        frame = sv.HistogramForest(n_estimators=3, max_depth=3).fit(fed).evaluate(fed)
        assert np.isnan(figures(frame, "site 0", "federated")["auc"])
        assert np.isnan(figures(frame, "site 0", "federated")["accuracy"])
        assert np.isfinite(figures(frame, "site 1", "federated")["auc"])
        assert figures(frame, "all", "federated")["rows"] == sum(len(judged(fed, site)) for site in fed.sites)


def test_the_recommended_variant():
    fed, _ = fitted("binary", n=600)
    model = sv.BOFRF(n_estimators=6, max_depth=4).fit(fed)
    rows = evaluate(fed, model.schema_, model.candidates(fed), model.feature_key()).rows
    for site in fed.sites:
        here = [row for row in rows if row.site == site]
        assert [row.model for row in here] == ["local", "own", "global", "federated", "pooled"]
        [used] = [row for row in here if row.model == "federated"]
        assert used.same_as == model.strategies_[site]
        [same] = [row for row in here if row.model == used.same_as]
        assert (same.metrics, same.gain, same.low) == (used.metrics, used.gain, used.low)


@pytest.mark.parametrize(
    ("gain", "between", "used"),
    [
        (0.1, (0.01, 0.2), ["federated"]),
        (-0.1, (-0.2, -0.01), ["local"]),
        (0.1, (-0.01, 0.2), []),
        (-0.1, (-0.2, 0.01), []),
        (0.0, (0.0, 0.0), []),
        (0.1, (np.nan, np.nan), []),
        (np.nan, (np.nan, np.nan), []),
    ],
)
def test_a_model_is_recommended_only_with_evidence(gain, between, used):
    rows = [Row("a", "local", 50, {"auc": 0.8}), Row("a", "federated", 50, {"auc": 0.8 + gain})]
    found = compared(rows, np.array([[np.nan, np.nan], between]))
    assert [row.model for row in found if row.use] == used
