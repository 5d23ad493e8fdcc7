"""The leaves that a row can reach given one party's columns, one bit per leaf; all parties' bits leave one per tree.

A party that splits a node rules out the leaves on the other side of the row; at other parties' nodes the row goes both
ways.
"""

import numpy as np

from silvan.forest.category_set import in_set
from silvan.forest.forest_shares import Share, Structure
from silvan.util.kernels import njit
from silvan.util.threads import thread_count, thread_map

_ROWS_A_TASK = 256


def row_bytes(n_leaves: int) -> int:
    """Return the number of bytes of a row's leaf set."""
    return (n_leaves + 7) >> 3


def reach_leaves(share: Share, X: np.ndarray, n_jobs: int | None = None) -> np.ndarray:
    """Return which leaves each row can reach: uint8 (rows, bytes), the first leaf in the lowest bit."""
    out = np.empty((len(X), row_bytes(share.n_leaves)), np.uint8)
    # in the order of the nodes, a subtree follows its root directly
    past_left = np.searchsorted(share.first, share.middle)
    past = np.searchsorted(share.first, share.last)

    def some(start: int) -> None:
        here = slice(start, start + _ROWS_A_TASK)
        _reach(
            X[here],
            share.n_leaves,
            share.feature,
            share.threshold,
            share.missing_left,
            share.categorical,
            share.words,
            share.first,
            share.middle,
            share.last,
            past_left,
            past,
            out[here],
        )

    thread_map(some, range(0, len(X), _ROWS_A_TASK), thread_count(n_jobs))
    return out


@njit(nogil=True, cache=True, inline="always")
def _goes_left(x: float, threshold: float, missing_left: bool, by_category: bool, words: np.ndarray) -> bool:
    if x != x:
        return missing_left
    if by_category:
        return in_set(words, int(x) + 1)
    return x <= threshold


@njit(nogil=True, cache=True)
def _clear(bits: np.ndarray, start: int, stop: int) -> None:
    """Clear the bits from ``first`` up to but excluding ``stop``."""
    a, b = start >> 3, stop >> 3  # whole bytes in between are cleared at once; at both ends some bits are kept
    head, tail = np.uint8((1 << (start & 7)) - 1), np.uint8(0xFF & ~((1 << (stop & 7)) - 1))
    if a == b:
        bits[a] &= head | tail
        return
    bits[a] &= head
    for i in range(a + 1, b):
        bits[i] = 0
    if stop & 7:
        bits[b] &= tail


@njit(nogil=True, cache=True)
def _reach(
    X: np.ndarray,
    n_leaves: int,
    feature: np.ndarray,
    threshold: np.ndarray,
    missing_left: np.ndarray,
    categorical: np.ndarray,
    words: np.ndarray,
    first: np.ndarray,
    middle: np.ndarray,
    last: np.ndarray,
    past_left: np.ndarray,
    past: np.ndarray,
    out: np.ndarray,
) -> None:
    rest = n_leaves & 7
    for row in range(X.shape[0]):
        bits = out[row]
        bits[:] = 255
        if rest:
            bits[bits.shape[0] - 1] = (1 << rest) - 1
        k = 0
        while k < feature.shape[0]:
            if (bits[first[k] >> 3] >> (first[k] & 7)) & 1 == 0:
                k = past[k]  # an ancestor has ruled out all leaves below this node
            elif _goes_left(X[row, feature[k]], threshold[k], missing_left[k], categorical[k], words[k]):
                _clear(bits, middle[k], last[k])
                k += 1
            else:
                _clear(bits, first[k], middle[k])
                k = past_left[k]  # nothing is left to rule out by splits on the left


def meet(bits: np.ndarray, structure: Structure, n_jobs: int | None = None) -> np.ndarray | None:
    """Find the single leaf of each tree in the intersection of all parties' sets: (rows, trees); None if not unique."""
    leaves = np.empty((len(bits), len(structure)), np.int64)
    bounds = structure.tree_bounds

    def some(start: int) -> bool:
        here = slice(start, start + _ROWS_A_TASK)
        return bool(_meet(bits[here], bounds, leaves[here]))

    single = thread_map(some, range(0, len(bits), _ROWS_A_TASK), thread_count(n_jobs))
    return leaves if all(single) else None


@njit(nogil=True, cache=True)
def _meet(bits: np.ndarray, bounds: np.ndarray, leaves: np.ndarray) -> bool:
    for row in range(bits.shape[0]):
        for tree in range(leaves.shape[1]):
            found, at, stop = 0, bounds[tree], bounds[tree + 1]
            while at < stop:
                byte = bits[row, at >> 3] >> (at & 7)
                if byte == 0:
                    at = (at | 7) + 1
                    continue
                while byte & 1 == 0:
                    byte >>= 1
                    at += 1
                if at >= stop:
                    break
                leaves[row, tree] = at
                found += 1
                at += 1
            if found != 1:
                return False
    return True


def votes_of_leaves(value: np.ndarray) -> np.ndarray:
    """Return 1 for the most probable class of each leaf (in a tie, the first), 0 for others: a tree's vote."""
    votes = np.zeros_like(value)
    votes[np.arange(len(value)), value.argmax(axis=1)] = 1.0
    return votes


def leaf_scores(rows: np.ndarray, value: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Average values by the trees' weights, exactly as a forest does; ``rows`` (rows, trees) index ``value``."""
    out = np.zeros((len(rows), value.shape[1]))
    for tree in np.flatnonzero(weights):  # one after the other, as a forest adds them up
        out += weights[tree] * value[rows[:, tree]]
    return out / sum(weights.tolist())
