"""Splits that the label holder chose: a winner unseals its choice, sends the partition and keeps its share.

What the label holder will need at the end to work out leaf values it hands the coordinator as notes, sealed for itself
alone.
"""

from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.vertical.encrypted_labels import truth_of
from silvan.algorithms.vertical.party_rows import Growing, GrowingContext, descend
from silvan.algorithms.vertical.party_shares import Keeping, LeafValues, store_share
from silvan.data.schema import Label
from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.message import Reply
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.forest.category_set import SET_WORDS
from silvan.privacy.identity.seal import LABEL_HOLDER, unseal
from silvan.tree.level import add_nodes
from silvan.tree.partition import count_sides, pack_sides
from silvan.tree.split import Splits

# -- messages


class Choice(msgspec.Struct, frozen=True):
    """What is sealed for a winner: how to split the nodes it won."""

    nodes: np.ndarray
    feature: np.ndarray
    bin: np.ndarray
    missing_left: np.ndarray
    words: np.ndarray


class Note(msgspec.Struct, frozen=True):
    """What the label holder seals for itself: statistics of both sides of each split.

    Where trees must be monotonic, also what the predictions of every node so far are held to.
    """

    sides: np.ndarray
    bounds: np.ndarray | UnsetType = UNSET


class LeftBits(Reply, frozen=True, kw_only=True):
    """Which rows go left, as bits."""

    bits: np.ndarray


class SplitChosen(Growing, frozen=True, kw_only=True):
    """Which rows go left at nodes that are split as the label holder chose."""

    reply: ClassVar[type[Reply]] = LeftBits

    choice: bytes
    needed: np.ndarray


class KeepChosen(Keeping, frozen=True, kw_only=True):
    """Keep the details of the splits that were chosen; the label holder keeps what the leaves are worth."""

    choices: list[bytes]
    label: Label | None = None  # for the label holder, as all below
    class_weight: str | list[float] | None = None
    leaves: np.ndarray | None = None  # nodes in the order in which they grew, from left to right
    notes: tuple[bytes, ...] = ()


# -- at a party


@answers(SplitChosen)
def split_chosen(site: Site, request: SplitChosen) -> LeftBits:
    """Split nodes as the label holder chose; return the left sides where they are needed."""
    party, nodes, needed = party_of(site), request.nodes, request.needed
    descent = descend(party, request.ground)
    descent.check(nodes, request.features)
    check_arrays("the nodes do not match", (needed, nodes.shape, np.bool_))
    splits = _open_choices(party, request.ground, nodes, [request.choice])
    some = np.flatnonzero(needed)
    bits = pack_sides(descent.rows, nodes[some], Splits(*(column[some] for column in splits)), descent.threads)
    sizes = (descent.rows.stops - descent.rows.starts)[nodes[some]]
    left = count_sides(bits, sizes)
    if left is None or (np.minimum(left, sizes - left) < request.min_leaf).any():
        raise RefusedError("a side has fewer rows than a leaf may have")
    return LeftBits(bits=bits)


def _open_choices(party: Party, ground: GrowingContext, nodes: np.ndarray, sealed: list[bytes]) -> Splits:
    """Unseal the splits that the label holder chose for this party, and check them against its columns."""
    choices = [wire.decode(unseal(choice_key(party, party.name), box, LABEL_HOLDER), Choice) for box in sealed]
    empty = Choice(*(np.zeros(shape, dtype) for shape, dtype in _CHOICE.values()))
    joined = {name: np.concatenate([getattr(c, name) for c in (empty, *choices)]) for name in _CHOICE}
    if any(joined[name].dtype != dtype or len(joined[name]) != len(nodes) for name, (_, dtype) in _CHOICE.items()):
        raise FormatError("the choices do not match the nodes")
    feature, bin_ = joined["feature"], joined["bin"]
    if not np.array_equal(joined["nodes"], nodes):
        raise FormatError("the choices do not match the nodes")
    last = descend(party, ground).rows.table.bins.last if len(nodes) else np.zeros(0, np.int32)
    if len(nodes) and not (feature.min() >= 0 and feature.max() < len(last)):
        raise FormatError("a choice of a column that does not exist")
    if (bin_ < 0).any() or (bin_ > last[feature]).any():
        raise FormatError("a choice of a bin that does not exist")
    splits = Splits.empty(len(nodes), 1)
    splits.feature[:], splits.bin[:] = feature, bin_
    splits.missing_left[:], splits.words[:] = joined["missing_left"], joined["words"]
    return splits


_CHOICE: dict[str, tuple[tuple[int, ...], Any]] = {
    "nodes": ((0,), np.int32),
    "feature": ((0,), np.int32),
    "bin": ((0,), np.int32),
    "missing_left": ((0,), np.bool_),
    "words": ((0, SET_WORDS), np.uint64),
}


@answers(KeepChosen)
def keep_chosen(site: Site, request: KeepChosen) -> LeafValues:
    """Write the party's share to its store, with the leaf values if it holds the label."""
    party = party_of(site)
    splits = _open_choices(party, request.ground, request.nodes, request.choices)
    store_share(party, request, splits, request.label, _leaf_values(party, request))
    return LeafValues(value=np.zeros((0, 1)))


# -- at the label holder


def choice_key(party: Party, name: str) -> bytes:
    """Return the key that seals the choices for a winner."""
    return party.key_for(f"choices for {name}")


def _leaf_values(party: Party, request: KeepChosen) -> np.ndarray | None:
    """Return the leaf values from the label holder's own notes; None at other parties."""
    if request.label is None or request.leaves is None:
        return None
    ground = request.ground
    settings = replace(ground.settings, class_weight=request.class_weight)
    truth = truth_of(party, ground.rows, request.label, settings)
    roots = add_nodes(truth.label(descend(party, ground).rows), np.arange(settings.n_estimators))
    stats = np.concatenate([roots, *(open_note(party, sealed).sides for sealed in request.notes)])
    leaves = request.leaves
    if leaves.shape != (request.n_leaves,) or not 0 <= leaves.min(initial=0) <= leaves.max(initial=0) < len(stats):
        raise FormatError("the leaves do not match the notes")
    return truth.measure.leaf_values(stats[leaves])


def open_note(party: Party, sealed: bytes) -> Note:
    """Open what the label holder sealed for itself."""
    return wire.decode(unseal(party.secret_for("notes"), sealed, LABEL_HOLDER), Note)
