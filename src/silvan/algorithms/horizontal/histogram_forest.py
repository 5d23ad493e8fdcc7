"""Horizontal forests from summed histograms: exact, with one round per level of all trees.

The coordinator grows the trees; sites only count. A request about a level names the open nodes and the features
sampled at each, and repeats all splits made so far, so that a site without any state can reply. With two
rounds for the bins, a forest of any number of trees of depth D takes D + 2 rounds. All sums are of integers and all
sampling is keyed, so the forest equals the one of all rows in one place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.horizontal.split_trees import at_kept_leaves, leaves_of_splits, trees_of_splits
from silvan.algorithms.keyed_rows import check_sampling
from silvan.algorithms.level_checks import AfterSplits, SplitHistory, check_histograms, check_nodes
from silvan.algorithms.requests import counts_of, schema_of
from silvan.algorithms.shared_bins import bins_of, find_shared_bins
from silvan.data.bins.bins import Bins
from silvan.data.bins.time_bins import check_events
from silvan.data.schema import MAX_BINS, Schema
from silvan.errors import FormatError, reject
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Blob, Derived, Fixed, PartitionsWay, SummedReply, Total
from silvan.federation.outgoing import Bounds
from silvan.federation.part import Part, StoredPart
from silvan.federation.site import Site, answers
from silvan.federation.store import CacheKey
from silvan.forest.category_set import SET_WORDS
from silvan.forest.forest import Forest
from silvan.tree.fit import Settings, assemble, send_to_device
from silvan.tree.grow import Frontier, grow
from silvan.tree.leaf_curves import curved, times_at_leaves
from silvan.tree.level import choose_level, sample_level
from silvan.tree.node_rows import Binned
from silvan.tree.objectives import Measure
from silvan.tree.out_of_core import RoutedRows
from silvan.tree.rows import Fillable, TreeRows
from silvan.tree.sampling import Ties, cut_offsets, rows_of_trees
from silvan.tree.split import Splits
from silvan.util.device import DeviceError, takes_device, warn_of
from silvan.util.readable import count_of
from silvan.util.threads import thread_count


# -- messages
class Histograms(SummedReply, frozen=True, kw_only=True):
    """Statistics by bin, of every open node and each of its features, one after the other."""

    sums: np.ndarray


class GrowLevel(AfterSplits, Total[Histograms], frozen=True, kw_only=True):
    """Histograms of every open node."""

    partitions: ClassVar[PartitionsWay | None] = "add up"
    narrow: ClassVar[bool] = True
    split_types: ClassVar[dict[str, tuple[type, tuple[int, ...]]]] = {
        "split_node": (np.int32, ()),
        "split_feature": (np.int32, ()),
        "split_bin": (np.int32, ()),
        "split_missing_left": (np.bool_, ()),
        "split_words": (np.uint64, (SET_WORDS,)),
    }

    bins: Agreed[Blob]
    measure: Fixed[Measure]
    max_bins: Fixed[int] = MAX_BINS  # bins of a column in a tree, which the site's policy checks
    nodes: Derived[np.ndarray]  # int32, numbers of the open nodes
    features: Derived[np.ndarray]  # int32 (nodes, sampled), -1 where fewer were left to sample
    split_bin: Derived[np.ndarray]

    def describe(self, reply: Any = None) -> str:
        """Describe the request, or the reply."""
        each = f"{count_of(self.features.shape[1], 'feature')} x {count_of(len(self.nodes), 'node')}"
        what = "counts" if self.measure.counts_rows else "sums"
        if reply is None:
            return f"{what} by bin of {each}"
        listed = int((self.features >= 0).sum())
        bins = len(reply.sums) / max(listed, 1)
        return f"{what} of {'' if bins == int(bins) else 'about '}{bins:.0f} bins x {each}"

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the request follows the last level: its nodes are split by features asked about there."""
        return self.follow_splits(traces, further, self.nodes, self.features)


class LeafTimes(SummedReply, frozen=True, kw_only=True):
    """Rows at every leaf by time bin, without the event and with it: (leaves, codes)."""

    counts: np.ndarray


class CountLeafTimes(GrowLevel, frozen=True, kw_only=True):
    """Rows by time bin, with the event and without, at the leaves of all splits: the last round of survival forests."""

    reply: ClassVar[type[SummedReply]] = LeafTimes
    partitions: ClassVar[PartitionsWay | None] = None
    narrow: ClassVar[bool] = False

    def describe(self, reply: Any = None) -> str:
        """Describe the request, or the reply."""
        leaves = count_of(self.n_trees + len(self.split_node), "leaf")
        return f"rows by {len(self.measure.times)} time bins, with the event and without, at {leaves}"

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the question follows the last level; no level follows it, as it is about no open node."""
        if not traces or not further:
            return None
        return self.follow_splits(traces, further, _NO_NODES, _NO_FEATURES)


_NO_NODES, _NO_FEATURES = np.zeros(0, np.int32), np.zeros((0, 1), np.int32)
_PLACE_BYTES = 10  # memory per row and tree while trees grow
_LEVEL_BYTES = 1 << 28  # a level whose histograms take more is split into several messages


# -- at a site
@dataclass
class _Growing:
    """A site's rows on their way down the trees: a cache, recomputed when it does not fit the request."""

    rows: Fillable
    done: list[bytes]  # the splits of each round applied so far
    on_device: bool


@answers(GrowLevel)
def grow_level(site: Site, request: GrowLevel) -> Histograms:
    """Add up the histograms of the open nodes."""
    return Histograms(sums=level_histograms(site, request))


@answers(CountLeafTimes)
def count_leaf_times(site: Site, request: CountLeafTimes) -> LeafTimes:
    """Count times at the leaves of all splits."""
    schema, bins = read_level(site, request)
    measure, splits = request.measure, {name: getattr(request, name) for name in request.split_types}
    reject(schema.label.event is None, "times are counted for survival alone")
    forest = trees_of_splits(request.n_trees, splits, schema, bins, measure)
    counts = np.zeros((len(forest.value), measure.n_codes), np.int64)
    for part in site.rows_to_sample(schema).pieces():
        drawn = rows_of_trees(site.sampling_key, part.row_keys, 0, request.n_trees, request.bootstrap)
        counts += times_at_leaves(forest, measure, part.X, measure.codes(part.y), drawn, site.n_jobs)
    return LeafTimes(counts=counts)


def level_histograms(site: Site, request: GrowLevel, part: Part | None = None, name: str = "") -> np.ndarray:
    """Bring the rows to the open nodes and add up their histograms.

    ``part`` are rows to use instead of the site's own, for private forests; ``name`` distinguishes them from others.
    """
    schema, bins = read_level(site, request, noisy=part is not None)
    if takes_device(site.device, site.n_train if part is None else len(part)):
        try:
            return _level(site, request, schema, bins, part, name, on_device=True)
        except DeviceError as failure:
            site.device = "cpu"  # what is on the device may be half done
            warn_of(failure)
    return _level(site, request, schema, bins, part, name, on_device=False)


def _level(
    site: Site, request: GrowLevel, schema: Schema, bins: Bins, part: Part | None, name: str, *, on_device: bool
) -> np.ndarray:
    fingerprints = request.fingerprints()

    def begin() -> _Growing:
        check_sampling(site.n_train if part is None else len(part), request.bootstrap)
        rows = site.rows_to_sample(schema) if part is None else part
        return _Growing(_rows(site, rows, bins, request, on_device), [], on_device)

    def fits(known: _Growing) -> bool:
        return known.on_device == on_device and known.done == fingerprints[: len(known.done)]

    growing = site.cache.once(CacheKey[_Growing]("growing", name, request.forest_name()), begin, fits)
    done = len(growing.done)
    for fingerprint, columns in zip(fingerprints[done:], request.rounds()[done:], strict=True):
        node, feature, bin_, missing_left, words = columns
        stats, every = np.zeros((len(node), 0), np.int64), np.ones(len(node), np.bool_)
        splits = Splits(feature, bin_, missing_left, words, stats, stats, np.zeros(len(node)), every)
        growing.rows.apply(node, splits, every, thread_count(site.n_jobs))
        growing.done.append(fingerprint)
    return growing.rows.fill(request.nodes, request.features, thread_count(site.n_jobs))


def read_level(site: Site, request: GrowLevel, *, noisy: bool = False) -> tuple[Schema, Bins]:
    """Read the blobs of a request; raise ``FormatError`` if no site could reply to it."""
    schema = schema_of(site, request.schema)
    bins = bins_of(site, request.bins, schema, request.max_bins, public=noisy)
    _check(request, schema, bins)
    return schema, bins


def _rows(site: Site, part: Part, bins: Bins, request: GrowLevel, on_device: bool) -> Fillable:
    """Put the rows at the roots: all of them in memory if they fit, otherwise in pieces."""
    measure, key, n_trees = request.measure, site.sampling_key, request.n_trees
    if isinstance(part, StoredPart):
        codes = part.binned(bins, thread_count(site.n_jobs))
        if len(part) * (codes.row_bytes + 32 + _PLACE_BYTES * n_trees) > part.memory // 2:

            def pieces() -> Iterator[Binned]:
                for start, stop in part.stretches(codes.row_bytes + 64 * (1 + thread_count(site.n_jobs))):
                    target = measure.rows(part.files[1].window(start, stop))
                    yield Binned(codes.window(start, stop), target, part.keys(start, stop), bins, measure.n_stats)

            return RoutedRows(pieces, bins, key, n_trees, request.bootstrap)
        table = Binned(codes.window().copy(), measure.rows(part.y), part.row_keys, bins, measure.n_stats)
    else:
        table = binned(part, bins, measure, site.n_jobs)
    threads = thread_count(site.n_jobs)
    if on_device:
        return send_to_device(table).sample(key, range(n_trees), request.bootstrap, threads)
    return TreeRows.of_trees(table, key, range(n_trees), request.bootstrap, threads)


def binned(part: Part, bins: Bins, measure: Measure, n_jobs: int | None) -> Binned:
    """Return training rows with binned features and measured target."""
    codes = bins.apply(part.X, thread_count(n_jobs))
    return Binned(codes, measure.rows(part.y), part.row_keys, bins, measure.n_stats)


def _check(request: GrowLevel, schema: Schema, bins: Bins) -> None:
    """Raise ``FormatError`` for an inconsistent request, because kernels trust their input."""
    reject(not request.measure.fits(schema.n_classes, schema.label.task), "the statistics are not those of the label")
    request.check_splits(len(bins.n_bins))
    node, feature, n = request.split_node, request.split_feature, len(request.split_node)
    if (request.split_bin < 0).any() or (request.split_bin > bins.last[feature]).any():
        raise FormatError("a split after a bin that does not exist")
    check_nodes(request.nodes, request.features, request.n_trees + 2 * n, len(bins.n_bins))
    was_split = np.zeros(request.n_trees + 2 * n, np.bool_)
    was_split[node] = True
    reject(was_split[request.nodes].any(), "an open node was split before")


# -- at the coordinator
def asks(schema: Schema) -> tuple[type[GrowLevel], ...]:
    """Return the kinds of messages that growing a forest needs, besides those about bins."""
    return (GrowLevel,) if schema.label.event is None else (GrowLevel, CountLeafTimes)


def fit(federation: Federation, schema: Schema, settings: Settings, feature_key: np.ndarray) -> Forest:
    """Grow the forest of all sites' training rows."""
    bins, bins_blob, label, in_bins = find_shared_bins(federation, schema, settings.max_bins)
    plan = settings.federated_plan(len(schema.features))
    if schema.label.event is not None:
        check_events(label)
    measure = settings.measure(schema, label)
    rule = settings.rule(measure)
    schema_blob = federation.blob(schema.to_json().encode())
    history = SplitHistory(GrowLevel)
    rows = RowBounds(settings.n_estimators, measure, label, in_bins)

    def request_of(kind: type[GrowLevel], nodes: np.ndarray, features: np.ndarray) -> GrowLevel:
        return kind(
            schema=schema_blob,
            bins=bins_blob,
            measure=measure,
            n_trees=settings.n_estimators,
            bootstrap=settings.row_sampling,
            min_leaf=settings.min_samples_leaf,
            max_bins=settings.max_bins,
            nodes=nodes,
            features=features,
            **history.columns(),
        )

    def find_splits(nodes: np.ndarray, features: np.ndarray, ties: Ties, offsets: np.ndarray) -> Splits:
        reply: Histograms = federation.total(
            request_of(GrowLevel, nodes, features),
            check=lambda site, reply: check_histograms(reply.sums, features, bins, measure),
            most=rows.of(nodes, features, bins),
        )
        return choose_level(reply.sums, features, bins, rule, ties, offsets=offsets)

    def find(frontier: Frontier) -> Splits:
        nodes, features = frontier.node.astype(np.int32), sample_level(frontier, plan)
        ties, messages = frontier.ties(feature_key, plan), _messages(features, bins, measure)
        offsets = cut_offsets(frontier.tree)
        with federation.one_round():
            parts = [find_splits(nodes[some], features[some], ties.take(some), offsets[some]) for some in messages]
        return Splits(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def remember(nodes: np.ndarray, splits: Splits, needed: np.ndarray) -> None:
        history.add(nodes, splits, needed)
        rows.add(splits)

    grown = grow(np.arange(settings.n_estimators), feature_key, plan, rule, find, remember)
    forest = assemble([(grown, bins.cut(grown.feature, grown.bin))], schema, measure, settings.combine)
    if not measure.times:
        return forest
    leaves = leaves_of_splits(settings.n_estimators, history.columns())
    counted: LeafTimes = federation.total(
        request_of(CountLeafTimes, _NO_NODES, _NO_FEATURES),
        check=counts_of(counts=(len(leaves), measure.n_codes)),
        most=measure.mass,
    )
    return curved(forest, measure, at_kept_leaves(grown, leaves, counted.counts))


def _messages(features: np.ndarray, bins: Bins, measure: Measure) -> list[slice]:
    """Cut a level into slices of nodes whose histograms fit a message; usually there is one slice."""
    widths = np.where(features >= 0, bins.n_bins[features], 0).sum(axis=1)
    ends = np.cumsum(widths) * measure.n_stats * np.dtype(measure.count_type).itemsize
    bounds = [0, *np.flatnonzero(np.diff(ends // _LEVEL_BYTES)) + 1, len(features)]
    return [slice(a, b) for a, b in pairwise(bounds)]


class RowBounds:
    """The rows of each node at most: of every class, or of all if a number is predicted.

    ``label`` counts training rows by label, ``in_bins`` the most rows of a bin of each feature.
    """

    def __init__(self, n_trees: int, measure: Measure, label: np.ndarray, in_bins: np.ndarray) -> None:
        self.counts = measure.row_counts
        self.n_stats, self.in_bins = measure.n_stats, in_bins
        at_root = label if measure.counts_rows else label.sum(keepdims=True)
        self.rows = np.broadcast_to(at_root.astype(np.int64), (n_trees, len(at_root)))

    def add(self, splits: Splits) -> None:
        """Add the nodes that a round's splits make."""
        children = np.stack([splits.left, splits.total - splits.left], axis=1)[:, :, self.counts]
        self.rows = np.concatenate([self.rows, children.reshape(-1, children.shape[2])])

    def of(self, nodes: np.ndarray, features: np.ndarray, bins: Bins) -> Bounds:
        """Return upper bounds on the sums of the nodes' histograms; sums of numeric targets have none."""
        drawn = features >= 0
        in_bin = np.where(drawn, self.in_bins[features], 0).max(axis=1, initial=0)
        most = np.full((len(nodes), self.n_stats), np.iinfo(np.int64).max)
        most[:, self.counts] = np.minimum(self.rows[nodes], in_bin[:, None])
        return Bounds(np.where(drawn, bins.n_bins[features], 0).sum(axis=1, dtype=np.int64), most)
