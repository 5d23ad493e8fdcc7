"""What a site judges: few models, of trees that sites signed or few others, and the same at all sites of a sum."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.studies import Recorded, federate, parts, table

import silvan as sv
from silvan.algorithms.evaluation.contenders import MOST, Contender, tree_digests
from silvan.algorithms.evaluation.evaluate import Judge, Tally, evaluate
from silvan.errors import FederationError, RefusedError
from silvan.federation import wire
from silvan.federation.message import Envelope

SMALL = {"n_estimators": 3, "max_depth": 3}


def shared(fed):
    return {"schema": fed.blob(fed.schema.to_json().encode()), "feature_key": np.zeros(2, np.uint64)}


def asked(fed, kind):
    """The questions of a kind that a site was asked."""
    sent = [wire.decode(data, Envelope) for site, way, data in fed.transport.record if way == "received"]
    return [wire.decode(e.body, {"Judge": Judge, "Tally": Tally}[kind]) for e in sent if e.kind == kind]


def test_few_models_in_a_judgement():
    fed = federate(parts(table(), 2), test=0.3)
    forest = sv.HistogramForest(**SMALL).fit(fed).forest_
    models = [Contender(sent=fed.blob(forest.take([i % 3]).to_bytes())) for i in range(MOST + 1)]
    for number in (0, MOST + 1):
        with fed.working_on("judging"), pytest.raises(RefusedError, match=f"at most {MOST} models"):
            fed.ask(Judge(contenders=models[:number], **shared(fed)))
    with fed.working_on("judging"):
        fed.ask(Judge(contenders=models[:MOST], **shared(fed)))


@pytest.mark.parametrize("learner", [sv.BOFRF, sv.MergedForest, sv.BOPPID, sv.AdaBoostPL])
def test_models_of_signed_trees_do_not_count(learner):
    fed = federate(parts(table(), 3), Recorded, test=0.3, policy=sv.Policy(models=1))
    sizes = {} if learner in (sv.BOPPID, sv.AdaBoostPL) else {"max_depth": 3}
    models = [learner(n_estimators=n, **sizes).fit(fed) for n in (6, 9, 12)]
    for model in models:
        with fed.working_on("judging without the pooled one"):
            judged = {site: model.forests_[site] for site in fed.sites}
            rows = evaluate_alone(fed, model, judged)
        assert len(rows) == len(fed.sites) + 1
    assert all(question.trees for question in asked(fed, "Judge"))


def evaluate_alone(fed, model, judged):
    return evaluate(fed, model.schema_, [("federated", judged)], np.zeros(2, np.uint64))[0]


def test_other_models_are_counted_over_a_study():
    """Also if the site was restarted, and in any task: what they tell adds up."""
    fed = federate(parts(table(), 2), test=0.3, cold=True, policy=sv.Policy(models=2))
    forest = sv.HistogramForest(**SMALL).fit(fed).forest_
    models = [Contender(sent=fed.blob(forest.take([i]).to_bytes())) for i in range(3)]
    for again in (models[:1], models[:2], models[1:2]):
        with fed.working_on("judging"):
            fed.ask(Judge(contenders=again, **shared(fed)))
    with fed.working_on("judging"), pytest.raises(RefusedError, match="lets a study have 2 models judged"):
        fed.ask(Judge(contenders=models[2:], **shared(fed)))


def test_a_changed_leaf_is_not_signed():
    fed = federate(parts(table(), 2), Recorded, test=0.3, policy=sv.Policy(models=1))
    model = sv.MergedForest(**SMALL).fit(fed)
    with fed.working_on("judging"):
        evaluate_alone(fed, model, model.forest_)
    assert not counted(fed)
    value = model.forest_.value.copy()
    value[0] = value[0][::-1]
    forged = replace(model.forest_, value=value)
    assert len(set(tree_digests(forged)) - set(tree_digests(model.forest_))) == 1
    with fed.working_on("judging"):
        evaluate_alone(fed, model, forged)
    assert len(counted(fed)) == 1


def counted(fed):
    return [key for key in fed.site("site 0").store._values if key.startswith("conduct models")]


def test_trees_that_nobody_signed_are_no_proof():
    fed = federate(parts(table(), 2), test=0.3)
    forest = sv.HistogramForest(**SMALL).fit(fed).forest_
    blob = fed.blob(forest.bare().to_bytes())
    with fed.working_on("judging"), pytest.raises(RefusedError, match="made and signed in this study"):
        fed.ask(Judge(contenders=[Contender(sent=blob)], trees=(blob,), **shared(fed)))


@pytest.mark.parametrize("sums", ["ring", "masked"])
def test_sites_that_did_not_judge_the_same_add_up_to_nothing(sums):
    fed = federate(parts(table(), 3), test=0.3, sums=sums)
    forest = sv.HistogramForest(**SMALL).fit(fed).forest_
    blobs = [fed.blob(forest.take([i]).to_bytes()) for i in (0, 0, 1)]
    with fed.working_on("judging"), pytest.raises(FederationError):
        fed.total(
            {
                site: Tally(contenders=[Contender(sent=blob)], **shared(fed))
                for site, blob in zip(fed.sites, blobs, strict=True)
            }
        )
    with fed.working_on("judging"):
        fed.total(Tally(contenders=[Contender(sent=blobs[0])], **shared(fed)))


def test_what_is_said_to_be_a_sites_own_is():
    """A site's own trees may differ in a sum, and nothing else may be called so."""
    fed = federate(parts(table(), 3), Recorded, test=0.3, sums="masked")
    model = sv.BOFRF(**SMALL).fit(fed)
    model.evaluate(fed)
    local = asked(fed, "Tally")[0].contenders[0]
    assert local.work == "BOFRF (1)"
    other = fed.blob(model.forest_.bare().to_bytes())
    with fed.working_on("judging"), pytest.raises(RefusedError, match="the site's own model is not"):
        fed.total(Tally(contenders=[Contender(sent=other, work="BOFRF (1)")], **shared(fed)))


def test_models_that_differ_by_site_are_not_summed():
    fed = federate(parts(table(), 3), Recorded, test=0.3)
    frame = sv.LocalForest(**SMALL).fit(fed).evaluate(fed)
    assert all(len(question.contenders) == 2 for question in asked(fed, "Tally"))  # local by its settings, pooled
    sites = frame.filter(model="federated").rows(named=True)
    *each, overall = sites
    rows = sum(row["rows"] for row in each)
    assert overall["rows"] == rows
    assert overall["auc"] == pytest.approx(sum(row["auc"] * row["rows"] for row in each) / rows)


@pytest.mark.parametrize("kind", ["AdmitTrees", "ScoreTrees", "Choose", "Judge", "Tally"])
def test_an_approval_that_does_not_name_them(kind):
    """Questions about trees and models of others are closed unless the approved study names them."""
    fed = federate(parts(table(), 3), test=0.3, policy=sv.Policy(approve=True))
    needed = ["Describe", "CountCategories", "NameCategories", "CountRows", "BringTrees"]
    needed += ["AdmitTrees", "ScoreTrees", "Choose", "Judge", "Tally"]
    for site in fed.sites:
        fed.site(site).outbox.approve(fed.study, messages=[name for name in needed if name != kind])
    with pytest.raises(RefusedError, match=f"approved this study without {kind}"):
        sv.BOFRF(**SMALL, admission=True).fit(fed).evaluate(fed)
