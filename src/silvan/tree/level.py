"""Histograms of a level of many trees, which can be summed over sites, and splits chosen from the sum.

The histograms of a level are adjacent, by node and feature, in the order of the list of nodes and features. Whoever has
the list can fill or read them.
"""

import numpy as np

from silvan.data.bins.bins import Bins, HistogramBins
from silvan.errors import InputError
from silvan.tree.gain import Rule, gain, is_closed
from silvan.tree.grow import Frontier, Plan
from silvan.tree.histogram import NodeDraws, fill, find_splits
from silvan.tree.node_rows import Binned, NodeRows, split_evenly
from silvan.tree.plain_split import choose_plain
from silvan.tree.sampling import FeatureOrder, Ties, make_feature_order, sample_features
from silvan.tree.split import Scratch, Splits, add_bins, consider_all, finish_split, make_scratch, some_categorical
from silvan.util.kernels import njit
from silvan.util.threads import thread_count, thread_map

_NODES_A_TASK = 256


def sample_level(frontier: Frontier, plan: Plan) -> np.ndarray:
    """Sample the features of every open node: int32 (nodes, sampled), ascending, -1 where none are left."""
    features = np.full((len(frontier), plan.n_sampled), -1, np.int32)
    drawn = np.zeros(plan.n_sampled, np.int64)
    _sample(frontier.seed, frontier.attempt, make_feature_order(plan.n_features), drawn, features)
    return features


@njit(nogil=True, cache=True)
def _sample(
    seeds: np.ndarray, attempts: np.ndarray, feature_order: FeatureOrder, drawn: np.ndarray, out: np.ndarray
) -> None:
    for node in range(seeds.shape[0]):
        for j in range(sample_features(seeds[node], attempts[node], feature_order, drawn)):
            out[node, j] = drawn[j]


def fill_bases(features: np.ndarray, n_bins: np.ndarray) -> np.ndarray:
    """Return the start of each histogram: (nodes, features), and one more row whose first entry is the end."""
    widths = np.where(features >= 0, n_bins[features], 0)
    ends = np.cumsum(widths).reshape(widths.shape)
    bases = np.zeros((len(features) + 1, features.shape[1]), np.int64)
    bases[:-1] = ends - widths
    bases[-1] = ends[-1, -1] if ends.size else 0
    return bases


def place_level(features: np.ndarray, bases: np.ndarray, shift: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the starts of histograms, as ``place_bins``, for a level of nodes with these ``offsets``."""
    of_column = shift[features].astype(np.int64)
    return (bases[: len(features)] << of_column) + (offsets[:, None] & ((1 << of_column) - 1))


def fill_nodes(
    table: Binned,
    order: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    offsets: np.ndarray,
    features: np.ndarray,
    bases: np.ndarray,
    hist: np.ndarray,
    threads: int,
) -> None:
    """Fill the histograms of nodes whose rows are ``order[start:stop]``."""
    listed, begin = features.astype(np.int64), place_level(features, bases, table.bins.shift, offsets)

    def some(first: int) -> None:
        here = slice(first, first + _NODES_A_TASK)
        _fill(
            table.codes,
            table.target,
            order,
            starts[here],
            stops[here],
            listed[here],
            begin[here],
            table.bins.shift,
            hist,
        )

    thread_map(some, range(0, len(starts), _NODES_A_TASK), threads)


@njit(nogil=True, cache=True)
def _fill(
    codes: np.ndarray,
    target: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    features: np.ndarray,
    begin: np.ndarray,
    shift: np.ndarray,
    hist: np.ndarray,
) -> None:
    for node in range(starts.shape[0]):
        n = 0
        while n < features.shape[1] and features[node, n] >= 0:
            n += 1
        rows = order[starts[node] : stops[node]]
        fill(codes, target, rows, features[node], begin[node], n, shift, hist)


def choose_level(
    hist: np.ndarray,
    features: np.ndarray,
    bins: Bins,
    rule: Rule,
    ties: Ties,
    n_jobs: int | None = None,
    offsets: np.ndarray | None = None,
) -> Splits:
    """Decide every open node from its histograms; ``offsets`` select their cut points."""
    bases = fill_bases(features, bins.n_bins)
    width = bases[-1, 0]
    if hist.shape != (width, rule.lead + len(rule.class_weight)):
        raise InputError(f"histograms have shape {hist.shape}, but the nodes need {width} bins")
    offsets = np.zeros(len(features), np.uint8) if offsets is None else offsets
    if not rule.objective.compiled:
        return choose_plain(hist, features, bases, bins.in_histograms, bins.categorical, rule, ties, offsets)
    threads = thread_count(n_jobs)
    splits = choose_listed(hist, features, bins.in_histograms, bins.categorical, rule, ties, offsets, threads)
    finish_splits(splits, rule)
    return splits


def find_sorted(
    rows: NodeRows,
    nodes: np.ndarray,
    n_sampled: int,
    rule: Rule,
    ties: Ties,
    draws: NodeDraws | None,
    listed: np.ndarray | None = None,
    threads: int = 1,
) -> Splits:
    """Find the best split of every node, as ``find_splits``, from rows sorted by node."""
    table, bins = rows.table, rows.table.bins
    splits = Splits.empty(len(nodes), table.n_stats)
    widest, categorical = int(bins.n_bins.max(initial=1)), some_categorical(bins.categorical)
    starts, stops, offsets = rows.starts[nodes], rows.stops[nodes], rows.offsets[nodes]

    def some(here: slice) -> None:
        whole = here == slice(0, len(nodes))  # as in one thread, where nodes do not share memory
        find_splits(
            table.codes,
            table.target,
            rows.order,
            starts[here],
            stops[here],
            offsets[here],
            draws if draws is None or whole else draws.take(here),
            None if listed is None else listed[here],
            bins.in_histograms,
            categorical,
            np.zeros((n_sampled * widest, table.n_stats), table.count_type),
            np.arange(n_sampled) * widest,
            np.zeros(n_sampled, np.int64),
            rule,
            ties if whole else ties.take(here),
            splits if whole else Splits(*(column[here] for column in splits)),
            make_scratch(table.n_stats, n_sampled),
            True if table.target.ndim == 1 and table.n_stats == 2 else None,
        )

    thread_map(some, split_evenly(stops - starts, threads), threads)
    return splits


def find_listed(
    rows: NodeRows, nodes: np.ndarray, features: np.ndarray, rule: Rule, ties: Ties, threads: int = 1
) -> Splits:
    """Find the best split of every node; ``features`` is (nodes, most), ascending, -1 after the last."""
    return find_sorted(rows, nodes, features.shape[1], rule, ties, None, features.astype(np.int64), threads)


def choose_listed(
    hist: np.ndarray,
    features: np.ndarray,
    bins: HistogramBins,
    categorical: np.ndarray,
    rule: Rule,
    ties: Ties,
    offsets: np.ndarray,
    threads: int = 1,
) -> Splits:
    """Find the best split of every node from the histograms of a level."""
    splits = Splits.empty(len(features), hist.shape[1])
    bases, kinds = fill_bases(features, bins.n_bins), some_categorical(categorical)

    def some(here: slice) -> None:
        _choose_listed(
            hist,
            features[here],
            bases[here],
            bins,
            offsets[here],
            kinds,
            rule,
            ties.take(here),
            Splits(*(column[here] for column in splits)),
            make_scratch(hist.shape[1], features.shape[1]),
        )

    thread_map(some, split_evenly(np.ones(len(features), np.int64), threads), threads)
    return splits


@njit(nogil=True, cache=True)
def _choose_listed(
    hist: np.ndarray,
    features: np.ndarray,
    bases: np.ndarray,
    bins: HistogramBins,
    offsets: np.ndarray,
    categorical: np.ndarray | None,
    rule: Rule,
    ties: Ties,
    splits: Splits,
    scratch: Scratch,
) -> None:
    for node in range(features.shape[0]):
        n = 0
        while n < features.shape[1] and features[node, n] >= 0:
            n += 1
        if n == 0:
            continue
        total, listed, begin, offset = splits.total[node], features[node], bases[node], offsets[node]
        add_bins(hist, begin[0], bins.n_bins[listed[0]], total)
        if not is_closed(total, rule):
            consider_all(listed, n, categorical, hist, begin, bins, offset, rule, node, ties, splits, scratch)


def add_nodes(rows: NodeRows, nodes: np.ndarray) -> np.ndarray:
    """Sum the target over each node's rows: int64 (nodes, statistics)."""
    out = np.zeros((len(nodes), rows.table.n_stats), np.int64)
    _add_nodes(rows.order, rows.starts[nodes], rows.stops[nodes], rows.table.target, out)
    return out


@njit(nogil=True, cache=True)
def _add_nodes(order: np.ndarray, starts: np.ndarray, stops: np.ndarray, target: np.ndarray, out: np.ndarray) -> None:
    for node in range(starts.shape[0]):
        for i in range(starts[node], stops[node]):
            if target.ndim == 2:
                for s in range(target.shape[1]):
                    out[node, s] += target[order[i], s]
            else:
                out[node, target[order[i]]] += 1


@njit(nogil=True, cache=True)
def split_gains(left: np.ndarray, total: np.ndarray, rule: Rule) -> np.ndarray:
    """Return the values of splits from the statistics of their left sides and nodes."""
    out = np.empty(left.shape[0])
    for node in range(left.shape[0]):
        out[node] = gain(left[node], total[node], rule)
    return out


@njit(nogil=True, cache=True)
def finish_splits(splits: Splits, rule: Rule) -> None:
    """Replace the values of the chosen splits by decreases of impurity."""
    for node in range(splits.feature.shape[0]):
        finish_split(node, splits, rule)
