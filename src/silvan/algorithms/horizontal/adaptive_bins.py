"""Adaptive bins as published: summarise rows in a few bins of (mean, counts), pool the bins of sites, cut between them.

Equations and algorithms are those of the publication on trees from merged histograms, see docs/histogram.md.
"""

import numpy as np
from numba import njit

from silvan.data.bins import Bins
from silvan.data.schema import Schema
from silvan.tree.split import Splits


@njit(nogil=True, cache=True)
def add_to_bins(
    means: np.ndarray, counts: np.ndarray, size: int, most: int, mean: float, negatives: int, positives: int
) -> int:
    """Insert a bin into a sorted histogram; if there are more than ``most``, merge the two nearest (Eqs 4-5).

    The arrays have layout for one more than ``most``. Returns the number of bins.
    """
    at = np.searchsorted(means[:size], mean)
    if at < size and means[at] == mean:
        counts[at, 0] += negatives
        counts[at, 1] += positives
    else:
        for i in range(size, at, -1):
            means[i] = means[i - 1]
            counts[i, 0] = counts[i - 1, 0]
            counts[i, 1] = counts[i - 1, 1]
        means[at] = mean
        counts[at, 0] = negatives
        counts[at, 1] = positives
        size += 1
    return merge_down(means, counts, size, most)


@njit(nogil=True, cache=True)
def merge_down(means: np.ndarray, counts: np.ndarray, size: int, most: int) -> int:
    """Merge the two nearest bins until there are at most ``most``; of equal distances the lowest."""
    while size > most:
        nearest = 0
        for i in range(1, size - 1):
            if means[i + 1] - means[i] < means[nearest + 1] - means[nearest]:
                nearest = i
        a = counts[nearest, 0] + counts[nearest, 1]
        b = counts[nearest + 1, 0] + counts[nearest + 1, 1]
        means[nearest] = (a * means[nearest] + b * means[nearest + 1]) / (a + b)
        counts[nearest, 0] += counts[nearest + 1, 0]
        counts[nearest, 1] += counts[nearest + 1, 1]
        for i in range(nearest + 1, size - 1):
            means[i] = means[i + 1]
            counts[i, 0] = counts[i + 1, 0]
            counts[i, 1] = counts[i + 1, 1]
        size -= 1
    return size


@njit(nogil=True, cache=True)
def summarise(
    X: np.ndarray, y: np.ndarray, rows: np.ndarray, feature: int, most: int, means: np.ndarray, counts: np.ndarray
) -> int:
    """Summarise a node's rows in at most ``most`` bins, in one pass (Alg. 2)."""
    size = 0
    for i in range(rows.shape[0]):
        positive = y[rows[i]]
        size = add_to_bins(means, counts, size, most, X[rows[i], feature], 1 - positive, positive)
    return size


def pool_bins(
    replies: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
    features: np.ndarray,
    schema: Schema,
    layout: Bins,
    most: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Merge the sites' bins (Alg. 3): means and counts, laid out as ``choose_level`` reads them.

    Each site's are the sizes of its histograms, and the means and counts of all their bins.
    """
    asked = features[features >= 0]
    starts = np.concatenate([[0], np.cumsum(layout.n_bins[asked])])
    means, counts = np.full(starts[-1], np.nan), np.zeros((starts[-1], 2), np.int64)
    ends = [np.concatenate([[0], np.cumsum(sizes)]) for sizes, _, _ in replies]
    for k, f in enumerate(asked):
        begin, stop = starts[k] + 1, starts[k + 1]
        parts = [(m[e[k] : e[k + 1]], c[e[k] : e[k + 1]]) for (_, m, c), e in zip(replies, ends, strict=True)]
        if schema.features[f].categorical:
            counts[begin:stop] = np.sum([c for _, c in parts], axis=0)
            continue
        values, place = np.unique(np.concatenate([m for m, _ in parts]), return_inverse=True)
        merged = np.zeros((len(values), 2), np.int64)
        np.add.at(merged, place, np.concatenate([c for _, c in parts]))
        n = merge_down(values, merged, len(values), most)
        means[begin : begin + n], counts[begin : begin + n] = values[:n], merged[:n]
    return means, counts


def midpoints(means: np.ndarray, features: np.ndarray, splits: Splits, layout: Bins) -> np.ndarray:
    """Return each split's threshold, halfway between two bins; NaN where there is no split."""
    widths = np.where(features >= 0, layout.n_bins[features], 0)
    bases = (np.cumsum(widths) - widths.reshape(-1)).reshape(widths.shape)
    threshold = np.full(len(features), np.nan)
    for node in np.flatnonzero(splits.feature >= 0):
        f = splits.feature[node]
        if layout.categorical[f]:
            threshold[node] = 0.0
        else:
            at = bases[node, np.flatnonzero(features[node] == f)[0]] + splits.bin[node]
            threshold[node] = 0.5 * (means[at] + means[at + 1])
    return threshold
