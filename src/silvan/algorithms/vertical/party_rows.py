"""A party's rows, sent down the trees of a vertical forest by the partitions so far.

Every request about growing trees repeats their inputs and all partitions so far, as blobs, so that a party without any
state can reply. A party's state is only a cache.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
import numpy as np

from silvan.algorithms.level_checks import are_different, check_arrays, check_nodes
from silvan.algorithms.requests import MAX_TREES
from silvan.algorithms.vertical.coded_names import named_columns
from silvan.algorithms.vertical.columns import encode_rows, row_draws
from silvan.algorithms.vertical.encoded_labels import check_objective, check_signed, open_labels
from silvan.data.bins.bins import find_bins
from silvan.data.bins.grid import Grid
from silvan.errors import FormatError, RefusedError, reject
from silvan.federation import wire
from silvan.federation.describe import FLOOR
from silvan.federation.message import Agreed, Blob, Derived, Each, Fixed, ProtocolPosition, Request, Verb
from silvan.federation.party import Party
from silvan.federation.store import CacheKey, digest
from silvan.tree.fit import Settings
from silvan.tree.gain import Rule
from silvan.tree.level import find_listed
from silvan.tree.node_rows import Binned, NodeRows
from silvan.tree.partition import is_bit_per_row, route
from silvan.tree.sampling import Monotonic, Ties
from silvan.tree.split import Splits
from silvan.util.threads import thread_count


class GrowingContext(msgspec.Struct, frozen=True):
    """The inputs of trees, as one party sees them."""

    rows: Agreed[Blob]  # digests of the training rows
    columns: Agreed[Blob]  # the schema of the party's columns
    first_column: Agreed[int]  # the number of the party's first column among those of all parties: it breaks ties
    width: Agreed[int]  # columns that determine the grid of cut points: of all parties, or an equivalent number
    settings: Fixed[Settings]  # without class weights, which would reveal the classes, and the way of sampling features
    draws: Agreed[bytes]  # the key by which trees sample rows, sealed for the parties
    labels: Agreed[Blob | None] = None  # as the label holder signed them; None: encrypted, and the label is here
    coded: Agreed[bool] = True  # whether labels are encoded: if they are encrypted, rows have no label here
    rounds: Derived[list[Blob]] = []  # the partitions so far


MAX_COLUMNS = 1 << 24
"""Maximum total number of columns over all parties."""


class Round(msgspec.Struct, frozen=True):
    """The splits of a level: which nodes, and of those whose children are split further, who goes left."""

    nodes: np.ndarray
    needed: np.ndarray
    bits: np.ndarray


class Growing(Request, frozen=True, kw_only=True):
    """The common fields of requests about growing trees."""

    verb: ClassVar[Verb] = "ask"

    ground: Each[GrowingContext]
    nodes: Derived[np.ndarray]  # int32
    features: Derived[np.ndarray]  # int32 (nodes, most), of the party's columns, -1 after the last
    bounds: Derived[np.ndarray | None] = None  # float64 (nodes, 2) in code, if trees must be monotonic

    @property
    def min_leaf(self) -> int:
        """Minimum number of rows in a leaf, which the party's policy checks."""
        return self.ground.settings.min_samples_leaf

    def position(self) -> ProtocolPosition:
        """Return the position of the request: after all partitions. A party's first samples may have no column."""
        return ProtocolPosition("forest", tuple(blob.hash for blob in self.ground.rounds), anywhere=True)

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if trees grow on the same rows and settings as before; a level takes several requests."""
        same = digest(wire.encode(msgspec.structs.replace(self.ground, rounds=[]))).encode()
        return same if all(trace == same for trace in traces) else None


@dataclass
class Descent:
    """Where the rows are, and the splits that the party has found and made."""

    rows: NodeRows
    given_rule: Rule | None
    threads: int
    is_split: np.ndarray  # by node
    tie_key: np.ndarray  # known only to parties
    first_column: int
    signs: np.ndarray  # of all columns up to the party's last: the directions of encoded predictions for its own
    found: Splits  # by node, like the next: the best split found there last
    chosen_by: np.ndarray  # uint64, a hash of the features, seed and bounds of that search
    done: list[str] = field(default_factory=list)

    def check(self, nodes: np.ndarray, features: np.ndarray) -> None:
        """Raise ``FormatError`` for nodes or features that do not exist."""
        check_nodes(nodes, features, len(self.is_split), len(self.rows.table.bins.n_bins))

    @property
    def rule(self) -> Rule:
        """How splits are evaluated, if the party has labels in code."""
        if self.given_rule is None:
            raise RefusedError("the party has no labels to evaluate splits")
        return self.given_rule

    def ties(self, seeds: np.ndarray, n: int, bounds: np.ndarray | None = None) -> Ties:
        """Return the tie-breakers for splits of nodes with these seeds, and bounds if there are any."""
        check_arrays("the seeds do not match the nodes", (seeds, (n,), np.uint64))
        if bounds is None:
            return Ties(self.tie_key, seeds, self.first_column)
        check_arrays("the bounds do not match the nodes", (bounds, (n, 2), np.float64))
        return Ties(self.tie_key, seeds, self.first_column, Monotonic(self.signs, bounds))

    def find(
        self, nodes: np.ndarray, features: np.ndarray, seeds: np.ndarray, bounds: np.ndarray | None = None
    ) -> Splits:
        """Return the best split of each node, with feature -1 for none; remembered splits are not searched again."""
        self.check(nodes, features)
        ties, words = self.ties(seeds, len(nodes), bounds), _choice_words(features, seeds, bounds)
        new = np.flatnonzero(self.chosen_by[nodes] != words)
        if len(new):
            splits = find_listed(self.rows, nodes[new], features[new], self.rule, ties.take(new), self.threads)
            for known, column in zip(self.found, splits, strict=True):
                known[nodes[new]] = column
            self.chosen_by[nodes[new]] = words[new]
        return Splits(*(column[nodes] for column in self.found))

    def own_splits(
        self, nodes: np.ndarray, features: np.ndarray, seeds: np.ndarray, bounds: np.ndarray | None
    ) -> Splits:
        """Return the best split of each node; refuse if the party has none there."""
        splits = self.find(nodes, features, seeds, bounds)
        if (splits.feature < 0).any():
            raise RefusedError("the party has no split for a node")
        return splits

    def apply(self, level: Round) -> None:
        """Send rows left or right by a round's bits."""
        nodes, needed, bits = level.nodes, level.needed, level.bits
        check_arrays(
            "a partition does not match its nodes",
            (nodes, (nodes.size,), np.int32),
            (needed, (nodes.size,), np.bool_),
            (bits, (bits.size,), np.uint8),
        )
        reject(not are_different(nodes, len(self.is_split)), "a partition of a node that does not exist")
        reject(self.is_split[nodes].any(), "a partition of a node that was split before")
        sizes = self.rows.stops[nodes[needed]] - self.rows.starts[nodes[needed]]
        reject(not is_bit_per_row(bits, sizes), "a partition has another number of bits than the node has rows")
        route(self.rows, nodes, needed, bits, self.threads)
        self.is_split[nodes] = True
        more = 2 * len(nodes)
        self.is_split = np.concatenate([self.is_split, np.zeros(more, np.bool_)])
        self.chosen_by = np.concatenate([self.chosen_by, np.zeros(more, np.uint64)])
        empty = Splits.empty(more, self.rows.table.n_stats)
        self.found = Splits(*(np.concatenate(both) for both in zip(self.found, empty, strict=True)))


def _choice_words(features: np.ndarray, seeds: np.ndarray, bounds: np.ndarray | None) -> np.ndarray:
    """Return a word for each node that identifies the inputs of its split: features, seed and bounds."""
    odd = np.uint64(6364136223846793005)
    words: np.ndarray = (features + 1).astype(np.uint64) @ odd ** np.arange(features.shape[1], dtype=np.uint64) ^ seeds
    if bounds is not None:
        words = words ^ (np.ascontiguousarray(bounds).view(np.uint64) @ np.array([1, 3], np.uint64))
    return words


def descend(party: Party, ground: GrowingContext) -> Descent:
    """Return the rows at the nodes to which the partitions so far send them."""
    if ground.labels is not None:
        check_signed(party, ground.labels)
    key = CacheKey[Descent]("descent", digest(wire.encode(msgspec.structs.replace(ground, rounds=[]))))
    hashes = [blob.hash for blob in ground.rounds]
    descent = party.cache.once(
        key, lambda: _begin(party, ground), lambda known: known.done == hashes[: len(known.done)]
    )
    for hash_ in hashes[len(descent.done) :]:
        descent.apply(wire.decode(party.blob(hash_), Round))
        descent.done.append(hash_)
    return descent


def _begin(party: Party, ground: GrowingContext) -> Descent:
    """Place every sampled row at its tree's root."""
    settings, schema = ground.settings, named_columns(party, ground.columns)
    if not 1 <= settings.n_estimators <= MAX_TREES or settings.class_weight is not None:
        raise FormatError(f"the trees must be 1 to {MAX_TREES}, and classes without weights of their own")
    if not 0 <= ground.first_column <= MAX_COLUMNS or not Grid.columns_alike() <= ground.width <= MAX_COLUMNS:
        raise FormatError("the columns are not possible")
    check_objective(settings)
    threads = thread_count(party.n_jobs)
    X = encode_rows(party, schema, ground.rows)
    target, rule, n_stats = np.zeros(len(X), np.uint16), None, 1
    if ground.labels is not None and ground.coded:
        target, measure = open_labels(party, ground.labels, ground.rows, len(X))
        rule, n_stats = settings.rule(measure), measure.n_stats
    bins, codes = find_bins(X, schema, settings.max_bins, threads, FLOOR, ground.width, staggered=True)
    row_key, words = row_draws(party, ground.draws, ground.rows)
    table = Binned(codes, target, words, bins, n_stats)
    rows = NodeRows.of_trees(table, row_key, range(settings.n_estimators), settings.row_sampling, threads)
    n, signs = settings.n_estimators, signs_from(ground.first_column, settings.signs, len(schema.features))
    found, chosen_by = Splits.empty(n, n_stats), np.zeros(n, np.uint64)
    return Descent(rows, rule, threads, np.zeros(n, np.bool_), row_key, ground.first_column, signs, found, chosen_by)


def signs_from(first: int, own: list[int], n: int) -> np.ndarray:
    """Return the directions of predictions for n columns from a first one on, 0 for all before it."""
    reject(len(own) not in (0, n), "a column lacks its monotonic direction")
    signs = np.zeros(first + n, np.int8)
    signs[first:] = own or 0
    return signs
