"""The best split among listed features equals the best of all features, party by party."""

import numpy as np
import pytest
from helpers.tables import random_table

from silvan.algorithms.vertical.coordinator import best_offers
from silvan.data.bins.bins import find_bins, make_bins
from silvan.data.schema import Feature, Schema
from silvan.tree.fit import Settings
from silvan.tree.gain import Rule, gain
from silvan.tree.level import choose_level, find_listed, finish_splits, split_gains
from silvan.tree.node_rows import Binned, NodeRows
from silvan.tree.objectives import GINI
from silvan.tree.rows import TreeRows
from silvan.tree.sampling import Ties, make_key, root_seeds, tie_ranks
from silvan.tree.split import Splits

KEY = make_key(0, "rows")
TIES = Ties(KEY, root_seeds(KEY, np.arange(6)))


def case(n_classes, seed):
    X, schema, target = random_table(seed, n_rows=80, n_features=7, n_classes=n_classes)
    bins, codes = find_bins(X, schema, (16, 5, 3)[seed % 3], staggered=True)
    table = Binned(codes, target.rows, np.arange(len(X), dtype=np.uint64), bins, target.measure.n_stats)
    criterion = "gini" if n_classes else "squared_error"
    return table, Settings(criterion=criterion).rule(target.measure)


@pytest.mark.parametrize("n_classes", [0, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_one_list_gives_what_a_level_gives(n_classes, seed):
    table, rule = case(n_classes, seed)
    rng = np.random.default_rng(seed)
    n_trees = 5
    features = np.full((n_trees, 4), -1, np.int32)
    for row in features:
        n = rng.integers(1, 5)
        row[:n] = np.sort(rng.choice(7, n, replace=False))
    nodes = np.arange(n_trees)
    rows = TreeRows.of_trees(table, KEY, range(n_trees), True)
    expected = choose_level(rows.fill(nodes, features, 1), features, table.bins, rule, TIES, 1, rows.offsets)
    for threads in (1, 2):
        found = find_listed(NodeRows.of_trees(table, KEY, range(n_trees), True), nodes, features, rule, TIES, threads)
        finish_splits(found, rule)
        for name, a, b in zip(Splits._fields, found, expected, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize("n_classes", [0, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_the_best_of_parties_is_the_best_of_all(n_classes, seed):
    table, rule = case(n_classes, seed)
    rows, nodes = NodeRows.of_trees(table, KEY, range(6), True), np.arange(6)
    whole = find_listed(rows, nodes, np.tile(np.arange(7, dtype=np.int32), (6, 1)), rule, TIES)
    parts = [np.tile(np.array(own, np.int32), (6, 1)) for own in ([0, 1], [2], [3, 4, 5, 6])]
    found = [find_listed(rows, nodes, own, rule, TIES) for own in parts]
    offers = np.stack([np.where(f.feature >= 0, f.gain, -np.inf) for f in found])
    best = best_offers(offers, np.stack([tie_ranks(TIES, f.feature) for f in found]))
    for node in range(6):
        assert found[best[node]].feature[node] == whole.feature[node]
        assert found[best[node]].bin[node] == whole.bin[node]
        np.testing.assert_array_equal(found[best[node]].left[node], whole.left[node])
    worth = split_gains(whole.left, whole.total, rule)
    np.testing.assert_array_equal(worth[whole.feature >= 0], whole.gain[whole.feature >= 0])
    assert [gain(whole.left[k], whole.total[k], rule) for k in range(6)] == worth.tolist()


@pytest.mark.parametrize("weights", [(1, 1), (3, 5)])
@pytest.mark.parametrize("min_leaf", [1, 9])
@pytest.mark.parametrize("seed", range(4))
def test_the_fast_path_for_two_classes_equals_the_general_one(seed, min_leaf, weights):
    """Class weights of 2^20 give sums beyond the fast path, and the same splits."""
    rng = np.random.default_rng(seed)
    n_bins, n_nodes = 40, 12
    bins = make_bins(Schema.of([Feature(f"x{f}") for f in range(3)]), 3 * [np.arange(n_bins - 2, dtype=np.float32)])
    features = np.tile(np.arange(3, dtype=np.int32), (n_nodes, 1))
    ties = Ties(KEY, root_seeds(KEY, np.arange(n_nodes)))
    hist = np.zeros((n_nodes, 3, n_bins, 2), np.int32)
    for node in range(n_nodes):
        y = rng.integers(0, 2, 70)
        for f in range(3):
            place = rng.integers(1 if f else rng.integers(0, 2), (2, 5, n_bins)[rng.integers(3)], 70)
            np.add.at(hist, (node, f, place, y), 1)
    quick, general = (
        choose_level(
            hist.reshape(-1, 2),
            features,
            bins,
            Rule(GINI, 0, 2, min_leaf, 25 * weights[0] * by, by * np.array(weights)),
            ties,
        )
        for by in (1, 1 << 20)
    )
    assert (quick.feature >= 0).any()
    for name, a, b in zip(Splits._fields, quick, general, strict=True):
        np.testing.assert_array_equal(a * float(1 << 20) if name == "gain" else a, b, err_msg=name)
