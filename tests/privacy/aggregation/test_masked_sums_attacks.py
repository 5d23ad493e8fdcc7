"""Attacks on masked sums: what a coordinator and sites, alone or together, can and cannot learn."""

import secrets

import msgspec
import numpy as np
import pytest
from helpers.federating import federation_of
from helpers.masked import Coordinator, here_at, keys_of, mask_of, masked_of, masked_sites, recovered, without, words
from helpers.stores import kept_by
from helpers.studies import Recorded, envelopes, federate, parts, table
from helpers.summing import Number, members, numbers_are_asked, of

from silvan.algorithms.shared_bins import CountGrid
from silvan.errors import RefusedError
from silvan.federation import wire
from silvan.federation.message import Envelope, SumStep, Trouble
from silvan.federation.sums import TrustedSums
from silvan.federation.transport import InProcess
from silvan.privacy.aggregation import shamir
from silvan.privacy.aggregation.counters import mask
from silvan.privacy.aggregation.masked_coordinator import MaskedSums
from silvan.privacy.aggregation.masked_site import (
    KEY,
    SEED,
    Hidden,
    MaskedPart,
    Opened,
    Turn,
    adds_mask,
    mask_key,
    threshold,
)
from silvan.privacy.aggregation.ring import RingPart
from silvan.privacy.aggregation.sum_members import Ready, SumMember
from silvan.privacy.aggregation.words import Widths
from silvan.privacy.gate import Gate
from silvan.privacy.identity.seal import public_key
from silvan.privacy.policy import Policy

PARTS = {"a": (40, 30, 20, 10), "b": (7, 80, 5, 8), "c": (25, 25, 26, 24), "d": (1, 2, 3, 4)}


@pytest.fixture(autouse=True)
def asked():
    with numbers_are_asked() as calls:
        yield calls


def here(values=None, secure_sum=None, **settings):
    """A coordinator that controls each message to its sites; by default those of the table above."""
    return Coordinator(masked_sites([of(*value) for value in values or PARTS.values()], secure_sum), **settings)


def refused(reply, code="refused"):
    assert isinstance(reply, Trouble)
    assert reply.code == code
    return reply.text


def like_noise(array):
    bits = np.unpackbits(np.ascontiguousarray(array).view(np.uint8))
    return abs(bits.mean() - 0.5) < 5 / len(bits) ** 0.5  # ten deviations


# -- a curious coordinator


def test_a_coordinator_learns_nothing_from_masked_parts():
    """Masked parts look random, have nothing in common, and neither do the sums of any two."""
    values = [np.arange(i, i + 4096) for i in (1, 5000, 10_000, 20_000)]
    feds = [masked_of([of(*value) for value in values], Recorded) for _ in range(2)]
    totals = [fed.total(Number()).x.tolist() for fed in feds]
    assert totals[0] == totals[1] == np.sum(values, axis=0).tolist()
    seen = []
    for fed in feds:
        sent = envelopes(fed, "sent")
        assert [e.kind for e in sent] == ["Ready"] * 4 + ["Hidden"] * 4 + ["Confirmed"] * 4 + ["Opened"] * 4
        seen += [words(wire.decode(e.body, Hidden)) for e in sent if e.kind == "Hidden"]
    assert len(seen) == 8
    for i, one in enumerate(seen):
        assert like_noise(one)
        for other in seen[:i]:
            assert like_noise(one + other)
            assert like_noise(one - other)
            assert not (one == other).any()
    for three in ((0, 1, 2), (1, 2, 3), (0, 2, 3)):
        assert like_noise(sum(seen[i] for i in three))


def test_counters_that_share_a_word_are_hidden_too():
    given = here([[7] * 8192] * 4, width=16)
    given.hide()
    for hidden in given.hidden.values():
        assert len(words(hidden)) == 2048
        assert len(np.unique(words(hidden))) == 2048
        assert like_noise(words(hidden))


def test_boxes_reveal_nothing_and_differ():
    given = here()
    given.hide()
    boxes = [box for hidden in given.hidden.values() for box in hidden.boxes.values()]
    assert len(set(boxes)) == 4 * 2  # one less than two thirds of the sites need none
    assert like_noise(np.frombuffer(b"".join(box[-64:] for box in boxes), np.uint8))
    for site, hidden in given.hidden.items():
        seeds = [hidden.prints[i : i + KEY] for i in range(0, len(hidden.prints), KEY)]
        assert len(set(seeds)) == 4
        assert site not in hidden.boxes


def test_no_part_is_in_any_message_of_a_forest():
    fed = federate(parts(table(n=90), 4), Recorded, sums="masked")
    fed.total(CountGrid(schema=fed.blob(fed.schema.to_json().encode())))
    sums = {"CountCategories", "CountGrid"}
    asked = {e.question: e.kind for e in envelopes(fed, "received")}
    answered = envelopes(fed, "sent")
    kinds = {(asked[e.question], e.kind) for e in answered if asked[e.question] in sums}
    assert {kind for _, kind in kinds} <= {"Ready", "Missing", "Hidden", "Confirmed", "Opened"}
    assert {question for question, _ in kinds} == sums


# -- a coordinator that requests more than it should


def test_a_part_never_leaves_in_the_clear():
    given = here()
    turn = given.turn("hide")
    assert "only hidden, in 'masked' sums" in refused(given.send("a", turn, step=None))
    assert "in the clear" in refused(given.send("a", turn, step=None, verb="ask"))
    assert "only hidden" in refused(given.send("a", turn, step=SumStep("ring", b"")))
    assert "in the clear" in refused(given.send("a", turn, verb="ask"))


def test_a_federation_made_with_masks_refuses_plain_sums():
    fed = federate(parts(table(n=90), 3), sums="masked")
    fed.sums = TrustedSums()
    with pytest.raises(RefusedError, match=r"site 'site 0' refused CountGrid: .*only hidden, in 'masked' sums"):
        fed.total(CountGrid(schema=fed.blob(fed.schema.to_json().encode())))


@pytest.mark.parametrize("secure_sum", [None, RingPart()])
def test_sites_of_other_sums_take_no_part(secure_sum):
    with pytest.raises(RefusedError, match="leaves it only"):
        federation_of(members([of(1), of(2), of(3)], secure_sum=secure_sum), MaskedSums()).total(Number())


K = b"k" * 32
MEMBERS = {
    "two": (lambda m: m[:2], "at least 3 sites"),
    "one": (lambda m: m[:1], "at least 3 sites"),
    "none": (lambda m: [], "at least 3 sites"),
    "a site twice": (lambda m: [m[0], m[1], m[1]], "every site once"),
    "two sites with one key": (lambda m: [m[0], m[1], SumMember("x", m[1].key)], "every site once"),
    "a site with two keys": (lambda m: [m[0], m[1], SumMember("b", K)], "every site once"),
    "another key for the site": (lambda m: [SumMember("a", K), *m[1:]], "with its own key"),
    "the site's key for another": (lambda m: [*m, SumMember("x", m[0].key)], "every site once"),
    "without the site": (lambda m: [SumMember("x", K), *m[1:]], "with its own key"),
    "too many": (lambda m: [*m, *(SumMember(f"x{i}", secrets.token_bytes(32)) for i in range(252))], "up to 255 sites"),
}


@pytest.mark.parametrize("case", MEMBERS)
@pytest.mark.parametrize("what", ["hide", "confirm", "open"])
def test_invalid_members_are_refused(case, what):
    given = here()
    given.hide()
    change, text = MEMBERS[case]
    turn = given.turn(what, survivors=list("abcd"))
    turn = msgspec.structs.replace(turn, members=change(turn.members))
    over = [m.site for m in turn.members] if what == "hide" else list("abcd")
    assert text in refused(given.send("a", turn, over=over))


@pytest.mark.parametrize("over", ["", "abc", "abcde", "abce", "dcba"])
def test_a_sum_over_other_sites_than_declared(over):
    given = here()
    assert "over other sites than it says" in refused(given.send("a", given.turn("hide"), over=list(over)))
    given.hide()
    turn = given.turn("confirm", survivors=list("abcd"))
    assert "over other sites than it says" in refused(given.send("a", turn, over=list(over)))


@pytest.mark.parametrize("neighbours", [2, 0, -4, 1, 4, 99])
def test_too_few_to_share_masks_with(neighbours):
    given = here()
    assert "share masks with too few" in refused(given.hide(neighbours=neighbours))


def test_a_site_sets_the_minimum_number_of_sites():
    six = [(i,) for i in range(6)]
    loose = here(six, MaskedPart(neighbours=2))
    assert isinstance(loose.hide(neighbours=2), Hidden)
    for neighbours in (3, 1, 0, 7):
        assert "too few" in refused(loose.hide(neighbours=neighbours))
    strict = here(six, MaskedPart(neighbours=4))
    assert "too few" in refused(strict.hide(neighbours=2))
    assert isinstance(strict.hide(neighbours=4), Hidden)
    assert isinstance(here(six, MaskedPart(neighbours=98)).hide(), Hidden)  # all there are


@pytest.mark.parametrize("width", [0, -1, 65, 2**40])
def test_counters_of_impossible_width(width):
    assert "counters of up to 64 bits" in refused(here().hide(width=width))


def test_widths_of_another_array_than_the_part():
    widths = Widths(np.array([4], np.int64), np.array([[8]], np.uint8))
    assert "another shape than its widths" in refused(here().hide(widths=widths))


def test_a_bound_that_is_too_low_reveals_nothing():
    """If a site refused when a count did not fit, it would reveal its size; instead the sum is nonsense."""
    for width in (1, 2, 4, 32):
        assert isinstance(here([[2**30] * 4] * 4).hide(width=width), Hidden)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x80",
        msgspec.msgpack.encode({"what": "give"}),
        msgspec.msgpack.encode({"what": "hide", "sum": 3}),
    ],
)
def test_invalid_steps(body):
    given = here()
    refused(given.send("a", given.turn("hide"), step=SumStep("masked", body)), "format")


def test_invalid_keys():
    for key in (b"", b"\0" * 32, b"k" * 31, b"\1" + b"\0" * 31):
        given = here(keys={"b": key}) if key else here()
        turn = given.turn("hide")
        if not key:
            turn = msgspec.structs.replace(turn, members=[turn.members[0], SumMember("b", b""), *turn.members[2:]])
        refused(given.send("a", turn), "format")


# -- masks serve one part


def test_masks_serve_one_request():
    given = Coordinator(masked_sites([[of(5), of(9)]] + [[of(1)] * 2] * 2))
    five, nine, again = (np.frombuffer(given.hide("a", which=i).words, "<u8") for i in (0, 1, 0))
    assert (nine - five).tolist() != [4]
    assert again.tolist() == five.tolist()


def test_all_sites_must_get_the_same_request():
    """A different request to one site, to see its part alone, yields nothing."""
    given = Coordinator(masked_sites([[of(5), of(9)], [of(1), of(0)], [of(1), of(0)]]))
    given.hide("a", which=0)
    given.hide("b", "c", which=1)
    given.confirm("a")
    assert "has hidden no part" in refused(given.confirm("b"))
    for site in "bc":
        confirmed = given.send(site, given.turn("confirm", survivors=list("abc")), which=1)
        given.codes[site] = confirmed.codes
    assert "another site has not confirmed" in refused(given.open("a"))


def test_masks_serve_one_table():
    given = here()
    first = given.hide("a")
    given.sites["a"].source[0] = of(40, 30, 20, 11)
    given.sites["a"] = given.sites["a"].rebuilt()
    assert "is another than when it was hidden" in refused(given.hide("a"))
    given.sites["a"].source[0] = of(*PARTS["a"])
    assert wire.encode(given.hide("a")) == wire.encode(first)


def test_every_sum_has_its_own_masks():
    """Everything that distinguishes sums: request, study, members, neighbours, width."""
    six = [(i,) for i in range(6)]
    sites = here(six, MaskedPart(neighbours=2)).sites
    variants = [
        (Coordinator(sites), {}),
        (Coordinator(sites, "sum 2"), {}),
        (Coordinator(sites, study="another"), {}),
        (Coordinator(sites), {"neighbours": 2}),
        (Coordinator(sites), {"neighbours": 4}),
        (Coordinator(sites), {"width": 32}),
        (Coordinator(sites), {"names": list("abcde")}),
    ]
    prints = [given.hide("a", **changes).prints for given, changes in variants]
    all_prints = [p[i : i + KEY] for p in prints for i in range(0, len(p), KEY)]
    assert len(set(all_prints)) == len(all_prints) == 6 + 6 + 6 + 3 + 5 + 6 + 5


# -- never both kinds of share of one site


def settled(given, survivors, gone=()):
    """Masks, confirms and opens, as an honest coordinator does."""
    given.hide()
    given.confirm(survivors=survivors)
    stay = [s for s in survivors if s not in gone]
    return {site: given.open(site, survivors) for site in stay}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("first", "second"), [("abcd", "abc"), ("abc", "abcd"), ("abd", "abc")])
def test_requests_for_both_shares_are_refused(first, second, restarted):
    """Once with d's part in the sum and once without: the two kinds of masks together would reveal d's part."""
    given = here()
    opened = settled(given, list(first))
    assert all(isinstance(reply, Opened) for reply in opened.values())
    for site in "ab":
        if restarted:
            given.sites[site] = given.sites[site].rebuilt()
        assert "it was other sites'" in refused(given.confirm(site, survivors=list(second)))
        assert "it was other sites'" in refused(given.open(site, list(second)))
        assert given.open(site, list(first)) == opened[site]


def test_both_shares_would_reveal_the_part():
    """The attack succeeds on sites that forget what they confirmed: this is what the rule above is for."""
    given = here()
    with_d = recovered(settled(given, list("abcd")), given.turn("hide"), list("abcd"))[0]
    for site in given.sites.values():
        for key in [k for k in kept_by(site) if k.endswith("settled")]:
            del kept_by(site)[key]
    given.codes.clear()
    given.confirm(survivors=list("abc"))
    _, shared = recovered({s: given.open(s, list("abc")) for s in "abc"}, given.turn("hide"), list("abc"))
    plus = [with_d["d"], *(shared[s, "d"] for s in "abc" if adds_mask("d", s))]
    minus = [shared[s, "d"] for s in "abc" if not adds_mask("d", s)]
    assert without(given.hidden["d"], plus, minus).tolist() == list(PARTS["d"])


def test_a_part_that_came_late_stays_hidden():
    """The coordinator has d's masked part and claims that d was lost: what it receives leaves d's self-mask on it."""
    given = here()
    opened = settled(given, list("abc"))
    own, shared = recovered(opened, given.turn("hide"), list("abc"))
    assert set(own) == set("abc")
    assert set(shared) == {(s, "d") for s in "abc"}
    minus = [shared[s, "d"] for s in "abc"]  # d is the last by name and subtracts all
    left = without(given.hidden["d"], [], minus)
    assert left.tolist() != list(PARTS["d"])
    assert (left > 2**40).all()
    total = sum(words(given.hidden[s]) for s in "abc")
    mask(total, [], [*own.values(), *shared.values()])
    assert total.tolist() == np.sum([PARTS[s] for s in "abc"], axis=0).tolist()


def test_seeds_recovered_in_one_sum_open_no_other():
    """All of d's masks of the first sum are known at its end; those of the second are different."""
    given = here()
    _, shared = recovered(settled(given, list("abc")), given.turn("hide"), list("abc"))
    again = Coordinator(given.sites, "sum 2")
    again.hide()
    assert set(shared.values()) == {mask_of(given, s, "d") for s in "abc"}
    assert not {mask_of(again, s, "d") for s in "abc"} & set(shared.values())
    assert like_noise(np.frombuffer(b"".join(shared.values()) + secrets.token_bytes(2000), np.uint8))
    for seed in shared.values():
        assert (without(again.hidden["d"], [], [seed]) > 2**40).all()


# -- one statistic, two sums


class Sly(Coordinator):
    """Uses one name throughout, as for waves of one request, which may lose sites on the way."""

    waves = 0

    def send(self, site, turn, **envelope):
        Sly.waves += 1
        wave = {"task": "a model", "whole": "the question", "question": f"wave {Sly.waves}"}
        return super().send(site, turn, **{**wave, **envelope})


def read_sum(given, survivors):
    """Removes all remaining masks, as a coordinator does."""
    opened = {site: given.open(site, survivors) for site in survivors}
    own, shared = recovered(opened, given.turn("hide"), survivors)
    plus = [*own.values(), *(seed for pair, seed in shared.items() if adds_mask(*pair))]
    minus = [seed for pair, seed in shared.items() if not adds_mask(*pair)]
    total = sum(words(given.hidden[site]) for site in survivors)
    mask(total, minus, plus)
    return total.tolist()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("change", [{"sum": "sum 2"}, {"neighbours": 2}, {"width": 32}])
def test_a_second_sum_without_one_site_is_refused(change, restarted):
    """In the same request a coordinator claims that d was lost: the difference of the two sums would be d's part."""
    parts = [(i, 10 * i) for i in range(1, 6)]
    sites = masked_sites([of(*part, dtype=np.int64) for part in parts], MaskedPart(neighbours=2))
    for site in sites.values():
        site.outbox = Gate(Policy())
    whole, fewer = list("abcde"), list("abce")
    first = Sly(sites)
    first.hide()
    first.confirm()
    assert read_sum(first, whole) == np.sum(parts, axis=0).tolist()
    second = Sly(sites, **change)
    second.hide()
    for site in fewer:
        if restarted:
            sites[site] = sites[site].rebuilt()
        assert "has settled whose parts" in refused(second.confirm(site, survivors=fewer))
    again = Sly(sites, **change)  # over the same sites it is the same sum
    again.hide()
    again.confirm()
    if "width" not in change:
        assert read_sum(again, whole) == np.sum(parts, axis=0).tolist()


# -- lists that differ between sites


def test_lists_that_differ_between_sites_are_refused():
    """a and b get a list of all four, c and d another: nobody gives a share."""
    given = here([(i,) for i in range(6)])
    given.hide()
    everyone, fewer = list("abcdef"), list("abcde")
    given.confirm("a", "b", "c", survivors=everyone)
    given.confirm("d", "e", survivors=fewer)
    for site, survivors in (("a", everyone), ("b", everyone), ("d", fewer), ("e", fewer)):
        assert "has not confirmed this list" in refused(given.open(site, survivors))
        alike = {
            n: c for n, c in given.opening(site, survivors).codes.items() if n in ("abc" if site in "abc" else "de")
        }
        assert "too few sites have confirmed" in refused(given.open(site, survivors, codes=alike))


def test_a_list_must_be_confirmed_by_two_thirds():
    given = here([(i,) for i in range(6)])
    given.hide()
    given.confirm("a", "b", "c")
    assert threshold(6) == 4
    for site in "abc":
        assert "too few sites have confirmed" in refused(given.open(site))
    given.confirm("d")
    assert isinstance(given.open("a"), Opened)
    assert "has not confirmed whose parts" in refused(given.open("e"))  # not by itself


LISTS = {
    "none": ([], "sites of the sum"),
    "others only": (list("bcd"), "sites of the sum"),
    "one twice": (list("abcdd"), "sites of the sum"),
    "a stranger": (list("abcx"), "sites of the sum"),
    "another order": (list("bacd"), "sites of the sum"),
    "two": (list("ab"), "two thirds of its sites"),
    "one": (list("a"), "two thirds of its sites"),
}


@pytest.mark.parametrize("case", LISTS)
@pytest.mark.parametrize("what", ["confirm", "open"])
def test_invalid_lists_are_refused(case, what):
    given = here()
    given.hide()
    survivors, text = LISTS[case]
    assert text in refused(given.send("a", given.turn(what, survivors=survivors), over=survivors))
    given.confirm()
    assert isinstance(given.open("a"), Opened)


def test_fewer_than_three_parts_are_refused():
    """Of three, all must stay: with two, each would have the other's part."""
    given = here(list(PARTS.values())[:3])
    given.hide("a", "b")
    assert "two thirds of its sites, and of 3" in refused(given.confirm())


def test_steps_out_of_order():
    given = here()
    assert "has hidden no part" in refused(given.send("a", given.turn("confirm", survivors=list("abcd"))))
    assert "has hidden no part" in refused(given.send("a", given.turn("open", survivors=list("abcd"))))
    given.hide()
    assert "has not confirmed whose parts" in refused(given.open("a"))
    given.confirm("b", "c", "d")
    assert "has not confirmed whose parts" in refused(given.open("a"))


# -- boxes that were changed or belong elsewhere


def ready(**settings):
    given = here(**settings)
    given.hide()
    given.confirm()
    return given


def test_changed_or_foreign_codes_are_refused():
    given = ready()
    other = Coordinator(given.sites, "sum 2")
    other.hide()
    other.confirm()
    turn = given.opening("a")
    wrong = {
        "changed": {**turn.codes, "b": bytes([turn.codes["b"][0] ^ 1]) + turn.codes["b"][1:]},
        "cut": {**turn.codes, "b": turn.codes["b"][:-1]},
        "empty": {**turn.codes, "b": b""},
        "of another sum": {**turn.codes, "b": other.codes["b"]["a"]},
        "for another site": {**turn.codes, "b": given.codes["b"]["c"]},
        "of another site": {**turn.codes, "b": given.codes["c"]["a"]},
        "the site's own": {**turn.codes, "b": given.codes["a"]["b"]},
    }
    for codes in wrong.values():
        assert "has not confirmed this list" in refused(given.open("a", codes=codes))
    for codes in ({**turn.codes, "a": b""}, {**turn.codes, "x": b""}):
        assert "not those of the sites in the sum" in refused(given.open("a", codes=codes))
    assert isinstance(given.open("a"), Opened)


def test_changed_or_foreign_boxes_are_refused():
    given = ready()
    other = Coordinator(given.sites, "sum 2")
    other.hide()
    turn, box = given.opening("b"), given.hidden["d"].boxes["b"]
    wrong = [box[:i] + bytes([box[i] ^ 1]) + box[i + 1 :] for i in range(0, len(box), 5)]
    wrong += [box[:-1], box + b"\0", box[:12], b""]
    wrong += [other.hidden["d"].boxes["b"], given.hidden["d"].boxes["c"], given.hidden["c"].boxes["b"]]
    wrong += [given.hidden["b"].boxes["d"]]  # back to its sender
    for changed in wrong:
        assert "changed on its way, or belongs elsewhere" in refused(
            given.open("b", boxes={**turn.boxes, "d": changed})
        )
    for boxes in ({}, {**turn.boxes, "b": box}, {**turn.boxes, "a": box}, {"d": box}):
        assert "not those of the sites in the sum" in refused(given.open("b", boxes=boxes))
    assert isinstance(given.open("b"), Opened)


def test_a_replayed_sum_gives_the_same_bytes_and_no_more():
    given = ready()
    first = {site: wire.encode(given.open(site)) for site in "abcd"}
    hidden = {site: wire.encode(reply) for site, reply in given.hidden.items()}
    for site in "abcd":
        given.sites[site] = given.sites[site].rebuilt()
    given.hide()
    given.confirm()
    assert {site: wire.encode(reply) for site, reply in given.hidden.items()} == hidden
    assert {site: wire.encode(given.open(site)) for site in "abcd"} == first


def test_a_new_sum_accepts_no_old_replies():
    """Replies of the first sum, replayed in the second: the coordinator accepts none of them."""
    old = []

    class Replaying(InProcess):
        def deliver(self, messages, verb, timeout):
            answers = list(super().deliver(messages, verb, timeout))
            yield from list(old)
            yield from answers
            old.extend(answers)

    fed = masked_of([of(1), of(20), of(300)], Replaying)
    assert [fed.total(Number()).x.tolist() for _ in range(3)] == [[321]] * 3


def test_a_federation_in_which_messages_are_changed():
    class Tampering(InProcess):
        def deliver(self, messages, verb, timeout):
            for site, data in messages.items():
                envelope = wire.decode(data, Envelope)
                turn = wire.decode(envelope.step.body, Turn)
                if site == "c" and turn.what == "open":
                    boxes = {n: box[:-1] + bytes([box[-1] ^ 128]) for n, box in turn.boxes.items()}
                    step = SumStep("masked", wire.encode(msgspec.structs.replace(turn, boxes=boxes)))
                    messages[site] = wire.encode(msgspec.structs.replace(envelope, step=step))
            yield from super().deliver(messages, verb, timeout)

    with pytest.raises(RefusedError, match="site 'c' refused Number: what another site sealed was changed"):
        masked_of([of(i) for i in range(4)], Tampering, quorum=3).total(Number())


# -- keys


def test_keys_stay():
    given = here()
    ready_ = [given.send("a", Turn(what="key")) for _ in range(2)]
    given.sites["a"] = given.sites["a"].rebuilt()
    ready_.append(given.send("a", Turn(what="key")))
    assert ready_ == [Ready(key=public_key(given.sites["a"].store))] * 3
    assert len({public_key(site.store) for site in given.sites.values()}) == 4


@pytest.mark.parametrize("restarted", [False, True])
def test_a_site_keeps_its_key_through_a_study(restarted):
    """A coordinator that sends true keys first and its own later, or one site's key under another's name."""
    given = here()
    given.hide("a")
    if restarted:
        given.sites["a"] = given.sites["a"].rebuilt()
    spy = public_key(masked_sites([of(0)])["a"].store)
    text = "another key than before in this study"
    assert text in refused(Coordinator(given.sites, "sum 2", keys={"b": spy}).hide("a"))
    taken = Coordinator(
        {"a": given.sites["a"], "c": given.sites["c"], "d": given.sites["d"], "x": given.sites["b"]}, "3"
    )
    assert text in refused(taken.hide("a"))
    assert isinstance(Coordinator(given.sites, "sum 4").hide("a"), Hidden)
    assert isinstance(Coordinator(given.sites, study="another", keys={"b": spy}).hide("a"), Hidden)


def test_a_coordinator_that_invents_sites():
    """Without a roster it can impersonate all other sites and reads the part; with one it is refused."""
    given = here()
    spies = masked_sites([of(0, 0, 0, 0)] * 4)
    invented = Coordinator({**spies, "a": given.sites["a"]})
    opened = settled(invented, list("abcd"))
    own, _ = recovered(opened, invented.turn("hide"), list("abcd"))
    others = [mask_of(invented, s, "a") for s in "bcd"]
    assert without(invented.hidden["a"], [own["a"], *others]).tolist() == list(PARTS["a"])

    roster = {name: public_key(site.store) for name, site in here().sites.items()}
    victim = masked_sites([of(*PARTS["a"])], MaskedPart(roster))["a"]
    refusing = Coordinator({**spies, "a": victim})
    roster["a"] = public_key(victim.store)
    assert "not the one known here" in refused(refusing.hide("a"))


def test_a_roster():
    given = here()
    roster = {name: public_key(site.store) for name, site in given.sites.items()}
    for site in given.sites.values():
        site.secure_sum = MaskedPart(roster)
    opened = settled(given, list("abcd"))
    assert all(isinstance(reply, Opened) for reply in opened.values())
    stranger = Coordinator({**given.sites, "x": masked_sites([of(0)])["a"]}, "sum 2")
    assert "not the one known here" in refused(stranger.hide("a"))


# -- sites that collude with the coordinator


def shares_of(given, holders, victim):
    """The shares of all of another's seeds that some sites have, from boxes and from keys."""
    turn = given.turn("hide")
    names = [member.site for member in turn.members]
    place, rows = names.index(victim), list(range(len(given.hidden[victim].prints) // KEY))
    found = {}
    for site in holders:
        share = here_at(given, site).share_of(place, given.hidden[victim].boxes.get(site), rows)
        found[names.index(site)] = np.frombuffer(share, np.uint8)
    return found


def test_fewer_than_two_thirds_cannot_open_by_themselves():
    """Three of six, threshold four: their shares fit every seed, so no guess is better than another."""
    given = here([(i, 10 * i) for i in range(6)])
    given.hide()
    found = shares_of(given, "abc", "f")
    prints = given.hidden["f"].prints
    guesses = set()
    for guess in range(256):
        fourth = np.full(SEED * 6, guess, np.uint8)
        seed = shamir.join([*found, 3], np.stack([*found.values(), fourth]))[:SEED].tobytes()
        assert mask_key(given.turn("hide").about("study"), seed)[1] != prints[:KEY]
        guesses.add(seed)
    assert len(guesses) == 256
    assert all(len({seed[i] for seed in guesses}) == 256 for i in range(SEED))


def test_shares_that_follow_from_keys_are_for_one_sum():
    """A share that served two sums would tell, by those who open one, how the secrets of both differ."""
    sites = masked_sites([of(i) for i in range(6)])
    sums = [Coordinator(sites), Coordinator(sites, "sum 2"), Coordinator(sites, study="another")]
    for one in sums:
        one.hide()
    drawn = [shares_of(one, "abcdef", "f") for one in sums]
    assert [sorted(one.hidden["f"].boxes) for one in sums] == [list("cde")] * 3
    for place in range(6):
        assert len({one[place].tobytes() for one in drawn}) == 3
    assert len({share.tobytes() for share in drawn[0].values()}) == 6
    assert shares_of(sums[0], "ab", "c")[0].tobytes() != drawn[0][0].tobytes()


def test_two_thirds_together_can():
    """As docs/sums.md states: four of six that collude with the coordinator open a fifth's part, in any case."""
    given = here([(i, 10 * i) for i in range(6)])
    given.hide()
    found = shares_of(given, "abcd", "f")
    own, *shared = keys_of(given.turn("hide"), shamir.join(list(found), np.stack(list(found.values()))))
    assert without(given.hidden["f"], [own], shared).tolist() == [5, 50]


def split_by(given, colluders, k):
    """What a coordinator with some sites sees of a's part, once the sum is opened and nobody is lost."""
    opened = settled(given, list(given.sites))
    own, _ = recovered(dict(list(opened.items())[: threshold(len(opened))]), given.turn("hide"), list(given.sites))
    known = {s: mask_of(given, s, "a") for s in colluders}
    assert len(known) == k
    return without(given.hidden["a"], [own["a"], *known.values()])


def test_all_neighbours_of_a_site_together_learn_its_part():
    """On a circle with two neighbours each, two are enough; with four they are not, nor are all others."""
    values = [(i + 3, 10 * i) for i in range(6)]
    for neighbours in (2, 4, None):
        given = here(values, MaskedPart(neighbours=neighbours), neighbours=neighbours)
        turn = given.turn("hide")
        names = [member.site for member in turn.members]
        near = [names[i] for i in turn.neighbour_places("study")[0]]
        seen = split_by(given, near, len(near)).tolist()
        assert seen == [3, 0]
        fewer = here(values, MaskedPart(neighbours=neighbours), neighbours=neighbours)
        turn = fewer.turn("hide")
        near = [names[i] for i in turn.neighbour_places("study")[0]]
        seen = split_by(fewer, near[1:], len(near) - 1)
        assert (seen > 2**40).any()


def test_a_site_that_confirms_two_lists():
    """With six sites, two lists with four confirmations each need two sites that lie; one is not enough."""
    given = here([(i,) for i in range(6)])
    given.hide()
    one, two = list("abcdef"), list("abcde")
    given.confirm("a", "b", "e", survivors=one)
    forgetful = kept_by(given.sites["e"])
    del forgetful[next(key for key in forgetful if key.endswith("settled"))]
    other = Coordinator(given.sites, hidden=given.hidden)
    other.confirm("c", "d", "e", survivors=two)
    for at, site, survivors in ((given, "a", one), (other, "c", two)):
        assert "too few sites have confirmed" in refused(at.open(site, survivors))
