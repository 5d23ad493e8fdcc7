"""Models that a site evaluates: signed trees or few others, and the same models at all sites of a sum."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from helpers.limits import limited
from helpers.studies import Recorded, federate, parts, table

import silvan as sv
from silvan.algorithms.evaluation.candidates import MOST, PersonalModel, SentModel
from silvan.algorithms.evaluation.evaluate import CountByScore, EvaluateModels, evaluate
from silvan.algorithms.evaluation.personal_forest import ChooseShare
from silvan.algorithms.horizontal.weigh_halves import CompareHalves
from silvan.errors import FederationError, RefusedError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.learners.registry import LEARNERS
from silvan.privacy.announce import announce

SMALL = {"n_estimators": 3, "max_depth": 3}


def shared(fed):
    return {"schema": fed.blob(fed.schema.to_json().encode()), "feature_key": np.zeros(2, np.uint64)}


def asked(fed, kind):
    """The requests of one kind that a site received."""
    sent = [wire.decode(data, Envelope) for site, way, data in fed.transport.record if way == "received"]
    return [
        wire.decode(e.body, {"EvaluateModels": EvaluateModels, "CountByScore": CountByScore}[kind])
        for e in sent
        if e.kind == kind
    ]


def test_an_evaluation_has_few_models():
    fed = federate(parts(table(), 2), test=0.3)
    forest = sv.HistogramForest(**SMALL).fit(fed).forest_
    models = [SentModel(fed.blob(forest.take([i % 3]).to_bytes())) for i in range(MOST + 1)]
    for number in (0, MOST + 1):
        with fed.working_on("evaluating"), pytest.raises(RefusedError, match=f"at most {MOST} models"):
            fed.ask(EvaluateModels(candidates=models[:number], **shared(fed)))
    with fed.working_on("evaluating"):
        fed.ask(EvaluateModels(candidates=models[:MOST], **shared(fed)))


SETTINGS = {
    "HistogramForest": {},
    "MergedForest": {},
    "AutoForest": {},
    "AutoForest alike": {"choose": False, "refit_leaves": True},
    "LocalForest": {},
    "BOFRF": {},
    "BOFRF personal": {"personal": True},
    "BOFRF with re-estimated leaves": {"personal": True, "refit_leaves": True},
    "BOFRF validation": {"validation": 0.3},
    "BOPPID": {"max_depth": None},
    "AdaBoostPL": {"max_depth": None},
    "MultBoost": {"max_depth": None},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_study_may_evaluate_as_many_models_as_its_learner_needs(name):
    fed = federate(parts(table(), 3), Recorded, test=0.3)
    parameters = {key: value for key, value in {**SMALL, **SETTINGS[name]}.items() if value is not None}
    learner = getattr(sv, name.split()[0])
    model = learner(**parameters).fit(fed)
    model.evaluate(fed)
    pooled = fed.blob(dict(model.candidates(fed))["pooled"].to_bytes()).hash
    for site in fed.sites:
        found = judged_at(fed, site)
        sent = [one for one in found if isinstance(one, SentModel) and one.model.hash != pooled and not one.made_in]
        personal = [one for one in found if isinstance(one, PersonalModel)]
        counted = {msgspec.json.encode(one) for one in (*sent, *personal)}
        assert len(counted) <= LEARNERS[learner.__name__].models_evaluated(parameters)


@pytest.mark.parametrize("learner", [sv.HistogramForest, sv.AutoForest])
def test_a_threshold_rule_counts_as_one_more_model(learner):
    """As in the announcement of a study, which a site refuses if it would have to evaluate more."""
    model, tables = learner(**SMALL, threshold="f1"), parts(table(n=120), 2)
    most = model.evaluation_plan(federate(tables)).models
    assert most == LEARNERS[learner.__name__].models_evaluated({"threshold": "f1"}) + 1  # the pooled one
    fed = limited(federate(tables, test=0.3), models=most)
    model.fit(fed).evaluate(fed)


def judged_at(fed, site):
    """All models that a site was asked to evaluate, on test rows or on training rows."""
    sent = [wire.decode(data, Envelope) for to, way, data in fed.transport.record if way == "received" and to == site]
    judged = [one for e in sent if e.kind == "EvaluateModels" for one in wire.decode(e.body, EvaluateModels).candidates]
    compared = [one for e in sent if e.kind == "CompareHalves" for one in wire.decode(e.body, CompareHalves).models]
    return judged + compared + [wire.decode(e.body, ChooseShare).model for e in sent if e.kind == "ChooseShare"]


def evaluate_alone(fed, model, judged):
    return evaluate(fed, model.schema_, [("federated", judged)], np.zeros(2, np.uint64)).rows


def test_models_are_counted_per_study():
    """Also after a restart and in any task, because what they reveal adds up."""
    fed = limited(federate(parts(table(), 2), test=0.3, cold=True), models=2)
    forest = sv.HistogramForest(**SMALL).fit(fed).forest_
    models = [SentModel(fed.blob(forest.take([i]).to_bytes())) for i in range(3)]
    for again in (models[:1], models[:2], models[1:2]):
        with fed.working_on("evaluating"):
            fed.ask(EvaluateModels(candidates=again, **shared(fed)))
    with fed.working_on("evaluating"), pytest.raises(RefusedError, match="in a study: 2 at most"):
        fed.ask(EvaluateModels(candidates=models[2:], **shared(fed)))


def test_other_weights_make_another_model():
    """With weights of its choice, a coordinator can give rows any score, even with signed trees."""
    fed = limited(federate(parts(table(), 2), test=0.3), models=1)
    model = sv.MergedForest(**SMALL).fit(fed)
    with fed.working_on("evaluating"):
        evaluate_alone(fed, model, model.forest_)
    weights = model.forest_.weights * np.linspace(1.0, 2.0, len(model.forest_))
    with fed.working_on("evaluating"), pytest.raises(RefusedError, match="in a study: 1 at most"):
        evaluate_alone(fed, model, replace(model.forest_, weights=weights))


def test_a_study_that_needs_more_is_refused_first():
    fed = limited(federate(parts(table(), 3), test=0.3), models=2)
    announce(fed, sv.HistogramForest(**SMALL).evaluation_plan(fed))  # its local model and the pooled one
    with pytest.raises(RefusedError, match="in a study: 2 at most"):
        announce(fed, sv.BOFRF(**SMALL).evaluation_plan(fed))


@pytest.mark.parametrize("sums", ["ring", "masked"])
def test_evaluations_of_different_models_are_not_summed(sums):
    fed = federate(parts(table(), 3), test=0.3, sums=sums)
    forest = sv.HistogramForest(**SMALL).fit(fed).forest_
    blobs = [fed.blob(forest.take([i]).to_bytes()) for i in (0, 0, 1)]
    with fed.working_on("evaluating"), pytest.raises(FederationError):
        fed.total(
            {
                site: CountByScore(candidates=[SentModel(blob)], **shared(fed))
                for site, blob in zip(fed.sites, blobs, strict=True)
            }
        )
    with fed.working_on("evaluating"):
        fed.total(CountByScore(candidates=[SentModel(blobs[0])], **shared(fed)))


def test_models_declared_local_are_local():
    """In a sum, only the local trees of a site may differ, and nothing else may be declared local."""
    fed = federate(parts(table(), 3), Recorded, test=0.3, sums="masked")
    model = sv.BOFRF(**SMALL).fit(fed)
    model.evaluate(fed)
    local = asked(fed, "CountByScore")[0].candidates[0]
    assert local.made_in == "BOFRF (1)"
    other = fed.blob(model.forest_.bare().to_bytes())
    with fed.working_on("evaluating"), pytest.raises(RefusedError, match="not this site's own model"):
        fed.total(CountByScore(candidates=[SentModel(other, "BOFRF (1)")], **shared(fed)))


def test_models_that_differ_by_site_are_not_summed():
    fed = federate(parts(table(), 3), Recorded, test=0.3)
    frame = sv.LocalForest(**SMALL).fit(fed).evaluate(fed)
    assert all(
        len(question.candidates) == 2 for question in asked(fed, "CountByScore")
    )  # local by its settings, pooled
    sites = frame.filter(model="federated").rows(named=True)
    *each, overall = sites
    rows = sum(row["rows"] for row in each)
    assert overall["rows"] == rows
    assert overall["auc"] == pytest.approx(sum(row["auc"] * row["rows"] for row in each) / rows)


@pytest.mark.parametrize("kind", ["ScoreTrees", "Choose", "EvaluateModels", "CountByScore"])
def test_an_approval_must_name_these_requests(kind):
    """Requests about trees and models of other sites are refused unless the approved study names them."""
    fed = federate(parts(table(), 3), test=0.3, policy=sv.Policy(approve=True))
    needed = ["Describe", "CountCategories", "NameCategories", "CountRows", "BringTrees"]
    needed += ["ScoreTrees", "Choose", "EvaluateModels", "CountByScore"]
    for site in fed.sites:
        fed.site(site).outbox.approve(fed.study, messages=[name for name in needed if name != kind])
    with pytest.raises(RefusedError, match=f"approved this study without {kind}"):
        sv.BOFRF(**SMALL).fit(fed).evaluate(fed)
