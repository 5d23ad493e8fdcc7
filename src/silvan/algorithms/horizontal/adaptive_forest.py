"""Horizontal forests from merged histograms with adaptive bins, as published (``bins="adaptive"``).

At every node each site summarises a feature in at most b bins of (mean value, positives, negatives), merging the two
nearest when there are more (Eqs 4-5, Alg. 2). The coordinator pools the sites' bins, merges down to b again (Alg. 3)
and tries the midpoints between neighbours. A categorical feature has one bin a category and is split by category.

The mean of a bin with one row is that row's value, and the coordinator sees each site's reply (``ask``), so a site's
policy must name the message. Two classes, no missing values. A level of all trees is one round.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np
from numba import njit

from silvan.algorithms.shared.level_checks import check_nodes
from silvan.algorithms.shared.level_rules import follow_level
from silvan.algorithms.shared.requests import MAX_TREES, schema_of
from silvan.data.bins import Bins, make_bins
from silvan.data.schema import MAX_BINS, Feature, Schema
from silvan.errors import FormatError, InputError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Course, Reply, Request, Verb
from silvan.federation.part import Part
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.federation.sums import TrustedSums
from silvan.forest.category_set import SET_WORDS
from silvan.forest.forest import Forest
from silvan.tree.draw import rows_of_trees
from silvan.tree.fit import Settings, assemble
from silvan.tree.grow import Frontier, grow
from silvan.tree.level import choose_level, draw_level
from silvan.tree.split import Splits

# -- messages


class AdaptiveBins(Reply, frozen=True, kw_only=True):
    """Bins of every open node and each of its features, one after the other."""

    sizes: np.ndarray  # bins of each
    means: np.ndarray
    counts: np.ndarray  # (bins, 2): negatives, positives


class AdaptiveLevel(Request, frozen=True, kw_only=True):
    """Mean value, positives and negatives of small groups of rows: a group of one row shows its value."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = AdaptiveBins

    schema: Blob
    n_trees: int
    bootstrap: bool
    max_bins: int
    nodes: np.ndarray
    features: np.ndarray
    # all splits so far, in the order they were made, and how many each round made: none, where all nodes draw again
    round_sizes: np.ndarray
    split_node: np.ndarray
    split_feature: np.ndarray
    split_threshold: np.ndarray
    split_words: np.ndarray
    min_leaf: int = 1  # rows that both sides of a split have at least, for the site's policy to judge

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        each = f"{self.features.shape[1]:,} features x {len(self.nodes):,} nodes"
        n = "" if reply is None else f"{len(reply.means):,} "
        return f"means and counts of {n}small groups of rows, {each}; a group of one row shows its value"

    def course(self) -> Course:
        """Return where the question stands: after all rounds of splits."""
        sizes, columns = self.round_sizes, _split_columns(self)
        if sizes.ndim != 1 or sizes.dtype != np.int32 or (sizes < 0).any() or int(sizes.sum()) != len(columns[0]):
            raise FormatError("the splits so far cannot be cut into rounds")
        ends = np.cumsum(sizes)
        rounds = (b"".join(c[end - n : end].tobytes() for c in columns) for end, n in zip(ends, sizes, strict=True))
        return Course("forest", tuple(map(digest, rounds)))

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the question follows the last level: its nodes are split by features asked about there."""
        same = [self.schema.hash, self.n_trees, self.bootstrap, self.max_bins, self.min_leaf]
        splits = self.split_node, self.split_feature
        return follow_level(
            digest(msgspec.json.encode(same)), traces, further, self.n_trees, splits, self.nodes, self.features
        )


def _split_columns(request: AdaptiveLevel) -> tuple[np.ndarray, ...]:
    """Return the splits so far, column by column; raise ``FormatError`` if these are not of one length."""
    columns = (request.split_node, request.split_feature, request.split_threshold, request.split_words)
    if any(c.ndim == 0 for c in columns) or len({len(c) for c in columns}) != 1:
        raise FormatError("the splits so far do not match")
    return columns


# -- the published procedures


@njit(nogil=True, cache=True)
def add_to_bins(
    means: np.ndarray, counts: np.ndarray, size: int, most: int, mean: float, negatives: int, positives: int
) -> int:
    """Insert a bin into a sorted histogram; if there are more than ``most``, merge the two nearest (Eqs 4-5).

    The arrays have layout for one more than ``most``. Returns the number of bins.
    """
    at = np.searchsorted(means[:size], mean)
    if at < size and means[at] == mean:
        counts[at, 0] += negatives
        counts[at, 1] += positives
    else:
        for i in range(size, at, -1):
            means[i] = means[i - 1]
            counts[i, 0] = counts[i - 1, 0]
            counts[i, 1] = counts[i - 1, 1]
        means[at] = mean
        counts[at, 0] = negatives
        counts[at, 1] = positives
        size += 1
    return merge_down(means, counts, size, most)


@njit(nogil=True, cache=True)
def merge_down(means: np.ndarray, counts: np.ndarray, size: int, most: int) -> int:
    """Merge the two nearest bins until there are at most ``most``; of equal distances the lowest."""
    while size > most:
        nearest = 0
        for i in range(1, size - 1):
            if means[i + 1] - means[i] < means[nearest + 1] - means[nearest]:
                nearest = i
        a = counts[nearest, 0] + counts[nearest, 1]
        b = counts[nearest + 1, 0] + counts[nearest + 1, 1]
        means[nearest] = (a * means[nearest] + b * means[nearest + 1]) / (a + b)
        counts[nearest, 0] += counts[nearest + 1, 0]
        counts[nearest, 1] += counts[nearest + 1, 1]
        for i in range(nearest + 1, size - 1):
            means[i] = means[i + 1]
            counts[i, 0] = counts[i + 1, 0]
            counts[i, 1] = counts[i + 1, 1]
        size -= 1
    return size


@njit(nogil=True, cache=True)
def summarise(
    X: np.ndarray, y: np.ndarray, rows: np.ndarray, feature: int, most: int, means: np.ndarray, counts: np.ndarray
) -> int:
    """Summarise a node's rows in at most ``most`` bins, in one pass (Alg. 2)."""
    size = 0
    for i in range(rows.shape[0]):
        positive = y[rows[i]]
        size = add_to_bins(means, counts, size, most, X[rows[i], feature], 1 - positive, positive)
    return size


def summarise_naive(values: list[float], y: list[int], most: int) -> list[tuple[float, int, int]]:
    """Do what ``summarise`` does, literally as published: tests compare the two."""
    histogram: list[tuple[float, int, int]] = []
    for value, positive in zip(values, y, strict=True):
        for j, (r, p, n) in enumerate(histogram):
            if r == value:
                histogram[j] = (r, p + positive, n + 1 - positive)
                break
        else:
            histogram = sorted([*histogram, (value, positive, 1 - positive)])
        if len(histogram) > most:
            histogram = merge_nearest_naive(histogram)
    return histogram


def merge_nearest_naive(histogram: list[tuple[float, int, int]]) -> list[tuple[float, int, int]]:
    """Replace the two nearest bins by their union (Eqs 4-5)."""
    histogram = sorted(histogram)
    pairs = [(i, j) for i in range(len(histogram)) for j in range(i + 1, len(histogram))]
    i, j = min(pairs, key=lambda pair: abs(histogram[pair[0]][0] - histogram[pair[1]][0]))
    (r1, p1, n1), (r2, p2, n2) = histogram[i], histogram[j]
    mean = ((p1 + n1) * r1 + (p2 + n2) * r2) / (p1 + p2 + n1 + n2)
    rest = [bin_ for k, bin_ in enumerate(histogram) if k not in (i, j)]
    return sorted([*rest, (mean, p1 + p2, n1 + n2)])


# -- at a site


@dataclass
class _Growing:
    """Rows of each node, and the splits that were applied so far: a cache."""

    rows: list[np.ndarray]
    done: list[tuple[bytes, ...]]


@answers(AdaptiveLevel)
def adaptive_level(site: Site, request: AdaptiveLevel) -> AdaptiveBins:
    """Bring the rows to the open nodes and summarise them in bins."""
    schema = schema_of(site, request.schema)
    part = site.part(schema)
    if np.isnan(part.X).any():
        raise RefusedError("adaptive bins have no place for missing values, and this site has some")
    if not (2 <= request.max_bins <= MAX_BINS and 1 <= request.n_trees <= MAX_TREES):
        raise FormatError("the number of bins or trees is out of range")
    rows = _rows_of_nodes(site, part, request, schema)
    check_nodes(request.nodes, request.features, len(rows), len(schema.features))
    X, y = part.X.astype(np.float64), part.y.astype(np.int64)
    found = [
        _bins_of_node(X, y, rows[node], f, schema.features[f], request.max_bins)
        for node, features in zip(request.nodes, request.features, strict=True)
        for f in features[features >= 0]
    ]
    return AdaptiveBins(
        sizes=np.array([len(means) for means, _ in found], np.int32),
        means=np.concatenate([*(means for means, _ in found), np.zeros(0)]),
        counts=np.concatenate([*(counts for _, counts in found), np.zeros((0, 2), np.int64)]),
    )


def _bins_of_node(
    X: np.ndarray, y: np.ndarray, rows: np.ndarray, f: int, feature: Feature, max_bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Summarise a node's rows by one feature: means, and counts (bins, 2); a category is a bin of its own."""
    if feature.categorical:
        codes = X[rows, f].astype(np.int64)
        table = np.bincount(2 * codes + y[rows], minlength=2 * feature.n_codes).reshape(-1, 2)
        return np.arange(len(table), dtype=np.float64), table
    means, counts = np.zeros(max_bins + 1), np.zeros((max_bins + 1, 2), np.int64)
    n = summarise(X, y, rows, f, max_bins, means, counts)
    return means[:n], counts[:n]


def _rows_of_nodes(site: Site, part: Part, request: AdaptiveLevel, schema: Schema) -> list[np.ndarray]:
    """Return the rows of every node, by all splits so far."""
    key = ("adaptive", request.schema.hash, request.n_trees, request.bootstrap)
    columns = _split_columns(request)
    splits = [tuple(c[k].tobytes() for c in columns) for k in range(len(request.split_node))]
    growing: _Growing | None = site.cache.get(key)
    if growing is None or growing.done != splits[: len(growing.done)]:
        drawn = rows_of_trees(site.sampling_key, part.row_keys, 0, request.n_trees, request.bootstrap)
        growing = site.cache[key] = _Growing([np.flatnonzero(d) for d in drawn], [])
    for k in range(len(growing.done), len(splits)):
        node, f = int(request.split_node[k]), int(request.split_feature[k])
        if not (0 <= node < len(growing.rows) and 0 <= f < len(schema.features)):
            raise FormatError("a split of a node or feature that does not exist")
        rows = growing.rows[node]
        if schema.features[f].categorical:
            bins = part.X[rows, f].astype(np.int64) + 1
            left = (request.split_words[k][bins >> 6] >> (bins & 63).astype(np.uint64)) & np.uint64(1) == 1
        else:
            left = part.X[rows, f] <= request.split_threshold[k]
        growing.rows += [rows[left], rows[~left]]
        growing.done.append(splits[k])
    return growing.rows


# -- at the coordinator


def fit(federation: Federation, schema: Schema, settings: Settings, feature_key: np.ndarray) -> Forest:
    """Grow the forest as published, all trees a level a round."""
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
    measure = settings.measure(schema, np.zeros(2, np.int64))
    rule = settings.rule(measure)
    # as many bins as there may be; a category's bin is its code, as everywhere
    layout = make_bins(
        schema, [np.zeros(0 if f.categorical else settings.max_bins - 1, np.float32) for f in schema.features]
    )
    schema_blob = federation.blob(schema.to_json().encode())
    made: list[tuple[np.ndarray, ...]] = []  # by round
    pending: dict[str, np.ndarray] = {}

    def find(frontier: Frontier) -> Splits:
        features = draw_level(frontier, plan)
        replies = federation.ask(
            AdaptiveLevel(
                schema=schema_blob,
                n_trees=settings.n_estimators,
                bootstrap=settings.bootstrap,
                max_bins=settings.max_bins,
                min_leaf=settings.min_samples_leaf,
                nodes=frontier.node.astype(np.int32),
                features=features,
                **_history(made),
            ),
            check=lambda site, reply: _check_bins(reply, features, schema, settings.max_bins),
        )
        means, counts = pool(replies, features, schema, layout, settings.max_bins)
        splits = choose_level(counts, features, layout, rule)
        pending["threshold"] = _midpoints(means, features, splits, layout)
        return splits

    def apply(nodes: np.ndarray, splits: Splits, needed: np.ndarray) -> None:
        threshold = pending["threshold"][pending["threshold"] == pending["threshold"]]
        made.append((nodes.astype(np.int32), splits.feature, threshold.astype(np.float32), splits.words))

    grown = grow(np.arange(settings.n_estimators), feature_key, plan, rule, find, apply)
    return assemble([(grown, _history(made)["split_threshold"])], schema, measure)


def _history(made: list[tuple[np.ndarray, ...]]) -> dict[str, np.ndarray]:
    """Return all splits so far as the fields of a question."""
    names = ("split_node", "split_feature", "split_threshold", "split_words")
    empty = (np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.float32), np.zeros((0, SET_WORDS), np.uint64))
    columns = dict(zip(names, (np.concatenate(c) for c in zip(empty, *made, strict=True)), strict=True))
    return {**columns, "round_sizes": np.array([len(nodes) for nodes, *_ in made], np.int32)}


def _check_bins(reply: AdaptiveBins, features: np.ndarray, schema: Schema, most: int) -> None:
    """Raise ``FormatError`` for bins that cannot be the answer to what was asked."""
    asked = features[features >= 0]
    sizes, means, counts = reply.sizes, reply.means, reply.counts
    if sizes.dtype != np.int32 or means.dtype != np.float64 or counts.dtype != np.int64:
        raise FormatError("bins of another type")
    if sizes.shape != asked.shape or means.ndim != 1 or counts.shape != (len(means), 2):
        raise FormatError("bins of another shape")
    by_category = np.array([f.categorical for f in schema.features])[asked]
    limit = np.array([f.n_codes if f.categorical else most for f in schema.features])[asked]
    if (sizes < 0).any() or (sizes > limit).any() or (sizes != limit)[by_category].any():
        raise FormatError("a number of bins that was not asked for")
    if int(sizes.sum()) != len(means) or not np.isfinite(means).all():
        raise FormatError("means that do not match")
    if (counts < 0).any() or (counts > 2**31).any():
        raise FormatError("counts that cannot be")


def pool(
    replies: dict[str, AdaptiveBins], features: np.ndarray, schema: Schema, layout: Bins, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """Merge the sites' bins (Alg. 3): means and counts, laid out as ``choose_level`` reads them."""
    asked = features[features >= 0]
    starts = np.concatenate([[0], np.cumsum(layout.n_bins[asked])])
    means, counts = np.full(starts[-1], np.nan), np.zeros((starts[-1], 2), np.int64)
    ends = {site: np.concatenate([[0], np.cumsum(reply.sizes)]) for site, reply in replies.items()}
    for k, f in enumerate(asked):
        begin, stop = starts[k] + 1, starts[k + 1]
        parts = [
            (r.means[e[k] : e[k + 1]], r.counts[e[k] : e[k + 1]])
            for r, e in zip(replies.values(), ends.values(), strict=True)
        ]
        if schema.features[f].categorical:
            counts[begin:stop] = np.sum([c for _, c in parts], axis=0)
            continue
        values, place = np.unique(np.concatenate([m for m, _ in parts]), return_inverse=True)
        merged = np.zeros((len(values), 2), np.int64)
        np.add.at(merged, place, np.concatenate([c for _, c in parts]))
        n = merge_down(values, merged, len(values), most)
        means[begin : begin + n], counts[begin : begin + n] = values[:n], merged[:n]
    return means, counts


def _midpoints(means: np.ndarray, features: np.ndarray, splits: Splits, layout: Bins) -> np.ndarray:
    """Return each split's threshold, halfway between two bins; NaN where there is no split."""
    widths = np.where(features >= 0, layout.n_bins[features], 0)
    bases = (np.cumsum(widths) - widths.reshape(-1)).reshape(widths.shape)
    threshold = np.full(len(features), np.nan)
    for node in np.flatnonzero(splits.feature >= 0):
        f = splits.feature[node]
        if layout.categorical[f]:
            threshold[node] = 0.0
        else:
            at = bases[node, np.flatnonzero(features[node] == f)[0]] + splits.bin[node]
            threshold[node] = 0.5 * (means[at] + means[at + 1])
    return threshold
