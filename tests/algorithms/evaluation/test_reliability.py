"""Calibrated scores, intervals and prediction sets, all from out-of-bag rows."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from helpers.limits import in_groups_of
from helpers.studies import table
from scipy.optimize import minimize
from sklearn.metrics import log_loss, roc_auc_score

import silvan as sv
from silvan.algorithms.evaluation.candidates import SentModel
from silvan.algorithms.evaluation.out_of_bag import score_unseen
from silvan.algorithms.evaluation.reliability import (
    OWN_ERRORS,
    CountErrors,
    count_errors,
    error_edges,
    error_table,
    fit_curve,
)
from silvan.algorithms.evaluation.score_groups import Answer
from silvan.algorithms.keyed_rows import RowSamples
from silvan.errors import FormatError, InputError, RefusedError, SilvanError
from silvan.forest.forest import Forest
from silvan.forest.intervals import interval_reach
from silvan.forest.predict import log_odds, scores
from silvan.learners.registry import LEARNERS

SMALL = {"n_estimators": 20, "max_depth": 5}
LEARNERS_ON_ROWS = [sv.AutoForest, sv.BOFRF, sv.MergedForest, sv.HistogramForest]


def heart(**options):
    return sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease", test=0.3, **options)


def numbers(n=600, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    y = x[:, 0] + rng.normal(size=n)
    return pl.DataFrame({f"x{i}": x[:, i] for i in range(3)} | {"label": y, "site": rng.integers(0, 2, n).astype(str)})


@pytest.fixture(scope="module")
def both():
    """AutoForest without and with calibration, on the same sites."""
    fed = heart()
    return fed, sv.AutoForest(**SMALL, calibrate=False).fit(fed), sv.AutoForest(**SMALL, intervals=True).fit(fed)


# -- curves
def test_a_curve_is_penalised_logistic_regression_on_log_odds():
    rng = np.random.default_rng(0)
    score, weights = rng.random(200), rng.integers(1, 4, 200).astype(float)
    hits = rng.random(200) < score**2

    def loss(at):
        z = at[0] + at[1] * log_odds(score)
        fit = (weights * (np.logaddexp(0, z) - hits * z)).sum()
        return fit + 0.5 * (2.0 * (at[0] - 0.3) ** 2 + 8.0 * (at[1] - 1.5) ** 2)

    expected = minimize(loss, [0.0, 1.0], tol=1e-12).x
    assert fit_curve(score, hits, weights, (0.3, 1.5), (2.0, 8.0)) == pytest.approx(expected, abs=1e-4)


def test_calibration_keeps_the_order_of_rows_and_improves_log_loss(both):
    fed, plain, model = both
    before, after = [], []
    for site in fed.active:
        part = fed.site(site).part(fed.schema, test=True)
        old, new = (scores(one.forests_[site], part.X)[:, 1] for one in (plain, model))
        assert np.array_equal(np.argsort(old, kind="stable"), np.argsort(new, kind="stable"))
        assert roc_auc_score(part.y, old) == roc_auc_score(part.y, new)
        before.append(log_loss(part.y, old, labels=[0, 1]))
        after.append(log_loss(part.y, new, labels=[0, 1]))
    assert np.mean(after) < np.mean(before) - 0.05


def test_what_is_evaluated_is_the_calibrated_forest_of_each_site(both):
    fed, _, model = both
    found = model.evaluate(fed).filter(model="federated")
    for site in fed.active:
        part = fed.site(site).part(fed.schema, test=True)
        brier = np.mean((scores(model.forests_[site], part.X)[:, 1] - part.y) ** 2)
        assert found.filter(site=site)["brier"].item() == pytest.approx(brier, abs=1e-3)


def test_a_site_moves_the_shared_curve_by_its_own_rows(both):
    fed, _, model = both
    curves = {site: model.forests_[site].curve for site in fed.active}
    assert len({curve.tobytes() for curve in curves.values()}) == len(curves)
    # nearly all rows are positive at Switzerland: its intercept is far above the shared one
    assert curves["Switzerland"][1, 0] > model.forest_.curve[1, 0] + 0.5


@pytest.mark.parametrize("sums", ["masked", "ring"])
def test_masked_sums_give_the_same_curve_and_errors(both, sums):
    _, _, model = both
    assert sv.AutoForest(**SMALL, intervals=True).fit(heart(sums=sums)).forest_ == model.forest_


@pytest.mark.parametrize("learner", LEARNERS_ON_ROWS)
def test_the_trees_stay_as_they_are(learner):
    fed = heart()
    plain, model = (learner(**SMALL, calibrate=on).fit(fed) for on in (False, True))
    assert model.forest_.curve is not None
    assert model.forest_.plain() == plain.forest_
    assert model.rounds_ == model.expected_rounds
    assert {site: one.plain() for site, one in model.forests_.items()} == plain.forests_


def test_only_auto_forest_calibrates_unless_asked():
    assert [name for name, spec in LEARNERS.items() if spec.calibrates({})] == ["AutoForest"]
    assert not LEARNERS["AutoForest"].calibrates({"class_weight": "balanced"})
    assert not LEARNERS["AutoForest"].calibrates({"bootstrap": False})


def test_several_classes_are_calibrated():
    frame = pl.concat([table("several", 300, seed).with_columns(site=pl.lit(str(seed))) for seed in range(2)])
    fed = sv.federate_rows(frame, site="site", label="label", test=0.3)
    plain, model = (sv.HistogramForest(**SMALL, calibrate=on, intervals=on).fit(fed) for on in (False, True))
    rows = np.concatenate([fed.site(site).part(fed.schema, test=True).X for site in fed.active])
    proba = model.predict_proba(rows)
    assert proba.sum(axis=1) == pytest.approx(1.0)
    assert proba.max(axis=1).mean() > plain.predict_proba(rows).max(axis=1).mean()
    assert model.predict_set(rows, 0.8).shape == proba.shape


# -- intervals
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_an_interval_covers_the_conformal_share_of_errors(coverage):
    errors = np.sort(np.random.default_rng(1).normal(size=199))
    knots = np.stack([np.concatenate([[errors[0] - 1e-9], errors]), np.arange(200.0)])
    reach = interval_reach(knots, coverage)
    needed = int(np.ceil(200 * coverage))
    # rows between two errors count in part: the exact rule is within one row of it
    assert abs(np.sum(np.abs(errors) <= reach) - needed) <= 1


def test_intervals_cover_new_rows_as_often_as_requested():
    fed = sv.federate_rows(numbers(1600), site="site", label="label", test=0.5)
    model = sv.HistogramForest(n_estimators=60, max_depth=6, intervals=True).fit(fed)
    inside = []
    for site in fed.active:
        part = fed.site(site).part(fed.schema, test=True)
        low, high = model.predict_interval(part.X, 0.9, site=site).T
        inside += list((low <= part.y) & (part.y <= high))
        quarter, middle, most = model.predict_quantiles(part.X, [0.25, 0.5, 0.75], site=site).T
        assert (quarter < middle).all()
        assert (middle < most).all()
    assert len(inside) > 700
    assert np.mean(inside) == pytest.approx(0.9, abs=0.035)  # three standard errors


def test_sets_contain_the_true_class_as_often_as_requested(both):
    fed, _, model = both
    inside = []
    for site in fed.active:
        part = fed.site(site).part(fed.schema, test=True)
        possible = model.predict_set(part.X, 0.9, site=site)
        inside += list(possible[np.arange(len(part.y)), part.y])
    assert np.mean(inside) == pytest.approx(0.9, abs=0.06)


def test_a_site_has_its_own_errors_where_it_has_enough_rows():
    frame = numbers(900)
    few = frame.filter(pl.col("site") == "1").head(60)
    fed = sv.federate_rows(pl.concat([frame.filter(pl.col("site") == "0"), few]), site="site", label="label")
    model = sv.HistogramForest(**SMALL, intervals=True).fit(fed)
    assert model.forests_["1"] == model.forest_
    assert OWN_ERRORS <= model.forests_["0"].errors[1, -1] < model.forest_.errors[1, -1]


def test_a_forest_keeps_curve_and_errors_in_its_file(both, tmp_path):
    _, _, model = both
    model.save(tmp_path / "model.silvan")
    again = Forest.load(tmp_path / "model.silvan")
    rows = sv.datasets.heart_disease()[:20]
    assert again == model.forest_ != model.forest_.plain()
    assert np.array_equal(again.predict_set(rows), model.predict_set(rows))
    assert np.array_equal(again.predict_proba(rows), model.predict_proba(rows))


# -- what sites reveal
def test_errors_of_fewer_rows_than_a_group_stay_at_the_site():
    fed = sv.federate_rows(numbers(), site="site", label="label")
    forest = sv.HistogramForest(**SMALL).fit(fed).forest_
    rng = np.random.default_rng(0)
    y = rng.normal(size=103)
    y[0] = 1e6  # the largest error of all
    answer = Answer(np.zeros((103, 1)), np.zeros(103, np.int64))
    alone, together = (count_errors(forest, answer, y, least) for least in (1, 5))
    assert alone[-1] == 1
    assert together.sum() == 103
    assert together[together > 0].min() >= 5


def test_a_study_that_calibrates_nothing_adjusts_nothing():
    fed = heart()
    model = sv.HistogramForest(**SMALL, calibrate=False).fit(fed)
    with model.held_to_text(fed), fed.working_on("something else"), pytest.raises(RefusedError):
        fed.ask(_keep(fed, model.forest_))


def _keep(fed, forest):
    from silvan.algorithms.evaluation.site_models import KeepAdjusted

    blob = fed.blob(fed.schema.to_json().encode())
    draws = RowSamples((len(forest),))
    return KeepAdjusted(schema=blob, model=SentModel(fed.blob(forest.to_bytes()), "", draws, None, adjust=True))


def test_errors_need_known_samples():
    fed = heart()
    forest = sv.HistogramForest(**SMALL).fit(fed).forest_
    request = CountErrors(
        schema=fed.blob(fed.schema.to_json().encode()), model=SentModel(fed.blob(forest.to_bytes()), "", None)
    )
    with fed.working_on("errors"), pytest.raises(SilvanError, match="could not read"):
        fed.total(request)


# -- bad input
@pytest.mark.parametrize(
    ("learner", "task"),
    [
        (sv.HistogramForest(calibrate=True), "regression"),
        (sv.HistogramForest(calibrate=True, bootstrap=False), None),
        (sv.HistogramForest(intervals=True, bootstrap=False), None),
        (sv.HistogramForest(intervals=True, epsilon=1.0, n_rows=100), None),
        (sv.MergedForest(calibrate="yes"), None),
        (sv.BOFRF(intervals=True, clusters=2), None),
    ],
)
def test_calibration_and_intervals_refuse_what_they_cannot_do(learner, task):
    fed = sv.federate_rows(numbers(), site="site", label="label") if task else heart()
    with pytest.raises(InputError):
        learner.set_params(n_estimators=5, max_depth=3).fit(fed)


@pytest.mark.parametrize("coverage", [0, 1, -0.5, 1.5, True, "0.9", np.nan])
def test_coverage_lies_between_0_and_1(both, coverage):
    with pytest.raises(InputError, match="coverage"):
        both[2].predict_set(sv.datasets.heart_disease()[:2], coverage)


@pytest.mark.parametrize("q", [0.0, 1.0, [0.5, 2.0], [[0.1], [0.2]], np.nan])
def test_quantiles_lie_between_0_and_1(q):
    fed = sv.federate_rows(numbers(200), site="site", label="label")
    model = sv.HistogramForest(n_estimators=5, max_depth=3, intervals=True).fit(fed)
    with pytest.raises(InputError):
        model.predict_quantiles(np.zeros((1, 3)), q)


def test_classes_have_sets_and_numbers_have_intervals(both):
    fed = sv.federate_rows(numbers(200), site="site", label="label")
    number = sv.HistogramForest(n_estimators=5, max_depth=3, intervals=True).fit(fed)
    rows = sv.datasets.heart_disease()[:2]
    for use in (both[2].predict_interval, both[2].predict_quantiles):
        with pytest.raises(InputError, match="class"):
            use(rows)
    with pytest.raises(InputError, match="number"):
        number.predict_set(np.zeros((1, 3)))
    with pytest.raises(InputError, match="intervals=True"):
        both[1].predict_set(rows)


def test_a_coverage_beyond_the_rows_gives_everything():
    fed = sv.federate_rows(numbers(100), site="site", label="label")
    model = sv.HistogramForest(n_estimators=20, max_depth=3, intervals=True).fit(fed)
    with pytest.warns(UserWarning, match="every number is possible"):
        interval = model.predict_interval(np.zeros((1, 3)), 0.999)
    assert np.isinf(interval).all()


def _sites(**labels):
    """Sites with such labels, and random columns."""
    rng = np.random.default_rng(0)
    return pl.concat(
        [
            pl.DataFrame(
                {"a": rng.normal(size=len(y)), "b": rng.normal(size=len(y)), "label": y, "site": [site] * len(y)}
            )
            for site, y in labels.items()
        ]
    )


@pytest.mark.parametrize(
    "frame",
    [
        _sites(large=[0, 1] * 50, small=[0, 1] * 4),
        _sites(large=[0, 1] * 50, single=[1] * 40),
        _sites(large=[0, 1] * 50, alike=[0, 1] * 30).with_columns(a=pl.lit(0.0), b=pl.lit(1.0)),
    ],
    ids=["a site of 8 rows", "a site of one class", "all scores equal"],
)
@pytest.mark.filterwarnings("ignore:no tree is above tau")
@pytest.mark.parametrize("learner", LEARNERS_ON_ROWS)
def test_odd_sites_get_finite_probabilities(frame, learner):
    fed = sv.federate_rows(frame, site="site", label="label", task="classification")
    model = learner(n_estimators=10, max_depth=3, calibrate=True, intervals=True).fit(fed)
    for site in fed.active:
        proba = model.predict_proba(frame.head(5), site=site)
        assert np.isfinite(proba).all()
        assert proba.sum(axis=1) == pytest.approx(1.0)
        assert model.predict_set(frame.head(5), 0.8, site=site).shape == (5, 2)


def test_ties_in_the_target_are_covered():
    frame = _sites(one=[0.0] * 60 + [1.0] * 60, two=[0.0] * 60 + [5.0] * 60)
    fed = sv.federate_rows(frame, site="site", label="label", task="regression")
    model = sv.HistogramForest(n_estimators=20, max_depth=3, intervals=True).fit(fed)
    low, high = model.predict_interval(frame, 0.9).T
    inside = (low <= frame["label"].to_numpy()) & (frame["label"].to_numpy() <= high)
    assert inside.mean() >= 0.85


def test_a_target_of_one_number_has_errors_near_zero():
    frame = _sites(one=[3.0] * 60, two=[3.0] * 60)
    fed = sv.federate_rows(frame, site="site", label="label", task="regression")
    model = sv.HistogramForest(n_estimators=5, max_depth=3, intervals=True).fit(fed)
    low, high = model.predict_interval(frame.head(1), 0.9)[0]
    assert low <= 3.0 <= high
    assert high - low < 1e-2


# -- files from outside
@pytest.mark.parametrize(
    "forged",
    [
        {"curve": np.array([[0.0, 1.0]])},
        {"curve": np.array([[0.0, 1.0], [0.1, 1.0]])},  # the two probabilities would not add up to 1
        {"curve": np.array([[0.0, -1.0], [0.0, -1.0]])},
        {"curve": np.array([[0.0, np.nan], [0.0, np.nan]])},
        {"curve": np.array([[0.0, 1e9], [0.0, 1e9]])},
        {"errors": np.array([[0.0, 1.0]])},
        {"errors": np.array([[1.0, 0.0], [0.0, 5.0]])},
        {"errors": np.array([[0.0, 1.0], [5.0, 0.0]])},
        {"errors": np.array([[0.0, 1.0], [0.0, 0.0]])},
        {"errors": np.array([[0.0, np.inf], [0.0, 5.0]])},
        {"combine": "stages", "errors": np.array([[0.0, 1.0], [0.0, 5.0]])},
    ],
)
def test_forged_curves_and_errors_are_refused(both, forged):
    with pytest.raises(FormatError):
        replace(both[1].forest_.plain(), **forged)


def test_error_tables_use_nonempty_cells(both):
    forest = both[1].forest_.plain()
    counts = np.zeros(len(error_edges(forest)) - 1, np.int64)
    assert error_table(forest, counts) is None
    counts[[3, 4, 9]] = 2, 1, 5
    values, rows = error_table(forest, counts)
    assert rows.tolist() == [0, 2, 3, 3, 8]
    assert values.tolist() == error_edges(forest)[[3, 4, 5, 9, 10]].tolist()


def test_rows_in_all_samples_are_left_out(both):
    fed, plain, _ = both
    site = fed.site("VA")
    drawn_all = RowSamples((len(plain.forest_),), bootstrap=False)
    found = score_unseen(site, fed.schema, plain.forest_.plain(), drawn_all)
    assert np.isnan(found.scores).all()


# -- in evaluations
def test_evaluations_show_coverage_and_set_size_at_each_site(both):
    fed, _, model = both
    frame = model.evaluate(fed)
    for site in fed.active:
        part = fed.site(site).part(fed.schema, test=True)
        sets = model.forests_[site].predict_set(part.X)
        row = frame.filter(site=site, model="federated").row(0, named=True)
        assert row["coverage"] == pytest.approx(sets[np.arange(len(part)), part.y].mean(), abs=6e-4)
        assert row["set_size"] == pytest.approx(sets.sum(axis=1).mean(), abs=6e-4)
        assert np.isnan(frame.filter(site=site, model="local")["coverage"].item())  # it has no sets


def test_evaluations_show_coverage_and_width_of_intervals_of_numbers():
    fed = sv.federate_rows(numbers(), site="site", test=0.4)
    model = sv.HistogramForest(**SMALL, intervals=True).fit(fed)
    row = model.evaluate(fed).filter(site="0", model="federated").row(0, named=True)
    part = fed.site("0").part(fed.schema, test=True)
    low, high = model.forests_["0"].predict_interval(part.X).T
    assert row["coverage"] == pytest.approx(((low <= part.y) & (part.y <= high)).mean(), abs=6e-4)
    assert row["width"] == pytest.approx((high - low).mean(), rel=1e-2)


def test_where_rows_are_grouped_no_coverage_of_numbers_leaves():
    """Whoever chooses the intervals would learn how many rows' numbers lie in each."""
    shown = {}
    for groups in (1, 5):
        fed = sv.federate_rows(numbers(), site="site", test=0.4, policy=in_groups_of(groups))
        model = sv.HistogramForest(**SMALL, intervals=True).fit(fed)
        shown[groups] = model.evaluate(fed).filter(site="0", model="federated")["coverage"].item()
    assert shown[1] > 0.7
    assert np.isnan(shown[5])
