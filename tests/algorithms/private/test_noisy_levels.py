"""The published private forests: noise on the histograms of every level, and noise on the rows."""

import math

import msgspec
import numpy as np
import pytest
from helpers.private_study import KNOWN, budgets, federate, requests, schema, spent, unseen
from helpers.studies import TASKS, table
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import r2_score, roc_auc_score

import silvan as sv
from silvan.algorithms.private.noisy_counts import LARGEST
from silvan.algorithms.private.noisy_levels import plan_level, settle_counts
from silvan.algorithms.private.noisy_rows import STEPS, disguise
from silvan.errors import FederationError, FormatError, InputError
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.privacy.noise.laplace import Noise

SMALL = {"n_estimators": 3, "max_depth": 3, "max_features": None}


def leave_noise_out(monkeypatch):
    """To be called inside a test: each test starts with noise from its own seed."""
    monkeypatch.setattr(Noise, "add", lambda self, counts: np.array(counts, np.int64))


# -- levels


@pytest.mark.parametrize("task", TASKS)
def test_level_forests_are_accurate(task):
    rows, y = unseen(task)
    fed = federate(task, n=4000)
    model = sv.HistogramForest(epsilon=20.0, private="levels", noise="total", **SMALL).fit(fed)
    if task == "number":
        assert r2_score(y, model.predict(rows)) > 0.1
    else:
        scores = model.predict_proba(rows)
        auc = roc_auc_score(y, scores[:, 1] if task == "binary" else scores, multi_class="ovr")
        assert auc > 0.7
    assert model.rounds_ == 3
    assert model.forest_.gain is None  # from noisy counts, and useless


@pytest.mark.parametrize("task", TASKS)
def test_the_forest_does_not_depend_on_who_holds_the_rows(task, monkeypatch):
    leave_noise_out(monkeypatch)
    learner = sv.HistogramForest(epsilon=3.0, private="levels", noise="total", tolerate=0, **SMALL)
    expected = learner.fit(federate(task, n=600, n_sites=1)).forest_.hash
    for settings in ({}, {"cold": True}, {"sums": "ring"}):
        fed = federate(task, n=600, **settings)
        assert learner.fit(fed).forest_.hash == expected, settings


@pytest.mark.parametrize("task", TASKS)
def test_levels_cost_by_level_tree_and_feature(task):
    fed = federate(task)
    model = sv.HistogramForest(epsilon=1.0, private="levels", n_estimators=4, max_depth=5, max_features=3).fit(fed)
    account = model.privacy_
    np.testing.assert_allclose(spent(fed), account.total)
    assert account.total <= 1.0
    for query in account.queries:
        assert query.times == 4 * 3
        assert query.sensitivity == 12 * (127 if "sums" in query.what else 1)
        assert query.alpha == pytest.approx(math.exp(-query.epsilon / query.sensitivity))
    of_level = [sum(q.epsilon for q in account.queries if q.what.startswith(f"level {i}")) for i in range(1, 6)]
    asked = [cost for cost in of_level if cost]  # by chance trees may end before the last level
    np.testing.assert_allclose(asked, 0.2)
    assert of_level[: len(asked)] == asked
    assert "alpha" in str(account)


def test_exact_node_sizes_are_never_used(monkeypatch):
    """Noisy counts decide whether a node is split: with misleading noise, an empty node is split."""
    monkeypatch.setattr(Noise, "add", lambda self, counts: np.array(counts, np.int64) + 50)
    fed = federate(n=30)
    model = sv.HistogramForest(epsilon=1.0, private="levels", min_samples_leaf=20, **SMALL).fit(fed)
    assert model.forest_.depth.max() >= 2  # thirty rows would not suffice for a second level


def test_levels_need_a_depth_and_plain_weights():
    fed = federate(n=300)
    with pytest.raises(InputError, match="max_depth must be given"):
        sv.HistogramForest(epsilon=1.0, private="levels", max_depth=None).fit(fed)
    with pytest.raises(InputError, match="'balanced' would count"):
        sv.HistogramForest(epsilon=1.0, private="levels", class_weight="balanced").fit(fed)
    sv.HistogramForest(epsilon=1.0, private="levels", class_weight={"yes": 3.0}, **SMALL).fit(fed)
    with pytest.warns(UserWarning, match="rows times epsilon"):
        sv.HistogramForest(epsilon=1.0, private="levels", n_rows=300, **SMALL).fit(fed)


def test_a_target_beyond_its_bounds_does_not_count_more():
    """The site clips, whatever the coordinator requests."""
    frame = table("number", 100)
    for label, largest in ((1e6, 127), (-1e6, -127)):
        wild = frame.with_columns(label=np.full(100, label))
        (_, _, counts), *_ = [q for q in requests("number", wild, 1.0) if q[0] == "level"]
        assert (counts[:, 1] == largest * counts[:, 0]).all()


def test_inconsistent_levels_are_refused():
    frame = table("number", 50)
    (_, request, _), *_ = [q for q in requests("number", frame, 1.0) if q[0] == "level"]
    site = Site("here", frame)
    site.blob = KNOWN.get
    wrong = msgspec.structs.replace(request.level.measure, scale=1e6)
    for level in (
        msgspec.structs.replace(request.level, measure=wrong),
        msgspec.structs.replace(request.level, nodes=np.array([2, 3, 0], np.int32)),
        msgspec.structs.replace(request.level, n_trees=0),
        msgspec.structs.replace(request.level, bootstrap=True),  # removing one row would change the other samples
    ):
        with pytest.raises(FormatError):
            plan_level(site, msgspec.structs.replace(request, level=level), schema("number"))


# -- noisy histograms that look like counts


def settled(hist, features, n_bins, lead):
    """A naive version of the kernel, node by node; returns the totals that all features of a node must have."""
    totals, at = [], 0
    for row in features:
        sums = []
        for f in row[row >= 0]:
            sums.append(hist[at : at + n_bins[f]].sum(axis=0))
            at += n_bins[f]
        mean = np.rint(np.mean(sums, axis=0)).astype(int)
        rows = mean[: lead or None]
        rows[:] = np.maximum(rows, 0) if (rows > 0).any() else 1
        if lead:
            mean[1] = np.clip(mean[1], -127 * mean[0], 127 * mean[0])
        totals.append(mean)
    return totals


@given(st.integers(0, 10**6), st.sampled_from([0, 1]), st.sampled_from([0.5, 30.0, 1000.0]))
def test_consistent_histograms_after_adjustment(seed, lead, scale):
    rng = np.random.default_rng(seed)
    n_bins = np.array([3, 1, 5, 2], np.int32)
    features = np.array([[0, 2, 3], [1, 2, -1], [0, -1, -1]], np.int32)
    size = int(n_bins[features[features >= 0]].sum())
    hist = np.rint(rng.poisson(5.0, (size, 2)) + rng.laplace(scale=scale, size=(size, 2))).astype(np.int64)
    if lead:
        hist[:, 1] *= 60
    expected = settled(hist, features, n_bins, lead)
    settle_counts(hist, features, n_bins, lead, 127)
    at = 0
    for row, total in zip(features, expected, strict=True):
        for f in row[row >= 0]:
            here = hist[at : at + n_bins[f]]
            assert (here.sum(axis=0) == total).all()
            assert (here[:, : lead or None] >= 0).all()
            if lead:
                assert (np.abs(here[:, 1]) <= 127 * here[:, 0]).all()
            at += n_bins[f]


def test_exact_histograms_stay_as_they_are():
    hist = np.array([[3, 1], [0, 2], [1, 1], [2, 2], [2, 2]], np.int64)
    before = hist.copy()
    settle_counts(hist, np.array([[0, 1]], np.int32), np.array([3, 2], np.int32), 0, 127)
    np.testing.assert_array_equal(hist, before)


@pytest.mark.parametrize("lead", [0, 1])
def test_the_largest_allowed_counts_stay_consistent(lead):
    """Their products overflow: this would exhaust the coordinator's time, or give negative row counts."""
    hist = np.array([[LARGEST, 3], [7, LARGEST], [2, 1], [LARGEST, LARGEST], [-LARGEST, 5]], np.int64)
    features, n_bins = np.array([[0, 1]], np.int32), np.array([3, 2], np.int32)
    settle_counts(hist, features, n_bins, lead, 127)
    assert (hist[:, : lead or None] >= 0).all()
    np.testing.assert_array_equal(hist[:3].sum(axis=0), hist[3:].sum(axis=0))
    assert (hist[:3].sum(axis=0)[: lead or None] <= LARGEST).all()


def test_a_product_that_overflows_leaves_no_count_below_zero():
    hist = np.array([[LARGEST, 1], [0, 1], [6000 - LARGEST, 1], [0, 1]], np.int64)
    settle_counts(hist, np.array([[0, 1]], np.int32), np.array([2, 2], np.int32), 0, 127)
    assert hist.tolist() == [[3000, 1], [0, 1], [1500, 1], [1500, 1]]


# -- randomised rows


@pytest.mark.parametrize("task", TASKS)
def test_forests_of_randomised_rows_are_accurate(task):
    rows, y = unseen(task)
    fed = federate(task, n=6000)
    model = sv.HistogramForest(epsilon=60.0, private="input", n_estimators=30, max_depth=5).fit(fed)
    if task == "number":
        assert r2_score(y, model.predict(rows)) > 0.1
    else:
        scores = model.predict_proba(rows)
        assert roc_auc_score(y, scores[:, 1] if task == "binary" else scores, multi_class="ovr") > 0.6


def test_rows_are_randomised_once():
    """Any number of forests uses one set of randomised rows, and pays for it once."""
    fed = federate()
    learner = sv.HistogramForest(epsilon=2.0, private="input", n_estimators=5, max_depth=3)
    forest = learner.fit(fed).forest_
    assert learner.fit(fed).forest_ == forest
    sv.HistogramForest(epsilon=2.0, private="input", n_estimators=9, max_depth=4, random_state=5).fit(fed)
    np.testing.assert_allclose(spent(fed), 2.0)
    assert all(len(budget.charges()) == 1 for budget in budgets(fed).values())
    sv.HistogramForest(epsilon=1.0, private="input", n_estimators=5, max_depth=3).fit(fed)
    np.testing.assert_allclose(spent(fed), 3.0)


def test_the_unit_of_input_noise_is_a_row_replaced():
    account = sv.HistogramForest(epsilon=2.0, private="input", **SMALL).fit(federate()).privacy_
    assert account.total <= 2.0 == pytest.approx(account.total)
    assert account.unit == "one row of those trained on, replaced by another"
    assert "number of rows" in str(account)
    assert [query.times for query in account.queries] == [3, 3]  # three numbers, two categories and the label


def test_cells_are_randomised_within_bounds():
    known, rng = schema("number"), np.random.default_rng(0)
    X = np.stack(
        [rng.normal(50, 400, 500), rng.normal(3, 9, 500), *(rng.integers(0, 2, 500) for _ in range(3))], axis=1
    )
    X[::7] = np.nan
    worn = disguise(Part(X.astype(np.float32), np.full(500, 1e9), np.zeros(500, np.uint64)), known, 3.0)
    assert np.isfinite(worn.X).all()
    for f, feature in enumerate(known.features):
        low, high = feature.bounds or (0, feature.n_codes - 1)
        assert low <= worn.X[:, f].min() <= worn.X[:, f].max() <= high
    steps = (worn.y - 1000) / 150 * STEPS
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-6)  # a grid: no float reveals the original value
    assert 1000 <= worn.y.min() <= worn.y.max() <= 1150


def test_original_rows_are_never_counted(monkeypatch):
    """The randomised rows are counted: if they differ completely, so does the forest."""
    from silvan.algorithms.private import noisy_rows

    def other(part, known, epsilon):
        return noisy_rows.Disguise(np.zeros_like(part.X), np.zeros(len(part), np.int32))

    monkeypatch.setattr(noisy_rows, "disguise", other)
    model = sv.HistogramForest(epsilon=2.0, private="input", **SMALL).fit(federate())
    assert (model.forest_.value[:, 0] == 1.0).all()


def test_randomised_rows_need_bounds():
    features = [sv.Feature("age", edges=(30.0, 60.0)), *schema().features[1:]]
    fed = sv.federate_rows({"a": table(n=100)}, schema=sv.Schema.of(features, schema().label))
    with pytest.raises(InputError, match="'age' has none"):
        sv.HistogramForest(epsilon=1.0, private="input").fit(fed)
    sv.HistogramForest(epsilon=1.0, private="levels", **SMALL).fit(fed)


def test_a_site_with_a_nonsense_reply_is_named():
    fed = federate()
    answer = fed.local_sites["site 2"].receive

    def lies(data, verb):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "silvan.algorithms.private.noisy_levels.NoisyLevel.add", lambda *args: np.zeros((1, 2), np.int64)
            )
            return answer(data, verb)

    fed.local_sites["site 2"].receive = lies
    with pytest.raises(FederationError, match="'site 2'"):
        sv.HistogramForest(epsilon=1.0, private="levels", **SMALL).fit(fed)
