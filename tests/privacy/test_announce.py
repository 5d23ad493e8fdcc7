"""Announcements: refusals are known before anything is requested or charged."""

import numpy as np
import pytest
from helpers import column_studies
from helpers.asking import send, trouble
from helpers.private_study import budgets, federate, spent
from helpers.studies import parts, table

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels
from silvan.errors import InputError, RefusedError
from silvan.federate.alignment import asks_to_align
from silvan.federation import wire
from silvan.federation.site import Site
from silvan.privacy import announce
from silvan.privacy.announce import Announce, Announced
from silvan.privacy.gate import Gate
from silvan.privacy.noise.noisy_request import Noisy

ASKED = {
    "study": "study",
    "settings": "",
    "kinds": ["CountTables"],
    "over": ["here", "there", "elsewhere"],
    "tasks": 2,
    "epsilon": 1.0,
    "sharers": 1,
    "leaf": None,
}


def announced(policy, **what):
    """A site's reply to an announcement; its table cannot even be read."""
    site = Site("here", "no such file.csv", outbox=Gate(policy))
    return reasons(site, **what)


def reasons(site, **what):
    return wire.decode(send(site, Announce(**{**ASKED, **what})).body, Announced).refused


@pytest.mark.parametrize(
    ("policy", "what", "said"),
    [
        ({"epsilon": 1.0}, {}, ""),
        ({}, {"kinds": ["EvaluateModels", "GrowTrees"]}, ""),
        ({"epsilon": 0.9}, {}, "all that is about to be asked costs 1"),
        ({"epsilon": 1.0}, {"kinds": ["EvaluateModels"]}, "EvaluateModels is answered without noise"),
        (
            {"epsilon": 1.0, "messages": ["CountTables", "EvaluateModels"]},
            {"kinds": ["CountTables", "EvaluateModels"]},
            "",
        ),
        ({"messages": ["CountTables"]}, {"kinds": ["CountTables", "CountByScore"]}, "does not allow CountByScore"),
        ({}, {"kinds": ["AdaptiveLevel"]}, "does not allow AdaptiveLevel"),
        ({"min_sites": 4}, {}, "sums over at least 4 sites"),
        ({"min_sites": 4}, {"kinds": ["EvaluateModels"]}, ""),
        ({"min_leaf": 5}, {"kinds": ["GrowTrees"], "leaf": 4}, "leaves of at least 5 rows"),
        ({"min_leaf": 5}, {"kinds": ["GrowTrees"], "leaf": 5}, ""),
        ({"epsilon": 1.0}, {"sharers": 2}, "hide their parts"),
        ({}, {"kinds": ["NoSuchKind"]}, "does not know"),
        ({}, {"kinds": ["DealKey", "TakeKey"]}, ""),
    ],
)
def test_by_policy_and_budget_alone(policy, what, said):
    found = announced(sv.Policy(**policy), **what)
    assert (said in "; ".join(found)) if said else not found


def test_all_reasons_at_once():
    found = announced(sv.Policy(epsilon=0.5, min_sites=4), kinds=["EvaluateModels", "CountTables"])
    assert len(found) == 3


def test_by_approval():
    gate = Gate(sv.Policy(approve=True))
    site = Site("here", table(n=60), outbox=gate)
    assert "has not approved" in trouble(send(site, Announce(**ASKED))).text
    gate.approve("study", messages=["CountTables"], tasks=1, sites=["here", "there"])
    assert reasons(site, tasks=1, over=["here", "there"]) == []
    assert reasons(site, tasks=1, over=["here", "there"], kinds=["EvaluateModels"]) == [
        "the site's owner approved this study without EvaluateModels"
    ]
    assert "with other sites" in reasons(site, tasks=1)[0]
    assert "1 task" in reasons(site, over=["here"])[0]


def test_a_site_without_noise(monkeypatch):
    def lacking():
        raise RefusedError("the site cannot add noise: it lacks opendp")

    monkeypatch.setattr(announce, "load_opendp", lacking)
    assert "lacks opendp" in announced(sv.Policy())[0]
    assert announced(sv.Policy(), epsilon=0.0, kinds=["EvaluateModels"]) == []


@pytest.mark.parametrize("wrong", [{"epsilon": np.nan}, {"epsilon": -1.0}, {"sharers": 0}, {"tasks": -1}])
def test_nonsense(wrong):
    site = Site("here", table(n=60), outbox=Gate(sv.Policy()))
    assert trouble(send(site, Announce(**{**ASKED, **wrong}))).code == "format"


def test_the_table_does_not_affect_the_reply():
    """The reply is the same, byte for byte, for other rows and for a table that cannot be read."""
    tables = [table(n=60), table(n=61), "no such file.csv"]
    for policy in (sv.Policy(epsilon=1.0), sv.Policy(epsilon=0.5), sv.Policy(messages=["EvaluateModels"])):
        answers = {send(Site("here", source, outbox=Gate(policy)), Announce(**ASKED)).body for source in tables}
        assert len(answers) == 1


def test_an_admitted_study_is_admitted_again():
    """Earlier charges are not charged again; another study gets what is left."""
    gate = Gate(sv.Policy(epsilon=1.0))
    site = Site("here", table(n=60), outbox=gate)
    assert reasons(site) == []
    gate.budget.charge("a draw of it", 1.0, "")
    assert reasons(site) == []
    assert "used up" in reasons(site, settings="another")[0]


# -- in a federation


def test_no_site_is_charged_for_what_another_refuses(tmp_path):
    settings = {"policy": sv.Policy(epsilon=1.0), "budgets": tmp_path}
    fed = federate(**settings)
    budgets(fed)["site 2"].charge("another study", 0.5, "")
    with pytest.raises(RefusedError, match=r"site 'site 2' refused this before anything was asked: .*used up"):
        sv.HistogramForest(epsilon=0.7).fit(fed)
    assert spent(fed).tolist() == [0.0, 0.0, 0.5]
    sv.HistogramForest(epsilon=0.5).fit(fed)
    with pytest.raises(RefusedError, match=r"site 'site 0'.*\n.*site 'site 1'.*\n.*site 'site 2'"):
        sv.HistogramForest(epsilon=0.6).fit(fed)


def test_parameters_that_make_no_sense_are_not_announced():
    fed = federate(policy=sv.Policy(epsilon=1.0))
    for wrong in ({"epsilon": -1.0}, {"private": "none"}, {"n_rows": 0}, {"tolerate": 5}):
        with pytest.raises(InputError):
            sv.HistogramForest(**{"epsilon": 1.0, **wrong}).fit(fed)
    assert not any(kind == "Announce" for _, _, kind in fed.traffic)


def test_announcements_are_not_counted_as_rounds(tmp_path):
    """Rounds, and the request numbers in journals, are as without an announcement."""
    fed = federate()
    model = sv.HistogramForest(epsilon=1.0, n_rows=2000).fit(fed)
    assert fed.rounds == model.rounds_ == 3
    assert fed._asked == fed.rounds + fed.agreement_rounds


# -- what learners announce


LEARNERS = [
    sv.HistogramForest(2, max_depth=2),
    sv.HistogramForest(2, max_depth=2, bins="adaptive"),
    sv.MergedForest(3),
    sv.MergedForest(3, refit_leaves=True),
    sv.AutoForest(2, max_depth=2),
    sv.AutoForest(2, max_depth=2, choose=False, refit_leaves=True),
    sv.BOFRF(2),
    sv.BOFRF(2, clusters=2, refit_leaves=True),
    sv.BOFRF(2, personal=True, validation=0.2),
    sv.BOPPID(2),
    sv.AdaBoostPL(2),
    sv.MultBoost(2),
    sv.PooledForest(2),
    sv.LocalForest(2),
    sv.LocalAdaBoost(2),
]


def asked(fed):
    return {kind for _, _, kind in fed.traffic if kind != "Announce"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("learner", LEARNERS, ids=repr)
def test_learners_send_only_announced_kinds(learner):
    frame = table(n=120)
    if learner.get_params().get("bins") == "adaptive":
        frame = frame.select("dose", "noise", "label")
    policy = sv.Policy(messages=("*", "AdaptiveLevel"))
    fed = sv.federate_rows(parts(frame, 3), test=0.25, policy=policy, n_jobs=1)
    before = set(asked(fed))
    learner.fit(fed)
    requests = learner.request_plan(fed)
    assert {kind.kind() for kind in requests.kinds} == asked(fed) - before
    fit = asked(fed)
    learner.evaluate(fed)
    assert asked(fed) - fit == {kind.kind() for kind in learner.evaluation_plan(fed).kinds}


LEARNERS_OF_COLUMNS = [
    sv.VerticalForest(2, max_depth=2),
    sv.VerticalForest(2, max_depth=2, vote="hard", auditor=True),
    sv.VerticalForest(2, max_depth=2, labels="encrypted", key_bits=256),
    sv.VerticalForest(2, max_depth=2, labels="encrypted", key_bits=256, auditor=True),
    sv.VerticalLinear(max_iter=2),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("learner", LEARNERS_OF_COLUMNS, ids=repr)
def test_vertical_learners_send_only_announced_kinds(learner, monkeypatch, tmp_path):
    """From the first message on; it is known before the parties agree on anything."""
    if learner.get_params().get("labels") == "encrypted":
        pytest.importorskip("gmpy2", reason="gmpy2 is not installed: pip install 'silvan[vertical]'")
        monkeypatch.setattr(encrypted_labels, "TESTING", True)
    match = "psi" if isinstance(learner, sv.VerticalLinear) else "keyed"
    fed = column_studies.federate(column_studies.split(column_studies.wide(n=90), 2), test=0.25, match=match)
    requests, align = learner.request_plan(None), {kind.kind() for kind in asks_to_align(match)}
    assert asked(fed) == align
    learner.fit(fed)
    fit = asked(fed)
    assert fit - align == {kind.kind() for kind in requests.kinds}
    learner.evaluate(fed)
    judging = learner.evaluation_plan(None)
    assert asked(fed) - fit == {kind.kind() for kind in judging.kinds}
    lines = [line for site in fed.local_sites.values() for line in site.outbox.ledger.lines()]
    assert len({line.task for line in lines if line.task}) == requests.tasks + judging.tasks

    tables = column_studies.split(column_studies.wide(n=90), 2)
    fed = sv.federate_columns(tables, id=column_studies.ID, label="label", random_state=1)
    before = asked(fed)
    fed.party("party 0").predictions = tmp_path / "predictions.csv"
    learner.send_predictions(fed, fed.columns.common)
    predicting = learner.prediction_plan()
    assert asked(fed) - before == {kind.kind() for kind in predicting.kinds}
    lines = [line for site in fed.local_sites.values() for line in site.outbox.ledger.lines()]
    assert len({line.task for line in lines if line.task}) == predicting.tasks


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", ["binary", "several", "number"])
@pytest.mark.parametrize("form", ["tables", "levels", "input"])
def test_private_forests_send_only_announced_kinds(form, task):
    """All of it at a large epsilon; some of it with few rows."""
    fed = federate(task, n=240, test=0.25, test_by="row")
    model = sv.HistogramForest(3, max_depth=2, epsilon=100.0, private=form)
    requests, noisy = model.request_plan(fed), model.evaluation_plan(fed, epsilon=1.0)
    assert noisy.models == 2  # noise does not cover how long a count takes
    before = asked(fed)
    model.fit(fed)
    assert asked(fed) - before == {kind.kind() for kind in requests.kinds}
    assert all(issubclass(kind, Noisy) for kind in requests.kinds + noisy.kinds)
    seen = asked(fed)
    model.evaluate(fed, epsilon=1.0)
    assert asked(fed) - seen == {"CountByScoreWithNoise"} == {kind.kind() for kind in noisy.kinds}
