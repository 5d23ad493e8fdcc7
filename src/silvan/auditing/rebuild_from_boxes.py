"""Reconstruction from boxes, in the manner of TimberStrike (arXiv 2506.07605): rows from thresholds and leaves.

Every leaf is a box: a range for each column that was asked about. The attacker starts from rows of the population, as
many of each class as were learnt from. Given how many rows of each class a leaf holds, they assign rows to leaves such
that all together move least, and move each into its box; then the same with the next tree, and again with all trees
until rows are where all trees have them, as nearly as can be. Without counts they scale the shares of
classes in leaves to as many rows as there are.

Success: rebuilt rows are matched with members one to one, and a cell counts if it lies within 3 % of the column's
spread of the true one. The rows that the attacker started from get some cells right as well: the figure is the share
of the others that the attacker gets right. Chance is 0. Numeric columns only; at most ``MOST`` rows.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment

from silvan.auditing.findings import ATTACKS, Finding, cells_found
from silvan.auditing.release import AuditedRows, Case, Release
from silvan.forest.category_set import is_category_split
from silvan.forest.forest import Forest

MOST = 60
TREES = 100
NEAR = 0.03
SWEEPS = 40


def reconstruct_from_boxes(release: Release, case: Case) -> Finding:
    """Reconstruct the members of a small release."""
    forest = release.forest
    numeric = np.array([not f.categorical for f in forest.schema.features])
    finding = ATTACKS["ranges"]
    if not numeric.any():
        return finding.not_run("there are no numeric columns")
    if len(case.members) > MOST:
        return finding.not_run(f"for at most {MOST} rows")
    ends = _spread(case.outsiders.X)
    start = _start(case, ends)
    ours = _right(rebuild(release, start, ends, case.seed), case.members, ends, numeric)
    others = _right(start.X, case.members, ends, numeric)
    return finding.with_cells(ours, others)


def _start(case: Case, ends: np.ndarray) -> AuditedRows:
    """Draw as many rows of the population as there are members, of each class as many."""
    rng, people = np.random.default_rng(case.seed), case.outsiders
    labels = case.members.y if case.members.y.dtype.kind in "iu" else np.zeros(len(case.members), np.int64)
    theirs = people.y if people.y.dtype.kind in "iu" else np.zeros(len(people), np.int64)
    drawn = []
    for label, n in zip(*np.unique(labels, return_counts=True), strict=True):
        alike = np.flatnonzero(theirs == label)
        drawn.append(rng.choice(alike if len(alike) else np.arange(len(people)), n))
    picked = np.concatenate(drawn)
    return AuditedRows(np.nan_to_num(_scaled(people.X[picked], ends), nan=0.5), np.sort(labels))


def rebuild(release: Release, start: AuditedRows, ends: np.ndarray, seed: int) -> np.ndarray:
    """Move rows until each tree has as many in every leaf as it says, as nearly as can be; return where they end."""
    rng, place = np.random.default_rng(seed), start.X.copy()
    trees = np.flatnonzero(release.forest.weights > 0)[:TREES]
    slots = [_slots(release, int(tree), start.y, ends) for tree in trees]
    for sweep in range(SWEEPS):
        step = 1.0 if sweep < SWEEPS - 5 else 0.5  # at last, halfway: what cannot agree settles in between
        for t in rng.permutation(len(slots)):
            for rows, low, high in slots[t]:
                row, slot = linear_sum_assignment(_distance(place[rows], low, high))
                here = place[rows[row]]
                place[rows[row]] = here + step * (_inside(here, low[slot], high[slot]) - here)
    return place


Slots = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Of each class: its rows, and as many boxes, by their lower and upper ends."""


def _slots(release: Release, tree: int, y: np.ndarray, ends: np.ndarray) -> Slots:
    """List the boxes of a tree's leaves, each as often as it holds rows of a class."""
    forest = release.forest
    low, high, leaves = leaf_boxes(forest, tree, ends)
    classes = np.arange(max(forest.schema.n_classes, 1))
    code = y if forest.schema.n_classes else np.zeros(len(y), np.int64)
    slots: Slots = []
    for c in classes:
        rows = np.flatnonzero(code == c)
        if release.counts is not None:
            weight = release.counts[leaves, c].astype(np.float64)
        else:
            weight = forest.value[leaves, c].copy() if forest.schema.n_classes else np.ones(len(leaves))
        if not len(rows) or not weight.sum():
            continue
        # a tree that drew some rows twice, or shows shares alone, is scaled to all rows
        box = np.repeat(np.arange(len(leaves)), _portions(weight, len(rows)))
        slots.append((rows, low[box], high[box]))
    return slots


def _portions(weight: np.ndarray, n: int) -> np.ndarray:
    """Split a whole number in proportion, the largest remainders rounded up."""
    exact = n * weight / weight.sum()
    whole = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: n - whole.sum()]] += 1
    return whole


def leaf_boxes(forest: Forest, tree: int, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ranges of a tree's leaves in scaled columns, and their places in ``value``."""
    first, stop = forest.offsets[tree : tree + 2]
    low = np.zeros((stop - first, forest.n_features))
    high = np.ones((stop - first, forest.n_features))
    numeric = (forest.feature >= 0) & ~is_category_split(forest.schema, forest.feature)
    for node in range(first, stop):
        if forest.feature[node] < 0:
            continue
        here, left, right = node - first, forest.left[node] - first, forest.right[node] - first
        low[[left, right]], high[[left, right]] = low[here], high[here]
        if numeric[node]:
            f = forest.feature[node]
            cut = float(((forest.threshold[node] - ends[0, f]) / (ends[1, f] - ends[0, f])).clip(0, 1))
            high[left, f], low[right, f] = min(high[left, f], cut), max(low[right, f], cut)
    leaves = np.flatnonzero(forest.feature[first:stop] < 0)
    return low[leaves], high[leaves], forest.leaf[first + leaves]


def _inside(place: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Move rows into their boxes, a little beyond the border."""
    margin = np.minimum((high - low) / 4, 0.01)
    moved: np.ndarray = np.where(place < low, low + margin, np.where(place > high, high - margin, place))
    return moved


def _distance(place: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the distance of every row from every box, summed over columns."""
    total = np.zeros((len(place), len(low)))
    for f in np.flatnonzero((low > 0).any(axis=0) | (high < 1).any(axis=0)):
        value = place[:, f, None]
        total += np.maximum(low[:, f] - value, 0) + np.maximum(value - high[:, f], 0)
    return total


def _spread(X: np.ndarray) -> np.ndarray:
    """Return the public range of each column: all but the outermost hundredths of the population."""
    with np.errstate(all="ignore"):
        low, high = np.nanquantile(X, [0.01, 0.99], axis=0)
    low, high = np.nan_to_num(low), np.nan_to_num(high)
    return np.stack([low, np.where(high > low, high, low + 1)])


def _scaled(X: np.ndarray, ends: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = ((X - ends[0]) / (ends[1] - ends[0])).clip(0, 1)
    return scaled


def _right(guess: np.ndarray, members: AuditedRows, ends: np.ndarray, numeric: np.ndarray) -> np.ndarray:
    """Return each member's share of cells that are nearly right."""
    truth = _scaled(members.X, ends)[:, numeric]
    return cells_found(np.abs(guess[:, None, numeric] - truth) <= NEAR)
