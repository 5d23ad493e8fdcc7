"""Trees prepared for release: thresholds on cut points, no leaf with too few rows."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.examples import examples
from helpers.forests import MIXED, NUMBERS, random_forest, random_rows
from helpers.naive_answers import goes_left
from hypothesis import given
from hypothesis import strategies as st

from silvan import InputError
from silvan.data.bins.bins import find_bins, make_bins
from silvan.forest.category_set import is_category_split
from silvan.forest.snap import snap, trim

LARGEST = np.finfo(np.float32).max


def bins_of(forest, seed):
    return find_bins(random_rows(forest, seed), forest.schema, 255, floor=10)[0]


@examples(40)
@given(seed=st.integers(0, 2**32), schema=st.sampled_from([NUMBERS, MIXED]))
def test_snapped_thresholds_are_cut_points(seed, schema):
    forest = random_forest(seed, schema=schema)
    bins = bins_of(forest, seed)
    snapped = snap(forest, bins)
    numeric = (forest.feature >= 0) & ~is_category_split(forest.schema, forest.feature)
    for node in np.flatnonzero(numeric):
        cuts, wish, got = bins.cuts[forest.feature[node]], forest.threshold[node], snapped.threshold[node]
        if wish == LARGEST or not len(cuts):
            assert got == LARGEST
        else:
            gap = np.abs(cuts.astype(np.float64) - np.float64(wish))
            assert got in cuts
            assert abs(np.float64(got) - np.float64(wish)) == gap.min()
    assert snap(snapped, bins) == snapped
    assert (snapped.threshold[~numeric] == 0).all()


def test_ties_go_to_the_lower_cut():
    forest = random_forest(0, n_trees=1)
    wish = np.where((forest.feature >= 0), np.float32(0.5), 0)
    bins = make_bins(forest.schema, [np.array([0.0, 1.0], np.float32)] * 3)
    snapped = snap(replace(forest, threshold=wish), bins)
    assert (snapped.threshold == 0).all()


def naive_rows(forest, X):
    """The number of rows at every node."""
    rows = np.zeros(len(forest.feature), np.int64)
    for t in range(len(forest)):
        for x in X:
            node = int(forest.offsets[t])
            rows[node] += 1
            while forest.feature[node] >= 0:
                node = int(forest.left[node] if goes_left(forest, node, x) else forest.right[node])
                rows[node] += 1
    return rows


def naive_trim(forest, X, min_leaf):
    """Each tree's structure as nested tuples, trimmed by recursion."""

    def cut(node, rows):
        if forest.feature[node] < 0:
            return int(forest.leaf[node])
        left = np.array([goes_left(forest, node, X[i]) for i in rows], bool)
        sides = [(int(forest.left[node]), rows[left]), (int(forest.right[node]), rows[~left])]
        sizes = [len(side) for _, side in sides]
        if min(sizes) < min_leaf:
            return cut(sides[0 if sizes[0] >= sizes[1] else 1][0], rows)
        return (node, cut(*sides[0]), cut(*sides[1]))

    return [cut(int(start), np.arange(len(X))) for start in forest.offsets[:-1]]


def shape(forest, original):
    """Structure of a trimmed forest in terms of the original's leaves and splits."""
    same_leaf = {tuple(value): i for i, value in enumerate(original.value.tolist())}

    def walk(node):
        if forest.feature[node] < 0:
            return same_leaf[tuple(forest.value[forest.leaf[node]].tolist())]
        return (
            (int(forest.feature[node]), float(forest.threshold[node])),
            walk(int(forest.left[node])),
            walk(int(forest.right[node])),
        )

    return [walk(int(start)) for start in forest.offsets[:-1]]


def named(tree, forest):
    if not isinstance(tree, tuple):
        return tree
    node, left, right = tree
    return (int(forest.feature[node]), float(forest.threshold[node])), named(left, forest), named(right, forest)


@examples(40)
@given(seed=st.integers(0, 2**32), schema=st.sampled_from([NUMBERS, MIXED]), min_leaf=st.integers(1, 12))
def test_no_leaf_is_too_small(seed, schema, min_leaf):
    forest = random_forest(seed, schema=schema)
    # leaves that can be distinguished
    value = np.random.default_rng(seed).random((len(forest.value), 1))
    forest = replace(forest, value=np.hstack([value, 1 - value]), gain=None)
    X = random_rows(forest, seed, n=40)
    trimmed = trim(forest, X, min_leaf)
    assert len(trimmed) == len(forest)
    assert naive_rows(trimmed, X).min() >= min_leaf
    assert shape(trimmed, forest) == [named(tree, forest) for tree in naive_trim(forest, X, min_leaf)]
    assert trim(trimmed, X, min_leaf) == trimmed


def test_a_tree_whose_leaves_are_large_stays():
    forest = random_forest(1, n_trees=3)
    X = random_rows(forest, 1, n=400)
    small = trim(forest, X, 5)
    assert trim(small, X, 5) == small
    assert trim(small, X, 1) == small


def test_fewer_rows_than_a_leaf_needs():
    forest = random_forest(3)
    with pytest.raises(InputError, match="there are 3 rows, and leaves must hold 5"):
        trim(forest, random_rows(forest, 3, n=3), 5)
