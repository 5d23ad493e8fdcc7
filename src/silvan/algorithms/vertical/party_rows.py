"""A party's rows, sent down the trees of a vertical forest by the partitions so far.

Every question about growing trees repeats what they grow on and all partitions so far, as blobs, so that a party that
remembers nothing can answer it. What a party remembers is a cache.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from silvan.algorithms.level_checks import are_different, check_nodes
from silvan.algorithms.requests import MAX_TREES
from silvan.algorithms.vertical.coded_names import named_columns
from silvan.algorithms.vertical.columns import encode_rows
from silvan.algorithms.vertical.encoded_labels import check_measure, check_objective, open_labels
from silvan.algorithms.vertical.row_draws import row_draws
from silvan.data.bins.bins import find_bins
from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.cache import CacheKey
from silvan.federation.describe import FLOOR
from silvan.federation.message import Blob, Course, Request, Verb
from silvan.federation.party import Party
from silvan.federation.store import digest
from silvan.tree.draw import Monotonic, Ties
from silvan.tree.fit import Settings
from silvan.tree.gain import Rule
from silvan.tree.level import find_listed
from silvan.tree.node_rows import Binned, NodeRows
from silvan.tree.objectives import Measure
from silvan.tree.partition import is_bit_per_row, route
from silvan.tree.split import Splits
from silvan.util.threads import thread_count


class GrowingContext(msgspec.Struct, frozen=True):
    """What trees grow on, as one party is told it."""

    rows: Blob  # digests of the rows to learn from
    schema: Blob  # of the party's own columns
    n_columns: int  # of all parties together
    settings: Settings  # without weights of classes, which would tell them apart
    labels: Blob | None = None  # in code, sealed for the parties; None: they are encrypted, and rows have no label here
    measure: Measure | None = None
    rounds: list[Blob] = []  # the partitions so far
    draws: bytes = b""  # the key by which trees draw rows, sealed for the parties
    first_column: int = 0  # the number of the party's first column among those of all parties


class Round(msgspec.Struct, frozen=True):
    """The splits of a level: which nodes, and of those whose children are split further, who goes left."""

    nodes: np.ndarray
    needed: np.ndarray
    bits: np.ndarray


class Growing(Request, frozen=True, kw_only=True):
    """What questions about growing trees have in common."""

    verb: ClassVar[Verb] = "ask"

    ground: GrowingContext
    nodes: np.ndarray  # int32
    features: np.ndarray  # int32 (nodes, most), of the party's own columns, -1 after the last
    bounds: np.ndarray | UnsetType = UNSET  # float64 (nodes, 2) in code, where trees must be monotonic

    @property
    def min_leaf(self) -> int:
        """Rows a leaf has at least, for the party's policy to judge."""
        return self.ground.settings.min_samples_leaf

    def course(self) -> Course:
        """Return where the question stands: after all partitions. A party may have no column in the first draws."""
        return Course("forest", tuple(blob.hash for blob in self.ground.rounds), anywhere=True)

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if trees grow on the same rows and settings as before; a level takes several questions."""
        same = digest(wire.encode(msgspec.structs.replace(self.ground, rounds=[]))).encode()
        return same if all(trace == same for trace in traces) else None


@dataclass
class Descent:
    """Where the rows are, and the splits that the party has found and made."""

    rows: NodeRows
    given_rule: Rule | None
    threads: int
    is_split: np.ndarray  # by node
    tie_key: np.ndarray  # known to parties alone
    first_column: int
    signs: np.ndarray  # of all columns up to the party's last: which way predictions in code may go with its own
    done: list[str] = field(default_factory=list)
    found: tuple[np.ndarray, np.ndarray, Splits] | None = None  # of the last question: nodes, features, splits
    made: list[tuple[np.ndarray, Splits]] = field(default_factory=list)

    def check(self, nodes: np.ndarray, features: np.ndarray) -> None:
        """Raise ``FormatError`` for nodes or features that do not exist."""
        check_nodes(nodes, features, len(self.is_split), len(self.rows.table.bins.n_bins))

    @property
    def rule(self) -> Rule:
        """How splits are judged, if the party has labels in code."""
        if self.given_rule is None:
            raise RefusedError("the party has no labels to judge splits by")
        return self.given_rule

    def ties(self, seeds: np.ndarray, n: int, bounds: np.ndarray | UnsetType = UNSET) -> Ties:
        """Return what decides between the splits of nodes with these seeds, and bounds if there are any."""
        if seeds.shape != (n,) or seeds.dtype != np.uint64:
            raise FormatError("the seeds do not match the nodes")
        if isinstance(bounds, UnsetType):
            return Ties(self.tie_key, seeds, self.first_column)
        if bounds.shape != (n, 2) or bounds.dtype != np.float64:
            raise FormatError("the bounds do not match the nodes")
        return Ties(self.tie_key, seeds, self.first_column, Monotonic(self.signs, bounds))

    def find(
        self, nodes: np.ndarray, features: np.ndarray, seeds: np.ndarray, bounds: np.ndarray | UnsetType = UNSET
    ) -> Splits:
        """Find the best split of each node; feature -1 where there is none."""
        self.check(nodes, features)
        return find_listed(self.rows, nodes, features, self.rule, self.ties(seeds, len(nodes), bounds), self.threads)

    def apply(self, level: Round) -> None:
        """Send rows left or right by a round's bits."""
        nodes, needed, bits = level.nodes, level.needed, level.bits
        if nodes.dtype != np.int32 or needed.dtype != np.bool_ or bits.dtype != np.uint8:
            raise FormatError("a partition is of another type")
        if nodes.ndim != 1 or needed.shape != nodes.shape or bits.ndim != 1:
            raise FormatError("a partition does not match its nodes")
        if not are_different(nodes, len(self.is_split)):
            raise FormatError("a partition of a node that does not exist")
        if self.is_split[nodes].any():
            raise FormatError("a partition of a node that was split before")
        sizes = self.rows.stops[nodes[needed]] - self.rows.starts[nodes[needed]]
        if not is_bit_per_row(bits, sizes):
            raise FormatError("a partition has another number of bits than the node has rows")
        route(self.rows, nodes, needed, bits, self.threads)
        self.is_split[nodes] = True
        self.is_split = np.concatenate([self.is_split, np.zeros(2 * len(nodes), np.bool_)])
        self.found = None


def descend(party: Party, ground: GrowingContext) -> Descent:
    """Return the rows at the nodes to which the partitions so far send them."""
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
    """Place every row that a tree has drawn at its root."""
    settings, measure = ground.settings, ground.measure
    schema = named_columns(party, ground.schema)
    if not 1 <= settings.n_estimators <= MAX_TREES or settings.class_weight is not None:
        raise FormatError(f"the trees must be 1 to {MAX_TREES}, and classes without weights of their own")
    if not 0 <= ground.first_column <= ground.n_columns - len(schema.features) <= 1 << 24:
        raise FormatError("the columns are not possible")
    check_objective(settings)
    threads = thread_count(party.n_jobs)
    X = encode_rows(party, schema, ground.rows)
    target, rule, n_stats = np.zeros(len(X), np.uint16), None, 1
    if measure is not None and ground.labels is not None:
        check_measure(measure)
        target, rule = open_labels(party, ground.labels, measure, len(X)), settings.rule(measure)
        n_stats = measure.n_stats
    bins, codes = find_bins(X, schema, settings.max_bins, threads, FLOOR, ground.n_columns, staggered=True)
    row_key, words = row_draws(party, ground.draws, ground.rows)
    table = Binned(codes, target, words, bins, n_stats)
    rows = NodeRows.of_trees(table, row_key, range(settings.n_estimators), settings.row_draw, threads)
    first, own = ground.first_column, settings.signs or [0] * len(schema.features)
    if len(own) != len(schema.features):
        raise FormatError("not every column is told which way it may go")
    signs = np.array([0] * first + own, np.int8)
    return Descent(rows, rule, threads, np.zeros(settings.n_estimators, np.bool_), row_key, first, signs)
