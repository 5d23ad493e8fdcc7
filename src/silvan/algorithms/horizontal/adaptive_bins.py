"""Adaptive bins as published: summarise rows in a few bins of (mean, counts), pool the bins of sites, cut between them.

Equations and algorithms are those of the publication on trees from merged histograms, see docs/histogram.md.
"""

import numpy as np

from silvan.data.bins.bins import Bins
from silvan.data.schema import Schema
from silvan.tree.split import Splits
from silvan.util.kernels import njit


@njit(nogil=True, cache=True)
def add_to_bins(
    means: np.ndarray, counts: np.ndarray, size: int, most: int, mean: float, negatives: int, positives: int
) -> int:
    """Insert a bin into a sorted histogram; if there are more than ``most``, merge the two nearest (Eqs 4-5).

    The arrays have room for one more than ``most``. Returns the number of bins.
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
    """Merge the two nearest bins until there are at most ``most``; in a tie the lowest."""
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
    """Summarise a node's rows in at most ``most`` bins, in one pass (Alg. 2); missing values are left out."""
    size = 0
    for i in range(rows.shape[0]):
        value, positive = X[rows[i], feature], y[rows[i]]
        if not np.isnan(value):
            size = add_to_bins(means, counts, size, most, value, 1 - positive, positive)
    return size


@njit(nogil=True, cache=True)
def summarise_level(
    X: np.ndarray,
    y: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    features: np.ndarray,
    n_codes: np.ndarray,
    most: int,
    sizes: np.ndarray,
    means: np.ndarray,
    counts: np.ndarray,
    missing: np.ndarray,
) -> int:
    """Summarise the rows of nodes, ``rows[starts[k]:starts[k + 1]]``, by each requested feature; return all bins.

    Bins are written one histogram after the other. A category is a separate bin, however many rows it has;
    ``n_codes`` is 0 for a number. ``missing`` counts the rows of each histogram without a value.
    """
    own_means, own_counts = np.zeros(most + 1), np.zeros((most + 1, 2), np.int64)
    at, k = 0, 0
    for node in range(features.shape[0]):
        own = rows[starts[node] : starts[node + 1]]
        for j in range(features.shape[1]):
            f = features[node, j]
            if f < 0:
                continue
            for row in own:
                if np.isnan(X[row, f]):
                    missing[k, y[row]] += 1
            if n_codes[f]:
                size = n_codes[f]
                for code in range(size):
                    means[at + code] = code
                for row in own:
                    if not np.isnan(X[row, f]):
                        counts[at + int(X[row, f]), y[row]] += 1
            else:
                size = summarise(X, y, own, f, most, own_means, own_counts)
                means[at : at + size] = own_means[:size]
                counts[at : at + size] = own_counts[:size]
            sizes[k] = size
            at += size
            k += 1
    return at


def pool_bins(
    replies: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]],
    features: np.ndarray,
    schema: Schema,
    layout: Bins,
    most: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Merge the sites' bins (Alg. 3): means and counts, laid out as ``choose_level`` reads them.

    Each site's are the sizes of its histograms, the means and counts of all their bins, and the counts of rows
    without a value, which are the first bin of each.
    """
    asked = features[features >= 0]
    starts = np.concatenate([[0], np.cumsum(layout.n_bins[asked])])
    means, counts = np.full(starts[-1], np.nan), np.zeros((starts[-1], 2), np.int64)
    counts[starts[:-1]] = np.sum([missing for *_, missing in replies if len(missing)], axis=0)
    sizes = np.stack([sizes for sizes, *_ in replies]).astype(np.int64)
    begins = np.cumsum(sizes).reshape(sizes.shape) - sizes  # the sites' bins are concatenated
    by_category = np.array([f.categorical for f in schema.features], np.bool_)[asked]
    given_means, given_counts = (np.concatenate([reply[i] for reply in replies]) for i in (1, 2))
    _pool_level(sizes, begins, given_means, given_counts, by_category, starts, most, means, counts)
    return means, counts


@njit(nogil=True, cache=True)
def _pool_level(
    sizes: np.ndarray,
    begins: np.ndarray,
    given_means: np.ndarray,
    given_counts: np.ndarray,
    by_category: np.ndarray,
    starts: np.ndarray,
    most: int,
    means: np.ndarray,
    counts: np.ndarray,
) -> None:
    """Pool the sites' bins of every histogram: equal means and equal categories are one bin, then merge down."""
    values, origin = np.zeros(sizes.shape[0] * most), np.zeros(sizes.shape[0] * most, np.int64)
    own_means, own_counts = np.zeros(len(values)), np.zeros((len(values), 2), np.int64)
    for k in range(sizes.shape[1]):
        begin, n = starts[k] + 1, 0
        for s in range(sizes.shape[0]):
            for b in range(sizes[s, k]):
                at = begins[s, k] + b
                if by_category[k]:
                    counts[begin + b] += given_counts[at]
                else:
                    values[n], origin[n] = given_means[at], at
                    n += 1
        size = 0
        for i in np.argsort(values[:n]):
            if size == 0 or own_means[size - 1] != values[i]:
                own_means[size] = values[i]
                own_counts[size] = 0
                size += 1
            own_counts[size - 1] += given_counts[origin[i]]
        size = merge_down(own_means, own_counts, size, most)
        if not by_category[k]:
            means[begin : begin + size] = own_means[:size]
            counts[begin : begin + size] = own_counts[:size]


def midpoints(means: np.ndarray, features: np.ndarray, splits: Splits, layout: Bins) -> np.ndarray:
    """Return each split's threshold, halfway between two bins; NaN where there is no split.

    A split of rows with a value from those without has the largest float.
    """
    widths = np.where(features >= 0, layout.n_bins[features], 0)
    bases = (np.cumsum(widths) - widths.reshape(-1)).reshape(widths.shape)
    threshold = np.full(len(features), np.nan)
    for node in np.flatnonzero(splits.feature >= 0):
        f = splits.feature[node]
        if layout.categorical[f]:
            threshold[node] = 0.0
        elif splits.bin[node] == layout.n_bins[f] - 1:
            threshold[node] = np.finfo(np.float32).max
        else:
            at = bases[node, np.flatnonzero(features[node] == f)[0]] + splits.bin[node]
            threshold[node] = 0.5 * (means[at] + means[at + 1])
    return threshold
