"""Metrics of survival models: how risks rank rows whose times may be censored.

Labels are signed times (``data/survival.py``): minus the time where a row was censored. Two rows are comparable if the
earlier one has the event; of equal times, a row with the event is the earlier of it and one without. A model ranks them
right if the earlier one has the higher risk.
"""

import numpy as np

from silvan.util.kernels import njit


@njit(nogil=True, cache=True)
def _sweep(
    rank: np.ndarray, asks: np.ndarray, counts: np.ndarray, starts: np.ndarray, tree: np.ndarray, out: np.ndarray
) -> None:
    """Compare each row that asks with the rows before its group that count: how many have a lower rank, an equal one.

    ``tree`` has partial counts by rank; the third number is that of all rows so far.
    """
    n_ranks, seen = tree.shape[0] - 1, 0
    for group in range(starts.shape[0] - 1):
        first, stop = starts[group], starts[group + 1]
        for i in range(first, stop):
            if not asks[i]:
                continue
            below, upto, k = 0, 0, rank[i]
            while k > 0:
                below += tree[k]
                k -= k & -k
            k = rank[i] + 1
            while k > 0:
                upto += tree[k]
                k -= k & -k
            out[i, 0], out[i, 1], out[i, 2] = below, upto - below, seen
        for i in range(first, stop):
            if not counts[i]:
                continue
            seen += 1
            k = rank[i] + 1
            while k <= n_ranks:
                tree[k] += 1
                k += k & -k


def _compared(y: np.ndarray, risk: np.ndarray, *, with_later: bool) -> np.ndarray:
    """Compare rows with all later ones, or with earlier ones that have the event: int64 (rows, 3), as ``_sweep``."""
    time, event = np.abs(y), ~np.signbit(y)
    order = np.lexsort((event, -time)) if with_later else np.lexsort((~event, time))
    levels, rank = np.unique(risk[order], return_inverse=True)
    ordered = event[order]
    new = np.ones(len(y) + 1, np.bool_)
    new[1:-1] = (np.diff(time[order]) != 0) | (ordered[1:] != ordered[:-1])
    every, found = np.ones(len(y), np.bool_), np.zeros((len(y), 3), np.int64)
    asks, counts = (ordered, every) if with_later else (every, ordered)
    _sweep(rank.astype(np.int64), asks, counts, np.flatnonzero(new), np.zeros(len(levels) + 1, np.int64), found)
    out = np.empty_like(found)
    out[order] = found
    return out


def comparable_pairs(y: np.ndarray, risk: np.ndarray) -> np.ndarray:
    """Count pairs of rows for Harrell's C: ranked right, with equal risk, and all comparable ones; int64 (3,)."""
    return np.asarray(_compared(y, risk, with_later=True).sum(axis=0))


def concordance(y: np.ndarray, risk: np.ndarray) -> float:
    """Return Harrell's C-index, of which equal risks are worth half; NaN where no two rows are comparable."""
    right, equal, every = comparable_pairs(y, risk).tolist()
    return (right + 0.5 * equal) / every if every else float("nan")


def concordance_influence(y: np.ndarray, risk: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the C-index, 0.5 where no rows are comparable, and how much each row adds to or takes from it."""
    below, equal, later = _compared(y, risk, with_later=True).T
    beneath, same, earlier = _compared(y, risk, with_later=False).T
    right, every = below + 0.5 * equal + (earlier - beneath - 0.5 * same), later + earlier
    total = every.sum()
    if not total:
        return 0.5, np.zeros(len(y))
    index = float(right.sum() / total)
    return index, 2.0 * (right - index * every) / total
