"""Keyed draws of rows for judging: folds of a cross-validation, resamples of a bootstrap, rows to split off.

As everywhere, a draw is a hash of a key and what it is for, so that a site answers the same after a restart. The
purposes of hashes are numbered in ``silvan.tree.draw``.
"""

import numpy as np

from silvan.tree.draw import FOLDS, RESAMPLES, hash_each, mix, siphash
from silvan.util.kernels import njit

U = np.uint64


def hash_rows(key: np.ndarray, row_keys: np.ndarray, purpose: int) -> np.ndarray:
    """Hash every row's key, for one of the purposes in ``silvan.tree.draw``."""
    out = np.empty(len(row_keys), np.uint64)
    hash_each(key, U(purpose) << U(56), row_keys, out)
    return out


def folds_of(key: np.ndarray, row_keys: np.ndarray, groups: np.ndarray, n_folds: int) -> np.ndarray:
    """Return every row's fold: each group of rows is divided evenly, in an order that the key decides."""
    order = np.lexsort((hash_rows(key, row_keys, FOLDS), groups))
    fold = np.empty(len(order), np.int64)
    fold[order] = np.arange(len(order)) % n_folds
    return fold


@njit(nogil=True, cache=True)
def draw_times(key: np.ndarray, number: int, starts: np.ndarray, order: np.ndarray, times: np.ndarray) -> None:
    """Draw as many rows as there are, with replacement, from each group; write into ``times`` how often each came.

    Group g is ``order[starts[g] : starts[g + 1]]``.
    """
    state = siphash(key, U(RESAMPLES) << U(56), U(number))
    times[:] = 0
    for g in range(starts.shape[0] - 1):
        n = starts[g + 1] - starts[g]
        for _ in range(n):
            state += U(0x9E3779B97F4A7C15)
            times[order[starts[g] + np.int64(((mix(state) >> U(32)) * U(n)) >> U(32))]] += 1
