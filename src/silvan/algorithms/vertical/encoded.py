"""Vertical forests with encoded labels: Federated Forest, all trees level by level.

Parties hold different columns of the same rows, one holds the label. The coordinator samples every open node's features
and sends each party its own columns of the sample. In one exchange each party reports the gain of its best split of
each node; in a second the winners send the row partitions as bits, which travel on with the next level's request. Only
the winner knows the column and threshold of a split. The label holder sends its label once, encoded
(``encoded_labels.py``). A forest of any number of trees of depth D takes at most 2 D + 2 rounds, and is node for node
the one of the joined table.
"""

from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.vertical.coordinator import Drawn, VerticalCoordinator, best_offers
from silvan.algorithms.vertical.encoded_labels import (
    CodedLabels,
    EncodeLabels,
    LabelsForParties,
    LeafCode,
    check_measure,
)
from silvan.algorithms.vertical.party_rows import Descent, Growing, descend
from silvan.algorithms.vertical.party_shares import KeepShare
from silvan.data.schema import Schema
from silvan.errors import FederationError, FormatError, RefusedError, reject
from silvan.federation import wire
from silvan.federation.agreement import Columns
from silvan.federation.federation import Federation
from silvan.federation.message import Derived, Reply, Request
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.tree.fit import Settings
from silvan.tree.gain import Rule, are_allowed, child_bounds
from silvan.tree.grow import Frontier, Grown
from silvan.tree.level import add_nodes, finish_splits, split_gains
from silvan.tree.objectives import Measure
from silvan.tree.partition import count_sides, pack_sides
from silvan.tree.sampling import tie_ranks
from silvan.tree.split import Splits

# -- messages


class Values(Reply, frozen=True, kw_only=True):
    """The gain of the best split of each node, -inf for no split; in the first round the roots' statistics.

    The label holder counts the rows of all open nodes, so that no party can report other sides of a split than it
    makes.
    """

    values: np.ndarray
    totals: np.ndarray
    ranks: np.ndarray  # uint64: in a tie, the lowest rank wins; only parties know which column it belongs to
    varies: np.ndarray  # bool, whether any sampled column varies there


class FindValues(Growing, frozen=True, kw_only=True):
    """The gain of the best split by the party's columns at each open node."""

    reply: ClassVar[type[Reply]] = Values

    seeds: Derived[np.ndarray]  # uint64, of the nodes: with these and a secret key, parties break ties
    totals: Derived[bool]
    others: Derived[np.ndarray | None] = (
        None  # int32, for the label holder: open nodes without one of its columns, to count
    )


class Sides(Reply, frozen=True, kw_only=True):
    """Statistics of the left side of each node, and its rows as bits where needed."""

    left: np.ndarray
    bits: np.ndarray
    signs: np.ndarray | None = None  # int8, directions of the columns that split, if trees must be monotonic


class SplitNodes(Growing, frozen=True, kw_only=True):
    """Which rows go left at the nodes that the party splits best."""

    reply: ClassVar[type[Reply]] = Sides

    seeds: Derived[np.ndarray]
    deeper: Derived[np.ndarray]  # bool, whether a node's children may be split again


# -- at a party


@answers(FindValues)
def find_values(site: Site, request: FindValues) -> Values:
    """Return the gain of the party's best split of each node."""
    descent = descend(party_of(site), request.ground)
    splits = Splits.empty(0, descent.rows.table.n_stats)  # the label holder may have no column there
    if len(request.nodes):
        splits = descent.find(request.nodes, request.features, request.seeds, request.bounds)
    return Values(
        values=np.where(splits.feature >= 0, splits.gain, -np.inf),
        totals=_totals(party_of(site), descent, request, splits.total) if request.totals else splits.total[:0],
        ranks=tie_ranks(descent.ties(request.seeds, len(request.nodes)), splits.feature),
        varies=splits.varies,
    )


def _totals(party: Party, descent: Descent, request: FindValues, found: np.ndarray) -> np.ndarray:
    """Return the statistics of nodes: of roots, and from the label holder of all that are large enough for a leaf."""
    others, n = np.zeros(0, np.int32) if request.others is None else request.others, len(descent.is_split)
    check_arrays("the nodes do not match", (others, (others.size,), np.int32))
    reject(not 0 <= others.min(initial=0) <= others.max(initial=0) < n, "the nodes do not match")
    nodes = np.concatenate([request.nodes, others])
    sizes = (descent.rows.stops - descent.rows.starts)[nodes]
    roots = nodes < request.ground.settings.n_estimators
    if not roots.all() and not (party.has_label and (sizes[~roots] >= request.min_leaf).all()):
        raise RefusedError("the party reports statistics of roots only or, as label holder, of sides of splits")
    return np.concatenate([found, add_nodes(descent.rows, others)])


@answers(SplitNodes)
def split_nodes(site: Site, request: SplitNodes) -> Sides:
    """Split nodes by the party's best splits; return the left sides."""
    nodes, deeper = request.nodes, request.deeper
    check_arrays("the nodes do not match", (deeper, nodes.shape, np.bool_))
    descent = descend(party_of(site), request.ground)
    splits = descent.own_splits(nodes, request.features, request.seeds, request.bounds)
    some = np.flatnonzero(deeper & _open_below(splits.left, splits.total, descent.rule))
    chosen = Splits(*(column[some] for column in splits))
    signs = None if request.bounds is None else descent.signs[descent.first_column + splits.feature]
    return Sides(left=splits.left, bits=pack_sides(descent.rows, nodes[some], chosen, descent.threads), signs=signs)


# -- both sides


def _open_below(left: np.ndarray, total: np.ndarray, rule: Rule) -> np.ndarray:
    """Return whether either side of each split might be split again."""
    return rule.open_nodes(left) | rule.open_nodes(total - left)


# -- at the coordinator


class EncodedCoordinator(VerticalCoordinator):
    """Grows a forest with encoded labels: the coordinator knows every node's statistics, in code."""

    asks: ClassVar[tuple[type[Request], ...]] = (EncodeLabels, FindValues, SplitNodes, KeepShare)
    model_prefix: ClassVar[str] = "EncodedBooks"

    def __init__(self, federation: Federation, columns: Columns, schema: Schema, settings: Settings) -> None:
        super().__init__(federation, columns, schema, settings)

        def check(site: str, reply: LabelsForParties) -> None:
            check_measure(wire.decode(reply.labels, CodedLabels).measure, schema.n_classes)

        request = EncodeLabels(
            rows=self.rows, label=schema.label, settings=self.settings_for([]), turned=bool(settings.signs)
        )
        reply: LabelsForParties = federation.ask(request, to=[self.holder], check=check)[self.holder]
        self.measure: Measure = wire.decode(reply.labels, CodedLabels).measure
        self.rule: Rule = settings.rule(self.measure)
        self.stats = np.zeros((0, self.measure.n_stats), np.int64)  # of every node so far
        self.told = np.zeros(0, np.int64)  # the number of the party that reported them
        # of every node so far, in code, if trees must be monotonic
        self.bounds = np.tile([-np.inf, np.inf], (settings.n_estimators, 1)) if settings.signs else None
        signs = [-sign if reply.turned else sign for sign in settings.signs]
        self.make_contexts(signs, dict.fromkeys(self.parties, federation.work(self.holder, reply)))

    def bounds_of(self, nodes: np.ndarray) -> np.ndarray | None:
        """Return the bounds on the predictions of nodes, in the form of requests."""
        return None if self.bounds is None else self.bounds[nodes]

    def decide(self, frontier: Frontier, drawn: Drawn, deeper: np.ndarray) -> Splits:
        """Request the best gains of all parties, and the sides from the winners."""
        nodes, seeds = frontier.node.astype(np.int32), frontier.seed
        splits = Splits.empty(len(nodes), self.measure.n_stats)
        offers, ranks = self._offers(nodes, seeds, drawn, splits.varies)
        splits.total[:] = self.stats[nodes]
        best = best_offers(offers, ranks)
        splits.gain[:] = offers[best, np.arange(len(nodes))]
        worth = (splits.gain > -np.inf) & ~(frontier.barren & (splits.gain <= 0.0))
        splits.feature[:] = np.where(worth, best, -1)
        signs = self._split(nodes, seeds, drawn, deeper, splits)
        finish_splits(splits, self.rule)
        found = splits.feature >= 0
        if self.bounds is not None:
            above, left, total = self.bounds[nodes[found]], splits.left[found], splits.total[found]
            self.bounds = np.concatenate([self.bounds, child_bounds(above, signs[found], left, total, self.rule)])
        sides = np.stack([splits.left, splits.total - splits.left], axis=1)[found]
        self.stats = np.concatenate([self.stats, sides.reshape(-1, self.measure.n_stats)])
        self.told = np.concatenate([self.told, np.repeat(splits.feature[found], 2)])
        return splits

    def _offers(
        self, nodes: np.ndarray, seeds: np.ndarray, drawn: Drawn, varies: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ask how good each party's best split is, and its rank: both (parties, nodes).

        ``varies`` receives at which nodes any column varies.
        """
        asked = {party: which for party, (which, _) in drawn.items() if len(which) or party == self.holder}
        lacking = np.ones(len(nodes), np.bool_)
        lacking[asked[self.holder]] = False
        others = np.flatnonzero(lacking)  # nodes without a column of the label holder
        counted = {party: which if self.levels == 1 else which[:0] for party, which in asked.items()}
        counted[self.holder] = np.concatenate([asked[self.holder], others])

        def check(site: str, reply: Values) -> None:
            self._check_offer(reply, len(asked[site]), len(counted[site]))

        requests = {
            party: FindValues(
                ground=self.context(party),
                nodes=nodes[which],
                features=drawn[party][1],
                seeds=seeds[which],
                bounds=self.bounds_of(nodes[which]),
                totals=self.levels == 1 or party == self.holder,
                others=nodes[others] if party == self.holder else None,
            )
            for party, which in asked.items()
        }
        replies: dict[str, Values] = self.federation.ask(requests, check=check)
        if self.levels == 1:
            self.stats = replies[self.holder].totals[np.argsort(counted[self.holder])]
            self.told = np.full(len(nodes), self.parties.index(self.holder))
        for party, reply in replies.items():
            self._check_counts(party, nodes[counted[party]], reply.totals)
        offers = np.full((len(self.parties), len(nodes)), -np.inf)
        ranks = np.zeros(offers.shape, np.uint64)
        for k, party in enumerate(self.parties):
            if party in replies:
                offers[k, asked[party]], ranks[k, asked[party]] = replies[party].values, replies[party].ranks
                varies[asked[party]] |= replies[party].varies
        return offers, ranks

    def _check_offer(self, reply: Values, n: int, n_counted: int) -> None:
        """Raise ``FormatError`` unless values match the nodes and statistics are possible."""
        check_arrays(
            "its values are not as many as the nodes",
            (reply.values, (n,), np.float64),
            (reply.ranks, (n,), np.uint64),
            (reply.varies, (n,), np.bool_),
            (reply.totals, (n_counted, self.measure.n_stats), np.int64),
        )
        reject(np.isnan(reply.values).any() or (reply.values == np.inf).any(), "its values are not numbers")
        reject((reply.values[~reply.varies] > -np.inf).any(), "it splits by a column without two values")
        reject(self._impossible(reply.totals), "its statistics are not possible")

    def _check_counts(self, party: str, nodes: np.ndarray, totals: np.ndarray) -> None:
        """Raise ``FederationError`` if a party counts other rows at nodes than another party."""
        wrong = nodes[(totals != self.stats[nodes]).any(axis=1)]
        if len(wrong):
            other = self.parties[self.told[wrong[0]]]
            raise FederationError(
                f"party {party!r} counts other rows at a node than party {other!r} reported; one of the two is "
                "wrong, or its table has changed"
            )

    def _split(
        self, nodes: np.ndarray, seeds: np.ndarray, drawn: Drawn, deeper: np.ndarray, splits: Splits
    ) -> np.ndarray:
        """Ask the winners for the sides of the nodes they won; return the signs of the columns that split."""
        won = self.won(nodes, seeds, drawn, splits)
        requests = {
            party: SplitNodes(
                ground=self.context(party),
                nodes=nodes[place],
                features=own,
                seeds=seeds[place],
                bounds=self.bounds_of(nodes[place]),
                deeper=deeper[place],
            )
            for party, (place, own) in won.items()
        }

        def check(site: str, reply: Sides) -> None:
            place = won[site][0]
            self._check_sides(reply, splits.total[place], splits.gain[place], deeper[place])
            self._check_signs(reply, nodes[place], splits.total[place])

        replies: dict[str, Sides] = self.federation.ask(requests, check=check) if requests else {}
        signs = np.zeros(len(nodes), np.int8)
        for party, reply in replies.items():
            splits.left[won[party][0]] = reply.left
            signs[won[party][0]] = 0 if reply.signs is None else reply.signs
        found = splits.feature >= 0
        needed = deeper & found & _open_below(splits.left, splits.total, self.rule)
        bits = {party: (won[party][0], reply.bits) for party, reply in replies.items()}
        self.join_bits(found, needed, self.n_rows(splits.total), bits)
        return signs

    def n_rows(self, stats: np.ndarray) -> np.ndarray:
        """Count the rows behind statistics."""
        return self.measure.n_rows(stats)

    def _impossible(self, stats: np.ndarray) -> bool:
        return bool((stats[:, self.measure.row_counts] < 0).any())

    def _check_sides(self, reply: Sides, total: np.ndarray, value: np.ndarray, deeper: np.ndarray) -> None:
        """Raise ``FormatError`` for sides without the promised gain, or without the claimed rows."""
        left, rule = reply.left, self.rule
        bits = (reply.bits, reply.bits.shape, np.uint8)
        check_arrays("its sides do not match the nodes", (left, total.shape, np.int64), bits)
        reject(self._impossible(left) or self._impossible(total - left), "its sides have more rows than the nodes")
        rows, all_rows = self.n_rows(left), self.n_rows(total)
        reject((np.minimum(rows, all_rows - rows) < rule.min_leaf).any(), "a side has fewer rows than a leaf may have")
        reject(not np.array_equal(split_gains(left, total, rule), value), "a split does not have the promised gain")
        needed = deeper & _open_below(left, total, rule)
        counts = count_sides(reply.bits, all_rows[needed])
        if counts is None:
            raise FormatError("a partition with the wrong number of bits")
        reject(not np.array_equal(counts, rows[needed]), "a partition that does not match its statistics")

    def _check_signs(self, reply: Sides, nodes: np.ndarray, total: np.ndarray) -> None:
        """Raise ``FormatError`` for sides that are not monotonic, where they must be."""
        if self.bounds is None:
            return
        signs = reply.signs
        if signs is None:
            raise FormatError("it lacks the directions of predictions")
        check_arrays("it lacks the directions of predictions", (signs, nodes.shape, np.int8))
        if not are_allowed(reply.left, total, self.rule, signs, self.bounds[nodes]):
            raise FormatError("a split that is not monotonic")

    def keeping_fields(self, grown: Grown, nodes: np.ndarray) -> dict[str, dict[str, Any]]:
        """Return the seeds of the nodes that a party split; for the label holder also the encoded leaves."""
        seeds = {party: [of for _, _, of in self.made[party]] for party in self.parties}
        fields: dict[str, dict[str, Any]] = {
            party: {"seeds": np.concatenate([np.zeros(0, np.uint64), *own])} for party, own in seeds.items()
        }
        for party in self.parties:
            made = np.concatenate([np.zeros(0, np.int32), *(nodes for nodes, _, _ in self.made[party])])
            fields[party]["bounds"] = self.bounds_of(made)
        fields[self.holder]["leaves"] = LeafCode(self.schema.label, self.settings.class_weight, grown.stats[nodes])
        return fields
