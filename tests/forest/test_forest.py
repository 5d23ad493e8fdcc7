"""The arrays of a forest: derived properties, validation, and predictions compared with a naive version."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.forests import CLASSES, MIXED, NUMBERS, random_forest, random_rows
from helpers.naive_answers import vote_answers

from silvan.data.schema import Feature, Label, Schema
from silvan.errors import FormatError, InputError
from silvan.forest import predict
from silvan.forest.arrays import ARRAYS, DEPTH_CAP
from silvan.forest.category_set import known_bins, set_bits
from silvan.forest.forest import Forest, join_forests


def naive_structure(forest):
    """Left child and depth of every node, assigning positions in order."""
    left, depth = np.full(len(forest.feature), -1), np.zeros(len(forest.feature), int)
    for begin, end in zip(forest.offsets[:-1], forest.offsets[1:], strict=True):
        free = begin + 1
        for node in range(begin, end):
            if forest.feature[node] >= 0:
                left[node] = free
                depth[free : free + 2] = depth[node] + 1
                free += 2
        assert free == end
    return left, depth


@pytest.mark.parametrize("seed", range(5))
def test_structure_follows_from_which_nodes_are_leaves(seed):
    forest = random_forest(seed, schema=MIXED, n_trees=1 + 3 * seed)
    left, depth = naive_structure(forest)
    np.testing.assert_array_equal(forest.left, left)
    np.testing.assert_array_equal(forest.right, np.where(left < 0, -1, left + 1))
    np.testing.assert_array_equal(forest.depth, depth)
    np.testing.assert_array_equal(forest.leaf >= 0, forest.feature < 0)
    np.testing.assert_array_equal(forest.leaf[forest.leaf >= 0], np.arange(len(forest.value)))


@pytest.mark.parametrize("n_classes", CLASSES)
@pytest.mark.parametrize("schema", [NUMBERS, MIXED], ids=["numbers", "mixed"])
def test_scores_match_the_naive_version(schema, n_classes):
    for seed in range(3):
        forest = random_forest(seed, schema=schema, n_classes=n_classes, equal_weights=seed == 0)
        X = random_rows(forest, seed)
        # not bit for bit: the naive version divides by weights that NumPy adds in another order
        np.testing.assert_allclose(forest.scores(X, n_jobs=1), vote_answers(forest, X)[0], rtol=0, atol=1e-14)


def test_skipped_trees_are_left_out_of_scores():
    forest = random_forest(1, schema=MIXED, n_classes=3, equal_weights=False)
    X = random_rows(forest, 1, n=150)
    skip = np.random.default_rng(0).random((len(forest), len(X))) < 0.5
    skip[:, 7] = True
    got = predict.scores(forest, X, n_jobs=1, skip=skip)
    assert np.isnan(got[7]).all()
    for row in (0, 70, 149):
        alone = forest.take(~skip[:, row]).scores(X[row : row + 1])[0]
        np.testing.assert_allclose(got[row], alone, rtol=0, atol=1e-14)


def test_unknown_codes_count_as_missing():
    forest = random_forest(2, schema=MIXED)
    X = random_rows(forest, 2)
    ward = forest.schema.names.index("ward")
    X[:, ward] = np.nan
    for unknown in (-1.0, 71.0, 255.0, 1e9):
        odd = X.copy()
        odd[:, ward] = unknown
        np.testing.assert_array_equal(forest.scores(odd), forest.scores(X))


@pytest.mark.parametrize("trees", [[0], [4, 1, 1], slice(1, 3), 2, -1, np.array([0, 1, 1, 0, 1], bool)], ids=str)
def test_take_keeps_trees_whole(trees):
    forest = random_forest(3, schema=MIXED, equal_weights=False, gain=True)
    some = forest.take(trees)
    numbers = np.atleast_1d(np.arange(5)[trees])
    assert len(some) == len(numbers)
    assert some.gain is None
    np.testing.assert_array_equal(some.weights, forest.weights[numbers])
    X = random_rows(forest, 3)
    single = [forest.take([t]).scores(X) * forest.weights[t] for t in numbers]
    np.testing.assert_allclose(some.scores(X), sum(single) / some.weights.sum(), rtol=0, atol=1e-14)


def test_taking_all_is_the_same_forest_and_none_is_refused():
    forest = random_forest(4, schema=MIXED)
    assert forest.take(slice(None)) == forest
    assert forest.take([1, 0, 2, 3, 4]) != forest
    with pytest.raises(FormatError, match="no trees"):
        forest.take([])


def test_the_hash_covers_arrays_and_names_but_not_gains():
    forest = random_forest(5, schema=MIXED, gain=True)
    assert replace(forest, gain=None) == forest
    leaf = forest.value[:, ::-1]
    assert replace(forest, value=leaf) != forest
    renamed = Schema((Feature("years"), *forest.schema.features[1:]), forest.schema.label)
    assert replace(forest, schema=renamed) != forest
    relabelled = Schema(forest.schema.features, Label("other name", forest.schema.label.classes))
    assert replace(forest, schema=relabelled) == forest  # the label's own name has no effect


def test_minus_zero_is_zero():
    forest = random_forest(6)
    assert replace(forest, threshold=np.where(forest.threshold == 0, -0.0, forest.threshold)) == forest


def test_arrays_are_read_only():
    forest = random_forest(7, gain=True)
    arrays = {name: getattr(forest, name).copy() for name in (*ARRAYS, "gain")}
    copy = Forest(forest.schema, **arrays)
    for name, array in arrays.items():
        array[...] = 0
        np.testing.assert_array_equal(getattr(copy, name), getattr(forest, name))
    with pytest.raises(ValueError, match="read-only"):
        copy.value[0] = 0


def test_classes_keep_their_types():
    forest = random_forest(8, n_classes=3)
    forest = replace(forest, schema=Schema(forest.schema.features, Label("label", (0, "a", True))))
    assert list(map(type, forest.predict(random_rows(forest, 0)))).count(str) > 0
    assert {type(name) for name in forest.classes} == {int, str, bool}


def test_importances():
    forest = random_forest(9, gain=True)
    assert list(forest.importances()) == ["age", "dose", "height"]
    with pytest.raises(InputError, match="no gains"):
        forest.take([0]).importances()


# -- the validator

SCHEMA = Schema.of(["age", Feature("ward", "categorical", categories=("a", "b"))], Label("label", ("no", "yes")))
# age <= 1.5 ? (ward in {missing, a} ? ... : ...) : leaf, and a tree that is a leaf
VALID = {
    "schema": SCHEMA,
    "offsets": [0, 5, 6],
    "feature": [0, 1, -1, -1, -1, -1],
    "threshold": [1.5, 0, 0, 0, 0, 0],
    "missing_left": [False, True, False, False, False, False],
    "sets": np.array([[0b011, 0, 0, 0]], np.uint64),
    "value": [[0.5, 0.5], [1, 0], [0, 1], [0.25, 0.75]],
    "weights": [1.0, 2.0],
}
WORDS = np.zeros((1, 4), np.uint64)
CASES = {
    "no trees": ({"offsets": [0]}, "no trees"),
    "offsets are a number": ({"offsets": 5}, "no trees"),
    "offsets start late": ({"offsets": [1, 5, 6]}, "span"),
    "offsets end early": ({"offsets": [0, 4, 5]}, "span"),
    "offsets end late": ({"offsets": [0, 5, 7]}, "span"),
    "an empty tree": ({"offsets": [0, 5, 5, 6], "weights": [1, 1, 1]}, "must rise"),
    "offsets fall": ({"offsets": [0, 9, 6], "weights": [1, 1]}, "must rise"),
    # every difference of these looks positive in 64 bits
    "offsets overflow": ({"offsets": [0, 2**63 - 1, -(2**63), -1, 6], "weights": [1] * 4}, "must rise"),
    "feature is a table": ({"feature": [[0, 1, -1, -1, -1, -1]]}, "list of"),
    "feature is a number": ({"feature": 0}, "list of"),
    "threshold too short": ({"threshold": [1.5, 0, 0, 0, 0]}, "threshold has the wrong shape"),
    "directions too many": ({"missing_left": [False] * 7}, "missing_left has the wrong shape"),
    "a weight too many": ({"weights": [1, 1, 1]}, "weights has the wrong shape"),
    "too few leaves": ({"value": [[0.5, 0.5], [1, 0], [0, 1]]}, "value has the wrong shape"),
    "too few classes": ({"value": [[1], [1], [1], [1]]}, "value has the wrong shape"),
    "no set": ({"sets": np.zeros((0, 4), np.uint64)}, "sets has the wrong shape"),
    "a short set": ({"sets": np.zeros((1, 3), np.uint64)}, "sets has the wrong shape"),
    "gain too long": ({"gain": [0.5, 0.5, 0]}, "gain has the wrong shape"),
    "a schema without features": ({"schema": Schema((), SCHEMA.label)}, "no features"),
    "feature outside the schema": ({"feature": [2, 1, -1, -1, -1, -1]}, "feature out of range"),
    "feature below leaves": ({"feature": [0, 1, -1, -1, -2, -1]}, "feature out of range"),
    "combine": ({"combine": "most"}, "combine 'most' is unknown"),
    "a split too many": (
        {"feature": [0, 1, 0, -1, -1, -1], "value": [[1, 0]] * 3},
        "nodes and splits do not match",
    ),
    "splits of two trees add up": (
        {"offsets": [0, 3, 6], "sets": WORDS, "missing_left": [False] * 6},
        "nodes and splits do not match",
    ),
    "child before parent": (
        {"feature": [-1, 0, 1, -1, -1, -1], "threshold": [0, 1.5, 0, 0, 0, 0], "missing_left": [False] * 6},
        "before its parent",
    ),
    "NaN threshold": ({"threshold": [np.nan, 0, 0, 0, 0, 0]}, "threshold is not finite"),
    "infinite threshold": ({"threshold": [np.inf, 0, 0, 0, 0, 0]}, "threshold is not finite"),
    "threshold at a leaf": ({"threshold": [1.5, 0, 0, 0, 1, 0]}, "without a numeric split"),
    "threshold at a set": ({"threshold": [1.5, 1, 0, 0, 0, 0]}, "without a numeric split"),
    "direction at a leaf": (
        {"missing_left": [False, True, True, False, False, False]},
        "direction at a leaf",
    ),
    "odd direction": (
        {"missing_left": np.array([2, 1, 0, 0, 0, 0], np.uint8).view(np.bool_)},
        "neither 0 nor 1",
    ),
    "set against direction": ({"sets": np.array([[0b010, 0, 0, 0]], np.uint64)}, "contradicts"),
    "unknown category": ({"sets": np.array([[0b1011, 0, 0, 0]], np.uint64)}, "unknown category"),
    "unknown category, last word": ({"sets": np.array([[3, 0, 0, 1 << 63]], np.uint64)}, "unknown category"),
    "NaN leaf": ({"value": [[0.5, np.nan], [1, 0], [0, 1], [0, 1]]}, "leaf value is not finite"),
    "probability above 1": ({"value": [[0.5, 1.5], [1, 0], [0, 1], [0, 1]]}, "outside 0 to 1"),
    "probability below 0": ({"value": [[0.5, -0.5], [1, 0], [0, 1], [0, 1]]}, "outside 0 to 1"),
    "negative weight": ({"weights": [1, -1]}, "weight is negative"),
    "infinite weight": ({"weights": [1, np.inf]}, "weight is negative or not finite"),
    "NaN weight": ({"weights": [1, np.nan]}, "weight is negative or not finite"),
    "zero weights": ({"weights": [0, 0]}, "zero or infinity"),
    "weights too large together": ({"weights": [1.5e308, 1.5e308]}, "zero or infinity"),
    "negative gain": ({"gain": [1.5, -0.5]}, "gain is negative"),
    "NaN gain": ({"gain": [1, np.nan]}, "gain is negative or not finite"),
}


def test_the_example_is_valid():
    forest = Forest(**VALID)
    X = np.array([[1.5, 0], [1.5, 1], [1.5, np.nan], [1.6, 0], [np.nan, 0]], np.float32)
    first = forest.take(0).scores(X)
    np.testing.assert_array_equal(first[:, 0], [1, 0, 1, 0.5, 0.5])


@pytest.mark.parametrize("case", CASES)
def test_validator_refuses(case):
    change, message = CASES[case]
    with pytest.raises(FormatError, match=f"not a forest: .*{message}"):
        Forest(**{**VALID, **change})


def chain(depth):
    """A tree with one long path."""
    inner = np.array([True] + [True, False] * (depth - 1) + [False, False])
    return {
        "schema": Schema.of(["x"]),
        "offsets": [0, len(inner)],
        "feature": np.where(inner, 0, -1),
        "threshold": np.zeros(len(inner)),
        "missing_left": np.zeros(len(inner), bool),
        "sets": np.zeros((0, 4), np.uint64),
        "value": np.arange(depth + 1.0)[:, None],
        "weights": [1.0],
    }


def test_depth_cap():
    deepest = Forest(**chain(DEPTH_CAP))
    assert deepest.depth.max() == DEPTH_CAP
    assert deepest.predict(np.array([[-1.0], [1.0]], np.float32)).tolist() == [DEPTH_CAP - 1.0, 0.0]
    # one more, and so many that walking all of them would never end
    for depth in (DEPTH_CAP + 1, 500_000):
        with pytest.raises(FormatError, match="deeper than 4096"):
            Forest(**chain(depth))


def test_known_bins_and_set_bits():
    bits = set_bits(known_bins(MIXED))
    assert bits.sum(axis=1).tolist() == [0, 3, 72, 0, 256, 1]
    assert bits[2, :72].all()


def test_forests_share_read_only_arrays():
    forest = random_forest(1, schema=NUMBERS, n_classes=2)
    other = replace(forest, weights=2.0 * forest.weights)
    assert other.value is forest.value
    assert join_forests([forest]).value is not forest.value
    for array in (np.array(forest.value), forest.value[:]):  # one that can be written to, and a view of another's
        array.setflags(write=array.base is None)
        assert replace(forest, value=array).value is not array
    below = forest.threshold.copy()
    below[forest.feature < 0] = -0.0
    below.setflags(write=False)
    assert replace(forest, threshold=below).hash == forest.hash
    assert forest.bare() is forest.bare().bare()
