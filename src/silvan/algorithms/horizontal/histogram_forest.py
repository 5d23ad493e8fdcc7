"""Horizontal forests from summed histograms: exact, a level of all trees a round.

The coordinator grows the trees; sites only add up. A question about a level names the open nodes and the features drawn
at each, and repeats all splits made so far, so that a site that remembers nothing can answer it. With two rounds for
the bins, a forest of any number of trees of depth D takes D + 2 rounds. Every sum is of integers and every draw is
keyed, so the forest is the one that all rows in one place would give.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import msgspec
import numpy as np

from silvan.algorithms.drawn_rows import check_draw
from silvan.algorithms.horizontal.row_bounds import RowBounds
from silvan.algorithms.level_checks import are_different, check_histograms, check_nodes
from silvan.algorithms.level_rules import follow_level
from silvan.algorithms.requests import MAX_TREES, schema_of
from silvan.algorithms.shared_bins import bins_of, find_shared_bins
from silvan.data.bins.bins import Bins
from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.federation import wire
from silvan.federation.cache import CacheKey
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Course, PartitionsWay, Reply, Total
from silvan.federation.part import Part, StoredPart
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.forest.category_set import SET_WORDS
from silvan.forest.forest import Forest
from silvan.tree.draw import RowDraw, Ties, cut_offsets
from silvan.tree.fit import Settings, assemble
from silvan.tree.grow import Frontier, Grown, grow
from silvan.tree.level import choose_level, draw_level
from silvan.tree.node_rows import Binned
from silvan.tree.objectives import Measure
from silvan.tree.out_of_core import RoutedRows
from silvan.tree.rows import Rows
from silvan.tree.split import Splits
from silvan.util.readable import count_of
from silvan.util.threads import thread_count

# -- messages


class Histograms(Reply, frozen=True, kw_only=True):
    """Statistics by bin, of every open node and each of its features, one after the other."""

    sums: np.ndarray


class GrowLevel(Total[Histograms], frozen=True, kw_only=True):
    """Histograms of every open node."""

    partitions: ClassVar[PartitionsWay] = "add up"
    narrow: ClassVar[bool] = True

    schema: Blob
    bins: Blob
    measure: Measure
    n_trees: int
    bootstrap: RowDraw
    nodes: np.ndarray  # int32, numbers of the open nodes
    features: np.ndarray  # int32 (nodes, drawn), -1 where fewer were left to draw
    # all splits so far, in the order they were made; the k-th made the nodes n_trees + 2k and the next
    round_sizes: np.ndarray
    split_node: np.ndarray
    split_feature: np.ndarray
    split_bin: np.ndarray
    split_missing_left: np.ndarray
    split_words: np.ndarray
    min_leaf: int = 1  # rows that both sides of a split have at least, for the site's policy to judge

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        each = f"{count_of(self.features.shape[1], 'feature')} x {count_of(len(self.nodes), 'node')}"
        what = "counts" if self.measure.counts_rows else "sums"
        if reply is None:
            return f"{what} by bin of {each}"
        listed = int((self.features >= 0).sum())
        bins = len(reply.sums) / max(listed, 1)
        return f"{what} of {'' if bins == int(bins) else 'about '}{bins:.0f} bins x {each}"

    def course(self) -> Course:
        """Return where the question stands: after all rounds of splits."""
        _check_history(self)
        return Course("forest", tuple(digest(fingerprint) for fingerprint in _fingerprints(self)))

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the question follows the last level: its nodes are split by features asked about there."""
        same = (self.schema.hash, self.bins.hash, self.measure, self.n_trees, self.bootstrap, self.min_leaf)
        splits = self.split_node, self.split_feature
        return follow_level(
            digest(wire.encode(_Same(*same))), traces, further, self.n_trees, splits, self.nodes, self.features
        )


class _Same(msgspec.Struct, frozen=True):
    """What no level of a forest may change."""

    schema: str
    bins: str
    measure: Measure
    n_trees: int
    bootstrap: RowDraw
    min_leaf: int


_PLACE_BYTES = 10
"""Memory that a row takes for every tree while trees grow."""

_LEVEL_BYTES = 1 << 28
"""Histograms of a level that take more are asked for in several messages."""

_SPLIT_TYPES = {
    "split_node": np.int32,
    "split_feature": np.int32,
    "split_bin": np.int32,
    "split_missing_left": np.bool_,
    "split_words": np.uint64,
}


# -- at a site


@dataclass
class _Growing:
    """A site's rows on their way down the trees: a cache, made again when it does not fit the request."""

    rows: Rows | RoutedRows
    done: list[bytes]  # the splits of each round applied so far


@answers(GrowLevel)
def grow_level(site: Site, request: GrowLevel) -> Histograms:
    """Add up the histograms of the open nodes."""
    return Histograms(sums=level_histograms(site, request))


def level_histograms(site: Site, request: GrowLevel, part: Part | None = None, name: str = "") -> np.ndarray:
    """Bring the rows to the open nodes and add up their histograms.

    ``part`` are rows to take instead of the site's own, for private forests; ``name`` tells them from any others.
    """
    schema, bins = read_level(site, request)
    forest = request.schema.hash, request.bins.hash, request.measure, request.n_trees, request.bootstrap
    rounds = _rounds(request)

    def begin() -> _Growing:
        check_draw(site.n_train if part is None else len(part), request.bootstrap)
        rows = site.part(schema) if part is None else part
        return _Growing(_rows(site, rows, bins, request), [])

    def fits(known: _Growing) -> bool:
        return known.done == [fingerprint for fingerprint, _ in rounds[: len(known.done)]]

    growing = site.cache.once(CacheKey[_Growing]("growing", name, *forest), begin, fits)
    for fingerprint, splits in rounds[len(growing.done) :]:
        growing.rows.apply(*splits, np.ones(len(splits[0]), np.bool_), thread_count(site.n_jobs))
        growing.done.append(fingerprint)
    return growing.rows.fill(request.nodes, request.features, thread_count(site.n_jobs))


def read_level(site: Site, request: GrowLevel) -> tuple[Schema, Bins]:
    """Read what a question refers to; raise ``FormatError`` if it cannot be answered whatever the rows are."""
    schema = schema_of(site, request.schema)
    bins = bins_of(site, request.bins, schema)
    _check(request, schema, bins)
    return schema, bins


def _rows(site: Site, part: Part, bins: Bins, request: GrowLevel) -> Rows | RoutedRows:
    """Put the rows at the roots: all of them in memory if they fit, else in pieces."""
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
    return Rows.of_trees(table, key, range(n_trees), request.bootstrap, thread_count(site.n_jobs))


def binned(part: Part, bins: Bins, measure: Measure, n_jobs: int | None) -> Binned:
    """Return training rows with binned features and measured target."""
    codes = bins.apply(part.X, thread_count(n_jobs))
    return Binned(codes, measure.rows(part.y), part.row_keys, bins, measure.n_stats)


def _rounds(request: GrowLevel) -> list[tuple[bytes, tuple[np.ndarray, Splits]]]:
    """Cut the splits so far into rounds: the bytes of each, which tell it from any other, and its splits."""
    columns = [getattr(request, name) for name in _SPLIT_TYPES]
    rounds, start = [], 0
    for size, fingerprint in zip(request.round_sizes.tolist(), _fingerprints(request), strict=True):
        node, feature, bin_, missing_left, words = (c[start : start + size] for c in columns)
        stats = np.zeros((size, 0), np.int64)
        splits = Splits(feature, bin_, missing_left, words, stats, stats, np.zeros(size), np.ones(size, np.bool_))
        rounds.append((fingerprint, (node, splits)))
        start += size
    return rounds


def _fingerprints(request: GrowLevel) -> list[bytes]:
    """Return the bytes of each round of splits."""
    columns = [getattr(request, name) for name in _SPLIT_TYPES]
    stops = np.cumsum(request.round_sizes).tolist()
    return [b"".join(c[start:stop].tobytes() for c in columns) for start, stop in pairwise([0, *stops])]


def _check(request: GrowLevel, schema: Schema, bins: Bins) -> None:
    """Raise ``FormatError`` for a question that contradicts itself: kernels trust what they are given."""
    if not request.measure.fits(schema.n_classes):
        raise FormatError("the statistics are not those of the label")
    if not 1 <= request.n_trees <= MAX_TREES:
        raise FormatError(f"the trees must be 1 to {MAX_TREES}")
    for name, dtype in _SPLIT_TYPES.items():
        column = getattr(request, name)
        if column.dtype != dtype or column.ndim != (2 if name == "split_words" else 1):
            raise FormatError(f"{name} is of another type")
    if request.split_words.shape[1] != SET_WORDS:
        raise FormatError("a set of categories is of another size")
    _check_history(request)
    sizes, node, feature = request.round_sizes, request.split_node, request.split_feature
    n = len(node)
    there = request.n_trees + 2 * np.repeat(np.cumsum(sizes) - sizes, sizes)  # nodes when a split was made
    if (node >= there).any() or not are_different(node, request.n_trees + 2 * n):
        raise FormatError("a split of a node that does not exist, or was split before")
    if (feature < 0).any() or (feature >= len(bins.n_bins)).any():
        raise FormatError("a split by a feature that does not exist")
    if (request.split_bin < 0).any() or (request.split_bin > bins.last[feature]).any():
        raise FormatError("a split after a bin that does not exist")
    check_nodes(request.nodes, request.features, request.n_trees + 2 * n, len(bins.n_bins))
    was_split = np.zeros(request.n_trees + 2 * n, np.bool_)
    was_split[node] = True
    if was_split[request.nodes].any():
        raise FormatError("an open node was split before")


def _check_history(request: GrowLevel) -> None:
    """Raise ``FormatError`` for splits that cannot be cut into rounds."""
    sizes, columns = request.round_sizes, [getattr(request, name) for name in _SPLIT_TYPES]
    if any(c.ndim == 0 for c in columns) or len({len(c) for c in columns}) != 1:
        raise FormatError("the splits so far do not match")
    n = len(columns[0])
    if sizes.ndim != 1 or sizes.dtype != np.int64 or ((sizes < 0) | (sizes > n)).any() or sizes.sum() != n:
        raise FormatError("the splits so far do not match")


# -- at the coordinator


def fit(federation: Federation, schema: Schema, settings: Settings, feature_key: np.ndarray) -> Forest:
    """Grow the forest of all sites' training rows."""
    bins, bins_blob, label, in_bins = find_shared_bins(federation, schema, settings.max_bins)
    plan = settings.federated_plan(len(schema.features))
    measure = settings.measure(schema, label)
    rule = settings.rule(measure)
    schema_blob = federation.blob(schema.to_json().encode())
    history = SplitHistory()
    rows = RowBounds(settings.n_estimators, measure, label, in_bins)

    def find_splits(nodes: np.ndarray, features: np.ndarray, ties: Ties, offsets: np.ndarray) -> Splits:
        reply: Histograms = federation.total(
            GrowLevel(
                schema=schema_blob,
                bins=bins_blob,
                measure=measure,
                n_trees=settings.n_estimators,
                bootstrap=settings.row_draw,
                min_leaf=settings.min_samples_leaf,
                nodes=nodes,
                features=features,
                **history.columns(),
            ),
            check=lambda site, reply: check_histograms(reply.sums, features, bins, measure),
            most=rows.of(nodes, features, bins),
        )
        return choose_level(reply.sums, features, bins, rule, ties, offsets=offsets)

    def find(frontier: Frontier) -> Splits:
        nodes, features = frontier.node.astype(np.int32), draw_level(frontier, plan)
        ties, messages = frontier.ties(feature_key, plan), _messages(features, bins, measure)
        offsets = cut_offsets(frontier.tree)
        with federation.one_round():
            parts = [find_splits(nodes[some], features[some], ties.take(some), offsets[some]) for some in messages]
        return Splits(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def remember(nodes: np.ndarray, splits: Splits, needed: np.ndarray) -> None:
        history.add(nodes, splits, needed)
        rows.add(splits)

    trees = np.arange(settings.n_estimators)
    grown: Grown = grow(trees, feature_key, plan, rule, find, remember)
    return assemble([(grown, bins.cut(grown.feature, grown.bin))], schema, measure, settings.combine)


def _messages(features: np.ndarray, bins: Bins, measure: Measure) -> list[slice]:
    """Cut a level into slices of nodes whose histograms fit a message; nearly always it is one."""
    widths = np.where(features >= 0, bins.n_bins[features], 0).sum(axis=1)
    ends = np.cumsum(widths) * measure.n_stats * np.dtype(measure.count_type).itemsize
    bounds = [0, *np.flatnonzero(np.diff(ends // _LEVEL_BYTES)) + 1, len(features)]
    return [slice(a, b) for a, b in pairwise(bounds)]


class SplitHistory:
    """The splits made so far, as questions repeat them."""

    def __init__(self) -> None:
        self.rounds: list[tuple[np.ndarray, ...]] = []

    def add(self, nodes: np.ndarray, splits: Splits, needed: np.ndarray) -> None:
        """Add a round's splits."""
        columns = (splits.feature, splits.bin, splits.missing_left, splits.words)
        self.rounds.append((nodes.astype(np.int32), *columns))

    def columns(self) -> dict[str, np.ndarray]:
        """Return all rounds as the fields of a question."""
        shapes = {"split_words": (0, SET_WORDS)}
        empty: list[np.ndarray] = [np.zeros(shapes.get(name, (0,)), dtype) for name, dtype in _SPLIT_TYPES.items()]
        joined = [np.concatenate(column) for column in zip(empty, *self.rounds, strict=True)]
        sizes = np.array([len(r[0]) for r in self.rounds], np.int64)
        return {"round_sizes": sizes, **dict(zip(_SPLIT_TYPES, joined, strict=True))}
