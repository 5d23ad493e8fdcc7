"""How the parties of a forest with encrypted labels come from sums to splits.

Parties add up ciphertexts by bin. The label holder reads the sums and decides every node; a winner unseals its choice,
sends the partition and keeps its share. What the label holder will need at the end to work out leaf values it hands the
coordinator as notes, sealed for itself alone.
"""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from silvan.algorithms.level_checks import are_different, check_arrays, check_nodes
from silvan.algorithms.vertical.coordinator import best_offers
from silvan.algorithms.vertical.encrypted_labels import (
    Encryption,
    Truth,
    masks_for,
    private_key,
    received_rows,
    stream,
    truth_of,
)
from silvan.algorithms.vertical.party_rows import Growing, GrowingContext, descend
from silvan.algorithms.vertical.party_shares import Keeping, LeafValues, store_share
from silvan.data.bins.bins import HistogramBins
from silvan.data.schema import MAX_BINS, Label
from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.bound import Agreed, Derived
from silvan.federation.message import Ask, Reply
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.forest.category_set import SET_WORDS
from silvan.privacy.identity.seal import LABEL_HOLDER, seal, unseal
from silvan.privacy.paillier.cipher import Ciphertexts
from silvan.privacy.paillier.packing import AskedHistograms, Lanes, read_sums, sum_rows
from silvan.privacy.paillier.paillier_keys import PrivateKey
from silvan.tree.gain import child_bounds
from silvan.tree.level import add_nodes, choose_listed, find_listed, finish_splits
from silvan.tree.node_rows import NodeRows
from silvan.tree.partition import count_sides, pack_sides
from silvan.tree.sampling import Monotonic, Ties, tie_ranks
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
    bounds: np.ndarray | None = None


class EncryptedSums(Reply, frozen=True, kw_only=True):
    """Sums by bin that only the label holder can read, and how many rows each bin has, sealed for it."""

    layout: bytes
    sums: Ciphertexts


class SumLabels(Growing, frozen=True, kw_only=True):
    """Encrypted sums of the label by bin of the party's columns, at each open node."""

    reply: ClassVar[type[Reply]] = EncryptedSums

    encryption: Agreed[Encryption]


class BinLayout(msgspec.Struct, frozen=True):
    """What is sealed beside sums: rows by bin, the bins of each column, and which columns are categorical."""

    counts: np.ndarray
    last: np.ndarray
    shift: np.ndarray
    categorical: np.ndarray

    def bins(self) -> HistogramBins:
        """Return the bins of the columns; raise ``FormatError`` for what cannot be."""
        last, shift, categorical = self.last, self.shift, self.categorical
        complaint, n = "the bins of a party are not possible", last.size
        check_arrays(complaint, (last, (n,), np.int32), (shift, (n,), np.uint8), (categorical, (n,), np.bool_))
        if not n or not 0 <= last.min() <= last.max() <= MAX_BINS or shift.max() > 2 or shift[categorical].any():
            raise FormatError(complaint)
        return HistogramBins.of(last, shift)


class PartySums(msgspec.Struct, frozen=True):
    """A party's sums, of some of the nodes and its columns drawn there."""

    which: np.ndarray
    features: np.ndarray
    layout: bytes
    sums: Ciphertexts
    first_column: int  # the number of the party's first column among those of all parties


class Decisions(Reply, frozen=True, kw_only=True):
    """Who splits which node, what that is worth, whose children may be split; the rest is sealed."""

    winner: np.ndarray  # number of the party, -1 where there is no split
    gain: np.ndarray
    rows: np.ndarray  # of each node
    is_open: np.ndarray  # (nodes, 2) of its children; of a node without a split: itself, and nothing
    choices: dict[str, bytes]  # for the winners
    note: bytes  # for the label holder itself
    wrong: np.ndarray | None = None  # int32: nodes whose rows are others than the sums told of which they were made


class DecideNodes(Ask[Decisions], frozen=True, kw_only=True):
    """Which split is best at each open node, from all parties' encrypted sums."""

    ground: Derived[GrowingContext]
    label: Agreed[Label]
    class_weight: Derived[str | list[float] | None]
    lanes: Derived[Lanes]  # of the sums
    parties: Derived[list[str]]
    nodes: Derived[np.ndarray]
    seeds: Derived[
        np.ndarray
    ]  # of the nodes: by them, and a key of its own, the label holder decides between equal gains
    deeper: Derived[np.ndarray]  # whether a node's children may be split again
    which: Derived[np.ndarray]  # nodes with columns of the label holder's own
    features: Derived[np.ndarray]
    offers: Derived[dict[str, PartySums]]
    note: Derived[bytes] = b""  # of the level before, to compare the rows with
    barren: Derived[np.ndarray]  # bool, of the nodes: whether a split must have a gain
    monotonic_cst: Derived[list[int] | None] = None  # which way predictions may go with each column of all parties

    @property
    def min_leaf(self) -> int:
        """Rows a leaf has at least, for the party's policy to judge."""
        return self.ground.settings.min_samples_leaf


class PartySplits(NamedTuple):
    """A party's best splits of some nodes, and what decides between equal gains there."""

    which: np.ndarray
    splits: Splits
    ties: Ties


class LeftBits(Reply, frozen=True, kw_only=True):
    """Which rows go left, as bits."""

    bits: np.ndarray


class SplitChosen(Growing, frozen=True, kw_only=True):
    """Which rows go left at nodes that are split as the label holder chose."""

    reply: ClassVar[type[Reply]] = LeftBits

    choice: Derived[bytes]
    needed: Derived[np.ndarray]


class KeepChosen(Keeping, frozen=True, kw_only=True):
    """Keep the details of the splits that were chosen; the label holder keeps what the leaves are worth."""

    choices: Derived[list[bytes]]
    label: Agreed[Label | None] = None  # for the label holder, as all below
    class_weight: Derived[str | list[float] | None] = None
    leaves: Derived[np.ndarray | None] = None  # nodes in the order in which they grew, from left to right
    notes: Derived[tuple[bytes, ...]] = ()


# -- at a party


@answers(SumLabels)
def sum_labels(site: Site, request: SumLabels) -> EncryptedSums:
    """Add up ciphertexts by bin."""
    party = party_of(site)
    descent = descend(party, request.ground)
    descent.check(request.nodes, request.features)
    table = descent.rows.table
    rows = received_rows(party, request.encryption, len(table))
    masks, entropy = masks_for(party, rows.key), stream(party, f"sums of {digest(wire.encode(request))}")
    counts, sums = sum_rows(rows, masks, descent.rows, request.nodes, request.features, party.n_jobs, entropy)
    layout = BinLayout(counts, table.bins.last, table.bins.shift, table.bins.categorical)
    return EncryptedSums(layout=seal(party.key_for("layout of sums"), wire.encode(layout)), sums=sums)


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
    splits, start = Splits.empty(len(nodes), 1), 0
    for box in sealed:
        choice = wire.decode(unseal(choice_key(party, party.name), box, LABEL_HOLDER), Choice)
        n, complaint = choice.nodes.size, "the choices do not match the nodes"
        check_arrays(
            complaint,
            (choice.nodes, (n,), np.int32),
            (choice.feature, (n,), np.int32),
            (choice.bin, (n,), np.int32),
            (choice.missing_left, (n,), np.bool_),
            (choice.words, (n, SET_WORDS), np.uint64),
        )
        here = slice(start, start + n)
        if not np.array_equal(choice.nodes, nodes[here]):
            raise FormatError(complaint)
        splits.feature[here], splits.bin[here] = choice.feature, choice.bin
        splits.missing_left[here], splits.words[here] = choice.missing_left, choice.words
        start += n
    if start != len(nodes):
        raise FormatError("the choices do not match the nodes")
    if len(nodes):
        last = descend(party, ground).rows.table.bins.last
        if splits.feature.min() < 0 or splits.feature.max() >= len(last):
            raise FormatError("a choice of a column that does not exist")
        if (splits.bin < 0).any() or (splits.bin > last[splits.feature]).any():
            raise FormatError("a choice of a bin that does not exist")
    return splits


@answers(KeepChosen)
def keep_chosen(site: Site, request: KeepChosen) -> LeafValues:
    """Write the party's share to its store, with the leaf values if it holds the label."""
    party = party_of(site)
    splits = _open_choices(party, request.ground, request.nodes, request.choices)
    store_share(party, request, splits, request.label, _leaf_values(party, request))
    return LeafValues(value=np.zeros((0, 1)))


# -- at the label holder


@answers(DecideNodes)
def decide_nodes(site: Site, request: DecideNodes) -> Decisions:
    """Decrypt all parties' sums and choose the best split of every node."""
    party = party_of(site)
    descent = descend(party, request.ground)
    settings = replace(request.ground.settings, class_weight=request.class_weight)
    truth = truth_of(party, request.ground.rows, request.label, settings)
    nodes, n = request.nodes, request.nodes.size
    check_arrays(
        "the nodes do not match",
        (nodes, (n,), np.int32),
        (request.deeper, (n,), np.bool_),
        (request.barren, (n,), np.bool_),
    )
    if not are_different(nodes, len(descent.is_split)):
        raise FormatError("an open node does not exist, or comes twice")
    if party.name not in request.parties:
        raise FormatError("the nodes do not match")
    rows = truth.label(descent.rows)
    totals, known = add_nodes(rows, nodes), _known_bounds(party, request, len(descent.is_split))
    ties = descent.ties(request.seeds, n)
    if known is not None:
        ties = ties._replace(monotonic=Monotonic(np.array(request.monotonic_cst, np.int8), known[nodes]))
    found: dict[str, PartySplits] = {}
    if len(request.which):
        which = _check_places(request.which, n)
        descent.check(nodes[which], request.features)
        own = find_listed(rows, nodes[which], request.features, truth.rule, ties.take(which), descent.threads)
        found[party.name] = PartySplits(which, own, ties.take(which))
    for name, offer in request.offers.items():
        if name not in request.parties or name == party.name:
            raise FormatError("an offer of nobody")
        which = _check_places(offer.which, n)
        theirs = ties.take(which)._replace(first=offer.first_column)
        key = private_key(party, request.lanes.bits, offer.sums.key)
        try:
            splits = _splits_of(party, request, offer, key, truth, rows, totals[which], theirs, descent.threads)
        except (FormatError, RefusedError) as error:
            raise RefusedError(f"the sums of party {name!r} do not fit the rows, or cannot be read") from error
        found[name] = PartySplits(which, splits, theirs)
    decided = _decide(party, request, truth, found, totals, (rows.stops - rows.starts)[nodes], known)
    return msgspec.structs.replace(decided, wrong=_not_as_told(party, request, len(descent.is_split), totals))


def _known_bounds(party: Party, request: DecideNodes, n_nodes: int) -> np.ndarray | None:
    """Return what the predictions of every node are held to, None if nothing is asked."""
    if request.monotonic_cst is None:
        return None
    if len(request.monotonic_cst) != request.ground.n_columns or not set(request.monotonic_cst) <= {-1, 0, 1}:
        raise FormatError("not every column is told which way it may go")
    if not request.note:
        return np.tile([-np.inf, np.inf], (n_nodes, 1))
    bounds = open_note(party, request.note).bounds
    if bounds is None or bounds.shape != (n_nodes, 2):
        raise FormatError("the note is of other nodes")
    return bounds


def _not_as_told(party: Party, request: DecideNodes, n_nodes: int, totals: np.ndarray) -> np.ndarray | None:
    """Return the nodes whose rows are others than the sums told by which the nodes above were split; None if none is.

    The children of the level before are the last of all nodes.
    """
    if not request.note:
        return None
    sides = open_note(party, request.note).sides
    place = request.nodes - (n_nodes - len(sides))
    made = np.flatnonzero(place >= 0)
    if sides.shape[1:] != totals.shape[1:] or place.max(initial=0) >= max(len(sides), 1):
        raise FormatError("the note is of other nodes")
    wrong = made[(sides[place[made]] != totals[made]).any(axis=1)]
    return request.nodes[wrong] if len(wrong) else None


def _check_places(which: np.ndarray, n: int) -> np.ndarray:
    check_arrays("the nodes do not match", (which, (which.size,), np.int64))
    if (np.diff(which) <= 0).any() or which.min(initial=0) < 0 or which.max(initial=0) >= n:
        raise FormatError("the nodes do not match")
    return which


def _splits_of(
    party: Party,
    request: DecideNodes,
    offer: PartySums,
    key: PrivateKey,
    truth: Truth,
    rows: NodeRows,
    totals: np.ndarray,
    ties: Ties,
    threads: int,
) -> Splits:
    """Decrypt a party's sums and return its best splits."""
    nodes = request.nodes[offer.which]
    layout = wire.decode(unseal(party.key_for("layout of sums"), offer.layout), BinLayout)
    bins = layout.bins()
    if not 0 <= offer.first_column <= request.ground.n_columns - len(bins.n_bins):
        raise FormatError("the columns of a party are not possible")
    places = np.arange(len(nodes), dtype=np.int32)
    check_nodes(places, offer.features, len(nodes), len(bins.n_bins))
    sums = read_sums(
        key,
        request.lanes,
        AskedHistograms(offer.features, bins.n_bins),
        layout.counts,
        offer.sums,
        (rows.stops - rows.starts)[nodes],
        truth.encrypted_totals(totals),
        party.n_jobs,
    )
    hist = truth.histograms(layout.counts.astype(np.int64), sums)
    offsets = rows.offsets[nodes]
    return choose_listed(hist, offer.features, bins, layout.categorical, truth.rule, ties, offsets, threads)


def _decide(
    party: Party,
    request: DecideNodes,
    truth: Truth,
    found: dict[str, PartySplits],
    totals: np.ndarray,
    sizes: np.ndarray,
    known: np.ndarray | None,
) -> Decisions:
    """Choose between the parties' best splits, and seal for each winner how to split."""
    n = len(totals)
    offers, varies = np.full((len(request.parties), n), -np.inf), np.zeros(n, np.bool_)
    ranks = np.zeros(offers.shape, np.uint64)
    for name, (which, splits, ties) in found.items():
        offers[request.parties.index(name), which] = np.where(splits.feature >= 0, splits.gain, -np.inf)
        ranks[request.parties.index(name), which] = tie_ranks(ties, splits.feature)
        varies[which] |= splits.varies
    best = best_offers(offers, ranks)
    value = offers[best, np.arange(n)]
    winner = np.where((value > -np.inf) & ~(request.barren & (value <= 0.0)), best, -1).astype(np.int32)
    chosen = Splits.empty(n, totals.shape[1])
    choices, signs = {}, np.zeros(n, np.int8)
    for k, name in enumerate(request.parties):
        place = np.flatnonzero(winner == k)
        if not len(place):
            continue
        which, splits, ties = found[name]
        at = np.searchsorted(which, place)
        for column, of_all in zip(chosen, splits, strict=True):
            column[place] = of_all[at]
        if known is not None:
            signs[place] = ties.monotonic.signs[ties.first + chosen.feature[place]]
        choice = Choice(
            request.nodes[place],
            chosen.feature[place],
            chosen.bin[place],
            chosen.missing_left[place],
            chosen.words[place],
        )
        choices[name] = seal(choice_key(party, name), wire.encode(choice))
    chosen.total[:] = totals
    finish_splits(chosen, truth.rule)
    sides = np.stack([chosen.left, totals - chosen.left], axis=1)
    is_open = truth.rule.open_nodes(sides.reshape(-1, totals.shape[1])).reshape(-1, 2) & request.deeper[:, None]
    alone = winner < 0
    is_open[alone, 0], is_open[alone, 1] = truth.rule.open_nodes(totals[alone]) & ~varies[alone], False
    note = Note(sides[~alone].reshape(-1, totals.shape[1]))
    if known is not None:
        above, split = known[request.nodes[~alone]], ~alone
        below = child_bounds(above, signs[split], chosen.left[split], totals[split], truth.rule)
        note = msgspec.structs.replace(note, bounds=np.concatenate([known, below]))
    return Decisions(
        winner=winner,
        gain=np.where(alone, 0.0, chosen.gain),
        rows=sizes,
        is_open=is_open,
        choices=choices,
        note=seal(party.secret_for("notes"), wire.encode(note)),
    )


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
