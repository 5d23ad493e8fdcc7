"""The split search: kernels compared with an exhaustive search; rules for ties and missing values."""

from inspect import unwrap
from itertools import chain, combinations, permutations

import numpy as np
import pytest
from helpers.naive_split import Best, best_split, value_of
from hypothesis import example, given
from hypothesis import strategies as st

from silvan.data.bins.bins import HistogramBins, make_bins
from silvan.data.schema import Feature, Schema
from silvan.errors import InputError
from silvan.tree.gain import LOG_SCALE, Rule, gain, is_closed, n_log_n
from silvan.tree.level import choose_level
from silvan.tree.objectives import ENTROPY, GINI, OBJECTIVES, SQUARED_ERROR
from silvan.tree.sampling import Monotonic, Ties, tie_rank
from silvan.tree.split import Splits, consider_all, make_scratch

ones = np.ones(3, np.int64)

TIES = Ties(np.arange(2, dtype=np.uint64), np.zeros(1, np.uint64))


def make_rule(criterion=GINI, lead=0, min_split=2, min_leaf=1, min_mass=0, class_weight=ones):
    return Rule(criterion, lead, min_split, min_leaf, min_mass, np.asarray(class_weight, np.int64))


def choose(hists, rule, categorical, ties=TIES):
    """Runs the kernel on one node that samples every feature."""
    features = [
        Feature(f"x{f}", "categorical", categories=tuple(map(str, range(len(h) - 1)))[:254], other=len(h) == 256)
        if categorical[f]
        else Feature(f"x{f}")
        for f, h in enumerate(hists)
    ]
    bins = make_bins(Schema.of(features), [np.arange(len(h) - 2, dtype=np.float32) for h in hists])
    if len(hists[0]) == 1:  # not even a bin for values
        none = np.zeros(len(hists), np.int32)
        bins.__dict__["in_histograms"] = HistogramBins.of(none, none.astype(np.uint8))
    hist = np.ascontiguousarray(np.concatenate(hists), np.int64)
    return choose_level(hist, np.arange(len(hists), dtype=np.int32)[None], bins, rule, ties)


def left_set(splits):
    return sum(int(word) << 64 * w for w, word in enumerate(splits.words[0]))


def chosen(hist, rule, categorical, ties=TIES):
    """The kernel's result for one feature in the naive version's terms; the value follows from the decrease."""
    splits = choose([hist], rule, [categorical], ties)
    if splits.feature[0] < 0:
        return None
    total = splits.total[0]
    np.testing.assert_array_equal(total, np.sum(hist, axis=0))
    value = gain(splits.left[0], total, rule)
    assert splits.gain[0] == max(value - gain(total, total, rule), 0)
    return Best(value, splits.bin[0], splits.missing_left[0], left_set(splits), splits.left[0].tolist())


@st.composite
def cases(draw):
    """A rule and the histogram of one feature; small numbers, so that ties are frequent."""
    n_bins = draw(st.integers(1, 9) | st.sampled_from([66, 256]))
    # a few bins only, the missing one among them
    used = draw(st.lists(st.integers(0, n_bins - 1) | st.just(0), min_size=1, max_size=8, unique=True))
    criterion = draw(st.sampled_from([GINI, ENTROPY, SQUARED_ERROR]))
    n_classes = 0 if criterion == SQUARED_ERROR else draw(st.integers(2, 4))
    weighted = draw(st.booleans())
    lead = int(weighted) + (n_classes == 0)
    n_stats = lead + max(n_classes, 1)
    class_weight = [1] * max(n_classes, 1)
    if n_classes and not weighted and draw(st.booleans()):
        class_weight = draw(st.lists(st.integers(1, 5000), min_size=n_classes, max_size=n_classes))
    hist = np.zeros((n_bins, n_stats), np.int64)
    for _ in range(draw(st.integers(1, 25))):
        stats = hist[draw(st.sampled_from(used))]
        stats[0] += lead > 0
        weight = draw(st.integers(1, 3)) if weighted else 1
        if n_classes:
            stats[lead + draw(st.integers(0, n_classes - 1))] += weight
        else:
            stats[lead - 1] += weight if weighted else 0
            stats[lead] += weight * draw(st.integers(-3, 3))
    mass = hist[:, -2].sum() if n_classes == 0 else (hist[:, lead:] * class_weight).sum()
    rule = make_rule(
        criterion,
        lead,
        min_leaf=draw(st.integers(1, 4)),
        min_mass=draw(st.integers(0, int(mass) // 2)),
        class_weight=class_weight,
    )
    return hist, rule, draw(st.booleans())


@given(cases())
def test_best_split_of_a_feature(case):
    hist, rule, categorical = case
    if is_closed(hist.sum(axis=0), rule):
        assert chosen(hist, rule, categorical) is None
    else:
        assert chosen(hist, rule, categorical) == best_split(hist, rule, categorical)


@given(cases(), st.sampled_from([-1, 0, 1]), st.floats(-2, 2), st.floats(-2, 2))
def test_best_monotonic_split_of_a_feature(case, sign, low, high):
    """Sides in the right order and within the node's bounds; the best of the remaining splits."""
    hist, rule, categorical = case
    if is_closed(hist.sum(axis=0), rule) or len(rule.class_weight) > 2:
        return
    limits = (0 if categorical else sign, min(low, high) - 0.5, max(low, high) + 0.5)
    ties = TIES._replace(monotonic=Monotonic(np.array(limits[:1], np.int8), np.array([limits[1:]])))
    assert chosen(hist, rule, categorical, ties) == best_split(hist, rule, categorical, limits)


@given(st.lists(cases(), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_ties_between_features_are_random(drawn, random):
    hist, rule, categorical = drawn[0]
    # other features see the same rows, so their statistics are the first one's, in other bins
    hists = [hist]
    for _ in drawn[1:]:
        order = random.sample(range(len(hist)), len(hist))
        hists.append(hist[order] if random.random() < 0.7 else hist)
    splits = choose(hists, rule, [categorical] * len(hists))
    each = [best_split(h, rule, categorical) for h in hists]
    values = [-np.inf if best is None else best.value for best in each]
    if is_closed(hist.sum(axis=0), rule) or max(values) == -np.inf:
        assert splits.feature[0] == -1
    else:
        best = [f for f, value in enumerate(values) if value == max(values)]
        first = min(best, key=lambda f: tie_rank(TIES, 0, f))
        assert splits.feature[0] == first
        assert splits.left[0].tolist() == each[first].left
        assert (splits.bin[0], splits.missing_left[0], left_set(splits)) == each[first][1:4]


@given(cases())
def test_relabelling_classes_changes_no_bit(case):
    hist, rule, categorical = case
    if rule.criterion == SQUARED_ERROR:
        return
    before = choose([hist], rule, [categorical])
    for order in permutations(range(len(rule.class_weight))):
        columns = [*range(rule.lead), *(rule.lead + c for c in order)]
        relabelled = rule._replace(class_weight=rule.class_weight[list(order)])
        after = choose([hist[:, columns]], relabelled, [categorical])
        for name in ("feature", "bin", "missing_left", "words", "gain"):
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
        np.testing.assert_array_equal(after.left, before.left[:, columns])


def test_relabelling_with_large_masses():
    rng = np.random.default_rng(0)
    for criterion in (GINI, ENTROPY):
        for _ in range(50):
            hist = rng.integers(0, 2**24, (6, 5))
            rule = make_rule(criterion, 0, class_weight=np.ones(5))
            before = choose([hist], rule, [False])
            for _ in range(5):
                after = choose([hist[:, rng.permutation(5)]], rule, [False])
                assert (after.gain[0], after.bin[0]) == (before.gain[0], before.bin[0])


# -- category sets


@given(cases())
def test_no_subset_beats_sets_ordered_by_mean(case):
    """Fisher 1958: for two classes or a number, only sets of the lowest means can be best."""
    hist, rule, _ = case
    if rule.criterion != SQUARED_ERROR and hist.shape[1] - rule.lead != 2:
        return
    rule = rule._replace(min_leaf=1, min_mass=1)
    occupied = [b for b in range(len(hist)) if hist[b].any() and b > 0]
    total = hist.sum(axis=0)
    if hist[0].any() or len(occupied) < 2 or is_closed(total, rule):
        return
    subsets = chain(*(combinations(occupied, k) for k in range(1, len(occupied))))
    sides = [hist[list(subset)].sum(axis=0) for subset in subsets]
    values = [value_of(left.tolist(), (total - left).tolist(), rule) for left in sides]
    best = chosen(hist, rule, True)
    values = [value for value in values if value is not None]
    if best is not None:
        assert best.value == pytest.approx(max(values), rel=1e-12, abs=1e-5)
    elif values:  # all means are equal, so no set helps
        assert max(values) == pytest.approx(gain(total, total, rule), rel=1e-12, abs=1e-5)


def sets(*bins):
    return sum(1 << b for b in bins)


def test_left_holds_the_lowest_code_present():
    hist = np.array([[0, 0], [0, 0], [0, 9], [9, 0], [0, 9], [5, 0], [0, 0]])
    splits = choose([hist], make_rule(class_weight=[1, 1]), [True])
    # missing values and unseen codes 1 and 6 follow the larger side, which is left
    assert left_set(splits) == sets(0, 1, 2, 4, 6)
    assert splits.left[0].tolist() == [0, 18]


def test_unseen_categories_follow_missing_values():
    hist = np.array([[4, 0], [0, 0], [0, 9], [9, 0], [0, 0]])
    splits = choose([hist], make_rule(class_weight=[1, 1]), [True])
    assert not splits.missing_left[0]
    assert left_set(splits) == sets(2)
    assert splits.left[0].tolist() == [0, 9]
    splits = choose([hist[:, ::-1]], make_rule(class_weight=[1, 1]), [True])
    assert left_set(splits) == sets(2)
    hist[0] = 0, 4
    assert left_set(choose([hist], make_rule(class_weight=[1, 1]), [True])) == sets(0, 1, 2, 4)


@pytest.mark.parametrize("categorical", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_missing_values_can_be_separated_from_all_others(categorical, n_classes):
    """Missing values may be the most informative, for every kind of feature."""
    hist = np.zeros((6, n_classes), np.int64)
    hist[0, 0] = 30
    hist[1:4, 1:] = 10
    splits = choose([hist], make_rule(class_weight=np.ones(n_classes)), [categorical])
    assert splits.left[0].tolist() == [0] + [30] * (n_classes - 1)
    assert not splits.missing_left[0]
    if not categorical:
        assert splits.bin[0] == 5  # larger values that nobody has seen are not missing


# -- cuts


def test_a_cut_is_in_the_middle_of_its_gap():
    hist = np.zeros((100, 2), np.int64)
    hist[10], hist[21] = (5, 0), (0, 5)
    assert choose([hist], make_rule(class_weight=[1, 1]), [False]).bin[0] == 15
    hist[16] = 5, 0
    assert choose([hist], make_rule(class_weight=[1, 1]), [False]).bin[0] == 18


def test_the_lowest_of_equal_cuts_wins():
    hist = np.array([[0, 5], [5, 0], [0, 5], [5, 0]])
    splits = choose([hist], make_rule(class_weight=[1, 1]), [False])
    # bin 1 against the rest is as good as bin 3 against the rest, whatever side the missing values take
    assert (splits.bin[0], splits.missing_left[0]) == (1, False)
    assert splits.left[0].tolist() == [5, 0]


@pytest.mark.parametrize(("low", "high", "missing_left"), [(5, 6, False), (5, 5, True), (6, 5, True)])
@pytest.mark.parametrize("categorical", [False, True])
def test_missing_values_follow_the_larger_side_where_none_was_seen(low, high, missing_left, categorical):
    hist = np.array([[0, 0], [low, 0], [0, high]])
    assert choose([hist], make_rule(class_weight=[1, 1]), [categorical]).missing_left[0] == missing_left


@pytest.mark.parametrize("side", [0, 1])
def test_missing_values_join_the_similar_side(side):
    hist = np.zeros((4, 2), np.int64)
    hist[0, side], hist[1, 0], hist[3, 1] = 7, 9, 8
    splits = choose([hist], make_rule(class_weight=[1, 1]), [False])
    assert splits.missing_left[0] == (side == 0)
    assert splits.left[0].tolist() == ([16, 0] if side == 0 else [9, 0])


def test_one_bin_offers_no_split():
    for categorical in (False, True):
        assert choose([np.array([[5, 5]])], make_rule(class_weight=[1, 1]), [categorical]).feature[0] == -1


@pytest.mark.parametrize("shape", [(2, 2), (4, 2), (3, 1), (3, 3), (0, 2)])
def test_histograms_that_do_not_fit_are_refused(shape):
    """They come from other machines; reading past their end would be worse than an error."""
    bins = make_bins(Schema.of(["x"]), [np.zeros(1, np.float32)])
    rule = make_rule(class_weight=[1, 1])
    with pytest.raises(InputError, match="histograms"):
        choose_level(np.ones(shape, np.int64), np.zeros((1, 1), np.int32), bins, rule, TIES)


# -- gains


def test_n_log_n_is_right_to_the_last_unit():
    small = np.arange(1, 1 << 14)
    exact = small * np.log2(small.astype(np.longdouble)) * LOG_SCALE
    found = np.array([n_log_n(n) for n in small.tolist()])
    assert n_log_n(0) == 0
    assert np.abs(found - exact).max() < 0.501
    assert [n_log_n(1 << k) for k in range(31)] == [(k << k) * LOG_SCALE for k in range(31)]


@given(st.integers(1, 2**31))
@example((1 << 14) - 1)
@example(1 << 14)
@example((1 << 14) + 1)
def test_n_log_n(n):
    exact = n * np.log2(np.longdouble(n)) * LOG_SCALE
    assert abs(n_log_n(n) - exact) <= 0.51 + abs(exact) * 2**-50


@pytest.mark.parametrize("criterion", ["gini", "entropy"])
def test_gain_is_the_decrease_of_impurity(criterion):
    rng = np.random.default_rng(0)

    def impurity(counts):
        share = counts[counts > 0] / counts.sum()
        return 1 - (share**2).sum() if criterion == "gini" else -(share * np.log2(share)).sum()

    for _ in range(20):
        hist, weight = rng.integers(0, 30, (12, 3)), rng.integers(1, 9, 3)
        splits = choose([hist], make_rule(OBJECTIVES[criterion].code, class_weight=weight), [False])
        left, total = splits.left[0] * weight, splits.total[0] * weight
        right = total - left
        decrease = sum(s.sum() * impurity(s) * sign for s, sign in ((total, 1), (left, -1), (right, -1)))
        assert splits.gain[0] == pytest.approx(decrease, rel=1e-6, abs=1e-4)


def test_gain_is_the_decrease_of_squared_error():
    rng = np.random.default_rng(0)
    x, y = rng.integers(1, 6, 50), rng.integers(-99, 99, 50)
    hist = np.zeros((6, 2), np.int64)
    np.add.at(hist, x, np.stack([np.ones_like(y), y], axis=1))
    splits = choose([hist], make_rule(SQUARED_ERROR, 1, class_weight=[1]), [False])
    inside = sum(((side - side.mean()) ** 2).sum() for side in (y[x <= splits.bin[0]], y[x > splits.bin[0]]))
    assert splits.gain[0] == pytest.approx(((y - y.mean()) ** 2).sum() - inside)


def test_equal_means_are_a_split_without_gain():
    hist = np.array([[0, 0], [3, 10**15 // 3 * 3], [7, 10**15 // 3 * 7]])
    for categorical in (False, True):
        splits = choose([hist], make_rule(SQUARED_ERROR, 1, class_weight=[1]), [categorical])
        assert (splits.feature[0], splits.gain[0]) == (0, 0.0)


def test_categories_of_equal_means_are_split_by_code():
    """The lowest set, whichever class comes first; and no further than where means differ."""
    alike = np.array([[0, 0], [2, 2], [4, 4], [1, 1]])
    for hist in (alike, alike[:, ::-1]):
        splits = choose([np.ascontiguousarray(hist)], make_rule(class_weight=[1, 1]), [True])
        assert (splits.gain[0], left_set(splits) >> 1 & 1) == (0.0, 1)
    differ = np.array([[0, 0], [2, 2], [4, 4], [3, 1]])
    splits = choose([differ], make_rule(class_weight=[1, 1]), [True])
    assert splits.left[0].tolist() == [6, 6]


def test_contradictory_features_are_not_read_beyond_their_bins():
    """Such counts would make the kernel read foreign memory; uncompiled, NumPy checks indices."""
    bins = make_bins(Schema.of(["a", "b"]), [np.zeros(1, np.float32)] * 2).in_histograms
    hist = np.array([[0, 0], [100, 90], [0, 10], [0, 0], [0, 0], [100, 50]], np.int64)
    splits, scratch = Splits.empty(1, 2), make_scratch(2, 2)
    splits.total[0] = 100, 100
    columns, bases = np.arange(2), np.array([0, 3])
    unwrap(consider_all)(columns, 2, None, hist, bases, bins, 0, make_rule(), 0, TIES, splits, scratch)
    assert (splits.feature[0], splits.bin[0]) == (1, 2)
