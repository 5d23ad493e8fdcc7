"""Labels by least squares: the attacker knows all columns of the training rows and solves for their labels.

Each leaf gives a linear equation per class: the share of its rows that belong to the class. A few hundred trees give
more equations than there are rows. With ``bootstrap=False`` they are exact. Otherwise sites keep secret which rows a
tree sampled, and the attacker uses all rows that reach a leaf: the equation is noisy, with a variance that falls with
the number of rows. The attacker knows which site a tree comes from.

The attack minimises squared errors, weighted by the leaves' rows, over shares between 0 and 1, by accelerated projected
gradients that start at the forest's predictions.

The forest itself predicts many labels of anybody correctly. So the same is done for outsiders, as if they had been in
the training set; the better of this and the forest's predictions is what guesses achieve. The metric is the share of
what guesses miss that the attacker gets right; chance is 0. Numbers count as right within ``NEAR`` standard deviations.
"""

import numpy as np
from scipy import sparse

from silvan.auditing.findings import ATTACKS, Finding, gained
from silvan.auditing.release import AuditedRows, Case, Release, leaf_of, stated_shares
from silvan.forest.forest import Forest

MOST = 20_000
STEPS = 200
DAMPING = 0.01
"""A weak pull towards the forest's predictions, for underdetermined labels."""

NEAR = 0.1


def labels_from_leaves(release: Release, case: Case, seen: np.ndarray | None = None) -> Finding:
    """Solve for the labels of members, and of outsiders in their place.

    ``seen`` marks the members that a tree may have been grown on, bool (trees, members); None for all.
    """
    finding = ATTACKS["leaf_labels"]
    if release.forest.combine == "stages":
        return finding.not_run("leaves hold votes, not shares of classes")
    if len(case.members) > MOST:
        return finding.not_run(f"for at most {MOST:,} rows")
    ours, predicted = _right(release, case.members, seen)
    others = max(_right(release, case.outsiders), key=np.mean)
    note = (
        f"{ours.mean():.0%} of labels, {predicted.mean():.0%} by the forest's own predictions; "
        f"{others.mean():.0%} of labels of others"
    )
    return finding.with_result(gained(ours, others, paired=False), len(ours), note)


def _right(release: Release, rows: AuditedRows, seen: np.ndarray | None = None) -> list[np.ndarray]:
    """Return which labels are right: the solved ones, and those predicted by the forest."""
    guesses = solve_for_labels(release.forest, rows.X, seen), release.forest.scores(rows.X, 1)
    if release.forest.classes is not None:
        return [guess.argmax(axis=1) == rows.y for guess in guesses]
    return [np.abs(guess[:, 0] - rows.y) <= NEAR * rows.y.std() for guess in guesses]


def solve_for_labels(forest: Forest, X: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    """Return the shares of classes (rows, classes), or numbers (rows, 1), that fit the leaves best."""
    leaves, start = leaf_of(forest, X), forest.scores(X, 1)
    tree, row = np.nonzero(np.ones(leaves.shape, np.bool_) if seen is None else seen)
    used, equation, size = np.unique(leaves[tree, row], return_inverse=True, return_counts=True)
    root = np.sqrt(size)
    means = sparse.csr_array((1.0 / root[equation], (equation, row)), shape=(len(used), len(X)))
    back, stated = means.T.tocsr(), root[:, None] * stated_shares(forest, X)[used]
    low, high = (-np.inf, np.inf) if forest.classes is None else (0.0, 1.0)
    # each of a row's equations adds at most 1 to the curvature
    step, solution, ahead, pace = 1.0 / (len(forest) + DAMPING), start, start, 1.0
    for _ in range(STEPS):
        slope = back @ (means @ ahead - stated) + DAMPING * (ahead - start)
        before, solution = solution, np.clip(ahead - step * slope, low, high)
        last, pace = pace, (1.0 + np.sqrt(1.0 + 4.0 * pace**2)) / 2.0
        ahead = solution + (last - 1.0) / pace * (solution - before)
    return solution
