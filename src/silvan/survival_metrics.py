"""Metrics of survival models: how risks rank rows whose times may be censored.

Labels are signed times (``data/survival.py``): minus the time where a row was censored.
"""

import numpy as np

from silvan.util.kernels import njit


@njit(nogil=True, cache=True)
def _pairs(rank: np.ndarray, event: np.ndarray, starts: np.ndarray, n_ranks: int, out: np.ndarray) -> None:
    """Count pairs by a tree of partial counts: rows stand by falling time, censored ones before events of a time."""
    counts = np.zeros(n_ranks + 1, np.int64)
    for group in range(len(starts) - 1):
        first, stop = starts[group], starts[group + 1]
        if event[first]:
            for i in range(first, stop):
                below, upto, k = 0, 0, rank[i]
                while k > 0:
                    below += counts[k]
                    k -= k & -k
                k = rank[i] + 1
                while k > 0:
                    upto += counts[k]
                    k -= k & -k
                out[0] += below
                out[1] += upto - below
                out[2] += first
        for i in range(first, stop):
            k = rank[i] + 1
            while k <= n_ranks:
                counts[k] += 1
                k += k & -k


def comparable_pairs(y: np.ndarray, risk: np.ndarray) -> np.ndarray:
    """Count pairs of rows for Harrell's C: ranked right, with equal risk, and all comparable ones; int64 (3,).

    A pair is comparable if the earlier of its rows has the event, and ranked right if that row has the higher risk. Of
    equal times, a row with the event is the earlier of it and one without.
    """
    time, event = np.abs(y), ~np.signbit(y)
    order = np.lexsort((event, -time))
    levels, rank = np.unique(risk[order], return_inverse=True)
    time, event = time[order], event[order]
    new = np.ones(len(y) + 1, np.bool_)
    new[1:-1] = (np.diff(time) != 0) | (np.diff(event.astype(np.int8)) != 0)
    out = np.zeros(3, np.int64)
    if len(y):
        _pairs(rank.astype(np.int64), event, np.flatnonzero(new), len(levels), out)
    return out


def concordance(y: np.ndarray, risk: np.ndarray) -> float:
    """Return Harrell's C-index, of which equal risks are worth half; NaN where no two rows are comparable."""
    right, equal, every = comparable_pairs(y, risk).tolist()
    return (right + 0.5 * equal) / every if every else float("nan")
