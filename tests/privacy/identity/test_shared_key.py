"""A key that only sites know: here that of row samples; for parties see test_identity.py."""

import msgspec
import numpy as np
import pytest
from helpers.private_study import schema
from helpers.studies import Recorded, federate, parts, table

import silvan as sv
from silvan.errors import FederationError, RefusedError
from silvan.federation import wire
from silvan.federation.handlers import HANDLERS
from silvan.federation.keys import Roster
from silvan.federation.message import Envelope
from silvan.privacy.identity.shared_key import DealKey, SealedKeys, TakeKey, restore_sampling_key, share_key


@pytest.fixture
def fed():
    fed = federate(parts(table(n=120), 3), Recorded, signed=True, schema=schema())
    for member in fed.local_sites.values():
        member.published = False
    return fed


def keys(fed):
    return {tuple(member.sampling_key.tolist()) for member in fed.local_sites.values()}


def test_all_sites_sample_with_one_new_key(fed):
    before = keys(fed)
    rounds = fed.rounds
    share_key(fed)
    assert fed.rounds == rounds  # agreement is counted separately
    assert len(keys(fed)) == 1
    assert keys(fed) != before
    key = np.array(next(iter(keys(fed))), "<u8").tobytes()
    assert not any(key in data for *_, data in fed.transport.record)
    model = sv.HistogramForest(4, max_depth=3).fit(fed)
    assert model.forest_.hash == sv.PooledForest(4, max_depth=3).fit(fed).forest_.hash


def test_a_repeated_request_keeps_the_key(fed):
    share_key(fed)
    before = keys(fed)
    share_key(fed)
    assert keys(fed) == before
    fed.key_shared = ""  # as after a restart of the coordinator
    share_key(fed)
    assert keys(fed) == before
    for name in fed.sites:  # and after a restart
        fed.local_sites[name] = fed.local_sites[name].rebuilt()
        restore_sampling_key(fed.local_sites[name], fed.study)
    assert keys(fed) == before


def test_a_site_accepts_one_key_per_study(fed):
    """With two keys, the same rows would be sampled in two ways, and the sums would differ by few rows."""
    first, second, _ = fed.sites
    offer = DealKey(study=fed.study, sites=[second])
    boxes = fed.ask(offer, to=[first])[first].boxes
    fed.ask(DealKey(study=fed.study, sites=[first]), to=[second])  # makes its own key
    with pytest.raises(RefusedError, match="shared key for this study already"):
        fed.ask({second: TakeKey(study=fed.study, by=first, box=boxes[second])})


def test_each_study_has_its_own(fed):
    share_key(fed)
    before = keys(fed)
    fed.study = "another"
    share_key(fed)
    assert keys(fed) != before


def test_keys_of_other_studies_are_neither_sent_nor_accepted(fed):
    """Otherwise a coordinator could sample rows of one study as in another, and compare the sums of the two."""
    (first, second, _), before = fed.sites, fed.study
    with pytest.raises(RefusedError, match="a key of another study"):
        fed.ask(DealKey(study="another", sites=[second]), to=[first])
    boxes = fed.ask(DealKey(study=fed.study, sites=[second]), to=[first])[first].boxes
    fed.study = "another"
    for named, error in ((fed.study, "belongs elsewhere"), (before, "a key of another study")):
        with pytest.raises(RefusedError, match=error):
            fed.ask({second: TakeKey(study=named, by=first, box=boxes[second])})


def test_a_box_that_was_changed_is_refused(fed):
    read = fed.signer.read

    def swap(site, study, data):
        body = read(site, study, data)
        envelope = wire.decode(body, Envelope)
        if envelope.kind == "SealedKeys":
            boxes = dict(wire.decode(envelope.body, SealedKeys).boxes)
            first, second = boxes
            boxes[first], boxes[second] = boxes[second], boxes[first]
            return wire.encode(msgspec.structs.replace(envelope, body=wire.encode(SealedKeys(boxes=boxes))))
        return body

    fed.signer.read = swap  # as if the coordinator itself had mixed them up
    with pytest.raises(FederationError, match="changed on its way, or belongs elsewhere"):
        share_key(fed)


def test_a_site_that_is_not_on_the_roster(fed):
    roster = fed.local_sites["site 0"].signer.roster
    fed.local_sites["site 0"].signer.roster = Roster(roster.coordinator, roster.sites, {})
    with pytest.raises(FederationError, match="the others on its roster"):
        share_key(fed)


def test_a_site_with_a_budget_agrees_on_a_key(fed):
    """A key reveals nothing about rows, so budgets, policies and approvals need not name it."""
    policy = sv.Policy(epsilon=1.0, messages=("CountTables",), approve=True)
    fed = sv.federate_rows(parts(table(n=120), 3), schema=schema(), policy=policy, signed=True, n_jobs=1)
    for member in fed.local_sites.values():
        member.published = False
    with pytest.raises(RefusedError, match="has not approved"):
        share_key(fed)
    for name in fed.sites:
        fed.site(name).outbox.approve(fed.study, messages=["CountTables"])
    share_key(fed)
    assert len(keys(fed)) == 1


def test_requests_unrelated_to_rows_do_not_depend_on_the_table():
    """The kinds exempt from budgets and policies: a site handles each even if its table cannot be read.

    ``CloseStudy`` is about earlier replies, by digests (``test_close_study.py``), and
    ``CompareLedgers`` is about the length of ledgers (``test_ledger_heads.py``).
    """
    free = {kind.kind() for kind, _ in HANDLERS.values() if not kind.of_rows}
    assert free == {"Announce", "CloseStudy", "CompareLedgers", "DealKey", "KeepResults", "NoteColumns", "TakeKey"}
    tables = {"north": "no such file.csv", "south": "no such file.csv"}
    fed = sv.federate_rows(tables, schema=schema(), policy=sv.Policy(epsilon=1.0), signed=True)
    share_key(fed)
    assert len(keys(fed)) == 1
