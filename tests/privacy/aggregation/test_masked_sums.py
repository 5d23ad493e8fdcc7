"""Masked sums equal plain addition, whatever is lost, late, restarted or resumed on the way."""

from itertools import combinations

import msgspec
import numpy as np
import pytest
from helpers.examples import examples
from helpers.federating import federation_of
from helpers.masked import Coordinator, masked_of, masked_sites
from helpers.stores import kept_by
from helpers.studies import Recorded, Stop, assert_books, disturbed, envelopes, federate, parts, stopping, table
from helpers.summing import NAMES, Number, members, numbers_are_asked, of, same
from hypothesis import given
from hypothesis import strategies as st

import silvan as sv
from silvan.errors import FederationError, InputError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.journal import Journal
from silvan.federation.message import Envelope
from silvan.federation.site import Site
from silvan.federation.sums import TrustedSums
from silvan.privacy.aggregation.masked_coordinator import MaskedSums
from silvan.privacy.aggregation.masked_site import Confirmed, Hidden, KeptSeed, MaskedPart, Opened, Turn, threshold
from silvan.privacy.aggregation.sum_members import Ready
from silvan.privacy.gate import Gate
from silvan.privacy.policy import Policy

TABLES = parts(table(n=90), 4)


@pytest.fixture(autouse=True)
def asked():
    with numbers_are_asked() as calls:
        yield calls


# -- the same sums; what they share with ring sums is in test_hidden_sums.py


@given(st.integers(0, 2**62), st.data())
@examples(25)
def test_bounded_sums_equal_trusted_sums(most, data):
    values = data.draw(st.lists(st.integers(0, most // 4), min_size=1, max_size=30))
    given_parts = [of(*values, y=[most // 4], dtype=np.int64)] * 4
    trusted = federation_of(members(given_parts, secure_sum=None), TrustedSums()).total(Number())
    assert same(masked_of(given_parts).total(Number(), most=most), trusted)


def test_the_same_forest_when_a_site_is_lost():
    """A site lost at any wave of any sum: the forest is that of trusted sums that lose the site at the same request."""

    def lossy(kind, site="site 1"):
        gone = []

        def twist(here, data):
            if here == site and wire.decode(data, Envelope).kind == kind:
                gone.append(here)
            return [] if here in gone else [(here, data)]

        return disturbed(twist)

    learner = sv.HistogramForest(n_estimators=3, max_depth=3)
    without = learner.fit(federate(TABLES, lossy("GridCounts"), quorum=3)).forest_.hash
    given = {"sums": "masked", "quorum": 3, "schema": federate(TABLES).schema}
    assert learner.fit(federate(TABLES, lossy("Ready"), **given)).forest_.hash == without
    assert learner.fit(federate(TABLES, lossy("Hidden"), **given)).forest_.hash == without
    later = learner.fit(federate(TABLES, lossy("FineCounts"), quorum=3)).forest_.hash
    for kind in ("Confirmed", "Opened"):  # its part of the first sum is in it
        assert learner.fit(federate(TABLES, lossy(kind), **given)).forest_.hash == later


def test_waves_and_rounds(asked):
    fed = masked_of([of(i) for i in range(5)])
    fed.total(Number())
    assert (fed.rounds, fed.exchanges) == (1, 4)
    assert asked == NAMES[:5]
    fed.total(Number(), over=["a", "c", "e"])
    assert (fed.rounds, fed.exchanges) == (2, 4 + 3)  # keys are known by now
    assert asked == [*NAMES[:5], "a", "c", "e"]  # every part is computed once


def test_counters_share_words_if_sums_are_bounded():
    sizes = {}
    for most in (None, 2**40, 2**32 - 1, 2**20, 2**16 - 1, 255, 1, 0):
        fed = masked_of([of(*[0] * 640)] * 3, Recorded)
        fed.total(Number(), most=most)
        sent = envelopes(fed, "sent")
        sizes[most] = {len(wire.decode(e.body, Hidden).words) for e in sent if e.kind == "Hidden"}
    assert [s.pop() for s in sizes.values()] == [5120, 5120, 2560, 1712, 1280, 640, 80, 80]


# -- too few, or too many


def test_two_sites():
    fed = masked_of([of(1), of(2), of(3)])
    with pytest.raises(FederationError, match="Number cannot be summed over 2 sites: masked sums take 3 to 255"):
        fed.total(Number(), over=["a", "c"])
    with pytest.raises(FederationError, match="over 1 site:"):
        fed.total(Number(), over=["b"])
    assert fed.exchanges == 0


def many(n, **settings):
    secure_sum = MaskedPart(neighbours=4)
    sites = {f"s{i}": Site(f"s{i}", [of(i, dtype=np.int64)], secure_sum=secure_sum) for i in range(n)}
    return federation_of(sites, MaskedSums(4), **settings)


def test_many_sites():
    assert many(30).total(Number()).x.tolist() == [sum(range(30))]
    with pytest.raises(FederationError, match="over 256 sites: masked sums take 3 to 255"):
        many(256).total(Number())


def test_invalid_numbers_of_neighbours():
    for wrong in (0, 1, 3, -2):
        with pytest.raises(InputError, match="neighbours must be an even number"):
            MaskedSums(wrong)


def test_a_policy_applies_to_the_remaining_sites():
    """Of five sites one is lost: a site that wants five in a sum does not confirm four."""
    sites = masked_sites([of(i) for i in range(5)], outbox=Gate(Policy(min_sites=5)))
    kind = losing({"b": "hide"})
    with pytest.raises(RefusedError, match="at least 5 sites"):
        federation_of(sites, MaskedSums(), kind, quorum=3).total(Number())


# -- what a coordinator can check


@pytest.mark.parametrize(
    ("odd", "error", "text"),
    [
        (of(1, 2), SiteError, "site 'b'.*another shape than the others"),
        (of(1, dtype=np.int64), SiteError, "site 'b'.*another shape than the others"),
        (of(1, y=[1]), SiteError, "site 'b'.*another shape than the others"),
        (of(2**62, dtype=np.int64), RefusedError, "site 'b' refused Number: Numbers.x is too large to be added"),
        (of(2**31 - 1), FederationError, "sum for Number is unusable: Numbers.x is too large when all are added"),
        (of(0.5, dtype=np.float32), RefusedError, "site 'b' refused Number: Numbers.x cannot be summed"),
    ],
)
def test_parts_that_do_not_fit(odd, error, text):
    with pytest.raises(error, match=text):
        masked_of([of(1), odd, of(3)]).total(Number())


def test_a_sum_above_its_bound():
    with pytest.raises(FederationError, match=r"sum for Number is unusable: Numbers\.x is too large"):
        masked_of([of(5), of(6), of(7)]).total(Number(), most=17)


# -- lost sites

STEPS = {"key": Ready, "hide": Hidden, "confirm": Confirmed, "open": Opened}


def losing(when, what=lambda site, data: []):
    """Some sites send something else, each from a given step on."""
    gone = set()

    def twist(site, data):
        envelope = wire.decode(data, Envelope)
        if site in when and envelope.kind == STEPS[when[site]].__name__:
            gone.add(site)
        return what(site, data) if site in gone else [(site, data)]

    return disturbed(twist)


LOSSES = {
    "silence": lambda site, data: [],
    "nonsense": lambda site, data: [(site, b"\xc1")],
    "cut": lambda site, data: [(site, ConnectionError("cut"))],
}

VALUES = dict(zip(NAMES, (1, 20, 300, 4000, 50_000, 600_000), strict=True))


def left(when):
    """The list of parts in the sum: of sites that were there until their part had arrived."""
    return [sum(v for name, v in VALUES.items() if when.get(name) not in ("key", "hide"))]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("neighbours", "how"), [(None, "silence"), (None, "nonsense"), (None, "cut"), (4, "silence")], ids=str
)
def test_a_third_lost_at_one_step(step, how, neighbours):
    for pair in combinations(NAMES, 2):
        when = dict.fromkeys(pair, step)
        fed = masked_of([of(v) for v in VALUES.values()], losing(when, LOSSES[how]), neighbours, quorum=4)
        assert fed.total(Number()).x.tolist() == left(when)
        assert set(fed.lost) == set(pair)
        assert fed.total(Number()).x.tolist() == [sum(v for name, v in VALUES.items() if name not in pair)]


@pytest.mark.parametrize("first", STEPS)
@pytest.mark.parametrize("second", STEPS)
def test_a_third_lost_at_two_steps(first, second):
    for a, b in (("a", "b"), ("f", "c"), ("d", "a")):
        when = {a: first, b: second}
        fed = masked_of([of(v) for v in VALUES.values()], losing(when), quorum=4)
        # of five sites with keys one may be lost, and four must be left
        assert fed.total(Number(), most=2**20).x.tolist() == left(when)
        assert set(fed.lost) == {a, b}


@given(st.integers(3, 6), st.data())
@examples(60)
def test_losses_of_any_kind(n, data):
    """Any sites lost at any steps: the sum of the parts that arrived, or a clear error when too few are left."""
    names = NAMES[:n]
    when = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from(list(STEPS)), max_size=n - 1))
    neighbours = data.draw(st.sampled_from([None, 2, 4]))
    fed = masked_of([of(VALUES[name]) for name in names], losing(when), neighbours, quorum=1)
    here = [name for name in names if when.get(name) != "key"]
    staying = [name for name in names if name not in when]
    if len(here) < 3 or len(staying) < threshold(len(here)):
        with pytest.raises(FederationError, match=r"Number cannot be summed.*did not answer Number"):
            fed.total(Number())
    else:
        parts_in = [VALUES[name] for name in here if when.get(name) != "hide"]
        assert fed.total(Number()).x.tolist() == [sum(parts_in)]


@pytest.mark.parametrize("step", ["hide", "confirm", "open"])
def test_more_than_a_third_lost(step):
    fed = masked_of([of(v) for v in VALUES.values()], losing(dict.fromkeys("abc", step)), quorum=2)
    with pytest.raises(
        FederationError,
        match=r"Number cannot be summed: 3 of 6 sites are left, and a masked sum needs 4; site 'a': did not answer",
    ):
        fed.total(Number())


def test_without_a_quorum_a_loss_is_an_error():
    for step in STEPS:
        for quorum, error, said in (
            ({}, SiteError, "site 'b': did not answer Number"),
            ({"quorum": 4}, FederationError, "3 of 4 sites are left at Number, the quorum is 4"),
        ):
            with pytest.raises(error, match=said):
                masked_of([of(1), of(2), of(3), of(4)], losing({"b": step}), **quorum).total(Number())


@pytest.mark.parametrize("step", STEPS)
def test_all_bytes_are_counted_when_a_site_is_lost(step, tmp_path):
    class Both(Recorded, losing({"c": step})):
        pass

    fed = masked_of([of(i) for i in range(4)], Both, quorum=3, journal=Journal(tmp_path / "journal"))
    total = fed.total(Number())
    fed.close()
    assert_books(fed)
    again = masked_of([of(i) for i in range(4)], Recorded, quorum=3, journal=Journal(tmp_path / "journal"))
    assert same(again.total(Number()), total)
    again.close()
    assert again.transport.record == []
    assert (again.traffic, again.lost) == (fed.traffic, fed.lost)


# -- sites that reply nonsense


def instead(site, kind, change):
    """A site's replies of a kind, changed."""

    def twist(here, data):
        envelope = wire.decode(data, Envelope)
        if here != site or envelope.kind != kind.__name__:
            return [(here, data)]
        body = wire.encode(change(wire.decode(envelope.body, kind)))
        return [(here, wire.encode(msgspec.structs.replace(envelope, body=body)))]

    return disturbed(twist)


def altered(**fields_):
    return lambda reply: msgspec.structs.replace(reply, **{n: f(getattr(reply, n)) for n, f in fields_.items()})


def laid_out(*field):
    return altered(layout=lambda layout: msgspec.structs.replace(layout, fields=[field, layout.fields[1]]))


NONSENSE = {
    "no key": (Ready, altered(key=lambda key: key[:-1])),
    "no words": (Hidden, altered(words=lambda words: memoryview(b""))),
    "half a word": (Hidden, altered(words=lambda words: words[:-1])),
    "another kind": (Hidden, altered(layout=lambda layout: msgspec.structs.replace(layout, kind="Histograms"))),
    "another field": (Hidden, laid_out("z", "<i4", [1])),
    "fewer fields": (Hidden, altered(layout=lambda layout: msgspec.structs.replace(layout, fields=layout.fields[:1]))),
    "an object": (Hidden, laid_out("x", "|O8", [1])),
    "a float": (Hidden, laid_out("x", "<f8", [1])),
    "below zero": (Hidden, laid_out("x", "<i4", [-1, -1])),
    "too deep": (Hidden, laid_out("x", "<i4", [1] * 70)),
    "too large": (Hidden, laid_out("x", "<i4", [2**40])),
    "no fingerprints": (Hidden, altered(prints=lambda prints: b"")),
    "a box too few": (Hidden, altered(boxes=lambda boxes: dict(list(boxes.items())[1:]))),
    "a box too many": (Hidden, altered(boxes=lambda boxes: {**boxes, "x": b""})),
    "no code": (Confirmed, altered(codes=lambda codes: {})),
    "no shares": (Opened, altered(shares=lambda shares: {})),
    "short shares": (Opened, altered(shares=lambda shares: {**shares, "b": b""})),
}


@pytest.mark.parametrize("case", NONSENSE)
def test_nonsense_from_a_site(case):
    """It is as if the site were lost, whether its reply is the first or not."""
    kind, change = NONSENSE[case]
    for site in ("a", "c"):
        fed = masked_of([of(1), of(20), of(300), of(4000)], instead(site, kind, change), quorum=3)
        if case == "a box too few" and site == "c":
            continue
        counted = kind in (Confirmed, Opened)
        assert fed.total(Number()).x.tolist() == [4321 - (0 if counted else {"a": 1, "c": 300}[site])]
        assert list(fed.lost) == [site]
        assert "something unusable" in fed.lost[site]


def test_a_wrong_share_is_detected():
    """It would make the sum any number, so what shares reconstruct is compared with its fingerprint."""
    flip = altered(shares=lambda shares: {**shares, "b": bytes([shares["b"][0] ^ 1]) + shares["b"][1:]})
    with pytest.raises(FederationError, match="a wrong share of what hides the part of site 'b'"):
        masked_of([of(1), of(2), of(3), of(4)], instead("a", Opened, flip)).total(Number())


# -- restarts


def test_a_retry_gives_the_same_bytes():
    here = Coordinator(masked_sites([of(1), of(2), of(3), of(4)]))

    def again(site, turn):
        first = here.send(site, turn)
        here.sites[site] = here.sites[site].rebuilt()
        second = here.send(site, turn)
        assert wire.encode(second) == wire.encode(first)
        return first

    for site in "abc":
        here.hidden[site] = again(site, here.turn("hide"))
    for site in "abc":
        here.codes[site] = again(site, here.turn("confirm", survivors=list("abc"))).codes
    for site in "abc":
        assert isinstance(again(site, here.opening(site)), Opened)


def test_a_new_sum_has_new_masks():
    sites = masked_sites([of(1), of(2), of(3)])
    one, two = Coordinator(sites), Coordinator(sites, "sum 2")
    one.hide()
    two.hide()
    for site in sites:
        assert bytes(one.hidden[site].words) != bytes(two.hidden[site].words)
        assert one.hidden[site].prints != two.hidden[site].prints
    kept = [v for k, v in kept_by(sites["a"]).items() if k.startswith("masked")]
    assert len(kept) == len({wire.decode(v, KeptSeed).seed for v in kept}) == 2


@pytest.mark.parametrize("after", [*range(1, 32, 3), 31])
def test_stopped_after_some_replies(tmp_path, after):
    def study(kind):
        fed = masked_of([[of(i), of(10 * i)] for i in range(4)], kind, journal=Journal(tmp_path / "journal"))
        try:
            return [fed.total(Number(which=i)).x.tolist() for i in range(2)], fed
        finally:
            fed.close()

    first, second = 4 * 4, 3 * 4
    if after < first + second:
        with pytest.raises(Stop):
            study(stopping(after))
    got, fed = study(Recorded)
    assert got == [[6], [60]]
    if after < first + second:  # sites in this process have new keys by then: the current sum starts again
        in_vain = 4 * (
            8 < after <= first or after > first + 4
        )  # parts were there: all sites are asked to continue with them
        assert len(fed.transport.record) == 2 * (in_vain + (first if after > first else first + second))


def test_a_coordinator_that_resumes_with_the_same_sites(tmp_path):
    """Stopped between any two replies; the sites stayed, and reply to the same sum with the same bytes."""
    whole = 4 * 4
    for after in range(1, whole):
        sites = masked_sites([of(i) for i in range(4)])
        path = tmp_path / f"journal {after}"
        stopped = federation_of(sites, MaskedSums(), stopping(after), journal=Journal(path))
        with pytest.raises(Stop):
            stopped.total(Number())
        stopped.close()
        fed = federation_of(sites, MaskedSums(), Recorded, journal=Journal(path), cold=True)
        assert fed.total(Number()).x.tolist() == [6]
        fed.close()
        sent = [[(s, d) for s, way, d in f.transport.record if way == "sent"] for f in (stopped, fed)]
        again = sent[0][8:] if after > 8 else sent[0]  # parts in the journal are not requested again
        assert sent[1][: len(again)] == again


def test_a_journal_keeps_the_sum_only(tmp_path):
    path = tmp_path / "journal"
    fed = masked_of([of(*range(i, i + 500)) for i in (1000, 2000, 3000)], Recorded, journal=Journal(path))
    total = fed.total(Number())
    fed.close()
    kept = path.read_bytes()
    bodies = [envelope.body for envelope in envelopes(fed, "sent")]
    assert wire.encode(total) in kept
    assert not any(body in kept for body in bodies)


def test_keys_are_those_of_the_federation():
    """One instance may serve several federations whose sites have the same names."""
    sums = MaskedSums()
    for _ in range(2):
        fed = federation_of(masked_sites([of(1), of(2), of(3)]), sums)
        assert fed.total(Number()).x.tolist() == [6]


# -- what travels


def test_messages_about_the_sum_are_small():
    """Every message repeats the list of members, not the boxes of others."""
    fed = masked_of([of(*range(1000))] * 5, Recorded)
    fed.total(Number())
    asked_for = envelopes(fed, "received")
    turns = [wire.decode(e.step.body, Turn) for e in asked_for]
    assert max(len(e.step.body) for e, t in zip(asked_for, turns, strict=True) if t.what != "open") < 500
    assert max(len(e.step.body) for e in asked_for) < 2000
