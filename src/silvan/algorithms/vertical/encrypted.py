"""Vertical forests with encrypted labels: parties add up ciphertexts, only the label holder can read the sums.

Three exchanges a level. Parties send the packed, encrypted sums of every bin of their columns at each open node; the
label holder reads them and says who splits which node, sealing where for the winner; the winners send the partitions.
The coordinator carries all of this and learns who splits which node, what it is worth, and which rows go left. What the
leaves are worth stays with the label holder. It keeps no notes: what it will need at the end it hands the coordinator,
sealed. The trees are, node for node, those of encoded labels; a forest of depth D takes at most 3 D + 2 rounds.
"""

from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.vertical import encrypted_labels
from silvan.algorithms.vertical.coordinator import Drawn, VerticalCoordinator
from silvan.algorithms.vertical.encrypted_labels import (
    EncryptedLabels,
    Encryption,
    EncryptLabels,
    check_labels,
    read_key,
)
from silvan.algorithms.vertical.encrypted_splits import KeepChosen, LeftBits, SplitChosen
from silvan.algorithms.vertical.encrypted_sums import DecideNodes, Decisions, EncryptedSums, Offer, SumLabels
from silvan.algorithms.vertical.party_shares import Keeping
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation.agreement.agreement import Columns
from silvan.federation.federation import Federation
from silvan.forest.forest_shares import Structure
from silvan.privacy.paillier.cipher import check_ciphertexts
from silvan.privacy.paillier.paillier_keys import SIZES
from silvan.tree.fit import Settings
from silvan.tree.grow import Grown
from silvan.tree.partition import count_sides
from silvan.tree.split import Splits

# -- at the coordinator


def fit(
    federation: Federation,
    columns: Columns,
    schema: Schema,
    settings: Settings,
    feature_key: np.ndarray,
    key_bits: int,
) -> Structure:
    """Grow the forest of all parties' columns; gives its structure, every party keeps its share."""
    return EncryptedCoordinator(federation, columns, schema, settings, key_bits).grow(feature_key)


class _Told:
    """Which nodes may be split, where only the label holder knows: it says so, in the second column."""

    def open_nodes(self, stats: np.ndarray) -> np.ndarray:
        """Read what was told."""
        replies: np.ndarray = stats[:, 1] > 0
        return replies


class EncryptedCoordinator(VerticalCoordinator):
    """The coordinator where labels are encrypted: of a node it knows how many rows it has, and whether it is open."""

    model_prefix: ClassVar[str] = "EncryptedBooks"
    keeping: ClassVar[type[Keeping]] = KeepChosen

    def __init__(
        self, federation: Federation, columns: Columns, schema: Schema, settings: Settings, key_bits: int
    ) -> None:
        super().__init__(federation, columns, schema, settings)
        if key_bits not in SIZES and not encrypted_labels.TESTING:
            raise InputError(f"key_bits must be {' or '.join(map(str, SIZES))}, got {key_bits!r}")
        replies: EncryptedLabels = federation.ask(
            EncryptLabels(rows=self.rows, label=schema.label, settings=settings, key_bits=key_bits),
            to=[self.holder],
            check=lambda _, reply: check_labels(reply, len(columns.training), schema.n_classes, key_bits),
        )[self.holder]
        self.public = read_key(replies.public)
        self.encryption = Encryption(federation.blob(replies.labels), replies.public, replies.lanes)
        self.make_contexts()
        self.choices: dict[str, list[bytes]] = {party: [] for party in self.parties}
        self.notes: list[bytes] = []

    def rule(self) -> Any:
        """Say which nodes may be split as the label holder told."""
        return _Told()

    def decide(self, nodes: np.ndarray, drawn: Drawn, deeper: np.ndarray) -> Splits:
        """Gather sums, have the label holder decide, and ask the winners for the sides."""
        replies = self._decisions(nodes, drawn, deeper, self._sums(nodes, drawn))
        splits = Splits.empty(len(nodes), 2)
        splits.feature[:], splits.gain[:] = replies.winner, replies.gain
        splits.total[:, 0], splits.total[:, 1] = replies.rows, replies.is_open.sum(axis=1)
        splits.left[:, 1] = replies.is_open[:, 0]
        self.notes.append(replies.note)
        self._split(nodes, drawn, replies, splits)
        return splits

    def _sums(self, nodes: np.ndarray, drawn: Drawn) -> dict[str, Offer]:
        requests = {
            party: SumLabels(
                ground=self.ground(party), nodes=nodes[which], features=features, encryption=self.encryption
            )
            for party, (which, features) in drawn.items()
            if len(which) and party != self.holder
        }

        def check_sums(site: str, reply: EncryptedSums) -> None:
            check_ciphertexts(self.public, reply.sums)  # here, where it is known who sent them

        replies: dict[str, EncryptedSums] = self.federation.ask(requests, check=check_sums) if requests else {}
        return {party: Offer(*drawn[party], reply.layout, reply.sums) for party, reply in replies.items()}

    def _decisions(self, nodes: np.ndarray, drawn: Drawn, deeper: np.ndarray, offers: dict[str, Offer]) -> Decisions:
        which, features = drawn[self.holder]

        def check(site: str, reply: Decisions) -> None:
            self._check_decisions(reply, len(nodes), drawn, deeper)

        request = DecideNodes(
            ground=self.ground(self.holder),
            label=self.schema.label,
            class_weight=self.settings.class_weight,
            encryption=self.encryption,
            parties=self.parties,
            nodes=nodes,
            deeper=deeper,
            which=which,
            features=features,
            offers=offers,
        )
        reply: Decisions = self.federation.ask(request, to=[self.holder], check=check)[self.holder]
        return reply

    def _check_decisions(self, replies: Decisions, n: int, drawn: Drawn, deeper: np.ndarray) -> None:
        shapes = {"winner": ((n,), np.int32), "gain": ((n,), np.float64), "rows": ((n,), np.int64)}
        for name, (shape, dtype) in {**shapes, "is_open": ((n, 2), np.bool_)}.items():
            if getattr(replies, name).shape != shape or getattr(replies, name).dtype != dtype:
                raise FormatError("its decisions are not as many as the nodes")
        if not np.isfinite(replies.gain).all() or (replies.gain < 0).any() or (replies.rows < 0).any():
            raise FormatError("its decisions are not possible")
        if (replies.is_open[replies.winner >= 0] & ~deeper[replies.winner >= 0, None]).any():
            raise FormatError("it goes on where trees must end")
        for k in np.unique(replies.winner[replies.winner >= 0]).tolist():
            party = self.parties[k] if k < len(self.parties) else ""
            if party not in replies.choices or not np.isin(np.flatnonzero(replies.winner == k), drawn[party][0]).all():
                raise FormatError("it has a node split by a party without a column there")
        if replies.winner.min(initial=-1) < -1:
            raise FormatError("its decisions are not possible")

    def _split(self, nodes: np.ndarray, drawn: Drawn, told: Decisions, splits: Splits) -> None:
        """Ask the winners for the sides of the nodes whose children may be split again."""
        won = self.won(nodes, drawn, splits)
        found = told.winner >= 0
        needed = found & told.is_open.any(axis=1)
        requests = {}
        for party, (place, own) in won.items():
            self.choices[party].append(told.choices[party])
            if needed[place].any():
                requests[party] = SplitChosen(
                    ground=self.ground(party),
                    nodes=nodes[place],
                    features=own,
                    choice=told.choices[party],
                    needed=needed[place],
                )

        def check(site: str, reply: LeftBits) -> None:
            place = won[site][0]
            if reply.bits.dtype != np.uint8 or count_sides(reply.bits, told.rows[place][needed[place]]) is None:
                raise FormatError("a partition with the wrong number of bits")

        replies: dict[str, LeftBits] = self.federation.ask(requests, check=check) if requests else {}
        bits = {party: (won[party][0], reply.bits) for party, reply in replies.items()}
        self.join_bits(found, needed, told.rows, bits)

    def drew(self, roots: np.ndarray) -> np.ndarray:
        """Say which trees have drawn any row."""
        drew: np.ndarray = roots[:, 0] > 0
        return drew

    def leaves(self, grown: Grown, nodes: np.ndarray) -> dict[str, dict[str, Any]]:
        """Hand the label holder its notes back, and every winner what was chosen for it."""
        replies: dict[str, dict[str, Any]] = {party: {"choices": self.choices[party]} for party in self.parties}
        replies[self.holder] |= {
            "label": self.schema.label,
            "class_weight": self.settings.class_weight,
            "leaves": nodes,
            "notes": tuple(self.notes),
        }
        return replies

    def check_values(self, value: np.ndarray, structure: Structure, site: str) -> None:
        """Nobody tells what leaves are worth."""
        if len(value):
            raise FormatError("it speaks of leaf values")
