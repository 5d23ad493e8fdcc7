"""Ring sums: the sums that plain addition gives, whatever is lost, late, restarted or resumed on the way."""

from functools import cache

import numpy as np
import pytest
from helpers.federating import federation_of
from helpers.runs import fitted, silvan, write_study
from helpers.studies import Recorded, Stop, assert_books, disturbed, federate, from_reply, parts, table
from helpers.summing import NAMES, Coordinator, Number, Numbers, members, numbers_are_asked, of, ring_of
from hypothesis import given, settings
from hypothesis import strategies as st
from privacy.sums.test_counters import fields

import silvan as sv
from silvan.errors import FederationError, FormatError, InputError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.federation import OVERALL
from silvan.federation.journal import Journal
from silvan.federation.message import Envelope
from silvan.federation.site import Outbox
from silvan.federation.sums import TrustedSums
from silvan.federation.transports.in_process import InProcess
from silvan.privacy.gate.gate import Gate, Policy
from silvan.privacy.sums.ring import Pad, Passed, Ready, RingSums

TABLES = parts(table(n=90), 4)


@pytest.fixture(autouse=True)
def asked():
    with numbers_are_asked() as calls:
        yield calls


def same(a, b):
    return all(
        getattr(a, f).dtype == getattr(b, f).dtype and np.array_equal(getattr(a, f), getattr(b, f)) for f in "xy"
    )


# -- the same sums


@given(st.integers(3, 6).flatmap(lambda n: st.tuples(fields(n), fields(n))), st.booleans())
@settings(max_examples=60)
def test_the_sums_of_trusted(both, cold):
    given_parts = [Numbers(x=x, y=y) for x, y in zip(*both, strict=True)]
    trusted = federation_of(members(given_parts, cover=None), TrustedSums()).total(Number())
    assert same(ring_of(given_parts, cold=cold).total(Number()), trusted)


@cache
def outcome(task="binary", **given):
    fed = federate(parts(table(task, n=90), 4), Recorded, test=0.25, **given)
    model = sv.HistogramForest(n_estimators=3, max_depth=3).fit(fed)
    figures = repr(model.evaluate(fed).rows())
    return [model.forest_.hash, figures, fed.schema.to_json(), model.rounds_, fed.agreement_rounds], fed


@pytest.mark.parametrize("task", ["binary", "number"])
@pytest.mark.parametrize("cold", [False, True])
def test_the_same_forest(task, cold):
    got, fed = outcome(task, sums="ring", cold=cold)
    assert got == outcome(task)[0]
    assert_books(fed)


def twice(site, data):
    return [(site, data), (site, data), (site, b"\xc1"), ("nobody", data)]


class Late(InProcess):
    """Before its own answers, every wave gets those to the wave before."""

    before = ()

    def deliver(self, messages, verb, timeout):
        answers = list(super().deliver(messages, verb, timeout))
        yield from self.before
        yield from answers
        self.before = answers


@pytest.mark.parametrize("kind", [disturbed(twice), Late], ids=["twice", "late"])
def test_answers_that_change_nothing(kind):
    fed = ring_of([of(1), of(20), of(300)], kind)
    assert [fed.total(Number()).x.tolist() for _ in range(2)] == [[321], [321]]
    assert not fed.lost


def test_waves_and_rounds(asked):
    fed = ring_of([[of(i), of(i)] for i in range(5)])
    fed.total(Number())
    assert (fed.rounds, fed.exchanges) == (1, 5 + 2)
    assert asked == NAMES[:5]  # all at once, in the first wave, and once
    fed.total(Number(which=1), over=["a", "c", "e"])
    assert (fed.rounds, fed.exchanges) == (2, 7 + 3 + 2)


def test_questions_by_site_and_over_some():
    fed = ring_of([[of(1), of(2)], [of(10), of(20)], [of(100), of(200)], [of(1000), of(2000)]])
    assert fed.total(Number(which=1)).x.tolist() == [2222]
    assert fed.total(Number(), over=["b", "c", "d"]).x.tolist() == [1110]
    by_site = {name: Number(which=i % 2, apart=True) for i, name in enumerate("abcd")}
    assert fed.total(by_site).x.tolist() == [2121]


def test_a_missing_blob_is_sent():
    fed = federate(TABLES, Recorded, sums="ring")
    learner = sv.HistogramForest(n_estimators=3, max_depth=3)
    learner.fit(fed)
    for member in fed.local_sites.values():
        for key in [k for k in member.store._values if k.startswith("blob")]:
            del member.store._values[key]
    assert learner.fit(fed).forest_.hash == learner.fit(federate(TABLES)).forest_.hash
    missing = [d for _, way, d in fed.transport.record if way == "sent" and wire.decode(d, Envelope).kind == "Missing"]
    assert len(missing) == 2 * 4  # the schema, and the bins
    assert_books(fed)


# -- too few


def test_two_sites():
    with pytest.raises(InputError, match="fewer than 3 sites, got 'ring' and 2: with two, each learns"):
        federate(parts(table(n=60), 2), sums="ring")
    fed = ring_of([of(1), of(2), of(3)])
    with pytest.raises(FederationError, match="Number cannot be summed in a ring of a and c: with fewer than 3, each"):
        fed.total(Number(), over=["a", "c"])
    with pytest.raises(FederationError, match="in a ring of b"):
        fed.total(Number(), over=["b"])
    assert fed.exchanges == 0


def test_a_policy_applies_to_what_is_summed():
    for policy, text in ((Policy(min_sites=4), "at least 4 sites"), (Policy(messages=["Describe"]), "allow Number")):
        sites = members([of(1), of(2), of(3)], outbox=Gate(policy))
        with pytest.raises(RefusedError, match=text):
            federation_of(sites, RingSums()).total(Number())
    sites = members([of(1), of(2), of(3)], outbox=Gate(Policy(messages=["Number"], min_sites=3)))
    assert federation_of(sites, RingSums()).total(Number()).x.tolist() == [6]


def test_the_outbox_lets_a_part_out_once_and_may_change_it():
    released = []

    class Censor(Outbox):
        def admit(self, site, request, envelope):
            assert (type(request), envelope.over) == (Number, ["a", "b", "c"])

        def release(self, site, request, reply):
            released.append(site.name)
            return of(int(reply.x[0]) + 1)

    assert federation_of(members([of(1), of(2), of(3)], outbox=Censor()), RingSums()).total(Number()).x == [9]
    assert released == ["a", "b", "c"]


# -- what a coordinator can check


def test_the_sum_is_checked_in_place_of_its_parts():
    replies = []
    ring_of([of(1), of(2), of(3)]).total(Number(), check=lambda site, reply: replies.append((site, reply.x.tolist())))
    assert replies == [(OVERALL, [6])]


def test_a_sum_that_cannot_be_right():
    def check(site, reply):
        if reply.x.sum() > 5:
            raise FormatError("its rows are more than there are")

    with pytest.raises(FederationError, match=r"sum for Number is unusable: its rows are .* whose part is at fault"):
        ring_of([of(1), of(2), of(3)], quorum=3).total(Number(), check=check)


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


# -- sites that are lost

N_ANSWERS = 4 + 4 + 1


def lossy(at, what):
    """From its so-manieth answer on, whoever it is from gives something else."""
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
    with pytest.raises(FederationError, match=r"in a ring of . and .: .*; site '.': did not answer Number"):
        ring_of([of(1), of(2), of(3)], lossy(at, LOSSES["silence"])[0], quorum=2).total(Number())
    with pytest.raises(FederationError, match="2 of 3 sites are left at Number, the quorum is 3"):
        ring_of([of(1), of(2), of(3)], lossy(at, LOSSES["silence"])[0], quorum=3).total(Number())
    with pytest.raises(SiteError, match="did not answer Number"):
        ring_of([of(1), of(2), of(3)], lossy(at, LOSSES["silence"])[0]).total(Number())


def test_a_new_ring_has_new_offsets():
    carrier = Coordinator(members([of(1), of(2), of(3), of(4)]))
    carrier.carry()
    carrier.carry(ring=carrier.ring("a", "b", "c"))
    pads = [v for k, v in carrier.sites["a"].store._values.items() if k.startswith("pad") and "ended" not in k]
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


def stopping(after):
    class Stopping(Recorded):
        count = 0

        def deliver(self, messages, verb, timeout):
            for site, data in super().deliver(messages, verb, timeout):
                yield site, data
                self.count += 1
                if self.count == after:
                    raise Stop

    return Stopping


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
    # sites in this process have new keys by then: a sum that was under way starts again, and if it had gone round, its
    # first site is asked for it once more in vain
    in_vain = after == N_ANSWERS
    assert len(fed.transport.record) == 2 * (in_vain + (N_ANSWERS if after > N_ANSWERS else 2 * N_ANSWERS))


def test_a_finished_study_asks_nothing(tmp_path):
    settings = {"sums": "ring", "journal": str(tmp_path / "journal")}
    got, fed = outcome.__wrapped__(**settings)
    fed.close()
    again, resumed = outcome.__wrapped__(**settings)
    resumed.close()
    assert again == got == outcome()[0]
    assert resumed.transport.record == []
    assert resumed.traffic == fed.traffic


def test_a_journal_keeps_the_sum_only(tmp_path):
    fed = ring_of([of(*range(i, i + 500)) for i in (1000, 2000, 3000)], Recorded, journal=Journal(tmp_path / "journal"))
    total = fed.total(Number())
    fed.close()
    kept = (tmp_path / "journal").read_bytes()
    bodies = [wire.decode(data, Envelope).body for _, way, data in fed.transport.record if way == "sent"]
    assert wire.encode(total) in kept
    assert sum(body in kept for body in bodies) == 1


def test_a_journal_of_other_sums(tmp_path):
    federate(TABLES, journal=str(tmp_path / "journal")).close()
    with pytest.raises(FormatError, match="belongs to another study"):
        federate(TABLES, sums="ring", journal=str(tmp_path / "journal"))


# -- from a study file


def test_a_study_file(tmp_path):
    (tmp_path / "ring").mkdir()
    (tmp_path / "trusted").mkdir()
    records = [fitted(tmp_path / sums, more=f'sums = "{sums}"') for sums in ("ring", "trusted")]
    assert [record.sums for record in records] == ["ring", "trusted"]
    assert records[0].models[0].hash == records[1].models[0].hash == records[0].pooled_hash
    assert records[0].evaluation == records[1].evaluation
    pages = [(tmp_path / sums / "run" / "report.html").read_text() for sums in ("ring", "trusted")]
    assert ["round a ring" in page for page in pages] == [True, False]


def test_a_study_file_of_two_sites(tmp_path):
    path = write_study(tmp_path, parts(table(n=60), 2), more='sums = "ring"')
    result = silvan("fit", path, "--output", tmp_path / "run", ok=False)
    assert result.exit_code != 0
    said = " ".join((result.output + result.stderr).split())
    assert "study.toml:4: sums must be 'trusted' for fewer than 3 sites" in said
