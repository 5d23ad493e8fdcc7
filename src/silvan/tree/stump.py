"""Find the stump (a single split) with the smallest weighted error; its sides vote for different classes.

The histograms hold rows and the masses of two classes. Let a side's lead be its mass of the first class minus that of
the second: the error is smallest where the leads of the two sides differ most. Leads are integers, so values are exact.
Ties go to the lowest feature, then to the first cut.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from silvan.forest.category_set import make_set


class Cut(NamedTuple):
    """A split of one node, in the form of ``Splits``."""

    feature: int  # -1: none
    bin: int
    missing_left: bool
    words: np.ndarray  # uint64 (4,)
    left: np.ndarray  # int64 (2,) masses of the classes on the left


def find_cut(hist: np.ndarray, bases: np.ndarray, n_bins: np.ndarray, categorical: np.ndarray, min_leaf: int) -> Cut:
    """Find the best split over all features; ``hist`` is (bins of all, 3), and ``bases`` are the features' starts."""
    total = hist[bases[0] : bases[0] + n_bins[0]].sum(axis=0)
    cut, best = Cut(-1, 0, False, make_set([]), np.zeros(2, np.int64)), 0
    for f, base in enumerate(bases):
        block = hist[base : base + n_bins[f]]
        held = (np.flatnonzero(block[1:, 0]) + 1).tolist()
        if categorical[f]:  # in the exact order of their share of the second class
            held.sort(key=lambda b: Fraction(int(block[b, 2]), max(int(block[b, 1:].sum()), 1)))
        missing = block[0, 0] > 0
        for missing_left in (True, False) if missing else (False,):
            sides = np.cumsum(block[held], axis=0) + missing_left * block[0]
            large = np.minimum(sides[:, 0], total[0] - sides[:, 0]) >= min_leaf
            values = np.where(large, np.abs(2 * (sides[:, 1] - sides[:, 2]) - (total[1] - total[2])), 0)
            if values.max(initial=0) > best:
                best, at = int(values.max()), int(values.argmax())
                way = missing_left if missing else bool(2 * sides[at, 0] >= total[0])
                cut = Cut(f, _middle(held, at, len(block)), way, make_set([]), sides[at, 1:])
                if categorical[f]:
                    cut = _of_categories(cut._replace(bin=0), held, at, len(block), total[1:])
    return cut


def _middle(held: list[int], at: int, n_bins: int) -> int:
    """Return the last bin on the left: the middle of the gap between two occupied bins."""
    return (held[at] + held[at + 1]) >> 1 if at + 1 < len(held) else n_bins - 1


def _of_categories(cut: Cut, held: list[int], at: int, n_bins: int, total: np.ndarray) -> Cut:
    """Return a categorical split; its left side has the lowest category, and unseen ones follow the missing values."""
    inside = held[: at + 1]
    if min(held) not in inside:
        cut, inside = cut._replace(missing_left=not cut.missing_left, left=total - cut.left), held[at + 1 :]
    unseen = set(range(n_bins)) - set(held) if cut.missing_left else set()
    return cut._replace(words=make_set([*inside, *unseen]))
