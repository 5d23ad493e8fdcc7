"""How trees are combined: votes with abstention and stages, compared with naive versions."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from helpers import naive_answers as naive
from helpers.examples import examples
from helpers.forests import CLASSES, MIXED, NUMBERS, random_forest, random_rows
from hypothesis import given
from hypothesis import strategies as st

from silvan.data.schema import Label, Schema
from silvan.errors import ExportError, FormatError, InputError, SchemaError
from silvan.forest import predict
from silvan.forest.arrays import ARRAYS
from silvan.forest.forest import Forest, join_forests

schemas = st.sampled_from([NUMBERS, MIXED])
kinds = st.sampled_from(list(CLASSES))
several = st.sampled_from([n for n in CLASSES if n > 0])


def voting(seed, **parameters):
    """A forest whose trees vote, with few distinct weights: votes are often equal, and some weights are 0."""
    forest = random_forest(seed, **parameters)
    weights = np.random.default_rng(seed).integers(0, 3, len(forest)).astype(float)
    return replace(forest, combine="vote", weights=weights if weights.any() else weights + 1)


def staged(seed, **parameters):
    """A forest of stages of one to a few trees, ties included."""
    forest = random_forest(seed, **parameters)
    rng = np.random.default_rng(seed)
    group = np.cumsum(np.append(0, rng.random(len(forest) - 1) < 0.5))
    weights = rng.integers(0, 3, len(forest)).astype(float)
    for stage in range(group[-1] + 1):
        if not weights[group == stage].any():
            weights[group == stage] = 1.0
    say = rng.integers(0, 4, group[-1] + 1) / 2
    return replace(forest, combine="stages", weights=weights, group=group, say=say if say.any() else say + 1)


# -- answers


@examples(30)
@given(seed=st.integers(0, 2**32), schema=schemas, n_classes=kinds, n_trees=st.integers(1, 7), n_jobs=st.integers(1, 2))
def test_votes_match_the_naive_version(seed, schema, n_classes, n_trees, n_jobs):
    forest = voting(seed, schema=schema, n_classes=n_classes, n_trees=n_trees)
    X = random_rows(forest, seed, n=70)
    absent = np.random.default_rng(seed).random(forest.n_features) < 0.2
    means, votes = naive.vote_answers(forest, X, absent)
    if np.isnan(means).any():
        for use in (predict.scores, predict.decide):
            with pytest.raises(InputError, match="no tree can answer"):
                use(forest, X, n_jobs, absent)
        return
    scores, decided = predict.scores(forest, X, n_jobs, absent), predict.decide(forest, X, n_jobs, absent)
    np.testing.assert_allclose(scores, means, rtol=0, atol=1e-14)
    if n_classes:
        np.testing.assert_array_equal(decided, [naive.first_best(row) for row in votes.tolist()])
    else:
        np.testing.assert_array_equal(decided, scores[:, 0])
    both = predict.scores_and_decisions(forest, X, n_jobs, absent)
    np.testing.assert_array_equal(both[0], scores)
    np.testing.assert_array_equal(both[1], decided)


@examples(30)
@given(
    seed=st.integers(0, 2**32), schema=schemas, n_classes=several, n_trees=st.integers(1, 9), n_jobs=st.integers(1, 2)
)
def test_stages_match_the_naive_version(seed, schema, n_classes, n_trees, n_jobs):
    forest = staged(seed, schema=schema, n_classes=n_classes, n_trees=n_trees)
    X = random_rows(forest, seed, n=70)
    scores = predict.scores(forest, X, n_jobs)
    np.testing.assert_allclose(scores, naive.stage_answers(forest, X), rtol=0, atol=1e-14)
    np.testing.assert_allclose(scores.sum(axis=1), 1.0, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(predict.decide(forest, X, n_jobs), scores.argmax(axis=1))
    np.testing.assert_array_equal(forest.predict(X), forest.classes[scores.argmax(axis=1)])


def leaves_only(values, **parameters):
    """Trees with a single leaf: their output is known without walking."""
    values = np.array(values, float)
    n = len(values)
    return Forest(
        schema=Schema(NUMBERS.features, Label("label", ("a", "b", "c")[: values.shape[1]])),
        offsets=np.arange(n + 1),
        feature=np.full(n, -1),
        threshold=np.zeros(n),
        missing_left=np.zeros(n, bool),
        sets=np.zeros((0, 4), np.uint64),
        value=values,
        **parameters,
    )


ROW = np.zeros((1, 3), np.float32)


def test_a_vote_need_not_go_to_the_most_probable_class():
    sure, narrow = [1.0, 0.0], [0.45, 0.55]
    forest = leaves_only([sure, narrow, narrow], weights=[1, 1, 1], combine="vote")
    assert forest.predict_proba(ROW)[0].tolist() == pytest.approx([1.9 / 3, 1.1 / 3])
    assert forest.predict(ROW).tolist() == ["b"]
    assert replace(forest, combine="mean").predict(ROW).tolist() == ["a"]


def test_equal_votes_go_to_the_first_class_and_so_does_an_undecided_leaf():
    assert leaves_only([[0, 0, 1], [0, 1, 0]], weights=[1, 1], combine="vote").predict(ROW).tolist() == ["b"]
    assert leaves_only([[0.2, 0.4, 0.4]], weights=[1], combine="vote").predict(ROW).tolist() == ["b"]


def test_the_winner_takes_the_stage_and_equal_winners_share_it():
    a, b, c = np.eye(3)
    forest = leaves_only(
        [a, a, b, b, c, c, c],
        weights=[1, 1, 1, 1, 1, 2, 1],
        combine="stages",
        group=[0, 0, 0, 1, 1, 2, 2],
        say=[3, 1, 0.5],
    )
    assert forest.scores(ROW)[0].tolist() == pytest.approx(np.array([3, 0.5, 1]) / 4.5)
    assert forest.predict(ROW).tolist() == ["a"]


# -- columns that a table lacks


@pytest.mark.parametrize("n_classes", [0, 2])
def test_trees_abstain_without_their_column(n_classes):
    forest = replace(random_forest(1, n_classes=n_classes, n_trees=12, max_nodes=5), combine="vote")
    X = random_rows(forest, 1, n=60)
    frame = pl.DataFrame({name: X[:, i] for i, name in enumerate(forest.schema.names)}, nan_to_null=True)
    for f, name in enumerate(forest.schema.names):
        others = np.flatnonzero(~forest.uses[:, f])
        assert 0 < len(others) < len(forest)
        rest = forest.take(others)
        np.testing.assert_array_equal(forest.predict(frame.drop(name)), rest.predict(X))
        np.testing.assert_array_equal(forest.scores(frame.drop(name)), rest.scores(X))
        # an empty column is present: no tree abstains
        empty = frame.with_columns(pl.lit(None, pl.Float32).alias(name))
        X_empty = X.copy()
        X_empty[:, f] = np.nan
        np.testing.assert_array_equal(forest.predict(empty), forest.predict(X_empty))
    np.testing.assert_array_equal(forest.predict(frame), forest.predict(X))


def test_if_all_abstain_the_columns_are_named():
    forest = voting(2, n_trees=3, max_nodes=3)
    rows = pl.DataFrame({"age": [1.0], "colour": ["red"]})
    asked = forest.uses[forest.weights > 0]
    assert asked[:, 1:].any(axis=1).all()
    wanted = [name for name, used in zip(("dose", "height"), asked[:, 1:].any(axis=0), strict=True) if used]
    with pytest.raises(InputError, match=f"no tree can answer.*{', '.join(map(repr, wanted))}"):
        forest.predict(rows)


@pytest.mark.parametrize("combine", ["mean", "stages"])
def test_other_trees_need_all_columns(combine):
    forest = staged(3) if combine == "stages" else random_forest(3)
    with pytest.raises(SchemaError, match="lacks 'dose', 'height'"):
        forest.predict(pl.DataFrame({"age": [1.0]}))
    # by number: for trees that do not abstain, an absent value is a missing one
    X = random_rows(forest, 3)
    np.testing.assert_array_equal(
        predict.scores(forest, X, absent=np.array([True, False, True])), predict.scores(forest, X)
    )


def test_used_columns_and_abstention():
    forest = random_forest(4, schema=MIXED, n_trees=9, max_nodes=7)
    for t in range(len(forest)):
        features = forest.feature[forest.offsets[t] : forest.offsets[t + 1]]
        assert set(np.flatnonzero(forest.uses[t])) == set(features[features >= 0])
    for f in range(forest.n_features):
        absent = np.arange(forest.n_features) == f
        np.testing.assert_array_equal(predict.abstaining(forest, absent), forest.uses[:, f])
    assert not predict.abstaining(forest, np.zeros(forest.n_features, bool)).any()


def test_importances_follow_the_vote():
    sure = replace(random_forest(5, n_trees=9, max_nodes=7), combine="vote")
    X = random_rows(sure, 5)
    drops = sure.importances(X, sure.predict(X))
    used = sure.uses.any(axis=0)
    assert all(drops[name] == 0 for name, u in zip(sure.schema.names, used, strict=True) if not u)
    assert max(drops.values()) > 0
    assert min(drops.values()) >= 0  # all are right before shuffling


# -- parts of a forest, and forests joined


def test_take_keeps_stages_whole():
    forest = staged(6, n_trees=12)
    X = random_rows(forest, 6)
    stages = [np.flatnonzero(forest.group == stage) for stage in range(len(forest.say))]
    assert len(stages) > 3
    assert forest.take(slice(None)) == forest
    order = [s for s in (2, 0, 0) if forest.say[s] > 0]
    some = forest.take(np.concatenate([stages[s] for s in order]))
    assert some.say.tolist() == forest.say[order].tolist()
    assert some.group.tolist() == [i for i, s in enumerate(order) for _ in stages[s]]
    np.testing.assert_allclose(some.scores(X), naive.stage_answers(some, X), rtol=0, atol=1e-14)
    large = next(stage for stage in stages if len(stage) > 1)
    for trees in (large[:-1], large[::-1], large[1:]):
        with pytest.raises(InputError, match=f"take all of trees {large[0]} to {large[-1]}, in order"):
            forest.take(trees)


def test_take_and_bare_keep_how_trees_combine():
    forest = replace(voting(7, gain=True))
    assert forest.take([1, 3, 4]).combine == "vote"
    assert forest.bare().combine == "vote"
    stages = staged(7, gain=True)
    bare = stages.bare()
    assert bare == stages
    assert bare.gain is None
    np.testing.assert_array_equal(bare.say, stages.say)


def test_voting_forests_are_joined():
    a, b = voting(8, schema=MIXED), voting(9, schema=MIXED)
    both = join_forests([a, b], [2.0, 1.0])
    assert both.combine == "vote"
    X = random_rows(a, 8)
    votes = 2 * naive.vote_answers(a, X)[1] + naive.vote_answers(b, X)[1]
    np.testing.assert_array_equal(predict.decide(both, X), [naive.first_best(row) for row in votes.tolist()])


def test_stages_are_joined():
    a, b = staged(10, n_classes=3), staged(11, n_classes=3)
    both = join_forests([a, b], [2.0, 1.0])
    assert len(both.say) == len(a.say) + len(b.say)
    X = random_rows(a, 10)
    expected = 2 * a.scores(X) * a.say.sum() + b.scores(X) * b.say.sum()
    np.testing.assert_allclose(both.scores(X), expected / both.say.sum(), rtol=0, atol=1e-14)


def test_ways_to_combine_do_not_mix():
    with pytest.raises(InputError, match=r"differently \('mean', 'vote'\)"):
        join_forests([random_forest(12), voting(12)])


# -- the hash and the validator


def test_the_hash_covers_how_trees_combine():
    forest = random_forest(13, n_trees=4)
    hashes = {forest.hash, replace(forest, combine="vote").hash}
    for group, say in [([0, 0, 1, 1], [1, 2]), ([0, 1, 1, 1], [1, 2]), ([0, 0, 1, 1], [1, 3]), ([0, 1, 2, 3], [1] * 4)]:
        hashes.add(replace(forest, combine="stages", group=group, say=say).hash)
    assert len(hashes) == 6


STAGES = {"combine": "stages", "group": [0, 0, 1, 2], "say": [1.0, 0.0, 2.5]}
CASES = {
    "group without stages": ({"combine": "vote"}, "are for trees that combine by stages"),
    "say alone": ({"combine": "mean", "group": None}, "are for trees that combine by stages"),
    "no group": ({"group": None}, "stages need group and say"),
    "no say": ({"say": None}, "stages need group and say"),
    "group too short": ({"group": [0, 0, 1]}, "group has the wrong shape"),
    "group is a table": ({"group": [[0, 0, 1, 2]]}, "group has the wrong shape"),
    "group is a number": ({"group": 0}, "group has the wrong shape"),
    "first stage is 1": ({"group": [1, 1, 2, 3], "say": [1.0] * 4}, "first stage must be 0"),
    "first stage is -1": ({"group": [-1, 0, 1, 2]}, "first stage must be 0"),
    "a stage left out": ({"group": [0, 0, 2, 2]}, "count up by one"),
    "stages fall": ({"group": [0, 1, 0, 1], "say": [1.0, 1.0]}, "count up by one"),
    "stages overflow": ({"group": [0, 2**31 - 1, -(2**31), 0]}, "count up by one"),
    "say too short": ({"say": [1.0, 2.0]}, "say has the wrong shape"),
    "say too long": ({"say": [1.0] * 4}, "say has the wrong shape"),
    "say is a table": ({"say": [[1.0, 0.0, 2.5]]}, "say has the wrong shape"),
    "negative say": ({"say": [1.0, -0.5, 2.5]}, "say is negative"),
    "NaN say": ({"say": [1.0, np.nan, 2.5]}, "say is negative or not finite"),
    "infinite say": ({"say": [1.0, np.inf, 2.5]}, "say is negative or not finite"),
    "nothing to say": ({"say": [0.0] * 3}, "zero or infinity"),
    "too much to say": ({"say": [1.5e308] * 3}, "zero or infinity"),
    "a stage without weight": ({"weights": [1, 1, 0, 1]}, "no tree of a stage has a weight"),
    "combine": ({"combine": "most", "group": None, "say": None}, "combine 'most' is unknown"),
}


def test_the_example_is_valid():
    replace(random_forest(14, n_trees=4), **STAGES)


@pytest.mark.parametrize("case", CASES)
def test_validator_refuses(case):
    change, message = CASES[case]
    with pytest.raises(FormatError, match=f"not a forest: .*{message}"):
        replace(random_forest(14, n_trees=4), **{**STAGES, **change})


def test_stages_need_classes():
    with pytest.raises(FormatError, match="stages need classes"):
        replace(random_forest(14, n_trees=4, n_classes=0), **STAGES)


def test_stages_are_read_only():
    group, say = np.array([0, 0, 1, 2]), np.array([1.0, -0.0, 2.5])
    forest = replace(random_forest(15, n_trees=4), combine="stages", group=group, say=say)
    group[:], say[:] = 9, 9
    assert forest.group.tolist() == STAGES["group"]
    assert forest.say.tolist() == STAGES["say"]
    assert forest == replace(random_forest(15, n_trees=4), **STAGES)
    with pytest.raises(ValueError, match="read-only"):
        forest.say[0] = 7
    assert forest.group.dtype == np.int32


# -- other formats


@pytest.mark.parametrize("forest", [voting(16), voting(16, n_classes=0), staged(16)], ids=["vote", "number", "stages"])
def test_votes_and_stages_cannot_be_exported(forest, tmp_path):
    for name, export in {
        "ONNX": lambda: forest.to_onnx(tmp_path / "f.onnx"),
        "treelite": forest.to_treelite,
        "scikit-learn": forest.to_sklearn,
    }.items():
        with pytest.raises(ExportError, match=f"combine is '{forest.combine}': {name} .*silvan file"):
            export()
    assert not list(tmp_path.iterdir())


def test_the_suggested_workaround_works():
    forest = voting(17)
    copy = replace(forest, combine="mean")
    X = random_rows(forest, 17)
    np.testing.assert_array_equal(copy.predict_proba(X), forest.predict_proba(X))
    copy.to_treelite()


def test_a_forest_that_averages_has_no_other_arrays():
    forest = random_forest(18)
    assert set(vars(forest)) >= {*ARRAYS, "group", "say"}
    assert forest.group is None
    assert forest.say is None
