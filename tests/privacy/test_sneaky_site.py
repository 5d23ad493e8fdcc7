"""The sneaky site of the publication (section III-C): two trees that differ on one known patient.

With the scores of each site, one row changes sides at the patient's site. With sums over sites only, the attacker
learns that some site has the patient, but not which.
"""

import numpy as np
import pytest
from helpers.sneaky_site import SCHEMA, SITES, TREES, score_trees, tables
from helpers.studies import Recorded, envelopes, federate

import silvan as sv
from silvan.algorithms.bofrf.weigh import TreeScores
from silvan.errors import FederationError
from silvan.federation import wire
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Envelope, Trouble


def suspects(scores):
    """Where exactly one row changes sides between the two trees."""
    return [site for site, score in scores.items() if np.abs(score.counts[1] - score.counts[0]).sum() == 2]


def federation(home, kind=Recorded, **settings):
    return federate(tables(home), kind, schema=SCHEMA, **settings)


def test_the_trees_differ_on_the_patient_alone():
    for home in SITES[1:]:
        for site, frame in tables(home).items():
            no, yes = (TREES.take([t]).predict(frame.drop("label")) for t in range(2))
            assert (no != yes).sum() == (site == home)


@pytest.mark.parametrize("home", SITES[1:])
def test_plain_replies_reveal_the_patient(home):
    """What the attack needs: every site's own matrix, which an untrusted aggregator could pass on."""
    fed = federation(home)
    fed.total(score_trees(fed))
    scores = {e.sender: wire.decode(e.body, TreeScores) for e in envelopes(fed, "sent") if e.kind == "TreeScores"}
    assert set(scores) == set(SITES)
    assert suspects(scores) == [home]


def test_the_site_refuses_a_reply_in_the_clear():
    fed = federation("north")
    fed.total(score_trees(fed))
    asked = [data for site, way, data in fed.transport.record if way == "received" and site == "north"][-1]
    answer = wire.decode(fed.site("north").receive(asked, "ask"), Envelope)
    assert answer.kind == "Trouble"
    assert wire.decode(answer.body, Trouble).code == "refused"
    with pytest.raises(FederationError, match="ScoreTrees is for 'total', not for 'ask'"):
        fed.ask(score_trees(fed))


@pytest.mark.parametrize("sums", ["trusted", "ring"])
def test_the_sum_reveals_the_presence_but_not_the_site(sums):
    sums_of = []
    for home in SITES[1:]:
        fed = federation(home, sums=sums)
        sums_of.append(fed.total(score_trees(fed)))
    for one in sums_of:
        # some site has the patient: a sum does reveal this much
        assert suspects({"all": one}) == ["all"]
    assert len({one.counts.sum() for one in sums_of}) == 1
    # for any two homes the two matrices differ by the same row: nothing distinguishes the homes
    change = [one.counts[1] - one.counts[0] for one in sums_of]
    assert all(np.array_equal(change[0], other) for other in change)


@pytest.mark.parametrize("home", SITES[1:])
def test_in_a_ring_no_message_holds_a_matrix_of_one_site(home):
    """The only readable matrices are those of the sum, which the ring gives at its end."""
    fed = federation(home, sums="ring")
    total = fed.total(score_trees(fed))
    sent = envelopes(fed, "sent")
    scores = [wire.decode(e.body, TreeScores) for e in sent if e.kind == "TreeScores"]
    assert len(scores) == 1
    assert np.array_equal(scores[0].counts, total.counts)
    handler = HANDLERS["ScoreTrees"][1]
    own = {site: handler(fed.site(site), score_trees(fed)).counts for site in SITES}
    assert suspects({site: TreeScores(rows=total.rows, counts=counts) for site, counts in own.items()}) == [home]
    for envelope in sent:
        for counts in own.values():
            assert wire.pack_array(counts) not in envelope.body


@pytest.mark.filterwarnings("ignore:no tree is above tau")
def test_the_sneaky_site_itself_learns_only_weights():
    """In a whole run, the sneaky site receives trees and weights; no message has a matrix of another site."""
    fed = federation("north", sums="ring", forests={"sneaky": TREES})
    sv.BOFRF(n_estimators=4, max_depth=3, validation=0.2).fit(fed)
    received = envelopes(fed, "received", "sneaky")
    assert {envelope.kind for envelope in received} <= {"CountRows", "BringTrees", "ScoreTrees", "Choose"}
    for envelope in received:
        kind = HANDLERS[envelope.kind][0]
        request = wire.decode(envelope.body, kind)
        assert not any(name in request.__struct_fields__ for name in ("counts", "rows"))
