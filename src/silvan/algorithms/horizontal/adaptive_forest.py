"""Horizontal forests from merged histograms with adaptive bins, as published (``bins="adaptive"``).

At every node each site summarises a feature in at most b bins of (mean value, positives, negatives), merging the two
nearest when there are more (Eqs 4-5, Alg. 2). The coordinator pools the sites' bins, merges down to b again (Alg. 3)
and tries the midpoints between neighbours. A categorical feature has one bin per category and is split by category.
Rows without a value are counted separately, and go to the side with the higher gain, as everywhere in silvan.

The midpoint decides where rows go, so the rows of a child may differ from those of the bins on its side. A last round
counts the rows that reach each leaf: splits with too few rows on a side are undone, and these counts give leaf values.

The mean of a bin with one row is that row's value, and the coordinator sees each site's reply (``ask``), so a site's
policy must name the message. It supports two classes. A level of all trees takes one round.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.horizontal.adaptive_bins import midpoints, pool_bins, summarise_level
from silvan.algorithms.level_checks import AfterSplits, SplitHistory, check_nodes
from silvan.algorithms.requests import counts_of, schema_of
from silvan.data.bins.bins import make_bins
from silvan.data.schema import MAX_BINS, Schema
from silvan.errors import FormatError, InputError, reject
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Derived, Fixed, Reply, SummedReply, Total
from silvan.federation.part import Part
from silvan.federation.site import Site, answers
from silvan.federation.store import CacheKey
from silvan.federation.sums import TrustedSums
from silvan.forest.category_set import SET_WORDS
from silvan.forest.forest import Forest
from silvan.tree.fit import Settings, assemble
from silvan.tree.grow import Frontier, Grown, grow
from silvan.tree.level import choose_level, sample_level
from silvan.tree.sampling import Ties, rows_of_trees
from silvan.tree.split import Splits


class AdaptiveBins(Reply, frozen=True, kw_only=True):
    """Bins of every open node and each of its features, one after the other."""

    sizes: np.ndarray  # bins of each
    means: np.ndarray
    counts: np.ndarray  # (bins, 2): negatives, positives
    missing: np.ndarray  # (histograms, 2): the same of rows without a value; empty for none


class LeafCounts(SummedReply, frozen=True, kw_only=True):
    """Rows of every leaf by class, in the order of the leaves' numbers."""

    counts: np.ndarray  # (leaves, 2): negatives, positives


class AfterAdaptiveSplits(AfterSplits, frozen=True, kw_only=True):
    """A request about the trees formed by all splits so far."""

    split_types: ClassVar[dict[str, tuple[type, tuple[int, ...]]]] = {
        "split_node": (np.int32, ()),
        "split_feature": (np.int32, ()),
        "split_threshold": (np.float32, ()),
        "split_words": (np.uint64, (SET_WORDS,)),
        "split_missing_left": (np.bool_, ()),
    }

    max_bins: Fixed[int]
    split_threshold: Derived[np.ndarray]


class AdaptiveLevel(AfterAdaptiveSplits, Ask[AdaptiveBins], frozen=True, kw_only=True):
    """Mean value, positives and negatives of small groups of rows: a group of one row shows its value."""

    nodes: Derived[np.ndarray]
    features: Derived[np.ndarray]

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the request follows the last level: its nodes are split by features asked about there."""
        return self.follow_splits(traces, further, self.nodes, self.features)


class AdaptiveLeaves(AfterAdaptiveSplits, Total[LeafCounts], frozen=True, kw_only=True):
    """The number of rows per class in every leaf, after all splits."""

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the request follows the last level; no level follows it, as it is about no open node."""
        if not traces or not further:
            return None
        return self.follow_splits(traces, further, np.zeros(0, np.int32), np.zeros((0, 1), np.int32))


# -- at a site
@dataclass
class _NodeRows:
    """Rows of each node, and the rounds of splits applied so far: a cache."""

    rows: list[np.ndarray]
    done: list[bytes]


@answers(AdaptiveLevel)
def adaptive_level(site: Site, request: AdaptiveLevel) -> AdaptiveBins:
    """Send the rows to the open nodes and summarise them in bins."""
    schema, part, rows = _rows_of_nodes(site, request)
    check_nodes(request.nodes, request.features, len(rows), len(schema.features))
    own = [rows[node] for node in request.nodes]
    starts = np.concatenate([[0], np.cumsum([len(r) for r in own])]).astype(np.int64)
    n_codes = np.array([f.n_codes if f.categorical else 0 for f in schema.features], np.int64)
    drawn = request.features >= 0
    limits = np.minimum(request.max_bins, np.diff(starts))[:, None]  # a number has no more bins than rows
    most = int(np.where(n_codes[request.features] > 0, n_codes[request.features], limits)[drawn].sum())
    sizes, missing = np.zeros(drawn.sum(), np.int32), np.zeros((drawn.sum(), 2), np.int64)
    means, counts = np.zeros(most), np.zeros((most, 2), np.int64)
    X, y = part.X.astype(np.float64), part.y.astype(np.int64)
    joined = np.concatenate([*own, np.zeros(0, np.int64)])
    table = joined, starts, request.features, n_codes, request.max_bins
    n = summarise_level(X, y, *table, sizes, means, counts, missing)
    return AdaptiveBins(sizes=sizes, means=means[:n].copy(), counts=counts[:n].copy(), missing=missing)


@answers(AdaptiveLeaves)
def adaptive_leaves(site: Site, request: AdaptiveLeaves) -> LeafCounts:
    """Send the rows to the leaves and count them by class."""
    _, part, rows = _rows_of_nodes(site, request)
    leaves = np.setdiff1d(np.arange(len(rows)), request.split_node)
    return LeafCounts(counts=np.stack([np.bincount(part.y[rows[leaf]], minlength=2) for leaf in leaves]))


def _rows_of_nodes(site: Site, request: AfterAdaptiveSplits) -> tuple[Schema, Part, list[np.ndarray]]:
    """Return the site's rows by the agreed schema, and the rows at each node after all splits so far."""
    schema = schema_of(site, request.schema)
    part = site.rows_to_sample(schema)
    reject(schema.n_classes != 2, "adaptive bins are for two classes")
    reject(not 2 <= request.max_bins <= MAX_BINS, "the number of bins is out of range")
    request.check_splits(len(schema.features))
    fingerprints = request.fingerprints()

    def begin() -> _NodeRows:
        drawn = rows_of_trees(site.sampling_key, part.row_keys, 0, request.n_trees, request.bootstrap)
        return _NodeRows([np.flatnonzero(d) for d in drawn], [])

    key = CacheKey[_NodeRows]("adaptive", request.forest_name())
    growing = site.cache.once(key, begin, lambda known: known.done == fingerprints[: len(known.done)])
    stops = np.cumsum(request.round_sizes).tolist()
    for fingerprint, (start, stop) in list(zip(fingerprints, pairwise([0, *stops]), strict=True))[len(growing.done) :]:
        for k in range(start, stop):
            rows, f = growing.rows[request.split_node[k]], request.split_feature[k]
            values = part.X[rows, f]
            if schema.features[f].categorical:
                bins = np.where(np.isnan(values), 0, values + 1).astype(np.int64)
                left = (request.split_words[k][bins >> 6] >> (bins & 63).astype(np.uint64)) & np.uint64(1) == 1
            else:
                left = np.where(np.isnan(values), request.split_missing_left[k], values <= request.split_threshold[k])
            growing.rows += [rows[left], rows[~left]]
        growing.done.append(fingerprint)
    return schema, part, growing.rows


# -- at the coordinator
_MANY_ROWS = 1 << 24  # the maximum, if policies keep the number secret


def fit(federation: Federation, schema: Schema, settings: Settings, feature_key: np.ndarray) -> Forest:
    """Grow the forest as published, one level of all trees per round."""
    if schema.n_classes != 2:
        raise InputError("bins='adaptive' is for two classes; use bins='shared'")
    if not isinstance(federation.sums, TrustedSums):
        raise InputError(
            "bins='adaptive' shows each site's bins to the coordinator: it cannot be used with ring or "
            "masked sums; use bins='shared'"
        )
    if settings.class_weight == "balanced":
        raise InputError("class_weight='balanced' needs summed counts; give weights, or use bins='shared'")
    plan = settings.federated_plan(len(schema.features))
    # the number of rows of each class is not disclosed: weights leave room for all rows to have one class
    measure = settings.measure(schema, np.full(2, sum(federation.rows.values()) or _MANY_ROWS))
    rule = settings.rule(measure)
    # the maximum number of bins; a category's bin is its code, as everywhere
    layout = make_bins(
        schema, [np.zeros(0 if f.categorical else settings.max_bins - 1, np.float32) for f in schema.features]
    )
    same: dict[str, Any] = {
        "schema": federation.blob(schema.to_json().encode()),
        "n_trees": settings.n_estimators,
        "bootstrap": settings.row_sampling,
        "max_bins": settings.max_bins,
        "min_leaf": settings.min_samples_leaf,
    }
    history = SplitHistory(AdaptiveLevel)
    pending: dict[str, np.ndarray] = {}

    def find(frontier: Frontier) -> Splits:
        features = sample_level(frontier, plan)
        replies = federation.ask(
            AdaptiveLevel(**same, **history.columns(), nodes=frontier.node.astype(np.int32), features=features),
            check=lambda site, reply: _check_bins(reply, features, schema, settings.max_bins),
        )
        bins = [(reply.sizes, reply.means, reply.counts, reply.missing) for reply in replies.values()]
        means, counts = pool_bins(bins, features, schema, layout, settings.max_bins)
        splits = choose_level(counts, features, layout, rule, Ties(feature_key, frontier.seed))
        pending["threshold"] = midpoints(means, features, splits, layout)
        return splits

    def apply(nodes: np.ndarray, splits: Splits, needed: np.ndarray) -> None:
        threshold = pending["threshold"][pending["threshold"] == pending["threshold"]]
        history.add(nodes, splits, needed, threshold)

    grown = grow(np.arange(settings.n_estimators), feature_key, plan, rule, find, apply)
    splits = history.columns()
    leaves = np.setdiff1d(np.arange(len(grown.tree)), splits["split_node"])
    reply: LeafCounts = federation.total(AdaptiveLeaves(**same, **splits), check=counts_of(counts=(len(leaves), 2)))
    grown, kept = _take_back_small(grown, leaves, reply.counts, settings.min_samples_leaf)
    return assemble([(grown, splits["split_threshold"][kept])], schema, measure, settings.combine)


def _take_back_small(grown: Grown, leaves: np.ndarray, counts: np.ndarray, least: int) -> tuple[Grown, np.ndarray]:
    """Remove splits with fewer than ``least`` rows on a side; return the trees and the remaining splits.

    ``counts`` are those of the rows that reach the leaves; the statistics of all nodes are made from them.
    """
    stats = np.zeros((len(grown.tree), 2), np.int64)
    stats[leaves] = counts
    first = grown.n_trees + 2 * np.arange(len(grown.node))  # the left child that each split made
    for k in range(len(first) - 1, -1, -1):  # children have higher numbers than their parents
        stats[grown.node[k]] = stats[first[k]] + stats[first[k] + 1]
    rows = stats.sum(axis=1)
    there = np.ones(len(grown.tree), np.bool_)
    for k in range(len(first)):
        there[first[k] : first[k] + 2] = there[grown.node[k]] and rows[first[k] : first[k] + 2].min() >= least
    kept = np.flatnonzero(there[first])
    number = np.cumsum(there) - 1
    columns = ("feature", "bin", "missing_left", "words", "gain")
    return (
        replace(
            grown,
            **{name: getattr(grown, name)[there] for name in ("tree", "depth")},
            stats=stats[there],
            node=number[grown.node[kept]],
            **{name: getattr(grown, name)[kept] for name in columns},
        ),
        kept,
    )


def _check_bins(reply: AdaptiveBins, features: np.ndarray, schema: Schema, most: int) -> None:
    """Raise ``FormatError`` for bins that cannot be a reply to the request."""
    asked = features[features >= 0]
    sizes, means, counts = reply.sizes, reply.means, reply.counts
    reject(sizes.dtype != np.int32 or means.dtype != np.float64 or counts.dtype != np.int64, "bins of another type")
    reject(sizes.shape != asked.shape or means.ndim != 1 or counts.shape != (len(means), 2), "bins of another shape")
    by_category = np.array([f.categorical for f in schema.features])[asked]
    limit = np.array([f.n_codes if f.categorical else most for f in schema.features])[asked]
    if (sizes < 0).any() or (sizes > limit).any() or (sizes != limit)[by_category].any():
        raise FormatError("an unrequested number of bins")
    reject(int(sizes.sum()) != len(means) or not np.isfinite(means).all(), "means that do not match")
    missing = reply.missing
    if missing.dtype != np.int64 or missing.shape not in ((len(asked), 2), (0, 2)):
        raise FormatError("counts of missing values of another shape")
    reject(any((c < 0).any() or (c > 2**31).any() for c in (counts, missing)), "counts that cannot be")
    reject((counts.sum(axis=1) == 0)[~np.repeat(by_category, sizes)].any(), "a bin without rows")
    # kernels find a split after a row, and look for the next one: all features of a node must have the same rows
    before, ends = np.concatenate([np.zeros((1, 2), np.int64), np.cumsum(counts, axis=0)]), np.cumsum(sizes)
    rows = before[ends] - before[ends - sizes] + (missing if len(missing) else 0)
    node = np.nonzero(features >= 0)[0]
    reject((rows != rows[np.searchsorted(node, node)]).any(), "features of one node with different rows")
