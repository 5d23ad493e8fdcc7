"""Exact-value thresholds: count the thresholds that reveal a value that only one row has.

A threshold midway between two adjacent values reveals either of them exactly to whoever knows the other. A threshold
counts if it is the middle of two values of rows that reach its node, among the four nearest on each side (rows that the
tree did not sample may lie in between), and one of the two values belongs to a single row; or if it is such a value
itself. With round numbers this happens by coincidence, as outsiders in place of the members show. The metric is the
excess over that; chance is 0, and thresholds on the public grid do no better.
"""

import numpy as np

from silvan.auditing.findings import ATTACKS, Finding, share
from silvan.auditing.release import AuditedRows, Case, Release, leaf_nodes
from silvan.forest.category_set import is_category_split
from silvan.forest.forest import Forest

_NEAR = 4
_LARGEST = np.finfo(np.float32).max
MOST_TREES = 50


def exact_thresholds(release: Release, case: Case) -> Finding:
    """Count thresholds that reveal a member's value."""
    hits, total = _count(release, case.members)
    base, base_total = _count(release, case.outsiders)
    if not total:
        return ATTACKS["thresholds"].not_run("the trees have no numeric thresholds")
    by_chance = base / base_total if base_total else 0.0
    given, low, high = share(hits, total)
    note = f"{given:.1%} of thresholds; {by_chance:.1%} by coincidence, seen from outsiders"
    return ATTACKS["thresholds"].with_result((given - by_chance, low - by_chance, high - by_chance), total, note)


def _count(release: Release, rows: AuditedRows) -> tuple[int, int]:
    """Count the thresholds that reveal a value of these rows, and all numeric thresholds that rows reach."""
    forest = release.forest.take(np.arange(min(len(release.forest), MOST_TREES)))
    numeric = (forest.feature >= 0) & ~is_category_split(forest.schema, forest.feature)
    numeric &= forest.threshold < _LARGEST
    alone = [_alone(rows.X[:, f]) for f in range(forest.n_features)]
    nodes, of_rows = _on_the_way(forest, rows.X, numeric)
    values = rows.X[of_rows, forest.feature[nodes]]
    order = np.argsort(nodes, kind="stable")
    reached, starts = np.unique(nodes[order], return_index=True)
    given = [
        _reveals(float(forest.threshold[node]), values[here], alone[forest.feature[node]])
        for node, here in zip(reached, np.split(order, starts[1:]), strict=True)
    ]
    return sum(given), len(given)


def _on_the_way(forest: Forest, X: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """List the wanted nodes on the rows' paths to the leaves, and the row that passes each."""
    inner = np.flatnonzero(forest.feature >= 0)
    parent = np.full(len(forest.feature), -1)
    parent[forest.left[inner]] = parent[forest.right[inner]] = inner
    at = leaf_nodes(forest, X).reshape(-1)
    row = np.tile(np.arange(len(X)), len(forest))
    nodes, of_rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    while len(at):
        at = parent[at]
        at, row = at[at >= 0], row[at >= 0]
        nodes.append(at[wanted[at]])
        of_rows.append(row[wanted[at]])
    return np.concatenate(nodes), np.concatenate(of_rows)


def _alone(column: np.ndarray) -> np.ndarray:
    """List the values that only one row has."""
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    return values[counts == 1]


def _reveals(threshold: float, column: np.ndarray, alone: np.ndarray) -> bool:
    values = np.unique(column[~np.isnan(column)])
    cut = int(np.searchsorted(values, np.float32(threshold), "right"))
    below, above = values[max(cut - _NEAR, 0) : cut], values[cut : cut + _NEAR]
    if len(below) and below[-1] == np.float32(threshold) and below[-1] in alone:
        return True
    middle = (below[:, None].astype(np.float64) + above.astype(np.float64)) / 2
    # a threshold is stored as the largest 32-bit number not above it
    spot = np.abs(middle - threshold) <= np.spacing(np.float32(max(abs(threshold), 1e-30)))
    return bool((spot & (np.isin(below, alone)[:, None] | np.isin(above, alone))).any())
