"""The grower: compared with a recursive version, for any distribution of rows and number of rounds."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers.examples import examples
from helpers.naive_kernels import fill_naive, partition_naive
from helpers.naive_split import best_split, rows_of
from helpers.tables import Sites, binned, take
from hypothesis import given
from hypothesis import strategies as st

from silvan.tree import rows as rows_module
from silvan.tree.fit import assemble
from silvan.tree.gain import Rule
from silvan.tree.grow import Plan, grow
from silvan.tree.objectives import ENTROPY, GINI, SQUARED_ERROR
from silvan.tree.rows import TreeRows
from silvan.tree.sampling import (
    Ties,
    child_seeds,
    make_feature_order,
    make_key,
    root_seeds,
    rows_of_trees,
    sample_features,
    tie_rank,
)
from silvan.tree.split import Splits

ROWS, FEATURES = make_key(0, "rows"), make_key(0, "features")
N_TREES = 3


@pytest.fixture(params=["sorted", "streamed"], scope="module", autouse=True)
def way(request):
    """Runs every test here with both ways of counting: rows gathered by node, and in one walk along the rows."""
    before = rows_module.SMALL_TABLE
    rows_module.SMALL_TABLE = -1 if request.param == "streamed" else before
    yield
    rows_module.SMALL_TABLE = before


@st.composite
def plots(draw):
    """A table, the parameters of its trees, and the split criterion."""
    n_classes = draw(st.sampled_from([0, 2, 2, 3]))
    shape = {
        "seed": draw(st.integers(0, 2**32)),
        "n_rows": draw(st.integers(1, 70)),
        "n_features": draw(st.integers(1, 7)),
        "n_classes": n_classes,
        "weighted": draw(st.booleans()),
        "missing": draw(st.sampled_from([0.0, 0.3])),
    }
    table, target, schema = binned(**shape)
    criterion = draw(st.sampled_from([GINI, ENTROPY])) if n_classes else SQUARED_ERROR
    rule = Rule(
        criterion,
        target.measure.lead,
        draw(st.integers(2, 6)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from([0, 3])),
        np.array(target.measure.class_weight),
    )
    n = shape["n_features"]
    plan = Plan(n, draw(st.integers(1, n)), draw(st.sampled_from([1, 3, None])), draw(st.booleans()))
    return table, plan, rule, target, schema


def grow_here(table, plan, rule, trees=range(N_TREES)):
    rows = TreeRows.of_trees(table, ROWS, trees, True)
    return grow(np.array(trees), FEATURES, plan, rule, lambda f: rows.find(f, plan, rule, FEATURES), rows.apply)


def forest_hash(grown, table, target, schema):
    return assemble([(grown, table.bins.cut(grown.feature, grown.bin))], schema, target.measure).hash


# -- the naive version


def naive_tree(table, plan, rule, rows, seed, offset, depth=0, barren=False):
    """Grows one node and its subtree: its statistics, and its split and children if it has any."""
    bins = table.bins
    hists = [
        fill_naive(table.codes, table.target, rows, f, bins.in_histograms, offset, table.n_stats)
        for f in range(plan.n_features)
    ]
    stats = hists[0].sum(axis=0).tolist()
    pure = rule.criterion != SQUARED_ERROR and sum(s > 0 for s in stats[rule.lead :]) < 2
    small = rows_of(stats, rule) < max(rule.min_split, 2 * rule.min_leaf)
    if pure or small or depth == plan.max_depth:
        return (stats,)
    best, varies, ties = None, False, Ties(FEATURES, np.array([seed]))
    for attempt in range(1 if plan.by_tree else math.ceil(plan.n_features / plan.n_sampled)):
        drawn = np.zeros(plan.n_sampled, np.int64)
        for f in drawn[: sample_features(seed, attempt, make_feature_order(plan.n_features), drawn)].tolist():
            occupied = sum(rows_of(stats, rule) > 0 for stats in hists[f])
            varies |= occupied > 1
            found, rank = best_split(hists[f], rule, bins.categorical[f]), tie_rank(ties, 0, f)
            if found is not None and (best is None or (found.value, -int(rank)) > (best[1].value, -int(best[2]))):
                best = f, found, rank
        if varies:
            break
    if best is None:
        return (stats,)
    f, found, _ = best
    gains_nothing = rule.criterion == SQUARED_ERROR and found.value == 0
    if gains_nothing and barren:
        return (stats,)
    splits = Splits.empty(1, table.n_stats)
    # the highest code in the bin; all codes if the other side has only missing values
    together = 2 ** int(bins.shift[f])
    last = min((found.bin + 1) * together - 1 - offset % together, int(bins.last[f])) * (not bins.categorical[f])
    splits.feature[0], splits.bin[0], splits.missing_left[0] = f, last, found.missing_left
    splits.words[0] = [found.left_set >> 64 * w & (2**64 - 1) for w in range(4)]
    sides = partition_naive(table.codes, rows, splits, 0, bins.categorical)
    seeds = np.array([seed, seed]) if plan.by_tree else child_seeds(np.array([seed]))[0]
    args = offset, depth + 1, gains_nothing
    below = [naive_tree(table, plan, rule, s, c, *args) for s, c in zip(sides, seeds, strict=True)]
    if gains_nothing and len(below[0]) == len(below[1]) == 1:
        return (stats,)
    return stats, (f, last, found.missing_left, found.left_set), *below


def as_nested(grown, node):
    """Converts the result to the naive version's form."""
    stats = grown.stats[node].tolist()
    made = np.flatnonzero(grown.node == node)
    if not len(made) or (grown.kept is not None and not grown.kept[made[0]]):
        return (stats,)
    k = made[0]
    left_set = sum(int(word) << 64 * w for w, word in enumerate(grown.words[k]))
    split = grown.feature[k], grown.bin[k], grown.missing_left[k], left_set
    child = grown.n_trees + 2 * k
    return stats, split, as_nested(grown, child), as_nested(grown, child + 1)


@examples(60)
@given(plots())
def test_trees_node_by_node(plot):
    table, plan, rule, *_ = plot
    grown = grow_here(table, replace(plan, tries=plan.n_draws), rule)
    drawn = rows_of_trees(ROWS, table.row_keys, 0, N_TREES, True)
    seeds = root_seeds(FEATURES, np.arange(N_TREES))
    for t in range(N_TREES):
        expected = naive_tree(table, plan, rule, np.flatnonzero(drawn[t]), seeds[t], t)
        assert as_nested(grown, t) == expected


# -- where rows are, and in how many rounds


@examples(60)
@given(plots(), st.integers(1, 4), st.sampled_from([2, 5, None]))
def test_several_sites_grow_the_same_forest(plot, n_sites, max_rounds):
    table, plan, rule, target, schema = plot
    plan = replace(plan, tries=1, max_rounds=max_rounds)
    owner = np.random.default_rng(0).integers(0, n_sites, len(table))
    parts = [
        TreeRows.of_trees(take(table, np.flatnonzero(owner == s)), ROWS, range(N_TREES), True) for s in range(n_sites)
    ]
    sites = Sites(parts, plan, rule, FEATURES)
    apart = grow(np.arange(N_TREES), FEATURES, plan, rule, sites.find, sites.apply)
    together = grow_here(table, plan, rule)
    for name in apart.__dataclass_fields__ if rule.criterion != SQUARED_ERROR else ():
        np.testing.assert_array_equal(getattr(apart, name), getattr(together, name), err_msg=name)
    assert [as_nested(apart, t) for t in range(N_TREES)] == [as_nested(together, t) for t in range(N_TREES)]
    assert sites.asked == apart.rounds
    if (apart.stats[:N_TREES, : target.measure.lead or None] > 0).any():  # some tree sampled a row
        assert forest_hash(apart, table, target, schema) == forest_hash(together, table, target, schema)


@given(plots())
def test_columns_may_be_sampled_in_one_round_or_in_many(plot):
    table, plan, rule, target, schema = plot
    at_once = grow_here(table, replace(plan, tries=plan.n_draws), rule)
    in_turn = grow_here(table, replace(plan, tries=1), rule)
    assert in_turn.rounds >= at_once.rounds
    if (at_once.stats[:N_TREES, : target.measure.lead or None] > 0).any():
        assert forest_hash(at_once, table, target, schema) == forest_hash(in_turn, table, target, schema)


@given(plots())
def test_trees_grow_independently_of_each_other(plot):
    table, plan, rule, *_ = plot
    plan = replace(plan, tries=plan.n_draws)
    together = grow_here(table, plan, rule)
    for t in range(N_TREES):
        alone = grow_here(table, plan, rule, range(t, t + 1))
        assert as_nested(alone, 0) == as_nested(together, t)


# -- books


@pytest.mark.parametrize("max_depth", [1, 2, 4])
def test_one_round_per_tree_level(max_depth):
    table, target, _ = binned(0, n_rows=300, missing=0.0)
    plan = Plan(5, 5, max_depth)
    grown = grow_here(table, plan, Rule(GINI, 0, 2, 1, 0, np.array(target.measure.class_weight)))
    assert grown.rounds == max_depth
    assert grown.depth.max() == max_depth


@pytest.mark.parametrize("max_rounds", [1, 2, 3])
def test_rounds_are_limited(max_rounds):
    table, target, _ = binned(0, n_rows=300, n_features=9)
    table.codes[:, ::2] = 1  # half of the sampled columns offer no split and cost a round
    plan = Plan(9, 1, max_rounds=max_rounds)
    grown = grow_here(table, plan, Rule(GINI, 0, 2, 1, 0, np.array(target.measure.class_weight)))
    assert grown.rounds == max_rounds
    assert grown.depth.max() <= max_rounds


@given(plots())
def test_statistics_agree(plot):
    table, plan, rule, *_ = plot
    grown = grow_here(table, plan, rule)
    children = N_TREES + 2 * np.arange(len(grown.node))
    np.testing.assert_array_equal(grown.stats[children] + grown.stats[children + 1], grown.stats[grown.node])
    for side in (0, 1):
        np.testing.assert_array_equal(grown.tree[children + side], grown.tree[grown.node])
        np.testing.assert_array_equal(grown.depth[children + side], grown.depth[grown.node] + 1)
    assert len(grown.tree) == N_TREES + 2 * len(grown.node)
    assert len(set(grown.node)) == len(grown.node)
    if plan.by_tree:
        for t in range(N_TREES):
            assert len(set(grown.feature[grown.tree[grown.node] == t])) <= plan.n_sampled
