"""The end of a study: signed statements, the key by which sums are proved, and nothing more answered."""

import pytest
from experiments.verification.studies import make_federation, sites_of, study_of
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.algorithms.describe_columns import DescribeRows
from silvan.errors import RefusedError
from silvan.federation.describe import CountRows
from silvan.federation.message import Owner
from silvan.federation.signed import is_owned
from silvan.federation.store import digest, shared_key_name
from silvan.privacy.close_study import CloseStudy, check_sums, close_study

TABLES = parts(table(n=60), 3)


@pytest.fixture
def fitted(tmp_path):
    """A federation whose sites sign, after a small fit; the coordinator has not closed it."""
    fed = federate(TABLES, signed=True, journal=str(tmp_path / "journal"), test=0.2)
    sv.HistogramForest(2, max_depth=1).fit(fed)
    yield fed
    fed.close()


def test_a_statement_is_signed_and_says_what_was_asked(fitted):
    statements = close_study(fitted)
    assert list(statements) == fitted.sites
    for site, statement in statements.items():
        owner = Owner(site, "", statement.signature)
        assert is_owned(fitted.roster, owner, fitted.study, digest(statement.work()))
        asked = list(dict.fromkeys(q.asked[site] for q in fitted.questions if site in q.asked))
        assert [one.asked for one in statement.answered] == asked[: len(statement.answered)]
        assert asked[len(statement.answered) :] == [asked[-1]], "all but the closing request itself"
    assert check_sums(fitted, statements).right == sum(bool(q.sum) for q in fitted.questions)


def test_answers_that_the_coordinator_saw_are_named_and_parts_of_sums_are_not(fitted):
    [statement, *_] = close_study(fitted).values()
    verbs = {question.kind.__name__: question.kind.verb for question in fitted.questions}
    assert {verbs[one.kind] for one in statement.answered} == {"ask", "total"}
    assert all(len(one.answers) == (verbs[one.kind] == "ask") for one in statement.answered)


def test_refusals_are_no_answers(fitted):
    with pytest.raises(RefusedError), fitted.working_on("another label"):
        fitted.ask(CountRows(grouped=True))
    assert all(one.kind != "CountRows" for s in close_study(fitted).values() for one in s.answered)


def test_a_request_for_blobs_is_no_answer(fitted):
    """A site asks for the schema again, as its store has made room: the coordinator learns nothing by that."""
    store, schema = fitted.site("site 0").store, fitted.schema.to_json().encode()
    store._values.pop(f"blob {digest(schema)}")
    with fitted.working_on("another model"):
        fitted.ask(DescribeRows(schema=fitted.blob(schema)))
    outbox = fitted.site("site 0").outbox
    assert "which data the site lacks" in outbox.ledger.lines()[-2].what
    shown = [one for one in close_study(fitted)["site 0"].answered if one.kind == "DescribeRows"]
    assert [len(one.answers) for one in shown] == [1]


def test_nothing_is_answered_in_a_study_that_is_closed(fitted):
    first = close_study(fitted)
    with pytest.raises(RefusedError, match="the study is closed"):
        fitted.ask(CountRows())
    fitted.questions.pop()
    fitted.journal.close()
    fitted.journal = type(fitted.journal)()
    assert close_study(fitted) == first, "asked again word for word"
    fitted.questions.pop()
    with pytest.raises(RefusedError, match="the study is closed"):
        fitted.ask(CloseStudy(sums_digest="another"))


def test_a_sum_that_was_changed_is_named(fitted):
    statements = close_study(fitted)
    question = [q for q in fitted.questions if q.sum][-1]
    question.asked["site 1"] = "0" * 64
    found = check_sums(fitted, statements)
    assert found.wrong == ["GrowLevel of round 3 is not the sum of what the sites answered"]


def test_the_key_is_revealed_by_the_statement_alone(fitted):
    """It travels sealed: it is in no message before, and in no ledger."""
    [shared] = {fitted.site(s).store.get(shared_key_name(fitted.study)) for s in fitted.sites}
    [key] = {fitted.site(s).proof_key for s in fitted.sites}
    sealed = [body for bodies in fitted.journal.of_kind("SealedKeys").values() for body in bodies]
    assert sealed
    assert all(secret not in body for secret in (shared, key) for body in sealed)
    statements = close_study(fitted).values()
    assert {statement.key for statement in statements} == {key}
    assert all(shared not in statement.work() for statement in statements), "by which rows are sampled"


def test_sites_of_two_keys_are_named(fitted):
    for i, site in enumerate(fitted.sites):
        fitted.site(site).store.put(shared_key_name(fitted.study), bytes([i]) * 32)
    assert "different keys" in check_sums(fitted, close_study(fitted)).wrong[0]


def test_a_statement_is_a_line_in_the_ledger(fitted):
    close_study(fitted)
    line = fitted.site("site 1").outbox.ledger.lines()[-1]
    assert line.kind == "CloseStudy"
    assert "signed statement of the 7 requests" in line.what


def test_who_does_not_sign_states_and_proves_nothing():
    fed = federate(TABLES)
    sv.HistogramForest(1, max_depth=1).fit(fed)
    assert close_study(fed) == {}
    with pytest.raises(RefusedError, match="signs nothing"):
        fed.ask(CloseStudy(sums_digest=""))


def test_a_site_lost_on_the_way_leaves_the_sum_unverified_that_it_was_lost_in(tmp_path):
    """All others are verified, also those that the site was part of before."""
    study = study_of(more="quorum = 2")
    fed = make_federation(study, tmp_path)
    _ = fed.schema
    transport, honest = fed.transport, fed.transport.deliver

    def deliver(messages, verb, timeout):
        yield from honest({s: m for s, m in messages.items() if s != "site 2"}, verb, timeout)

    sv.MergedForest(4, max_depth=2, weights="votes").fit(fed)
    before = sum(bool(q.sum) for q in fed.questions)
    transport.deliver = deliver
    sv.HistogramForest(1, max_depth=1).fit(fed)
    found = check_sums(fed, close_study(fed))
    assert not found.wrong
    assert found.right == sum(bool(q.sum) for q in fed.questions) - 1 >= before
    assert len(found.unknown) == 1
    assert "site 'site 2' was lost" in found.unknown[0]
    assert set(sites_of(fed)) == {"site 0", "site 1", "site 2"}
    fed.close()
