"""Federations by columns: parties hold different columns of the same rows, one holds the label.

Before training the parties' rows are aligned (``privacy/identity/identity.py``) and their columns described, by number
(``coded_names.py``) and using only common rows. Features are in the order of the parties, then in that of each party's
table, so a party's features are contiguous.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import numpy as np

from silvan.algorithms.vertical.coded_names import code_features, code_label
from silvan.data.encode import describe_label, encode_features, encode_label, infer_features, label_column
from silvan.data.schema import Feature, Label, Schema, Task
from silvan.errors import AgreementError, FormatError, InputError, RefusedError, SchemaError, reject
from silvan.federation import wire
from silvan.federation.agreement import Columns, Differences
from silvan.federation.describe import FLOOR, check_classes
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Derived, Fixed, Reply
from silvan.federation.party import KEY_BYTES, Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import CacheKey
from silvan.forest.forest import Forest
from silvan.privacy.aggregation.counters import offsets
from silvan.privacy.identity.identity import Introduction, RowDigests, id_words, places_of, rising_order
from silvan.privacy.identity.seal import LABEL_HOLDER, seal, unseal


def row_words(party: Party, rows: Blob) -> np.ndarray:
    """Return the sampling words of rows, which follow from their IDs: uint64 (rows, 2)."""
    places = places_of(party, rows)
    if (places < 0).any():
        raise RefusedError("the party lacks some of the rows")
    words: np.ndarray = id_words(party).take(places, axis=0)
    return words


def hold_out(party: Party, rows: Blob, share: float) -> np.ndarray:
    """Choose the test rows by a keyed hash of the ID, independently of other rows: bool (rows,)."""
    reject(not 0 <= share < 1, "the share of rows to keep is not possible")
    held: np.ndarray = row_words(party, rows)[:, 1] < np.uint64(min(int(share * 2.0**64), 2**64 - 1))
    return held & ~held.all()  # some training rows must remain


def sample_rows(party: Party, schema: Schema, rows: Blob) -> tuple[bytes, np.ndarray]:
    """Return the key for sampling rows, sealed for all parties, and the order of rows."""
    words = row_words(party, rows)
    order = rising_order(words)  # the same in every federation, and different from the key of the digests
    key = _key_of_draws(party, schema, places_of(party, rows)[order], words[order])
    shuffled = order[np.argsort(offsets(hmac.digest(key, b"order of rows", "sha256"), len(order)), kind="stable")]
    return seal(party.key_for("row draws"), key), shuffled


def _key_of_draws(party: Party, schema: Schema, places: np.ndarray, words: np.ndarray) -> bytes:
    if party.seed is None:
        return party.key_for("rows of trees")[:KEY_BYTES]
    frame = party.rows_at(places)
    X = encode_features(frame, schema)
    X[np.isnan(X)] = np.nan  # one fixed bit pattern for NaN
    content = hashlib.sha256(words.tobytes())
    content.update(X.tobytes())
    content.update(encode_label(frame, schema).tobytes())
    return hmac.digest(content.digest(), f"rows of trees {party.seed}".encode(), "sha256")


def row_draws(party: Party, draws: bytes, rows: Blob) -> tuple[np.ndarray, np.ndarray]:
    """Return the key for sampling rows, and each row's sampling word: uint64 (2,) and (rows,)."""
    key = unseal(party.key_for("row draws"), draws, LABEL_HOLDER)
    reject(len(key) != KEY_BYTES, "not a key for row samples")
    return np.frombuffer(key[:16], "<u8").astype(np.uint64), row_words(party, rows)[:, 0].copy()


# -- messages


class ColumnKinds(Reply, frozen=True, kw_only=True):
    """The types of a party's columns, by number, its label if it has it, and from one party the row samples."""

    features: list[Feature]
    label: Label | None
    held_out: bytes = b""  # one bit per row: whether it is a test row
    draws: bytes = b""  # the key by which trees sample rows, sealed for the parties
    order: np.ndarray | None = None  # the order of the common rows


class DescribeColumns(Ask[ColumnKinds], frozen=True, kw_only=True):
    """Kinds of the columns, and for each the number of categories with at least ten of the common rows."""

    rows: Derived[Blob]
    task: Fixed[Task | None] = None
    test: Fixed[float | None] = None  # share of the rows that become test rows, for the one party that chooses them

    def describe(self, reply: Any = None) -> str:
        """Describe the request, or the reply."""
        drawn = (
            ""
            if self.test is None
            else "; which rows are held out for evaluation, their order, and a sealed key of draws"
        )
        named = reply is not None and any(": column " not in feature.name for feature in reply.features)
        shown = "; names of columns and categories" if named else ""
        return f"kinds of the columns, how many common categories and how many classes there are{shown}{drawn}"


# -- at a party


@answers(DescribeColumns)
def describe_columns(site: Site, request: DescribeColumns) -> ColumnKinds:
    """Describe the party's columns, using the common rows."""
    party = party_of(site)
    features, label = _kinds(party, request)
    held_out, draws, order = b"", b"", None
    if request.test is not None:
        held_out = np.packbits(hold_out(party, request.rows, request.test)).tobytes()
        if label is not None:
            draws, order = sample_rows(party, Schema(features, label), request.rows)
    return ColumnKinds(
        features=code_features(party, features),
        label=None if label is None else code_label(party, label),
        held_out=held_out,
        draws=draws,
        order=order,
    )


def _kinds(party: Party, request: DescribeColumns) -> tuple[tuple[Feature, ...], Label | None]:
    """Return the types of the party's columns, from the given schema or from the common rows."""
    if party.given is not None:
        own = tuple(feature for feature in party.given.features if feature.name in party.columns)
        return own, party.given.label if party.has_label else None
    frame = party.rows_at(places_of(party, request.rows))
    for name, complaint in party.table.refused.items():
        if name != party.id_column:
            raise SchemaError(complaint)
    features = infer_features(frame, {party.id_column, party.label}, min_category_rows=FLOOR, kinds=party.kinds)
    if not party.has_label:
        return tuple(features), None
    label = describe_label(label_column(frame, party.label), party.label, request.task)
    check_classes(label.classes or (), len(frame))
    return tuple(features), label


def encode_rows(party: Party, schema: Schema, rows: Blob) -> np.ndarray:
    """Encode a party's columns of some rows; all values of a row that it lacks are missing."""

    def encode() -> np.ndarray:
        places = places_of(party, rows)
        there = np.flatnonzero(places >= 0)
        X = np.full((len(places), len(schema.features)), np.nan, np.float32)
        if len(there):
            X[there] = encode_features(party.rows_at(places[there], schema), schema)
        return X

    return party.cache.once(CacheKey[np.ndarray]("columns", schema.hash, rows.hash), encode)


def encode_labels(party: Party, label: Label, rows: Blob) -> np.ndarray:
    """Encode the label of some rows, which the party must have."""
    if not party.has_label:
        raise RefusedError("the party does not hold the label")
    schema = Schema((), label)

    def encode() -> np.ndarray:
        places = places_of(party, rows)
        if (places < 0).any():
            raise RefusedError("the party lacks some of the rows")
        return encode_label(party.rows_at(places, schema), schema)

    return party.cache.once(CacheKey[np.ndarray]("labels", schema.hash, rows.hash), encode)


# -- at the coordinator


def columns_of(federation: Federation) -> Columns:
    """Return which party holds which columns; raise ``InputError`` for a federation by rows."""
    if federation.columns is None:
        raise InputError("a federation by columns is needed (see federate_columns), got one by rows")
    return federation.columns


def label_holder_of(columns: Columns) -> str:
    """Return the party that holds the label; raise ``InputError`` if none does."""
    if columns.label_holder is None:
        raise InputError("no party holds the label, so there is nothing to learn; these rows can only be scored")
    return columns.label_holder


def own_columns_blob(federation: Federation, columns: Columns, schema: Schema, party: str) -> Blob:
    """Return a reference to the schema of one party's columns, without the classes of the label."""
    own = columns.owners[party]
    mine = Schema(schema.features[own.start : own.stop], Label(schema.label.name))
    return federation.blob(mine.to_json().encode())


def rows_blob(federation: Federation, digests: np.ndarray) -> Blob:
    """Return a reference to rows, for requests."""
    return federation.blob(wire.encode(RowDigests(digests)))


def owner_of(
    introductions: dict[str, Introduction], names: Mapping[str, Sequence[str]], label: str | None, required: bool
) -> str | None:
    """Find the party that holds the label; refuse columns at two parties, by ``names`` where known here."""
    holders = [name for name, party in introductions.items() if party.has_label]
    if len(holders) > 1:
        raise AgreementError(
            f"the label {label!r} is held by {', '.join(map(repr, holders))}; exactly one party may hold it: drop it "
            "from the others"
        )
    if not holders and required:
        raise AgreementError(f"no party holds the label {label!r}; check the spelling")
    first: dict[str, str] = {}
    for name, party in introductions.items():
        for number, column in enumerate(party.columns):
            if column in first:
                which = repr(names[name][number]) if name in names else f"{number + 1} of {name!r}"
                raise AgreementError(
                    f"column {which} is held by parties {first[column]!r} and {name!r}; rename it at one of them, "
                    "or exclude it"
                )
            first[column] = name
    if not first:
        raise AgreementError("no party has a feature besides ids and the label")
    return holders[0] if holders else None


def describe(
    federation: Federation,
    common: np.ndarray,
    introductions: dict[str, Introduction],
    task: Task | None,
    label: str,
    holder: str | None,
    test: float,
) -> Columns:
    """Ask every party about its columns, and the label holder, or else the first party, for row sampling."""
    drawer, n = holder or federation.sites[0], len(common)

    def check(site: str, reply: ColumnKinds) -> None:
        told = introductions[site]
        if len(reply.features) > len(told.columns) or (reply.label is None) == told.has_label:
            raise FormatError("its columns differ from those it announced")
        if len(reply.held_out) != ((n + 7) // 8 if site == drawer else 0):
            raise FormatError("its draws are not of the rows in common")
        if bool(reply.draws) != (site == holder) or (reply.order is None) == (site == holder):
            raise FormatError("it draws rows and does not hold the label, or the other way round")
        if reply.order is not None and not np.array_equal(np.sort(reply.order), np.arange(n)):
            raise FormatError("the order of its rows is invalid")

    request = DescribeColumns(rows=rows_blob(federation, common), task=task)
    requests = {
        name: msgspec.structs.replace(request, test=test) if name == drawer else request for name in federation.active
    }
    with federation.counted_apart():
        kinds: dict[str, ColumnKinds] = federation.ask(requests, check=check)
    _check_names({name: reply.features for name, reply in kinds.items()})
    drawn = kinds[drawer]
    held = np.unpackbits(np.frombuffer(drawn.held_out, np.uint8), count=n).astype(np.bool_)
    order = np.arange(n) if drawn.order is None else drawn.order
    features = [kinds[name].features for name in introductions]
    ends = accumulate(map(len, features), initial=0)
    owners = {name: range(a, b) for name, (a, b) in zip(introductions, pairwise(ends), strict=True)}
    schema = Schema(tuple(feature for own in features for feature in own), drawn.label or Label(label))
    return Columns(owners, holder, common[order], held[order], schema, draws=drawn.draws)


def _check_names(features: Mapping[str, Sequence[Feature]]) -> None:
    """Raise ``AgreementError`` if two columns have the same name, at two parties or at one."""
    first: dict[str, str] = {}
    for party, own in features.items():
        for feature in own:
            if feature.name in first:
                raise AgreementError(
                    f"a column of party {party!r} has the same name as one of party {first[feature.name]!r}; one of "
                    "them is wrong, or must be renamed"
                )
            first[feature.name] = party


def left_out(introductions: dict[str, Introduction], common: int) -> Differences:
    """Record how many rows of each party take no part."""
    differences = Differences()
    for name, party in introductions.items():
        if party.rows > common:
            what = f"{party.rows - common} of {party.rows} rows of {name} are not known to all parties"
            differences.add("(rows)", what, "they take no part")
    return differences


def with_all_columns(forest: Forest, schema: Schema) -> Forest:
    """Convert a forest of some columns to one of all; its predictions stay the same."""
    if forest.schema == schema:
        return forest
    place = np.array([schema.names.index(name) for name in forest.schema.names], np.int32)
    feature = np.where(forest.feature >= 0, place[forest.feature], -1)
    return replace(forest, schema=schema, feature=feature, gain=None)
