"""A small table whose labels are half noise, so that trees memorise rows, and releases of it."""

from functools import cache

import numpy as np

from silvan.auditing.drill import release_of
from silvan.auditing.release import AuditedRows, Case, Release, undefended_release
from silvan.tree.fit import Settings

N = 200


@cache
def case(seed: int = 0, binary: bool = False, n: int = N) -> Case:
    """Members and non-members from one population."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(2 * N, 5)).astype(np.float32)
    y = ((X[:, 0] + X[:, 1] + rng.normal(size=2 * N)) > 0).astype(np.int64)
    if binary:
        X = (X > 0).astype(np.float32)
    return Case(AuditedRows(X[:n], y[:n]), AuditedRows(X[N:], y[N:]), seed)


@cache
def off(seed: int = 0, binary: bool = False, n: int = N, trees: int = 30, bootstrap: bool = True) -> Release:
    """A release with every defence off."""
    return undefended_release(case(seed, binary, n).members, 2, trees, seed, bootstrap=bootstrap)


@cache
def on(leaf: int, seed: int = 0, binary: bool = False, n: int = N, trees: int = 30, bootstrap: bool = True) -> Release:
    """Bare trees with a minimum leaf size, on the grid."""
    settings = Settings(n_estimators=trees, min_samples_leaf=leaf, bootstrap=bootstrap)
    return release_of(case(seed, binary, n).members, settings, seed)
