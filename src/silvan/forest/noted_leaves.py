"""Records the leaf of each row, so that the same trees can predict again without another traversal."""

from typing import NamedTuple

import numpy as np

from silvan.forest.answers import Adding, Totals, add_weight
from silvan.forest.arrays import ForestArrays
from silvan.forest.walk import U
from silvan.util.kernels import njit

_MOST_LEAVES = 1 << 16

_ROWS = 1 << 10  # rows whose sums stay in the cache while trees are added


class Noted(NamedTuple):
    """The recorded rows of a table, ascending, and the number of each row's leaf in each tree.

    Trees that were not evaluated have no records.
    """

    rows: np.ndarray
    leaves: np.ndarray  # uint16 (trees, rows)


def bytes_noted(forest: ForestArrays, n: int) -> int | None:
    """Return the memory for the leaves of ``n`` rows; None if a tree has too many leaves to record them."""
    return 2 * n * len(forest) if int(np.diff(forest.offsets).max()) // 2 < _MOST_LEAVES else None


def make_noted(forest: ForestArrays, rows: np.ndarray) -> Noted:
    """Allocate memory for the leaves of some rows."""
    return Noted(rows, np.zeros((len(forest), len(rows)), np.uint16))


@njit(nogil=True, cache=True)
def add_noted(leaves: np.ndarray, first: int, stop: int, offsets: np.ndarray, adding: Adding, total: Totals) -> None:
    """Add the answers of trees for rows ``first`` to ``stop``, one tree after the other.

    A skipped row gets zero, which does not change a sum that starts at zero.
    """
    answer = np.empty((_MOST_LEAVES, total.values.shape[1]))
    for begin in range(first, stop, _ROWS):
        n = min(_ROWS, stop - begin)
        for t in range(len(adding.weights)):
            weight, line = adding.weights[t], adding.skip_row[t]
            if weight == 0.0:
                continue
            add_weight(begin, n, t, adding, total)
            first_leaf = (offsets[t] + t) >> 1  # a tree has one leaf more than splits
            for leaf in range(((offsets[t + 1] + t + 1) >> 1) - first_leaf):
                for k in range(answer.shape[1]):
                    answer[leaf, k] = weight * adding.value[first_leaf + leaf, k]
            some, values = leaves[t, begin : begin + n], total.values[begin : begin + n]
            if line >= 0:
                _add_unless(some, adding.skip[line, begin : begin + n], answer, values)
            elif answer.shape[1] == 2:  # the usual case, and faster together
                for i in range(n):
                    one = values[i, 0] + answer[U(some[i]), 0]
                    two = values[i, 1] + answer[U(some[i]), 1]
                    values[i, 0], values[i, 1] = one, two
            else:
                for i in range(n):
                    for k in range(answer.shape[1]):
                        values[i, k] += answer[U(some[i]), U(k)]


@njit(nogil=True, cache=True)
def _add_unless(leaves: np.ndarray, skip: np.ndarray, answer: np.ndarray, values: np.ndarray) -> None:
    """Add answers for the rows that are not skipped, and zero for the others, to avoid a branch."""
    for i in range(len(leaves)):
        for k in range(answer.shape[1]):
            more = answer[U(leaves[i]), U(k)]
            values[i, k] += 0.0 if skip[i] else more
