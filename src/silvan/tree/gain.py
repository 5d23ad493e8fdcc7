"""The gain of a split, from the statistics of its two sides.

The statistics of a set of rows are a short vector of integers, for a bin, a side of a split or a node alike:

=================  =============================  ================================
layout             vector                         used for
=================  =============================  ================================
``lead == 0``      rows of each class             classification
``lead == 1``      rows, mass of each class       classification with row weights
``lead == 1``      rows, sum                      regression (the rows are the mass)
``lead == 2``      rows, mass, sum                regression with row weights
=================  =============================  ================================

All sums are of integers, so their order cannot matter, and gains are computed so that
relabelling the classes changes no bit. Floats are only added, multiplied and divided, so every machine computes
the same gains.
"""

from typing import NamedTuple

import numpy as np

from silvan.tree.objectives import GINI, SQUARED_ERROR, Objective, objective_of
from silvan.util.kernels import leading_zeros, njit

LOG_SCALE = 1 << 20  # entropy uses n log2 n in units of 2^-20, so that sums are exact

_TABLE_BITS = 14
_LOG2_E = 1.4426950408889634


class Rule(NamedTuple):
    """How splits are valued, and which are allowed."""

    criterion: int  # the objective's code
    lead: int
    min_split: int
    min_leaf: int
    min_mass: int
    class_weight: np.ndarray  # int64, one per class; ones for equal weights

    @property
    def objective(self) -> Objective:
        """The objective, for what kernels do not need."""
        return objective_of(self.criterion)

    def n_rows(self, stats: np.ndarray) -> np.ndarray:
        """Return the numbers of rows in some statistics."""
        return np.asarray(stats.sum(axis=1) if self.lead == 0 else stats[:, 0])

    @property
    def needs_gain(self) -> bool:
        """Whether an open node may be constant: then a split without gain must lead to one with a gain."""
        return self.objective.needs_gain

    def open_nodes(self, stats: np.ndarray) -> np.ndarray:
        """Return which nodes might still be split, given their statistics."""
        rows = self.n_rows(stats)
        wide = (rows >= self.min_split) & (rows >= 2 * self.min_leaf)
        return wide & ~self.objective.is_pure(stats, self.lead)


class Limits(NamedTuple):
    """The constraints on both sides of a split by a feature where predictions must be monotonic."""

    asked: bool  # False: nothing
    sign: np.int64  # 1: the right side is not below the left one, -1: not above it
    low: float
    high: float


@njit(nogil=True, cache=True)
def leaning(low: int, high: int, rule: Rule) -> float:
    """Return the mean from mass and sum; for two classes, the share of the second minus that of the first.

    Negating the numbers, or swapping the classes, changes only the sign.
    """
    if rule.criterion == SQUARED_ERROR:
        return high / max(low, 1)
    low, high = low * rule.class_weight[0], high * rule.class_weight[1]
    return (high - low) / max(high + low, 1)


@njit(nogil=True, cache=True)
def is_allowed(left: np.ndarray, total: np.ndarray, rule: Rule, limits: Limits) -> bool:
    """Whether both sides of a split are within their limits and in the right order."""
    last = left.shape[0] - 1
    a = leaning(left[last - 1], left[last], rule)
    b = leaning(total[last - 1] - left[last - 1], total[last] - left[last], rule)
    return bool(limits.low <= min(a, b) and max(a, b) <= limits.high and (a - b) * limits.sign <= 0.0)


@njit(nogil=True, cache=True)
def are_allowed(left: np.ndarray, total: np.ndarray, rule: Rule, signs: np.ndarray, bounds: np.ndarray) -> bool:
    """Whether all of some splits are within the bounds of their nodes and in the right order."""
    for i in range(left.shape[0]):
        limits = Limits(True, np.int64(signs[i]), bounds[i, 0], bounds[i, 1])
        if not is_allowed(left[i], total[i], rule, limits):
            return False
    return True


@njit(nogil=True, cache=True)
def child_bounds(bounds: np.ndarray, signs: np.ndarray, left: np.ndarray, total: np.ndarray, rule: Rule) -> np.ndarray:
    """Return the bounds of both children of each node that was split, by the sign of its split's feature.

    Everything below the lower side stays below the middle between the two, everything below the other above it.
    """
    out = np.empty((2 * bounds.shape[0], 2))
    last = left.shape[1] - 1
    for i in range(bounds.shape[0]):
        a = leaning(left[i, last - 1], left[i, last], rule)
        b = leaning(total[i, last - 1] - left[i, last - 1], total[i, last] - left[i, last], rule)
        out[2 * i] = bounds[i]
        out[2 * i + 1] = bounds[i]
        if signs[i] != 0:
            lower = 0 if signs[i] > 0 else 1
            out[2 * i + lower, 1] = 0.5 * (a + b)
            out[2 * i + 1 - lower, 0] = 0.5 * (a + b)
    return out


@njit(nogil=True, cache=True)
def is_closed(total: np.ndarray, rule: Rule) -> bool:
    """Whether a node must not be split: too few rows, or only one class."""
    rows, classes = 0, 0
    for s in range(total.shape[0] if rule.lead == 0 else 1):
        rows += total[s]
    for c in range(rule.lead, total.shape[0]):
        classes += total[c] > 0
    return rows < rule.min_split or (rule.criterion != SQUARED_ERROR and classes <= 1)


def _log2_table() -> np.ndarray:
    """Return log2 of small numbers (0 counts as 1) by a series, because libraries differ in the last bit."""
    part, power = np.frexp(np.maximum(np.arange(1 << _TABLE_BITS), 1))
    low = part * part < 0.5
    part, power = np.where(low, 2.0 * part, part), power - low
    z = (part - 1.0) / (part + 1.0)
    series = np.zeros_like(z)
    for k in range(23, 0, -2):
        series = series * (z * z) + 1.0 / k
    return power + 2.0 * _LOG2_E * (z * series)


_LOG2 = _log2_table()
_N_LOG_N = np.rint(np.arange(len(_LOG2)) * _LOG2 * LOG_SCALE).astype(np.int64)


@njit(nogil=True, cache=True)
def n_log_n(n: int) -> int:
    """Return n log2 n in fixed point."""
    if 0 <= n < (1 << _TABLE_BITS):
        return _N_LOG_N[n]
    # the logarithm of the upper bits, and a few terms of the series for the lower ones
    shift = 64 - _TABLE_BITS - np.int64(leading_zeros(n))
    upper = n >> shift
    rest = (n - (upper << shift)) / (upper << shift)
    log = shift + (_LOG2[upper] + _LOG2_E * rest * (1.0 - rest * (0.5 - rest * (1.0 / 3.0 - rest * 0.25))))
    return int(np.rint(n * log * LOG_SCALE))


@njit(nogil=True, cache=True)
def gain(left: np.ndarray, total: np.ndarray, rule: Rule) -> float:
    """Return the value of splitting ``total`` into ``left`` and the rest; higher is better, comparable within a node.

    For classes it is minus the mass times the impurity of both sides, up to a constant of the node; for a number, the
    decrease of the squared error. With all rows on one side, it is the value of not splitting.
    """
    if rule.criterion == SQUARED_ERROR:
        last = left.shape[0] - 1
        a = np.float64(left[last - 1])
        b = np.float64(total[last - 1] - left[last - 1])
        if a == 0.0 or b == 0.0:
            return 0.0
        if a < rule.min_mass or b < rule.min_mass:
            return -np.inf
        # equal means give exactly zero, since both products round the same real number
        difference = np.float64(left[last]) * b - np.float64(total[last] - left[last]) * a
        return difference * difference / (a * b * (a + b))
    mass_left, mass_right, sum_left, sum_right = 0, 0, 0, 0
    for c in range(rule.lead, left.shape[0]):
        weight = rule.class_weight[c - rule.lead]
        m_left = left[c] * weight
        m_right = total[c] * weight - m_left
        mass_left += m_left
        mass_right += m_right
        if rule.criterion == GINI:
            sum_left += m_left * m_left
            sum_right += m_right * m_right
        else:
            sum_left += n_log_n(m_left)
            sum_right += n_log_n(m_right)
    if 0 < mass_right < rule.min_mass or mass_left < rule.min_mass:
        return -np.inf
    if rule.criterion == GINI:
        return sum_left / max(mass_left, 1) + sum_right / max(mass_right, 1)
    return (sum_left - n_log_n(mass_left) + sum_right - n_log_n(mass_right)) / LOG_SCALE


EXACT_MASS = 1 << 26
"""Up to this total mass, squares of masses and their sums are integers that a float represents exactly."""


@njit(nogil=True, cache=True, error_model="numpy")
def best_of_two_classes(
    hist: np.ndarray,
    base: int,
    listed: np.ndarray,
    n: int,
    all_first: float,
    all_second: float,
    rule: Rule,
    sums: np.ndarray,
) -> tuple[float, int]:
    """Return the highest Gini gain of a cut between listed bins of two classes, and the index of the bin before it.

    Ties go to the first cut; without an allowed cut, the gain is minus infinity. The node has rows only in the listed
    bins and a mass of at most ``EXACT_MASS``, so gains are bit-identical to ``gain``, and the loop vectorises. ``sums``
    is float64 (3, bins): its first two lines receive the rows of both classes up to each bin.
    """
    weight0, weight1 = np.float64(rule.class_weight[0]), np.float64(rule.class_weight[1])
    min_leaf, min_mass = np.float64(rule.min_leaf), np.float64(rule.min_mass)
    first, second = 0.0, 0.0
    for i in range(n):
        at = base + listed[i]
        first += hist[at, 0]
        second += hist[at, 1]
        sums[0, i] = first
        sums[1, i] = second
    for i in range(n):
        first, second = sums[0, i], sums[1, i]
        a, b, c, d = first * weight0, second * weight1, (all_first - first) * weight0, (all_second - second) * weight1
        rows = first + second
        allowed = (rows >= min_leaf) & (all_first + all_second - rows >= min_leaf)
        allowed &= (a + b >= min_mass) & (c + d >= min_mass)
        sums[2, i] = (a * a + b * b) / (a + b) + (c * c + d * d) / (c + d) if allowed else -np.inf
    best, place = -np.inf, -1
    for i in range(n):
        if sums[2, i] > best:
            best, place = sums[2, i], i
    return best, place
