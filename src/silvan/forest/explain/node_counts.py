"""Count the rows of a table that reach each node of a forest, and add up what they have."""

import numpy as np

from silvan.forest.arrays import ForestArrays
from silvan.forest.walk import BLOCK, Nodes, U, pack, walk
from silvan.util.kernels import njit
from silvan.util.threads import thread_count, thread_map


@njit(nogil=True, cache=True)
def _add(X: np.ndarray, of_rows: np.ndarray, tree: int, nodes: Nodes, stop: int, sums: np.ndarray) -> None:
    """Add up what rows have at the leaves of one tree, then towards its root."""
    place = np.empty(BLOCK, np.uint32)
    for begin in range(0, X.shape[0], BLOCK):
        n = min(BLOCK, X.shape[0] - begin)
        walk(X, begin, n, tree, nodes, place)
        for i in range(n):
            for k in range(of_rows.shape[1]):
                sums[U(place[i]), k] += of_rows[begin + i, k]
    for node in range(stop - 1, nodes.offsets[tree] - 1, -1):  # children stand after their parents
        if nodes.leaf[node] < 0:
            sums[node] = sums[nodes.left[node]] + sums[nodes.left[node] + 1]


def rows_at_nodes(forest: ForestArrays, X: np.ndarray, n_jobs: int | None = None) -> np.ndarray:
    """Return how many of some encoded rows reach each node: (nodes,)."""
    return sums_at_nodes(forest, X, np.ones((len(X), 1)), n_jobs)[:, 0].astype(np.int64)


def sums_at_nodes(forest: ForestArrays, X: np.ndarray, of_rows: np.ndarray, n_jobs: int | None = None) -> np.ndarray:
    """Return the sums, over the rows that reach a node, of numbers that each row has: (nodes, numbers)."""
    nodes, sums = pack(forest), np.zeros((len(forest.feature), of_rows.shape[1]))

    def one(tree: int) -> None:
        _add(X, of_rows, tree, nodes, int(forest.offsets[tree + 1]), sums)

    thread_map(one, range(len(forest)), thread_count(n_jobs))
    return sums
