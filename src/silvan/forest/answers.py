"""Answers of trees for rows, added up by weight: leaf values, votes, and the weight of the trees that took part."""

from typing import NamedTuple

import numpy as np

from silvan.util.kernels import njit

U = np.uint64  # unsigned indices need no check for negative values in inner loops


class Adding(NamedTuple):
    """What is added: the value and the vote of every leaf, the weight of every tree, and the rows that a tree skips."""

    value: np.ndarray  # (leaves, outputs)
    vote: np.ndarray  # (leaves,)
    weights: np.ndarray  # (trees,)
    skip: np.ndarray  # bool (lines, rows)
    skip_row: np.ndarray  # (trees,) each tree's line of ``skip``, -1 for none


class Totals(NamedTuple):
    """The totals; values or votes may have no columns."""

    values: np.ndarray  # (rows, outputs)
    votes: np.ndarray  # (rows, classes)
    weight: np.ndarray  # (rows,)


@njit(nogil=True, cache=True, inline="always")
def add_leaf(row: np.uint64, leaf: int, weight: float, adding: Adding, total: Totals) -> None:
    """Add the value and the vote of a leaf for one row."""
    for k in range(total.values.shape[1]):
        total.values[row, k] += weight * adding.value[leaf, k]
    if total.votes.shape[1] > 0:
        total.votes[row, adding.vote[leaf]] += weight


@njit(nogil=True, cache=True)
def add_rows(
    first: int, rows: np.ndarray, begin: int, stop: int, leaf: int, weight: float, adding: Adding, total: Totals
) -> None:
    """Add the value and the vote of a leaf for the rows ``first + rows[begin:stop]``."""
    values, start = total.values, U(first)
    if values.shape[1] == 2:  # the usual case, and faster together
        one, two = weight * adding.value[leaf, 0], weight * adding.value[leaf, 1]
        for i in range(begin, stop):
            values[start + U(rows[i]), U(0)] += one
            values[start + U(rows[i]), U(1)] += two
    else:
        for k in range(values.shape[1]):
            more = weight * adding.value[leaf, k]
            for i in range(begin, stop):
                values[start + U(rows[i]), U(k)] += more
    if total.votes.shape[1] > 0:
        for i in range(begin, stop):
            total.votes[start + U(rows[i]), U(adding.vote[leaf])] += weight


@njit(nogil=True, cache=True)
def add_weight(first: int, n: int, tree: int, adding: Adding, total: Totals) -> None:
    """Add the weight of a tree for ``n`` rows from ``first`` on, except those that it skips.

    If no tree skips rows, the caller knows the sum of weights, and nothing is added here.
    """
    if len(adding.skip) == 0:
        return  # the same for all rows
    line, weight, sums = adding.skip_row[tree], adding.weights[tree], total.weight[first : first + n]
    if line < 0:
        for i in range(n):
            sums[i] += weight
    else:
        skip = adding.skip[line, first : first + n]
        for i in range(n):
            sums[i] += 0.0 if skip[i] else weight
