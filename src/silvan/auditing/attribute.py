"""Attribute inference: the attacker knows a whole person except one attribute, and guesses it from the leaves.

The attacker also knows the label, tries every possible value of the attribute, and picks the one for which the trees
agree most with the label. This works partly without any leak, because attribute and label are related in general. So
the attack is run on members (people in the training set) and on outsiders. The metric is how much more often the guess
is right for members, which only their rows can explain. Chance is 0.

For numbers, the guess is one of four bands that are equally common among outsiders. Categories are guessed exactly.
"""

import numpy as np

from silvan.auditing.findings import ATTACKS, Finding, mean_gap
from silvan.auditing.release import AuditedRows, Case, Release, leaf_of
from silvan.data.schema import Feature

COLUMNS = 5
"""Number of columns guessed, one at a time: those that trees use most."""

MOST_PEOPLE = 300

_BANDS = 4
_TRIES = 16
"""Values tried for a number: four in each band."""


def guess_attributes(release: Release, case: Case) -> Finding:
    """Guess the most used attributes, one at a time."""
    forest = release.forest
    people = [rows.some(MOST_PEOPLE, case.seed) for rows in (case.members, case.outsiders)]
    used = np.bincount(forest.feature[forest.feature >= 0], minlength=forest.n_features)
    hits: list[list[np.ndarray]] = [[], []]
    for f in np.argsort(-used, kind="stable")[:COLUMNS]:
        values, edges = _candidates(forest.schema.features[f], case.outsiders.X[:, f])
        if not used[f] or len(values) < 2:
            continue
        for rows, right in zip(people, hits, strict=True):
            guess = _guess(release, rows, int(f), values)
            hit = np.searchsorted(edges, guess) == np.searchsorted(edges, rows.X[:, f])
            right.append(np.where(np.isnan(rows.X[:, f]), np.nan, hit))
    finding = ATTACKS["attribute"]
    if not hits[0]:
        return finding.not_run("there is no column to guess: the trees use no column that varies")
    ours, others = (_by_person(np.stack(right)) for right in hits)
    note = f"right for {ours.mean():.0%} of members and {others.mean():.0%} of others"
    return finding.with_result(mean_gap(ours, others), sum(map(len, people)), note)


def _by_person(right: np.ndarray) -> np.ndarray:
    """Return the share of attributes guessed for each person, without those who have nothing to guess."""
    known = ~np.isnan(right)
    kept = known.any(axis=0)
    shares: np.ndarray = np.nansum(right[:, kept], axis=0) / known[:, kept].sum(axis=0)
    return shares


def _candidates(feature: Feature, column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values to try, and the upper ends of all bands except the last."""
    known = column[~np.isnan(column)]
    values = np.unique(known)
    if feature.categorical or len(values) <= _BANDS:
        return values, values[:-1]
    edges = np.unique(np.quantile(known, np.arange(1, _BANDS) / _BANDS, method="inverted_cdf"))
    tries = np.quantile(known, (np.arange(_TRIES) + 0.5) / _TRIES, method="inverted_cdf")
    return np.unique(tries).astype(np.float32), edges


def _guess(release: Release, rows: AuditedRows, f: int, values: np.ndarray) -> np.ndarray:
    """Return for each person the value for which leaves agree most with the label; the middle one of equals."""
    agreement = np.empty((len(values), len(rows)))
    for i, value in enumerate(values):
        X = rows.X.copy()
        X[:, f] = value
        agreement[i] = _agreement(release, X, rows.y)
    best = agreement >= agreement.max(axis=0) - 1e-12
    middle = (best.cumsum(axis=0) * 2 >= best.sum(axis=0)).argmax(axis=0)
    return values[middle]


def _agreement(release: Release, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    forest = release.forest
    leaves = leaf_of(forest, X)[forest.weights > 0]
    if forest.classes is None:
        return np.asarray(-np.abs(forest.value[leaves, 0] - y).mean(axis=0))
    return np.asarray(forest.value[leaves, y].mean(axis=0))
