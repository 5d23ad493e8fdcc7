"""A release as an attacker sees it, the rows of an audit, and a release without any defence."""

from dataclasses import dataclass

import numpy as np
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.part import Part
from silvan.forest.forest import Forest
from silvan.forest.predict import leaves_of

MOST_ROWS = 2000
"""An audit uses at most this many members and as many others: enough for an interval of a few hundredths."""

FEWEST = 10


@dataclass(frozen=True)
class AuditedRows:
    """Encoded rows, and their class codes or numbers."""

    X: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.X)

    def some(self, n: int, seed: int) -> "AuditedRows":
        """Sample at most n of the rows."""
        if len(self) <= n:
            return self
        chosen = np.sort(np.random.default_rng(seed).permutation(len(self))[:n])
        return AuditedRows(self.X[chosen], self.y[chosen])


@dataclass(frozen=True)
class Release:
    """A forest, and the rows of each class in its leaves if these are released too.

    ``counts`` is (leaves, classes), or (leaves, 1) for regression; None for bare trees.
    """

    forest: Forest
    counts: np.ndarray | None = None


@dataclass(frozen=True)
class Case:
    """The rows of an audit: members (training rows of the release) and outsiders of the same kind."""

    members: AuditedRows
    outsiders: AuditedRows
    seed: int = 0


def undefended_release(
    members: AuditedRows, n_classes: int, n_trees: int, seed: int, *, bootstrap: bool = True
) -> Release:
    """Grow a release without any defence: leaves of one row, thresholds midway between values, exact counts."""
    kind = RandomForestClassifier if n_classes else RandomForestRegressor
    model = kind(n_estimators=n_trees, min_samples_leaf=1, bootstrap=bootstrap, random_state=seed, n_jobs=1)
    forest = Forest.from_sklearn(model.fit(members.X, members.y))
    if n_classes and forest.n_outputs < n_classes:
        raise InputError(f"the rows hold {forest.n_outputs} of {n_classes} classes; an audit needs some of each")
    leaves, n_leaves = leaf_of(forest, members.X), len(forest.value)
    counts = np.zeros((n_leaves, max(n_classes, 1)), np.int64)
    # count the rows that each tree sampled, not all rows that reach its leaves
    sampled = [np.bincount(rows, minlength=len(members)) for rows in model.estimators_samples_] if bootstrap else []
    for tree, times in enumerate(sampled or [np.ones(len(members), np.int64)] * n_trees):
        np.add.at(counts, (leaves[tree], members.y if n_classes else np.zeros(len(members), np.int64)), times)
    return Release(forest, counts)


def leaf_nodes(forest: Forest, X: np.ndarray) -> np.ndarray:
    """Return the leaf node that each row reaches in each tree: (trees, rows)."""
    return leaves_of(forest, X, 1).T + forest.offsets[:-1, None]


def leaf_of(forest: Forest, X: np.ndarray) -> np.ndarray:
    """Return the leaf (row of ``value``) that each row reaches in each tree: (trees, rows)."""
    return forest.leaf[leaf_nodes(forest, X)]


def stated_shares(forest: Forest, X: np.ndarray) -> np.ndarray:
    """Return the shares of classes, or the numbers, stated by leaves; ``X`` are rows of the population.

    Log-odds of a leaf are interpreted as one Newton step from the shares of all rows.
    """
    if forest.combine != "log_odds":
        return forest.value
    shares = forest.scores(X, 1).mean(axis=0)
    stated: np.ndarray = (shares + shares * (1.0 - shares) * forest.value).clip(0.0, 1.0)
    return stated


def case_of(federation: Federation, schema: Schema, seed: int) -> Case:
    """Return the case of a federation in this process, with training rows as members and test rows as outsiders."""
    sites = [federation.site(name) for name in federation.active]
    parts = [Part.joined([site.part(schema, test=test) for site in sites]) for test in (False, True)]
    members, outsiders = (AuditedRows(part.X, part.y) for part in parts)
    return Case(members, outsiders, seed)
