"""Find the stump (one split) with the least weighted error, from histograms; its sides vote for different classes.

Histograms hold rows and the masses of two classes. Let a side's lead be its mass of the first class minus that of the
second: the sides vote for different classes with the least error where their leads differ most. Leads are integers, so
values are exact. Equal ones go to the lowest feature, then to the cut that comes first.
"""

from typing import NamedTuple

import numpy as np

from silvan.forest.category_set import SET_WORDS, in_set
from silvan.util.kernels import njit


class Cut(NamedTuple):
    """A split, as ``Splits`` has it, of one node."""

    where: np.ndarray  # int64: feature or -1, last bin on the left, whether missing values go left
    words: np.ndarray  # uint64 (4,)
    left: np.ndarray  # int64 (2,) masses of the classes on the left


def find_cut(hist: np.ndarray, bases: np.ndarray, n_bins: np.ndarray, categorical: np.ndarray, min_leaf: int) -> Cut:
    """Find the best split over all features; ``hist`` is (bins of all, 3), each feature's begin at ``bases``."""
    cut = Cut(np.array([-1, 0, 0]), np.zeros(SET_WORDS, np.uint64), np.zeros(2, np.int64))
    _find_cut(hist, bases, n_bins, categorical, min_leaf, np.zeros(64 * SET_WORDS, np.int64), cut)
    return cut


@njit(nogil=True, cache=True)
def _find_cut(
    hist: np.ndarray,
    bases: np.ndarray,
    n_bins: np.ndarray,
    categorical: np.ndarray,
    min_leaf: int,
    order: np.ndarray,
    cut: Cut,
) -> None:
    all_rows, total0, total1 = 0, 0, 0
    for b in range(bases[0], bases[0] + n_bins[0]):
        all_rows += hist[b, 0]
        total0 += hist[b, 1]
        total1 += hist[b, 2]
    best = 0
    for f in range(bases.shape[0]):
        base = bases[f]
        n = 0
        for b in range(1, n_bins[f]):
            if hist[base + b, 0] == 0:
                continue
            at = n
            # categories in the order of their share of the second class: p s < r q if p/(p+q) < r/(r+s)
            while (
                at > 0
                and categorical[f]
                and hist[base + b, 2] * hist[base + order[at - 1], 1]
                < hist[base + order[at - 1], 2] * hist[base + b, 1]
            ):
                order[at] = order[at - 1]
                at -= 1
            order[at] = b
            n += 1
        missing = hist[base, 0] > 0
        for missing_left in range(1 if missing else 0, -1, -1):
            rows = hist[base, 0] if missing_left else 0
            left0 = hist[base, 1] if missing_left else 0
            left1 = hist[base, 2] if missing_left else 0
            for i in range(n):
                rows += hist[base + order[i], 0]
                left0 += hist[base + order[i], 1]
                left1 += hist[base + order[i], 2]
                if all_rows - rows < min_leaf:
                    break
                value = abs(2 * (left0 - left1) - (total0 - total1))
                if rows < min_leaf or value <= best:
                    continue
                best = value
                cut.where[0] = f
                cut.where[2] = missing_left if missing else 2 * rows >= all_rows
                cut.left[0], cut.left[1] = left0, left1
                if categorical[f]:
                    _keep_set(order, i, n, n_bins[f], cut, total0, total1)
                elif i + 1 < n:
                    # all cuts in a gap between occupied bins split these rows alike: the middle one, as elsewhere
                    cut.where[1] = (order[i] + order[i + 1]) >> 1
                else:
                    cut.where[1] = n_bins[f] - 1
                if not categorical[f]:
                    cut.words[:] = 0


@njit(nogil=True, cache=True)
def _keep_set(order: np.ndarray, last: int, n: int, n_bins: int, cut: Cut, total0: int, total1: int) -> None:
    """Record a set of categories; the left side is the one with the lowest, the unseen follow the missing."""
    cut.words[:] = 0
    cut.where[1] = 0
    lowest = order[0]
    for j in range(n):
        lowest = min(lowest, order[j])
    first = 0
    while order[first] != lowest:
        first += 1
    turned = first > last
    if turned:
        cut.where[2] = 1 - cut.where[2]
        cut.left[0], cut.left[1] = total0 - cut.left[0], total1 - cut.left[1]
    for j in range(n):
        if (j <= last) != turned:
            cut.words[order[j] >> 6] |= np.uint64(1) << np.uint64(order[j] & 63)
    if cut.where[2]:
        seen = np.zeros(SET_WORDS, np.uint64)
        for j in range(n):
            seen[order[j] >> 6] |= np.uint64(1) << np.uint64(order[j] & 63)
        for b in range(n_bins):
            if not in_set(seen, b):
                cut.words[b >> 6] |= np.uint64(1) << np.uint64(b & 63)
