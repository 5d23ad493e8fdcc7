"""Fill histograms, the statistics of a node's rows bin by bin, and find splits from them.

The target is either a class code a row (then a histogram counts) or a few integers a row (then it adds them
up); ``gain.py`` lists the layouts. Rows of a node are consecutive entries of ``order``, so a histogram is one
walk along it. A histogram is an array (bins, statistics); those of several features lie one after the other,
``base`` says where.
"""

import numpy as np
from numba import njit
from numba.cpython.unsafe.numbers import trailing_zeros

from silvan.tree.draw import FeatureOrder, Ties, draw_features
from silvan.tree.gain import SQUARED_ERROR, Rule, is_closed
from silvan.tree.split import Scratch, Splits, consider, finish_split, occupied_bins

U = np.uint64  # unsigned indices spare the check for negative ones in the inner loops


@njit(nogil=True, cache=True)
def fill(
    codes: np.ndarray,
    target: np.ndarray,
    rows: np.ndarray,
    features: np.ndarray,
    bases: np.ndarray,
    n: int,
    hist: np.ndarray,
) -> None:
    """Add rows to the histograms of the first ``n`` features."""
    width, stats = U(codes.shape[1]), U(hist.shape[1])
    flat, out = codes.ravel(), hist.ravel()
    if target.ndim == 2:
        for i in range(rows.shape[0]):
            at = U(rows[i]) * width
            for j in range(n):
                here = (U(bases[j]) + U(flat[at + U(features[j])])) * stats
                for s in range(target.shape[1]):
                    out[here + U(s)] += target[rows[i], s]
        return
    # Four features a walk: one row's codes share a cache line, and the four additions do not wait for each
    # other.
    j = 0
    while j + 4 <= n:
        f0, f1, f2, f3 = U(features[j]), U(features[j + 1]), U(features[j + 2]), U(features[j + 3])
        h0, h1 = U(bases[j]) * stats, U(bases[j + 1]) * stats
        h2, h3 = U(bases[j + 2]) * stats, U(bases[j + 3]) * stats
        for i in range(rows.shape[0]):
            at, c = U(rows[i]) * width, U(target[rows[i]])
            out[h0 + U(flat[at + f0]) * stats + c] += 1
            out[h1 + U(flat[at + f1]) * stats + c] += 1
            out[h2 + U(flat[at + f2]) * stats + c] += 1
            out[h3 + U(flat[at + f3]) * stats + c] += 1
        j += 4
    if j + 3 == n:
        f0, f1, f2 = U(features[j]), U(features[j + 1]), U(features[j + 2])
        h0, h1, h2 = U(bases[j]) * stats, U(bases[j + 1]) * stats, U(bases[j + 2]) * stats
        for i in range(rows.shape[0]):
            at, c = U(rows[i]) * width, U(target[rows[i]])
            out[h0 + U(flat[at + f0]) * stats + c] += 1
            out[h1 + U(flat[at + f1]) * stats + c] += 1
            out[h2 + U(flat[at + f2]) * stats + c] += 1
        return
    if j + 2 == n:
        f0, f1, h0, h1 = U(features[j]), U(features[j + 1]), U(bases[j]) * stats, U(bases[j + 1]) * stats
        for i in range(rows.shape[0]):
            at, c = U(rows[i]) * width, U(target[rows[i]])
            out[h0 + U(flat[at + f0]) * stats + c] += 1
            out[h1 + U(flat[at + f1]) * stats + c] += 1
        return
    if j + 1 == n:
        f0, h0 = U(features[j]), U(bases[j]) * stats
        for i in range(rows.shape[0]):
            at, c = U(rows[i]) * width, U(target[rows[i]])
            out[h0 + U(flat[at + f0]) * stats + c] += 1


def fill_naive(
    codes: np.ndarray, target: np.ndarray, rows: np.ndarray, feature: int, n_bins: int, n_stats: int
) -> np.ndarray:
    """Compute what ``fill`` computes, for one feature in plain NumPy, for tests to compare with."""
    vectors = target if target.ndim == 2 else np.eye(n_stats, dtype=np.int64)[target]
    hist = np.zeros((n_bins, n_stats), np.int64)
    np.add.at(hist, codes[rows, feature], vectors[rows])
    return hist


@njit(nogil=True, cache=True)
def occupied_few(codes: np.ndarray, rows: np.ndarray, feature: int, out: np.ndarray) -> int:
    """List the value bins of a few rows, in order, without looking at all bins."""
    w0, w1, w2, w3 = U(0), U(0), U(0), U(0)
    for i in range(rows.shape[0]):
        code = codes[rows[i], feature]
        bit = U(1) << U(code & 63)
        if code < 64:
            w0 |= bit
        elif code < 128:
            w1 |= bit
        elif code < 192:
            w2 |= bit
        else:
            w3 |= bit
    w0 &= ~U(1)
    n = 0
    for word in range(4):
        bits = w0 if word == 0 else (w1 if word == 1 else (w2 if word == 2 else w3))
        while bits != 0:
            out[n] = 64 * word + np.int64(trailing_zeros(bits))  # type: ignore[call-arg]
            bits &= bits - U(1)
            n += 1
    return n


@njit(nogil=True, cache=True)
def _all_alike(target: np.ndarray, rows: np.ndarray) -> bool:
    if target.ndim == 2:
        for i in range(1, rows.shape[0]):
            for s in range(target.shape[1]):
                if target[rows[i], s] != target[rows[0], s]:
                    return False
    return True


@njit(nogil=True, cache=True)
def find_splits(
    codes: np.ndarray,
    target: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    seeds: np.ndarray,
    attempts: np.ndarray,
    tries: int,
    n_bins: np.ndarray,
    categorical: np.ndarray | None,
    hist: np.ndarray,
    bases: np.ndarray,
    drawn: np.ndarray,
    feature_order: FeatureOrder,
    rule: Rule,
    ties: Ties,
    splits: Splits,
    scratch: Scratch,
) -> None:
    """Decide every open node where all rows are at hand: histograms are made, read and cleared node by node.

    A node in which all features drawn are constant draws others, up to ``tries`` times. ``categorical`` is None if no
    feature is. ``hist`` is zero before and after.
    """
    size = hist.shape[1]
    for node in range(seeds.shape[0]):
        rows = order[starts[node] : stops[node]]
        total = splits.total[node]
        for attempt in range(attempts[node], attempts[node] + tries):
            n = draw_features(seeds[node], attempt, feature_order, drawn)
            if n == 0:
                break
            fill(codes, target, rows, drawn, bases, n, hist)
            closed = False
            for j in range(n):
                feature, base = drawn[j], bases[j]
                width = n_bins[feature]
                if rows.shape[0] < width:
                    occupied = occupied_few(codes, rows, feature, scratch.occupied)
                else:
                    occupied = occupied_bins(hist, base, width, rule.lead, scratch.occupied)
                if j == 0:
                    for s in range(size):
                        total[s] = hist[base, s]
                        for i in range(occupied):
                            total[s] += hist[base + scratch.occupied[i], s]
                    closed = is_closed(total, rule)
                if not closed:
                    consider(
                        feature,
                        categorical,
                        hist,
                        base,
                        width,
                        occupied,
                        rule,
                        node,
                        ties,
                        splits,
                        scratch,
                    )
                for s in range(size):
                    hist[base, s] = 0
                for i in range(occupied):
                    for s in range(size):
                        hist[base + scratch.occupied[i], s] = 0
            if closed or splits.varies[node]:
                break
            if rule.criterion == SQUARED_ERROR and _all_alike(target, rows):
                break
        finish_split(node, splits, rule)
