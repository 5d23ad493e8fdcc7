"""The coordinator of a vertical forest, with encoded or encrypted labels.

It samples features, sends each party its own, orders the winners' partitions by node so that nobody learns who won
which, and assigns the final node numbers at the end.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import numpy as np

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.requests import MAX_TREES
from silvan.algorithms.vertical.columns import label_holder_of, own_columns_blob, rows_blob
from silvan.algorithms.vertical.party_rows import GrowingContext, Round
from silvan.algorithms.vertical.party_shares import Keeping, KeepShare, LeafValues
from silvan.data.bins.grid import Grid
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError, reject
from silvan.federation import wire
from silvan.federation.agreement import Columns
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Request
from silvan.federation.store import digest
from silvan.forest.forest_shares import Structure
from silvan.tree.fit import Settings, level_order
from silvan.tree.grow import Frontier, Grown, Plan, grow
from silvan.tree.level import sample_level
from silvan.tree.partition import spread
from silvan.tree.split import Splits

Drawn = dict[str, tuple[np.ndarray, np.ndarray]]
"""For each party: the nodes of a level that sampled some of its columns, and these columns."""


class VerticalCoordinator(ABC):
    """Grows a vertical forest; subclasses find a level's splits, which depends on how labels are kept secret."""

    asks: ClassVar[tuple[type[Request], ...]]  # kinds of messages used for growing
    keeping: ClassVar[type[Keeping]] = KeepShare
    model_prefix: ClassVar[str]  # hashed into the id of a model, so it never changes
    tells_values: ClassVar[bool] = True  # whether the label holder computes the leaf values
    rule: Any  # the rule for splittable nodes, given the statistics that ``decide`` returns

    def __init__(self, federation: Federation, columns: Columns, schema: Schema, settings: Settings) -> None:
        self.holder = label_holder_of(columns)
        if not 1 <= settings.n_estimators <= MAX_TREES:
            raise InputError.wrong("n_estimators", f"1 to {MAX_TREES}", settings.n_estimators)
        settings.check_compiled("for columns at several parties")
        self.federation, self.schema, self.settings = federation, schema, settings
        self.columns, self.owners, self.parties = columns, columns.owners, list(columns.owners)
        # only the parties check monotonic constraints: they alone know which column splits a node
        self.plan: Plan = replace(settings.federated_plan(len(schema.features)), monotonic=())
        self.rows, self.draws = rows_blob(federation, columns.training), columns.draws
        self.rounds: list[Blob] = []
        self.level = np.zeros(0, np.bool_), np.zeros(0, np.uint8)  # of the new splits: needed, bits
        self.made: dict[str, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {party: [] for party in self.parties}
        self.levels = 0
        self.contexts: dict[str, GrowingContext] = {}

    def settings_for(self, signs: list[int], **more: Any) -> Settings:
        """Return the settings as a party sees them, with monotonic constraints for its columns only."""
        return replace(self.settings, monotonic_cst=signs or None, max_features=None, **more)

    def make_contexts(self, signs: list[int], labels: dict[str, Blob], *, coded: bool = True) -> None:
        """Record for every party the inputs of its trees, and the monotonic constraints of its columns.

        ``labels`` are those that parties compute on, by party; ``signs`` are of all columns if there are any.
        """
        for party, own in self.owners.items():
            self.contexts[party] = GrowingContext(
                rows=self.rows,
                columns=own_columns_blob(self.federation, self.columns, self.schema, party),
                first_column=own.start,
                width=max(len(self.schema.features), Grid.columns_alike()),
                settings=self.settings_for(signs[own.start : own.stop], class_weight=None),
                draws=self.draws,
                labels=labels.get(party),
                coded=coded,
            )

    def context(self, party: str) -> GrowingContext:
        """Return the common part of every request to a party: the inputs of the trees, and all partitions so far."""
        return msgspec.structs.replace(self.contexts[party], rounds=list(self.rounds))

    # -- growing

    def grow(self, feature_key: np.ndarray) -> Structure:
        """Grow all trees; return their structure, while every party keeps its share."""
        trees = np.arange(self.settings.n_estimators)
        grown = grow(trees, feature_key, self.plan, self.rule, self._find, self._apply)
        return self._finish(grown, feature_key)

    @abstractmethod
    def decide(self, frontier: Frontier, drawn: Drawn, deeper: np.ndarray) -> Splits:
        """Return a split for every open node; ``feature`` is the winning party's number, -1 without a split."""

    @abstractmethod
    def keeping_fields(self, grown: Grown, nodes: np.ndarray) -> dict[str, dict[str, Any]]:
        """Return, by party, the rest of the last request besides splits; ``nodes`` are leaves, left to right."""

    def _find(self, frontier: Frontier) -> Splits:
        features = sample_level(frontier, self.plan)
        self.levels += 1
        more = self.plan.max_rounds is None or self.levels < self.plan.max_rounds
        limit = np.inf if self.plan.max_depth is None else self.plan.max_depth
        drawn = {party: own_columns(features, self.owners[party]) for party in self.parties}
        return self.decide(frontier, drawn, more & (frontier.depth + 1 < limit))

    def won(
        self, nodes: np.ndarray, seeds: np.ndarray, drawn: Drawn, splits: Splits
    ) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return, by party, which nodes of a level it won and by which of its columns it may split them."""
        found = {}
        for k, party in enumerate(self.parties):
            place = np.flatnonzero(splits.feature == k)
            if len(place):
                which, features = drawn[party]
                own = features[np.searchsorted(which, place)]
                found[party] = place, own
                self.made[party].append((nodes[place], own, seeds[place]))
        return found

    def join_bits(
        self, found: np.ndarray, needed: np.ndarray, rows: np.ndarray, bits: dict[str, tuple[np.ndarray, np.ndarray]]
    ) -> None:
        """Order the parties' bits by node, so that nobody learns who won which."""
        lengths = np.where(needed, (rows + 7) >> 3, 0)
        begin = np.cumsum(lengths) - lengths
        joined = np.empty(int(lengths.sum()), np.uint8)
        for place, own in bits.values():
            spread(own, lengths[place], begin[place], joined)
        self.level = needed[found], joined

    def _apply(self, nodes: np.ndarray, splits: Splits, needed: np.ndarray) -> None:
        """Add a level's partitions to those that the next request repeats."""
        expected, bits = self.level
        assert np.array_equal(expected, needed)  # noqa: S101  or parties and coordinator grow different trees
        if len(nodes):
            self.rounds.append(self.federation.blob(wire.encode(Round(nodes.astype(np.int32), needed, bits))))

    # -- the end

    def _finish(self, grown: Grown, feature_key: np.ndarray) -> Structure:
        """Return the structure: nodes get their final numbers, and every party stores its share."""
        nodes, split_of = level_order(grown)
        structure = self._structure(grown, nodes, split_of, feature_key)
        place = np.full(len(grown.tree), -1, np.int64)
        place[nodes] = np.arange(len(nodes))
        fields = self.keeping_fields(grown, nodes[structure.leaves])
        replies: dict[str, LeafValues] = self.federation.ask(
            {party: self._keep(structure, party, place, fields.get(party, {})) for party in self.parties},
            check=lambda site, reply: self._check_values(reply.value, structure, site),
        )
        value = replies[self.holder].value
        if len(value):
            # they come from left to right; a forest has them in the order of its nodes
            structure = replace(structure, value=value[structure.spans[0][structure.owner < 0]])
        structure.check()
        return structure

    def _structure(self, grown: Grown, nodes: np.ndarray, split_of: np.ndarray, feature_key: np.ndarray) -> Structure:
        """Return the structure of the forest, without leaf values; its id is a digest of all that determines it."""
        inner = split_of >= 0
        owner, gain = np.full(len(split_of), -1, np.int32), np.zeros(len(split_of))
        owner[inner], gain[inner] = grown.feature[split_of[inner]], grown.gain[split_of[inner]]
        drew = self.n_rows(grown.stats[: grown.n_trees]) > 0
        if not drew.any():
            raise InputError(
                "no tree drew any row: there are too few rows in common; set bootstrap=False, or a larger max_samples"
            )
        determined = [self.federation.study, self.schema.hash, repr(self.settings), feature_key.tobytes().hex()]
        rounds = [blob.hash for blob in self.rounds]
        return Structure(
            model=digest(msgspec.json.encode([*determined, self.model_prefix, self.rows.hash, *rounds])),
            schema=self.schema,
            parties=tuple(self.parties),
            columns=tuple(len(own) for own in self.owners.values()),
            label_holder=self.holder,
            offsets=np.concatenate([[0], np.cumsum(np.bincount(grown.tree[nodes], minlength=grown.n_trees))]),
            owner=owner,
            gain=gain,
            weights=np.where(drew, 1.0, 0.0),
            value=np.zeros((0, max(self.schema.n_classes, 1))),
        )

    @abstractmethod
    def n_rows(self, stats: np.ndarray) -> np.ndarray:
        """Count the rows behind statistics that ``decide`` returned."""

    def _check_values(self, value: np.ndarray, structure: Structure, site: str) -> None:
        """Raise ``FormatError`` for leaf values that are not possible, or that a party should not send."""
        if site != self.holder or not self.tells_values:
            reject(len(value), "it sent leaf values without being asked")
            return
        n_classes = self.schema.n_classes
        complaint = "its leaf values are not as many as the leaves"
        check_arrays(complaint, (value, (structure.n_leaves, max(n_classes, 1)), np.float64))
        if not np.isfinite(value).all() or (n_classes and ((value < 0) | (value > 1)).any()):
            raise FormatError("its leaf values are not possible")

    def _keep(self, structure: Structure, party: str, place: np.ndarray, fields: dict[str, Any]) -> Keeping:
        """Return the request that tells a party where in the forest its splits are."""
        made = self.made[party]
        width = max((features.shape[1] for _, features, _ in made), default=1)
        padded = [np.pad(f, ((0, 0), (0, width - f.shape[1])), constant_values=-1) for _, f, _ in made]
        nodes = np.concatenate([np.zeros(0, np.int32), *(n for n, _, _ in made)])
        first, past = structure.spans
        node = place[nodes]
        taken_back = structure.owner[node] < 0
        return self.keeping(
            ground=self.context(party),
            nodes=nodes,
            features=np.concatenate([np.zeros((0, width), np.int32), *padded]),
            model=structure.model,
            n_leaves=structure.n_leaves,
            node=np.where(taken_back, -1, node),
            first=first[node],
            middle=np.where(taken_back, 0, first[structure.left[node] + 1]),
            last=past[node],
            **fields,
        )


def best_offers(offers: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Return which party has the best split of each node (in a tie, the lowest rank); (parties, nodes)."""
    behind = np.where(offers == offers.max(axis=0), ranks, ~np.uint64(0))
    best: np.ndarray = behind.argmin(axis=0)
    return best


def own_columns(features: np.ndarray, own: range) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes that sampled any of a party's columns, and these columns, counted from its first."""
    mine = (features >= own.start) & (features < own.stop)
    counts = mine.sum(axis=1)
    which = np.flatnonzero(counts)
    listed = np.full((len(which), int(counts.max(initial=1))), -1, np.int32)
    # sampled features are ascending, so a party's are adjacent
    listed[np.arange(listed.shape[1]) < counts[which, None]] = features[mine] - own.start
    return which, listed
