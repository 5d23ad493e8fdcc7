"""Leaves that a site records while it scores trees: choices are the same with and without these records."""

import msgspec
import numpy as np
import pytest
from helpers.studies import Recorded, envelopes, federate, parts, table

import silvan as sv
from silvan.algorithms.bofrf import choose as choosing
from silvan.algorithms.bofrf import weigh
from silvan.algorithms.bofrf.choose import Choose, choose
from silvan.algorithms.bofrf.weigh import ScoreTrees, score_all
from silvan.federation import wire
from silvan.federation.part import Part
from silvan.federation.store import CacheKey

PARAMETERS = {"n_estimators": 12, "max_depth": 4, "random_state": 3, "personal": True}


@pytest.fixture
def used(monkeypatch):
    """Records whether each choice used recorded leaves."""
    found = []
    score = choosing.score_candidates

    def spy(trees, X, taus, seen, n_jobs, leaves, *, local):
        found.append(leaves is not None)
        return score(trees, X, taus, seen, n_jobs, leaves, local=local)

    monkeypatch.setattr(choosing, "score_candidates", spy)
    return found


def fit(**parameters):
    fed = federate(parts(table(parameters.pop("task", "binary"), n=240), 3), Recorded, test=0.2)
    return fed, sv.BOFRF(**{**PARAMETERS, **parameters}).fit(fed)


@pytest.mark.parametrize(
    ("parameters", "noted"),
    [
        ({}, True),
        ({"task": "several", "max_depth": None}, True),
        ({"task": "number", "equal": True}, True),
        ({"refit_leaves": True}, False),
        ({"validation": 0.3}, False),
        ({"protocol": "paper"}, False),
    ],
)
def test_replies_are_identical_with_and_without_recorded_leaves(parameters, noted, used, monkeypatch):
    fed, _ = fit(**parameters)
    assert used == [noted] * 3
    assert not any(key[0] == "leaves" for site in fed.sites for key in fed.site(site).cache)
    monkeypatch.setattr("silvan.algorithms.bofrf.weigh.note_leaves", lambda *_: None)
    again, _ = fit(**parameters)
    assert used == [noted] * 3 + [False] * 3
    sent = ([(e.kind, e.body) for e in envelopes(one, "sent")] for one in (fed, again))
    first, second = ([one for one in some if one[0] != "LocalTrees"] for some in sent)  # signed for one study each
    assert [kind for kind, _ in first].count("Chosen") == 3
    assert first == second


def requests(fed, site):
    """The requests that a site received: to score trees, and to choose."""
    asked = {e.kind: e.body for e in envelopes(fed, "received", site)}
    return wire.decode(asked["ScoreTrees"], ScoreTrees), wire.decode(asked["Choose"], Choose)


def other_order(site, schema, asked):
    n = len(asked.forests)
    return msgspec.structs.replace(asked, forests=asked.forests[::-1], own=n - 1 - asked.own)


def other_trees(site, schema, asked):
    return msgspec.structs.replace(asked, forests=[asked.forests[asked.own]], own=0, alphas=asked.alphas[:12])


def other_rows(site, schema, asked):
    part = site.part(schema)
    site.cache[CacheKey("part", schema.hash, False, True)] = Part(
        np.ascontiguousarray(part.X[::-1]), part.y, part.row_keys
    )
    return asked


@pytest.mark.parametrize("change", [other_order, other_trees, other_rows])
def test_recorded_leaves_of_other_trees_or_rows_are_not_used(change, used, monkeypatch):
    fed, _ = fit()
    site = fed.site("site 1")
    scoring, asked = requests(fed, "site 1")
    answers = []
    for key in (None, weigh._key, lambda *_: CacheKey("leaves")):
        site.cache.pop(("part", fed.schema.hash, False, True), None)
        if key is not None:
            monkeypatch.setattr(weigh, "_key", key)
            score_all(site, scoring)
        try:
            answers.append(wire.encode(choose(site, change(site, fed.schema, asked))))
        except IndexError:
            answers.append(b"leaves of fewer trees")
    fresh, kept, stale = answers
    assert used[-3:] == [False, False, True]
    assert kept == fresh
    assert stale != fresh  # so the key matters


def test_a_recreated_site_replies_the_same(used):
    fed, model = fit()
    _, asked = requests(fed, "site 2")
    site = fed.site("site 2")
    site.cache.clear()
    reply = choose(site, asked)
    assert used == [True] * 3 + [False]
    assert wire.encode(reply) == wire.encode(model.chosen_["site 2"])


def test_recorded_leaves_take_bounded_memory(used, monkeypatch):
    monkeypatch.setattr(weigh, "_MOST_BYTES", 2 * 36 * 64 - 1)
    fed, _ = fit()
    assert used == [len(fed.site(site).part(fed.schema)) < 64 for site in fed.sites]
    assert len(set(used)) == 2
    site = fed.site("site 1")
    forest = next(kept for key, kept in site.cache.items() if key[0] == "joined trees")
    assert weigh.note_leaves(site, forest, 63).leaves.shape == (36, 63)
    assert len(weigh.choosing_rows(10**6)) == 8192
    site.memory = 8 * 2 * 36 * 10
    assert weigh.note_leaves(site, forest, 10) is not None
    assert weigh.note_leaves(site, forest, 11) is None
