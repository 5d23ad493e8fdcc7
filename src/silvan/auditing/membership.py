"""Membership inference: whether a person is among the rows that the forest was trained on.

The attacker has the forest and a person's row with its label, and ranks people by how likely they are to have been
trained on. By confidence: how well the forest predicts the label; for that the forest's answers are enough. By leaf
support: a leaf without any row of the person's class proves that this tree did not see them, and where counts are
released, a leaf with a single row of it says more than one with many. Success is the share of pairs of a
member and an outsider in which the member ranks higher (AUC); chance is a half. With differential privacy of epsilon
no attacker at all is above e^epsilon / (1 + e^epsilon).
"""

import math

import numpy as np

from silvan.auditing.findings import ATTACKS, Finding, auc
from silvan.auditing.release import AuditedRows, Case, Release, leaf_of
from silvan.forest import predict


def membership_by_confidence(release: Release, case: Case) -> Finding:
    """Rank people by the share that the forest gives to their own label, or by how near its number is."""
    figure = auc(_confidence(release, case.members), _confidence(release, case.outsiders))
    return ATTACKS["membership"].with_result(figure, len(case.members) + len(case.outsiders))


def membership_by_support(release: Release, case: Case) -> Finding:
    """Rank people by how many rows of their class the leaves hold that they end at."""
    if release.forest.combine == "log_odds":
        return ATTACKS["support"].not_run("leaves hold log-odds, not shares of classes")
    figure = auc(_support(release, case.members), _support(release, case.outsiders))
    return ATTACKS["support"].with_result(figure, len(case.members) + len(case.outsiders))


def private_bound(epsilon: float) -> float:
    """Return the largest AUC that any attacker can have against a release of this epsilon."""
    return 1.0 / (1.0 + math.exp(-epsilon))


def _confidence(release: Release, rows: AuditedRows) -> np.ndarray:
    forest = release.forest
    scores = predict.scores(forest, rows.X, 1)
    if forest.classes is None:
        return -np.abs(scores[:, 0] - rows.y)
    picked: np.ndarray = scores[np.arange(len(rows)), rows.y]
    return picked


def _support(release: Release, rows: AuditedRows) -> np.ndarray:
    """Add up evidence over trees: how much likelier the leaf is if the person is one of its rows."""
    forest = release.forest
    kept = np.flatnonzero(forest.weights > 0)
    leaves = leaf_of(forest, rows.X)[kept]
    if forest.classes is None:
        gap = np.abs(forest.value[leaves, 0] - rows.y)
        return np.asarray(-np.log(gap + 1e-3 * (np.abs(rows.y) + 1e-9)).mean(axis=0))
    own = forest.value[leaves, rows.y]
    if release.counts is None:
        # by Laplace's rule; what a leaf of unknown size says of a class that it has no rows of is little
        return np.asarray(np.log(own + _SMALL).mean(axis=0))
    count = release.counts[leaves, rows.y]
    # given that the person was drawn the leaf has at least one such row; the fewer others it has the stranger that is
    return np.asarray(np.where(count > 0, 1.0 / np.maximum(count, 1), -1.0).mean(axis=0))


_SMALL = 1e-2
