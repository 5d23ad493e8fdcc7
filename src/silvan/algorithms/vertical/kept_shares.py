"""Shares of a model in the stores of parties: reading them, storing them for new parties, and requiring all of them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from silvan.algorithms.vertical.coded_names import keep_label
from silvan.data.schema import Schema
from silvan.errors import InputError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.party import Party
from silvan.federation.store import CacheKey, digest
from silvan.forest.model_in_shares import ModelInShares


class Writable(Protocol):
    """Anything that can be written as the bytes of a file."""

    def to_bytes(self) -> bytes:
        """Return the bytes of the file."""
        ...


S = TypeVar("S", bound=Writable)


def read_share(party: Party, model: str, key: str, read: Callable[[bytes], S]) -> S:
    """Read the share of a model from a store; refuse if it is missing, or belongs to another study."""
    party.check_model(model)
    data = party.store.get(key)
    if data is None:
        raise RefusedError("the party has no share of this model: it never had one, or deleted it")
    return party.cache.once(CacheKey[S]("share", key, digest(data)), lambda: read(data))


def restore_shares(
    federation: Federation,
    model: ModelInShares,
    key: str,
    shares: Mapping[str, Writable],
    schemas: Mapping[str, Schema],
) -> None:
    """Put known shares, and the label's real name, into the stores of parties in this process.

    A federation of new rows has new parties, whose stores are empty. ``schemas`` are those of the shares.
    """
    for name in shares.keys() & federation.local_sites.keys():
        party = federation.party(name)
        if party.store.get(key) is None:
            party.store.put(key, shares[name].to_bytes())
        if name == model.label_holder:
            keep_label(party, model.schema.label, model.named_schema(schemas).label)


def check_parties(federation: Federation, parties: Iterable[str]) -> None:
    """Raise ``InputError`` if a party of a model is not in the federation."""
    absent = [party for party in parties if party not in federation.active]
    if absent:
        raise InputError(
            f"party {absent[0]!r} has a share of this model and is not in the federation; without it no row can be "
            "scored"
        )
