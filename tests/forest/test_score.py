"""Trees scored one by one, compared with a naive version that sends each row down each tree."""

from dataclasses import replace

import numpy as np
import pytest
from helpers import naive_answers as naive
from helpers.examples import examples
from helpers.forests import CLASSES, MIXED, NUMBERS, random_forest, random_rows
from hypothesis import given
from hypothesis import strategies as st

from silvan.errors import InputError
from silvan.forest import flow, predict, small_trees, tree_cuts
from silvan.forest import score as scoring
from silvan.forest.forest import join_forests
from silvan.forest.noted_leaves import bytes_noted, make_noted
from silvan.forest.score import ERROR_CAP, score_numbers, score_trees
from silvan.forest.walk import pack

several = st.sampled_from([n for n in CLASSES if n > 0])
schemas = st.sampled_from([NUMBERS, MIXED])


def unseen_scores(forest, X, seen, absent=None, n_jobs=None, trees=None):
    """Means and votes of the trees that did not sample a row."""
    lines = None
    if trees is not None:
        lines = np.full(len(forest), -1)
        lines[trees] = np.arange(len(trees))
    total = predict.tally(forest, X, predict.voting_weights(forest, absent), n_jobs, skip=seen, skipping=lines)
    return total.means(), total.votes


def some_absent(forest, rng):
    return None if rng.random() < 0.5 else rng.random(forest.n_features) < 0.3


@examples(30)
@given(
    seed=st.integers(0, 2**32), schema=schemas, n_classes=several, n_rows=st.integers(0, 70), n_jobs=st.integers(1, 3)
)
def test_confusions_match_the_naive_version(seed, schema, n_classes, n_rows, n_jobs):
    rng = np.random.default_rng(seed)
    forest = random_forest(seed, schema=schema, n_classes=n_classes, n_trees=int(rng.integers(1, 6)))
    X, y = random_rows(forest, seed, n=n_rows), rng.integers(0, n_classes, n_rows)
    absent = some_absent(forest, rng)
    got = score_trees(forest, X, y, absent, n_jobs)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, naive.confusions(forest, X, y, absent))


@examples(30)
@given(seed=st.integers(0, 2**32), schema=schemas, n_rows=st.integers(0, 70), bits=st.integers(-4, 60))
def test_errors_match_the_naive_version(seed, schema, n_rows, bits):
    rng = np.random.default_rng(seed)
    forest = random_forest(seed, schema=schema, n_classes=0, n_trees=int(rng.integers(1, 6)))
    X, y = random_rows(forest, seed, n=n_rows), rng.normal(size=n_rows)
    absent = some_absent(forest, rng)
    got = score_numbers(forest, X, y, 2.0**bits, absent, n_jobs=1)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, naive.errors(forest, X, y, 2.0**bits, ERROR_CAP, absent))


def many_rows(forest, n):
    """A few rows repeated, and the leaf of each in each tree."""
    few = random_rows(forest, 1, n=997)
    again = np.arange(n) % len(few)
    return few[again], naive.leaves(forest, few)[:, again]


@pytest.mark.parametrize("n", [1, 63, 64, 65, 8191, 8192, 8193, flow.ROWS + 700])
@pytest.mark.parametrize("way", ["masks", "lists"])
def test_counts_of_many_rows(way, n, monkeypatch):
    forest = random_forest(1, schema=NUMBERS, n_classes=3)
    X, leaves = many_rows(forest, n)
    y = np.arange(n) ** 2 % 3
    expected = np.zeros((len(forest), 3, 3), int)
    for t, votes in enumerate(forest.value.argmax(axis=1)[leaves]):
        np.add.at(expected[t], (y, votes), 1)
    other = {"masks": "_count_labels", "lists": "count_by_masks"}[way]
    monkeypatch.setattr(scoring, other, None)
    if way == "lists":
        monkeypatch.setattr(small_trees, "MOST_SPLITS", -1)
    np.testing.assert_array_equal(score_trees(forest, X, y), expected)


def test_masks_in_batches_and_short_masks(monkeypatch):
    forest = random_forest(2, n_classes=4, n_trees=40, max_nodes=31)
    X = random_rows(forest, 2, n=3000)
    y = np.arange(3000) % 4
    whole = score_trees(forest, X, y)
    # twenty cuts at a time, masks of 1,024 rows, and the order of 2,000 rows in memory
    monkeypatch.setattr(small_trees, "MOST_CUTS", 20)
    monkeypatch.setattr(small_trees, "WORDS", 16)
    monkeypatch.setattr(small_trees, "_MOST_ROWS", 2000)
    counts = []
    count = small_trees._count
    monkeypatch.setattr(small_trees, "_count", lambda *some: counts.append(some) or count(*some))
    np.testing.assert_array_equal(score_trees(forest, X, y, n_jobs=1), whole)
    batches = [some[6] for some in counts]
    assert len(batches) > 10
    assert sum(len(batch.trees) for batch in batches) == 2 * 40
    assert all(len(batch.listed) <= 20 or len(batch.trees) == 1 for batch in batches)
    assert {some[2] for some in counts} == {1024}


def test_large_trees_small_trees_and_splits_by_category_together(monkeypatch):
    forest = random_forest(3, schema=MIXED, n_classes=2, n_trees=60, max_nodes=15)
    monkeypatch.setattr(small_trees, "MOST_SPLITS", 3)
    small = small_trees.are_small(pack(forest))
    assert 6 < small.sum() < 50
    X, y = random_rows(forest, 3), np.arange(200) % 2
    np.testing.assert_array_equal(score_trees(forest, X, y), naive.confusions(forest, X, y))


def test_cuts_are_sorted_and_every_split_has_its_own_unless_all_below_vote_alike():
    forest = random_forest(4, n_trees=20)
    nodes = pack(forest)
    verdict = np.empty(len(forest.feature), np.int64)
    small_trees.add_verdicts(nodes, predict.leaf_votes(forest), verdict)
    cuts = tree_cuts.find_cuts(nodes, (verdict < 0) & (np.arange(len(verdict)) < forest.offsets[10]))
    splits = np.flatnonzero(forest.feature[: forest.offsets[10]] >= 0)
    inner = splits[verdict[splits] < 0]
    assert 0 < len(inner) < len(splits)
    for node in np.setdiff1d(splits, inner):
        assert verdict[node] == verdict[forest.left[node]] == verdict[forest.left[node] + 1]
    column = np.repeat(np.arange(len(cuts.features)), np.diff(cuts.starts))
    np.testing.assert_array_equal(cuts.features[column[cuts.cut[inner]]], forest.feature[inner])
    np.testing.assert_array_equal(cuts.threshold[cuts.cut[inner]], forest.threshold[inner])
    np.testing.assert_array_equal(cuts.missing_right[cuts.cut[inner]], ~forest.missing_left[inner])
    order = list(zip(column, cuts.threshold, cuts.missing_right, strict=True))
    assert order == sorted(set(order))


@examples(30)
@given(
    seed=st.integers(0, 2**32),
    schema=schemas,
    n_classes=st.sampled_from(list(CLASSES)),
    n_trees=st.sampled_from([3, 12]),
    n_jobs=st.integers(1, 2),
)
def test_leaves_are_recorded_while_trees_are_scored(seed, schema, n_classes, n_trees, n_jobs):
    rng = np.random.default_rng(seed)
    forest = random_forest(seed, schema=schema, n_classes=n_classes, n_trees=n_trees, equal_weights=False)
    X, absent = random_rows(forest, seed, n=150), some_absent(forest, rng)
    noted = make_noted(forest, np.flatnonzero(rng.random(150) < rng.choice([0.0, 0.5, 1.0])))
    if n_classes:
        y = rng.integers(0, n_classes, 150)
        got, plain = (score_trees(forest, X, y, absent, n_jobs, some) for some in (noted, None))
    else:
        y = rng.normal(size=150)
        got, plain = (score_numbers(forest, X, y, 64.0, absent, n_jobs, some) for some in (noted, None))
    np.testing.assert_array_equal(got, plain)
    first = np.concatenate([[0], np.cumsum((np.diff(forest.offsets) + 1) // 2)])[:-1]
    expected = naive.leaves(forest, X[noted.rows]) - first[:, None]
    asked = np.ones(n_trees, bool) if absent is None else ~predict.abstaining(forest, absent)
    np.testing.assert_array_equal(noted.leaves, np.where(asked[:, None], expected, 0))
    # predictions are equal bit for bit, with and without recorded leaves
    seen, lines = rng.random((3, len(noted.rows))) < 0.5, rng.integers(-1, 3, n_trees)
    weights, rows = np.where(asked, rng.random(n_trees), 0.0), X[noted.rows]
    if asked.any() and len(rows):
        again, added = (
            predict.tally(forest, rows, weights, n_jobs, votes=False, skip=seen, skipping=lines, leaves=leaves)
            for leaves in (None, noted.leaves)
        )
        assert again.values.tobytes() == added.values.tobytes()
        assert again.weight.tobytes() == added.weight.tobytes()


def test_leaves_of_deep_sparse_trees_are_recorded():
    """A comb with more turns than a path has bits: its rows are passed as lists."""
    n = 40
    feature = np.full(2 * n + 1, -1)
    feature[[0, *range(2, 2 * n, 2)]] = 0
    threshold = np.where(feature >= 0, np.cumsum(feature >= 0) - 1, 0)
    leaf = random_forest(1, schema=NUMBERS, n_classes=2, n_trees=1)
    value = np.linspace(0, 1, n + 1)
    comb = replace(
        leaf,
        offsets=[0, 2 * n + 1],
        feature=feature,
        threshold=threshold,
        missing_left=np.zeros(2 * n + 1, bool),
        sets=np.zeros((0, 4), np.uint64),
        value=np.stack([1 - value, value], axis=1),
        weights=[1.0],
    )
    many = join_forests([comb] * (comb.n_features + 1))
    X = np.zeros((n + 1, comb.n_features), np.float32)
    X[:, 0] = np.arange(n + 1)
    noted = make_noted(many, np.arange(n + 1))
    score_trees(many, X, np.zeros(n + 1, int), noted=noted)
    np.testing.assert_array_equal(noted.leaves, np.tile(naive.leaves(comb, X), (len(many), 1)))
    assert bytes_noted(many, 5) == 10 * len(many)


def test_errors_of_many_rows():
    forest = random_forest(1, schema=MIXED, n_classes=0)
    n = flow.ROWS + 700
    X, leaves = many_rows(forest, n)
    y = np.sin(np.arange(n))
    errors = np.rint((y - forest.value[leaves, 0]) ** 2 * 1024).astype(int).sum(axis=1)
    expected = np.stack([np.full(len(forest), n), errors], axis=1)
    np.testing.assert_array_equal(score_numbers(forest, X, y, 1024.0), expected)


@examples(30)
@given(seed=st.integers(0, 2**32), schema=schemas, n_classes=st.sampled_from(list(CLASSES)), vote=st.booleans())
def test_out_of_bag_scores_match_the_naive_version(seed, schema, n_classes, vote):
    rng = np.random.default_rng(seed)
    forest = random_forest(seed, schema=schema, n_classes=n_classes, n_trees=4, equal_weights=False)
    forest = replace(forest, combine="vote" if vote else "mean")
    X, absent = random_rows(forest, seed, n=80), some_absent(forest, rng)
    trees = rng.permutation(4)[: rng.integers(0, 5)]
    seen = np.zeros((4, 80), bool)
    seen[trees] = rng.random((len(trees), 80)) < 0.7
    scores, votes = unseen_scores(forest, X, seen[trees], absent, n_jobs=1, trees=trees)
    means, counted = naive.vote_answers(forest, X, absent if vote else None, seen)
    np.testing.assert_allclose(scores, means, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(votes, counted)
    prefix = unseen_scores(forest, X, seen[: trees.max(initial=-1) + 1], absent, n_jobs=2)
    np.testing.assert_array_equal(prefix[0], scores)
    np.testing.assert_array_equal(prefix[1], votes)


def test_if_all_trees_are_out_of_bag_scores_equal_the_forests():
    forest = replace(random_forest(2, schema=MIXED, n_classes=3, equal_weights=False), combine="vote")
    X = random_rows(forest, 2)
    scores, votes = unseen_scores(forest, X, np.zeros((0, len(X)), bool))
    np.testing.assert_array_equal(scores, predict.scores(forest, X))
    np.testing.assert_array_equal(votes.argmax(axis=1), predict.decide(forest, X))


def test_rows_in_every_sample_have_no_score():
    forest = replace(random_forest(3, n_classes=2), combine="vote")
    X = random_rows(forest, 3, n=10)
    scores, votes = unseen_scores(forest, X, np.ones((5, 10), bool))
    assert np.isnan(scores).all()
    assert not votes.any()


def test_sums_do_not_depend_on_how_rows_are_spread():
    forest = random_forest(4, schema=MIXED, n_classes=0)
    X, y = random_rows(forest, 4), np.random.default_rng(0).normal(size=200)
    parts = [score_numbers(forest, X[rows], y[rows], 4096.0) for rows in (slice(0, 7), slice(7, 90), slice(90, 200))]
    np.testing.assert_array_equal(sum(parts), score_numbers(forest, X, y, 4096.0))


def test_errors_beyond_measure_are_the_cap():
    forest = random_forest(5, n_classes=0)
    forest = replace(forest, value=np.full_like(forest.value, 1e300))
    got = score_numbers(forest, random_rows(forest, 5, n=3), np.array([-1e308, 0.0, 1e300]), 1.0)
    np.testing.assert_array_equal(got, np.tile([3, 2 * ERROR_CAP], (5, 1)))


# -- what kernels would trust


CLASSES_2 = random_forest(6, n_classes=2)
NUMBER = random_forest(6, n_classes=0)
X6 = random_rows(CLASSES_2, 6, n=20)
BAD = {
    "a code too high": (lambda: score_trees(CLASSES_2, X6, np.full(20, 2)), "between 0 and 1"),
    "a code below zero": (lambda: score_trees(CLASSES_2, X6, np.arange(20) % 2 - 1), "between 0 and 1"),
    "codes that are floats": (lambda: score_trees(CLASSES_2, X6, np.zeros(20)), "between 0 and 1"),
    "codes that wrap": (lambda: score_trees(CLASSES_2, X6, np.full(20, 2**63, np.uint64)), "between 0 and 1"),
    "y too short": (lambda: score_trees(CLASSES_2, X6, np.zeros(19, int)), "20 rows"),
    "y is a table": (lambda: score_trees(CLASSES_2, X6, np.zeros((20, 1), int)), "20 rows"),
    "a column too few": (lambda: score_trees(CLASSES_2, X6[:, :2], np.zeros(20, int)), "3 columns"),
    "64 bits": (lambda: score_trees(CLASSES_2, X6.astype(float), np.zeros(20, int)), "32-bit"),
    "a row, not a table": (lambda: score_trees(CLASSES_2, X6[0], np.zeros(3, int)), "3 columns"),
    "absent too short": (lambda: score_trees(CLASSES_2, X6, np.zeros(20, int), np.zeros(2, bool)), "3 entries"),
    "absent by number": (lambda: score_trees(CLASSES_2, X6, np.zeros(20, int), np.array([0, 1, 2])), "true or false"),
    "numbers for classes": (lambda: score_trees(NUMBER, X6, np.zeros(20, int)), "score_numbers"),
    "classes for numbers": (lambda: score_numbers(CLASSES_2, X6, np.zeros(20), 1.0), "score_trees"),
    "an endless y": (lambda: score_numbers(NUMBER, X6, np.full(20, np.inf), 1.0), "finite"),
    "a missing y": (lambda: score_numbers(NUMBER, X6, np.full(20, np.nan), 1.0), "finite"),
    "no scale": (lambda: score_numbers(NUMBER, X6, np.zeros(20), 0.0), "scale"),
    "NaN scale": (lambda: score_numbers(NUMBER, X6, np.zeros(20), np.nan), "scale"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused_before_any_kernel_runs(case, monkeypatch):
    for kernel in ("count_by_masks", "_count_labels", "_add_errors"):
        monkeypatch.setattr(scoring, kernel, None)
    call, message = BAD[case]
    with pytest.raises(InputError, match=message):
        call()


def test_stages_are_not_left_out_one_by_one():
    forest = replace(random_forest(7), combine="stages", group=[0, 0, 1, 1, 1], say=[1, 2])
    X = random_rows(forest, 7, n=5)
    with pytest.raises(InputError, match="stage"):
        predict.scores(forest, X, skip=np.zeros((5, 5), bool))
    assert score_trees(forest, X, np.zeros(5, int)).sum() == 25
