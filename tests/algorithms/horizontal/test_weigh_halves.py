"""The halves of AutoForest's shared forest are weighted by their performance at all sites together."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.limits import limited
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.algorithms.evaluation.candidates import LocalModel, SentModel
from silvan.algorithms.evaluation.out_of_bag import Scored, score_unseen
from silvan.algorithms.evaluation.score_quality import score_quality
from silvan.algorithms.horizontal.merged_forest import equal_site_weights
from silvan.algorithms.horizontal.weigh_halves import (
    Compared,
    CompareHalves,
    HalvesGap,
    check_gap,
    compare,
    rate_scores,
    same_spread,
)
from silvan.algorithms.keyed_rows import RowSamples
from silvan.errors import FormatError, RefusedError, SiteError
from silvan.federation.members import OVERALL
from silvan.privacy.policy import PolicyBetweenMachines
from silvan.tree.fit import Settings

SMALL = {"n_estimators": 8, "max_depth": 4}


def halves_of(model):
    """The two halves of a fitted AutoForest, and the samples of their trees."""
    forest, n = model.forest_, model.n_estimators
    sites = list(model.forests_)
    draws = [RowSamples((n,)), RowSamples((n,) * len(sites), tuple(sites), refitted=True)]
    halves = forest.take(np.arange(n)), forest.take(np.arange(n, len(forest)))
    # as they were compared: other weights round sums of scores differently and create other ties
    weights = np.ones(n), equal_site_weights((halves[1].weights > 0).astype(float), [n] * len(sites))
    return tuple(replace(half, weights=of) for half, of in zip(halves, weights, strict=True)), draws


@pytest.mark.parametrize("task", ["binary", "several", "number"])
def test_weights_follow_from_the_mean_gap_over_sites(task):
    fed = federate(parts(table(task, n=180), 3))
    model = sv.AutoForest(**SMALL, calibrate=False).fit(fed)  # halves are compared before calibration
    halves, draws = halves_of(model)
    gaps = []
    for site in map(fed.site, fed.sites):
        scored = [score_unseen(site, fed.schema, *one) for one in zip(halves, draws, strict=True)]
        known = ~np.isnan(scored[0].scores + scored[1].scores).any(axis=1)
        y = scored[0].y[known]
        values = [score_quality(one.scores[known], y, fed.schema.n_classes, by_pairs=True).merit for one in scored]
        figures = values if fed.schema.n_classes else [max(0.0, 1 + value / np.var(y)) for value in values]
        gaps.append(np.clip(round(figures[1], 3) - round(figures[0], 3), -0.1, 0.1))
    odds = 1.5 * np.exp(np.mean(gaps) / 0.01)
    assert model.weights_["sites"] == pytest.approx(odds / (1 + odds), abs=1e-6)
    assert sum(model.weights_.values()) == pytest.approx(1.0)
    trees = np.array([w.sum() for w in np.split(model.forest_.weights, [8])])
    np.testing.assert_allclose(trees / trees.sum(), list(model.weights_.values()))
    assert "3 sites" in model.choices_.shared
    assert model.choices_.shared in str(model.choices_)


def test_the_better_half_has_more_weight():
    assert Compared(0.0, 3).share(1.0) == 0.5
    assert Compared(0.01, 3).share(1.0) == pytest.approx(np.e / (1 + np.e))
    assert Compared(-0.01, 3).share(1.5) == pytest.approx(1.5 / (1.5 + np.e))
    assert Compared().share(1.5) == pytest.approx(0.6)


def test_a_forest_of_noise_has_hardly_any_weight():
    fed = federate(parts(table(n=240), 3))
    (first, second), draws = halves_of(sv.AutoForest(**SMALL).fit(fed))
    noise = replace(first, value=np.random.default_rng(0).permutation(first.value))
    with fed.working_on("another task"):
        found = compare(fed, fed.schema, (noise, second), draws)
    assert found == (pytest.approx(0.1), 3)  # no site's gap counts for more
    assert found.share(1.0) > 0.9999


def test_masked_sums_give_the_same_weights():
    tables = parts(table(n=180), 3)
    trusted, masked = (sv.AutoForest(**SMALL).fit(federate(tables, sums=sums)) for sums in ("trusted", "masked"))
    assert trusted.weights_ == masked.weights_


def test_sites_with_few_rows_disclose_nothing():
    tables = parts(table(n=16), 2)
    model = sv.AutoForest(**SMALL).fit(federate(tables))
    assert model.weights_ == {"sums": pytest.approx(0.4), "sites": pytest.approx(0.6)}
    assert model.choices_.shared == "The shared forest: 40% trees from sums, 60% sites' trees."
    fed = federate(parts(table(n=120), 2) | {"small": table(n=8, seed=5)})
    assert "over 2 sites" in sv.AutoForest(**SMALL).fit(fed).choices_.shared


# -- what is disclosed


def scored(row_label):
    """Rows of which one forest isolates one, and the other none."""
    y = np.arange(40) % 2
    y[0] = row_label
    apart = np.full(40, 0.1)
    apart[0] = 0.9
    pairs = [np.stack([1 - s, s], axis=1) for s in (np.full(40, 0.5), apart)]
    return [Scored(scores, np.zeros((40, 0)), y) for scores in pairs]


def test_a_forest_that_isolates_a_row_reveals_no_label():
    open_site = federate(parts(table(n=60), 2)).site("site 0")
    assert rate_scores(open_site, scored(0), 2) != rate_scores(open_site, scored(1), 2)
    site = federate(parts(table(n=60), 2), policy=PolicyBetweenMachines()).site("site 0")
    gaps = [second - first for first, second in (rate_scores(site, scored(label), 2) for label in (0, 1))]
    assert gaps[0] == pytest.approx(gaps[1])


def test_scores_of_the_same_spread_rank_rows_as_before():
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, 60)
    sure = np.round(rng.random(60) + y, 1) / 2
    unsure = 0.45 + 0.1 * rng.random(60)
    pairs = [np.stack([1 - s, s], axis=1) for s in (sure, unsure)]
    for before, after in zip(pairs, same_spread(pairs), strict=True):
        assert score_quality(after, y, 2).value == pytest.approx(score_quality(before, y, 2).value)
        order = [np.unique(one[:, 1], return_inverse=True)[1] for one in (before, after)]
        np.testing.assert_array_equal(*order)
    spreads = [one[:, 1].std() for one in same_spread(pairs)]
    assert spreads[0] == pytest.approx(spreads[1], rel=0.05)


# -- what is refused


def asked_of(fed, models):
    return CompareHalves(schema=fed.blob(fed.schema.to_json().encode()), models=models)


def test_halves_need_known_samples():
    fed = federate(parts(table(n=60), 3))
    model = sv.AutoForest(**SMALL).fit(fed)
    halves, draws = halves_of(model)
    known = [SentModel(fed.blob(f.to_bytes()), draws=d) for f, d in zip(halves, draws, strict=True)]
    for wrong in (
        known[:1],
        [*known, known[0]],
        [known[0], SentModel(known[1].model)],
        [known[0], LocalModel(Settings())],
    ):
        with fed.working_on("a task"), pytest.raises(SiteError, match="could not read what it was sent"):
            fed.total(asked_of(fed, wrong))


def test_halves_count_as_evaluated_models():
    fed = limited(federate(parts(table(n=60), 2)), models=1)
    with pytest.raises(RefusedError, match="1 at most"):
        sv.AutoForest(**SMALL).fit(fed)


@pytest.mark.parametrize(
    ("lie", "match"),
    [
        ([1, 100, 0], "not the ones requested"),
        ([2, 100], "impossible"),
        ([0, 1], "impossible"),
        ([1, 201], "impossible"),
        ([1, -1], "impossible"),
    ],
)
def test_impossible_choices_are_refused(lie, match):
    with pytest.raises(FormatError, match=match):
        check_gap(3)("a site", HalvesGap(gap=np.array(lie, np.int64)))
    check_gap(3)("a site", HalvesGap(gap=np.array([1, 200])))
    check_gap(3)(OVERALL, HalvesGap(gap=np.array([3, 600])))
    with pytest.raises(FormatError, match="impossible"):
        check_gap(3)(OVERALL, HalvesGap(gap=np.array([4, 600])))
