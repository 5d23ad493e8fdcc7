"""Reconstruction from counts, in the manner of DRAFT (arXiv 2402.19232): find a table that fits all leaves.

The attacker has the trees, knows that all columns are yes/no and how many rows of each class there are, and looks for a
table that has, in every leaf of every tree, the rows that the leaf says. With yes/no columns a table is how often each
pattern of answers occurs in each class; every leaf is a linear equation of these numbers, and a solver of integer
programs finds numbers that break the equations least. Given counts, an equation is "so many rows"; given shares alone,
it is "rows of this class are such a share of all here", and at least one row. The publication does the same with a
constraint solver, and for trees that drew rows with replacement as well, where little is left to do here but to let
equations be broken.

Success: the table found is matched with the members one to one. A table drawn column by column from the population
gets most cells right as well; the figure is the share of the others that the attacker gets right. Chance is 0, and 1
is the whole table. Small scale: ``ROWS`` rows of ``COLUMNS`` columns.
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
"""The solver stops after so many branches: not by the clock, so that the same seed gives the same table."""

ROUNDING = 0.5e-12
"""Leaf values are shares in floating point."""

_PRIOR = 1e-3


def reconstruct_from_counts(release: Release, case: Case) -> Finding:
    """Find a table that the leaves can come from, and compare it with the members."""
    found = solve(release, case.members.y, case.outsiders)
    rng, members = np.random.default_rng(case.seed), case.members.X > 0.5
    ours = cells_found(found[:, None] == members)
    others = np.mean([cells_found(_drawn(case, rng)[:, None] == members) for _ in range(10)], axis=0)
    return ATTACKS["reconstruction"].with_cells(ours, others)


def solve(release: Release, y: np.ndarray, people: AuditedRows) -> np.ndarray:
    """Return the rows, bool (rows, columns), that violate the leaves least; of equal ones the likeliest."""
    forest = release.forest
    d, k, totals = forest.n_features, forest.schema.n_classes, np.bincount(y, minlength=forest.schema.n_classes)
    patterns = (np.arange(2**d)[:, None] >> np.arange(d) & 1).astype(np.float32)
    used, ends_in = _ends_in(forest, patterns)
    if release.counts is not None:
        equations = sparse.kron(sparse.identity(k), ends_in)
        target, room = release.counts[used].T.reshape(-1).astype(np.float64), 0.0
    else:
        # rows of class c here, less the share of c times all rows here, are none
        blocks = [
            [sparse.diags_array(float(c == i) - forest.value[used, c]) @ ends_in for i in range(k)]
            for c in range(k - 1)
        ]
        equations = sparse.block_array(blocks)
        target, room = np.zeros(len(used) * (k - 1)), ROUNDING * len(y)
    m, n = equations.shape
    eye, none = sparse.identity(m), sparse.coo_array
    constraints = [
        # what is broken upwards and downwards is added and taken off
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
    if solved.x is None:  # no table at all within the branches allowed: the likeliest patterns
        often = np.zeros((k, len(patterns)), np.int64)
        often[np.arange(k), _unlikely(patterns, people, k).reshape(k, -1).argmin(axis=1)] = totals
    else:
        often = np.rint(solved.x[:n]).astype(np.int64).reshape(k, -1)
    return np.concatenate([np.repeat(patterns > 0.5, often[c], axis=0) for c in range(k)])


def _ends_in(forest: Forest, patterns: np.ndarray) -> tuple[np.ndarray, sparse.csr_array]:
    """Return the leaves that patterns end in, and which pattern ends in which: (leaves, patterns)."""
    leaves = leaf_of(forest, patterns)[np.flatnonzero(forest.weights > 0)[:TREES]]
    used, place = np.unique(leaves, return_inverse=True)
    cells = (place.reshape(-1), np.tile(np.arange(len(patterns)), len(leaves)))
    return used, sparse.coo_array((np.ones(len(cells[0])), cells), shape=(len(used), len(patterns))).tocsr()


def _unlikely(patterns: np.ndarray, people: AuditedRows, k: int) -> np.ndarray:
    """Return minus the log-likelihood of each pattern in each class of the population, columns taken as independent."""
    costs = []
    for c in range(k):
        alike = people.X[people.y == c] > 0.5
        share = (alike.sum(axis=0) + 1) / (len(alike) + 2)
        costs.append(-(patterns * np.log(share) + (1 - patterns) * np.log(1 - share)).sum(axis=1))
    return np.concatenate(costs)


def _drawn(case: Case, rng: np.random.Generator) -> np.ndarray:
    """Draw a table column by column from the population, class by class."""
    tables = []
    for label, n in zip(*np.unique(case.members.y, return_counts=True), strict=True):
        alike = case.outsiders.X[case.outsiders.y == label]
        share = (alike > 0.5).mean(axis=0) if len(alike) else np.full(case.outsiders.X.shape[1], 0.5)
        tables.append(rng.random((n, len(share))) < share)
    return np.concatenate(tables)
