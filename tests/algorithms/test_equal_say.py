"""No site has more weight than another, however many trees it sends."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers.studies import disturbed, federate, parts, table

import silvan as sv
from silvan.algorithms.bofrf.choose import CandidateTrees, score_candidates
from silvan.algorithms.bofrf.weigh import LocalTrees
from silvan.errors import InputError, SiteError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.forest.forest import Forest

LEARNERS = {
    "merged": lambda **more: sv.MergedForest(32, max_depth=5, min_samples_leaf=5, **more),
    "BOFRF": lambda **more: sv.BOFRF(8, max_depth=5, min_samples_leaf=5, **more),
}
ATTACKER = "site 3"


@cache
def tables(task="binary"):
    return parts(table(task, n=480), 4)


def say_by_site(model, owners=None):
    owners = getattr(model, "owners_", owners)
    weights = model.forest_.weights
    return {str(site): weights[owners == site].sum() / weights.sum() for site in np.unique(owners)}


# -- equal weight


def pretrained(n):
    """A federation in which one site brings many more trees than others grow."""
    big = sv.LocalForest(n, max_depth=4).fit(federate(tables())).forests_[ATTACKER]
    return federate(tables(), forests={ATTACKER: big})


def test_a_site_that_brings_many_trees():
    fed = pretrained(60)
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


def test_no_surplus_trees_are_grown():
    assert len(sv.BOFRF(8, max_depth=3, max_trees=5).fit(federate(tables())).forest_) == 20
    assert len(sv.MergedForest(32, max_depth=3, max_trees=5).fit(federate(tables())).forest_) == 20


def test_merging_sites_whose_trees_sampled_no_row():
    """At a site with few rows, some trees sampled none; its other trees carry the weight."""
    frames = tables() | {"site 0": tables()["site 0"][:2]}
    model = sv.MergedForest(40, equal=True).fit(federate(frames))
    owners = np.repeat(list(frames), 10)
    assert (model.forest_.weights[:10] == 0).any()
    assert list(say_by_site(model, owners).values()) == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("task", ["several", "number"])
def test_a_site_gets_the_ensemble_it_chose(task):
    """The metrics for a site's choice equal those of the equally weighted ensembles, built one by one."""
    fed = federate(tables(task))
    model = sv.MergedForest(24).fit(fed)
    forest = replace(model.forest_, weights=np.ones(24))
    X, rng = fed.site("site 0").part(fed.schema).X, np.random.default_rng(0)
    sizes, own = [5, 8, 1, 10], np.arange(5, 13)
    seen, alphas, taus = rng.random((8, len(X))) < 0.5, rng.uniform(-0.2, 0.8, 24), [0.2, 0.0, 0.5, 0.79]
    voting = (rng.random(24) < 0.8).astype(float)
    lines = np.full(24, -1)
    lines[own] = np.arange(8)
    scores = score_candidates(CandidateTrees(forest, alphas, voting, own, lines, sizes), X, taus, seen)
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


def test_surplus_trees_are_refused():
    def twist(site, data):
        envelope = wire.decode(data, Envelope)
        if site == ATTACKER and envelope.kind == "LocalTrees":
            reply = wire.decode(envelope.body, LocalTrees)
            forest = Forest.from_bytes(reply.forest)
            many = forest.take([0, *range(len(forest))]).to_bytes()
            body = wire.encode(LocalTrees(**{n: getattr(reply, n) for n in reply.__struct_fields__} | {"forest": many}))
            data = wire.encode(Envelope(envelope.study, envelope.question, site, envelope.kind, body))
        return [(site, data)]

    with pytest.raises(SiteError, match="not as many as requested"):
        LEARNERS["BOFRF"]().fit(federate(tables(), disturbed(twist)))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"equal": "yes"}, "equal must be True or False"),
        ({"max_trees": 0}, "max_trees must be a whole number of at least 1"),
        ({"max_trees": 2.5}, "max_trees must be a whole number"),
        ({"max_trees": True}, "max_trees must be a whole number"),
    ],
)
@pytest.mark.parametrize("learner", LEARNERS)
def test_invalid_settings(learner, wrong, text):
    with pytest.raises(InputError, match=text):
        LEARNERS[learner](**wrong).fit(federate(tables()))


def test_equal_weight_contradicts_shares_by_rows():
    with pytest.raises(InputError, match="equal gives every site the same say"):
        sv.MergedForest(weights="votes", equal=True).fit(federate(tables()))
