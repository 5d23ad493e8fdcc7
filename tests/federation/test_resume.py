"""A coordinator stopped at any message resumes there, and ends with the same forest."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from helpers.studies import Recorded, Stop, disturbed, federate, from_reply, parts, table

import silvan as sv
from silvan.errors import FederationError
from silvan.federation import wire
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Envelope
from silvan.federation.wire import decode

TABLES = parts(table(n=90), 3)


def study(kind, path, **settings):
    """Agreement, two learners, metrics: every kind of message but the adaptive ones."""
    fed = federate(TABLES, kind, journal=None if path is None else str(path), test=0.2, **settings)
    try:
        summed = sv.HistogramForest(n_estimators=3, max_depth=2).fit(fed)
        merged = sv.MergedForest(n_estimators=3, max_depth=3, weights="votes").fit(fed)
        figures = summed.evaluate(fed)
        rounds = summed.rounds_, merged.rounds_, fed.agreement_rounds
        return [summed.forest_.hash, merged.forest_.hash, repr(figures.rows()), rounds, fed.lost], fed
    finally:
        fed.close()


N_REPLIES = 3 * (3 + 2 + 2 + 1 + 2)


@cache
def uninterrupted():
    return study(Recorded, None)


def whole():
    return uninterrupted()[0]


def stopping(after, kept):
    """Stops after this many replies; the last is handled (``kept``) or lost on the way."""
    asked = []

    class Stopping(Recorded):
        def deliver(self, messages, verb, timeout):
            for site, data in super().deliver(messages, verb, timeout):
                if len(asked) == after - 1 and not kept:
                    raise Stop
                asked.append((decode(messages[site], Envelope).question, site))
                yield site, data
                if len(asked) == after:
                    raise Stop

    return Stopping, asked


def asked_of(fed):
    return [(wire.decode(d, Envelope), site) for site, way, d in fed.transport.record if way == "received"]


def test_the_study_covers_all_message_kinds():
    fed = uninterrupted()[1]
    modules = {HANDLERS[kind][1].__module__ for _, _, kind in fed.traffic}
    known = {kind for kind, (_, handler) in HANDLERS.items() if handler.__module__ in modules}
    assert {kind for _, _, kind in fed.traffic} == known - {"CountRows", "CountLeafTimes"}
    assert sum(way == "sent" for _, way, _ in fed.transport.record) == N_REPLIES


@pytest.mark.parametrize("after", range(1, N_REPLIES + 1))
def test_stopped_after_every_message_in_turn(tmp_path, after):
    path = tmp_path / "journal"
    kind, answered = stopping(after, kept=True)
    with pytest.raises(Stop):
        study(kind, path)
    outcome, fed = study(Recorded, path)
    assert outcome == whole()
    assert len(answered) == after
    again = [(e.question, site) for e, site in asked_of(fed) if (e.question, site) in answered]
    verbs = {e.question: HANDLERS[e.kind][0].verb for e, _ in asked_of(fed)}
    # only the total of a sum is kept, so the current one is requested again
    assert all(verbs[question] == "total" and question == answered[-1][0] for question, _ in again)


@pytest.mark.parametrize("after", range(1, N_REPLIES + 1, 5))
def test_stopped_while_a_reply_is_on_its_way(tmp_path, after):
    with pytest.raises(Stop):
        study(stopping(after, kept=False)[0], tmp_path / "journal")
    assert study(Recorded, tmp_path / "journal")[0] == whole()


def test_stopped_again_and_again(tmp_path):
    for _ in range(N_REPLIES):  # three replies make a sum, which is kept; one more, and all is over
        try:
            outcome, _ = study(stopping(4, kept=True)[0], tmp_path / "journal")
            break
        except Stop:
            pass
    assert outcome == whole()


def test_a_finished_study_sends_nothing(tmp_path):
    first = study(Recorded, tmp_path / "journal")[1]
    outcome, fed = study(Recorded, tmp_path / "journal")
    assert outcome == whole()
    assert fed.transport.record == []
    assert fed.traffic == first.traffic == uninterrupted()[1].traffic


def test_sites_may_be_restarted_meanwhile(tmp_path):
    with pytest.raises(Stop):
        study(stopping(15, kept=True)[0], tmp_path / "journal")
    assert study(Recorded, tmp_path / "journal", cold=True)[0] == whole()


def test_killed(tmp_path):
    """A process that ends without warning, in the middle of a sum."""
    code = f"""
import os, sys
sys.path[:0] = [{str(Path(__file__).parent.parent)!r}]
from federation.test_resume import study, stopping
kind, asked = stopping(20, kept=True)
class Killed(kind):
    def deliver(self, messages, verb, timeout):
        for site, data in super().deliver(messages, verb, timeout):
            if len(asked) == 17:
                os._exit(9)
            yield site, data
study(Killed, {str(tmp_path / "journal")!r})
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    outcome, fed = study(Recorded, tmp_path / "journal")
    assert outcome == whole()
    assert len(asked_of(fed)) == N_REPLIES - 15


# -- sites that were left out


def silent(name):
    return lambda site, data: [] if site == name else [(site, data)]


def test_a_site_that_was_left_out_stays_out(tmp_path):
    """The study continued without it; resuming later must give the same result."""
    lossy = lambda: disturbed(from_reply(13, silent("site 1")))  # noqa: E731
    expected, fed = study(lossy(), None, quorum=2)
    assert list(fed.lost) == ["site 1"]
    assert expected[0] != whole()[0]
    for after in range(12, N_REPLIES - 10, 2):
        path = tmp_path / f"journal {after}"

        class Both(lossy()):
            """Site 1 fails; the coordinator is stopped later."""

            count = 0

            def deliver(self, messages, verb, timeout, after=after):
                for site, data in super().deliver(messages, verb, timeout):
                    yield site, data
                    self.count += 1
                    if self.count == after:
                        raise Stop

        with pytest.raises(Stop):
            study(Both, path, quorum=2)
        resumed, fed = study(Recorded, path, quorum=2)
        if list(fed.lost) == ["site 1"]:
            assert resumed == expected
        else:  # stopped before it was noticed: site 1 is back in time
            assert resumed == whole()
            assert after < 18
    assert list(fed.lost) == ["site 1"]


def test_a_failed_study_can_be_resumed(tmp_path):
    """The loss of the quorum is not recorded: the sites may be back tomorrow."""
    with pytest.raises(FederationError, match="the quorum is 3"):
        study(disturbed(from_reply(13, silent("site 1"))), tmp_path / "journal", quorum=3)
    assert study(Recorded, tmp_path / "journal", quorum=3)[0] == whole()
    with pytest.raises(sv.SiteError, match="'site 1': did not answer"):
        study(disturbed(from_reply(13, silent("site 1"))), tmp_path / "other")
    assert study(Recorded, tmp_path / "other")[0] == whole()
