"""Attacks on the training rows of a forest: they succeed without the defence, and fall to chance with it."""

from dataclasses import replace

import numpy as np
import pytest
from experiments.attacks import labels_from_leaves as known_columns
from helpers.audit_cases import case, off, on
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.auditing.attribute import guess_attributes
from silvan.auditing.drill import release_of
from silvan.auditing.labels_from_leaves import labels_from_leaves
from silvan.auditing.membership import membership_by_confidence, membership_by_support, private_bound
from silvan.auditing.release import AuditedRows, Case, Release, leaf_of, undefended_release
from silvan.auditing.run_audit import seen_by_trees
from silvan.auditing.single_row_leaves import single_row_leaves
from silvan.auditing.thresholds import exact_thresholds
from silvan.tree.fit import Settings
from silvan.tree.sampling import make_key, rows_of_trees


@pytest.mark.parametrize(("attack", "found"), [(membership_by_confidence, 0.7), (membership_by_support, 0.8)])
def test_members_are_distinguished_from_others(attack, found):
    assert attack(off(), case()).low > found
    assert attack(on(2), case()).value < attack(off(), case()).value - 0.05
    held = attack(on(25), case())
    assert held.value < 0.6
    assert held.low < 0.55


def test_counts_reveal_more_than_bare_trees():
    bare = Release(off().forest)
    assert membership_by_support(bare, case()).value < membership_by_support(off(), case()).value - 0.05


def test_an_uninformative_forest_reveals_nothing():
    flat = replace(off().forest, value=np.full(off().forest.value.shape, 0.5))
    assert membership_by_confidence(Release(flat), case()).value == 0.5


def test_no_attacker_beats_differential_privacy():
    """The best possible attacker reaches the bound: randomised response, read from its answer."""
    epsilon = 1.5
    truth = 1 / (1 + np.exp(-epsilon))
    rng = np.random.default_rng(0)
    member, other = rng.random(200_000) < truth, rng.random(200_000) < 1 - truth
    auc = (member.mean() * (1 - other.mean())) + 0.5 * (
        member.mean() * other.mean() + (1 - member.mean()) * (1 - other.mean())
    )
    assert auc == pytest.approx(private_bound(epsilon), abs=0.005)


def test_attributes_are_guessed_for_members_only():
    found, held = guess_attributes(off(), case()), guess_attributes(on(25), case())
    assert found.low > 0.08
    assert abs(held.value) < 0.08


def test_leaves_of_one_row():
    assert single_row_leaves(off(), case()).value > 0.2
    assert single_row_leaves(on(2), case()).value == 0.0
    drawn = rows_of_trees(make_key(0, "rows of a drill"), np.arange(200, dtype=np.uint64), 0, 30, True)
    held = single_row_leaves(on(5), case(), drawn)
    assert held.note == "the smallest leaf holds 5 rows"
    assert held.low is None  # all leaves are counted


def test_thresholds_reveal_values_unless_they_are_on_the_grid():
    assert exact_thresholds(off(), case()).low > 0.8
    assert abs(exact_thresholds(on(2), case()).value) < 0.05


def test_round_values_do_not_count_as_a_finding():
    """If all values are integers, midpoints coincide, for outsiders as well."""
    rounded = replace(
        case(),
        members=replace(case().members, X=np.rint(4 * case().members.X)),
        outsiders=replace(case().outsiders, X=np.rint(4 * case().outsiders.X)),
    )
    found = exact_thresholds(undefended_release(rounded.members, 2, 30, 0), rounded)
    assert abs(found.value) < 0.05


def test_equal_seeds_give_equal_results():
    for attack in (membership_by_confidence, membership_by_support, guess_attributes, exact_thresholds):
        assert attack(on(2), case()) == attack(on(2), case())


def test_a_control_has_the_counts_of_its_trees():
    release = off(bootstrap=False)
    leaves = leaf_of(release.forest, case().members.X)
    held = np.bincount(leaves.reshape(-1), minlength=len(release.counts))
    assert np.array_equal(release.counts.sum(axis=1), held)
    share = release.counts / held[:, None]
    assert np.allclose(share, release.forest.value)


# -- labels by least squares


def flips(n=200, seed=0):
    """Labels that no column predicts."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(2 * n, 4)).astype(np.float32), rng.integers(0, 2, 2 * n)
    return Case(AuditedRows(X[:n], y[:n]), AuditedRows(X[n:], y[n:]))


def grown(leaf, trees=100, bootstrap=True):
    settings = Settings(n_estimators=trees, min_samples_leaf=leaf, bootstrap=bootstrap)
    return release_of(flips().members, settings, 0)


def test_labels_follow_from_leaves():
    open_ = labels_from_leaves(undefended_release(flips().members, 2, 50, 0), flips())
    assert open_.low > 0.75
    assert "100% of labels" in open_.note
    honest = labels_from_leaves(grown(2), flips())
    assert honest.value > 0.95
    exact, drawn = (labels_from_leaves(grown(20, bootstrap=draws), flips()) for draws in (False, True))
    assert exact.value > drawn.value + 0.2
    assert drawn.value > labels_from_leaves(grown(20, trees=10), flips()).value + 0.1


def test_a_forest_without_row_counts_reveals_no_labels():
    flat = grown(2).forest
    flat = replace(flat, value=np.full(flat.value.shape, 0.5))
    found = labels_from_leaves(Release(flat), flips())
    assert found.low <= 0 <= found.high


def test_numbers_follow_from_leaves():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 4)).astype(np.float32), rng.normal(size=200)
    rows = Case(AuditedRows(X[:100], y[:100]), AuditedRows(X[100:], y[100:]))
    assert labels_from_leaves(undefended_release(rows.members, 0, 50, 0, bootstrap=False), rows).low > 0.6


def test_votes_are_not_read_as_shares():
    voting = replace(
        undefended_release(flips().members, 2, 2, 0).forest, combine="stages", group=np.arange(2), say=np.ones(2)
    )
    assert "votes" in labels_from_leaves(Release(voting), flips()).note


def test_equations_use_rows_of_the_trees_sites():
    fed = federate(parts(table(n=120), 3))
    for model in (sv.MergedForest(6, max_depth=3), sv.MergedForest(6, max_depth=3, refit_leaves=True)):
        forest = model.fit(fed).forest_
        seen = seen_by_trees(model, fed, forest)
        own = np.repeat([0, 1, 2], 2)[:, None] == np.repeat([0, 1, 2], list(fed.rows.values()))
        assert np.array_equal(seen, ~own if model.refit_leaves else own)
    whole = sv.HistogramForest(3, max_depth=2).fit(fed)
    assert seen_by_trees(whole, fed, whole.forest_).all()
    assert seen_by_trees(whole, fed, forest) is None


def test_approved_message_kinds_reveal_labels_if_sites_ignore_the_study_text():
    assert min(known_columns.unheld().values()) > 0.9  # tests/attacks tries the same with these checks on
