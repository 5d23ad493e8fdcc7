"""Find the best split of a node from its histograms.

Every cut of every sampled feature is valued by ``gain.py``. Equal gains go to the feature that comes first in
a random order of the node, so that no column is favoured, then to the lowest bin (or, for category sets, the lowest
set read as a number).

A split also has a side for missing values: if the node has any, both are tried, otherwise they follow the larger
side. Categories that the node has not seen follow the missing values.
"""

from typing import NamedTuple

import numpy as np

from silvan.data.bins.bins import HistogramBins
from silvan.forest.category_set import SET_WORDS, in_set
from silvan.tree.gain import EXACT_MASS, LOG_SCALE, Limits, Rule, best_of_two_classes, gain, is_allowed, n_log_n
from silvan.tree.objectives import GINI, SQUARED_ERROR
from silvan.tree.sampling import Ties, tie_rank
from silvan.util.kernels import njit


class Scratch(NamedTuple):
    """Buffers that one thread reuses from node to node."""

    here: np.ndarray  # statistics of the side being tried
    best: np.ndarray  # statistics of the left side of the best split of a feature
    cut: np.ndarray  # last bin on its left, whether missing values go left
    words: np.ndarray  # its left set
    inside: np.ndarray
    found: np.ndarray
    order: np.ndarray
    occupied: np.ndarray  # occupied value bins of the feature, in order
    lists: np.ndarray  # (features, bins), the occupied value bins of each sampled feature
    sizes: np.ndarray  # their number, -1 where they are not listed
    every: np.ndarray  # all possible value bins
    sums: np.ndarray  # float64 (3, bins), of cuts


def make_scratch(n_stats: int, n_sampled: int) -> Scratch:
    """Allocate the buffers of one thread."""
    stats, n_bins = np.zeros((2, n_stats), np.int64), 64 * SET_WORDS
    sets = np.zeros((3, SET_WORDS), np.uint64)
    lists = np.zeros((2 + n_sampled, n_bins), np.int64)
    sizes, every = np.full(n_sampled, -1), np.arange(1, n_bins)
    found, sums = (stats[0], stats[1], np.zeros(2, np.int64)), np.zeros((3, n_bins))
    return Scratch(*found, sets[0], sets[1], sets[2], lists[0], lists[1], lists[2:], sizes, every, sums)


@njit(nogil=True, cache=True)
def _best_numeric(
    hist: np.ndarray, base: int, n_bins: int, n: int, total: np.ndarray, rule: Rule, limits: Limits, scratch: Scratch
) -> float:
    """Find the best cut of one numeric feature.

    Its histogram begins at ``hist[base]``; ``scratch.occupied`` lists the ``n`` occupied value bins in order.
    The result is in ``scratch``: ``best`` (statistics of the left side) and ``cut`` (last bin on the left,
    whether missing values go left).

    Bins move from right to left one at a time. The sums that ``gain`` would make of each side are kept up to
    date instead; they are integers, so the values are the same to the last bit.
    """
    size, lead, gini = total.shape[0], rule.lead, rule.criterion == GINI
    classes = rule.criterion != SQUARED_ERROR
    weights, here, occupied, found = rule.class_weight, scratch.here, scratch.occupied, scratch.best
    all_rows, missing_rows, all_mass, all_sum = 0, 0, 0, 0
    for s in range(size if lead == 0 else 1):
        all_rows += total[s]
        missing_rows += hist[base, s]
    if classes:
        for c in range(lead, size):
            m = total[c] * weights[c - lead]
            all_mass += m
            all_sum += m * m if gini else n_log_n(m)
    best, best_place = -np.inf, n
    for missing_left in range(1 if missing_rows > 0 else 0, -1, -1):
        here[:] = 0
        rows, mass, sum_left, sum_right = 0, 0, 0, all_sum
        for i in range(-missing_left, n):
            at = base + (occupied[i] if i >= 0 else 0)
            rows += hist[at, 0] if lead > 0 else 0
            for s in range(size):
                h = hist[at, s]
                if h == 0:
                    continue
                if lead == 0:
                    rows += h
                if classes and s >= lead:
                    weight = weights[s - lead]
                    m, left = h * weight, here[s] * weight
                    right = total[s] * weight - left
                    mass += m
                    if gini:
                        sum_left += m * (2 * left + m)
                        sum_right -= m * (2 * right - m)
                    else:
                        sum_left += n_log_n(left + m) - n_log_n(left)
                        sum_right += n_log_n(right - m) - n_log_n(right)
                here[s] += h
            if all_rows - rows < rule.min_leaf:
                break
            if i < 0 or rows < rule.min_leaf:
                continue
            if not classes:
                value = gain(here, total, rule)
            elif mass < rule.min_mass or all_mass - mass < rule.min_mass:
                continue
            elif gini:
                value = sum_left / mass + sum_right / (all_mass - mass)
            else:
                value = (sum_left - n_log_n(mass) + sum_right - n_log_n(all_mass - mass)) / LOG_SCALE
            if value > best or (value == best and i < best_place):
                if limits.asked and not is_allowed(here, total, rule, limits):
                    continue
                best, best_place = value, i
                scratch.cut[1] = missing_left if missing_rows > 0 else 2 * rows >= all_rows
                for s in range(size):
                    found[s] = here[s]
    # all cuts in a gap between occupied bins split these rows alike: the middle one is best for new rows
    if best_place + 1 < n:
        scratch.cut[0] = (occupied[best_place] + occupied[best_place + 1]) >> 1
    elif best_place < n:
        scratch.cut[0] = n_bins - 1  # missing values on one side, so all others belong on the other
    return best


@njit(nogil=True, cache=True)
def _mean_below(hist: np.ndarray, a: int, b: int, rule: Rule) -> bool:
    """Whether one category's mean target (share of the second class) is below another's."""
    last = hist.shape[1] - 1
    if rule.criterion == SQUARED_ERROR:
        return hist[a, last] / hist[a, last - 1] < hist[b, last] / hist[b, last - 1]
    # p/(p+q) < r/(r+s) as p s < r q: exact, so that swapping the classes just reverses the order
    return hist[a, last] * hist[b, last - 1] < hist[b, last] * hist[a, last - 1]


@njit(nogil=True, cache=True)
def _lower_set(a: np.ndarray, b: np.ndarray) -> bool:
    for w in range(SET_WORDS - 1, -1, -1):
        if a[w] != b[w]:
            return a[w] < b[w]
    return False


@njit(nogil=True, cache=True)
def _best_categorical(
    hist: np.ndarray, base: int, n_bins: int, n: int, total: np.ndarray, rule: Rule, limits: Limits, scratch: Scratch
) -> float:
    """Find the best set of categories for the left side; the result is in ``scratch``, the set in ``words``.

    Two classes or a number: the best set is among the first so many categories by mean target; where all have the same
    mean, as two columns may whose combination alone decides, among the first so many codes. More classes: one category,
    or what is missing, against the rest. The side that holds the lowest category present is
    called left, and of equally good sets the one that is lowest as a number is taken, so that turning the
    order round changes nothing.
    """
    size = total.shape[0]
    here, order, bins = scratch.here, scratch.order, scratch.occupied
    all_rows, missing_rows = 0, 0
    for s in range(size if rule.lead == 0 else 1):
        all_rows += total[s]
        missing_rows += hist[base, s]
    nested = rule.criterion == SQUARED_ERROR or size - rule.lead == 2
    for i in range(n):
        j = i
        while nested and j > 0 and _mean_below(hist, base + bins[i], base + order[j - 1], rule):
            order[j] = order[j - 1]
            j -= 1
        order[j] = bins[i]
    # equal means stay together, so that their order cannot matter; if all are equal, the codes decide
    apart = nested and n > 1 and _mean_below(hist, base + order[0], base + order[n - 1], rule)
    best = -np.inf
    inside, found = scratch.inside, scratch.found
    for missing_here in range(1 if missing_rows > 0 else 0, -1, -1):
        for s in range(size):
            here[s] = missing_here * hist[base, s]
        inside[:] = 0
        # one more round for missing values alone; where sets are nested, that is the last set's other side
        for i in range(n if nested else n + missing_here):
            if not nested:
                for s in range(size):
                    here[s] = missing_here * hist[base, s]
                inside[:] = 0
            if i < n:
                for s in range(size):
                    here[s] += hist[base + order[i], s]
                inside[order[i] >> 6] |= np.uint64(1) << np.uint64(order[i] & 63)
            if apart and i + 1 < n and not _mean_below(hist, base + order[i], base + order[i + 1], rule):
                continue
            rows = 0
            for s in range(size if rule.lead == 0 else 1):
                rows += here[s]
            if rows < rule.min_leaf or all_rows - rows < rule.min_leaf:
                continue
            value = gain(here, total, rule)
            if value < best or (limits.asked and not is_allowed(here, total, rule, limits)):
                continue
            turned = not in_set(inside, bins[0])
            for w in range(SET_WORDS):
                found[w] = inside[w]
            if turned:
                rows = all_rows - rows
                for j in range(n):
                    found[bins[j] >> 6] ^= np.uint64(1) << np.uint64(bins[j] & 63)
            missing_left = (missing_here == 1) != turned if missing_rows > 0 else 2 * rows >= all_rows
            if missing_left:
                found[0] |= np.uint64(1)
            if value == best and not _lower_set(found, scratch.words):
                continue
            best = value
            scratch.cut[0], scratch.cut[1] = 0, missing_left
            for w in range(SET_WORDS):
                scratch.words[w] = found[w]
            for s in range(size):
                scratch.best[s] = total[s] - here[s] if turned else here[s]
    if best > -np.inf and scratch.cut[1]:
        # unseen categories follow the missing values
        inside[:] = 0
        for j in range(n):
            inside[bins[j] >> 6] |= np.uint64(1) << np.uint64(bins[j] & 63)
        for b in range(1, n_bins):
            if not in_set(inside, b):
                scratch.words[b >> 6] |= np.uint64(1) << np.uint64(b & 63)
    return best


class Splits(NamedTuple):
    """The split of each open node; ``feature`` is -1 where there is none."""

    feature: np.ndarray  # int32
    bin: np.ndarray  # int32, last code on the left of a numeric split, 0 for a categorical one
    missing_left: np.ndarray  # bool
    words: np.ndarray  # uint64 (nodes, 4), the left set of a categorical split
    total: np.ndarray  # int64 (nodes, statistics) of the node
    left: np.ndarray  # int64 (nodes, statistics) of its left side
    gain: np.ndarray  # float64, impurity decrease times mass
    varies: np.ndarray  # bool, whether any tried feature varies there; if none does, others may be sampled

    @classmethod
    def empty(cls, n_nodes: int, n_stats: int) -> "Splits":
        """Allocate the splits of a number of nodes, none of which has one yet."""
        return cls(
            np.full(n_nodes, -1, np.int32),
            np.zeros(n_nodes, np.int32),
            np.zeros(n_nodes, np.bool_),
            np.zeros((n_nodes, SET_WORDS), np.uint64),
            np.zeros((n_nodes, n_stats), np.int64),
            np.zeros((n_nodes, n_stats), np.int64),
            np.zeros(n_nodes, np.float64),
            np.zeros(n_nodes, np.bool_),
        )


@njit(nogil=True, cache=True)
def occupied_bins(hist: np.ndarray, base: int, n_bins: int, lead: int, out: np.ndarray) -> int:
    """Write the value bins that hold rows to ``out``, in order; return how many."""
    n, last = 0, hist.shape[1] if lead == 0 else 1
    for b in range(1, n_bins):
        rows = 0
        for s in range(last):
            rows += hist[base + b, s]
        out[n] = b  # overwritten unless the bin has rows
        n += rows > 0
    return n


@njit(nogil=True, cache=True)
def add_bins(hist: np.ndarray, base: int, n_bins: int, total: np.ndarray) -> None:
    """Add up the bins of a histogram."""
    for s in range(total.shape[0]):
        rows = 0
        for b in range(base, base + n_bins):
            rows += hist[b, s]
        total[s] = rows


def some_categorical(categorical: np.ndarray) -> np.ndarray | None:
    """Return which features are categorical, None if none is: kernels are compiled for either.

    Compiling the code for categories takes a few seconds, which tables without them need not spend.
    """
    return categorical if categorical.any() else None


@njit(nogil=True, cache=True)
def last_code(b: int, bins: HistogramBins, feature: int, offset: int) -> int:
    """Return the highest code in a bin or below it, in the histograms of a node with this offset."""
    shift, last = np.int64(bins.shift[feature]), np.int64(bins.last[feature])
    code = ((b + 1) << shift) - 1 - (np.int64(offset) & ((1 << shift) - 1))
    return int(min(code, last))


@njit(nogil=True, cache=True)
def _consider(
    feature: int,
    categorical: np.ndarray | None,
    hist: np.ndarray,
    base: int,
    bins: HistogramBins,
    offset: int,
    n_occupied: int,
    rule: Rule,
    node: int,
    ties: Ties,
    splits: Splits,
    scratch: Scratch,
) -> None:
    """Try one feature at a node and keep its best split if it beats what the node has.

    ``categorical`` is None if no feature is: then nothing about categories is compiled. The split goes by codes.
    """
    missing_rows, total, n_bins = 0, splits.total[node], bins.n_bins[feature]
    for s in range(total.shape[0] if rule.lead == 0 else 1):
        missing_rows += hist[base, s]
    if n_occupied + (missing_rows > 0) < 2:
        return
    splits.varies[node] = True
    limits = Limits(False, np.int64(0), -np.inf, np.inf)
    if ties.monotonic.signs.shape[0] > 0:
        bounds = ties.monotonic.bounds[node]
        limits = Limits(True, np.int64(ties.monotonic.signs[ties.first + feature]), bounds[0], bounds[1])
    by_category, value = False, -np.inf
    if categorical is not None:
        by_category = categorical[feature]
        if by_category:
            value = _best_categorical(hist, base, n_bins, n_occupied, total, rule, limits, scratch)
    if not by_category:
        value = _best_numeric(hist, base, n_bins, n_occupied, total, rule, limits, scratch)
    if value == -np.inf:
        return
    if not _is_best(feature, value, node, ties, splits):
        return
    splits.feature[node] = feature
    splits.gain[node] = value
    splits.bin[node] = scratch.cut[0] if by_category else last_code(scratch.cut[0], bins, feature, offset)
    splits.missing_left[node] = scratch.cut[1] != 0
    for s in range(total.shape[0]):
        splits.left[node, s] = scratch.best[s]
    for w in range(SET_WORDS):
        splits.words[node, w] = scratch.words[w] if by_category else np.uint64(0)


@njit(nogil=True, cache=True)
def _is_best(feature: int, value: float, node: int, ties: Ties, splits: Splits) -> bool:
    """Whether a feature's best split beats the node's current one."""
    if splits.feature[node] < 0 or value > splits.gain[node]:
        return True
    if value < splits.gain[node]:
        return False
    return bool(tie_rank(ties, node, feature) < tie_rank(ties, node, splits.feature[node]))


@njit(nogil=True, cache=True)
def consider_all(
    features: np.ndarray,
    n: int,
    categorical: np.ndarray | None,
    hist: np.ndarray,
    bases: np.ndarray,
    bins: HistogramBins,
    offset: int,
    rule: Rule,
    node: int,
    ties: Ties,
    splits: Splits,
    scratch: Scratch,
) -> None:
    """Try the first ``n`` features at a node, whose total is known, and keep the best split.

    ``scratch.lists`` has the occupied bins of the features where ``scratch.sizes`` is not -1. The most common case,
    two classes and nothing missing, has a separate code path, which is several times faster.
    """
    total, all_first, all_second = splits.total[node], 0.0, 0.0
    is_quick = rule.criterion == GINI and rule.lead == 0 and total.shape[0] == 2 and len(ties.monotonic.signs) == 0
    if is_quick:
        is_quick = total[0] * rule.class_weight[0] + total[1] * rule.class_weight[1] <= EXACT_MASS
        all_first, all_second = np.float64(total[0]), np.float64(total[1])
    for j in range(n):
        feature, base, size = features[j], bases[j], scratch.sizes[j]
        quick = is_quick and hist[base, 0] + hist[base, 1] == 0
        if categorical is not None:
            quick = quick and not categorical[feature]
        if quick:
            listed = scratch.every if size < 0 else scratch.lists[j]
            n_listed = bins.n_bins[feature] - 1 if size < 0 else size
            value, at = best_of_two_classes(hist, base, listed, n_listed, all_first, all_second, rule, scratch.sums)
            if at < 0:
                splits.varies[node] |= _is_spread(hist, base, listed, n_listed)
                continue
            splits.varies[node] = True
            if not _is_best(feature, value, node, ties, splits):
                continue
            splits.feature[node], splits.gain[node] = feature, value
            splits.left[node, 0], splits.left[node, 1] = np.int64(scratch.sums[0, at]), np.int64(scratch.sums[1, at])
            splits.missing_left[node] = 2.0 * (scratch.sums[0, at] + scratch.sums[1, at]) >= all_first + all_second
            last = n_listed - 1  # never passed, even if features disagree about the rows of the node
            after = min(at + 1, last)
            while after < last and hist[base + listed[after], 0] + hist[base + listed[after], 1] == 0:
                after += 1
            splits.bin[node] = last_code((listed[at] + listed[after]) >> 1, bins, feature, offset)
            for w in range(SET_WORDS):
                splits.words[node, w] = np.uint64(0)
            continue
        if size < 0:
            size = occupied_bins(hist, base, bins.n_bins[feature], rule.lead, scratch.occupied)
        else:
            for i in range(size):
                scratch.occupied[i] = scratch.lists[j, i]
        _consider(feature, categorical, hist, base, bins, offset, size, rule, node, ties, splits, scratch)


@njit(nogil=True, cache=True)
def _is_spread(hist: np.ndarray, base: int, listed: np.ndarray, n: int) -> bool:
    """Whether more than one of the listed bins has rows of two classes."""
    held = 0
    for i in range(n):
        held += hist[base + listed[i], 0] + hist[base + listed[i], 1] > 0
    return held > 1


@njit(nogil=True, cache=True)
def finish_split(node: int, splits: Splits, rule: Rule) -> None:
    """Replace the chosen split's gain, comparable within its node only, by the decrease of impurity."""
    if splits.feature[node] >= 0:
        total = splits.total[node]
        splits.gain[node] = max(splits.gain[node] - gain(total, total, rule), 0.0)
