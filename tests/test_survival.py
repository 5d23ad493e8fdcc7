"""Survival forests: labels, time bins, scores, curves at leaves, learners over sites, and what is refused."""

from dataclasses import replace

import msgspec
import numpy as np
import polars as pl
import pytest

import silvan as sv
from silvan.algorithms.horizontal.histogram_forest import CountLeafTimes, GrowLevel
from silvan.data.bins.time_bins import N_CODES, choose_times, codes_of, time_cells
from silvan.data.survival import events_of, signed_times, times_of
from silvan.errors import ExportError, FormatError, InputError, RefusedError, SilvanError, SiteError
from silvan.forest.curves import at_times, hazards, moved, survival
from silvan.survival_metrics import comparable_pairs, concordance, concordance_influence
from silvan.tree.objectives import OBJECTIVES, Labels

BINS = {"n_estimators": 8, "max_depth": 4, "min_samples_leaf": 5}


@pytest.fixture(scope="module")
def rows():
    """Rows at three sites, whose risk is in x0 and in a category; some cells are missing."""
    rng, n = np.random.default_rng(0), 450
    X = rng.normal(size=(n, 3))
    ward = rng.choice(["north", "south"], n)
    time = rng.exponential(np.exp(-X[:, 0] - (ward == "south"))) * 100
    censored = rng.exponential(150, n)
    X[rng.random((n, 3)) < 0.1] = np.nan
    frame = pl.DataFrame({f"x{i}": X[:, i] for i in range(3)}).fill_nan(None)
    labels = {"days": np.minimum(time, censored), "died": time < censored}
    return frame.with_columns(ward=pl.Series(ward), **{k: pl.Series(v) for k, v in labels.items()}).with_columns(
        site=pl.Series(rng.choice(["a", "b", "c"], n))
    )


def federated(rows, **given):
    return sv.federate_rows(rows, site="site", time="days", event="died", n_jobs=1, **given)


def labels_of(rows):
    return signed_times(rows["days"].to_numpy(), rows["died"].to_numpy())


# -- labels and time bins
def test_a_label_keeps_time_and_event_also_at_zero():
    y = signed_times([0.0, 0.0, 3.5, 3.5], [True, False, True, False])
    assert times_of(y).tolist() == [0.0, 0.0, 3.5, 3.5]
    assert events_of(y).tolist() == [True, False, True, False]


def test_time_bins_hold_about_equally_many_events_and_no_time_is_an_end():
    rng = np.random.default_rng(1)
    y = signed_times(rng.exponential(100, 2000), rng.random(2000) < 0.6)
    times, counted = choose_times(np.bincount(time_cells(y), minlength=N_CODES), 32)
    codes = codes_of(y.astype(np.float32).astype(np.float64), times)
    assert len(times) == 32
    np.testing.assert_array_equal(counted.ravel()[:-1], np.bincount(codes, minlength=65))
    assert counted[-1, 1] == 0
    assert np.ptp(counted[:-1, 1]) <= 20
    assert not np.isin(times, times_of(y)).any()


def test_scores_add_up_to_zero_and_are_the_martingale_residuals():
    rng = np.random.default_rng(2)
    y = signed_times(rng.integers(1, 40, 600), rng.random(600) < 0.5)
    counts = np.bincount(time_cells(y), minlength=N_CODES)
    measure = OBJECTIVES["log_rank"].measure(Labels(counts, 600, time_bins=255))
    score = measure.rows(y)[:, 1] / measure.scale
    t, e = times_of(y), events_of(y)
    hazard = [sum((e & (t == s)).sum() / (t >= s).sum() for s in np.unique(t) if s <= one) for one in t]
    np.testing.assert_allclose(score, e - np.array(hazard), atol=1 / 4096)
    assert abs(score.sum()) < 600 / 4096


@pytest.mark.parametrize(
    "changed",
    [
        {"scores": ()},
        {"times": ()},
        {"times": (3.0, 2.0, 5.0)},
        {"times": (1.0, float("nan"), 5.0)},
        {"scores": (1 << 60,) * 7},
        {"objective": "squared_error"},
        {"n_stats": 3},
    ],
)
def test_a_measure_that_is_made_up_is_recognised(changed):
    y = signed_times([1.0, 10.0, 100.0], [True, True, True])
    counts = np.bincount(time_cells(y), minlength=N_CODES)
    measure = OBJECTIVES["log_rank"].measure(Labels(counts, 3, time_bins=3))
    assert measure.fits(0, "survival")
    assert not measure.fits(0)
    assert not msgspec.structs.replace(measure, **changed).fits(0, "survival")


# -- curves
def naive_curve(y, times):
    """A life table of some rows: the cumulative hazard at the ends of time bins."""
    t, e, steps, start = times_of(y), events_of(y), [], -np.inf
    for end in times:
        here = (t > start) & (t <= end)
        at_risk = (t > start).sum() - 0.5 * (here & ~e).sum()
        steps.append((here & e).sum() / at_risk if (here & e).any() else 0.0)
        start = end
    return np.cumsum(steps)


def test_leaves_hold_the_curves_of_the_rows_that_their_trees_sampled(rows):
    model = sv.SurvivalForest(n_estimators=3, bootstrap=False, min_samples_leaf=20, n_jobs=1)
    X, y = rows.drop("days", "died", "site"), labels_of(rows).astype(np.float32).astype(np.float64)
    model.fit(X, rows.select("days", pl.col("died").alias("event")))
    forest, leaves = model.forest_, model.apply(X)
    for tree in range(3):
        for leaf in np.unique(leaves[:, tree]):
            value = forest.value[forest.leaf[forest.offsets[tree] + leaf]]
            np.testing.assert_allclose(value, naive_curve(y[leaves[:, tree] == leaf], forest.times), atol=1e-12)


def test_the_survival_function_is_the_mean_of_the_trees_kaplan_meier_curves(rows):
    X = rows.drop("days", "died", "site")
    model = sv.SurvivalForest(n_estimators=5, n_jobs=1).fit(X, rows.select("days", pl.col("died").alias("event")))
    forest = model.forest_
    nodes = forest.leaf[model.apply(X[:20]) + forest.offsets[:-1]]
    curves = model.predict_survival_function(X[:20])
    np.testing.assert_allclose(curves.y, survival(forest.value)[nodes].mean(axis=1))
    hazard = model.predict_cumulative_hazard_function(X[:20], return_array=True)
    np.testing.assert_allclose(hazard, forest.value[nodes].mean(axis=1))
    np.testing.assert_allclose(model.predict(X[:20]), hazard.sum(axis=1))
    np.testing.assert_array_equal(curves(model.unique_times_), curves.y)
    assert (curves([0.0])[:, 0] == 1.0).all() or model.unique_times_[0] == 0.0
    assert (curves([1e9])[:, 0] == curves.y[:, -1]).all()  # level after the last event
    assert curves[3](curves.x[7]) == curves.y[3, 7]
    middle = 0.5 * (curves.x[4] + curves.x[5])
    np.testing.assert_allclose(curves([middle])[:, 0], curves.y[:, 4:6].mean(axis=1))


def test_curves_moved_to_other_times_have_the_same_survival_there():
    counts = np.random.default_rng(3).integers(0, 5, (30, 13))
    value, ends = hazards(counts), np.array([1.0, 2.0, 4.0, 5.0, 8.0, 9.0])
    assert survival(value).min() >= 0.0
    finer = np.array([0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 9.0, 20.0])
    there = at_times(ends, survival(value), finer, 1.0)
    np.testing.assert_allclose(survival(moved(ends, value, finer)), there, atol=1e-12)
    np.testing.assert_allclose(moved(ends, value, ends), value, atol=1e-12)


def test_pairs_are_those_of_a_naive_count():
    rng = np.random.default_rng(4)
    y, risk = signed_times(rng.integers(0, 30, 150), rng.random(150) < 0.6), rng.integers(0, 8, 150)
    t, e = times_of(y), events_of(y)
    earlier = e[:, None] & ((t[None] > t[:, None]) | ((t[None] == t[:, None]) & ~e[None]))
    right, equal = risk[:, None] > risk[None], risk[:, None] == risk[None]
    assert comparable_pairs(y, risk).tolist() == [(earlier & right).sum(), (earlier & equal).sum(), earlier.sum()]
    index, influence = concordance_influence(y, risk)
    assert index == concordance(y, risk)
    worth = earlier * (right + 0.5 * equal)
    each = worth.sum(axis=0) + worth.sum(axis=1) - index * (earlier.sum(axis=0) + earlier.sum(axis=1))
    np.testing.assert_allclose(influence, 2 * each / (2 * earlier.sum()), atol=1e-15)


def test_files_keep_curves_and_a_forged_file_is_refused(rows):
    forest = sv.HistogramForest(**BINS).fit(federated(rows)).forest_
    assert sv.Forest.from_bytes(forest.to_bytes()) == forest
    for changed in (
        {"times": forest.times[::-1]},
        {"times": forest.times - 1e6},
        {"times": None},
        {"times": forest.times[:-1], "value": forest.value},
        {"value": forest.value[:, ::-1]},
        {"value": forest.value + np.arange(len(forest.times)) * 1.5},
        {"schema": sv.Schema(forest.schema.features, sv.Label("days"))},
    ):
        with pytest.raises(FormatError):
            replace(forest, **changed)


def test_other_formats_refuse_curves(rows):
    forest = sv.HistogramForest(**BINS).fit(federated(rows)).forest_
    for export in (lambda: forest.to_onnx("never.onnx"), forest.to_treelite, forest.to_sklearn):
        with pytest.raises(ExportError, match="curves"):
            export()


# -- one table
def test_out_of_bag_scores_are_near_those_of_other_rows(rows):
    X, y = rows.drop("days", "died", "site"), rows.select("days", pl.col("died").alias("event"))
    model = sv.SurvivalForest(oob_score=True, n_jobs=1).fit(X[:300], y[:300])
    assert abs(model.oob_score_ - model.score(X[300:], y[300:])) < 0.06
    assert model.oob_score_ > 0.65
    again = sv.SurvivalForest(n_estimators=40, n_jobs=1).fit(X[:300], y[:300])
    again = again.set_params(n_estimators=100, warm_start=True).fit(X[:300], y[:300])
    assert again.forest_ == model.forest_


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda t, e: np.zeros(len(t)), "structured array"),
        (lambda t, e: pl.DataFrame({"time": t}), "must have an event"),
        (lambda t, e: pl.DataFrame({"time": t, "event": e, "more": t}), "must have an event"),
        (lambda t, e: pl.DataFrame({"time": -t, "event": e}), "negative"),
        (lambda t, e: pl.DataFrame({"time": [None, *t[1:]], "event": e}), "missing"),
        (lambda t, e: pl.DataFrame({"time": [np.inf, *t[1:]], "event": e}), "infinite"),
        (lambda t, e: pl.DataFrame({"time": t, "event": np.where(e, 2, 1)}), "neither yes nor no"),
        (lambda t, e: pl.DataFrame({"time": t, "event": np.where(e, "dead", "alive")}), "neither yes nor no"),
        (lambda t, e: pl.DataFrame({"time": t, "event": [None, *e[1:]]}), "missing"),
        (lambda t, e: pl.DataFrame({"time": t, "event": np.zeros(len(e), bool)}), "all censored"),
    ],
)
def test_odd_labels_are_refused_in_one_sentence(make, wrong):
    t, e = np.arange(1.0, 41.0), np.arange(40) % 3 > 0
    with pytest.raises(InputError, match=wrong) as refused:
        sv.SurvivalForest(n_estimators=2).fit(np.arange(40.0)[:, None], make(t, e))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "event", [[0, 1], [0.0, 1.0], [False, True], ["no", "yes"], ["False", "TRUE"], ["0", "1"], [" No", "Yes "]]
)
def test_events_may_be_written_in_many_ways(event):
    X, t = np.arange(40.0)[:, None], np.arange(1.0, 41.0)
    happened = np.arange(40) % 3 > 0
    plain = sv.SurvivalForest(n_estimators=3).fit(X, pl.DataFrame({"time": t, "event": happened}))
    y = pl.DataFrame({"time": t, "event": [event[int(one)] for one in happened]})
    assert sv.SurvivalForest(n_estimators=3).fit(X, y).forest_ == plain.forest_


def test_one_event_time_times_of_zero_and_many_bins_are_no_trouble():
    X, happened = np.arange(60.0)[:, None], np.arange(60) % 3 > 0
    for times in (np.full(60, 5.0), np.zeros(60), np.where(happened, 0.0, 7.0), np.arange(60.0)):
        model = sv.SurvivalForest(n_estimators=3, time_bins=200).fit(
            X, pl.DataFrame({"time": times, "event": happened})
        )
        curves = model.predict_survival_function(X)
        assert ((curves.y >= 0) & (curves.y <= 1) & np.isfinite(curves.y)).all()
        assert (np.diff(curves([0.0, 1.0, 5.0, 100.0]), axis=1) <= 0).all()
    with pytest.raises(InputError, match="time_bins must be at most 255"):
        sv.SurvivalForest(time_bins=300).fit(X, pl.DataFrame({"time": times, "event": happened}))


# -- over sites
@pytest.mark.parametrize("sums", ["trusted", "ring", "masked"])
def test_the_forest_over_sites_is_that_of_pooled_rows(rows, sums):
    fed = federated(rows, sums=sums, test=0.2)
    model = sv.HistogramForest(**BINS).fit(fed)
    assert model.forest_ == sv.PooledForest(**BINS).fit(fed).forest_
    assert model.rounds_ == 4 + 3  # bins, levels, and times at leaves


@pytest.mark.parametrize(
    "learner",
    [
        sv.MergedForest(n_estimators=30),
        sv.MergedForest(n_estimators=30, refit_leaves=True),
        sv.AutoForest(n_estimators=10, max_depth=5),
        sv.AutoForest(n_estimators=10, choose=False),
        sv.BOFRF(n_estimators=10),
        sv.BOFRF(n_estimators=10, refit_leaves=True, personal=True),
    ],
    ids=str,
)
def test_learners_of_trees_of_sites_rank_rows(rows, learner):
    fed = federated(rows, test=0.3, random_state=1)
    learner.fit(fed)
    for name in fed.sites:
        test = fed.site(name).part(fed.schema, test=True)
        risk = learner.forests_[name].predict(test.X)
        assert concordance(test.y, risk) > 0.6
    assert 2 <= len(learner.forest_.times) <= 64


def test_a_site_without_events_or_with_one_row_takes_part(rows):
    none = rows.with_columns(died=pl.col("died") & (pl.col("site") != "a"))
    one = pl.concat([rows.filter(pl.col("site") != "a"), rows.filter(pl.col("site") == "a")[:1]])
    for frame in (none, one):
        fed = federated(frame)
        assert sv.HistogramForest(**BINS).fit(fed).forest_ == sv.PooledForest(**BINS).fit(fed).forest_
    for learner in (sv.MergedForest(n_estimators=6), sv.BOFRF(n_estimators=3), sv.AutoForest(n_estimators=3)):
        forest = learner.fit(federated(none)).forest_
        assert concordance(labels_of(rows), forest.predict(rows.drop("days", "died", "site"))) > 0.6


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"event": "died"}, "needs time and event"),
        ({"time": "days"}, "needs time and event"),
        ({"task": "survival"}, "needs time and event"),
        ({"time": "days", "event": "died", "task": "regression"}, "task='survival'"),
        ({"time": "days", "event": "died", "label": "x0"}, "label"),
        ({"time": "days", "event": "days"}, "is the label"),
        ({"time": "days", "event": "gone"}, "gone"),
        ({"time": "gone", "event": "died"}, "gone"),
        ({"time": "days", "event": "died", "exclude": ["died"]}, "exclude"),
        ({"time": "ward", "event": "died"}, "text"),
        ({"time": "days", "event": "ward"}, "neither yes nor no"),
    ],
)
def test_times_and_events_that_cannot_be_are_refused(rows, given, wrong):
    with pytest.raises(SilvanError, match=wrong):
        sv.HistogramForest(**BINS).fit(sv.federate_rows(rows, site="site", n_jobs=1, **given))


@pytest.mark.parametrize(
    ("learner", "wrong"),
    [
        (sv.HistogramForest(epsilon=1.0), "epsilon"),
        (sv.HistogramForest(criterion="gini"), "does not fit survival"),
        (sv.HistogramForest(criterion="squared_error"), "does not fit survival"),
        (sv.HistogramForest(class_weight="balanced"), "class_weight"),
        (sv.HistogramForest(monotonic_cst={"x0": 1}), "monotonic_cst"),
        (sv.HistogramForest(vote="hard"), "vote"),
        (sv.HistogramForest(bins="adaptive"), "two classes"),
        (sv.HistogramForest(intervals=True), "intervals"),
        (sv.HistogramForest(calibrate=True), "calibrate"),
        (sv.BOFRF(tune="grid"), "tune"),
        (sv.BOFRF(clusters=2), "clusters"),
    ],
    ids=str,
)
def test_what_survival_has_not_is_said(rows, learner, wrong):
    with pytest.raises(InputError, match=wrong):
        learner.fit(federated(rows))


def test_columns_that_stay_with_parties_have_no_survival_yet(rows):
    tables = {name: rows.with_row_index("id").select("id", name, "days") for name in ("x0", "x1")}
    with pytest.raises(InputError, match="sites that hold rows"):
        sv.federate_columns(tables, id="id", label="days", task="survival")


def test_table_1_has_times_and_events(rows):
    table = sv.describe(federated(rows))
    overall = {line[0]: line[1] for line in table.texts()}
    median, died = float(overall["days"].split()[0]), int(rows["died"].sum())
    assert abs(median / rows["days"].median() - 1) < 0.05
    assert overall["  yes"] == f"{died} ({died / len(rows):.0%})"


def test_all_censored_is_one_sentence(rows):
    with pytest.raises(SilvanError, match="all censored"):
        sv.HistogramForest(**BINS).fit(federated(rows.with_columns(died=pl.lit(False))))


def test_an_event_that_is_written_otherwise_at_a_site_is_refused_without_its_values(rows):
    odd = rows.with_columns(died=pl.when(pl.col("died")).then(pl.lit("secretly")).otherwise(pl.lit("no")))
    with pytest.raises(SiteError) as refused:
        sv.HistogramForest(**BINS).fit(federated(odd))
    assert "secretly" not in str(refused.value)


# -- what a coordinator may ask
def asked(rows, change):
    """Grow a forest by a coordinator that changes the last request."""
    fed = federated(rows)
    honest = fed.total

    def total(request, **more):
        return honest(change(request) if isinstance(request, CountLeafTimes) else request, **more)

    fed.total = total
    return sv.HistogramForest(**BINS).fit(fed)


def test_times_are_counted_at_the_leaves_of_splits_that_were_asked_for_and_no_others(rows):
    assert asked(rows, lambda request: request).forest_ is not None

    def singled_out(request):
        """Another split of a root, which no level has counted."""
        feature = request.split_feature.copy()
        feature[0] = (feature[0] + 1) % 4
        return msgspec.structs.replace(request, split_feature=feature)

    with pytest.raises((RefusedError, SiteError, FormatError)):
        asked(rows, singled_out)
    with pytest.raises((RefusedError, SiteError, FormatError)):
        asked(rows, lambda request: msgspec.structs.replace(request, n_trees=request.n_trees - 1))


def test_the_last_request_cannot_come_first(rows):
    fed = federated(rows)
    honest = fed.total

    def total(request, **more):
        if isinstance(request, GrowLevel):
            given = {name: getattr(request, name) for name in request.__struct_fields__}
            none = {"nodes": np.zeros(0, np.int32), "features": np.zeros((0, 1), np.int32)}
            return honest(CountLeafTimes(**{**given, **none}))
        return honest(request, **more)

    fed.total = total
    with pytest.raises((RefusedError, SiteError)):
        sv.HistogramForest(**BINS).fit(fed)
