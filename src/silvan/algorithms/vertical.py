"""Vertical forests: parties hold other columns of the same rows, one holds the label. Federated Forest, a level a time.

The coordinator draws every open node's features and sends each party its own columns of the draw. One exchange brings
the best value that each party can offer at each node, a second one the row partitions of those that won, as bits; they
travel on with the next level's question. Only the winner knows by which column and where a node is split. The label
holder sends its label once, encoded (``encoded.py``). A forest of any number of trees of depth D takes at most
2 D + 2 rounds, and is node for node the one that a joined table would have given.
"""

from dataclasses import replace
from typing import ClassVar

import msgspec
import numpy as np

from silvan.algorithms.columns import Columns, rows_blob
from silvan.algorithms.encoded import EncodedLabels, EncodeLabels, LeafCode, check_measure
from silvan.algorithms.shared_bins import MAX_TREES
from silvan.algorithms.vertical_rows import Descent, Ground, Growing, Round, descend
from silvan.algorithms.vertical_shares import KeepShare, LeafValues
from silvan.data.schema import Label, Schema
from silvan.errors import FederationError, FormatError, InputError, RefusedError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Reply
from silvan.federation.party import party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.tree.bits import count_sides, pack_sides, spread
from silvan.tree.fit import Settings, level_order
from silvan.tree.gain import Rule
from silvan.tree.grow import Frontier, Grown, Plan, grow
from silvan.tree.level import draw_level
from silvan.tree.listed import settle_all, values
from silvan.tree.shares import Structure
from silvan.tree.split import Splits
from silvan.tree.target import Measure

# -- messages


class Values(Reply, frozen=True, kw_only=True):
    """What the best split of each node is worth, -inf where there is none; the roots' statistics at first."""

    values: np.ndarray
    totals: np.ndarray


class FindValues(Growing, frozen=True, kw_only=True):
    """What the best split by the party's columns is worth at each open node."""

    reply: ClassVar[type[Reply]] = Values

    totals: bool


class Sides(Reply, frozen=True, kw_only=True):
    """Statistics of the left side of each node, and which rows it is, as bits, where that is needed."""

    left: np.ndarray
    bits: np.ndarray


class SplitNodes(Growing, frozen=True, kw_only=True):
    """Which rows go left at the nodes that the party splits best."""

    reply: ClassVar[type[Reply]] = Sides

    deeper: np.ndarray  # bool, whether a node's children may be split again


# -- at a party


@answers(FindValues)
def find_values(site: Site, request: FindValues) -> Values:
    """Say what the party's columns could do for each node."""
    descent = descend(party_of(site), request.ground)
    splits = descent.find(request.nodes, request.features)
    descent.found = (request.nodes, request.features, splits)
    if request.totals and request.nodes.max(initial=0) >= request.ground.settings.n_estimators:
        raise RefusedError("the party tells the statistics of roots alone")
    return Values(
        values=np.where(splits.feature >= 0, splits.gain, -np.inf),
        totals=splits.total if request.totals else splits.total[:0],
    )


@answers(SplitNodes)
def split_nodes(site: Site, request: SplitNodes) -> Sides:
    """Split nodes as the party found best."""
    nodes, deeper = request.nodes, request.deeper
    if deeper.shape != nodes.shape or deeper.dtype != np.bool_:
        raise FormatError("the nodes do not match")
    descent = descend(party_of(site), request.ground)
    splits = _found(descent, request)
    descent.made.append((nodes, splits))
    some = np.flatnonzero(deeper & _open_below(splits.left, splits.total, descent.rule))
    chosen = Splits(*(column[some] for column in splits))
    return Sides(left=splits.left, bits=pack_sides(descent.rows, nodes[some], chosen, descent.threads))


def _found(descent: Descent, request: SplitNodes) -> Splits:
    """Give splits that were found just before; find them again if the party was restarted since."""
    descent.check(request.nodes, request.features)
    splits = None
    if descent.found is not None:
        nodes, features, known = descent.found
        at = np.full(len(descent.is_split), -1)
        at[nodes] = np.arange(len(nodes))
        at = at[request.nodes]
        if (at >= 0).all() and np.array_equal(features[at], request.features):
            splits = Splits(*(column[at] for column in known))
    if splits is None:
        splits = descent.find(request.nodes, request.features)
    if (splits.feature < 0).any():
        raise RefusedError("the party has no split for a node")
    return splits


# -- both sides


def _open_below(left: np.ndarray, total: np.ndarray, rule: Rule) -> np.ndarray:
    """Say whether either side of a split might be split again."""
    return rule.open_nodes(left) | rule.open_nodes(total - left)


# -- at the coordinator


def fit(
    federation: Federation, columns: Columns, schema: Schema, settings: Settings, feature_key: np.ndarray
) -> Structure:
    """Grow the forest of all parties' columns; gives its structure, every party keeps its share."""
    if columns.label_holder is None:
        raise InputError("no party holds the label, so there is nothing to learn; these rows can only be scored")
    if not 1 <= settings.n_estimators <= MAX_TREES:
        raise InputError(f"n_estimators must be 1 to {MAX_TREES}, got {settings.n_estimators}")
    books = _Books(federation, columns, columns.label_holder, schema, settings)
    grown = grow(np.arange(settings.n_estimators), feature_key, books.plan, books.rule, books.find, books.apply)
    return _finish(books, grown, feature_key)


Drawn = dict[str, tuple[np.ndarray, np.ndarray]]
"""By party: which nodes of a level have some of its columns in their draw, and which columns these are."""


class _Books:
    """What the coordinator keeps while trees grow."""

    def __init__(
        self, federation: Federation, columns: Columns, holder: str, schema: Schema, settings: Settings
    ) -> None:
        self.federation, self.schema, self.settings, self.holder = federation, schema, settings, holder
        self.owners, self.parties = columns.owners, list(columns.owners)
        rows = rows_blob(federation, columns.training)
        told: EncodedLabels = federation.ask(
            EncodeLabels(rows=rows, label=schema.label, settings=settings),
            to=[holder],
            check=lambda _, reply: check_measure(reply.measure, schema.n_classes),
        )[holder]
        self.labels = federation.blob(told.labels)
        self.measure: Measure = told.measure
        self.rule: Rule = settings.rule(told.measure)
        self.plan: Plan = settings.federated_plan(len(schema.features))
        self._grounds = {party: self._ground(party, rows) for party in self.parties}
        self.rounds: list[Blob] = []
        self.stats = np.zeros((0, told.measure.n_stats), np.int64)  # of every node so far
        self.level = np.zeros(0, np.bool_), np.zeros(0, np.uint8)  # of the splits just found: needed, bits
        self.made: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {party: [] for party in self.parties}
        self.levels = 0

    def _ground(self, party: str, rows: Blob) -> Ground:
        own = self.owners[party]
        schema = Schema(self.schema.features[own.start : own.stop], Label(self.schema.label.name))
        return Ground(
            rows=rows,
            schema=self.federation.blob(schema.to_json().encode()),
            labels=self.labels,
            n_columns=len(self.schema.features),
            settings=replace(self.settings, class_weight=None),
            measure=self.measure,
        )

    def ground(self, party: str) -> Ground:
        """Give what a party is told with every question."""
        return msgspec.structs.replace(self._grounds[party], rounds=list(self.rounds))

    def find(self, frontier: Frontier) -> Splits:
        """Ask all parties for their best, and the best of them for the sides; ``feature`` is the winner's number."""
        nodes, features = frontier.node.astype(np.int32), draw_level(frontier, self.plan)
        drawn = {party: _own_columns(features, self.owners[party]) for party in self.parties}
        offers = self._offers(nodes, drawn)
        self.levels += 1
        splits = Splits.empty(len(nodes), self.measure.n_stats)
        splits.total[:] = self.stats[nodes]
        best = offers.argmax(axis=0)  # the first of equal ones: its features come first
        splits.gain[:] = offers[best, np.arange(len(nodes))]
        splits.feature[:] = np.where(splits.gain > -np.inf, best, -1)
        more = self.plan.max_rounds is None or self.levels < self.plan.max_rounds
        limit = np.inf if self.plan.max_depth is None else self.plan.max_depth
        self._split(nodes, drawn, more & (frontier.depth + 1 < limit), splits)
        settle_all(splits, self.rule)
        return splits

    def _offers(self, nodes: np.ndarray, drawn: Drawn) -> np.ndarray:
        """Ask what each party's best split is worth: (parties, nodes)."""
        asked = {party: which for party, (which, _) in drawn.items() if len(which)}
        first = self.levels == 0

        def check(site: str, reply: Values) -> None:
            n = len(asked[site])
            if reply.values.shape != (n,) or reply.values.dtype != np.float64:
                raise FormatError("its values are not as many as the nodes")
            if np.isnan(reply.values).any() or (reply.values == np.inf).any():
                raise FormatError("its values are not numbers")
            shape = (n if first else 0, self.measure.n_stats)
            if reply.totals.shape != shape or reply.totals.dtype != np.int64 or self._impossible(reply.totals):
                raise FormatError("its statistics are not possible")

        requests = {
            party: FindValues(ground=self.ground(party), nodes=nodes[which], features=drawn[party][1], totals=first)
            for party, which in asked.items()
        }
        replies: dict[str, Values] = self.federation.ask(requests, check=check)
        if first:
            self.stats = self._roots(len(nodes), asked, replies)
        offers = np.full((len(self.parties), len(nodes)), -np.inf)
        for party, reply in replies.items():
            offers[self.parties.index(party), asked[party]] = reply.values
        return offers

    def _roots(self, n: int, asked: dict[str, np.ndarray], replies: dict[str, Values]) -> np.ndarray:
        """Take the roots' statistics from whoever told them; all who did must agree."""
        stats, known = np.zeros((n, self.measure.n_stats), np.int64), np.zeros(n, np.bool_)
        for party, reply in replies.items():
            which = asked[party]
            before = known[which]
            if not np.array_equal(stats[which][before], reply.totals[before]):
                raise FederationError(
                    f"party {party!r} counts other rows than the parties before it; is its table new?"
                )
            stats[which], known[which] = reply.totals, True
        return stats

    def _split(self, nodes: np.ndarray, drawn: Drawn, deeper: np.ndarray, splits: Splits) -> None:
        """Ask the winners for the sides of the nodes they won."""
        won = {party: np.flatnonzero(splits.feature == k) for k, party in enumerate(self.parties)}
        won = {party: place for party, place in won.items() if len(place)}
        requests = {}
        for party, place in won.items():
            which, features = drawn[party]
            own = features[np.searchsorted(which, place)]
            self.made[party].append((nodes[place], own))
            requests[party] = SplitNodes(
                ground=self.ground(party), nodes=nodes[place], features=own, deeper=deeper[place]
            )

        def check(site: str, reply: Sides) -> None:
            place = won[site]
            self._check_sides(reply, splits.total[place], splits.gain[place], deeper[place])

        replies: dict[str, Sides] = self.federation.ask(requests, check=check) if requests else {}
        for party, reply in replies.items():
            splits.left[won[party]] = reply.left
        needed = deeper & (splits.feature >= 0) & _open_below(splits.left, splits.total, self.rule)
        # who won which node is nobody's business: the bits are put in the order of the nodes
        lengths = np.where(needed, (self._rows(splits.total) + 7) >> 3, 0)
        begin = np.cumsum(lengths) - lengths
        bits = np.empty(int(lengths.sum()), np.uint8)
        for party, reply in replies.items():
            spread(reply.bits, lengths[won[party]], begin[won[party]], bits)
        self.level = needed[splits.feature >= 0], bits

    def _rows(self, stats: np.ndarray) -> np.ndarray:
        """Count the rows behind statistics."""
        return stats.sum(axis=1) if self.measure.lead == 0 else stats[:, 0]

    def _impossible(self, stats: np.ndarray) -> bool:
        return bool((stats[:, : self.measure.lead or None] < 0).any())

    def _check_sides(self, reply: Sides, total: np.ndarray, value: np.ndarray, deeper: np.ndarray) -> None:
        """Refuse sides that are not worth what was promised, or not as many rows as they are said to be."""
        left = reply.left
        if left.shape != total.shape or left.dtype != np.int64 or reply.bits.dtype != np.uint8:
            raise FormatError("its sides do not match the nodes")
        if self._impossible(left) or self._impossible(total - left):
            raise FormatError("its sides have more rows than the nodes")
        rows, all_rows = self._rows(left), self._rows(total)
        if (np.minimum(rows, all_rows - rows) < self.rule.min_leaf).any():
            raise FormatError("a side has fewer rows than a leaf may have")
        if not np.array_equal(values(left, total, self.rule), value):
            raise FormatError("a split is not worth what was promised")
        needed = deeper & _open_below(left, total, self.rule)
        counts = count_sides(reply.bits, all_rows[needed])
        if counts is None:
            raise FormatError("a partition with the wrong number of bits")
        if not np.array_equal(counts, rows[needed]):
            raise FormatError("a partition that does not match its statistics")

    def apply(self, nodes: np.ndarray, splits: Splits, needed: np.ndarray) -> None:
        """Note a level's partitions for the next question."""
        expected, bits = self.level
        assert np.array_equal(expected, needed)  # noqa: S101  or parties and coordinator grow different trees
        sides = np.stack([splits.left, splits.total - splits.left], axis=1)
        self.stats = np.concatenate([self.stats, sides.reshape(-1, self.measure.n_stats)])
        if len(nodes):
            self.rounds.append(self.federation.blob(wire.encode(Round(nodes.astype(np.int32), needed, bits))))


def _own_columns(features: np.ndarray, own: range) -> tuple[np.ndarray, np.ndarray]:
    """Pick a party's columns of each node's draw: which nodes have any, and which they are, counted from its first."""
    mine = (features >= own.start) & (features < own.stop)
    counts = mine.sum(axis=1)
    which = np.flatnonzero(counts)
    listed = np.full((len(which), int(counts.max(initial=1))), -1, np.int32)
    # drawn features rise, so a party's stand side by side
    listed[np.arange(listed.shape[1]) < counts[which, None]] = features[mine] - own.start
    return which, listed


def _finish(books: _Books, grown: Grown, feature_key: np.ndarray) -> Structure:
    """Number the nodes for good; have every party keep its share, and learn what the leaves are worth."""
    nodes, split_of = level_order(grown)
    inner = split_of >= 0
    owner, gain = np.full(len(nodes), -1, np.int32), np.zeros(len(nodes))
    owner[inner], gain[inner] = grown.feature[split_of[inner]], grown.gain[split_of[inner]]
    drew = (grown.stats[: grown.n_trees, : books.measure.lead or None] > 0).any(axis=1)
    if not drew.any():
        raise InputError("no tree drew any row: there are too few rows in common; set bootstrap=False")
    determined = [books.federation.study, books.schema.hash, repr(books.settings), feature_key.tobytes().hex()]
    structure = Structure(
        model=digest(msgspec.json.encode([*determined, books.labels.hash])),
        schema=books.schema,
        parties=tuple(books.parties),
        columns=tuple(len(own) for own in books.owners.values()),
        label_holder=books.holder,
        offsets=np.concatenate([[0], np.cumsum(np.bincount(grown.tree, minlength=grown.n_trees))]),
        owner=owner,
        gain=gain,
        weights=np.where(drew, 1.0, 0.0),
        value=np.zeros((0, max(books.schema.n_classes, 1))),
    )
    place = np.empty(len(nodes), np.int64)
    place[nodes] = np.arange(len(nodes))
    code = LeafCode(books.schema.label, books.settings.class_weight, grown.stats[nodes[~inner]])
    replies: dict[str, LeafValues] = books.federation.ask(
        {
            party: _keep(books, structure, party, place, code if party == books.holder else None)
            for party in books.parties
        },
        check=lambda site, reply: _check_values(reply.value, structure, site),
    )
    structure = replace(structure, value=replies[books.holder].value)
    structure.check()
    return structure


def _keep(books: _Books, structure: Structure, party: str, place: np.ndarray, leaves: LeafCode | None) -> KeepShare:
    """Tell a party where in the forest its splits are."""
    made = books.made[party]
    width = max((features.shape[1] for _, features in made), default=1)
    padded = [np.pad(f, ((0, 0), (0, width - f.shape[1])), constant_values=-1) for _, f in made]
    nodes = np.concatenate([np.zeros(0, np.int32), *(n for n, _ in made)])
    first, past = structure.spans
    node = place[nodes]
    return KeepShare(
        ground=books.ground(party),
        nodes=nodes,
        features=np.concatenate([np.zeros((0, width), np.int32), *padded]),
        model=structure.model,
        n_leaves=structure.n_leaves,
        node=node,
        first=first[node],
        middle=first[structure.left[node] + 1],
        last=past[node],
        leaves=leaves,
    )


def _check_values(value: np.ndarray, structure: Structure, site: str) -> None:
    if site != structure.label_holder:
        if len(value):
            raise FormatError("it speaks of leaf values and does not hold the label")
        return
    shape = (structure.n_leaves, max(structure.schema.n_classes, 1))
    if value.shape != shape or value.dtype != np.float64 or not np.isfinite(value).all():
        raise FormatError("its leaf values are not as many as the leaves")
    if structure.schema.n_classes and ((value < 0) | (value > 1)).any():
        raise FormatError("its leaf values are no shares")
