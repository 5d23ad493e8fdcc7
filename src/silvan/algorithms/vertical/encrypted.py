"""Vertical forests with encrypted labels: parties add up ciphertexts, only the label holder can read the sums.

A level takes three exchanges. Parties send the packed, encrypted sums of every bin of their columns at each open
node; the label holder reads them and says who splits which node, with the split itself sealed for the winner; the
winners send the partitions. The coordinator carries all of this and learns who splits which node, the gain, and which
rows go left. Leaf values stay with the label holder. Meanwhile it stores nothing: what it will need at the end it
gives to the coordinator, sealed. The trees are, node for node, those of encoded labels; a forest of depth D takes at
most 3 D + 2 rounds.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.vertical import encrypted_labels
from silvan.algorithms.vertical.coordinator import Drawn, VerticalCoordinator
from silvan.algorithms.vertical.encoded_labels import LabelsForParties
from silvan.algorithms.vertical.encrypted_decisions import DecideNodes, Decisions, KeepChosen, PartySums
from silvan.algorithms.vertical.encrypted_labels import EncryptedLabels, EncryptLabels, check_labels, read_key
from silvan.algorithms.vertical.encrypted_splits import EncryptedSums, LeftBits, SplitChosen, SumLabels
from silvan.algorithms.vertical.party_shares import Keeping
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError, reject
from silvan.federation import wire
from silvan.federation.agreement import Columns
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Request
from silvan.privacy.paillier.cipher import check_ciphertexts
from silvan.privacy.paillier.paillier_keys import SIZES
from silvan.tree.fit import Settings
from silvan.tree.grow import Frontier, Grown
from silvan.tree.partition import is_bit_per_row
from silvan.tree.split import Splits

# -- at the coordinator


@dataclass(frozen=True)
class _HolderRule:
    """The rule for splittable nodes if only the label holder knows it: its answer is the second column."""

    needs_gain: bool

    def open_nodes(self, stats: np.ndarray) -> np.ndarray:
        """Return which nodes may be split."""
        is_open: np.ndarray = stats[:, 1] > 0
        return is_open


class EncryptedCoordinator(VerticalCoordinator):
    """Grows a forest with encrypted labels; the coordinator knows a node's number of rows, and whether it is open."""

    asks: ClassVar[tuple[type[Request], ...]] = (EncryptLabels, SumLabels, DecideNodes, SplitChosen, KeepChosen)
    model_prefix: ClassVar[str] = "EncryptedBooks"
    keeping: ClassVar[type[Keeping]] = KeepChosen
    tells_values: ClassVar[bool] = False

    def __init__(
        self, federation: Federation, columns: Columns, schema: Schema, settings: Settings, key_bits: int
    ) -> None:
        super().__init__(federation, columns, schema, settings)
        if key_bits not in SIZES and not encrypted_labels.TESTING:
            raise InputError.wrong("key_bits", " or ".join(map(str, SIZES)), key_bits)
        self.key_bits = key_bits

        def check(site: str, reply: LabelsForParties) -> None:
            labels = wire.decode(reply.labels, EncryptedLabels)
            check_labels(labels, len(columns.training), schema.n_classes, key_bits)

        request = EncryptLabels(rows=self.rows, label=schema.label, settings=self.settings_for([]), key_bits=key_bits)
        reply: LabelsForParties = federation.ask(request, to=[self.holder], check=check)[self.holder]
        self.public = read_key(wire.decode(reply.labels, EncryptedLabels).public)
        self.rule = _HolderRule(not schema.n_classes)
        labels = federation.work(self.holder, reply)
        others = {party: labels for party in self.parties if party != self.holder}
        self.make_contexts(settings.signs, others, coded=False)
        self.choices: dict[str, list[bytes]] = {party: [] for party in self.parties}
        self.notes: list[Blob] = []  # one per level, sealed by the label holder for itself
        self.signatures: dict[str, bytes] = {}  # of the last partition, by the parties that made it

    def decide(self, frontier: Frontier, drawn: Drawn, deeper: np.ndarray) -> Splits:
        """Ask parties for encrypted sums, the label holder for decisions, and the winners for the sides."""
        nodes, seeds = frontier.node.astype(np.int32), frontier.seed
        decisions = self._decisions(frontier, drawn, deeper, self._sums(nodes, drawn))
        splits = Splits.empty(len(nodes), 2)
        splits.feature[:], splits.gain[:] = decisions.winner, decisions.gain
        splits.total[:, 0], splits.total[:, 1] = decisions.rows, decisions.is_open.sum(axis=1)
        splits.left[:, 1] = decisions.is_open[:, 0]
        splits.varies[:] = decisions.winner >= 0  # if there is no split, the label holder knows whether to continue
        self.notes.append(self.federation.blob(decisions.note))
        self._split(nodes, seeds, drawn, decisions, splits)
        return splits

    def _sums(self, nodes: np.ndarray, drawn: Drawn) -> dict[str, PartySums]:
        requests = {
            party: SumLabels(ground=self.context(party), nodes=nodes[which], features=features)
            for party, (which, features) in drawn.items()
            if len(which) and party != self.holder
        }

        def check_sums(site: str, reply: EncryptedSums) -> None:
            check_ciphertexts(self.public, reply.sums)  # here, where the sender is known

        replies: dict[str, EncryptedSums] = self.federation.ask(requests, check=check_sums) if requests else {}
        return {party: PartySums(*drawn[party], reply) for party, reply in replies.items()}

    def _decisions(
        self, frontier: Frontier, drawn: Drawn, deeper: np.ndarray, offers: dict[str, PartySums]
    ) -> Decisions:
        nodes = frontier.node.astype(np.int32)
        which, features = drawn[self.holder]

        def check(site: str, reply: Decisions) -> None:
            self._check_decisions(reply, len(nodes), drawn, deeper)

        request = DecideNodes(
            ground=self.context(self.holder),
            label=self.schema.label,
            class_weight=self.settings.class_weight,
            key_bits=self.key_bits,
            monotonic=bool(self.settings.signs),
            parties=self.parties,
            nodes=nodes,
            seeds=frontier.seed,
            deeper=deeper,
            barren=frontier.barren,
            which=which,
            features=features,
            offers=offers,
            notes=list(self.notes),
            signatures=self.signatures,
        )
        reply: Decisions = self.federation.ask(request, to=[self.holder], check=check)[self.holder]
        return reply

    def _check_decisions(self, decisions: Decisions, n: int, drawn: Drawn, deeper: np.ndarray) -> None:
        """Raise ``FormatError`` for decisions that are not possible."""
        check_arrays(
            "its decisions are not as many as the nodes",
            (decisions.winner, (n,), np.int32),
            (decisions.gain, (n,), np.float64),
            (decisions.rows, (n,), np.int64),
            (decisions.is_open, (n, 2), np.bool_),
        )
        if not np.isfinite(decisions.gain).all() or (decisions.gain < 0).any() or (decisions.rows < 0).any():
            raise FormatError("its decisions are not possible")
        if (decisions.is_open[decisions.winner >= 0] & ~deeper[decisions.winner >= 0, None]).any():
            raise FormatError("it continues where trees must end")
        for k in np.unique(decisions.winner[decisions.winner >= 0]).tolist():
            party = self.parties[k] if k < len(self.parties) else ""
            if (
                party not in decisions.choices
                or not np.isin(np.flatnonzero(decisions.winner == k), drawn[party][0]).all()
            ):
                raise FormatError("it has a node split by a party without a column there")
        reject(decisions.winner.min(initial=-1) < -1, "its decisions are not possible")

    def _split(self, nodes: np.ndarray, seeds: np.ndarray, drawn: Drawn, decisions: Decisions, splits: Splits) -> None:
        """Ask the winners for the sides of the nodes whose children may be split again."""
        won = self.won(nodes, seeds, drawn, splits)
        found = decisions.winner >= 0
        needed = found & decisions.is_open.any(axis=1)
        requests = {}
        for party, (place, own) in won.items():
            self.choices[party].append(decisions.choices[party])
            if needed[place].any():
                requests[party] = SplitChosen(
                    ground=self.context(party),
                    nodes=nodes[place],
                    features=own,
                    choice=decisions.choices[party],
                    needed=needed[place],
                )

        def check(site: str, reply: LeftBits) -> None:
            place = won[site][0]
            if reply.bits.dtype != np.uint8 or not is_bit_per_row(reply.bits, decisions.rows[place][needed[place]]):
                raise FormatError("a partition with the wrong number of bits")

        replies: dict[str, LeftBits] = self.federation.ask(requests, check=check) if requests else {}
        self.signatures = {party: reply.signature for party, reply in replies.items()}
        bits = {party: (won[party][0], reply.bits) for party, reply in replies.items()}
        self.join_bits(found, needed, decisions.rows, bits)

    def n_rows(self, stats: np.ndarray) -> np.ndarray:
        """Return the rows of nodes, which are the first column."""
        rows: np.ndarray = stats[:, 0]
        return rows

    def keeping_fields(self, grown: Grown, nodes: np.ndarray) -> dict[str, dict[str, Any]]:
        """Return the label holder's notes for it, and each winner's sealed choices."""
        fields: dict[str, dict[str, Any]] = {party: {"choices": self.choices[party]} for party in self.parties}
        fields[self.holder] |= {
            "label": self.schema.label,
            "class_weight": self.settings.class_weight,
            "leaves": nodes,
            "notes": tuple(self.notes),
        }
        return fields
