"""Exact-value thresholds: count the thresholds that reveal a value that a single row has.

A threshold midway between two neighbouring values reveals either of them to whoever knows the other, to the last digit.
A threshold is counted if it is the middle of two values, one on each side, of rows that reach its node, among the
four nearest on either side (rows that the tree did not draw may stand between), and one of the two belongs to one row
alone; or if it is such a value itself. Round numbers do so by coincidence; how often is seen from outsiders in the
members' place. The figure is what is beyond that, and chance is 0: thresholds on the public grid do no better.
"""

import numpy as np

from silvan.auditing.findings import ATTACKS, Finding, share
from silvan.auditing.release import Case, Release, Rows, walk_down
from silvan.forest.category_set import is_category_split

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


def _count(release: Release, rows: Rows) -> tuple[int, int]:
    """Count the thresholds that reveal a value of these rows, and all numeric ones that rows reach."""
    forest = release.forest.take(np.arange(min(len(release.forest), MOST_TREES)))
    numeric = (forest.feature >= 0) & ~is_category_split(forest.schema, forest.feature)
    numeric &= forest.threshold < _LARGEST
    alone = [_alone(rows.X[:, f]) for f in range(forest.n_features)]
    given, reached = np.zeros(len(numeric), np.bool_), np.zeros(len(numeric), np.bool_)
    for node in walk_down(forest, rows.X):
        at, row = node.reshape(-1), np.tile(np.arange(len(rows)), len(node))
        here = numeric[at] & ~reached[at]
        at, row = at[here], row[here]
        if not len(at):
            continue
        value = rows.X[row, forest.feature[at]]
        order = np.lexsort((value, at))
        at, value = at[order], value[order]
        starts = np.flatnonzero(np.diff(at, prepend=-1))
        for start, stop in zip(starts, np.append(starts[1:], len(at)), strict=True):
            place = at[start]
            reached[place] = True
            column = value[start:stop]
            given[place] = _reveals(float(forest.threshold[place]), column, alone[forest.feature[place]])
    return int(given.sum()), int(reached.sum())


def _alone(column: np.ndarray) -> np.ndarray:
    """List the values that one row has alone."""
    values, counts = np.unique(column[~np.isnan(column)], return_counts=True)
    return values[counts == 1]


def _reveals(threshold: float, column: np.ndarray, alone: np.ndarray) -> bool:
    values = np.unique(column[~np.isnan(column)])
    cut = int(np.searchsorted(values, np.float32(threshold), "right"))
    below, above = values[max(cut - _NEAR, 0) : cut], values[cut : cut + _NEAR]
    if len(below) and below[-1] == np.float32(threshold) and _is_in(alone, below[-1:]).any():
        return True
    middle = (below[:, None].astype(np.float64) + above.astype(np.float64)) / 2
    # a threshold is stored as the largest 32-bit number not above it
    spot = np.abs(middle - threshold) <= np.spacing(np.float32(max(abs(threshold), 1e-30)))
    return bool((spot & (_is_in(alone, below)[:, None] | _is_in(alone, above))).any())


def _is_in(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    return np.isin(wanted, values)
