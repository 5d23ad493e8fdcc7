"""Questions that tell rows of a table nothing: how many rows come to one in each tree."""

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from silvan.threads import thread_count, thread_map
from silvan.tree.walk import BLOCK, Nodes, U, pack, walk

if TYPE_CHECKING:
    from silvan.tree.forest import Forest


def rows_at_nodes(forest: "Forest", X: np.ndarray, n_jobs: int | None = None) -> np.ndarray:
    """Count the rows that come to each node: int64 (nodes,)."""
    nodes, counts = pack(forest), np.zeros(len(forest.feature), np.int64)
    thread_map(lambda tree: _count_leaves(X, tree, nodes, counts), range(len(forest)), thread_count(n_jobs))
    _add_upwards(forest.left, counts)
    return counts


@njit(nogil=True, cache=True)
def _count_leaves(X: np.ndarray, tree: int, nodes: Nodes, counts: np.ndarray) -> None:
    place = np.empty(BLOCK, np.uint32)
    for begin in range(0, X.shape[0], BLOCK):
        n = min(BLOCK, X.shape[0] - begin)
        walk(X, begin, n, tree, nodes, place)
        for i in range(n):
            counts[U(place[i])] += 1


@njit(nogil=True, cache=True)
def _add_upwards(left: np.ndarray, counts: np.ndarray) -> None:
    for node in range(len(counts) - 1, -1, -1):  # children come after parents
        if left[node] >= 0:
            counts[node] = counts[left[node]] + counts[left[node] + 1]


def blind_rows(forest: "Forest", X: np.ndarray, least: int, n_jobs: int | None = None) -> np.ndarray:
    """Count, in each tree, the rows that come to a question which no row there answers otherwise: int64 (trees,).

    Of questions that at least ``least`` rows come to; each row counts once.
    """
    counts, out = rows_at_nodes(forest, X, n_jobs), np.zeros(len(forest), np.int64)
    _add_blind(forest.left, forest.offsets, counts, least, out)
    return out


@njit(nogil=True, cache=True)
def _add_blind(left: np.ndarray, offsets: np.ndarray, counts: np.ndarray, least: int, out: np.ndarray) -> None:
    for tree in range(len(out)):
        counted = np.zeros(offsets[tree + 1] - offsets[tree], np.bool_)
        for node in range(offsets[tree], offsets[tree + 1]):
            child = left[node]
            if child < 0:
                continue
            here = counted[node - offsets[tree]]
            if not here and counts[node] >= least and (counts[child] == 0 or counts[child + 1] == 0):
                out[tree] += counts[node]
                here = True
            counted[child - offsets[tree]] = counted[child + 1 - offsets[tree]] = here
