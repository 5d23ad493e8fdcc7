"""Fill histograms, the statistics of a node's rows by bin, and find splits from them.

The target is a class code per row, which a histogram counts, or a few integers per row, which it sums; ``gain.py``
lists the layouts. A node's rows are consecutive entries of ``order``, so a histogram takes one pass over them. A
histogram is an array (bins, statistics); those of several features are adjacent, each starting at its ``base``. A
value's bin follows from its code and the offset of the node, see ``data/bins/cut_points.py``.
"""

from typing import NamedTuple

import numpy as np

from silvan.data.bins.bins import HistogramBins
from silvan.tree.gain import Rule, is_closed
from silvan.tree.objectives import SQUARED_ERROR
from silvan.tree.sampling import FeatureOrder, Ties, make_feature_order, sample_features
from silvan.tree.split import Scratch, Splits, add_bins, consider_all, finish_split
from silvan.util.kernels import njit, trailing_zeros

U = np.uint64  # unsigned indices need no check for negative values in inner loops


@njit(nogil=True, cache=True, inline="always")
def _part(offset: int, shift: np.uint64) -> np.uint64:
    return U(offset) & ((U(1) << shift) - U(1))


@njit(nogil=True, cache=True)
def place_bins(
    bases: np.ndarray, features: np.ndarray, n: int, shift: np.ndarray, offset: int, out: np.ndarray
) -> None:
    """Write where the first ``n`` features' histograms begin, such that (this + code) >> shift is a value's index."""
    for j in range(n):
        s = U(shift[features[j]])
        out[j] = np.int64((U(bases[j]) << s) + _part(offset, s))


@njit(nogil=True, cache=True)
def fill(
    codes: np.ndarray,
    target: np.ndarray,
    rows: np.ndarray,
    features: np.ndarray,
    starts: np.ndarray,
    n: int,
    shift: np.ndarray,
    hist: np.ndarray,
    two_classes: bool | None = None,
) -> None:
    """Add rows to the histograms of the first ``n`` features; ``starts`` are by ``place_bins``.

    For two classes, ``two_classes=True`` lets the compiler omit a multiplication; otherwise it is None.
    """
    width, stats = U(codes.shape[1]), U(hist.shape[1]) if two_classes is None else U(2)
    flat, out = codes.ravel(), hist.ravel()
    if target.ndim == 2:
        for i in range(rows.shape[0]):
            at = U(rows[i]) * width
            for j in range(n):
                f = U(features[j])
                here = ((U(starts[j]) + U(flat[at + f])) >> U(shift[f])) * stats
                for s in range(target.shape[1]):
                    out[here + U(s)] += target[rows[i], s]
        return
    # four features per walk: one row's codes share a cache line, and the four additions do not wait for each
    # other.
    j = 0
    while j + 4 <= n:
        f0, f1, f2, f3 = U(features[j]), U(features[j + 1]), U(features[j + 2]), U(features[j + 3])
        b0, b1, b2, b3 = U(starts[j]), U(starts[j + 1]), U(starts[j + 2]), U(starts[j + 3])
        s0, s1, s2, s3 = U(shift[f0]), U(shift[f1]), U(shift[f2]), U(shift[f3])
        for i in range(rows.shape[0]):
            at, c = U(rows[i]) * width, U(target[rows[i]])
            out[((b0 + U(flat[at + f0])) >> s0) * stats + c] += 1
            out[((b1 + U(flat[at + f1])) >> s1) * stats + c] += 1
            out[((b2 + U(flat[at + f2])) >> s2) * stats + c] += 1
            out[((b3 + U(flat[at + f3])) >> s3) * stats + c] += 1
        j += 4
    if j + 3 == n:
        f0, f1, f2 = U(features[j]), U(features[j + 1]), U(features[j + 2])
        b0, b1, b2 = U(starts[j]), U(starts[j + 1]), U(starts[j + 2])
        s0, s1, s2 = U(shift[f0]), U(shift[f1]), U(shift[f2])
        for i in range(rows.shape[0]):
            at, c = U(rows[i]) * width, U(target[rows[i]])
            out[((b0 + U(flat[at + f0])) >> s0) * stats + c] += 1
            out[((b1 + U(flat[at + f1])) >> s1) * stats + c] += 1
            out[((b2 + U(flat[at + f2])) >> s2) * stats + c] += 1
        return
    if j + 2 == n:
        f0, f1, b0, b1 = U(features[j]), U(features[j + 1]), U(starts[j]), U(starts[j + 1])
        s0, s1 = U(shift[f0]), U(shift[f1])
        for i in range(rows.shape[0]):
            at, c = U(rows[i]) * width, U(target[rows[i]])
            out[((b0 + U(flat[at + f0])) >> s0) * stats + c] += 1
            out[((b1 + U(flat[at + f1])) >> s1) * stats + c] += 1
        return
    if j + 1 == n:
        f0, b0 = U(features[j]), U(starts[j])
        s0 = U(shift[f0])
        for i in range(rows.shape[0]):
            at, c = U(rows[i]) * width, U(target[rows[i]])
            out[((b0 + U(flat[at + f0])) >> s0) * stats + c] += 1


@njit(nogil=True, cache=True)
def occupied_few(
    codes: np.ndarray, rows: np.ndarray, feature: int, shift: np.ndarray, offset: int, out: np.ndarray
) -> int:
    """List the value bins of a few rows, in order, without visiting all bins."""
    w0, w1, w2, w3 = U(0), U(0), U(0), U(0)
    s = U(shift[feature])
    a = _part(offset, s)
    for i in range(rows.shape[0]):
        b = (U(codes[rows[i], feature]) + a) >> s
        bit = U(1) << (b & U(63))
        if b < U(64):
            w0 |= bit
        elif b < U(128):
            w1 |= bit
        elif b < U(192):
            w2 |= bit
        else:
            w3 |= bit
    w0 &= ~U(1)
    n = 0
    for word in range(4):
        bits = w0 if word == 0 else (w1 if word == 1 else (w2 if word == 2 else w3))
        while bits != 0:
            out[n] = 64 * word + np.int64(trailing_zeros(bits))
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
def _add_listed(hist: np.ndarray, base: int, listed: np.ndarray, n: int, total: np.ndarray) -> None:
    """Sum the listed (occupied) bins of a histogram and the bin of missing values."""
    for s in range(total.shape[0]):
        total[s] = hist[base, s]
        for i in range(n):
            total[s] += hist[base + listed[i], s]


@njit(nogil=True, cache=True)
def _clear_listed(hist: np.ndarray, base: int, listed: np.ndarray, n: int) -> None:
    for s in range(hist.shape[1]):
        hist[base, s] = 0
        for i in range(n):
            hist[base + listed[i], s] = 0


class NodeDraws(NamedTuple):
    """How nodes sample features: from their seeds, up to ``tries`` times, starting with each node's attempt."""

    seeds: np.ndarray
    attempts: np.ndarray
    tries: int
    feature_order: FeatureOrder

    def take(self, here: slice) -> "NodeDraws":
        """Return the samples of some of the nodes, with separate memory."""
        order = make_feature_order(len(self.feature_order.features))
        return NodeDraws(self.seeds[here], self.attempts[here], self.tries, order)


@njit(nogil=True, cache=True)
def find_splits(
    codes: np.ndarray,
    target: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    offsets: np.ndarray,
    draws: NodeDraws | None,
    listed: np.ndarray | None,
    bins: HistogramBins,
    categorical: np.ndarray | None,
    hist: np.ndarray,
    bases: np.ndarray,
    drawn: np.ndarray,
    rule: Rule,
    ties: Ties,
    splits: Splits,
    scratch: Scratch,
    two_classes: bool | None,
) -> None:
    """Find splits of local rows: histograms are filled, read and cleared node by node.

    With ``draws``, a node whose sampled features are all constant samples others, and decisions are final. Without, the
    features are ``listed`` (ascending, -1 after the last), and gains stay comparable with those of other parties at the
    node. ``offsets`` are those of the nodes. ``categorical`` is None if no feature is categorical. ``hist`` is zero
    before and after. ``two_classes`` is as in ``fill``.
    """
    begin = np.empty(drawn.shape[0], np.int64)
    tries = 1 if draws is None else draws.tries
    for node in range(starts.shape[0]):
        rows = order[starts[node] : stops[node]]
        total = splits.total[node]
        for again in range(tries):
            n = 0
            if draws is not None:
                n = sample_features(draws.seeds[node], draws.attempts[node] + again, draws.feature_order, drawn)
            if listed is not None:
                while n < drawn.shape[0] and listed[node, n] >= 0:
                    drawn[n] = listed[node, n]
                    n += 1
            if n == 0:
                break
            place_bins(bases, drawn, n, bins.shift, offsets[node], begin)
            fill(codes, target, rows, drawn, begin, n, bins.shift, hist, two_classes)
            for j in range(n):
                # a node with fewer rows than bins: listing the occupied bins is faster than visiting all
                few = rows.shape[0] < bins.n_bins[drawn[j]]
                out = scratch.lists[j]
                scratch.sizes[j] = occupied_few(codes, rows, drawn[j], bins.shift, offsets[node], out) if few else -1
            if scratch.sizes[0] < 0:
                add_bins(hist, bases[0], bins.n_bins[drawn[0]], total)
            else:
                _add_listed(hist, bases[0], scratch.lists[0], scratch.sizes[0], total)
            closed = is_closed(total, rule)
            if not closed:
                offset = offsets[node]
                consider_all(drawn, n, categorical, hist, bases, bins, offset, rule, node, ties, splits, scratch)
            for j in range(n):
                if scratch.sizes[j] < 0:
                    hist[bases[j] : bases[j] + bins.n_bins[drawn[j]]] = 0
                else:
                    _clear_listed(hist, bases[j], scratch.lists[j], scratch.sizes[j])
            if closed or splits.varies[node]:
                break
            if rule.criterion == SQUARED_ERROR and _all_alike(target, rows):
                break
        if draws is None:
            continue
        no_gain = rule.criterion == SQUARED_ERROR and splits.feature[node] >= 0 and splits.gain[node] == 0.0
        if no_gain and _all_alike(target, rows):
            splits.feature[node] = -1  # it cannot lead to a gain and would be undone
        finish_split(node, splits, rule)
