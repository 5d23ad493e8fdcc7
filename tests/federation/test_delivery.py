"""A request on its way: what sites receive, and how replies are handled."""

import pytest

from silvan.errors import SiteError
from silvan.federation import wire
from silvan.federation.describe import CountRows, Size
from silvan.federation.message import Envelope, Missing, Owner
from silvan.federation.outgoing import Asked, Blobs, Delivery, Sender, UnreachedError
from silvan.federation.transport import Transport

SENDER = Sender(study="heart", task="a model (1)", round=7, signer=None, roster=None)
SITES = ("north", "east")
NORTH, EAST = Owner("north", "a model", b"1"), Owner("east", "a model", b"2")


class Scripted(Transport):
    """Replies to messages with a function of all of them."""

    def __init__(self, answer):
        self.answer, self.messages = answer, {}

    def deliver(self, messages, verb, timeout):
        self.messages = {site: wire.decode(data, Envelope) for site, data in messages.items()}
        yield from self.answer(self.messages)


def reply(site, envelope, rows=5, question=None):
    body = wire.encode(Size(rows=rows))
    return site, wire.encode(Envelope(SENDER.study, question or envelope.question, site, "Size", body))


def asked():
    return Asked("a question", CountRows, dict.fromkeys(SITES, CountRows()))


def send(answer, question=None, sites=SITES):
    transport = Scripted(answer)
    return list(Delivery(question or asked(), SENDER, Blobs()).send(sites, transport, None)), transport.messages


def test_messages_name_study_task_and_round():
    question = asked()
    outcomes, messages = send(lambda sent: [reply(*item) for item in sent.items()], question)
    assert [(site, outcome[0]) for site, outcome in outcomes] == [(site, Size(rows=5)) for site in SITES]
    assert {(m.study, m.task, m.round, m.kind, m.whole) for m in messages.values()} == {
        ("heart", "a model (1)", 7, "CountRows", "")
    }
    assert all(question.sent[site] > 0 and question.received[site] > 0 for site in SITES)


def test_only_named_sites_receive_a_request():
    _, messages = send(lambda sent: [], sites=["east"])
    assert list(messages) == ["east"]


def test_the_first_reply_counts_and_silence_comes_last():
    def answer(sent):
        east = sent["east"]
        return [
            reply("east", east, rows=1, question="another"),
            reply("east", east, rows=2),
            reply("east", east, rows=3),
            reply("south", east),
        ]

    outcomes, _ = send(answer)
    assert [site for site, _ in outcomes] == ["east", "north"]
    assert outcomes[0][1][0].rows == 2
    with pytest.raises(SiteError, match="site 'north': did not answer CountRows"):
        raise outcomes[1][1]


def test_failures_are_outcomes():
    lost = UnreachedError("it cannot be reached")
    missing = Envelope(SENDER.study, asked().wave, "east", Missing.__name__, wire.encode(Missing(["a hash"])))
    outcomes, _ = send(lambda sent: [("north", lost), ("east", wire.encode(missing))])
    assert outcomes == [("north", lost), ("east", Missing(["a hash"]))]


# -- blobs: identified by content, sent once to each site, each with the sites that made it


def test_the_same_content_is_the_same_blob():
    blobs = Blobs()
    blob = blobs.add(b"a schema")
    assert blobs.add(b"a schema") == blob != blobs.add(b"another")
    assert blobs.content(blob.hash) == b"a schema"


def test_the_coordinator_remembers_blobs_sent_to_a_site():
    blobs = Blobs()
    first, second = (blobs.add(data).hash for data in (b"first", b"second"))
    assert blobs.send("north", [first]) == {first: b"first"}
    assert blobs.not_sent("north", [second, first]) == [second]
    assert blobs.not_sent("east", [second, first]) == [second, first]


def test_two_sites_may_make_equal_blobs():
    blobs = Blobs()
    work, other = blobs.add(b"a tree", NORTH), blobs.add(b"a schema")
    for maker in (EAST, NORTH):
        assert blobs.add(b"a tree", maker) == work
    assert (blobs.makers(other.hash), blobs.makers(work.hash)) == ([], [NORTH, EAST])
