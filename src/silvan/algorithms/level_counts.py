"""Noisy histograms made to look like counts: nothing below zero, and every feature of a node with the same rows.

The search for splits expects that of counts. Made of noisy integers alone, it costs no privacy.
"""

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def _scale(column: np.ndarray, total: int) -> None:
    """Scale counts to a total, in place: what rounding leaves goes to the largest remainders, the first of equals."""
    size, mass = column.shape[0], 0
    for b in range(size):
        column[b] = max(column[b], 0)
        mass += column[b]
    if mass == 0:
        column[:] = 1
        mass = size
    left = total
    rest = np.empty(size, np.int64)
    for b in range(size):
        product = column[b] * total
        column[b] = product // mass
        rest[b] = product % mass
        left -= column[b]
    for _ in range(left):
        most = 0
        for b in range(1, size):
            if rest[b] > rest[most]:
                most = b
        column[most] += 1
        rest[most] = -1


@njit(nogil=True, cache=True)
def settle_counts(hist: np.ndarray, features: np.ndarray, n_bins: np.ndarray, lead: int, most: int) -> None:
    """Settle the histograms of a level in place: (bins of all, statistics), int64.

    Without ``lead`` the statistics are counts by class, with it rows and a sum of numbers of at most ``most`` each.
    """
    size = hist.shape[1]
    n_counts = lead if lead else size
    totals = np.zeros(size, np.int64)
    begin = 0
    for node in range(features.shape[0]):
        n, at = 0, begin
        sums = np.zeros(size)
        while n < features.shape[1] and features[node, n] >= 0:
            for _ in range(n_bins[features[node, n]]):
                for s in range(size):
                    sums[s] += hist[at, s]
                at += 1
            n += 1
        for s in range(size):
            totals[s] = np.int64(np.rint(sums[s] / max(n, 1)))
        rows = 0
        for s in range(n_counts):
            totals[s] = max(totals[s], 0)
            rows += totals[s]
        if rows == 0:  # a node that noise emptied knows nothing, but it is there
            totals[:n_counts] = 1
        if lead:
            totals[1] = min(max(totals[1], -most * totals[0]), most * totals[0])
        at = begin
        for j in range(n):
            width = n_bins[features[node, j]]
            for s in range(n_counts):
                _scale(hist[at : at + width, s], totals[s])
            if lead:
                _share_sums(hist[at : at + width], totals[1], most)
            at += width
        begin = at


@njit(nogil=True, cache=True)
def _share_sums(part: np.ndarray, total: int, most: int) -> None:
    """Bring the sums of a feature's bins to a total, none beyond what its rows can have."""
    left = total
    for b in range(part.shape[0]):
        reach = most * part[b, 0]
        part[b, 1] = min(max(part[b, 1], -reach), reach)
        left -= part[b, 1]
    # what is lacking is made up where there is room, in proportion, and the rest from the first bin on
    room = 0
    for b in range(part.shape[0]):
        room += most * part[b, 0] - part[b, 1] if left > 0 else most * part[b, 0] + part[b, 1]
    if room > 0:
        share = left / room
        for b in range(part.shape[0]):
            space = most * part[b, 0] - part[b, 1] if left > 0 else most * part[b, 0] + part[b, 1]
            part[b, 1] += np.int64(share * space)
    missing = total
    for b in range(part.shape[0]):
        missing -= part[b, 1]
    for b in range(part.shape[0]):
        reach = most * part[b, 0]
        step = min(max(missing, -reach - part[b, 1]), reach - part[b, 1])
        part[b, 1] += step
        missing -= step
