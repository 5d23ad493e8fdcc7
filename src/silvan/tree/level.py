"""A level of many trees at once: histograms that can be summed over sites, and splits chosen from the sum.

The histograms of a level lie one after the other, node by node and feature by feature, in the order in which nodes and
features are listed. Whoever knows the list can fill or read them.
"""

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from silvan.data.bins import Bins
from silvan.errors import InputError
from silvan.threads import thread_count, thread_map
from silvan.tree.draw import Deck, draw_features, make_deck
from silvan.tree.gain import Rule, is_closed
from silvan.tree.grow import Frontier, Plan
from silvan.tree.histogram import fill
from silvan.tree.split import Scratch, Splits, consider, make_scratch, occupied_bins, settle

if TYPE_CHECKING:
    from silvan.tree.routed import RoutedRows
    from silvan.tree.rows import Rows

_NODES_A_TASK = 256


def draw_level(frontier: Frontier, plan: Plan) -> np.ndarray:
    """Draw the features of every open node: int32 (nodes, handful), ascending, -1 where a deck ran out."""
    features = np.full((len(frontier), plan.handful), -1, np.int32)
    drawn = np.zeros(plan.handful, np.int64)
    _draw(frontier.seed, frontier.attempt, make_deck(plan.n_features), drawn, features)
    return features


@njit(nogil=True, cache=True)
def _draw(seeds: np.ndarray, attempts: np.ndarray, deck: Deck, drawn: np.ndarray, out: np.ndarray) -> None:
    for node in range(seeds.shape[0]):
        for j in range(draw_features(seeds[node], attempts[node], deck, drawn)):
            out[node, j] = drawn[j]


def fill_bases(features: np.ndarray, n_bins: np.ndarray) -> np.ndarray:
    """Say where each histogram begins: (nodes, handful), and one more row whose first entry is the end."""
    widths = np.where(features >= 0, n_bins[features], 0)
    ends = np.cumsum(widths).reshape(widths.shape)
    bases = np.zeros((len(features) + 1, features.shape[1]), np.int64)
    bases[:-1] = ends - widths
    bases[-1] = ends[-1, -1] if ends.size else 0
    return bases


def fill_level(
    rows: "Rows | RoutedRows", nodes: np.ndarray, features: np.ndarray, n_jobs: int | None = None
) -> np.ndarray:
    """Add up the histograms of some nodes: (bins of all, statistics)."""
    return rows.fill(nodes, features, thread_count(n_jobs))


def fill_nodes(
    codes: np.ndarray,
    target: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    features: np.ndarray,
    bases: np.ndarray,
    hist: np.ndarray,
    threads: int,
) -> None:
    """Add up the histograms of nodes whose rows are stretches of ``order``."""
    listed = features.astype(np.int64)

    def some(first: int) -> None:
        here = slice(first, first + _NODES_A_TASK)
        _fill(codes, target, order, starts[here], stops[here], listed[here], bases[here], hist)

    thread_map(some, range(0, len(starts), _NODES_A_TASK), threads)


@njit(nogil=True, cache=True)
def _fill(
    codes: np.ndarray,
    target: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    features: np.ndarray,
    bases: np.ndarray,
    hist: np.ndarray,
) -> None:
    for node in range(starts.shape[0]):
        n = 0
        while n < features.shape[1] and features[node, n] >= 0:
            n += 1
        fill(codes, target, order[starts[node] : stops[node]], features[node], bases[node], n, hist)


def choose_level(hist: np.ndarray, features: np.ndarray, bins: Bins, rule: Rule, n_jobs: int | None = None) -> Splits:
    """Decide every open node from its histograms."""
    bases = fill_bases(features, bins.n_bins)
    if hist.shape != (bases[-1, 0], rule.lead + len(rule.class_weight)):
        raise InputError(f"histograms of shape {hist.shape}, the nodes ask for {bases[-1, 0]} bins")
    splits = Splits.empty(len(features), hist.shape[1])

    def some(first: int) -> None:
        here = slice(first, first + _NODES_A_TASK)
        part = Splits(*(column[here] for column in splits))
        scratch = make_scratch(hist.shape[1])
        _choose(hist, features[here], bases[here], bins.n_bins, bins.categorical, rule, part, scratch)

    thread_map(some, range(0, len(features), _NODES_A_TASK), thread_count(n_jobs))
    return splits


@njit(nogil=True, cache=True)
def _choose(
    hist: np.ndarray,
    features: np.ndarray,
    bases: np.ndarray,
    n_bins: np.ndarray,
    categorical: np.ndarray,
    rule: Rule,
    splits: Splits,
    scratch: Scratch,
) -> None:
    for node in range(features.shape[0]):
        for j in range(features.shape[1]):
            feature, base = features[node, j], bases[node, j]
            if feature < 0:
                break
            width = n_bins[feature]
            if j == 0:
                for b in range(width):
                    for s in range(hist.shape[1]):
                        splits.total[node, s] += hist[base + b, s]
                if is_closed(splits.total[node], rule):
                    break
            n = occupied_bins(hist, base, width, rule.lead, scratch.occupied)
            consider(feature, categorical[feature], hist, base, width, n, rule, node, splits, scratch)
        settle(node, splits, rule)
