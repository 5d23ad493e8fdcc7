"""Private set intersection finds the common ids, reveals no others, and refuses all other requests."""

import itertools

import numpy as np
import polars as pl
import pytest
from helpers.column_studies import ID, Recorded, federate, split, wide
from helpers.studies import Stop, stopping

import silvan as sv
from silvan.federation import wire
from silvan.federation.party import Party
from silvan.privacy.identity import psi
from silvan.privacy.identity.curve25519 import POINT, hash_to_points
from silvan.privacy.identity.identity import row_digests
from silvan.privacy.identity.seal import seal, unseal

HIDDEN = "hidden ids"


def federate_ids(*ids, kind=Recorded, **settings):
    """Parties with these ids; the first has the label."""
    tables = {}
    for i, own in enumerate(ids):
        values = np.arange(len(own)) % 2
        tables[f"p{i}"] = pl.DataFrame({ID: own, f"x{i}": values, **({} if i else {"label": values})})
    return federate(tables, kind, **settings)


def digests(fed, kind, ids):
    party = fed.party("p0")
    assert party.ids.kind == kind
    known = dict(zip(party.ids.texts, row_digests(party), strict=True))
    return {known[str(one)].tobytes() for one in ids}


def found(fed):
    return {row.tobytes() for row in fed.columns.common}


# -- the result


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["whole numbers", "text"])
def test_random_sets(seed, kind):
    """The common ids, as plain sets give them, for any number of parties."""
    rng = np.random.default_rng(seed)
    universe = rng.permutation(1000)[:80] - 300
    sets = [universe[rng.random(80) < share].tolist() for share in (0.7, 0.9, 0.6)[: 2 + seed % 2]]
    if kind == "text":
        sets = [[f"Ä {i}" for i in own] for own in sets]
    fed = federate_ids(*(rng.permutation(own).tolist() for own in sets))
    common = set.intersection(*map(set, sets))
    assert 10 < len(common) < len(sets[0])
    assert found(fed) == digests(fed, kind, common)
    shared = [
        wire.decode(e.body, psi.Common).shared
        for _, way, e in fed.transport.record
        if (way, e.kind) == ("sent", "Common")
    ]
    assert shared == [{f"p{i}": len({*sets[0]} & {*own}) for i, own in enumerate(sets) if i}]


@pytest.mark.parametrize("others", [[7], [7, 8, 9], range(1, 8), range(2000)], ids=len)
def test_few_or_all_in_common(others):
    fed = federate_ids(range(1, 8), list(others))
    assert found(fed) == digests(fed, "whole numbers", {*range(1, 8)} & {*others})


def test_none_in_common():
    for others, said in (
        ([[3, 4]], "'p1' has no rows in common with party 'p0'"),
        ([[1, 3], [2, 4]], "no row is known to all"),
    ):
        with pytest.raises(sv.AgreementError, match=said):
            federate_ids([1, 2], *others)


def test_a_single_party_keeps_its_rows():
    assert len(federate_ids([1, 2, 3]).columns.common) == 3


def test_psi_is_the_default():
    kinds = {e.kind for *_, e in federate_ids([1, 2], [2, 1]).transport.record}
    assert {"HideIds", "HideTwice", "Intersect"} <= kinds
    assert not {"HideIds"} & {e.kind for *_, e in federate_ids([1, 2], [2, 1], match="keyed").transport.record}


# -- what leaves


def test_private_set_intersection_reveals_no_other_rows():
    tables = split(wide(), 3)
    tables["party 2"] = tables["party 2"][:60]
    for cold in (False, True):
        fed = federate(tables, Recorded, match="psi", cold=cold)
        assert fed.rows["party 0"] == 60
        known = {row.tobytes() for row in fed.columns.common}
        everything = b"".join(fed.transport.data)
        for name, table in tables.items():
            own = row_digests(fed.party(name))
            assert len(own) == len(table)
            shown = sum(row.astype(">u8").tobytes() in everything or row.tobytes() in everything for row in own)
            assert shown <= len(known), name
        assert fed.agreement_rounds == 7
    with pytest.raises(sv.InputError, match="incomplete=True needs match='keyed'"):
        sv.VerticalForest(n_estimators=2).fit(fed).predict(fed, incomplete=True)


def parts_of(fed):
    """What parties sealed: the label holder's points, and the others' points and replies."""
    key = fed.party("p0").key_for
    by_kind = {}
    for site, way, envelope in fed.transport.record:
        if way == "sent":
            by_kind[site, envelope.kind] = envelope.body
    first = wire.decode(by_kind["p0", "HiddenIds"], psi.HiddenIds)
    points = unseal(key(HIDDEN), first.request)
    twice = wire.decode(by_kind["p1", "TwiceHidden"], psi.TwiceHidden)
    setup = unseal(key("ids hidden by p1"), twice.setup)
    return points, setup, unseal(key("hidden twice by p1"), twice.response)


def chunks(data, size=POINT):
    return [data[i : i + size] for i in range(0, len(data), size)]


def test_no_id_and_no_point_of_an_id_leaves():
    ids = np.random.default_rng(0).integers(10**14, 10**15, 90).tolist()
    fed = federate_ids(ids[:60], ids[30:])
    sent = b"".join(fed.transport.data)
    points, setup, response = parts_of(fed)
    key = fed.party("p0").key_for("points of ids")
    plain = hash_to_points(key, [b"whole numbers\0%d" % i for i in ids])
    for secret in [*plain, *chunks(points), *chunks(setup), *chunks(response, 16)]:
        assert secret not in sent
        assert secret[:8] not in sent
    for number in ids:
        assert str(number).encode() not in sent
        assert number.to_bytes(8, "little") not in sent
    # and with the parties' key one sees points that lead to no id
    assert not {*plain} & {*chunks(points), *chunks(setup)}
    assert not {point[:16] for point in plain} & {*chunks(response, 16)}
    assert not {*chunks(points)} & {*chunks(setup)}
    assert chunks(setup) == sorted(chunks(setup))


def test_points_differ_between_studies_and_hide_the_order():
    ids = list(range(50))
    one, two, turned = (federate_ids(own, ids) for own in (ids, ids, ids[::-1]))
    seen = [{*chunks(parts_of(fed)[0]), *chunks(parts_of(fed)[1])} for fed in (one, two, turned)]
    assert not any(a & b for a, b in itertools.combinations(seen, 2))
    party = one.party("p0")
    table = pl.DataFrame({ID: ids[::-1], "x0": 0})
    other = Party("p0", table, party.settings, id_column=ID, store=party.store, seed=party.seed)
    assert psi.hide_ids(other, psi.HideIds()) == psi.hide_ids(party, psi.HideIds())


# -- restarts


@pytest.mark.parametrize("after", [5, 6, 7])
def test_matching_resumes_after_a_restart(after, tmp_path):
    """Stopped after the points, after they were hidden twice, after they were compared."""
    journal = str(tmp_path / "journal")
    with pytest.raises(Stop):
        federate_ids([1, 2, 3, 4], [3, 4, 5], kind=stopping(after), journal=journal)
    fed = federate_ids([1, 2, 3, 4], [3, 4, 5], journal=journal)
    assert found(fed) == digests(fed, "whole numbers", [3, 4])
    asked = [e.kind for _, way, e in fed.transport.record if way == "received"]
    assert [kind for kind in asked if kind in ("HideIds", "HideTwice", "Intersect")] == ["HideTwice", "Intersect"][
        after - 5 :
    ]


def test_a_restarted_party_replies_the_same():
    fed = federate_ids([1, 2, 3, 4], [3, 4, 5])
    party = fed.party("p0")
    assert psi.hide_ids(party.rebuilt(), psi.HideIds()) == psi.hide_ids(party, psi.HideIds())


# -- refused requests


def asked_twice(fed, data):
    return fed.ask(psi.HideTwice(request=fed.blob(data)), to=["p1"])


def sealed(fed, points):
    return seal(fed.party("p0").key_for(HIDDEN), points)


def test_only_sealed_ids_are_hidden_and_only_once():
    """Otherwise a coordinator could have any id hidden, and look for it among those of the party."""
    fed = federate_ids([1, 2, 3], [2, 3, 4], match="keyed")
    points = b"".join(hash_to_points(b"key", [b"a", b"b", b"c"]))
    with pytest.raises(sv.RefusedError, match="changed on its way"):
        asked_twice(fed, b"points of ids that somebody guessed")
    with pytest.raises(sv.SiteError, match="could not read"):
        asked_twice(fed, sealed(fed, points[:-1]))
    answer = asked_twice(fed, sealed(fed, points))["p1"]
    assert asked_twice(fed, sealed(fed, points))["p1"] == answer
    others = sealed(fed, points[32:] + points[:32])
    with pytest.raises(sv.RefusedError, match="in another form"):
        asked_twice(fed, others)
    fed.task = "another"  # which is a protocol of its own
    with pytest.raises(sv.RefusedError, match="compared its ids with others already"):
        asked_twice(fed, others)


@pytest.mark.parametrize("point", [0, 1, 2**255 - 20, 2**255 - 19])
def test_points_of_small_order_are_malformed(point):
    """They become zero under any secret, and would be found where there is another of them."""
    fed = federate_ids([1, 2, 3], [2, 3, 4], match="keyed")
    points = b"".join(hash_to_points(b"key", [b"a", b"b"])) + point.to_bytes(POINT, "little")
    with pytest.raises(sv.SiteError, match="could not read"):
        asked_twice(fed, sealed(fed, points))


def compare(fed, setup, response, names=("p1",)):
    """Makes the label holder compare invented replies of other parties."""
    key = fed.party("p0").key_for
    request = psi.Intersect(
        setups={name: fed.blob(seal(key(f"ids hidden by {name}"), setup)) for name in names},
        responses={name: fed.blob(seal(key(f"hidden twice by {name}"), response)) for name in names},
    )
    return fed.ask(request, to=["p0"])


def test_malformed_replies_are_refused():
    fed = federate_ids([1, 2, 3], [2, 3, 4], match="keyed")
    setup = b"".join(hash_to_points(b"key", [b"a", b"b"]))
    for bad, response in (
        (setup[:-1], bytes(48)),
        (b"", bytes(48)),
        (setup + bytes(32), bytes(48)),
        (setup, bytes(32)),
        (setup, bytes(47)),
        (setup, b""),
    ):
        with pytest.raises(sv.SiteError, match="could not read"):
            compare(fed, bad, response)
    key = fed.party("p0").key_for("hidden twice by p1")
    blob = fed.blob(seal(key, setup))  # one in place of the other
    with pytest.raises(sv.RefusedError, match="changed on its way"):
        fed.ask(psi.Intersect(setups={"p1": blob}, responses={"p1": blob}), to=["p0"])
    assert compare(fed, setup, bytes(48))["p0"].shared == {"p1": 0}
    with pytest.raises(sv.RefusedError, match="in another form"):
        compare(fed, setup[:32], bytes(48))
    fed.task = "another"
    with pytest.raises(sv.RefusedError, match="compared its ids with others already"):
        compare(fed, setup[:32], bytes(48))


def test_ids_are_compared_with_all_parties():
    """Otherwise the coordinator would learn which rows two parties have and a third does not."""
    fed = federate_ids([1, 2, 3], [2, 3, 4], [3], match="keyed")
    setup = b"".join(hash_to_points(b"key", [b"a", b"b"]))
    for names in (["p1"], [], ["p1", "p2", "p3"], ["p0", "p1", "p2"]):
        with pytest.raises(sv.RefusedError, match="all the parties that it knows"):
            compare(fed, setup, bytes(48), names)
    assert len(compare(fed, setup, bytes(48), ["p1", "p2"])["p0"].digests) == 0


def test_ambiguous_ids_are_not_hidden():
    fed = federate_ids([1, 2, 3], [2, 3, 4], match="keyed")
    fed.party("p1").ids = fed.party("p1").ids._replace(repeated=1)
    with pytest.raises(sv.RefusedError, match="ids are not unique"):
        fed.ask(psi.HideIds(), to=["p1"])
