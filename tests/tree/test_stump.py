"""The stump of least error compared with all stumps."""

from fractions import Fraction
from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from silvan.forest.category_set import set_bits
from silvan.tree.stump import find_cut


def leads_apart(bins, sides, min_leaf):
    """The largest difference of leads over some sides, missing values on either side: integers."""
    total, best = bins.sum(axis=0), 0
    for side in sides:
        for with_missing in ((), (0,)):
            left = bins[[*side, *with_missing]].sum(axis=0)
            right = total - left
            if min(left[0], right[0]) >= min_leaf:
                best = max(best, abs(int(left[1]) - int(left[2]) - int(right[1]) + int(right[2])))
    return best


def naive(hist, bases, n_bins, categorical, min_leaf):
    """The best over all cuts, with categories in the order of their share of the second class."""
    best = 0
    for f, base in enumerate(bases):
        bins = hist[base : base + n_bins[f]]
        here = [b for b in range(1, n_bins[f]) if bins[b, 0]]
        if categorical[f]:
            here.sort(key=lambda b: Fraction(int(bins[b, 2]), int(bins[b, 1:].sum())))
        found = leads_apart(bins, [tuple(here[:k]) for k in range(1, len(here) + 1)], min_leaf)
        leads = bins[here, 1] - bins[here, 2]
        if min_leaf == 1 and categorical[f] and (leads > 0).any() and (leads < 0).any():
            every = [s for k in range(1, len(here) + 1) for s in combinations(here, k)]
            assert found == leads_apart(bins, every, 1)  # so the order suffices
        best = max(best, found)
    return best


@st.composite
def histograms(draw):
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n_rows, width = draw(st.integers(1, 40)), draw(st.integers(1, 4))
    n_bins = rng.integers(2, 8, width).astype(np.int32)
    categorical = rng.random(width) < 0.5
    codes = np.column_stack([rng.integers(rng.integers(0, 2), n, n_rows) for n in n_bins])
    y, mass = rng.integers(0, 2, n_rows), rng.integers(1, draw(st.sampled_from([2, 5, 1 << 25])), n_rows)
    bases = (np.cumsum(n_bins) - n_bins).astype(np.int64)
    hist = np.zeros((int(n_bins.sum()), 3), np.int64)
    for f in range(width):
        np.add.at(hist, bases[f] + codes[:, f], np.stack([np.ones(n_rows, int), mass * (y == 0), mass * (y == 1)], 1))
    return codes, y, mass, hist, bases, n_bins, categorical


@given(histograms())
def test_the_least_error(drawn):
    codes, y, mass, hist, bases, n_bins, categorical = drawn
    cut = find_cut(hist, bases, n_bins, categorical, 1)
    feature, last, missing_left = cut[:3]
    best = naive(hist, bases, n_bins, categorical, 1)
    if feature < 0:
        assert best == 0
        return
    code = codes[:, feature]
    if categorical[feature]:
        inside = set_bits(cut.words[None])[0]
        assert inside[0] == missing_left
        assert not inside[n_bins[feature] :].any()
        present = np.unique(code[code > 0])
        assert not len(present) or inside[present[0]]  # the lowest is on the left
        unseen = np.setdiff1d(np.arange(1, n_bins[feature]), present)
        assert (inside[unseen] == missing_left).all()
        left = inside[code]
    else:
        assert not cut.words.any()
        left = np.where(code == 0, missing_left == 1, code <= last)
    assert [(mass[left & (y == c)]).sum() for c in (0, 1)] == cut.left.tolist()
    leads = [int(mass[s & (y == 0)].sum() - mass[s & (y == 1)].sum()) for s in (left, ~left)]
    assert abs(leads[0] - leads[1]) == best > 0
    assert left.any()
    assert not left.all()


@given(histograms(), st.integers(2, 12))
def test_sides_are_large_enough(drawn, min_leaf):
    codes, _, _, hist, bases, n_bins, categorical = drawn
    numeric = np.zeros_like(categorical)
    cut = find_cut(hist, bases, n_bins, numeric, min_leaf)
    feature, last, missing_left = cut[:3]
    best = naive(hist, bases, n_bins, numeric, min_leaf)
    if feature < 0:
        assert best == 0
        return
    code = codes[:, feature]
    left = np.where(code == 0, missing_left == 1, code <= last)
    assert min(left.sum(), (~left).sum()) >= min_leaf
    total = hist[bases[0] : bases[0] + n_bins[0]].sum(axis=0)
    assert abs(2 * int(cut.left[0] - cut.left[1]) - int(total[1] - total[2])) == best
    cut = find_cut(hist, bases, n_bins, categorical, min_leaf)
    if cut.feature >= 0 and categorical[cut.feature]:
        left = set_bits(cut.words[None])[0][codes[:, cut.feature]]
        assert min(left.sum(), (~left).sum()) >= min_leaf
