"""Poisoned trees: no site has more say than another, and sites refuse what is poor or odd on their own rows."""

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest
from helpers.lies import caught_lies
from helpers.ownership import work_of
from helpers.studies import Recorded, disturbed, federate, parts, table

import silvan as sv
from silvan.algorithms.bofrf.choose import CandidateTrees, score_candidates
from silvan.algorithms.bofrf.tree_messages import OwnTrees
from silvan.algorithms.shared import admission
from silvan.algorithms.shared.admission import ODD, POOR, TAKEN, AdmitTrees, Refusals, judge_trees
from silvan.algorithms.shared.validation_rows import learning_rows
from silvan.auditing.attacks.backdoor import find_trigger, poisoned_federation, with_backdoor
from silvan.auditing.release import Rows
from silvan.errors import FederationError, InputError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.federation.part import Part
from silvan.forest.forest import Forest

LEARNERS = {
    "merged": lambda **more: sv.MergedForest(32, max_depth=5, min_samples_leaf=5, **more),
    "BOFRF": lambda **more: sv.BOFRF(8, max_depth=5, min_samples_leaf=5, **more),
}
ATTACKER = "site 3"


@cache
def tables(task="binary"):
    return parts(table(task, n=480), 4)


@cache
def trigger():
    fed = federate(tables())
    forest = sv.MergedForest(20, max_depth=5).fit(fed).forest_
    part = fed.site("site 0").part(fed.schema)
    return find_trigger(fed, forest, Rows(part.X, part.y))


def say_by_site(model, owners=None):
    owners = getattr(model, "owners_", owners)
    weights = model.forest_.weights
    return {str(site): weights[owners == site].sum() / weights.sum() for site in np.unique(owners)}


# -- equal say


def brought(n):
    """A federation in which one site brings many more trees than others grow."""
    big = sv.LocalForest(n, max_depth=4).fit(federate(tables())).forests_[ATTACKER]
    return federate(tables(), forests={ATTACKER: big})


def test_a_site_that_brings_many_trees():
    fed = brought(60)
    settings = {"n_estimators": 6, "max_depth": 4, "validation": 0.2}
    free = sv.BOFRF(**settings).fit(fed)
    assert len(free.forest_) == 3 * 6 + 60
    assert say_by_site(free)[ATTACKER] > 0.6
    equal = sv.BOFRF(**settings, equal=True).fit(fed)
    assert len(equal.forest_) == 78
    assert list(say_by_site(equal).values()) == pytest.approx([0.25] * 4)
    capped = sv.BOFRF(**settings, max_trees=6).fit(fed)
    assert len(capped.forest_) == 24
    assert say_by_site(capped)[ATTACKER] < 0.4


def test_no_more_trees_are_grown_than_are_taken():
    assert len(sv.BOFRF(8, max_depth=3, max_trees=5).fit(federate(tables())).forest_) == 20
    assert len(sv.MergedForest(32, max_depth=3, max_trees=5).fit(federate(tables())).forest_) == 20


def test_merged_trees_of_sites_with_trees_that_saw_no_row():
    """A site of a few rows has trees that drew none; the others of it speak for them."""
    frames = tables() | {"site 0": tables()["site 0"][:2]}
    model = sv.MergedForest(40, equal=True).fit(federate(frames))
    owners = np.repeat(list(frames), 10)
    assert (model.forest_.weights[:10] == 0).any()
    assert list(say_by_site(model, owners).values()) == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("task", ["several", "number"])
def test_what_a_site_chooses_among_is_what_it_gets(task):
    """The figures by which a site chooses are those of the ensembles with equal say, made one by one."""
    fed = federate(tables(task))
    model = sv.MergedForest(24).fit(fed)
    forest = replace(model.forest_, weights=np.ones(24))
    X, rng = fed.site("site 0").part(fed.schema).X, np.random.default_rng(0)
    sizes, own = [5, 8, 1, 10], np.arange(5, 13)
    seen, alphas, taus = rng.random((8, len(X))) < 0.5, rng.uniform(-0.2, 0.8, 24), [0.2, 0.0, 0.5, 0.79]
    voting = (rng.random(24) < 0.8).astype(float)
    scores = score_candidates(CandidateTrees(forest, alphas, voting, own, sizes), X, taus, seen)
    each = np.array([forest.take([t]).scores(X) for t in range(24)])
    skip = np.zeros((24, len(X)), bool)
    skip[own] = seen
    for t, tau in enumerate(taus):
        for s, trees in enumerate((np.arange(24), own)):
            weights = np.zeros(24)
            weights[trees] = np.where(alphas[trees] > tau, alphas[trees], 0.0)
            if not weights.any() and t == 0:
                weights[trees] = 1.0
            for site in np.split(np.arange(24), np.cumsum(sizes)[:-1]):
                weights[site] /= max(weights[site].sum(), 1e-300)
            part = (weights * voting)[:, None] * ~skip
            if not (weights * voting).any():
                assert (t, s) not in scores
                continue
            with np.errstate(invalid="ignore"):
                expected = np.einsum("tr,tro->ro", part, each) / part.sum(axis=0)[:, None]
            np.testing.assert_allclose(scores[t, s], expected, rtol=1e-12)


def test_a_site_that_sends_more_trees_than_it_was_asked_for():
    def twist(site, data):
        envelope = wire.decode(data, Envelope)
        if site == ATTACKER and envelope.kind == "OwnTrees":
            reply = wire.decode(envelope.body, OwnTrees)
            forest = Forest.from_bytes(reply.forest)
            many = forest.take([0, *range(len(forest))]).to_bytes()
            body = wire.encode(OwnTrees(**{n: getattr(reply, n) for n in reply.__struct_fields__} | {"forest": many}))
            data = wire.encode(Envelope(envelope.study, envelope.question, site, envelope.kind, body))
        return [(site, data)]

    with pytest.raises(SiteError, match="not as many as asked for"):
        LEARNERS["BOFRF"]().fit(federate(tables(), disturbed(twist)))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"equal": "yes"}, "equal must be True or False"),
        ({"admission": 2}, "admission must be True or False"),
        ({"max_trees": 0}, "max_trees must be a whole number of at least 1"),
        ({"max_trees": 2.5}, "max_trees must be a whole number"),
        ({"max_trees": True}, "max_trees must be a whole number"),
    ],
)
@pytest.mark.parametrize("learner", LEARNERS)
def test_what_cannot_be_meant(learner, wrong, text):
    with pytest.raises(InputError, match=text):
        LEARNERS[learner](**wrong).fit(federate(tables()))


def test_equal_say_by_rows_is_a_contradiction():
    with pytest.raises(InputError, match="equal gives every site the same say"):
        sv.MergedForest(weights="votes", equal=True).fit(federate(tables()))


# -- admission


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize(("kind", "word"), [("crude", "poor"), ("stealthy", "odd")])
def test_backdoored_trees_are_refused_and_reported(learner, kind, word):
    """Without the check a site's poisoned trees are used; with it they are not, and everybody hears of it."""
    n = 8
    open_ = LEARNERS[learner](tau=0.0) if learner == "BOFRF" else LEARNERS[learner]()
    trusting = open_.fit(poisoned_federation(federate(tables()), trigger(), "stealthy"))
    assert (trusting.forest_.weights[-n:] > 0).all()
    fed = poisoned_federation(federate(tables()), trigger(), kind)
    with pytest.warns(UserWarning, match=f"8 of 8 trees of site 'site 3' are not used.*times (odd|{word})"):
        model = LEARNERS[learner](admission=True).fit(fed)
    assert not model.forest_.weights[-n:].any()
    assert model.forest_.weights[:-n].any()
    assert sum(model.refused_[ATTACKER].values()) == 3 * n  # by each of the others
    for site in ("site 0", "site 1", "site 2"):
        assert not model.forests_[site].weights[-n:].any() or len(model.forests_[site]) == n
    lines = [line.describe() for line in fed.site("site 0").outbox.ledger.lines() if line.kind == "AdmitTrees"]
    assert len(lines) == 1
    assert "which of 32 trees the site refuses to use" in lines[0]


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("task", ["binary", "several", "number"])
def test_honest_trees_are_taken(learner, task):
    """Some are refused by some; nearly all are used by nearly all, and the forest is as good."""
    fed = federate(tables(task))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="no tree is above tau")
        model = LEARNERS[learner](admission=True).fit(fed)
    refused = sum(n for why in model.refused_.values() for n in why.values())
    assert refused < 0.15 * 4 * 24
    assert (model.forest_.weights > 0).mean() > (0.9 if learner == "merged" else 0.3)


@pytest.mark.parametrize("sums", ["trusted", "masked"])
def test_the_same_however_sites_are_run(sums):
    """Restarted for every message, and with sums that hide their parts: the same refusals, the same forests."""
    learner = LEARNERS["BOFRF"](admission=True, equal=True, personal=True)
    usual = learner.fit(federate(tables()))
    hashes = {site: forest.hash for site, forest in usual.forests_.items()}
    again = LEARNERS["BOFRF"](admission=True, equal=True, personal=True).fit(federate(tables(), sums=sums, cold=True))
    assert {site: forest.hash for site, forest in again.forests_.items()} == hashes
    assert again.refused_ == usual.refused_
    assert again.rounds_ == 4


def test_what_most_sites_refuse_nobody_uses():
    """A site whose rows are the other way round refuses everybody's trees, and everybody refuses its."""
    frames = dict(tables())
    odd = frames["site 0"]
    frames["site 0"] = odd.with_columns(label=odd["label"].replace({"yes": "no", "no": "yes"}))
    with pytest.warns(UserWarning, match="8 of 8 trees of site 'site 0' are not used"):
        model = LEARNERS["merged"](admission=True).fit(federate(frames))
    used = model.forest_.weights.reshape(4, 8).sum(axis=1)
    assert used[0] == 0
    assert used[1:].sum() > 20
    judged = federate(frames, test=0.25)
    with pytest.warns(UserWarning, match="are not used"):
        bofrf = LEARNERS["BOFRF"](admission=True).fit(judged)
    assert bofrf.strategies_["site 0"] == "own"  # by its own trees, which are refused; the others' are wrong for it
    evaluated = bofrf.evaluate(judged)
    federated = evaluated.filter((pl.col("model") == "federated") & (pl.col("site") == "site 0"))
    assert federated["auc"].item() > 0.6


def test_two_sites_that_refuse_each_others_trees():
    """There is nothing left to agree on: the forest keeps all."""
    frames = {name: tables()[name] for name in ("site 0", "site 1")}
    odd = frames["site 1"]
    frames["site 1"] = odd.with_columns(label=odd["label"].replace({"yes": "no", "no": "yes"}))
    model = sv.MergedForest(12, max_depth=4, min_samples_leaf=5, admission=True).fit(federate(frames))
    assert (model.forest_.weights > 0).all()
    assert sum(model.refused_["site 0"].values()) == sum(model.refused_["site 1"].values()) == 6


def test_more_than_half_of_the_others():
    owners, twos = np.repeat(["a", "b", "c"], 2), np.full(6, 2)
    refused = Refusals(owners, twos, np.array([0, 0, 1, 1, 0, 0]), np.array([2, 0, 0, 0, 1, 0]))
    assert refused.dropped.tolist() == [True, False, False, False, False, False]
    assert refused.counted() == {"a": {"odd": 2}, "b": {"poor": 2}, "c": {"odd": 1}}
    unsure = replace(refused, judged=np.ones(6, int))  # of each tree one site had too few rows to tell
    assert unsure.dropped.tolist() == [True, False, True, True, True, False]
    assert refused.keep_sites(["a", "b"]).dropped.tolist() == [True, False, False, False]
    assert not replace(refused, odd=twos).dropped.any()  # never all


@pytest.mark.parametrize("sums", ["ring", "masked"])
def test_nobody_sees_the_verdicts_of_one_site(sums):
    """Verdicts come as a sum: in the clear they are refused, and what sites send is hidden."""
    fed = federate(tables(), Recorded, sums=sums)
    model = LEARNERS["merged"](admission=True).fit(fed)
    assert model.refused_ == LEARNERS["merged"](admission=True).fit(federate(tables())).refused_
    kinds = [wire.decode(data, Envelope).kind for _, way, data in fed.transport.record if way == "sent"]
    assert kinds.count("Admitted") == (sums == "ring")  # the sum, which the last site passes on
    blobs = [fed.blob(forest.bare().to_bytes()) for forest in sv.LocalForest(2).fit(fed).forests_.values()]
    request = AdmitTrees(schema=fed.blob(fed.schema.to_json().encode()), forests=blobs, owners=fed.sites)
    with pytest.raises(FederationError, match="'total'"):
        fed.ask(request)


def test_too_few_sites_for_a_policy():
    """A sum over few sites says nearly what each of them would."""
    numbers = {site: frame.select("dose", "noise", "label") for site, frame in tables().items()}
    fed = federate(numbers, policy=sv.Policy(min_sites=5))
    with pytest.raises(RefusedError, match="sums over at least 5 sites"):
        LEARNERS["merged"](admission=True).fit(fed)


def test_a_policy_says_what_is_poor():
    strict = federate(tables(), policy=sv.Policy(min_skill=0.9))
    model = LEARNERS["merged"](admission=True).fit(strict)
    assert all(sum(why.values()) > 20 for why in model.refused_.values())
    with pytest.raises(InputError, match="min_skill must be at least -1"):
        sv.Policy(min_skill=1.0)


@pytest.mark.filterwarnings("ignore:8 of 8 trees of site 'site 0'")
def test_a_site_of_few_rows_does_not_judge():
    frames = tables() | {"site 0": tables()["site 0"][:9]}
    fed = federate(frames, Recorded)
    LEARNERS["merged"](admission=True).fit(fed)
    replies = [wire.decode(d, Envelope) for s, w, d in fed.transport.record if (s, w) == ("site 0", "sent")]
    [answer] = [e for e in replies if e.kind == "Admitted"]
    reply = wire.decode(answer.body, AdmitTrees.reply)
    assert not any(found.any() for found in (reply.judged, reply.poor, reply.odd))


def test_a_policy_that_does_not_allow_it():
    fed = federate(tables(), policy=sv.Policy(messages=["Describe", "CountCategories", "NameCategories", "GrowTrees"]))
    LEARNERS["merged"]().fit(fed)
    with pytest.raises(RefusedError, match="refused AdmitTrees"):
        LEARNERS["merged"](admission=True).fit(fed)


def test_trees_are_judged_once_in_a_task():
    """With many questions a coordinator would find out row by row what forged trees do."""
    fed = federate(tables())
    forests = sv.LocalForest(4).fit(fed).forests_
    blobs = [work_of(fed, site, forest.bare().to_bytes()) for site, forest in forests.items()]
    named = fed.blob(fed.schema.to_json().encode())
    fed.total(AdmitTrees(schema=named, forests=blobs, owners=fed.sites))
    with pytest.raises(RefusedError, match="in another form"):
        fed.total(AdmitTrees(schema=named, forests=blobs[:2], owners=fed.sites[:2]))


# -- judging


def part_of(task, depth=4):
    fed = federate(tables(task))
    return fed.site("site 0").part(fed.schema), sv.LocalForest(6, max_depth=depth).fit(fed).forests_["site 1"]


def test_numbers_far_from_all_labels():
    part, forest = part_of("number")
    absent = np.zeros(5, bool)
    assert not (judge_trees(forest, part, absent, -1.0) == ODD).any()
    huge = forest.value.copy()
    huge[0] = 1e30  # a leaf of the first tree
    verdicts = judge_trees(replace(forest, value=huge), part, absent, -1.0)
    assert verdicts[0] == ODD
    assert not (verdicts[1:] == ODD).any()
    constant = Part(part.X, np.full(len(part), 5.0), part.row_keys)
    judge_trees(forest, constant, absent, 0.0)  # nothing to explain, so no tree is poor at it


def test_a_tree_that_abstains_is_not_judged():
    part, forest = part_of("binary")
    doored = with_backdoor(forest, trigger(), "stealthy")
    assert (judge_trees(doored, part, np.zeros(5, bool), 0.0) == ODD).all()
    absent = np.zeros(5, bool)
    absent[trigger().feature] = True
    assert (judge_trees(doored, part, absent, 0.0) == TAKEN).all()


def test_rows_of_one_class_tell_nothing():
    part, forest = part_of("binary")
    alike = Part(part.X, np.zeros(len(part), np.int64), part.row_keys)
    assert not (judge_trees(forest, alike, np.zeros(5, bool), 0.0) == POOR).any()


def test_what_the_check_does_not_see():
    """A trigger that waits at small leaves looks like an honest tree of other rows: only equal say bounds it."""
    part, forest = part_of("binary", None)
    hidden = with_backdoor(forest, trigger(), "hidden")
    assert (judge_trees(hidden, part, np.zeros(5, bool), 0.0) == TAKEN).any()
    turned = hidden.predict(trigger().on(part.X))
    assert (turned == ("no", "yes")[trigger().target]).all()
    assert (hidden.predict(part.X) == forest.predict(part.X)).all()


# -- lies


def lied(kind):
    small = parts(table(n=60), 2)
    return sv.MergedForest(4, max_depth=2, admission=True).fit(federate(small, kind))


def test_a_lie():
    caught = caught_lies(lied, "Admitted")
    assert len(caught) > 3
    assert {error.site for error in caught if isinstance(error, SiteError)} == {"site 1"}


def test_rows_split_off_judge_no_tree(monkeypatch):
    """Or a site would choose among trees that the rows it chooses on have helped to select."""
    fed, judged = federate(tables()), {}
    truth = admission.judge_trees
    monkeypatch.setattr(
        admission,
        "judge_trees",
        lambda forest, part, *rest: (judged.update({len(judged): part}), truth(forest, part, *rest))[1],
    )
    sv.BOFRF(n_estimators=3, admission=True, validation=0.3).fit(fed)
    assert len(judged) >= len(fed.sites)
    keys = set(np.concatenate([part.row_keys for part in judged.values()]).tolist())
    for name in fed.sites:
        kept, held = learning_rows(fed.site(name), fed.schema, 0.3)
        assert len(held) > 5
        assert keys.isdisjoint(held.row_keys.tolist())
        assert keys.issuperset(kept.row_keys.tolist())
