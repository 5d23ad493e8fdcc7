"""Signed messages: replayed, forged, reordered, misdirected or late ones are refused; honest studies are the same."""

import os
import stat
import time

import msgspec
import numpy as np
import pytest
from helpers.asking import site, trouble
from helpers.column_studies import federate as federate_by_columns
from helpers.column_studies import split, wide
from helpers.studies import Recorded, disturbed, federate, parts, table

import silvan as sv
from silvan.errors import FederationError, FormatError, InputError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.describe import CountRows, Describe
from silvan.federation.keys import COORDINATOR, Key, Roster, is_signed, read_public
from silvan.federation.message import Envelope
from silvan.federation.signed import NONCE, SignedMessage, Signer, make_signers
from silvan.federation.store import digest
from silvan.federation.transport import InProcess

TABLES = parts(table(n=120), 4)
COORDINATORS, HERE, OTHER = Key.generate(), Key.generate(), Key.generate()
ROSTER = Roster(COORDINATORS.public, {"here": HERE.public, "there": OTHER.public})


def coordinator(**settings):
    return Signer(COORDINATOR, COORDINATORS, ROSTER, **settings)


def signed_site(**settings):
    return site(signer=Signer("here", HERE, ROSTER, **settings))


def asking(request, study="study", **changes):
    body = wire.encode(request)
    return wire.encode(
        msgspec.structs.replace(Envelope(study, digest(body), "", type(request).__name__, body), **changes)
    )


def opened(data):
    """A site's reply, whoever it is for."""
    signed = wire.decode(data, SignedMessage)
    assert is_signed(HERE.public, signed.signature, signed.signed_bytes())
    return wire.decode(signed.body, Envelope)


# -- honest studies


@pytest.mark.parametrize("cold", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("sums", ["trusted", "ring", "masked"])
def test_the_same_study_signed(sums, cold):
    """The requests and replies of every algorithm, with every way of summing."""
    outcomes = []
    for signed in (False, True):
        fed = federate(TABLES, Recorded, sums=sums, cold=cold, signed=signed, test=0.25)
        model = sv.HistogramForest(2, max_depth=2).fit(fed)
        figures = model.evaluate(fed)
        shared = 2 * signed  # before the first sum, sites that sign share a key for proofs
        outcomes.append((model.forest_.hash, repr(figures.rows()), fed.rounds, fed.exchanges - shared))
        kinds = {True: SignedMessage, False: Envelope}
        assert all(wire.decode(data, kinds[signed]) for _, _, data in fed.transport.record)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("learner", [sv.BOFRF(2, max_depth=2), sv.MergedForest(2), sv.MultBoost(2), sv.BOPPID(2)])
@pytest.mark.filterwarnings("ignore:no tree is above tau")
def test_other_learners_signed(learner):
    plain, signed = (learner.fit(federate(TABLES, signed=s)).forests_ for s in (False, True))
    assert {s: f.hash for s, f in plain.items()} == {s: f.hash for s, f in signed.items()}


def test_columns_signed():
    plain, signed = (
        sv.VerticalForest(2, max_depth=2).fit(federate_by_columns(split(wide(n=90), 2), signed=s))
        for s in (False, True)
    )
    assert plain.forest_.hash == signed.forest_.hash


def test_an_interrupted_study_goes_on_signed(tmp_path):
    """Keys are new, and the site does not keep the last message of somebody else."""
    path = str(tmp_path / "journal")
    forests = []
    for _ in range(2):
        fed = federate(TABLES, journal=path, signed=True)
        forests.append(sv.HistogramForest(2, max_depth=2).fit(fed).forest_.hash)
        fed.close()
    assert forests[0] == forests[1]


# -- at a site


def refused(data, verb="ask", **settings):
    here = signed_site(**settings)
    replies = trouble(opened(here.receive(data, verb)))
    assert replies.code == "refused"
    return replies.text


def test_an_honest_message():
    here, we = signed_site(), coordinator()
    answer = here.receive(we.send("here", "study", "ask", asking(CountRows())), "ask")
    envelope = wire.decode(we.read("here", "study", answer), Envelope)
    assert (envelope.kind, envelope.sender) == ("Size", "here")


def test_a_forged_message():
    stranger = Key.generate()
    roster = Roster(stranger.public, ROSTER.sites)
    for forged in (
        Signer(COORDINATOR, stranger, roster).send("here", "study", "ask", asking(CountRows())),
        Signer("there", OTHER, ROSTER).send("here", "study", "ask", asking(CountRows())),  # another site
    ):
        assert "not signed by the coordinator" in refused(forged)


def test_every_byte_of_a_message_counts():
    data = coordinator().send("here", "study", "ask", asking(CountRows()))
    here = signed_site()
    rng = np.random.default_rng(0)
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1 << int(rng.integers(8))
        answer = opened(here.receive(bytes(changed), "ask"))
        assert answer.kind == "Trouble", place
    assert opened(here.receive(data, "ask")).kind == "Size"


def test_messages_without_a_signature():
    here = signed_site()
    for data in (
        asking(CountRows()),
        b"",
        b"\xc1",
        wire.encode(SignedMessage("", "here", "study", "ask", 1, b"", b"")),
    ):
        assert opened(here.receive(data, "ask")).kind == "Trouble"


def test_a_message_for_another_site_or_by_another_verb():
    assert "for another site" in refused(coordinator().send("there", "study", "ask", asking(CountRows())))
    assert "another verb" in refused(coordinator().send("here", "study", "total", asking(CountRows())))
    assert "another verb" in refused(coordinator().send("here", "study", "ask", asking(CountRows())), verb="total")


def test_a_message_for_another_study():
    assert "for another study" in refused(coordinator().send("here", "other", "ask", asking(CountRows())))


def test_repeated_and_reordered_messages():
    here, we = signed_site(), coordinator()
    first, second, third = (we.send("here", "study", "ask", asking(CountRows(), round=i)) for i in range(3))
    assert opened(here.receive(first, "ask")).kind == "Size"
    assert "same again" in trouble(opened(here.receive(first, "ask"))).text
    assert opened(here.receive(third, "ask")).kind == "Size"
    assert "sent before" in trouble(opened(here.receive(second, "ask"))).text
    # not even after a restart
    again = site(signer=here.signer, store=here.store)
    assert "same again" in trouble(opened(again.receive(third, "ask"))).text
    assert opened(again.receive(we.send("here", "study", "ask", asking(CountRows())), "ask")).kind == "Size"


def test_studies_do_not_wait_for_each_other():
    here, we = signed_site(), coordinator()
    one = we.send("here", "one", "ask", asking(CountRows(), "one"))
    two = we.send("here", "two", "ask", asking(CountRows(), "two"))
    assert [opened(here.receive(data, "ask")).kind for data in (two, one)] == ["Size", "Size"]


@pytest.mark.parametrize("seconds", [-3600, -301, 301, 86400])
def test_a_clock_far_off(seconds):
    here = signed_site(clock=lambda: time.time_ns() + int(seconds * 1e9))
    data = coordinator().send("here", "study", "ask", asking(CountRows()))
    assert "differ by more than 300 s" in trouble(opened(here.receive(data, "ask"))).text


def test_a_clock_that_is_a_little_off():
    here = signed_site(clock=lambda: time.time_ns() + int(200e9))
    data = coordinator().send("here", "study", "ask", asking(CountRows()))
    assert opened(here.receive(data, "ask")).kind == "Size"


def test_a_coordinator_learns_that_its_clock_is_wrong():
    fed = federate(TABLES, signed=True)
    fed.signer.clock = lambda: time.time_ns() + int(1e13)
    with pytest.raises(RefusedError, match="site 'site 0' refused CountGrid: the message was signed at another time"):
        sv.HistogramForest(2, max_depth=2).fit(fed)


JUMPS = {
    "a site's, ahead": (
        "site 1",
        3600,
        r"site 'site 1': refused \w+ \d+ times: the message was signed at another time",
    ),
    "a site's, back": ("site 1", -3600, r"site 'site 1' refused \w+: the message was signed at another time"),
    "the coordinator's, ahead": ("", 3600, r"site 'site 0' refused \w+: the message was signed at another time"),
    "the coordinator's, back": ("", -3600, None),  # it signs as one that comes after all before
}


class Hasty(InProcess):
    """Does not pause before it sends a message again."""

    def pause(self, seconds):
        pass


@pytest.mark.parametrize("case", JUMPS)
def test_a_clock_that_jumps_during_a_study(case):
    """One clear sentence with the remedy; a coordinator whose clock is set back is not even noticed."""
    whose, seconds, said = JUMPS[case]
    expected = sv.HistogramForest(2, max_depth=3).fit(federate(TABLES)).forest_.hash
    fed = federate(TABLES, Hasty, signed=True)
    signer, answers = fed.site(whose).signer if whose else fed.signer, []

    def jump_in_training(event):
        answers.append(event)
        if len(answers) == 20:
            signer.clock = lambda: time.time_ns() + int(seconds * 1e9)

    fed.watch(jump_in_training)
    if said is None:
        assert sv.HistogramForest(2, max_depth=3).fit(fed).forest_.hash == expected
        return
    with pytest.raises((SiteError, RefusedError), match=said) as refused:
        sv.HistogramForest(2, max_depth=3).fit(fed)
    assert "set both (NTP), then run the study again" in str(refused.value)


def test_a_sum_with_unknown_sites():
    """Invented sites would make a sum of few look like one of many."""
    fed = federate(TABLES, Recorded, signed=True, policy=sv.Policy(min_sites=4))
    sv.HistogramForest(2, max_depth=1).fit(fed)
    member, name = fed.site("site 0"), "site 0"
    sent = [wire.decode(d, SignedMessage) for s, way, d in fed.transport.record if (s, way) == (name, "received")]
    envelope = next(e for e in (wire.decode(m.body, Envelope) for m in sent) if e.kind == "CountGrid")
    over = [name, "x", "y", "z"]
    changed = msgspec.structs.replace(envelope, over=over, question="another", task="another")
    data = fed.signer.send(name, fed.study, "total", wire.encode(changed))
    answer = wire.decode(fed.signer.read(name, fed.study, member.receive(data, "total")), Envelope)
    assert "not on the site's roster" in trouble(answer).text


# -- at the coordinator


def study(kind, **settings):
    fed = federate(TABLES, kind, signed=True, **settings)
    return sv.HistogramForest(2, max_depth=2).fit(fed).forest_.hash, fed


def whole():
    return study(Recorded)[0]


def letters(site, data, **changes):
    return [(site, wire.encode(msgspec.structs.replace(wire.decode(data, SignedMessage), **changes)))]


FORGERIES = {
    "unsigned": lambda site, data: [(site, wire.decode(data, SignedMessage).body)],
    "no signature": lambda site, data: letters(site, data, signature=b""),
    "another signature": lambda site, data: letters(site, data, signature=bytes(64)),
    "another body": lambda site, data: letters(site, data, body=wire.decode(data, SignedMessage).body[:-1] + b"\0"),
    "another nonce": lambda site, data: letters(site, data, nonce=bytes(NONCE)),
    "another time": lambda site, data: letters(site, data, at=wire.decode(data, SignedMessage).at + 1),
    "another sender": lambda site, data: letters(site, data, sender="site 3"),
    "nonsense": lambda site, data: [(site, b"\xc1")],
}


@pytest.mark.parametrize("how", FORGERIES)
def test_a_forged_reply_changes_nothing(how):
    """Messages in a site's name are ignored until the site itself replies; if it never does, it has failed."""

    def before(site, data):
        return [*(FORGERIES[how](site, data) if site == "site 1" else []), (site, data)]

    assert study(disturbed(before))[0] == whole()
    with pytest.raises(SiteError, match="site 'site 1': did not answer Describe"):
        study(disturbed(lambda site, data: FORGERIES[how](site, data) if site == "site 1" else [(site, data)]))


def test_an_older_reply_changes_nothing():
    """All replies of a site again, each time, before the right one."""
    voting = []

    def twist(site, data):
        if site != "site 1":
            return [(site, data)]
        voting.append(data)
        return [(site, old) for old in voting]

    assert study(disturbed(twist))[0] == whole()


def test_the_reply_of_another_site():
    def twist(site, data):
        return [("site 2", data)] if site == "site 1" else [(site, data)]

    with pytest.raises(SiteError, match="site 'site 1': did not answer Describe"):
        study(disturbed(twist))


def test_an_unauthenticated_site_may_be_left_out():
    def twist(site, data):
        return letters(site, data, signature=bytes(64)) if site == "site 1" else [(site, data)]

    _, fed = study(disturbed(twist), quorum=3)
    assert list(fed.lost) == ["site 1"]


# -- keys and rosters


def test_a_key_on_disk(tmp_path):
    path = tmp_path / "site.key"
    key = Key.at(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Key.at(path).public == key.public
    assert is_signed(key.public, Key.load(path).sign(b"x"), b"x")
    assert b"PRIVATE KEY" in path.read_bytes()  # as other programs write them
    with pytest.raises(InputError, match="never written over"):
        key.save(path)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666, 0o700 | 0o010])
def test_a_key_that_others_may_read(tmp_path, mode):
    path = tmp_path / "site.key"
    Key.generate().save(path)
    os.chmod(path, mode)
    with pytest.raises(InputError, match=r"site.key: others on this machine can read or change this key; .*chmod 600"):
        Key.load(path)


def test_invalid_keys(tmp_path):
    path = tmp_path / "site.key"
    with pytest.raises(InputError, match="there is no such key"):
        Key.load(path)
    for data in (b"", b"-----BEGIN PRIVATE KEY-----\nxx\n-----END PRIVATE KEY-----\n", b"\xff" * 64):
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.raises(FormatError, match="not a key"):
            Key.load(path)
    for text in ("", "xy", "00" * 31, "00" * 33):
        with pytest.raises(FormatError, match="64 hexadecimal digits"):
            read_public(text)


def test_a_roster_on_disk(tmp_path):
    roster = Roster(COORDINATORS.public, ROSTER.sites, {"here": bytes(32)})
    roster.save(tmp_path / "roster.json")
    assert Roster.load(tmp_path / "roster.json") == roster
    with pytest.raises(InputError, match="no such roster"):
        Roster.load(tmp_path / "other.json")
    for data in (b"{}", b"[]", b"\xff", b'{"coordinator": "00", "sites": {}}'):
        (tmp_path / "roster.json").write_bytes(data)
        with pytest.raises(FormatError, match="not a roster"):
            Roster.load(tmp_path / "roster.json")


@pytest.mark.parametrize(
    ("sites", "seals", "text"),
    [
        ({"a": HERE.public, "b": HERE.public}, {}, "site 'a' and site 'b' have one key"),
        ({"a": COORDINATORS.public}, {}, "the coordinator and site 'a' have one key"),
        ({"a": HERE.public[:-1]}, {}, "the key of site 'a' is not one"),
        ({"a": HERE.public, "b": OTHER.public}, {"a": bytes(32), "b": bytes(32)}, "have one key"),
        ({"a": HERE.public}, {"c": bytes(32)}, "'c', which is no site of it"),
        ({}, {}, "at least one site"),
    ],
)
def test_invalid_rosters(sites, seals, text):
    with pytest.raises(InputError, match=text):
        Roster(COORDINATORS.public, sites, seals)


def test_two_sites_with_one_key():
    with pytest.raises(InputError, match="site 'a' and site 'b' have one key"):
        make_signers(["a", "b"], {"a": HERE, "b": HERE})


def test_a_signer_whose_key_is_not_on_the_roster():
    with pytest.raises(InputError, match="the roster has no key of site 'here', or another one"):
        Signer("here", OTHER, ROSTER)
    with pytest.raises(InputError, match="no key of site 'nowhere'"):
        Signer("nowhere", OTHER, ROSTER)


# -- between sites


@pytest.mark.parametrize("sums", ["ring", "masked"])
def test_a_coordinator_that_distributes_its_own_keys(sums):
    """With a roster, sites seal and mask for each other under keys they know, whatever the coordinator says."""
    fed = federate(TABLES, sums=sums, signed=True)
    impostor = federate(TABLES, sums=sums).site("site 2").store
    genuine = fed.site("site 2").store
    for key in list(genuine._values):
        if key.startswith("secret x25519"):
            genuine._values[key] = impostor.get(key) or os.urandom(32)
    fed.site("site 2").cache.clear()
    with pytest.raises(FederationError, match=r"not the one known here|with its own key"):
        sv.HistogramForest(2, max_depth=1).fit(fed)


def test_describe_is_signed_too():
    here, we = signed_site(), coordinator()
    data = we.send("here", "study", "ask", asking(Describe()))
    assert wire.decode(we.read("here", "study", here.receive(data, "ask")), Envelope).kind == "Description"
    assert we.read("here", "study", here.receive(asking(Describe()), "ask")) is None


class Forger(InProcess):
    """An attacker on the wire who breaks the signature of every message to a site, from the sixth on."""

    waves = 0

    def deliver(self, messages, verb, timeout):
        self.waves += 1
        if self.waves > 5 and "site 1" in messages:
            broken = msgspec.structs.replace(wire.decode(messages["site 1"], SignedMessage), signature=b"x" * 64)
            messages = {**messages, "site 1": wire.encode(broken)}
        yield from super().deliver(messages, verb, timeout)


def test_a_forger_cannot_have_a_site_end_a_study():
    """The site's refusal does not reply to any message of the coordinator's, so it counts as silence."""
    fed = federate(parts(table(n=90), 3), Forger, signed=True, quorum=2)
    sv.HistogramForest(2, max_depth=3).fit(fed)
    assert list(fed.lost) == ["site 1"]
    assert "did not answer" in fed.lost["site 1"]
