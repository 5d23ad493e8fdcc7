"""How the holder of encrypted labels decides splits from the parties' sums.

It reads the sums, decides every node, and seals each choice for the party that won. What it will need at the end to
compute leaf values it gives to the coordinator as notes, sealed for itself.

It decides only on sums and partitions that parties have signed (``encrypted_splits.py``). It decides a level once,
about nodes that are open according to its notes, and refuses if the rows differ from its notes.
"""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from silvan.algorithms.level_checks import are_different, check_arrays, check_nodes
from silvan.algorithms.vertical.coordinator import best_offers
from silvan.algorithms.vertical.encrypted_labels import (
    Truth,
    private_key,
    truth_of,
)
from silvan.algorithms.vertical.encrypted_splits import (
    BinLayout,
    Choice,
    EncryptedSums,
    LeftBits,
    asked_of,
    choice_key,
    open_choices,
)
from silvan.algorithms.vertical.party_rows import (
    MAX_COLUMNS,
    Descent,
    Growing,
    GrowingContext,
    Round,
    descend,
    signs_from,
)
from silvan.algorithms.vertical.party_shares import Keeping, LeafValues, store_share
from silvan.data.schema import Label
from silvan.errors import FormatError, RefusedError, reject
from silvan.federation import wire
from silvan.federation.message import Agreed, Blob, Derived, Fixed, Owner, ProtocolPosition, Reply, SignedReply
from silvan.federation.party import Party, party_of
from silvan.federation.signed import is_owned
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.privacy.identity.seal import LABEL_HOLDER, seal, unseal
from silvan.privacy.paillier.packing import AskedHistograms, read_sums
from silvan.privacy.paillier.paillier_keys import PrivateKey
from silvan.tree.gain import child_bounds
from silvan.tree.level import add_nodes, choose_listed, find_listed, finish_splits
from silvan.tree.node_rows import NodeRows
from silvan.tree.sampling import Ties, tie_ranks
from silvan.tree.split import Splits

# -- messages


class Note(msgspec.Struct, frozen=True):
    """What the label holder seals for itself: how it has decided a level.

    Where trees must be monotonic, also what the predictions of every node so far are held to.
    """

    rounds: list[Blob]  # the partitions before this decision
    split: np.ndarray  # nodes
    winner: np.ndarray  # of each split, the number of the party that makes it
    rows: np.ndarray  # of each split
    sides: np.ndarray  # statistics of both sides of each split
    open: np.ndarray  # nodes that the next request may be about
    bounds: np.ndarray | None = None


class PartySums(msgspec.Struct, frozen=True):
    """A party's sums, of some of the nodes and its columns drawn there, as it signed them."""

    which: np.ndarray
    features: np.ndarray
    reply: EncryptedSums


class Decisions(Reply, frozen=True, kw_only=True):
    """Who splits which node, the gain, and whose children may be split; the rest is sealed."""

    winner: np.ndarray  # number of the party, -1 where there is no split
    gain: np.ndarray
    rows: np.ndarray  # of each node
    is_open: np.ndarray  # (nodes, 2) of its children; for a node without a split: itself, and nothing
    choices: dict[str, bytes]  # for the winners
    note: bytes  # for the label holder itself


class DecideNodes(Growing, frozen=True, kw_only=True):
    """The best split of each open node, from all parties' encrypted sums."""

    reply: ClassVar[type[Reply]] = Decisions

    label: Agreed[Label]
    class_weight: Agreed[str | list[float] | None]
    key_bits: Fixed[int]
    monotonic: Fixed[bool]  # whether predictions must be monotonic in some column of any party
    parties: Agreed[list[str]]
    # of the nodes: with these and a secret key, the label holder breaks ties
    seeds: Derived[np.ndarray]
    deeper: Derived[np.ndarray]  # whether a node's children may be split again
    which: Derived[np.ndarray]  # nodes with columns of the label holder, which are the features
    offers: Derived[dict[str, PartySums]]
    notes: Derived[list[Blob]]  # of all levels before
    signatures: Derived[dict[str, bytes]]  # of the last partition, by the parties that made it
    barren: Derived[np.ndarray]  # bool, of the nodes: whether a split must have a gain

    def position(self) -> ProtocolPosition:
        """Return the position of the request: after all decided levels."""
        return ProtocolPosition("decisions", tuple(blob.hash for blob in self.notes))

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the level was not decided before, and is of the same forest."""
        return super().follow(traces, further) if further else None


class PartySplits(NamedTuple):
    """A party's best splits of some nodes, and the tie-breakers there."""

    which: np.ndarray
    splits: Splits
    ties: Ties


class KeepChosen(Keeping, frozen=True, kw_only=True):
    """Keep the details of the chosen splits; the label holder keeps the leaf values."""

    choices: Derived[list[bytes]]
    label: Agreed[Label | None] = None  # for the label holder, as all below
    class_weight: Agreed[str | list[float] | None] = None
    leaves: Derived[np.ndarray | None] = None  # nodes in the order in which they grew, from left to right
    notes: Derived[tuple[Blob, ...]] = ()


# -- at the label holder


class _Level(NamedTuple):
    """A level that the label holder decides, and what it knows about the rows at its nodes."""

    party: Party
    request: DecideNodes
    truth: Truth
    descent: Descent
    rows: NodeRows  # with labels
    totals: np.ndarray
    known: np.ndarray | None  # bounds on the predictions of all nodes so far, if there are any
    ties: Ties


@answers(DecideNodes)
def decide_nodes(site: Site, request: DecideNodes) -> Decisions:
    """Decrypt all parties' sums and choose the best split of every node."""
    party, ground, nodes, n = party_of(site), request.ground, request.nodes, request.nodes.size
    descent, truth = descend(party, ground), _truth(party, request.ground, request.label, request.class_weight)
    flags = (request.deeper, (n,), np.bool_), (request.barren, (n,), np.bool_)
    check_arrays("the nodes do not match", (nodes, (n,), np.int32), *flags)
    reject(not are_different(nodes, len(descent.is_split)), "an open node does not exist, or comes twice")
    reject(party.name not in request.parties, "the nodes do not match")
    note = open_note(party, request.notes[-1]) if request.notes else None
    check_open(party, request, note)
    rows = truth.label(descent.rows)
    totals = add_nodes(rows, nodes)
    _check_told(request, note, len(descent.is_split), totals)
    known = _known_bounds(note, len(descent.is_split)) if request.monotonic else None
    ties = descent.ties(request.seeds, n, None if known is None else known[nodes])
    level = _Level(party, request, truth, descent, rows, totals, known, ties)
    found: dict[str, PartySplits] = {}
    if len(request.which):
        which = _check_places(request.which, n)
        descent.check(nodes[which], request.features)
        own = find_listed(rows, nodes[which], request.features, truth.rule, ties.take(which), descent.threads)
        found[party.name] = PartySplits(which, own, ties.take(which))
    for name, offer in request.offers.items():
        reject(name not in request.parties or name == party.name, "an offer from an unknown party")
        check_sums(party, ground, name, nodes[_check_places(offer.which, n)], offer)
        key = private_key(party, request.key_bits, offer.reply.sums.key)
        try:
            found[name] = _splits_of(level, offer, key)
        except (FormatError, RefusedError) as error:
            raise RefusedError(f"the sums of party {name!r} do not fit the rows, or cannot be read") from error
    return _decide(level, found)


def _truth(party: Party, ground: GrowingContext, label: Label, class_weight: str | list[float] | None) -> Truth:
    return truth_of(party, ground.rows, label, replace(ground.settings, class_weight=class_weight))


def check_sums(party: Party, ground: GrowingContext, name: str, nodes: np.ndarray, offer: PartySums) -> None:
    """Refuse sums unless the named party signed them, for these nodes of this forest."""
    asked = asked_of(ground, ground.rounds, nodes, offer.features)
    if offer.reply.asked != asked or not _is_signed(party, name, offer.reply):
        raise RefusedError(f"the sums are not those that party {name!r} signed for these nodes")


def _is_signed(party: Party, name: str, reply: SignedReply) -> bool:
    """Whether another party signed a reply in the task at hand."""
    owner, keys = Owner(name, party.task, reply.signature), party.keys
    return keys is not None and is_owned(keys.roster, owner, party.study, digest(reply.work()))


def check_open(party: Party, request: DecideNodes, note: Note | None) -> None:
    """Refuse nodes that are not open after the level before, and partitions that the winners there have not signed."""
    rounds, before = request.ground.rounds, [] if note is None else note.rounds
    new = rounds[len(before) :]
    allowed = np.arange(request.ground.settings.n_estimators) if note is None else note.open
    split = note is not None and len(note.split) > 0
    if rounds[: len(before)] != before or len(new) != split or not np.isin(request.nodes, allowed).all():
        raise RefusedError("the nodes are not those that the party left open when it decided the level before")
    if note is None or not new:
        return
    made = wire.decode(party.blob(new[0].hash), Round)
    if not np.array_equal(made.nodes, note.split):
        raise RefusedError("the partition is not of the nodes that are split")
    lengths = np.where(made.needed, (note.rows + 7) >> 3, 0)  # of its bits, which were counted when they were applied
    for k in np.unique(note.winner[made.needed]).tolist():
        name, own = request.parties[k], note.winner == k
        asked = asked_of(request.ground, before, note.split[own], made.needed[own])
        bits, signature = made.bits[np.repeat(own, lengths)], request.signatures.get(name, b"")
        if not _is_signed(party, name, LeftBits(asked=asked, bits=bits, signature=signature)):
            raise RefusedError(f"a partition is not the one that party {name!r} signed")


def _known_bounds(note: Note | None, n_nodes: int) -> np.ndarray:
    """Return the bounds on the predictions of every node."""
    if note is None:
        return np.tile([-np.inf, np.inf], (n_nodes, 1))
    if note.bounds is None or note.bounds.shape != (n_nodes, 2):
        raise FormatError("the note is of other nodes")
    return note.bounds


def _check_told(request: DecideNodes, note: Note | None, n_nodes: int, totals: np.ndarray) -> None:
    """Refuse partitions whose rows do not match the sums that decided the splits above.

    The children of the level before are the last of all nodes.
    """
    if note is None:
        return
    place = request.nodes - (n_nodes - len(note.sides))
    made = np.flatnonzero(place >= 0)
    wrong = place[made[(note.sides[place[made]] != totals[made]).any(axis=1)]]
    if len(wrong):
        name = request.parties[note.winner[wrong[0] // 2]]
        raise RefusedError(f"party {name!r} splits a node differently from its sums, or the table here has changed")


def _check_places(which: np.ndarray, n: int) -> np.ndarray:
    check_arrays("the nodes do not match", (which, (which.size,), np.int64))
    if (np.diff(which) <= 0).any() or which.min(initial=0) < 0 or which.max(initial=0) >= n:
        raise FormatError("the nodes do not match")
    return which


def _splits_of(level: _Level, offer: PartySums, key: PrivateKey) -> PartySplits:
    """Decrypt a party's sums and return its best splits."""
    party, request, truth, rows = level.party, level.request, level.truth, level.rows
    which, features, nodes = offer.which, offer.features, request.nodes[offer.which]
    layout = wire.decode(unseal(party.key_for("layout of sums"), offer.reply.layout), BinLayout)
    bins, first = layout.bins(), layout.first_column
    if not 0 <= first <= MAX_COLUMNS or not set(layout.signs) <= {-1, 0, 1}:
        raise FormatError("the columns of a party are not possible")
    ties = level.ties.take(which)._replace(first=first)
    if request.monotonic:
        signs = signs_from(first, layout.signs, len(bins.n_bins))
        ties = ties._replace(monotonic=ties.monotonic._replace(signs=signs))
    check_nodes(np.arange(len(nodes), dtype=np.int32), features, len(nodes), len(bins.n_bins))
    sums = read_sums(
        key,
        truth.lanes(request.key_bits),
        AskedHistograms(features, bins.n_bins),
        layout.counts,
        offer.reply.sums,
        (rows.stops - rows.starts)[nodes],
        truth.encrypted_totals(level.totals[which]),
        party.n_jobs,
    )
    hist, offsets = truth.histograms(layout.counts.astype(np.int64), sums), rows.offsets[nodes]
    threads = level.descent.threads
    splits = choose_listed(hist, features, bins, layout.categorical, truth.rule, ties, offsets, threads)
    return PartySplits(which, splits, ties)


def _decide(level: _Level, found: dict[str, PartySplits]) -> Decisions:
    """Choose between the parties' best splits, and seal for each winner how to split."""
    party, request, rule, totals, known = level.party, level.request, level.truth.rule, level.totals, level.known
    rounds, nodes, n = request.ground.rounds, request.nodes, len(totals)
    offers, varies = np.full((len(request.parties), n), -np.inf), np.zeros(n, np.bool_)
    ranks = np.zeros(offers.shape, np.uint64)
    for name, (which, splits, ties) in found.items():
        k = request.parties.index(name)
        offers[k, which] = np.where(splits.feature >= 0, splits.gain, -np.inf)
        ranks[k, which] = tie_ranks(ties, splits.feature)
        varies[which] |= splits.varies
    best = best_offers(offers, ranks)
    value = offers[best, np.arange(n)]
    winner = np.where((value > -np.inf) & ~(request.barren & (value <= 0.0)), best, -1).astype(np.int32)
    chosen = Splits.empty(n, totals.shape[1])
    choices, signs = {}, np.zeros(n, np.int8)
    for k in np.unique(winner[winner >= 0]).tolist():
        place, name = np.flatnonzero(winner == k), request.parties[k]
        which, splits, ties = found[name]
        at = np.searchsorted(which, place)
        for column, of_all in zip(chosen, splits, strict=True):
            column[place] = of_all[at]
        if known is not None:
            signs[place] = ties.monotonic.signs[ties.first + chosen.feature[place]]
        how = (column[place] for column in (chosen.feature, chosen.bin, chosen.missing_left, chosen.words))
        choices[name] = seal(choice_key(party, name), wire.encode(Choice(rounds, nodes[place], *how)))
    chosen.total[:] = totals
    finish_splits(chosen, rule)
    sides = np.stack([chosen.left, totals - chosen.left], axis=1)
    is_open = rule.open_nodes(sides.reshape(-1, totals.shape[1])).reshape(-1, 2) & request.deeper[:, None]
    split = winner >= 0
    is_open[~split, 0], is_open[~split, 1] = rule.open_nodes(totals[~split]) & ~varies[~split], False
    children = len(level.descent.is_split) + np.arange(2 * np.count_nonzero(split))
    still_open = np.concatenate([nodes[~split & is_open[:, 0]], children[is_open[split].reshape(-1)]])
    bounds = None
    if known is not None:
        below = child_bounds(known[nodes[split]], signs[split], chosen.left[split], totals[split], rule)
        bounds = np.concatenate([known, below])
    rows, told = (level.rows.stops - level.rows.starts)[nodes], sides[split].reshape(-1, totals.shape[1])
    note = Note(rounds, nodes[split], winner[split], rows[split], told, still_open, bounds)
    return Decisions(
        winner=winner,
        gain=np.where(split, chosen.gain, 0.0),
        rows=rows,
        is_open=is_open,
        choices=choices,
        note=seal(note_key(party), wire.encode(note)),
    )


def note_key(party: Party) -> bytes:
    """Return the key that the label holder seals its own notes with, in this task alone."""
    return party.secret_for(f"notes in {party.task} of {party.study}")


def _leaf_values(party: Party, request: KeepChosen) -> np.ndarray | None:
    """Return the leaf values from the label holder's own notes; None at other parties."""
    if request.label is None or request.leaves is None:
        return None
    ground, truth = request.ground, _truth(party, request.ground, request.label, request.class_weight)
    roots = add_nodes(truth.label(descend(party, ground).rows), np.arange(ground.settings.n_estimators))
    stats = np.concatenate([roots, *(open_note(party, note).sides for note in request.notes)])
    leaves = request.leaves
    if leaves.shape != (request.n_leaves,) or not 0 <= leaves.min(initial=0) <= leaves.max(initial=0) < len(stats):
        raise FormatError("the leaves do not match the notes")
    return truth.measure.leaf_values(stats[leaves])


def open_note(party: Party, note: Blob) -> Note:
    """Open the label holder's note to itself."""
    return wire.decode(unseal(note_key(party), party.blob(note.hash), LABEL_HOLDER), Note)


@answers(KeepChosen)
def keep_chosen(site: Site, request: KeepChosen) -> LeafValues:
    """Write the party's share to its store, with the leaf values if it holds the label."""
    party = party_of(site)
    splits = open_choices(party, request.ground, request.nodes, request.choices)
    store_share(party, request, splits, request.label, _leaf_values(party, request))
    return LeafValues(value=np.zeros((0, 1)))
