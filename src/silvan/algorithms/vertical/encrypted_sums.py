"""Encrypted sums of labels by bin: parties add up ciphertexts, the label holder reads them and decides every node."""

from dataclasses import replace
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from silvan.algorithms.level_checks import are_different, check_nodes
from silvan.algorithms.vertical.coordinator import best_offers
from silvan.algorithms.vertical.encrypted_labels import (
    Encryption,
    Truth,
    masks_for,
    private_key,
    received_rows,
    stream,
    truth_of,
    weighted,
)
from silvan.algorithms.vertical.encrypted_splits import Choice, Note, open_note, seal_choice, seal_note
from silvan.algorithms.vertical.party_rows import Growing, GrowingContext, descend
from silvan.data.bins.bins import HistogramBins
from silvan.data.schema import MAX_BINS, Label
from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.message import Ask, Reply
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.privacy.identity.seal import seal, unseal
from silvan.privacy.paillier.cipher import Ciphertexts
from silvan.privacy.paillier.packing import AskedHistograms, RowsByNode, read_sums, sum_rows
from silvan.privacy.paillier.paillier_keys import PrivateKey
from silvan.tree.draw import Monotonic, Ties, tie_ranks
from silvan.tree.gain import child_bounds
from silvan.tree.level import add_nodes, choose_listed, find_listed, finish_splits
from silvan.tree.node_rows import NodeRows
from silvan.tree.split import Splits

# -- messages


class EncryptedSums(Reply, frozen=True, kw_only=True):
    """Sums by bin that only the label holder can read, and how many rows each bin has, sealed for it."""

    layout: bytes
    sums: Ciphertexts


class SumLabels(Growing, frozen=True, kw_only=True):
    """Encrypted sums of the label by bin of the party's columns, at each open node."""

    reply: ClassVar[type[Reply]] = EncryptedSums

    encryption: Encryption


class Layout(msgspec.Struct, frozen=True):
    """What is sealed beside sums: rows by bin, the bins of each column, and which columns are categorical."""

    counts: np.ndarray
    last: np.ndarray
    shift: np.ndarray
    categorical: np.ndarray

    def bins(self) -> HistogramBins:
        """Return the bins of the columns; raise ``FormatError`` for what cannot be."""
        last, shift, categorical = self.last, self.shift, self.categorical
        if last.ndim != 1 or last.dtype != np.int32 or not len(last) or not 0 <= last.min() <= last.max() <= MAX_BINS:
            raise FormatError("the bins of a party are not possible")
        if shift.shape != last.shape or shift.dtype != np.uint8 or shift.max() > 2:
            raise FormatError("the bins of a party are not possible")
        if categorical.shape != last.shape or categorical.dtype != np.bool_ or shift[categorical].any():
            raise FormatError("the bins of a party are not possible")
        return HistogramBins.of(last, shift)


class Offer(msgspec.Struct, frozen=True):
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

    ground: GrowingContext
    label: Label
    class_weight: str | list[float] | None
    encryption: Encryption
    parties: list[str]
    nodes: np.ndarray
    seeds: np.ndarray  # of the nodes: by them, and a key of its own, the label holder decides between equal gains
    deeper: np.ndarray  # whether a node's children may be split again
    which: np.ndarray  # nodes with columns of the label holder's own
    features: np.ndarray
    offers: dict[str, Offer]
    note: bytes = b""  # of the level before, to compare the rows with
    barren: np.ndarray | None = None  # bool, of the nodes: whether a split must have a gain
    monotonic_cst: list[int] | UnsetType = UNSET  # which way predictions may go with each column of all parties

    @property
    def min_leaf(self) -> int:
        """Rows a leaf has at least, for the party's policy to judge."""
        return self.ground.settings.min_samples_leaf


class Found(NamedTuple):
    """A party's best splits of some nodes, and what decides between equal gains there."""

    which: np.ndarray
    splits: Splits
    ties: Ties


# -- at a party


@answers(SumLabels)
def sum_labels(site: Site, request: SumLabels) -> EncryptedSums:
    """Add up ciphertexts by bin."""
    party = party_of(site)
    descent = descend(party, request.ground)
    descent.check(request.nodes, request.features)
    table, stretches = descent.rows.table, descent.rows
    rows = received_rows(party, request.encryption, len(table))
    counts, sums = sum_rows(
        rows,
        masks_for(party, rows.key),
        RowsByNode(
            table.codes,
            stretches.order,
            stretches.starts[request.nodes],
            stretches.stops[request.nodes],
            stretches.offsets[request.nodes],
            table.bins.shift,
        ),
        AskedHistograms(request.features, table.bins.n_bins),
        party.n_jobs,
        stream(party, f"sums of {digest(wire.encode(request))}"),
    )
    layout = Layout(counts, table.bins.last, table.bins.shift, table.bins.categorical)
    return EncryptedSums(layout=seal(party.key_for("layout of sums"), wire.encode(layout)), sums=sums)


# -- at the label holder


@answers(DecideNodes)
def decide_nodes(site: Site, request: DecideNodes) -> Decisions:
    """Decrypt all parties' sums and choose the best split of every node."""
    party = party_of(site)
    descent = descend(party, request.ground)
    truth = truth_of(party, request.ground.rows, request.label, weighted(request.ground.settings, request.class_weight))
    nodes, n = request.nodes, len(request.nodes)
    if nodes.ndim != 1 or nodes.dtype != np.int32:
        raise FormatError("the nodes do not match")
    if not are_different(nodes, len(descent.is_split)):
        raise FormatError("an open node does not exist, or comes twice")
    if request.deeper.shape != (n,) or request.deeper.dtype != np.bool_ or party.name not in request.parties:
        raise FormatError("the nodes do not match")
    if request.barren is not None and (request.barren.shape != (n,) or request.barren.dtype != np.bool_):
        raise FormatError("the nodes do not match")
    table = replace(descent.rows.table, target=truth.target, n_stats=truth.measure.n_stats)
    rows = replace(descent.rows, table=table)
    totals, known = add_nodes(rows, nodes), _known_bounds(party, request, len(descent.is_split))
    ties = descent.ties(request.seeds, n)
    if known is not None:
        ties = ties._replace(monotonic=Monotonic(np.array(request.monotonic_cst, np.int8), known[nodes]))
    found: dict[str, Found] = {}
    if len(request.which):
        which = _check_places(request.which, n)
        descent.check(nodes[which], request.features)
        own = find_listed(rows, nodes[which], request.features, truth.rule, ties.take(which), descent.threads)
        found[party.name] = Found(which, own, ties.take(which))
    for name, offer in request.offers.items():
        if name not in request.parties or name == party.name:
            raise FormatError("an offer of nobody")
        which = _check_places(offer.which, n)
        theirs = ties.take(which)._replace(first=offer.first_column)
        key = private_key(party, request.encryption.lanes.bits, offer.sums.key)
        try:
            splits = _splits_of(party, request, offer, key, truth, rows, totals[which], theirs, descent.threads)
        except (FormatError, RefusedError) as error:
            raise RefusedError(f"the sums of party {name!r} do not fit the rows, or cannot be read") from error
        found[name] = Found(which, splits, theirs)
    decided = _decide(party, request, truth, found, totals, (rows.stops - rows.starts)[nodes], known)
    return msgspec.structs.replace(decided, wrong=_not_as_told(party, request, len(descent.is_split), totals))


def _known_bounds(party: Party, request: DecideNodes, n_nodes: int) -> np.ndarray | None:
    """Return what the predictions of every node are held to, None if nothing is asked."""
    if isinstance(request.monotonic_cst, UnsetType):
        return None
    if len(request.monotonic_cst) != request.ground.n_columns or not set(request.monotonic_cst) <= {-1, 0, 1}:
        raise FormatError("not every column is told which way it may go")
    if not request.note:
        return np.tile([-np.inf, np.inf], (n_nodes, 1))
    bounds = open_note(party, request.note).bounds
    if isinstance(bounds, UnsetType) or bounds.shape != (n_nodes, 2):
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
    if which.ndim != 1 or which.dtype != np.int64 or (np.diff(which) <= 0).any():
        raise FormatError("the nodes do not match")
    if which.min(initial=0) < 0 or which.max(initial=0) >= n:
        raise FormatError("the nodes do not match")
    return which


def _splits_of(
    party: Party,
    request: DecideNodes,
    offer: Offer,
    key: PrivateKey,
    truth: Truth,
    rows: NodeRows,
    totals: np.ndarray,
    ties: Ties,
    threads: int,
) -> Splits:
    """Decrypt a party's sums and return its best splits."""
    nodes = request.nodes[offer.which]
    layout = wire.decode(unseal(party.key_for("layout of sums"), offer.layout), Layout)
    bins = layout.bins()
    if not 0 <= offer.first_column <= request.ground.n_columns - len(bins.n_bins):
        raise FormatError("the columns of a party are not possible")
    places = np.arange(len(nodes), dtype=np.int32)
    check_nodes(places, offer.features, len(nodes), len(bins.n_bins))
    sums = read_sums(
        key,
        request.encryption.lanes,
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
    found: dict[str, "Found"],
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
    refused = (value <= 0.0) & (np.False_ if request.barren is None else request.barren)
    winner = np.where((value > -np.inf) & ~refused, best, -1).astype(np.int32)
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
        choices[name] = seal_choice(party, name, choice)
    chosen.total[:] = totals
    finish_splits(chosen, truth.rule)
    sides = np.stack([chosen.left, totals - chosen.left], axis=1)
    is_open = truth.rule.open_nodes(sides.reshape(-1, totals.shape[1])).reshape(-1, 2) & request.deeper[:, None]
    alone = winner < 0
    is_open[alone, 0], is_open[alone, 1] = truth.rule.open_nodes(totals[alone]) & ~varies[alone], False
    roots = totals if not request.ground.rounds and n == request.ground.settings.n_estimators else totals[:0]
    note = Note(roots, sides[~alone].reshape(-1, totals.shape[1]))
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
        note=seal_note(party, note),
    )
