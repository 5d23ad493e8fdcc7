"""Shares of a vertical forest: every party keeps the details of its own splits, and shows them only to an auditor.

A restarted party recomputes its splits from the request, so an interrupted study loses none. Deleting a
share is final: nobody else knows how the party split its nodes.
"""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.vertical.coded_names import code_features, coded_label, named_columns, named_label
from silvan.algorithms.vertical.columns import encode_rows, rows_blob
from silvan.algorithms.vertical.encoded_labels import LeafCode, decode_leaves
from silvan.algorithms.vertical.kept_shares import check_parties, read_share
from silvan.algorithms.vertical.party_rows import Growing, descend
from silvan.data.schema import Label, Schema
from silvan.errors import FederationError, reject
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Derived, Reply
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import SHARE
from silvan.forest.forest_shares import Share, Structure
from silvan.forest.reach import meet, reach_leaves, row_bytes
from silvan.tree.split import Splits

# -- messages


class LeafValues(Reply, frozen=True, kw_only=True):
    """The leaf values, from the label holder; empty from others."""

    value: np.ndarray


class Keeping(Growing, frozen=True, kw_only=True):
    """The position of a party's splits in the forest, for the nodes of the request."""

    reply: ClassVar[type[Reply]] = LeafValues

    model: Derived[str]
    n_leaves: Derived[int]
    node: Derived[np.ndarray]  # of each split in the forest, -1 if it was undone
    first: Derived[np.ndarray]  # leaves below it, from left to right
    middle: Derived[np.ndarray]
    last: Derived[np.ndarray]


class KeepShare(Keeping, frozen=True, kw_only=True):
    """Keep the details of the party's splits; the label holder returns the leaf values."""

    seeds: Derived[np.ndarray]  # of the nodes, to recompute splits that are not cached
    leaves: Derived[LeafCode | None] = None  # for the label holder


class ShownShare(Reply, frozen=True, kw_only=True):
    """A party's share of a forest, as the bytes of its file."""

    share: bytes


class ShowShare(Ask[ShownShare], frozen=True, kw_only=True):
    """The party's splits, for an auditor who keeps the whole forest."""

    model: Derived[str]


# -- at a party


@answers(KeepShare)
def keep_share(site: Site, request: KeepShare) -> LeafValues:
    """Write the party's share of the forest to its store; the label holder returns the leaf values."""
    party, leaves, ground = party_of(site), request.leaves, request.ground
    splits = Splits.empty(0, 1)
    if len(request.nodes):
        splits = descend(party, ground).own_splits(request.nodes, request.features, request.seeds, request.bounds)
    store_share(party, request, splits, None if leaves is None else leaves.label)
    if leaves is None:
        return LeafValues(value=np.zeros((0, 1)))
    return LeafValues(value=decode_leaves(party, ground.rows, ground.settings, leaves))


def store_share(
    party: Party, request: Keeping, splits: Splits, label: Label | None, value: np.ndarray | None = None
) -> None:
    """Write a party's share to its store: its splits, its label if any, and its private leaf values."""
    n, places = len(request.nodes), (request.node, request.first, request.middle, request.last)
    check_arrays("the places do not match the nodes", *((place, (n,), np.int64) for place in places))
    thresholds = np.zeros(0, np.float32)
    if n:
        thresholds = descend(party, request.ground).rows.table.bins.cut(splits.feature, splits.bin)
    kept, own = np.flatnonzero(request.node >= 0), named_columns(party, request.ground.columns)
    order = kept[np.lexsort((-request.last[kept], request.first[kept]))]
    share = Share(
        request.model,
        party.name,
        own if label is None else Schema(own.features, named_label(party, label)),
        request.n_leaves,
        request.node[order],
        splits.feature[order],
        thresholds[order],
        splits.missing_left[order],
        splits.words[order],
        request.first[order],
        request.middle[order],
        request.last[order],
        np.zeros((0, 1)) if value is None else value,
    )
    share.check()
    party.store.put(share_key(request.model), share.to_bytes())


@answers(ShowShare)
def show_share(site: Site, request: ShowShare) -> ShownShare:
    """Return the party's share for an auditor, with numbered columns unless the study discloses names."""
    party = party_of(site)
    share = share_of(party, request.model)
    label = share.schema.label
    if not party.show_names:
        label = coded_label(label, f"{party.name}: label")
    shown = Schema(tuple(code_features(party, share.schema.features)), label)
    return ShownShare(share=replace(share, schema=shown).to_bytes())


def share_key(model: str) -> str:
    """Return the key under which a party's store keeps its share of a model."""
    return f"{SHARE}{model}"


def share_of(party: Party, model: str) -> Share:
    """Read a party's share of a model."""
    return read_share(party, model, share_key(model), Share.from_bytes)


# -- at the coordinator


def show_shares(federation: Federation, structure: Structure) -> dict[str, Share]:
    """Ask every party for its share, for an auditor: one round."""

    def check(site: str, reply: ShownShare) -> None:
        structure.check_share(Share.from_bytes(reply.share), site)

    replies: dict[str, ShownShare] = federation.ask(ShowShare(model=structure.model), to=structure.parties, check=check)
    return {party: Share.from_bytes(reply.share) for party, reply in replies.items()}


_REPLY_BYTES = 1 << 26
"""Larger leaf sets are requested in several messages."""

# -- messages


class LeafSets(Reply, frozen=True, kw_only=True):
    """The leaves that rows can reach, one bit a leaf: (rows, bytes)."""

    bits: np.ndarray


class ReachLeaves(Ask[LeafSets], frozen=True, kw_only=True):
    """The leaves that each row can reach, according to the party's columns."""

    model: Derived[str]
    rows: Derived[Blob]
    start: Derived[int]
    stop: Derived[int]


# -- at a party


@answers(ReachLeaves)
def reach(site: Site, request: ReachLeaves) -> LeafSets:
    """Return the leaves that each row can reach, according to the party's columns."""
    party = party_of(site)
    share = share_of(party, request.model)
    X = encode_rows(party, share.schema, request.rows)
    reject(not 0 <= request.start < request.stop <= len(X), "there are no such rows")
    return LeafSets(bits=reach_leaves(share, X[request.start : request.stop], party.n_jobs))


# -- at the coordinator


def find_leaves(federation: Federation, structure: Structure, digests: np.ndarray) -> np.ndarray:
    """Find every row's leaf in every tree, numbered from left to right: one round, (rows, trees)."""
    check_parties(federation, structure.parties)
    rows = rows_blob(federation, digests)
    step = max(1, _REPLY_BYTES // row_bytes(structure.n_leaves))

    def some(start: int, stop: int) -> np.ndarray:
        replies: dict[str, LeafSets] = federation.ask(
            ReachLeaves(model=structure.model, rows=rows, start=start, stop=stop),
            to=structure.parties,
            check=lambda _, reply: _check_sets(reply.bits, stop - start, structure.n_leaves),
        )
        bits = np.bitwise_and.reduce([reply.bits for reply in replies.values()])
        leaves = meet(bits, structure)
        if leaves is None:
            raise FederationError(
                "the parties' leaf sets do not meet in one leaf a tree: some party answers from another model"
            )
        return leaves

    with federation.one_round():
        return np.concatenate([some(a, min(a + step, len(digests))) for a in range(0, len(digests), step)])


def _check_sets(bits: np.ndarray, n_rows: int, n_leaves: int) -> None:
    check_arrays("its leaf sets have the wrong number of bits", (bits, (n_rows, row_bytes(n_leaves)), np.uint8))
    reject(n_leaves & 7 and (bits[:, -1] >> (n_leaves & 7)).any(), "its leaf sets have the wrong number of bits")
