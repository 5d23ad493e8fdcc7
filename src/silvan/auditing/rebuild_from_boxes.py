"""Rows from boxes, after TimberStrike (arXiv 2506.07605): columns rebuilt from thresholds and leaf statistics.

Every leaf is a box: a range for each column that its splits use. The attacker starts with rows of the population, with
the right number of each class, and assigns them to the leaves of one tree such that each leaf gets the stated number of
each class and rows move as little as possible in total; each row then moves into its box. This is repeated tree by
tree, in sweeps over all trees, until rows are where most trees have them. A release without counts states only shares;
the size of a leaf then follows from the number of population rows that reach it, rounded to a size that its shares
allow.

As published, rebuilt rows are matched one-to-one with members, and a cell counts if it is within ``NEAR`` standard
deviations of the true value. Guesses are the better of population rows and samples from each column independently. The
metric is the share of what guesses miss; chance is 0. Only for small tables of numeric columns and classes.
"""

from fractions import Fraction

import numpy as np
from scipy.optimize import linear_sum_assignment

from silvan.auditing.findings import ATTACKS, Finding, cells_found
from silvan.auditing.release import AuditedRows, Case, Release, leaf_of, stated_shares
from silvan.forest.forest import Forest

TREES = 100
NEAR = 0.319
SWEEPS = 20


def reconstruct_from_boxes(release: Release, case: Case) -> Finding:
    """Reconstruct the members of a small release, of numeric columns and classes."""
    rng, ends = np.random.default_rng(case.seed), _spread(case.outsiders.X)
    people = AuditedRows(_scaled(case.outsiders.X, ends), case.outsiders.y)
    start, truth = _start(case.members.y, people, rng), _scaled(case.members.X, ends)
    rebuilt, alone = rebuild(release, start, case.outsiders.X, ends, rng), rng.permuted(start.X, axis=0)
    near = NEAR * people.X.std(axis=0)
    ours, *others = (cells_found(np.abs(guess[:, None] - truth) <= near) for guess in (rebuilt, start.X, alone))
    return ATTACKS["ranges"].with_cells(ours, max(others, key=np.mean))


def _start(labels: np.ndarray, people: AuditedRows, rng: np.random.Generator) -> AuditedRows:
    """Sample as many rows of the population as there are members of each class."""
    chosen = []
    for label, n in zip(*np.unique(labels, return_counts=True), strict=True):
        alike = np.flatnonzero(people.y == label)
        chosen.append(rng.choice(alike if len(alike) else np.arange(len(people)), n))
    return AuditedRows(people.X[np.concatenate(chosen)], np.sort(labels))


def rebuild(
    release: Release, start: AuditedRows, people: np.ndarray, ends: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Move rows until the leaves of each tree hold about the stated numbers; return their final places."""
    place = start.X.copy()
    trees = np.flatnonzero(release.forest.weights > 0)[:TREES]
    held = _held(release, people, len(start))
    slots = [_slots(release.forest, int(tree), held, start.y, ends) for tree in trees]
    for sweep in range(SWEEPS):
        step = 1.0 if sweep < SWEEPS - 5 else 0.5  # finally move halfway, so that conflicts settle in between
        for t in rng.permutation(len(slots)):
            for rows, low, high in slots[t]:
                row, slot = linear_sum_assignment(_distance(place[rows], low, high))
                here = place[rows[row]]
                place[rows[row]] = here + step * (_inside(here, low[slot], high[slot]) - here)
    return place


Slots = list[tuple[np.ndarray, np.ndarray, np.ndarray]]
"""For each class: its rows, and as many boxes, by lower and upper ends."""


def _slots(forest: Forest, tree: int, held: np.ndarray, y: np.ndarray, ends: np.ndarray) -> Slots:
    """List the boxes of a tree's leaves, each once per row of a class."""
    low, high, leaves = leaf_boxes(forest, tree, ends)
    slots: Slots = []
    for c, here in enumerate(held[leaves].T):
        rows = np.flatnonzero(y == c)
        if len(rows) and here.sum():
            # trees that sampled rows twice, or state only shares, are scaled to all rows
            box = np.repeat(np.arange(len(leaves)), _portions(here, len(rows)))
            slots.append((rows, low[box], high[box]))
    return slots


def _held(release: Release, people: np.ndarray, n: int) -> np.ndarray:
    """Return the rows of each class in each leaf, out of n: as stated, or as the population suggests.

    Shares come from whole rows, so the size of a leaf is a multiple of their denominators.
    """
    if release.counts is not None:
        return release.counts
    stated = stated_shares(release.forest, people)
    reached = np.bincount(leaf_of(release.forest, people).reshape(-1), minlength=len(stated)) + 0.5
    least = [max(Fraction(float(share)).limit_denominator(n).denominator for share in leaf) for leaf in stated]
    held: np.ndarray = stated * (np.maximum(1.0, np.rint(reached * n / len(people) / least)) * least)[:, None]
    return held


def _portions(weight: np.ndarray, n: int) -> np.ndarray:
    """Divide a whole number in proportion, rounding up the largest remainders."""
    exact = n * weight / weight.sum()
    whole = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: n - whole.sum()]] += 1
    return whole


def leaf_boxes(forest: Forest, tree: int, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ranges of a tree's leaves in scaled columns, and their positions in ``value``."""
    first, stop = forest.offsets[tree : tree + 2]
    low = np.zeros((stop - first, forest.n_features))
    high = np.ones((stop - first, forest.n_features))
    for node in range(first, stop):
        if forest.feature[node] < 0:
            continue
        here, left, right = node - first, forest.left[node] - first, forest.right[node] - first
        low[[left, right]], high[[left, right]] = low[here], high[here]
        f = forest.feature[node]
        cut = float(((forest.threshold[node] - ends[0, f]) / (ends[1, f] - ends[0, f])).clip(0, 1))
        high[left, f], low[right, f] = min(high[left, f], cut), max(low[right, f], cut)
    leaves = np.flatnonzero(forest.feature[first:stop] < 0)
    return low[leaves], high[leaves], forest.leaf[first + leaves]


def _inside(place: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Move rows into their boxes, slightly past the border."""
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
    """Return the public range of each column: the population without its outermost percentiles."""
    low, high = np.quantile(X, [0.01, 0.99], axis=0)
    return np.stack([low, np.where(high > low, high, low + 1)])


def _scaled(X: np.ndarray, ends: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = ((X - ends[0]) / (ends[1] - ends[0])).clip(0, 1)
    return scaled
