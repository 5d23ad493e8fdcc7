"""Reconstruction from counts, as in DRAFT (arXiv 2402.19232): find a table that fits all leaves.

The attacker has the trees, knows that all columns are yes/no and the number of rows of each class, and looks for a
table with the stated rows in every leaf of every tree. With yes/no columns, a table is the number of rows of each class
with each pattern of values. Each leaf is a linear equation in these numbers, and an integer programming solver finds
numbers that violate the equations least. With counts, an equation fixes the number of rows; with shares, it fixes the
share of a class, and there is at least one row. The publication uses a constraint solver and also handles trees that
sample rows with replacement; here such equations may be violated.

The table is matched one-to-one with the members. A table sampled column by column from the population also gets most
cells right; the metric is the share of the other cells that the attacker gets right. Chance is 0, and 1 is the whole
table. Small scale: ``ROWS`` rows of ``COLUMNS`` columns.
"""

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from silvan.auditing.findings import ATTACKS, Finding, cells_found
from silvan.auditing.release import AuditedRows, Case, Release, leaf_of
from silvan.forest.forest import Forest

ROWS = 30
COLUMNS = 6
TREES = 12
NODES = 25
"""The solver stops after this many branches rather than by the clock, so that a seed determines the table."""

ROUNDING = 0.5e-12
"""Rounding error of leaf values, which are floating-point shares."""

_PRIOR = 1e-3


def reconstruct_from_counts(release: Release, case: Case) -> Finding:
    """Find a table that explains the leaves, and compare it with the members."""
    rebuilt = solve(release, case.members.y, case.outsiders)
    rng, members = np.random.default_rng(case.seed), case.members.X > 0.5
    ours = cells_found(rebuilt[:, None] == members)
    others = np.mean([cells_found(_drawn(case, rng)[:, None] == members) for _ in range(10)], axis=0)
    return ATTACKS["reconstruction"].with_cells(ours, others)


def solve(release: Release, y: np.ndarray, people: AuditedRows) -> np.ndarray:
    """Return the rows, bool (rows, columns), that violate the leaves least; among equals the most likely ones."""
    forest = release.forest
    d, k, totals = forest.n_features, forest.schema.n_classes, np.bincount(y, minlength=forest.schema.n_classes)
    patterns = (np.arange(2**d)[:, None] >> np.arange(d) & 1).astype(np.float32)
    used, ends_in = _ends_in(forest, patterns)
    if release.counts is not None:
        equations = sparse.kron(sparse.identity(k), ends_in)
        target, room = release.counts[used].T.reshape(-1).astype(np.float64), 0.0
    else:
        # in a leaf, the rows of class c minus their share of all rows is zero
        blocks = [
            [sparse.diags_array(float(c == i) - forest.value[used, c]) @ ends_in for i in range(k)]
            for c in range(k - 1)
        ]
        equations = sparse.block_array(blocks)
        target, room = np.zeros(len(used) * (k - 1)), ROUNDING * len(y)
    m, n = equations.shape
    eye, none = sparse.identity(m), sparse.coo_array
    constraints = [
        # violations upwards and downwards are added and subtracted
        LinearConstraint(sparse.hstack([equations, eye, -eye]), target - room, target + room),
        LinearConstraint(
            sparse.hstack([sparse.kron(sparse.identity(k), np.ones((1, len(patterns)))), none((k, 2 * m))]),
            totals,
            totals,
        ),
        LinearConstraint(sparse.hstack([*[ends_in] * k, none((len(used), 2 * m))]), 1, np.inf),
    ]
    solved = milp(
        np.concatenate([_PRIOR * _unlikely(patterns, people, k), np.ones(2 * m)]),
        integrality=np.concatenate([np.ones(n), np.zeros(2 * m)]),
        bounds=Bounds(0, np.concatenate([np.repeat(totals, len(patterns)), np.full(2 * m, np.inf)])),
        constraints=constraints,
        options={"node_limit": NODES, "mip_rel_gap": 0.05},
    )
    if solved.x is None:  # no table within the allowed branches: use the most likely patterns
        often = np.zeros((k, len(patterns)), np.int64)
        often[np.arange(k), _unlikely(patterns, people, k).reshape(k, -1).argmin(axis=1)] = totals
    else:
        often = np.rint(solved.x[:n]).astype(np.int64).reshape(k, -1)
    return np.concatenate([np.repeat(patterns > 0.5, often[c], axis=0) for c in range(k)])


def _ends_in(forest: Forest, patterns: np.ndarray) -> tuple[np.ndarray, sparse.csr_array]:
    """Return the leaves that patterns reach, and which pattern reaches which leaf: (leaves, patterns)."""
    leaves = leaf_of(forest, patterns)[np.flatnonzero(forest.weights > 0)[:TREES]]
    used, place = np.unique(leaves, return_inverse=True)
    cells = (place.reshape(-1), np.tile(np.arange(len(patterns)), len(leaves)))
    return used, sparse.coo_array((np.ones(len(cells[0])), cells), shape=(len(used), len(patterns))).tocsr()


def _unlikely(patterns: np.ndarray, people: AuditedRows, k: int) -> np.ndarray:
    """Return the negative log-likelihood of each pattern in each class of the population, for independent columns."""
    costs = []
    for c in range(k):
        alike = people.X[people.y == c] > 0.5
        share = (alike.sum(axis=0) + 1) / (len(alike) + 2)
        costs.append(-(patterns * np.log(share) + (1 - patterns) * np.log(1 - share)).sum(axis=1))
    return np.concatenate(costs)


def _drawn(case: Case, rng: np.random.Generator) -> np.ndarray:
    """Sample a table column by column from the population, class by class."""
    tables = []
    for label, n in zip(*np.unique(case.members.y, return_counts=True), strict=True):
        alike = case.outsiders.X[case.outsiders.y == label]
        share = (alike > 0.5).mean(axis=0) if len(alike) else np.full(case.outsiders.X.shape[1], 0.5)
        tables.append(rng.random((n, len(share))) < share)
    return np.concatenate(tables)
