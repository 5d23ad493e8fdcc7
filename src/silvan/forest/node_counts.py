"""Count the rows of a table that reach each node of a forest, and sum numbers of these rows."""

import numpy as np

from silvan.forest.arrays import ForestArrays
from silvan.forest.walk import BLOCK, Nodes, U, pack, walk
from silvan.util.kernels import njit
from silvan.util.threads import thread_count, thread_map


@njit(nogil=True, cache=True)
def _add(X: np.ndarray, of_rows: np.ndarray, tree: int, nodes: Nodes, sums: np.ndarray) -> None:
    """Sum numbers of rows at the leaves of one tree."""
    place = np.empty(BLOCK, np.uint32)
    for begin in range(0, X.shape[0], BLOCK):
        n = min(BLOCK, X.shape[0] - begin)
        walk(X, begin, n, tree, nodes, place)
        for i in range(n):
            for k in range(of_rows.shape[1]):
                sums[U(place[i]), k] += of_rows[begin + i, k]


@njit(nogil=True, cache=True)
def _add_upwards(left: np.ndarray, sums: np.ndarray) -> None:
    """Sum the numbers of leaves towards the roots."""
    for node in range(len(sums) - 1, -1, -1):  # children come after their parents
        if left[node] >= 0:
            for k in range(sums.shape[1]):
                sums[node, k] = sums[left[node], k] + sums[left[node] + 1, k]


def rows_at_nodes(forest: ForestArrays, X: np.ndarray, n_jobs: int | None = None) -> np.ndarray:
    """Count the encoded rows that reach each node: int64 (nodes,)."""
    return sums_at_nodes(forest, X, np.ones((len(X), 1), np.int64), n_jobs)[:, 0]


def sums_at_nodes(forest: ForestArrays, X: np.ndarray, of_rows: np.ndarray, n_jobs: int | None = None) -> np.ndarray:
    """Return the sums, over the rows that reach a node, of numbers of each row: (nodes, numbers)."""
    nodes, sums = pack(forest), np.zeros((len(forest.feature), of_rows.shape[1]), of_rows.dtype)
    thread_map(lambda tree: _add(X, of_rows, tree, nodes, sums), range(len(forest)), thread_count(n_jobs))
    _add_upwards(forest.left, sums)
    return sums


def sum_at_nodes(forest: ForestArrays, at_leaves: np.ndarray) -> np.ndarray:
    """Sum numbers of leaves, (leaves, numbers), to the same for each node: (nodes, numbers)."""
    sums = np.zeros((len(forest.feature), at_leaves.shape[1]), at_leaves.dtype)
    sums[forest.feature < 0] = at_leaves
    _add_upwards(forest.left, sums)
    return sums
