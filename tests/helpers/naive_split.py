"""The best split by trying all, in plain Python on integers: the reference for the kernels."""

from fractions import Fraction
from typing import NamedTuple

from silvan.tree.gain import LOG_SCALE, Rule, n_log_n
from silvan.tree.objectives import GINI, SQUARED_ERROR

MISSING = 0


class Best(NamedTuple):
    value: float  # comparable within a node only
    bin: int
    missing_left: bool
    left_set: int  # bit b for bin b; 0 for a numeric split
    left: list[int]


def rows_of(stats, rule: Rule) -> int:
    return sum(stats) if rule.lead == 0 else stats[0]


def value_of(left, right, rule: Rule) -> float | None:
    """The gain of a split; None if a side is too small."""
    if min(rows_of(left, rule), rows_of(right, rule)) < rule.min_leaf:
        return None
    if rule.criterion == SQUARED_ERROR:
        (a, p), (b, q) = left[-2:], right[-2:]
        if min(a, b) < rule.min_mass:
            return None
        difference = float(p) * float(b) - float(q) * float(a)
        return difference * difference / (float(a) * float(b) * (float(a) + float(b)))
    worth = 0.0 if rule.criterion == GINI else 0
    for side in (left, right):
        masses = [int(m) * int(w) for m, w in zip(side[rule.lead :], rule.class_weight, strict=True)]
        if sum(masses) < rule.min_mass:
            return None
        if rule.criterion == GINI:
            worth += float(sum(m * m for m in masses)) / float(sum(masses))
        else:
            worth += sum(int(n_log_n(m)) for m in masses) - int(n_log_n(sum(masses)))
    return worth if rule.criterion == GINI else worth / LOG_SCALE


def add(*vectors):
    return [sum(column) for column in zip(*vectors, strict=True)]


def candidates(hist, rule: Rule, categorical: bool):
    """Yields every division of the occupied bins: (tie-breaker, bins on the left)."""
    occupied = [b for b in range(1, len(hist)) if rows_of(hist[b], rule) > 0]
    missing = [MISSING] if rows_of(hist[MISSING], rule) > 0 else []
    if not categorical:
        for i in range(len(occupied)):
            for with_missing in [missing, []] if missing else [[]]:
                yield (i, not with_missing), {*occupied[: i + 1], *with_missing}
        return
    n_classes = len(hist[0]) - rule.lead
    if rule.criterion != SQUARED_ERROR and n_classes != 2:
        singles = [{b} for b in [*occupied, *missing]]
    else:
        means: dict[Fraction, set[int]] = {}
        for b in occupied:
            top, bottom = hist[b][-1], hist[b][-2]
            mass = bottom if rule.criterion == SQUARED_ERROR else top + bottom
            means.setdefault(Fraction(int(top), int(mass)), set()).add(b)
        singles, prefix = [], set()
        for mean in sorted(means):
            prefix = prefix | means[mean]
            singles.append(prefix)
        if len(means) == 1:  # then by their codes
            singles = [{*occupied[: i + 1]} for i in range(len(occupied))]
    everything = {*occupied, *missing}
    for single in singles if occupied else []:
        for side in [single, single ^ {MISSING}] if missing else [single]:
            left = side if min(occupied) in side else everything - side
            yield sum(1 << b for b in left), left


def mean_of(stats, rule: Rule) -> float:
    """The mean, or for two classes the lead of the second."""
    if rule.criterion == SQUARED_ERROR:
        return stats[-1] / stats[-2]
    low, high = (int(m) * int(w) for m, w in zip(stats[rule.lead :], rule.class_weight, strict=True))
    return (high - low) / (high + low)


def in_order(left, right, rule: Rule, sign: int, low: float, high: float) -> bool:
    """Whether a split is allowed where predictions must be monotonic."""
    means = mean_of(left, rule), mean_of(right, rule)
    return all(low <= mean <= high for mean in means) and sign * means[0] <= sign * means[1]


def best_split(hist, rule: Rule, categorical: bool, limits=None) -> Best | None:
    """Finds the best split of one feature from its histogram, a list of statistics per bin."""
    hist = [[int(s) for s in stats] for stats in hist]
    total = add(*hist)
    found = None
    everything = {b for b in range(len(hist)) if rows_of(hist[b], rule) > 0}
    for rank, left_bins in candidates(hist, rule, categorical):
        if not left_bins or left_bins == everything:
            continue
        left = add(*(hist[b] for b in left_bins))
        right = [t - s for t, s in zip(total, left, strict=True)]
        worth = value_of(left, right, rule)
        if worth is None or (limits is not None and not in_order(left, right, rule, *limits)):
            continue
        missing_left = MISSING in left_bins
        if MISSING not in everything:
            missing_left = 2 * rows_of(left, rule) >= rows_of(total, rule)
            if categorical:
                rank |= int(missing_left)
        if found is None or (-worth, rank) < found[0]:
            found = (-worth, rank), left_bins, missing_left, left
    if found is None:
        return None
    (worth, _), left_bins, missing_left, left = found
    if categorical:
        unseen = set(range(1, len(hist))) - everything if missing_left else set()
        members = (left_bins - {MISSING}) | unseen | ({MISSING} if missing_left else set())
        return Best(-worth, 0, missing_left, sum(1 << b for b in members), left)
    last = max(left_bins)
    beyond = [b for b in everything if b > last]
    return Best(-worth, (last + min(beyond)) // 2 if beyond else len(hist) - 1, missing_left, 0, left)
