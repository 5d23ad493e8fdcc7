"""Targets as integers: what histograms add up for a row, and how a leaf's value comes from the sum.

Sums of integers are exact in any order, so they can be split over sites, masked and noised. Weights and
numeric targets become fixed-point integers, with so many bits that every sum and square is exact.
"""

import math
from typing import NamedTuple

import msgspec
import numpy as np

from silvan.errors import InputError

_MASS_BITS = 31  # squares of class masses fit 62 bits
_SUM_BITS = 52  # sums of numeric targets are exact as floats too
_WEIGHTED_MASS_BITS = 28  # leaves 24 bits for the target itself

MAX_CLASSES = 1 << 16


class Measure(msgspec.Struct, frozen=True):
    """How targets become the statistics of ``gain.py``, and leaves become values; the same at every site.

    A number y is kept as (y - offset) * scale, rounded. ``mass`` is that of all rows to learn from.
    """

    n_stats: int
    lead: int
    class_weight: tuple[int, ...]
    mass: int
    offset: float = 0.0
    scale: float = 0.0  # 0: classes

    def rows(self, y: np.ndarray) -> np.ndarray:
        """Return the target of every row, where rows have no weights of their own."""
        if not self.scale:
            return y.astype(np.uint16)
        return np.stack([np.ones(len(y), np.int64), self.to_integers(y)], axis=1)

    def to_integers(self, y: np.ndarray) -> np.ndarray:
        """Return numbers in fixed point."""
        return np.rint((y - self.offset) * self.scale).astype(np.int64)

    def leaf_values(self, stats: np.ndarray) -> np.ndarray:
        """Return class probabilities or means from statistics of leaves; equal probabilities if there are no rows."""
        if self.scale:
            return self.offset + stats[:, -1:] / np.maximum(stats[:, -2:-1], 1) / self.scale
        masses = stats[:, self.lead :] * np.array(self.class_weight, np.int64)
        total = masses.sum(axis=1, keepdims=True)
        return np.where(total > 0, masses / np.maximum(total, 1), 1.0 / masses.shape[1])


class Target(NamedTuple):
    """The target of every row, and how it is measured."""

    rows: np.ndarray  # uint16 (rows,) class codes, or int64 (rows, statistics)
    measure: Measure


def class_measure(counts: np.ndarray, class_weight: np.ndarray | None) -> Measure:
    """Return the measure of classes, given how many rows each has."""
    n = len(counts)
    if n > MAX_CLASSES:
        raise InputError(f"the label has {n} classes; at most {MAX_CLASSES} are possible")
    weights = np.ones(n, np.int64)
    if class_weight is not None:
        if not ((class_weight > 0) & np.isfinite(class_weight)).all():
            raise InputError("class_weight must be above 0 and finite for every class")
        weights = whole_masses(class_weight, counts, _MASS_BITS)
    return Measure(n, 0, tuple(weights.tolist()), int((weights * counts).sum()))


def number_measure(low: float, high: float, n_rows: int) -> Measure:
    """Return the measure of numbers between two bounds."""
    return Measure(2, 1, (1,), n_rows, *fixed_point(low, high, n_rows))


def class_target(
    codes: np.ndarray, n_classes: int, sample_weight: np.ndarray | None, class_weight: np.ndarray | None
) -> Target:
    """Return the target of class codes, with a weight a row, a class, both or neither."""
    if len(codes) and not 0 <= codes.min() <= codes.max() < n_classes:
        raise InputError(f"class codes must be between 0 and {n_classes - 1}")
    measure = class_measure(np.bincount(codes, minlength=n_classes), class_weight)
    if sample_weight is None:
        return Target(measure.rows(codes), measure)
    weight = sample_weight if class_weight is None else sample_weight * class_weight[codes]
    masses = whole_masses(weight, np.ones(len(weight), np.int64), _MASS_BITS)
    rows = np.zeros((len(codes), 1 + n_classes), np.int64)
    rows[:, 0] = 1
    rows[np.arange(len(codes)), 1 + codes.astype(np.int64)] = masses
    return Target(rows, Measure(1 + n_classes, 1, (1,) * n_classes, int(masses.sum())))


def number_target(y: np.ndarray, sample_weight: np.ndarray | None) -> Target:
    """Return the target of numbers, with or without a weight a row."""
    low, high = float(y.min()), float(y.max())
    if sample_weight is None:
        measure = number_measure(low, high, len(y))
        return Target(measure.rows(y), measure)
    masses = whole_masses(sample_weight, np.ones(len(y), np.int64), _WEIGHTED_MASS_BITS)
    mass = int(masses.sum())
    measure = Measure(3, 2, (1,), mass, *fixed_point(low, high, mass))
    rows = np.stack([np.ones(len(y), np.int64), masses, masses * measure.to_integers(y)], axis=1)
    return Target(rows, measure)


def fixed_point(low: float, high: float, total_mass: int) -> tuple[float, float]:
    """Return offset and scale for numbers between two bounds: a power of two, so that scaling is exact."""
    middle = low / 2 + high / 2
    if abs(middle) < 3e38:  # few bits, so that differences to it are exact more often
        middle = float(np.float32(middle))
    reach = max(high - middle, middle - low)
    if reach == 0.0:
        return low, 1.0
    bits = _SUM_BITS - max(total_mass, 1).bit_length() - math.frexp(reach)[1]
    return middle, 2.0 ** max(min(bits, 1000), -1000)


def whole_masses(weight: np.ndarray, times: np.ndarray, bits: int) -> np.ndarray:
    """Return positive weights as integers of at least 1 whose total, each counted ``times``, fits the bits.

    Whole numbers that fit are kept as they are.
    """
    share = weight / weight.max()  # the sum of the weights themselves may be infinite
    total = float((share * times).sum())
    if (weight == np.rint(weight)).all() and total * float(weight.max()) < 2.0**bits:
        return weight.astype(np.int64)
    # half of the room for rounding up to 1
    scale = 2.0 ** (bits - 1) / total
    return np.maximum(np.rint(share * scale), 1).astype(np.int64)
