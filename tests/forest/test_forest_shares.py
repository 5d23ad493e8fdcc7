"""Forests in shares: leaf sets compared with Python sets; their intersection is the leaf of the whole forest."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.tables import random_table

from silvan.errors import FormatError
from silvan.forest.category_set import SET_WORDS
from silvan.forest.forest import Forest
from silvan.forest.forest_shares import Share, Structure, put_together
from silvan.forest.predict import scores
from silvan.forest.reach import leaf_scores, meet, reach_leaves, row_bytes
from silvan.tree.fit import Settings, fit_forest
from silvan.tree.sampling import SamplingKeys, make_key

FIELDS = ("node", "feature", "threshold", "missing_left", "words", "first", "middle", "last")


def goes_left(share, k, value):
    """Whether a row with a value goes left at the ``k``-th node of a share."""
    if np.isnan(value):
        return bool(share.missing_left[k])
    if share.categorical[k]:
        code = int(value) + 1
        return bool((int(share.words[k][code // 64]) >> (code % 64)) & 1)
    return bool(value <= share.threshold[k])


def reach_naive(share, x):
    """A naive ``reach_leaves``, for one row with Python sets."""
    leaves = set(range(share.n_leaves))
    for k in range(len(share)):
        left = goes_left(share, k, x[share.feature[k]])
        span = (share.middle[k], share.last[k]) if left else (share.first[k], share.middle[k])
        leaves -= set(range(*span))
    return leaves


def cut_up(forest: Forest, columns: tuple[int, ...]) -> tuple[Structure, dict[str, Share]]:
    """Splits a forest into shares, the slow way."""
    names = tuple(f"p{k}" for k in range(len(columns)))
    bounds = np.cumsum([0, *columns])
    owner = np.where(forest.feature >= 0, np.searchsorted(bounds, forest.feature, side="right") - 1, -1)
    structure = Structure(
        "m", forest.schema, names, columns, "p0", forest.offsets, owner.astype(np.int32), np.zeros(len(owner)),
        forest.weights, forest.value,
    )  # fmt: skip
    spans = {}
    count = 0

    def visit(node):
        nonlocal count
        first = count
        if forest.feature[node] < 0:
            count += 1
            spans[node] = (first, count, count)
            return
        visit(forest.left[node])
        middle = count
        visit(forest.right[node])
        spans[node] = (first, middle, count)

    for root in forest.offsets[:-1]:
        visit(root)
    assert structure.spans[0].tolist() == [spans[k][0] for k in range(len(owner))]
    assert structure.spans[1].tolist() == [spans[k][2] for k in range(len(owner))]
    by_category = np.array([f >= 0 and forest.schema.features[f].categorical for f in forest.feature])
    words = np.zeros((len(owner), SET_WORDS), np.uint64)
    words[by_category] = forest.sets
    shares = {}
    for k, name in enumerate(names):
        own = sorted(np.flatnonzero(owner == k).tolist(), key=lambda n: (spans[n][0], -spans[n][2]))
        first, middle, last = (np.array([spans[n][i] for n in own], np.int64) for i in range(3))
        schema = type(forest.schema)(forest.schema.features[bounds[k] : bounds[k + 1]], forest.schema.label)
        shares[name] = Share(
            "m", name, schema, count, np.array(own, np.int64), forest.feature[own] - np.int32(bounds[k]),
            forest.threshold[own], forest.missing_left[own], words[own], first, middle, last, np.zeros((0, 1)),
        )  # fmt: skip
    return structure, shares


def grown(n_classes, seed, n_estimators=5, max_depth=None):
    X, schema, target = random_table(seed, n_rows=90, n_features=6, n_classes=n_classes)
    criterion = "gini" if n_classes else "squared_error"
    settings = Settings(n_estimators=n_estimators, max_depth=max_depth, criterion=criterion)
    keys = SamplingKeys(make_key(seed, "rows"), make_key(seed, "features"))
    forest = fit_forest(X, target, schema, settings, keys, n_jobs=1).forest
    return X, forest


@pytest.mark.parametrize("n_classes", [0, 2, 3])
@pytest.mark.parametrize("columns", [(6,), (2, 4), (1, 0, 2, 3)])
@pytest.mark.parametrize("depth", [None, 1, 3])
def test_leaf_sets_intersect_at_the_rows_leaf(n_classes, columns, depth):
    X, forest = grown(n_classes, sum(columns) + len(columns), max_depth=depth)
    structure, shares = cut_up(forest, columns)
    structure.check()
    bounds = np.cumsum([0, *columns])
    bits = np.full((len(X), row_bytes(structure.n_leaves)), 255, np.uint8)
    for k, share in enumerate(shares.values()):
        share.check()
        own = np.ascontiguousarray(X[:, bounds[k] : bounds[k + 1]])
        found = reach_leaves(share, own, 1)
        for row in range(0, len(X), 7):
            listed = np.flatnonzero(np.unpackbits(found[row], bitorder="little"))
            assert set(listed.tolist()) == reach_naive(share, own[row])
        assert np.array_equal(found, reach_leaves(share, own, 3))
        bits &= found
    leaves = meet(bits, structure, 1)
    answer = leaf_scores(structure.leaf_row[leaves], structure.value, structure.weights)
    np.testing.assert_array_equal(answer, scores(forest, X, 1))  # bit for bit
    assert put_together(structure, shares) == forest


def test_disjoint_leaf_sets():
    X, forest = grown(2, 0)
    structure, shares = cut_up(forest, (3, 3))
    bits = reach_leaves(shares["p0"], X[:, :3].copy(), 1)
    assert meet(bits, structure) is None  # one party alone leaves several
    assert meet(bits * np.uint8(0), structure) is None


def test_a_row_of_missing_values_goes_where_nodes_send_these():
    _, forest = grown(2, 1)
    _, shares = cut_up(forest, (3, 3))
    nothing = np.full((1, 3), np.nan, np.float32)
    bits = reach_leaves(shares["p0"], nothing, 1)
    listed = np.flatnonzero(np.unpackbits(bits[0], bitorder="little")).tolist()
    assert set(listed) == reach_naive(shares["p0"], nothing[0])


def test_files_keep_the_shares():
    _, forest = grown(3, 2)
    structure, shares = cut_up(forest, (2, 4))
    again = Structure.from_bytes(structure.to_bytes())
    assert again.to_bytes() == structure.to_bytes()
    read = {name: Share.from_bytes(share.to_bytes()) for name, share in shares.items()}
    for name, share in shares.items():
        for field in FIELDS:
            np.testing.assert_array_equal(getattr(read[name], field), getattr(share, field))
    assert put_together(again, read) == forest
    with pytest.raises(FormatError, match="not a silvan share"):
        Share.from_bytes(structure.to_bytes())
    with pytest.raises(FormatError, match="not a silvan structure"):
        Structure.from_bytes(shares["p0"].to_bytes())


def test_shares_of_another_model():
    _, forest = grown(2, 3)
    structure, shares = cut_up(forest, (2, 4))
    with pytest.raises(FormatError, match="not the share of party 'p1'"):
        put_together(structure, {**shares, "p1": replace(shares["p1"], model="other")})
    with pytest.raises(FormatError, match="not the share of party 'p1'"):
        put_together(structure, {**shares, "p1": replace(shares["p0"], party="p1")})
