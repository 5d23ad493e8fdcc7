"""Numbers for names: parties know their columns, categories and classes by name, the coordinator by number.

As in Federated Forest, only its party knows the name of a column. The coordinator sees its party's name and a number,
its kind and its number of categories; categories and classes are numbers in the order of the names. The party's store
keeps the names behind the numbers. A few digits after the number distinguish descriptions of a column; they are keyed
by the party's secret, so that nobody can test names against them.
"""

from typing import TypeVar

import msgspec

from silvan.algorithms.requests import schema_of
from silvan.data.schema import Feature, Label, Schema
from silvan.errors import RefusedError, reject
from silvan.federation.message import Blob
from silvan.federation.party import Party
from silvan.federation.store import CacheKey

_NAMED = "named "
"""Prefix of a store's keys for the names behind numbers."""

T = TypeVar("T")


def code_features(party: Party, features: tuple[Feature, ...]) -> list[Feature]:
    """Return features as the coordinator sees them, and keep their real names."""
    if party.show_names:
        return list(features)
    coded = []
    for number, feature in enumerate(features, start=1):
        data = msgspec.json.encode(feature)
        coded.append(_coded_feature(feature, f"{party.name}: column {number} ({_digits(party, data)})"))
        party.store.put(_NAMED + coded[-1].name, data)
    return coded


def code_label(party: Party, label: Label) -> Label:
    """Return the label as the coordinator sees it, and keep its real name and classes."""
    if party.show_names:
        return label
    coded = coded_label(label, f"{party.name}: label ({_digits(party, msgspec.json.encode(label))})")
    keep_label(party, coded, label)
    return coded


def keep_label(party: Party, coded: Label, label: Label) -> None:
    """Store the real name and classes of a model's label."""
    party.store.put(_NAMED + coded.name, msgspec.json.encode(label))


def named_columns(party: Party, blob: Blob) -> Schema:
    """Return the party's columns that a request refers to, by name."""

    def name_all() -> Schema:
        told = schema_of(party, blob)
        return Schema(tuple(named_feature(party, feature) for feature in told.features), Label(party.label))

    return party.cache.once(CacheKey[Schema]("named columns", blob.hash), name_all)


def named_feature(party: Party, coded: Feature) -> Feature:
    """Return one of the party's columns by name."""
    data = party.store.get(_NAMED + coded.name)
    if data is None:
        return _refuse_unless_shown(party, coded)
    feature = msgspec.json.decode(data, type=Feature)
    reject(_coded_feature(feature, coded.name) != coded, "a column is of another kind than the party reported")
    return feature


def named_label(party: Party, coded: Label) -> Label:
    """Return the label by name, with its classes."""
    data = party.store.get(_NAMED + coded.name)
    if data is None:
        return _refuse_unless_shown(party, coded)
    label = msgspec.json.decode(data, type=Label)
    reject(len(label.classes or ()) != len(coded.classes or ()), "the label has other classes than the party reported")
    return label


def _refuse_unless_shown(party: Party, given: T) -> T:
    if not party.show_names:
        raise RefusedError(f"party {party.name!r} has no such column: columns go by number here, not by name")
    return given


def _coded_feature(feature: Feature, name: str) -> Feature:
    names = feature.categories
    numbers = None if names is None else tuple(str(number) for number in range(1, len(names) + 1))
    return Feature(name, feature.kind, categories=numbers, other=feature.other)


def coded_label(label: Label, name: str) -> Label:
    """Return a label under another name, with numbers for its classes."""
    classes = None if label.classes is None else tuple(range(len(label.classes)))
    return Label(name, classes, positive=None if label.positive is None else label.positive_code)


def _digits(party: Party, data: bytes) -> str:
    return party.secret_for(f"number for {data.hex()}")[:4].hex()
