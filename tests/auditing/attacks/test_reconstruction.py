"""Tables rebuilt from what leaves tell: nearly whole from counts, hardly at all from bare trees of drawn rows."""

from dataclasses import replace

import numpy as np
from helpers.audit_cases import case, off, on

from silvan.auditing.attacks import rebuild_from_boxes, rebuild_from_counts
from silvan.auditing.drill import release_of
from silvan.auditing.release import Case, Release, Rows, leaf_of, undefended
from silvan.privacy.gate.leaf_noise import rounded
from silvan.tree.fit import Settings

SMALL = {"binary": True, "n": 30, "trees": 12}


def test_counts_give_the_table_away():
    whole = rebuild_from_counts.rebuilt_from_counts(off(bootstrap=False, **SMALL), case(binary=True, n=30))
    assert whole.value > 0.85
    found = rebuild_from_counts.solve(
        off(bootstrap=False, **SMALL), case(binary=True, n=30).members.y, case(binary=True).outsiders
    )
    assert found.shape == case(binary=True, n=30).members.X.shape


def test_without_counts_keyed_draws_hide_it():
    """Exact shares alone give most of it away if every tree sees every row; who does not know the draws gets little."""
    plain = rebuild_from_counts.rebuilt_from_counts(on(2, bootstrap=False, **SMALL), case(binary=True, n=30))
    drawn = rebuild_from_counts.rebuilt_from_counts(on(5, **SMALL), case(binary=True, n=30))
    assert plain.value > 0.5
    assert drawn.value < 0.25


def test_a_table_that_is_found_breaks_nothing():
    release = off(bootstrap=False, **SMALL)
    few = case(binary=True, n=30)
    found = rebuild_from_counts.solve(release, few.members.y, few.outsiders)
    leaves = leaf_of(release.forest, found.astype(np.float32))
    y = np.sort(few.members.y)
    again = np.zeros_like(release.counts)
    np.add.at(again, (leaves, np.broadcast_to(y, leaves.shape)), 1)
    assert np.array_equal(again, release.counts)


def test_rounding_is_known_to_the_attacker():
    release = on(2, bootstrap=False, **SMALL)
    blurred = Release(replace(release.forest, value=rounded(release.forest.value, 1, True)))
    replies = rebuild_from_counts.rebuilt_from_counts(blurred, case(binary=True, n=30), digits=1)
    assert replies.value < rebuild_from_counts.rebuilt_from_counts(release, case(binary=True, n=30)).value + 0.05


def test_boxes_give_rows_away():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(size=(300, 3)).astype(np.float32), rng.integers(0, 2, 300)
    few = Case(Rows(X[:30], y[:30]), Rows(X[30:], y[30:]))
    open_ = rebuild_from_boxes.rebuilt(undefended(few.members, 2, 100, 0, bootstrap=False), few)
    held = rebuild_from_boxes.rebuilt(release_of(few.members, Settings(n_estimators=100, min_samples_leaf=5), 0), few)
    assert open_.value > 0.3
    assert open_.low > 0.1
    assert held.value < 0.15


def test_boxes_of_leaves_hold_the_rows_that_end_there():
    release, members = off(), case().members
    ends = np.stack([members.X.min(axis=0) - 1, members.X.max(axis=0) + 1])
    low, high, leaves = rebuild_from_boxes.leaf_boxes(release.forest, 3, ends)
    scaled = (members.X - ends[0]) / (ends[1] - ends[0])
    ends_at = leaf_of(release.forest, members.X)[3]
    box = np.searchsorted(leaves, ends_at)
    assert np.array_equal(leaves[box], ends_at)
    assert (scaled >= low[box] - 1e-6).all()
    assert (scaled <= high[box] + 1e-6).all()
