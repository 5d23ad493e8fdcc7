"""Attacks on ring sums: what a coordinator, a neighbour, and two neighbours together can and cannot learn."""

import msgspec
import numpy as np
import pytest
from helpers.federating import federation_of
from helpers.studies import Recorded, envelopes, federate, parts, table
from helpers.summing import Coordinator, Number, Numbers, members, numbers_are_asked, of, overheard, ring_of

from silvan.algorithms.shared_bins import CountGrid
from silvan.errors import RefusedError
from silvan.federation import wire
from silvan.federation.message import Envelope, SumStep, Trouble
from silvan.federation.sums import TrustedSums
from silvan.federation.transport import InProcess
from silvan.privacy.aggregation.ring import Hop, Passed, Ready, RingPart, RingSums, SumMember
from silvan.privacy.identity.seal import public_key

MATRICES = [(40, 30, 20, 10), (7, 80, 5, 8), (25, 25, 26, 24)]  # tp, tn, fp, fn; a hundred rows each


@pytest.fixture(autouse=True)
def asked():
    with numbers_are_asked() as calls:
        yield calls


def carrier(values=MATRICES, **settings):
    return Coordinator(members([of(*value) for value in values], **settings))


def refused(reply):
    assert isinstance(reply, Trouble)
    assert reply.code == "refused"
    return reply.text


# -- a curious coordinator


def hops(fed):
    """Everything that a coordinator carries from site to site."""
    return [wire.decode(e.body, Passed).sealed for e in envelopes(fed, "sent") if e.kind == "Passed"]


def test_a_coordinator_reads_nothing_in_what_it_carries():
    """Boxes have no bytes in common with their content or with each other, and look random."""
    values = [np.arange(i, i + 4096) for i in (1, 5000, 10_000)]
    feds = [ring_of([of(*value) for value in values], Recorded) for _ in range(2)]
    totals = [fed.total(Number()).x.tolist() for fed in feds]
    assert totals[0] == totals[1] == np.sum(values, axis=0).tolist()
    boxes = [box for fed in feds for box in hops(fed)]
    assert len(boxes) == 6
    for i, box in enumerate(boxes):
        bits = np.unpackbits(np.frombuffer(box, np.uint8))
        assert abs(bits.mean() - 0.5) < 0.01  # ten standard deviations and more
        # marks of six bytes and more: shorter ones occur in random bytes now and then
        assert not any(mark in box for mark in (b"Numbers", b"layout", b"counters"))
        for other in boxes[:i]:
            agree = np.frombuffer(box[-4096:], np.uint8) == np.frombuffer(other[-4096:], np.uint8)
            assert agree.mean() < 0.02  # one in 256 by chance


def test_no_part_is_in_any_message_of_a_forest():
    """For every sum, sites reply with keys, boxes and, once, the sum."""
    fed = federate(parts(table(n=90), 3), Recorded, sums="ring")
    sums = {"CountCategories", "CountGrid", "CountFine", "GrowLevel"}
    fed.total(CountGrid(schema=fed.blob(fed.schema.to_json().encode())))
    asked = {e.question: e.kind for e in envelopes(fed, "received")}
    answered = envelopes(fed, "sent")
    kinds = [(asked[e.question], e.kind) for e in answered if asked[e.question] in sums]
    for kind, reply in (("CountCategories", "CategoryCounts"), ("CountGrid", "GridCounts")):
        got = [answer for question, answer in kinds if question == kind]
        assert got == ["Ready"] * 3 + ["Passed"] * 3 + [reply]


def test_messages_of_two_runs_differ():
    runs = [carrier() for _ in range(2)]
    first = [run.carry(until="a").sealed for run in runs]
    views = [overheard(run, "b", box)[1] for run, box in zip(runs, first, strict=True)]
    assert first[0] != first[1]
    assert not (views[0] == views[1]).any()
    again = Coordinator(runs[0].sites, "sum 2")  # the same sites and parts, another sum
    assert not (overheard(again, "b", again.carry(until="a").sealed)[1] == views[0]).any()


# -- a coordinator that requests more than it should


def test_a_part_never_leaves_in_the_clear():
    here = carrier()
    assert "only hidden, in 'ring' sums" in refused(here.step("a", step=None))
    assert "in the clear" in refused(here.step("a", step=None, verb="ask"))
    assert "only hidden" in refused(here.step("a", step=SumStep("masked", b"")))
    assert "in the clear" in refused(here.step("a", verb="ask"))


def test_a_federation_made_with_ring_refuses_plain_sums():
    """A coordinator that forgets the ring, or pretends to."""
    fed = federate(parts(table(n=90), 3), sums="ring")
    fed.sums = TrustedSums()
    with pytest.raises(RefusedError, match=r"site 'site 0' refused CountGrid: .*only hidden, in 'ring' sums"):
        fed.total(CountGrid(schema=fed.blob(fed.schema.to_json().encode())))


def test_a_site_of_trusted_sums_takes_part_in_no_ring():
    fed = federation_of(members([of(1), of(2), of(3)], secure_sum=None), RingSums())
    with pytest.raises(RefusedError, match="leaves it only as it is"):
        fed.total(Number())


def test_requests_to_single_sites_are_unchanged():
    """A request to a single site is visible as such, ring or not."""
    fed = federate(parts(table(n=90), 3), sums="ring")
    assert fed.rows == federate(parts(table(n=90), 3)).rows


RINGS = {
    "two": (lambda ring: ring[:2], "at least 3 sites"),
    "one": (lambda ring: ring[:1], "at least 3 sites"),
    "a site twice": (lambda ring: [ring[0], ring[1], ring[1]], "every site once"),
    "two with one key": (lambda ring: [ring[0], ring[1], SumMember("x", ring[1].key)], "every site once"),
    "two with one name": (lambda ring: [ring[0], ring[1], SumMember("b", b"k" * 32)], "every site once"),
    "another key for the site": (lambda ring: [SumMember("a", b"k" * 32), *ring[1:]], "with its own key"),
    "without the site": (lambda ring: [SumMember("x", b"k" * 32), *ring[1:]], "with its own key"),
}


@pytest.mark.parametrize("case", RINGS)
def test_invalid_rings_are_refused(case):
    here = carrier()
    change, text = RINGS[case]
    assert text in refused(here.step("a", ring=change(here.ring())))


@pytest.mark.parametrize("over", ["", "ab", "abcd"])
def test_a_ring_of_another_size_than_declared(over):
    assert "all that the sum is over" in refused(carrier().step("a", over=list(over)))


def test_only_the_first_site_begins():
    """A middle site that received nothing to add to would pass on its part in the clear."""
    here = carrier()
    for name in ("b", "c"):
        assert "sealed" in refused(here.step(name))
        assert "sealed" in refused(here.step(name, b"\0" * 200))


def test_only_the_site_that_began_ends():
    """A box that comes round as the end of a new ring, or after a ring of other sites or another request."""
    here = carrier([*MATRICES, (1, 2, 3, 4)])
    last = here.carry(until="d").sealed
    assert isinstance(here.step("a", last), Numbers)
    assert "sealed" in refused(here.step("a", last, ring=here.ring("a", "b", "d")))
    other = Coordinator(members([[of(1), of(2)]] * 3))
    last = other.carry(until="c").sealed
    assert "belongs elsewhere" in refused(other.step("a", last, which=1))


def test_a_sum_ends_once():
    """Two outcomes of one sum that differ by one site's addition would reveal the difference."""
    here = Coordinator(members([[of(1)], [of(10)], [of(100)]]))
    begun = here.step("a").sealed
    outcomes = []
    for value in (10, 20, 10):
        here.sites["b"].source[0] = of(value)
        here.sites["b"].cache.clear()
        added = here.step("b", begun).sealed
        outcomes.append(here.step("a", here.step("c", added).sealed))
    assert outcomes[0].x.tolist() == outcomes[2].x.tolist() == [111]
    assert "with another outcome" in refused(outcomes[1])


def test_all_sites_must_get_the_same_request():
    """A site with a different request from the others adds nothing: the sum would reveal its part, or another's."""
    here = Coordinator(members([[of(1), of(1)], [of(10), of(20)], [of(100), of(100)]]))
    begun = here.step("a").sealed
    assert isinstance(here.step("b", begun), Passed)
    assert "belongs elsewhere" in refused(here.step("b", begun, which=1))


def test_no_second_sum_of_a_quantity_over_other_sites():
    """A ring restarted without a lost site, although it had ended: the difference is that site's part."""
    here = carrier([*MATRICES, (1, 2, 3, 4)])
    assert isinstance(here.carry(), Numbers)
    assert "over other sites" in refused(here.carry(ring=here.ring("a", "b", "c")))
    begun_again = carrier([*MATRICES, (1, 2, 3, 4)])
    assert isinstance(begun_again.carry(until="c"), Passed)
    assert isinstance(begun_again.carry(ring=begun_again.ring("a", "b", "c")), Numbers)


def test_offsets_serve_one_part():
    """Neither for another request under the same name, nor for a table that changed meanwhile."""
    here = Coordinator(members([[of(5), of(9)], [of(1)] * 2, [of(1)] * 2]))
    views = [overheard(here, "b", here.step("a", which=i).sealed, which=i)[1] for i in range(2)]
    assert (views[1] - views[0]).tolist() != [4]
    here.sites["a"].source[0] = of(6)
    here.sites["a"] = here.sites["a"].rebuilt()
    assert "another than when the sum was started" in refused(here.step("a"))


# -- boxes that were changed or belong elsewhere


def test_a_box_that_was_changed():
    here = carrier()
    sealed = here.carry(until="a").sealed
    assert isinstance(here.step("b", sealed), Passed)
    for i in range(0, len(sealed), 7):
        changed = sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :]
        assert "changed on its way" in refused(here.step("b", changed))
    for changed in (sealed[:-1], sealed + b"\0", sealed[12:], sealed[:12], b"\0"):
        assert "changed on its way" in refused(here.step("b", changed))


def test_a_federation_in_which_a_box_is_changed():
    class Tampering(InProcess):
        def deliver(self, messages, verb, timeout):
            for site, data in messages.items():
                envelope = wire.decode(data, Envelope)
                hop = wire.decode(envelope.step.body, Hop)
                if site == "c" and hop.ring:
                    changed = hop.sealed[:-1] + bytes([hop.sealed[-1] ^ 128])
                    step = SumStep("ring", wire.encode(msgspec.structs.replace(hop, sealed=changed)))
                    messages[site] = wire.encode(msgspec.structs.replace(envelope, step=step))
            yield from super().deliver(messages, verb, timeout)

    with pytest.raises(RefusedError, match="site 'c' refused Number: what another site sealed was changed"):
        ring_of([of(i) for i in range(4)], Tampering, quorum=3).total(Number())


def test_a_foreign_box_is_refused():
    """Another sum, study, ring, pair or direction: none opens."""
    here = carrier([*MATRICES, (1, 2, 3, 4)])
    sealed = here.carry(until="a").sealed
    elsewhere = [
        Coordinator(here.sites, "sum 2").step("b", sealed),
        Coordinator(here.sites, study="another").step("b", sealed),
        here.step("b", sealed, ring=here.ring("a", "b", "c")),
        here.step("b", sealed, ring=here.ring("a", "b", "d")),
        here.step("c", sealed),
        here.step("a", sealed),  # back to its sender
    ]
    for reply in elsewhere:
        assert "belongs elsewhere" in refused(reply)
    assert isinstance(here.step("b", sealed), Passed)


def test_running_sums_of_another_shape():
    """A neighbour may lie in what it passes on; its counters must have the shape of the site's part."""
    for odd in (of(1, 2, 3), of(1, 2, 3, 4, dtype=np.int64), of(1, 2, 3, 4, y=[5]), of()):
        here = Coordinator(members([odd, of(*MATRICES[1]), of(*MATRICES[2])]))
        assert "of another shape" in refused(here.carry())


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x80\x80", msgspec.msgpack.encode({"ring": [{}]}), msgspec.msgpack.encode({"sealed": 3})]
)
def test_malformed_steps_are_refused(body):
    reply = carrier().step("a", step=SumStep("ring", body))
    assert isinstance(reply, Trouble)
    assert reply.code == "format"


def test_malformed_keys_are_refused():
    here = carrier()
    for key in (b"", b"\0" * 32, b"k" * 31, b"\1" + b"\0" * 31):
        reply = here.step("a", ring=[here.ring()[0], SumMember("b", key), here.ring()[2]])
        assert (type(reply), reply.code) == (Trouble, "format")


# -- keys


def test_a_coordinator_that_swaps_keys():
    """Without a roster it reads what the first site passes on, and so is a neighbour; with one it is refused."""
    here = carrier()
    spy = members([of(0)])["a"]
    here.keys["b"] = public_key(spy.store)
    swapped = here.step("a").sealed
    spied = Coordinator({**here.sites, "b": spy}, keys=here.keys)
    overheard(spied, "b", swapped)

    roster = {name: public_key(site.store) for name, site in here.sites.items()}
    for site in here.sites.values():
        site.secure_sum = RingPart(roster)
        site.cache.clear()  # a repeated message gets the same reply
    assert "not the one known here" in refused(here.step("a"))
    here.keys.clear()
    assert here.carry().x.tolist() == np.sum(MATRICES, axis=0).tolist()
    stranger = SumMember("x", public_key(spy.store))
    assert "not the one known here" in refused(here.step("a", ring=[*here.ring("a", "b"), stranger]))


def test_keys_stay():
    here = carrier()
    ready = [here.step("a", hop=Hop()) for _ in range(2)]
    here.sites["a"] = here.sites["a"].rebuilt()
    ready.append(here.step("a", hop=Hop()))
    assert ready == [Ready(key=public_key(here.sites["a"].store))] * 3
    assert len({public_key(site.store) for site in here.sites.values()}) == 3


# -- a neighbour


def one_offset(matrix, offset):
    """Masks a matrix as Eq. 4.2 of the thesis does: one random number for its four counts."""
    return np.array(matrix, np.uint64) + np.uint64(offset)


def by_differences(view):
    """How much each count exceeds the first, as a neighbour reads it."""
    return (view - view[0]).view(np.int64).tolist()


def by_row_count(view, rows):
    """The counts, if one offset masks all of them and the number of rows is known."""
    spread = (view - view[0]).view(np.int64)
    return (spread + (rows - spread.sum()) // 4).tolist()


def test_a_shared_offset_hides_nothing():
    matrix = MATRICES[0]
    for offset in (0, 12345, 2**63, 2**64 - 1):
        view = one_offset(matrix, offset)
        assert by_differences(view) == [0, -10, -20, -30]
        assert by_row_count(view, 100) == list(matrix)


def test_separate_offsets_hide_the_counts():
    """The same neighbour, the same arithmetic: nothing, and no offset occurs twice."""
    read = []
    for _ in range(20):
        here = carrier()
        _, view = overheard(here, "b", here.carry(until="a").sealed)
        assert by_differences(view) != [0, -10, -20, -30]
        assert by_row_count(view, 100) != list(MATRICES[0])
        read.append(tuple(view.tolist()))
    for counter in zip(*read, strict=True):
        assert len(set(counter)) == 20


def test_a_neighbours_view_fits_any_part():
    """Equal counts of many rows, or of none: both look random in every bit, and are equally likely."""
    for value in (0, 10**6):
        here = carrier([[value] * 4096, [1] * 4096, [1] * 4096])
        _, view = overheard(here, "b", here.carry(until="a").sealed)
        assert len(np.unique(view)) == 4096
        bits = np.unpackbits(view.view(np.uint8)).reshape(4096, 64)
        assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.07  # nine deviations
        assert np.abs(np.corrcoef(bits.T) - np.eye(64)).max() < 0.13  # eight


# -- the known weakness


@pytest.mark.parametrize("victim", ["a", "b", "c", "d"])
def test_both_neighbours_of_a_site_together_learn_its_part(victim):
    """With their secrets only: what one passed on, minus what the other received. docs/sums.md states this."""
    matrices = [*MATRICES, (1, 2, 3, 4)]
    here = carrier(matrices)
    names = list(here.sites)
    place = names.index(victim)
    before, after = names[place - 1], names[(place + 1) % 4]
    _, handed_in = overheard(here, victim, here.carry(until=before).sealed, reader=before)
    _, handed_on = overheard(here, after, here.carry(until=victim).sealed, reader=after)
    learnt = handed_on - handed_in
    if victim == "a":  # its offsets went out and came back, so they see the others' parts; and the sum is disclosed
        learnt += here.carry().x.astype(np.uint64)
    assert learnt.tolist() == list(matrices[place])


def test_one_neighbour_alone_learns_nothing():
    here = carrier()
    _, after = overheard(here, "c", here.carry(until="b").sealed)
    assert after.tolist() != list(MATRICES[1])
    assert not (after < 1000).any()  # one in 2^54 by chance


# -- who ends a ring


@pytest.mark.parametrize("order", ["bacd", "dcba", "bcda"])
def test_the_ring_is_ordered_by_name(order):
    """Otherwise a coordinator would have another site end a second sum, which does not know about the first."""
    given = Coordinator(members([of(value) for value in range(4)]))
    assert "in the order of its sites' names" in refused(given.carry(ring=given.ring(*order)))


def test_a_second_ring_without_a_site():
    """In the same request, as if d had been lost: the site that ended the first sum ends no second one."""
    given = Coordinator(members([of(value) for value in (1, 10, 100, 1000)]))
    assert given.carry().x.tolist() == [1111]
    assert refused(given.carry(ring=given.ring(*"abc"))).startswith("the site has ended a sum of the same")


def test_sums_are_the_same_in_whichever_order_sites_are_listed():
    fed = ring_of([of(value) for value in (1, 10, 100, 1000)])
    fed.sites.reverse()
    assert fed.total(Number()).x.tolist() == [1111]
