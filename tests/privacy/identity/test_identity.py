"""Matching rows without ids leaving their party; ambiguous ids are refused, by party and count."""

import hmac

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from helpers import column_studies
from helpers.column_studies import ID, Recorded, split, wide
from helpers.stores import kept_by
from hypothesis import given
from hypothesis import strategies as st

import silvan as sv
from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.message import Blob, Envelope
from silvan.federation.party import Party, derived_key
from silvan.federation.site import Site
from silvan.federation.store import MemoryStore, digest
from silvan.federation.transport import InProcess
from silvan.learners.in_one_place import joined, list_rows, row_key_of
from silvan.privacy.identity import identity
from silvan.privacy.identity.identity import (
    Introduce,
    RowDigests,
    all_digests,
    check_digests,
    common_digests,
    digest_ids,
    encrypt_words,
    find_digests,
    id_words,
    places_of,
    row_digests,
)
from silvan.privacy.identity.seal import pair_key, public_key, seal, secret_key
from silvan.privacy.identity.shared_key import DealKey, SealedKeys, TakeKey, deal_key, take_key


def known_as(*names):
    """The keys by which parties know each other, and the parties' stores."""
    stores = {name: MemoryStore() for name in names}
    return {name: public_key(store) for name, store in stores.items()}, stores


def federate(tables, *kind, **settings):
    """Matches ids in the default way."""
    return column_studies.federate(tables, *kind, **{"match": None, **settings})


def pair(ids, others, **settings):
    """Two parties with these ids, one column each."""
    left = pl.DataFrame({ID: ids, "a": np.arange(len(ids)), "label": np.arange(len(ids)) % 2}, strict=False)
    right = pl.DataFrame({ID: others, "b": np.arange(len(others))}, strict=False)
    return federate({"bank": left, "shop": right}, **settings)


# -- common rows


def test_common_rows():
    fed = pair([5, 3, 9, 1], [1, 2, 3, 4, 5])
    assert fed.rows == {"bank": 3, "shop": 3}
    assert str(fed.differences).count("they take no part") == 2
    part = joined(fed, fed.columns.common)
    assert sorted(zip(part.X[:, 0], part.X[:, 1], strict=True)) == [(0, 4), (1, 2), (3, 0)]


@pytest.mark.parametrize("match", ["keyed", "psi"])
def test_ways_of_matching_agree(match):
    tables = split(wide(), 3)
    tables["party 1"] = tables["party 1"][:150]
    fed = federate(tables, match=match)
    assert len(fed.columns.common) == 150
    assert (fed.columns.known is None) == (match == "psi")
    forest = sv.VerticalForest(n_estimators=3, max_depth=3).fit(fed).forest_
    assert forest == sv.PooledForest(n_estimators=3, max_depth=3).fit(fed).forest_
    assert forest == sv.VerticalForest(n_estimators=3, max_depth=3).fit(federate(tables, match="keyed")).forest_


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
def test_ids_that_libraries_store_differently(library):
    """Integers stored as floats, and text with blanks or composed characters, are the same ids."""
    left = library({ID: [1, 2, 3], "a": [1.0, 2.0, 3.0], "label": [0, 1, 0]})
    right = library({ID: [3.0, 2.0, 7.0], "b": [1, 2, 3]})
    assert federate({"bank": left, "shop": right}).rows["shop"] == 2
    left = library({ID: ["é", "b", "c"], "a": [1.0, 2.0, 3.0], "label": [0, 1, 0]})
    right = library({ID: ["é", " b ", "x"], "b": [1, 2, 3]})
    assert federate({"bank": left, "shop": right}).rows["shop"] == 2


# -- ambiguous ids


@pytest.mark.parametrize(
    ("own", "ids", "text"),
    [
        ([1, 2, 3, 4], [1, 2, 2, 2, 5], r"the id 'person' is not unique: 2 of 5 rows of party 'shop' repeat"),
        ([1, 2, 3, 4], [1, None, 3, None], r"the id 'person' is missing in 2 of 4 rows of party 'shop'"),
        (["a", "b"], ["a", "  "], "missing in 1 of 2 rows of party 'shop'"),
        ([1, 2, 3, 4], ["1", "2", "3"], r"different types: whole numbers at 'bank' \(4 rows\); text at 'shop' \(3"),
        ([1, 2, 3, 4], [1.5, 2.0], r"'person' of party 'shop' are neither whole numbers nor text in 2 rows"),
        ([1, 2, 3, 4], [True, False], r"'person' of party 'shop' are neither whole numbers nor text"),
        ([1, 2, 3, 4], [2.0**60, 1.0], r"neither whole numbers nor text"),
        ([1, 2, 3, 4], [7, 8], r"party 'shop' has no rows in common with party 'bank'"),
    ],
    ids=str,
)
def test_ids_that_match_no_rows_are_refused_by_party_and_count(own, ids, text):
    with pytest.raises(sv.AgreementError, match=text):
        pair(own, ids)


def test_an_id_is_never_quoted():
    name = "Zyzzyva-4711"
    for other in ([name, name, "x"], [name, None, "x"], [4711, 4712]):
        with pytest.raises(sv.AgreementError) as caught:
            pair([name, "x", "y"], other)
        assert "4711" not in str(caught.value)


def test_no_common_rows():
    frame = wide(n=30)
    tables = split(frame, 3)
    ids = frame[ID].to_list()
    for name, some in zip(tables, (ids[:20], ids[10:], ids[:10] + ids[20:]), strict=True):
        tables[name] = tables[name].filter(pl.col(ID).is_in(some))
    with pytest.raises(sv.AgreementError, match="no row is known to all of 'party 0', 'party 1', 'party 2'"):
        federate(tables)


MISFITS = {
    "no id": (lambda tables, frame: {"party 1": tables["party 1"].drop(ID)}, "party 'party 1' has no column 'person'"),
    "a column twice": (
        lambda tables, frame: {"party 1": tables["party 1"].join(frame.select(ID, "age"), on=ID)},
        "column 'age' is held by parties 'party 0' and 'party 1'",
    ),
    "two labels": (
        lambda tables, frame: {"party 1": tables["party 1"].join(frame.select(ID, "label"), on=ID)},
        "'label' is held by 'party 0', 'party 1'; exactly one",
    ),
    "no label": (
        lambda tables, frame: {"party 0": tables["party 0"].drop("label")},
        "no party holds the label 'label'",
    ),
    "no features": (
        lambda tables, frame: {"party 0": frame.select(ID, "label"), "party 1": frame.select(ID)},
        "no party has a feature besides ids",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_incompatible_tables(case):
    frame = wide(n=40)
    tables, (change, text) = split(frame, 2), MISFITS[case]
    changed = {**tables, **change(tables, frame)}
    with pytest.raises(sv.AgreementError, match=text):
        federate(changed)
    if case == "a column twice":
        assert federate(changed, exclude=["age"]).schema.names


def test_parties_without_a_label_only_score():
    tables = split(wide(n=40), 2)
    only_scored = federate({**tables, "party 0": tables["party 0"].drop("label")}, label=None)
    assert only_scored.label_holder is None
    for learner in (sv.VerticalForest(), sv.PooledForest(), sv.LocalForest()):
        with pytest.raises(sv.InputError, match="no party holds the label"):
            learner.fit(only_scored)


def test_a_schema_column_that_nobody_has():
    tables = split(wide(n=40), 2)
    schema = federate(tables).schema
    with pytest.raises(sv.AgreementError, match="no party has 'height'"):
        federate({name: t.drop("height", strict=False) for name, t in tables.items()}, schema=schema)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"tables": []}, "a dict of tables"),
        ({"tables": {1: wide(n=30), "1": wide(n=30)}}, "read alike"),
        ({"test": 1.0}, "test must be at least 0"),
        ({"random_state": -1}, "random_state must be"),
        ({"random_state": True}, "random_state must be"),
        ({"match": "names"}, "match must be 'keyed' or 'psi'"),
        ({"id": ""}, "id must be the name of a column"),
        ({"task": "sorting"}, "task must be"),
        ({"exclude": "age"}, "exclude must be a list"),
        ({"exclude": ["agee"]}, "'agee', which is not a column of any party"),
        ({"names": "hidden"}, "names must be 'coded' or 'shown'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_settings(settings, text):
    with pytest.raises(sv.InputError, match=text):
        federate(**{"tables": split(wide(n=30), 2), **settings})


# -- what is disclosed


def test_no_id_leaves_a_party():
    rng = np.random.default_rng(0)
    numbers = rng.integers(10**14, 10**15, 60)
    tables = {k: t.with_columns(pl.Series(ID, numbers)) for k, t in split(wide(n=60), 2).items()}
    fed = federate(tables, Recorded)
    sv.VerticalForest(n_estimators=2, max_depth=2).fit(fed).predict(fed)
    sent = b"".join(fed.transport.data)
    for number in numbers.tolist():
        assert str(number).encode() not in sent
        assert int(number).to_bytes(8, "little") not in sent
        assert int(number).to_bytes(8, "big") not in sent


def test_digests_need_the_key_and_hide_the_order():
    fed = federate(split(wide(n=50), 2), Recorded, match="keyed")
    replies = [
        wire.decode(e.body, identity.Introduction)
        for _, way, e in fed.transport.record
        if way == "sent" and e.kind == "Introduction"
    ]
    assert len(replies) == 2
    assert np.array_equal(replies[0].digests, replies[1].digests)  # whatever the order of their tables
    text = str(fed.party("party 0").frame[ID].to_list()[0])
    key, words = fed.party("party 1").key, digest_ids(derived_key(0, "parties"), "whole numbers", [text])
    [word] = encrypt_words(fed.party("party 1").key_for("digests of rows")[:32], words)
    assert word.tolist() in replies[0].digests.tolist()
    assert words[0].tolist() not in replies[0].digests.tolist()
    # every federation has its own key, whatever its seed
    other = federate(split(wide(n=50), 2))
    assert other.party("party 0").key != key
    assert not len(set(other.columns.common[:, 0].tolist()) & set(fed.columns.common[:, 0].tolist()))


def test_a_seed_repeats_samples_but_not_keys():
    tables = split(wide(n=80), 2)
    first, second = (federate(tables, Recorded, test=0.3) for _ in range(2))
    forests = [sv.VerticalForest(n_estimators=2, max_depth=3).fit(fed).forest_ for fed in (first, second)]
    assert forests[0] == forests[1]
    assert first.party("party 0").secret != second.party("party 0").secret
    for part in ("training", "test"):
        blobs = [list_rows(fed, getattr(fed.columns, part)) for fed in (first, second)]
        assert np.array_equal(blobs[0][0], blobs[1][0])  # the same rows in the same order
        assert blobs[0][1] == blobs[1][1]
    turned = {name: table.reverse() for name, table in tables.items()}
    again = federate({name: table.to_pandas() for name, table in turned.items()}, test=0.3)
    assert sv.VerticalForest(n_estimators=2, max_depth=3).fit(again).forest_ == forests[0]
    changed = {**tables, "party 0": tables["party 0"].with_columns(pl.col("age") + 1)}
    assert not np.array_equal(row_key_of(federate(changed, test=0.3)), row_key_of(first))
    assert not np.array_equal(row_key_of(federate(tables, test=0.3, random_state=1)), row_key_of(first))


def test_the_coordinator_cannot_read_the_key_it_carries():
    fed = federate(split(wide(n=40), 3), Recorded)
    keys = {fed.party(name).key for name in fed.sites}
    assert len(keys) == 1
    [key] = keys
    secrets = [value for name in fed.sites for value in kept_by(fed.party(name)).values() if len(value) == 32]
    assert key in secrets
    sent = b"".join(fed.transport.data)
    for secret in secrets:
        assert secret not in sent
    assert fed.agreement_rounds == 7
    assert federate(split(wide(n=40), 3), match="keyed").agreement_rounds == 4


def test_a_party_agrees_on_one_key():
    known, stores = known_as(*"abc")
    a, b, c = (Party(name, wide(n=20), id_column=ID, seals=known, store=stores[name]) for name in "abc")
    boxes = deal_key(a, DealKey(study="s", sites=["b", "c"])).boxes
    assert deal_key(a, DealKey(study="s", sites=["b", "c"])).boxes == boxes
    with pytest.raises(RefusedError, match="not agreed on a key yet"):
        _ = b.key
    with pytest.raises(RefusedError, match="changed on its way"):  # another party's box
        take_key(b, TakeKey(study="s", by="a", box=boxes["c"]))
    with pytest.raises(RefusedError, match="changed on its way"):  # another study's
        take_key(b, TakeKey(study="t", by="a", box=boxes["b"]))
    take_key(b, TakeKey(study="s", by="a", box=boxes["b"]))
    assert b.key == a.key
    assert b.rebuilt().key == a.key
    c.store.put("shared key", bytes(32))
    with pytest.raises(RefusedError, match="shared key for this study already"):
        take_key(c, TakeKey(study="s", by="a", box=boxes["c"]))


def test_a_key_is_shared_with_the_parties_on_the_roster_alone():
    known, stores = known_as(*"abc")
    a, b = (Party(name, wide(n=20), id_column=ID, seals=known, store=stores[name]) for name in "ab")
    for others in (["c", "x"], ["c", "a"]):
        with pytest.raises(RefusedError, match="shares its key with the others on its roster"):
            deal_key(a, DealKey(study="s", sites=others))
    assert a.store.get("shared key") is None
    box = seal(pair_key(secret_key(MemoryStore()), known["b"], b"shared key of s"), bytes(32))
    for dealer in ("a", "b", "x"):
        with pytest.raises(RefusedError):
            take_key(b, TakeKey(study="s", by=dealer, box=box))
    assert b.store.get("shared key") is None
    alone = Party("d", wide(n=20), id_column=ID)
    with pytest.raises(RefusedError, match="shares its key with the others on its roster"):
        deal_key(alone, DealKey(study="s", sites=["b"]))


def test_a_coordinator_that_swaps_keys_is_refused():
    """A box of the coordinator in place of the dealer's does not open: parties know each other's keys independently."""

    class Swapping(InProcess):
        def deliver(self, messages, verb, timeout):
            for site, data in super().deliver(messages, verb, timeout):
                envelope = wire.decode(data, Envelope)
                if envelope.kind == "SealedKeys":
                    other = self.local_sites["party 1"]
                    key = pair_key(secret_key(MemoryStore()), other.seals["party 1"], b"shared key of s")
                    body = wire.encode(SealedKeys(boxes={"party 1": seal(key, bytes(32))}))
                    data = wire.encode(msgspec.structs.replace(envelope, body=body))
                yield site, data

    with pytest.raises(sv.RefusedError, match="changed on its way"):
        federate(split(wide(n=40), 2), Swapping)


def test_horizontal_and_vertical_sites_do_not_mix():
    with pytest.raises(RefusedError, match="not a party"):
        identity.introduce(Site("here", wide(n=20)), Introduce())
    with pytest.raises(RefusedError, match="VerticalForest"):
        Party("here", wide(n=20), id_column=ID).part(sv.Schema.of(["age"]))
    fed = federate(split(wide(n=40), 2))
    with pytest.raises(sv.RefusedError, match="VerticalForest"):
        sv.HistogramForest(n_estimators=2).fit(fed)
    rows = sv.federate_rows({"a": wide(n=40).drop(ID)}, n_jobs=1)
    with pytest.raises(sv.InputError, match="a federation by columns is needed"):
        sv.VerticalForest().fit(rows)


# -- the test set


def drawn_part_of(tables, **settings):
    fed = federate(tables, test=0.3, **settings)
    return fed, fed.columns.test


def test_the_seed_determines_the_test_set():
    tables = split(wide(n=400), 2)
    fed = federate(tables, test=0.3)
    assert 80 < len(fed.columns.test) < 160
    assert fed.rows["party 0"] + len(fed.columns.test) == 400
    fewer = {name: t.filter(pl.col(ID) % 3 > 0) for name, t in tables.items()}
    some = federate(fewer, test=0.3)
    # whether a row is held out does not depend on others
    kept, others = (set(list_rows(f, f.columns.test)[1]) for f in (fed, some))
    assert others == {number for number in kept if number % 3 > 0}
    assert set(list_rows(*drawn_part_of(tables, random_state=1))[1]) != kept
    assert federate(split(wide(n=12), 2), test=0.999).rows["party 0"] >= 1


# -- lists of digests


@given(known=st.sets(st.integers(0, 40)), wanted=st.sets(st.integers(0, 40)))
def test_finding_digests(known, wanted):
    def listed(numbers):
        return np.array([(n // 3, n % 3) for n in sorted(numbers)], np.uint64).reshape(-1, 2)

    at = find_digests(listed(known), listed(wanted))
    assert at.tolist() == [sorted(known).index(n) if n in known else -1 for n in sorted(wanted)]
    if known & wanted:
        assert np.array_equal(common_digests({"a": listed(known), "b": listed(wanted)}), listed(known & wanted))
    if known | wanted:
        assert np.array_equal(all_digests({"a": listed(known), "b": listed(wanted)}), listed(known | wanted))


@pytest.mark.parametrize(
    "digests",
    [
        np.zeros((2, 2), np.uint64),
        np.array([[1, 2], [1, 2]], np.uint64),
        np.zeros((1, 3), np.uint64),
        np.zeros(2, np.uint64),
        np.zeros((1, 2), np.int64),
    ],
    ids=str,
)
def test_lists_of_digests_are_checked(digests):
    with pytest.raises(FormatError):
        check_digests(digests)
    data = wire.encode(RowDigests(digests))
    party = Party("p", wide(n=20), id_column=ID, store=MemoryStore())
    party.store.put(party.key_name, bytes(32))
    party.store.put(f"blob {digest(data)}", data)
    with pytest.raises(FormatError):
        places_of(party, Blob(digest(data)))


def test_a_list_that_names_a_row_twice_is_refused():
    """Whether the party has the row or not: a repeated one would count twice."""
    party = Party("p", wide(n=20), id_column=ID, store=MemoryStore())
    party.store.put(party.key_name, bytes(32))
    own, foreign = row_digests(party), np.array([[5, 1], [4, 2], [5, 3]], np.uint64)

    def places(*digests):
        data = wire.encode(RowDigests(np.concatenate(digests)))
        party.store.put(f"blob {digest(data)}", data)
        return places_of(party, Blob(digest(data)))

    assert places(own[[7, 3]], foreign, own[[11]]).tolist() == [7, 3, -1, -1, -1, 11]
    for twice in ((own, own[:1]), (own, foreign, foreign[:1])):
        with pytest.raises(FormatError):
            places(*twice)


def test_digests_of_rows_are_encrypted_by_the_shared_key():
    """The same rows have other digests under another key, and the same sampling words under the same seed."""
    parties = [Party("p", wide(n=20), id_column=ID, seed=1, store=MemoryStore()) for _ in range(2)]
    for i, party in enumerate(parties):
        party.store.put(party.key_name, bytes([i] * 32))
    one, other = map(row_digests, parties)
    assert not np.isin(one, other).any()
    assert np.array_equal(*map(id_words, parties))
    cipher = Cipher(AES256(parties[0].key_for("digests of rows")[:32]), ECB())  # noqa: S305
    block = cipher.decryptor().update(one.astype(">u8").tobytes())
    key = derived_key(1, "parties")
    assert block == b"".join(hmac.digest(key, f"whole numbers\0{i}".encode(), "sha256")[:16] for i in wide(n=20)[ID])


def test_digests_are_sent_in_ascending_order():
    with pytest.raises(FormatError, match="must rise"):
        check_digests(np.array([[2, 0], [1, 0]], np.uint64))


@pytest.mark.parametrize("size", [0, 1, 32, 63, 64, 65, 200])
def test_digests_are_hmac(size):
    key, texts = bytes(range(size)), ["", "7", "Ä" * 90]
    expected = [hmac.digest(key, f"text\0{text}".encode(), "sha256")[:16] for text in texts]
    assert digest_ids(key, "text", texts).astype(">u8").tobytes() == b"".join(expected)
