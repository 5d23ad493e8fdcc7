"""Shapley values: how much each feature moves a forest's prediction for a row away from the mean prediction.

If only some features of a row are known, a tree predicts a mean of its leaves: a split on an unknown feature sends the
row both ways, weighted by the shares of background rows on both sides. A feature's Shapley value is the change that it
makes, averaged over all orders in which features may become known (Lundberg et al. 2020).

For one leaf this mean is an integral. Let z be the share of background rows that pass a feature's splits on the path,
and o be 1 if the row itself passes them, else 0. Then feature i gets

    value * (o_i - z_i) * integral over s from 0 to 1 of the product over j != i of (z_j (1 - s) + o_j s)

because s^k (1 - s)^m integrates to k! m! / (k + m + 1)!, which is the share of orders. The integrand is a polynomial,
so a few Gauss points integrate it exactly, up to rounding. Products are passed down the tree and sums over leaves up:
the cost is nodes times points, and level order makes both passes plain loops.
"""

from typing import NamedTuple

import numpy as np

from silvan.errors import InputError
from silvan.forest.arrays import ForestArrays
from silvan.forest.node_counts import rows_at_nodes
from silvan.forest.predict import voting_weights
from silvan.forest.walk import Nodes, U, goes_right, pack
from silvan.util.kernels import njit
from silvan.util.threads import thread_count, thread_map

_ROWS = 16  # rows per task of a thread


class Shap(NamedTuple):
    """Shapley values of rows; a row's values and ``base`` add up to its scores."""

    values: np.ndarray  # (rows, features, outputs)
    base: np.ndarray  # (outputs,) the mean score of the background rows


class Paths(NamedTuple):
    """Values for every node that do not depend on the explained row, about the edge from its parent."""

    parent: np.ndarray  # -1 for a root
    above: np.ndarray  # the next node upwards whose parent splits on the same feature; -1 if there is none
    share: np.ndarray  # the share of background rows that all splits on this feature pass, so far


def shap_values(
    forest: ForestArrays,
    X: np.ndarray,
    background: np.ndarray,
    absent: np.ndarray | None = None,
    n_jobs: int | None = None,
) -> Shap:
    """Return the Shapley values of encoded rows; ``absent`` marks features that a table lacks, as in ``scores``."""
    if forest.combine not in ("mean", "vote"):
        raise InputError("Shapley values are only for forests that average their trees, which this one does not")
    if not len(background):
        raise InputError("Shapley values need background rows, since they are differences to the mean score")
    weights = voting_weights(forest, absent)
    if not weights.sum() > 0:
        raise InputError("no tree can answer for this table: each uses a column that the table lacks")
    weights = weights / weights.sum()
    counts, nodes = rows_at_nodes(forest, background, n_jobs), pack(forest)
    paths = _paths(forest, counts)
    features = np.zeros(len(paths.parent), np.int64)
    _count_features(paths.parent, paths.above, features)
    most = np.maximum.reduceat(features, forest.offsets[:-1])
    values = np.zeros((len(X), forest.n_features, forest.n_outputs))

    def one(first: int) -> None:
        stop = min(first + _ROWS, len(X))
        for tree in np.flatnonzero(weights).tolist():
            points, point_weights = np.polynomial.legendre.leggauss(max(1, -(-int(most[tree]) // 2)))
            at, by = (points + 1) / 2, point_weights / 2 * weights[tree]
            _explain(X, first, stop, int(forest.offsets[tree + 1]), tree, nodes, paths, forest.value, at, by, values)

    thread_map(one, range(0, len(X), _ROWS), thread_count(n_jobs))
    leaf = forest.feature < 0
    tree_of = np.repeat(np.arange(len(forest)), np.diff(forest.offsets))[leaf]
    return Shap(values, (weights[tree_of] * counts[leaf] / len(background)) @ forest.value)


def _paths(forest: ForestArrays, counts: np.ndarray) -> Paths:
    parent = np.full(len(forest.feature), -1, np.int64)
    inner = np.flatnonzero(forest.feature >= 0)
    parent[forest.left[inner]] = parent[forest.right[inner]] = inner
    share = np.ones(len(parent))
    below = parent >= 0
    at, of = counts[below], counts[parent[below]]
    # if no background row arrives, a split sends half either way
    share[below] = np.where(of > 0, at / np.maximum(of, 1), 0.5)
    above = np.full(len(parent), -1, np.int64)
    _join_splits_on_a_feature(forest.feature, parent, above, share)
    return Paths(parent, above, share)


@njit(nogil=True, cache=True)
def _join_splits_on_a_feature(feature: np.ndarray, parent: np.ndarray, above: np.ndarray, share: np.ndarray) -> None:
    """Find, for every node, the previous split on the same feature, and multiply the shares of both."""
    for node in range(len(parent)):
        if parent[node] < 0:
            continue
        f, up = feature[parent[node]], parent[node]
        while parent[up] >= 0 and feature[parent[up]] != f:
            up = parent[up]
        if parent[up] >= 0:
            above[node] = up
            share[node] *= share[up]


@njit(nogil=True, cache=True)
def _count_features(parent: np.ndarray, above: np.ndarray, features: np.ndarray) -> None:
    """Count the features on the path from a root to each node."""
    for node in range(len(parent)):
        if parent[node] >= 0:
            features[node] = features[parent[node]] + (above[node] < 0)


@njit(nogil=True, cache=True)
def _explain(
    X: np.ndarray,
    first: int,
    stop: int,
    end: int,
    tree: int,
    nodes: Nodes,
    paths: Paths,
    value: np.ndarray,
    at: np.ndarray,
    by: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add one tree's part of the rows' Shapley values to ``out``; ``at`` and ``by`` are Gauss points and weights."""
    begin, points, outputs = nodes.offsets[tree], len(at), value.shape[1]
    passes = np.zeros(end - begin)  # whether the row passes all splits on this feature so far
    product = np.ones((end - begin, points))
    total = np.zeros((end - begin, points, outputs))
    for row in range(first, stop):
        for node in range(begin + 1, end):
            _go_down(X, row, node, begin, nodes, paths, at, passes, product)
        total[:] = 0.0
        for node in range(end - 1, begin, -1):  # children come after their parents
            here, up = node - begin, paths.above[node]
            if product[here, 0] == 0.0:  # neither the row nor background rows arrive here, so nothing below counts
                continue
            parent, share, f = paths.parent[node], paths.share[node], nodes.feature[U(paths.parent[node])]
            for q in range(points):
                factor = (passes[here] - share) / (share * (1 - at[q]) + passes[here] * at[q])
                if up >= 0:
                    before, known = paths.share[up], passes[up - begin]
                    factor -= (known - before) / (before * (1 - at[q]) + known * at[q])
                for k in range(outputs):
                    if nodes.leaf[node] >= 0:
                        total[here, q, k] = product[here, q] * value[nodes.leaf[node], k]
                    total[parent - begin, q, k] += total[here, q, k]
                    out[row, f, k] += by[q] * factor * total[here, q, k]


@njit(nogil=True, cache=True)
def _go_down(
    X: np.ndarray,
    row: int,
    node: int,
    begin: int,
    nodes: Nodes,
    paths: Paths,
    at: np.ndarray,
    passes: np.ndarray,
    product: np.ndarray,
) -> None:
    """Compute the product at a node from that at its parent; zero if neither row nor background rows arrive."""
    parent, up, share, here = paths.parent[node], paths.above[node], paths.share[node], node - begin
    right = goes_right(X[row, nodes.feature[U(parent)]], U(parent), nodes)
    goes = 1.0 if right == (node != nodes.left[U(parent)]) else 0.0
    passes[here] = goes * (passes[up - begin] if up >= 0 else 1.0)
    if product[parent - begin, 0] == 0.0 or (passes[here] == 0.0 and share == 0.0):
        product[here] = 0.0
        return
    for q in range(len(at)):
        factor = share * (1 - at[q]) + passes[here] * at[q]
        if up >= 0:
            factor /= paths.share[up] * (1 - at[q]) + passes[up - begin] * at[q]
        product[here, q] = product[parent - begin, q] * factor
