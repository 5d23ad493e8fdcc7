"""The parties' part of a forest with encrypted labels at each level: sums of ciphertexts, and the rows that go left.

Parties add up ciphertexts by bin, and the label holder decides on the sums (``encrypted_decisions.py``). A winner
unseals its choice and sends the partition.

The coordinator can change ciphertexts that it forwards without reading them, and learn from a changed decision. So
parties sign their sums and their partitions together with the nodes.
"""

from dataclasses import replace
from typing import ClassVar

import msgspec
import numpy as np

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.vertical.encrypted_labels import (
    masks_for,
    received_rows,
    stream,
)
from silvan.algorithms.vertical.party_rows import (
    Growing,
    GrowingContext,
    descend,
)
from silvan.data.bins.bins import HistogramBins
from silvan.data.schema import MAX_BINS
from silvan.errors import FormatError, RefusedError, reject
from silvan.federation import wire
from silvan.federation.message import Blob, Derived, Reply, SignedReply
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.forest.category_set import SET_WORDS
from silvan.privacy.identity.seal import LABEL_HOLDER, seal, unseal
from silvan.privacy.paillier.cipher import Ciphertexts
from silvan.privacy.paillier.packing import sum_rows
from silvan.tree.fit import Settings
from silvan.tree.partition import count_sides, pack_sides
from silvan.tree.split import Splits

# -- messages


class Choice(msgspec.Struct, frozen=True):
    """What is sealed for a winner: how to split the nodes it won."""

    rounds: list[Blob]  # the partitions before
    nodes: np.ndarray
    feature: np.ndarray
    bin: np.ndarray
    missing_left: np.ndarray
    words: np.ndarray


class EncryptedSums(SignedReply, frozen=True, kw_only=True):
    """Sums by bin that only the label holder can read, and the number of rows per bin, sealed for it."""

    asked: str  # digest of what they are sums of
    layout: bytes
    sums: Ciphertexts

    def work(self) -> bytes:
        """Return what is signed: the sums, and what they are of."""
        return wire.encode(msgspec.structs.replace(self, signature=b""))


class SumLabels(Growing, frozen=True, kw_only=True):
    """Encrypted sums of the label by bin of the party's columns, at each open node."""

    reply: ClassVar[type[Reply]] = EncryptedSums


class _Asked(msgspec.Struct, frozen=True):
    """What a party was asked about nodes of a forest so far."""

    rows: Blob
    draws: bytes
    settings: Settings
    rounds: list[Blob]
    nodes: np.ndarray
    what: np.ndarray


def asked_of(ground: GrowingContext, rounds: list[Blob], nodes: np.ndarray, what: np.ndarray) -> str:
    """Return a digest of the request to a party, equal for the party and the label holder.

    ``what`` are the features of sums, or which sides of splits are needed.
    """
    settings = replace(ground.settings, monotonic_cst=None)
    return digest(wire.encode(_Asked(ground.rows, ground.draws, settings, rounds, nodes, what)))


class BinLayout(msgspec.Struct, frozen=True):
    """What is sealed beside sums: rows by bin, the bins of each column, and which columns are categorical.

    Also where the party's columns stand among all, and which way predictions may go with them.
    """

    first_column: int
    signs: list[int]
    counts: np.ndarray
    last: np.ndarray
    shift: np.ndarray
    categorical: np.ndarray

    def bins(self) -> HistogramBins:
        """Return the bins of the columns; raise ``FormatError`` if they are impossible."""
        last, shift, categorical = self.last, self.shift, self.categorical
        complaint, n = "the bins of a party are not possible", last.size
        check_arrays(complaint, (last, (n,), np.int32), (shift, (n,), np.uint8), (categorical, (n,), np.bool_))
        if not n or not 0 <= last.min() <= last.max() <= MAX_BINS or shift.max() > 2 or shift[categorical].any():
            raise FormatError(complaint)
        return HistogramBins.of(last, shift)


class LeftBits(SignedReply, frozen=True, kw_only=True):
    """Which rows go left, as bits."""

    asked: str  # digest of what nodes they are of
    bits: np.ndarray

    def work(self) -> bytes:
        """Return what is signed: the bits, and the nodes that they are of."""
        return wire.encode(msgspec.structs.replace(self, signature=b""))


class SplitChosen(Growing, frozen=True, kw_only=True):
    """Which rows go left at nodes with a split chosen by the label holder."""

    reply: ClassVar[type[Reply]] = LeftBits

    choice: Derived[bytes]
    needed: Derived[np.ndarray]


# -- at a party


@answers(SumLabels)
def sum_labels(site: Site, request: SumLabels) -> EncryptedSums:
    """Add up ciphertexts by bin."""
    party, ground = party_of(site), request.ground
    descent = descend(party, ground)
    descent.check(request.nodes, request.features)
    table = descent.rows.table
    rows = received_rows(party, ground, len(table))
    masks, entropy = masks_for(party, rows.key), stream(party, f"sums of {digest(wire.encode(request))}")
    counts, sums = sum_rows(rows, masks, descent.rows, request.nodes, request.features, party.n_jobs, entropy)
    bins, first = table.bins, descent.first_column
    layout = BinLayout(first, ground.settings.signs, counts, bins.last, bins.shift, bins.categorical)
    sealed = seal(party.key_for("layout of sums"), wire.encode(layout))
    asked = asked_of(ground, ground.rounds, request.nodes, request.features)
    return EncryptedSums(asked=asked, layout=sealed, sums=sums)


@answers(SplitChosen)
def split_chosen(site: Site, request: SplitChosen) -> LeftBits:
    """Split nodes as the label holder chose; return the left sides that are needed."""
    party, ground, nodes, needed = party_of(site), request.ground, request.nodes, request.needed
    descent = descend(party, ground)
    descent.check(nodes, request.features)
    check_arrays("the nodes do not match", (needed, nodes.shape, np.bool_))
    splits = open_choices(party, ground, nodes, [request.choice], last=True)
    some = np.flatnonzero(needed)
    bits = pack_sides(descent.rows, nodes[some], Splits(*(column[some] for column in splits)), descent.threads)
    sizes = (descent.rows.stops - descent.rows.starts)[nodes[some]]
    left = count_sides(bits, sizes)
    if left is None or (np.minimum(left, sizes - left) < request.min_leaf).any():
        raise RefusedError("a side has fewer rows than a leaf may have")
    return LeftBits(asked=asked_of(ground, ground.rounds, nodes, needed), bits=bits)


def open_choices(
    party: Party, ground: GrowingContext, nodes: np.ndarray, sealed: list[bytes], *, last: bool = False
) -> Splits:
    """Unseal the splits that the label holder chose for this party, and check them against its columns.

    They are of levels of this forest; if ``last``, of the one that comes next.
    """
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
        before = ground.rounds if last else ground.rounds[: len(choice.rounds)]
        if not np.array_equal(choice.nodes, nodes[here]) or choice.rounds != before:
            raise FormatError(complaint)
        splits.feature[here], splits.bin[here] = choice.feature, choice.bin
        splits.missing_left[here], splits.words[here] = choice.missing_left, choice.words
        start += n
    reject(start != len(nodes), "the choices do not match the nodes")
    if len(nodes):
        highest = descend(party, ground).rows.table.bins.last
        if splits.feature.min() < 0 or splits.feature.max() >= len(highest):
            raise FormatError("a choice of a column that does not exist")
        if (splits.bin < 0).any() or (splits.bin > highest[splits.feature]).any():
            raise FormatError("a choice of a bin that does not exist")
    return splits


def choice_key(party: Party, name: str) -> bytes:
    """Return the key that seals the choices for a winner, in this task alone."""
    return party.key_for(f"choices for {name} in {party.task} of {party.study}")
