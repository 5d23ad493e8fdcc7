"""Federations by columns: parties hold different columns of the same rows, one holds the label.

Before training the parties' rows are aligned (``privacy/identity.py``) and their columns described, by the rows in
common alone. Features stand in the order of the parties, then in that of each party's table, so a party's features
are a stretch of all of them.
"""

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np

from silvan.data.encode import Task, encode_features, encode_label, infer_features, infer_label
from silvan.data.schema import Feature, Label, Schema
from silvan.errors import AgreementError, FormatError, InputError, RefusedError
from silvan.federation import wire
from silvan.federation.agreement.agreement import Columns, Differences
from silvan.federation.agreement.describe import FLOOR
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Reply, Request, Verb
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.privacy.identity import Introduction, Rows, places_of
from silvan.util.readable import format_names

# -- messages


class ColumnKinds(Reply, frozen=True, kw_only=True):
    """What a party's columns are, and its label if it has it."""

    features: list[Feature]
    label: Label | None


class DescribeColumns(Request, frozen=True, kw_only=True):
    """Kinds of the columns and names of categories that at least ten of the rows in common have; classes."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = ColumnKinds

    rows: Blob
    task: Task | None = None


# -- at a party


@answers(DescribeColumns)
def describe_columns(site: Site, request: DescribeColumns) -> ColumnKinds:
    """Describe the party's columns by the rows in common."""
    party = party_of(site)
    frame = party.rows_at(places_of(party, request.rows))
    left_out = {party.id_column, party.label}
    return ColumnKinds(
        features=list(infer_features(frame, left_out, min_category_rows=FLOOR)),
        label=infer_label(frame, party.label, request.task) if party.has_label else None,
    )


def encode_rows(party: Party, schema: Schema, rows: Blob) -> np.ndarray:
    """Encode a party's columns of some rows; all values of a row that it lacks are missing."""
    key = ("columns", schema.hash, rows.hash)
    if key not in party.cache:
        places = places_of(party, rows)
        there = np.flatnonzero(places >= 0)
        X = np.full((len(places), len(schema.features)), np.nan, np.float32)
        if len(there):
            X[there] = encode_features(party.rows_at(places[there], schema), schema)
        party.cache[key] = X
    encoded: np.ndarray = party.cache[key]
    return encoded


def encode_labels(party: Party, label: Label, rows: Blob) -> np.ndarray:
    """Encode the label of some rows, which the party must have."""
    if not party.has_label:
        raise RefusedError("the party does not hold the label")
    places = places_of(party, rows)
    if (places < 0).any():
        raise RefusedError("the party lacks some of the rows")
    schema = Schema((), label)
    return encode_label(party.rows_at(places, schema), schema)


# -- at the coordinator


def columns_of(federation: Federation) -> Columns:
    """Return who holds what; raise ``InputError`` for a federation by rows."""
    if federation.columns is None:
        raise InputError("a federation by columns is needed (see federate_columns), got one by rows")
    return federation.columns


def rows_blob(federation: Federation, digests: np.ndarray) -> Blob:
    """Return a reference to rows, for requests."""
    return federation.blob(wire.encode(Rows(digests)))


def hold_out(common: np.ndarray, share: float) -> np.ndarray:
    """Choose the test part by a keyed hash of the id: the half of the digest that draws rows for no tree."""
    held = common[:, 1] < np.uint64(min(int(share * 2.0**64), 2**64 - 1))
    return held & ~held.all()  # there must be something to learn from


def owner_of(introductions: dict[str, Introduction], label: str | None, required: bool) -> str | None:
    """Find the one party that holds the label; refuse columns that two parties hold."""
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
        for column in party.columns:
            if column in first:
                raise AgreementError(
                    f"column {column!r} is held by parties {first[column]!r} and {name!r}; rename it at one of them, "
                    "or exclude it"
                )
            first[column] = name
    if not first:
        raise AgreementError("no party has a column to learn from but ids and the label")
    return holders[0] if holders else None


def describe(
    federation: Federation, rows: Blob, introductions: dict[str, Introduction], task: Task | None
) -> tuple[dict[str, tuple[Feature, ...]], Label | None]:
    """Ask every party what its columns are."""

    def check(site: str, reply: ColumnKinds) -> None:
        if [f.name for f in reply.features] != introductions[site].columns or (reply.label is None) == introductions[
            site
        ].has_label:
            raise FormatError("its columns are not those it spoke of")

    with federation.counted_apart():
        kinds: dict[str, ColumnKinds] = federation.ask(DescribeColumns(rows=rows, task=task), check=check)
    labels = [reply.label for reply in kinds.values() if reply.label is not None]
    return {name: tuple(reply.features) for name, reply in kinds.items()}, labels[0] if labels else None


def given_features(schema: Schema, introductions: dict[str, Introduction]) -> dict[str, tuple[Feature, ...]]:
    """Share a given schema's features out to the parties that hold them."""
    absent = [f.name for f in schema.features if not any(f.name in party.columns for party in introductions.values())]
    if absent:
        raise AgreementError(f"no party has {format_names(absent)}, which the schema names")
    return {name: tuple(f for f in schema.features if f.name in party.columns) for name, party in introductions.items()}


def stretches(features: dict[str, tuple[Feature, ...]]) -> dict[str, range]:
    """Return the range of features of each party."""
    ends = accumulate((len(own) for own in features.values()), initial=0)
    return {name: range(a, b) for name, (a, b) in zip(features, pairwise(ends), strict=True)}


def left_out(introductions: dict[str, Introduction], common: int) -> Differences:
    """Note how many rows of each party take no part."""
    differences = Differences()
    for name, party in introductions.items():
        if party.rows > common:
            what = f"{party.rows - common} of {party.rows} rows of {name} are not known to all parties"
            differences.add("(rows)", what, "they take no part")
    return differences


def with_all_columns(forest: Forest, schema: Schema) -> Forest:
    """Make a forest of some columns one of all: its answers stay the same."""
    if forest.schema == schema:
        return forest
    place = np.array([schema.names.index(name) for name in forest.schema.names], np.int32)
    feature = np.where(forest.feature >= 0, place[forest.feature], -1)
    return replace(forest, schema=schema, feature=feature, gain=None)
