"""The end of a study: signed statements, masked fingerprints, and no further replies."""

import msgspec
import pytest
from experiments.verification.studies import make_federation, sites_of, study_of
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.errors import RefusedError
from silvan.federation.describe import CountRows
from silvan.federation.message import Owner
from silvan.federation.signed import is_owned
from silvan.federation.store import digest
from silvan.privacy import close_study as closing
from silvan.privacy.close_study import (
    CloseStudy,
    ListedSum,
    SumsOver,
    check_own_sums,
    close_study,
    sums_digest,
    sums_to_verify,
)
from silvan.privacy.fingerprints import PRIME
from silvan.privacy.study_notes import find_part

TABLES = parts(table(n=60), 3)


@pytest.fixture
def fitted(tmp_path):
    """A federation of signing sites after a small fit; the coordinator has not closed it."""
    fed = federate(TABLES, signed=True, journal=str(tmp_path / "journal"), test=0.2)
    sv.HistogramForest(2, max_depth=1).fit(fed)
    yield fed
    fed.close()


def listed(fed, over, question):
    """The request with which a coordinator would close a study, for one sum over some sites."""
    return {
        site: CloseStudy(
            sums_digest=sums_digest(fed.questions),
            sums=[SumsOver(over, [ListedSum(question.name, question.asked[site])])],
        )
        for site in over
    }


def fingerprints(fed, question):
    """What sites recorded about their parts of a sum, which nobody should learn."""
    noted = {s: find_part(fed.site(s).store, fed.study, asked) for s, asked in question.asked.items()}
    return {site: part.fingerprint.values for site, part in noted.items()}


def test_a_statement_is_signed_and_lists_the_requests(fitted):
    statements = close_study(fitted)
    assert list(statements) == fitted.sites
    for site, statement in statements.items():
        owner = Owner(site, "", statement.signature)
        assert is_owned(fitted.roster, owner, fitted.study, digest(statement.work()))
        asked = list(dict.fromkeys(q.asked[site] for q in fitted.questions if site in q.asked))
        assert [one.asked for one in statement.answered] == asked[: len(statement.answered)]
        assert asked[len(statement.answered) :] == [asked[-1]], "all but the closing request itself"
    assert check_own_sums(fitted, statements).right == len(sums_to_verify(fitted))


def test_a_closed_study_gets_no_replies(fitted):
    first = close_study(fitted)
    with pytest.raises(RefusedError, match="the study is closed"):
        fitted.ask(CountRows())
    fitted.questions.pop()
    fitted.journal.close()
    fitted.journal = type(fitted.journal)()
    assert close_study(fitted) == first, "asked again word for word"
    fitted.questions.pop()
    with pytest.raises(RefusedError, match="the study is closed"):
        fitted.ask({s: CloseStudy(sums_digest="another", sums=[]) for s in fitted.sites})


def test_the_fingerprint_of_a_part_stays_hidden(fitted):
    """Without all other sites nobody can remove the masks: fingerprint sums over fewer sites are random."""
    question = sums_to_verify(fitted)[0]
    parts_ = fingerprints(fitted, question)
    told = {s: next(p for p in st.prints if p.asked == question.asked[s]) for s, st in close_study(fitted).items()}
    assert all(told[site].values != parts_[site] for site in told)
    for left_out in told:
        some = [site for site in told if site != left_out]
        for k in range(2):
            assert sum(told[s].values[k] for s in some) % PRIME != sum(parts_[s][k] for s in some) % PRIME
    for k in range(2):
        assert sum(p.values[k] for p in told.values()) % PRIME == sum(p[k] for p in parts_.values()) % PRIME


@pytest.mark.parametrize("over", [["site 0"], ["site 0", "site 1"]])
def test_a_fingerprint_over_fewer_sites_is_refused(fitted, over):
    with pytest.raises(RefusedError, match="its fingerprint would tell more"):
        fitted.ask(listed(fitted, over, sums_to_verify(fitted)[0]))


def test_without_the_check_a_fingerprint_over_fewer_sites_is_that_of_a_part(fitted, monkeypatch):
    """The attack: a single site has no masks, and anyone who guesses its part can confirm the guess."""
    question, honest = sums_to_verify(fitted)[0], closing.find_part
    monkeypatch.setattr(closing, "find_part", lambda *at: msgspec.structs.replace(honest(*at), over=["site 0"]))
    read = fitted.ask(listed(fitted, ["site 0"], question))["site 0"].prints[0].values
    assert read == fingerprints(fitted, question)["site 0"]


def test_parts_of_two_sums_do_not_add_up(fitted):
    """The attack: one site lists another sum under the same name, so that their difference would remain."""
    one, other = sums_to_verify(fitted)[:2]
    requests = listed(fitted, fitted.sites, one)
    swapped = SumsOver(fitted.sites, [ListedSum(one.name, other.asked["site 2"])])
    requests["site 2"] = msgspec.structs.replace(requests["site 2"], sums=[swapped])
    told = fitted.ask(requests)
    parts_ = fingerprints(fitted, one) | {"site 2": fingerprints(fitted, other)["site 2"]}
    for k in range(2):
        added = sum(statement.prints[0].values[k] for statement in told.values()) % PRIME
        assert added != sum(part[k] for part in parts_.values()) % PRIME


def test_points_are_revealed_by_the_statement_alone(fitted):
    """They derive from a key that travels sealed: in no earlier message, and in no ledger."""
    points = {statement.points for statement in close_study(fitted).values()}
    assert len(points) == 1
    key = {fitted.site(s).store.get(f"fingerprint key of {fitted.study}") for s in fitted.sites}
    assert len(key) == 1
    assert all(
        next(iter(key)) not in body for bodies in fitted.journal.of_kind("SealedKeys").values() for body in bodies
    )


def test_a_statement_is_a_line_in_the_ledger(fitted):
    close_study(fitted)
    line = fitted.site("site 1").outbox.ledger.lines()[-1]
    assert line.kind == "CloseStudy"
    assert "signed statement of the 7 requests" in line.what
    assert "hidden but for their sums" in line.what


def test_without_signatures_there_are_no_statements():
    fed = federate(TABLES)
    sv.HistogramForest(1, max_depth=1).fit(fed)
    assert close_study(fed) == {}
    with pytest.raises(RefusedError, match="signs nothing"):
        fed.ask(CloseStudy(sums_digest="", sums=[]))


def test_a_site_lost_on_the_way_leaves_sums_unverified(tmp_path):
    """Those that it was part of; the rest of the study is verified."""
    study = study_of(more="quorum = 2")
    fed = make_federation(study, tmp_path)
    _ = fed.schema
    transport, honest = fed.transport, fed.transport.deliver

    def deliver(messages, verb, timeout):
        yield from honest({s: m for s, m in messages.items() if s != "site 2"}, verb, timeout)

    sv.MergedForest(4, max_depth=2, weights="votes").fit(fed)
    transport.deliver = deliver
    sv.HistogramForest(1, max_depth=1).fit(fed)
    found = check_own_sums(fed, close_study(fed))
    assert not found.wrong
    assert found.right >= 1
    assert found.unknown
    assert all("site 'site 2' was lost" in text for text in found.unknown)
    assert set(sites_of(fed)) == {"site 0", "site 1", "site 2"}
    fed.close()
