"""Ownership of trees: sites sign what they make, and score only what sites signed for the task."""

import msgspec
import numpy as np
import pytest
from helpers.ownership import work_of
from helpers.studies import Recorded, disturbed, federate, parts, table

import silvan as sv
from silvan.algorithms.bofrf.choose import Choose
from silvan.algorithms.bofrf.weigh import LocalTrees, ScoreTrees
from silvan.algorithms.horizontal.merged_forest import Trees
from silvan.algorithms.refit_leaves import CountLeafLabels, CountLeafRows
from silvan.errors import FederationError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.message import Blob, Envelope, Owner
from silvan.federation.signed import is_owned
from silvan.federation.store import digest

SMALL = {"n_estimators": 3, "max_depth": 3}
UNSIGNED = "only what sites signed for this task"


def requests(fed, blobs, own=0):
    """A request to score trees; the site's own are at place ``own``."""
    schema = fed.blob(fed.schema.to_json().encode())
    n = sum(len(sv.Forest.from_bytes(fed.content(blob))) for blob in blobs)
    nodes = sum(len(sv.Forest.from_bytes(fed.content(blob)).feature) for blob in blobs)
    more = {"taus": [0.1], "protocol": "honest", "bootstrap": True, "validation": 0.0}
    owners = [*fed.sites[own:], *fed.sites[:own]][: len(blobs)]
    count = {"schema": schema, "forests": blobs, "owners": owners, "bootstrap": True, "validation": 0.0}
    cut = {"few": np.zeros(nodes, bool), "min_leaf": 10, "offset": 0.0, "scale": 1.0}
    return {
        "CountLeafRows": CountLeafRows(**count),
        "CountLeafLabels": CountLeafLabels(**count, **cut),
        "ScoreTrees": ScoreTrees(schema=schema, forests=blobs, validation=0.0, offset=0.0, scale=1.0),
        "Choose": Choose(schema=schema, forests=blobs, own=own, alphas=np.ones(n), **more),
    }


def put(fed, request):
    return fed.total(request) if request.verb == "total" else fed.ask({"site 0": request})


def forests(fed):
    return {site: forest.bare().to_bytes() for site, forest in sv.LocalForest(**SMALL).fit(fed).forests_.items()}


def sign_all(fed):
    return [work_of(fed, site, data) for site, data in forests(fed).items()]


def test_a_site_signs_its_trees_for_a_study_and_a_task():
    fed = federate(parts(table(), 2), Recorded)
    sv.BOFRF(**SMALL).fit(fed)
    sent = [wire.decode(data, Envelope) for _, way, data in fed.transport.record if way == "sent"]
    replies = {e.sender: wire.decode(e.body, LocalTrees) for e in sent if e.kind == "LocalTrees"}
    assert list(replies) == fed.sites
    for site, reply in replies.items():
        hash_, roster = digest(reply.forest), fed.site(site).keys.roster
        owner = Owner(site, "BOFRF (1)", reply.signature)
        other = next(name for name in fed.sites if name != site)
        assert is_owned(roster, owner, fed.study, hash_)
        assert not is_owned(roster, owner, "another study", hash_)
        assert not is_owned(roster, owner, fed.study, digest(b"other trees"))
        for changes in ({"site": other}, {"site": "nobody"}, {"task": "BOFRF (2)"}, {"signature": b""}):
            assert not is_owned(roster, msgspec.structs.replace(owner, **changes), fed.study, hash_)


@pytest.mark.parametrize("kind", ["CountLeafRows", "CountLeafLabels", "ScoreTrees", "Choose"])
def test_sites_score_signed_trees_and_no_others(kind):
    fed = federate(parts(table(), 2))
    made = forests(fed)
    with fed.working_on("forged"):
        blobs = [work_of(fed, "site 0", made["site 0"]), fed.blob(made["site 1"])]
        with pytest.raises(RefusedError, match=UNSIGNED):
            put(fed, requests(fed, blobs)[kind])
    with fed.working_on("signed"):
        put(fed, requests(fed, sign_all(fed))[kind])
    with fed.working_on("trees of another task"):
        blobs = [Blob(digest(data)) for data in made.values()]
        with pytest.raises(RefusedError, match=UNSIGNED):
            put(fed, requests(fed, blobs)[kind])


def test_trees_declared_local_are_local():
    fed = federate(parts(table(), 2))
    with fed.working_on("swapped"), pytest.raises(SiteError, match="could not read"):
        put(fed, requests(fed, sign_all(fed), own=1)["Choose"])


@pytest.mark.parametrize("kind", ["CountLeafRows", "CountLeafLabels"])
def test_trees_are_from_the_sites_that_a_sum_names(kind):
    """Otherwise a site could be told that the trees of another are its own, and leave its rows out of the sum."""
    fed = federate(parts(table(), 2))
    with fed.working_on("swapped"), pytest.raises(RefusedError, match="not from the sites that the request names"):
        put(fed, requests(fed, sign_all(fed), own=1)[kind])


def test_a_signature_that_is_wrong():
    fed = federate(parts(table(), 2))
    with fed.working_on("forged"):
        blobs = [fed.work("site 1", Trees(forest=forests(fed)["site 0"], rows=1, signature=b"\0" * 64))]
        with pytest.raises(RefusedError, match="changed on its way"):
            put(fed, requests(fed, blobs)["ScoreTrees"])


def test_trees_of_each_site_are_scored_once():
    fed = federate(parts(table(), 2))
    with fed.working_on("twice"), pytest.raises(RefusedError, match=UNSIGNED):
        put(fed, requests(fed, sign_all(fed) * 2)["ScoreTrees"])


def test_sites_that_made_the_same_trees():
    """Such as leaves, if all rows have one class."""
    tables = parts(table(), 3)
    for name in ("site 0", "site 1"):
        tables[name] = tables[name].with_columns(label=tables[name]["label"].replace("no", "yes"))
    fed = federate(tables)
    made = forests(fed)
    assert made["site 0"] == made["site 1"]
    assert len(sv.BOFRF(**SMALL, tau=0.0).fit(fed).forest_) == 9


def test_a_coordinator_accepts_signed_trees_only():
    def twist(site, data):
        envelope = wire.decode(data, Envelope)
        if site == "site 1" and envelope.kind == "Trees":
            reply = msgspec.structs.replace(wire.decode(envelope.body, Trees), signature=b"\1" * 64)
            data = wire.encode(msgspec.structs.replace(envelope, body=wire.encode(reply)))
        return [(site, data)]

    with pytest.raises(SiteError, match="site 'site 1': answered GrowTrees with what it did not sign"):
        sv.MergedForest(**SMALL).fit(federate(parts(table(), 2), disturbed(twist)))


def test_trees_in_a_journal_are_known_by_their_signatures_in_a_new_process(tmp_path):
    def study():
        fed = federate(parts(table(), 2), journal=str(tmp_path / "journal.sqlite"))
        asked = []
        fed.watch(lambda event: asked.append(event.kind) if event.what == "answer" else None)
        model = sv.BOFRF(**SMALL).fit(fed)
        fed.close()
        return model, asked

    first, asked = study()
    again, after = study()
    assert again.forest_ == first.forest_
    assert "LocalTrees" not in after
    assert len(asked) > 0
    assert after == []


def test_a_site_without_keys_scores_nothing():
    fed = federate(parts(table(), 2))
    fed.roster = None
    for name in fed.sites:
        fed.site(name)._keys = None
    with pytest.raises(FederationError, match=UNSIGNED):
        sv.BOFRF(**SMALL).fit(fed)
