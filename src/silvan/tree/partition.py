"""Applying splits: the rows of a node are a stretch of ``order``; a split sorts it into left, then right."""

import numpy as np
from numba import njit

from silvan.tree.split import Splits, in_set


@njit(nogil=True, cache=True)
def partition(
    codes: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    splits: Splits,
    categorical: np.ndarray,
    which: np.ndarray,
    spare: np.ndarray,
) -> np.ndarray:
    """Sort the rows of the nodes ``which`` and return where their right sides begin.

    The order of rows within a side is kept, so memory is walked upwards at every level.
    """
    middles = np.empty(which.shape[0], np.int64)
    for k in range(which.shape[0]):
        node = which[k]
        f, start, stop = splits.feature[node], starts[node], stops[node]
        n_left, n_right = start, 0
        if categorical[f]:
            words = splits.words[node]
            for i in range(start, stop):
                row = order[i]
                if in_set(words, codes[row, f]):
                    order[n_left] = row
                    n_left += 1
                else:
                    spare[n_right] = row
                    n_right += 1
        else:
            # a missing value has bin 0: shifting it to the top sends it right where it should go right
            last = splits.bin[node]
            missing = 0 if splits.missing_left[node] else 256
            for i in range(start, stop):
                row = order[i]
                code = np.int64(codes[row, f])
                goes_left = (code + (missing if code == 0 else 0)) <= last
                order[n_left] = row
                spare[n_right] = row
                n_left += goes_left
                n_right += not goes_left
        middles[k] = n_left
        for i in range(n_right):
            order[n_left + i] = spare[i]
    return middles


def partition_naive(
    codes: np.ndarray, rows: np.ndarray, splits: Splits, node: int, categorical: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Do what ``partition`` does for one node with NumPy masks: the twin that tests hold it to."""
    f = splits.feature[node]
    bins = codes[rows, f].astype(np.int64)
    if categorical[f]:
        members = [b for b in range(256) if int(splits.words[node][b >> 6]) >> (b & 63) & 1]
        left = np.isin(bins, members)
    else:
        left = np.where(bins == 0, splits.missing_left[node], bins <= splits.bin[node])
    return rows[left], rows[~left]
