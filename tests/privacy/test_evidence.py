"""A request that deviates from the study's text is kept as its coordinator signed it."""

import pytest
from experiments.verification.studies import make_federation, sites_of, study_of

from silvan.errors import RefusedError
from silvan.federation import wire
from silvan.federation.describe import Describe
from silvan.federation.keys import is_signed
from silvan.federation.message import Envelope
from silvan.federation.signed import SignedMessage
from silvan.privacy import evidence
from silvan.privacy.evidence import EVIDENCE

STUDY = study_of(more='task = "classification"')
OTHER = Describe(task="regression")


@pytest.fixture
def fed(tmp_path):
    made = make_federation(STUDY, tmp_path / "run", ledgers=str(tmp_path / "sites"))
    yield made
    made.close()


def test_evidence_proves_the_coordinators_request(fed, tmp_path):
    """It proves the deviation to anybody with the coordinator's public key; and the ledger says where it is."""
    with pytest.raises(RefusedError, match="the study's text says otherwise: task of Describe"):
        fed.ask(OTHER)
    (path,) = (tmp_path / "sites" / "site 0" / EVIDENCE).iterdir()
    message = wire.decode(path.read_bytes(), SignedMessage)
    assert is_signed(fed.roster.coordinator, message.signature, message.signed_bytes())
    assert wire.decode(wire.decode(message.body, Envelope).body, Describe) == OTHER
    assert path.stat().st_mode & 0o777 == 0o600
    line = sites_of(fed)["site 0"].outbox.ledger.lines()[-1]
    assert (line.outcome, line.kind) == ("refused", "Describe")
    assert f"the signed request is kept as evidence in {EVIDENCE}/{path.name}" in line.how


def test_other_refusals_create_no_evidence(fed, tmp_path):
    fed.ask(Describe(task="classification"))
    sites_of(fed)["site 0"].outbox.approvals.withdraw(fed.study)
    with pytest.raises(RefusedError, match="has not approved"):
        fed.ask(OTHER)
    assert not (tmp_path / "sites" / "site 0" / EVIDENCE).exists()


@pytest.mark.parametrize(("limit", "said"), [("_LARGEST", "too large"), ("_MOST", "already, so it is not kept")])
def test_evidence_does_not_fill_a_disk(fed, tmp_path, monkeypatch, limit, said):
    monkeypatch.setattr(evidence, limit, 0)
    with pytest.raises(RefusedError):
        fed.ask(OTHER)
    assert not list((tmp_path / "sites").glob(f"*/{EVIDENCE}/*"))
    assert said in sites_of(fed)["site 0"].outbox.ledger.lines()[-1].how
