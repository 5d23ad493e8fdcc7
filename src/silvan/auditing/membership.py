"""Membership inference: recognise the training rows of the forest.

The attacker has the forest and a person's row with its label, and ranks people by how likely they are training rows. By
confidence: how well the forest predicts the label, for which its predictions suffice. By leaf support: a leaf without
rows of the person's class proves that its tree did not see the person; with released counts, a leaf with a single such
row says more than one with many. The metric is the share of pairs of a member and an outsider in which the member ranks
higher (AUC); chance is 0.5. With differential privacy of epsilon, no attacker exceeds e^epsilon / (1 + e^epsilon).
"""

import math

import numpy as np

from silvan.auditing.findings import ATTACKS, Finding, auc
from silvan.auditing.release import AuditedRows, Case, Release, leaf_of
from silvan.forest import predict


def membership_by_confidence(release: Release, case: Case) -> Finding:
    """Rank people by the forest's probability of their label, or by the error of its number."""
    measured = auc(_confidence(release, case.members), _confidence(release, case.outsiders))
    return ATTACKS["membership"].with_result(measured, len(case.members) + len(case.outsiders))


def membership_by_support(release: Release, case: Case) -> Finding:
    """Rank people by how many rows of their class the leaves that they reach hold."""
    if release.forest.combine == "log_odds":
        return ATTACKS["support"].not_run("leaves hold log-odds, not shares of classes")
    measured = auc(_support(release, case.members), _support(release, case.outsiders))
    return ATTACKS["support"].with_result(measured, len(case.members) + len(case.outsiders))


def private_bound(epsilon: float) -> float:
    """Return the largest AUC that any attacker can reach against a release with this epsilon."""
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
    shares = forest.value[leaves, rows.y]
    if release.counts is None:
        # by Laplace's rule: a leaf of unknown size says little about a class without rows in it
        return np.asarray(np.log(shares + _SMALL).mean(axis=0))
    count = release.counts[leaves, rows.y]
    # a leaf that contains the person has at least one such row; the fewer it has, the stronger the evidence
    return np.asarray(np.where(count > 0, 1.0 / np.maximum(count, 1), -1.0).mean(axis=0))


_SMALL = 1e-2
