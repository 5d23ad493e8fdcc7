"""Tables reconstructed from leaves: nearly whole from counts, hardly at all from bare trees on sampled rows."""

from functools import cache

import numpy as np
from helpers.audit_cases import case, off, on

from silvan.auditing.drill import release_of
from silvan.auditing.rebuild_from_boxes import leaf_boxes, reconstruct_from_boxes
from silvan.auditing.rebuild_from_counts import reconstruct_from_counts, solve
from silvan.auditing.release import AuditedRows, Case, leaf_of, undefended_release
from silvan.tree.fit import Settings

SMALL = {"binary": True, "n": 30, "trees": 12}


@cache
def few():
    return case(binary=True, n=30)


@cache
def from_all_rows():
    """What exact shares reveal if every tree uses every row."""
    return reconstruct_from_counts(on(2, bootstrap=False, **SMALL), few())


def test_counts_reveal_the_table():
    assert reconstruct_from_counts(off(bootstrap=False, **SMALL), few()).value > 0.85


def test_without_counts_keyed_sampling_hides_the_table():
    """Exact shares reveal most of the table if every tree uses every row; without the samples, they reveal little."""
    assert from_all_rows().value > 0.5
    assert reconstruct_from_counts(on(5, **SMALL), few()).value < 0.25


def test_a_table_without_secrets():
    release = off(bootstrap=False, **SMALL)
    found = solve(release, few().members.y, few().outsiders)
    assert found.shape == few().members.X.shape
    leaves = leaf_of(release.forest, found.astype(np.float32))
    y = np.sort(few().members.y)
    again = np.zeros_like(release.counts)
    np.add.at(again, (leaves, np.broadcast_to(y, leaves.shape)), 1)
    assert np.array_equal(again, release.counts)


def test_boxes_reveal_rows():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(300, 3)).astype(np.float32), rng.integers(0, 2, 300)
    small = Case(AuditedRows(X[:30], y[:30]), AuditedRows(X[30:], y[30:]))
    open_ = reconstruct_from_boxes(undefended_release(small.members, 2, 100, 0, bootstrap=False), small)
    settings = Settings(n_estimators=100, min_samples_leaf=5)
    held = reconstruct_from_boxes(release_of(small.members, settings, 0), small)
    assert open_.value > 0.3
    assert open_.low > 0.1
    assert held.value < 0.15


def test_boxes_of_leaves_contain_their_rows():
    release, members = off(), case().members
    ends = np.stack([members.X.min(axis=0) - 1, members.X.max(axis=0) + 1])
    low, high, leaves = leaf_boxes(release.forest, 3, ends)
    scaled = (members.X - ends[0]) / (ends[1] - ends[0])
    ends_at = leaf_of(release.forest, members.X)[3]
    box = np.searchsorted(leaves, ends_at)
    assert np.array_equal(leaves[box], ends_at)
    assert (scaled >= low[box] - 1e-6).all()
    assert (scaled <= high[box] + 1e-6).all()
