"""Ring sums equal plain addition, whatever is lost, late, restarted or resumed on the way."""

import numpy as np
import pytest
from helpers.stores import kept_by
from helpers.studies import (
    Recorded,
    Stop,
    assert_books,
    disturbed,
    envelopes,
    federate,
    from_reply,
    parts,
    stopping,
    table,
)
from helpers.summing import NAMES, Coordinator, Number, members, numbers_are_asked, of, ring_of, same

from silvan.errors import FederationError, FormatError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.journal import Journal
from silvan.federation.message import Envelope
from silvan.privacy.aggregation.ring import Pad, Passed, Ready

TABLES = parts(table(n=90), 4)


@pytest.fixture(autouse=True)
def asked():
    with numbers_are_asked() as calls:
        yield calls


# -- the course of a sum; what it shares with masked sums is in test_hidden_sums.py


def test_waves_and_rounds(asked):
    fed = ring_of([[of(i), of(i)] for i in range(5)])
    fed.total(Number())
    assert (fed.rounds, fed.exchanges) == (1, 5 + 2)
    assert asked == NAMES[:5]  # all at once, in the first wave, and once
    fed.total(Number(which=1), over=["a", "c", "e"])
    assert (fed.rounds, fed.exchanges) == (2, 7 + 3 + 2)


# -- too few


def test_two_sites():
    fed = ring_of([of(1), of(2), of(3)])
    for over, said in ((["a", "c"], "a and c: with fewer than 3, each"), (["b"], "b")):
        with pytest.raises(FederationError, match=f"Number cannot be summed in a ring of {said}"):
            fed.total(Number(), over=over)
    assert fed.exchanges == 0


# -- what a coordinator can check


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (of(1, 2), "site 'b' refused Number: the sum so far is of another shape"),
        (of(1, dtype=np.int64), "site 'b' refused Number: the sum so far is of another shape"),
        (of(1, y=[1]), "site 'b' refused Number: the sum so far is of another shape"),
        (of(2**62, dtype=np.int64), "site 'b' refused Number: Numbers.x is too large to be added"),
        (of(2**31 - 1), "site 'a' refused Number: Numbers.x is too large when all are added"),
        (of(0.5, dtype=np.float32), "site 'b' refused Number: Numbers.x cannot be summed"),
    ],
)
def test_parts_that_do_not_fit(odd, text):
    with pytest.raises(RefusedError, match=text):
        ring_of([of(1), odd, of(3)]).total(Number())


# -- lost sites

N_ANSWERS = 4 + 4 + 1


def lossy(at, what):
    """From its n-th reply on, whichever site sends it, the reply is replaced."""
    lost = []

    def twist(site, data):
        if not lost:
            lost.append(site)
        return what(site, data) if site in lost else [(site, data)]

    return disturbed(from_reply(at, twist)), lost


LOSSES = {
    "silence": lambda site, data: [],
    "nonsense": lambda site, data: [(site, b"\xc1")],
    "cut": lambda site, data: [(site, ConnectionError("cut"))],
}


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("at", range(N_ANSWERS))
def test_a_site_lost_on_the_way(at, how):
    values = dict(zip("abcd", (1, 20, 300, 4000), strict=True))
    kind, lost = lossy(at, LOSSES[how])
    fed = ring_of([of(v) for v in values.values()], kind, quorum=3)
    assert fed.total(Number()).x.tolist() == [sum(v for name, v in values.items() if name not in lost)]
    assert list(fed.lost) == lost
    assert len(lost) == 1
    assert fed.total(Number()).x.tolist() == [sum(v for name, v in values.items() if name not in lost)]


@pytest.mark.parametrize("at", range(N_ANSWERS - 1))
def test_all_bytes_are_counted_when_a_site_is_lost(at, tmp_path):
    class Both(Recorded, lossy(at, LOSSES["silence"])[0]):
        pass

    fed = ring_of([of(i) for i in range(4)], Both, quorum=3, journal=Journal(tmp_path / "journal"))
    total = fed.total(Number())
    fed.close()
    assert_books(fed)
    again = ring_of([of(i) for i in range(4)], Recorded, quorum=3, journal=Journal(tmp_path / "journal"))
    assert same(again.total(Number()), total)
    again.close()
    assert again.transport.record == []
    assert (again.traffic, again.lost) == (fed.traffic, fed.lost)


@pytest.mark.parametrize("at", range(N_ANSWERS - 2))
def test_a_ring_that_becomes_too_small(at):
    for quorum, error, said in (
        ({"quorum": 2}, FederationError, r"in a ring of . and .: .*; site '.': did not answer Number"),
        ({"quorum": 3}, FederationError, "2 of 3 sites are left at Number, the quorum is 3"),
        ({}, SiteError, "did not answer Number"),
    ):
        with pytest.raises(error, match=said):
            ring_of([of(1), of(2), of(3)], lossy(at, LOSSES["silence"])[0], **quorum).total(Number())


def test_a_new_ring_has_new_offsets():
    carrier = Coordinator(members([of(1), of(2), of(3), of(4)]))
    carrier.carry()
    carrier.carry(ring=carrier.ring("a", "b", "c"))
    pads = [v for k, v in kept_by(carrier.sites["a"]).items() if k.startswith("pad") and "ended" not in k]
    assert len(pads) == len({wire.decode(pad, Pad).seed for pad in pads}) == 2


@pytest.mark.parametrize("empty", [Passed(sealed=b""), Ready(key=b"")])
def test_a_site_that_passes_nothing_on(empty):
    def twist(site, data):
        envelope = wire.decode(data, Envelope)
        if site != "b" or envelope.kind != type(empty).__name__:
            return [(site, data)]
        return [(site, wire.encode(Envelope("", envelope.question, site, envelope.kind, wire.encode(empty))))]

    fed = ring_of([of(i) for i in range(4)], disturbed(twist), quorum=3)
    assert fed.total(Number()).x.tolist() == [0 + 2 + 3]
    assert list(fed.lost) == ["b"]


# -- restarts


def test_a_retry_gives_the_same_bytes():
    carrier = Coordinator(members([of(1), of(2), of(3)]))
    sealed = b""
    for name in ("a", "b", "c", "a"):
        first = carrier.step(name, sealed)
        carrier.sites[name] = carrier.sites[name].rebuilt()
        assert wire.encode(carrier.step(name, sealed)) == wire.encode(first)
        sealed = getattr(first, "sealed", b"")


@pytest.mark.parametrize("after", range(1, 2 * N_ANSWERS))
def test_stopped_after_every_answer_in_turn(tmp_path, after):
    def study(kind):
        fed = ring_of([[of(i), of(10 * i)] for i in range(4)], kind, journal=Journal(tmp_path / "journal"))
        try:
            return [fed.total(Number(which=i)).x.tolist() for i in range(2)], fed
        finally:
            fed.close()

    with pytest.raises(Stop):
        study(stopping(after))
    got, fed = study(Recorded)
    assert got == [[6], [60]]
    # sites in this process have new keys by then: the current sum starts again, and if it had gone round, its
    # first site is asked for it once more in vain
    in_vain = after == N_ANSWERS
    assert len(fed.transport.record) == 2 * (in_vain + (N_ANSWERS if after > N_ANSWERS else 2 * N_ANSWERS))


def test_a_journal_keeps_the_sum_only(tmp_path):
    fed = ring_of([of(*range(i, i + 500)) for i in (1000, 2000, 3000)], Recorded, journal=Journal(tmp_path / "journal"))
    total = fed.total(Number())
    fed.close()
    kept = (tmp_path / "journal").read_bytes()
    bodies = [envelope.body for envelope in envelopes(fed, "sent")]
    assert wire.encode(total) in kept
    assert sum(body in kept for body in bodies) == 1


def test_a_journal_of_other_sums(tmp_path):
    federate(TABLES, journal=str(tmp_path / "journal")).close()
    with pytest.raises(FormatError, match="belongs to another study"):
        federate(TABLES, sums="ring", journal=str(tmp_path / "journal"))
