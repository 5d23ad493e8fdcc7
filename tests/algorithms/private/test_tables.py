"""Private forests of tables: accuracy, cost, and inconsistent requests."""

import warnings
from fractions import Fraction
from functools import cache
from itertools import product

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.private_study import FEATURES, KNOWN, LABELS, federate, requests, schema, spent, unseen
from helpers.studies import TASKS, table
from sklearn.metrics import log_loss, r2_score, roc_auc_score

import silvan as sv
from silvan.algorithms.private import tables, tables_estimates
from silvan.algorithms.private.noisy_counts import whole_target
from silvan.algorithms.private.public_cuts import even_cuts, public_cuts
from silvan.algorithms.private.table_counts import CountColumns, CountTables, plan_counts
from silvan.algorithms.private.tables_forest import Group, table_forest
from silvan.errors import FederationError, FormatError, InputError, SilvanError
from silvan.federation.site import Site
from silvan.forest.predict import tally
from silvan.privacy.noise.laplace import Noise

pytestmark = pytest.mark.filterwarnings("ignore:rows times epsilon")


def leave_noise_out(monkeypatch):
    """To be called inside a test: each test starts with noise from its own seed."""
    monkeypatch.setattr(Noise, "add", lambda self, counts: np.array(counts, np.int64))


# -- accuracy


def test_two_classes():
    rows, y = unseen()
    model = sv.HistogramForest(epsilon=3.0, noise="total").fit(federate(n=4000))
    scores = model.predict_proba(rows)
    assert roc_auc_score(y == "yes", scores[:, 1]) > 0.85  # a forest without noise has 0.91
    assert log_loss(y == "yes", scores[:, 1]) < 0.5
    np.testing.assert_allclose(scores.sum(axis=1), 1.0)
    assert (model.predict(rows) == y).mean() > 0.75
    assert model.rounds_ == 4  # rows, bins, cells, scores


def test_several_classes():
    rows, y = unseen("several")
    model = sv.HistogramForest(epsilon=5.0, noise="total").fit(federate("several", n=4000))
    scores = model.predict_proba(rows)
    assert roc_auc_score(y, scores, multi_class="ovr", labels=["high", "low", "middle", "top"]) > 0.72
    np.testing.assert_allclose(scores.sum(axis=1), 1.0)


def test_a_number():
    rows, y = unseen("number")
    model = sv.HistogramForest(epsilon=5.0, noise="total").fit(federate("number", n=4000))
    assert r2_score(y, model.predict(rows)) > 0.3
    assert model.forest_.combine == "mean"
    assert model.rounds_ == 5


def test_more_epsilon_is_better():
    rows, y = unseen()
    fed = federate(n=4000)
    aucs = []
    for epsilon in (0.02, 10.0):
        models = [sv.HistogramForest(epsilon=epsilon, noise="total", random_state=i).fit(fed) for i in range(3)]
        aucs.append(np.mean([roc_auc_score(y == "yes", m.predict_proba(rows)[:, 1]) for m in models]))
    assert aucs[1] > aucs[0] + 0.05


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("sums", ["ring", "masked"])
def test_masked_and_ring_sums(task, sums):
    model = sv.HistogramForest(epsilon=3.0).fit(federate(task, sums=sums))
    assert "nobody sees a site's part" in model.privacy_.seen_by
    assert model.forest_ is not None


@pytest.mark.parametrize("task", TASKS)
def test_the_forest_does_not_depend_on_who_holds_the_rows(task, monkeypatch):
    """Apart from noise: one site or several, trusted or masked sums, restarted for every message or not."""
    leave_noise_out(monkeypatch)
    learner = sv.HistogramForest(epsilon=3.0, noise="total", tolerate=0, n_rows=600)
    expected = learner.fit(federate(task, n=600, n_sites=1)).forest_.hash
    for settings in ({}, {"cold": True}, {"sums": "ring"}, {"sums": "masked"}):
        fed = federate(task, n=600, n_sites=3, **settings)
        assert learner.fit(fed).forest_.hash == expected, settings


def test_noise_does_not_follow_from_the_seed():
    """Two federations with the same tables and seeds: the requests are the same, the replies differ."""
    first, second = (sv.HistogramForest(epsilon=1.0).fit(federate()).forest_ for _ in range(2))
    assert first.hash != second.hash


# -- cost


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("n_rows", [None, 2000])
@pytest.mark.parametrize("epsilon", [0.01, 0.3, 7.0])
def test_the_accounting_adds_up(task, n_rows, epsilon):
    """All of epsilon is used, none of it twice, and the ledgers of all sites agree."""
    fed = federate(task)
    model = sv.HistogramForest(epsilon=epsilon, n_rows=n_rows, noise="total").fit(fed)
    account = model.privacy_
    assert sum(Fraction(q.epsilon) for q in account.queries) <= Fraction(epsilon)
    assert account.total == pytest.approx(epsilon)
    np.testing.assert_allclose(spent(fed), epsilon)
    for query in account.queries:
        assert query.scale == pytest.approx(query.sensitivity / query.epsilon)
        assert query.alpha == pytest.approx(np.exp(-query.epsilon / query.sensitivity))
        assert query.sensitivity % query.times == 0
    assert any("number of rows" in q.what for q in account.queries) == (n_rows is None)
    text = str(account)
    assert f"epsilon {account.total:.6g} for one row of those trained on, added or removed" in text
    assert "sequential" in text
    assert "evaluate" in text


def test_repeated_requests_are_free_and_change_nothing():
    fed = federate()
    learner = sv.HistogramForest(epsilon=1.0)
    forest = learner.fit(fed).forest_
    assert learner.fit(fed).forest_ == forest
    np.testing.assert_allclose(spent(fed), 1.0)
    assert sv.HistogramForest(epsilon=1.0, random_state=1).fit(fed).forest_ != forest
    # the number of rows and their bins is the same request for all tables
    np.testing.assert_allclose(spent(fed), 1.75)


def test_the_guarantee_names_its_adversaries():
    one, several = federate(n_sites=1), federate()
    assert "everybody but the site itself" in sv.HistogramForest(epsilon=1.0).fit(several).privacy_.seen_by
    assert (
        "whoever adds, who is trusted" in sv.HistogramForest(epsilon=1.0, noise="total").fit(several).privacy_.seen_by
    )
    assert "everybody but the site itself" in sv.HistogramForest(epsilon=1.0, noise="total").fit(one).privacy_.seen_by
    ring = federate(n_sites=4, sums="ring")
    seen_by = sv.HistogramForest(epsilon=1.0, tolerate=2).fit(ring).privacy_.seen_by
    assert (
        "up to 2 of 4 sites lost or colluding, at most 1 of them colluding" in seen_by
    )  # neighbours see the difference
    assert "up to 1 of 4 sites" in sv.HistogramForest(epsilon=1.0).fit(ring).privacy_.seen_by
    trusting = federate(n_sites=4, sums="ring")
    alone = sv.HistogramForest(epsilon=1.0, tolerate=0).fit(trusting).privacy_.seen_by
    assert "not against the other sites" in alone
    two = sv.HistogramForest(epsilon=1.0, noise="total").fit(federate(n_sites=2))
    assert "each site's answer has all the noise" in two.privacy_.seen_by  # the other's share is known to it


def test_noise_once_or_at_every_site():
    """With secure aggregation too, each site adds all of the noise; otherwise all shares but one suffice."""
    for sums, noise, sharers in (("trusted", None, 1), ("trusted", "total", 2), ("ring", None, 2), ("ring", "site", 1)):
        fed = federate(sums=sums)
        seen = []
        total = fed.total
        fed.total = lambda request, total=total, seen=seen, **more: seen.append(request) or total(request, **more)
        sv.HistogramForest(epsilon=1.0, noise=noise).fit(fed)
        assert {request.sharers for request in seen} == {sharers}


def test_metrics_are_marked_as_not_private():
    fed = federate(test=0.2, test_by="row")
    figures = sv.HistogramForest(epsilon=1.0).fit(fed).evaluate(fed)
    assert figures["guarantee"].unique().to_list() == ["outside"]
    assert "guarantee" not in sv.HistogramForest(n_estimators=3, max_depth=2).fit(fed).evaluate(fed).columns


# -- lost sites


@pytest.mark.parametrize("sums", ["trusted", "masked"])
@pytest.mark.parametrize("tolerate", [0, 1, 2])
def test_a_lost_site_takes_its_share_of_noise_with_it(sums, tolerate):
    """A sum with too little noise is not opened, unless losses were allowed for: one site is lost, another curious."""
    fed = federate(n_sites=5, sums=sums, quorum=4)
    answer = fed.local_sites["site 4"].receive
    # present at the announcement, lost at the start of the study
    fed.local_sites["site 4"].receive = lambda data, verb: answer(data, verb) if b"Announce" in data else b"nonsense"
    learner = sv.HistogramForest(epsilon=1.0, noise="total", tolerate=tolerate)
    if tolerate == 2:
        assert learner.fit(fed).forest_ is not None
        assert fed.active == [f"site {i}" for i in range(4)]
    else:
        with pytest.raises(
            SilvanError, match="the shares of 1 of its sites" if tolerate else "noise (would be|was) shared by"
        ):
            learner.fit(fed)


# -- what must be public


@pytest.mark.parametrize(
    ("task", "schema", "said"),
    [
        ("binary", None, "found by asking the sites"),
        (
            "binary",
            sv.Schema.of([sv.Feature("age"), *FEATURES[1:4], sv.Feature("noise")], LABELS["binary"]),
            r"none for 'age', 'noise': pass schema=.*Feature\('age', bounds=\(low, high\)\)",
        ),
        (
            "binary",
            sv.Schema.of([*FEATURES[:3], sv.Feature("ward", "categorical")], LABELS["binary"]),
            "categories, and the schema names none for 'ward'",
        ),
        ("binary", sv.Schema.of(FEATURES, sv.Label("label", ("no",))), "nothing to predict"),
        ("number", sv.Schema.of(FEATURES, "label"), r"Label\('label', bounds=\(low, high\)\)"),
    ],
    ids=["none", "no bounds", "no categories", "one class", "a number"],
)
def test_missing_bounds_are_explained(task, schema, said):
    frame = table(task, n=300)
    fed = sv.federate_rows({"a": frame[::2], "b": frame[1::2]}, **({} if schema is None else {"schema": schema}))
    with pytest.raises(InputError, match=said):
        sv.HistogramForest(epsilon=1.0).fit(fed)


@cache
def three_hundred():
    """A federation for refused requests."""
    return federate(n=300)


@pytest.mark.parametrize(
    ("learner", "said"),
    [
        (sv.HistogramForest(epsilon=0.0), "epsilon"),
        (sv.HistogramForest(epsilon="much"), "epsilon"),
        (sv.HistogramForest(epsilon=1.0, private="trees"), "private must be 'input', 'levels' or 'tables'"),
        (sv.HistogramForest(epsilon=1.0, noise="both"), "noise must be 'site', 'total' or None"),
        (sv.HistogramForest(epsilon=1.0, n_rows=0), "n_rows"),
        (sv.HistogramForest(epsilon=1.0, n_rows=2.5), "n_rows"),
        (sv.HistogramForest(epsilon=1.0, tolerate=3), "tolerate"),
        (sv.HistogramForest(epsilon=1.0, tolerate=-1), "tolerate"),
        (sv.HistogramForest(epsilon=1.0, bins="adaptive"), "bins must be 'shared' with epsilon"),
        (sv.HistogramForest(epsilon=1.0, private="input", noise="total"), "noise is for sums"),
        (sv.PooledForest(epsilon=1.0), "epsilon must be None"),
    ],
    ids=lambda value: str(value).replace("\n", ""),
)
def test_parameters(learner, said):
    with pytest.raises(InputError, match=said):
        learner.fit(three_hundred())


def test_small_tables_give_a_warning():
    with pytest.warns(UserWarning, match="rows times epsilon is"):
        sv.HistogramForest(epsilon=0.05, n_rows=300).fit(federate(n=300))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sv.HistogramForest(epsilon=3.0, n_rows=2000, noise="total").fit(federate())


def test_values_beyond_the_bounds_count_as_these():
    frame = table(n=300)
    wild = frame.with_columns(pl.col("age") * 1000 - 10, pl.lit("elsewhere").alias("ward"))
    for task_schema, source in ((schema(), wild), (schema(), frame)):
        (_, _request, counts), *_ = [q for q in requests("binary", source, 1.0) if q[0] == "tables"]
        assert counts.sum() == 3 * 300
        assert (counts >= 0).all()
        assert task_schema is not None
    assert (whole_target(np.array([-1e9, 1075.0, 1e9]), schema("number")) == [-127, 0, 127]).all()


# -- the grid


def test_cuts_that_follow_from_bounds():
    cuts = public_cuts(sv.Feature("x", bounds=(0, 16)))
    assert (np.diff(cuts) > 0).all()
    assert cuts.dtype == np.float32
    assert cuts[0] == 0
    assert cuts[-1] == 15
    assert {1.0, 2.0, 8.0}.issubset(cuts.tolist())
    assert 0.5 in cuts
    straddling = public_cuts(sv.Feature("x", bounds=(-16, 16)))
    assert 0.0 in straddling
    assert (np.abs(straddling) < 1).sum() > 6
    assert len(public_cuts(sv.Feature("x", bounds=(0, 16)), 24)) == 23
    assert public_cuts(sv.Feature("x", edges=(1.0, 2.5))).tolist() == [1.0, 2.5]
    assert even_cuts(sv.Feature("x", bounds=(0, 9)), 3).tolist() == [3.0, 6.0]
    tiny = public_cuts(sv.Feature("x", bounds=(1e30, 1.0000001e30)))
    assert len(tiny) >= 1
    assert (np.diff(tiny) > 0).all()


# -- tables as trees


@pytest.mark.parametrize("own", [False, True])
def test_a_table_is_a_tree(own):
    """Every row reaches the leaf of its cell: numbers, categories, missing and unknown values."""
    known = schema()
    groups = [
        Group(0, 0, np.array([20, 40, 60], np.float32), 4 if own else 2),
        Group(3, 4, np.zeros(0, np.float32), 3),
        Group(2, 2, np.zeros(0, np.float32), 0),
        Group(1, 0, np.array([2.5], np.float32), 2 if own else 0),
    ]
    shape = [group.n for group in groups]
    rng = np.random.default_rng(0)
    values = rng.normal(size=(int(np.prod(shape)), 2))
    knots = np.tile([-1.0, 1.0], (2, 1))
    forest = table_forest(
        known,
        [groups, groups[2:3]],
        [values, rng.normal(size=(2, 2))],
        weights=np.ones(2),
        combine="log_odds",
        knots=knots,
        odds=knots,
    )
    ages, wards = [np.nan, -5, 20, 20.1, 40, 60, 61, 1e6], [np.nan, 0, 1, 2, 3]
    X = np.array(list(product(ages, [np.nan, 1, 2.5, 3], [np.nan, 0, 1], wards, [0.0])), np.float32)
    expected = values[np.ravel_multi_index([group.of(X) for group in groups], shape)]
    expected = expected + forest.value[-2:][groups[2].of(X)]
    np.testing.assert_array_equal(tally(forest, X, forest.weights, votes=False).values, expected)


def test_cells_agree_with_counting_rows():
    frame = table(n=200)
    (_, _request, counts), *_ = [q for q in requests("binary", frame, 1.0) if q[0] == "tables"]
    site = Site("here", frame)
    part = site.part(schema())
    lost = np.isnan(part.X[:, 0])
    age = np.where(lost, 3, np.searchsorted([40, 60], part.X[:, 0]))
    ward = np.where(np.isnan(part.X[:, 3]), 3, part.X[:, 3])
    for a, w, k in product(range(4), range(4), range(2)):
        assert counts[4 * a + w, k] == ((age == a) & (ward == w) & (part.y == k)).sum()
    assert lost.any()


# -- what is derived from noisy counts


def test_noise_is_smoothed_away():
    rng = np.random.default_rng(0)
    exact = 1000 * np.exp(-0.5 * ((np.arange(40) - 15) / 6.0) ** 2)
    noisy = exact + rng.laplace(scale=80, size=40)
    smooth = tables_estimates.smooth(noisy, exact.sum(), 2 * 80.0**2, 2, np.ones(38))
    assert np.abs(smooth - exact).mean() < 0.75 * np.abs(noisy - exact).mean()
    assert (smooth >= 0).all()


def test_unknown_bins_have_rows_in_proportion_to_their_width():
    """Counts drowned in noise have no effect; clear counts decide, whatever the widths."""
    rng = np.random.default_rng(0)
    widths = np.array([*0.5 ** np.arange(12, 0, -1), *np.ones(16)])
    exact = np.concatenate([[0, 0], 1000 * widths / widths.sum()])
    drowned = tables_estimates.smooth(exact + rng.laplace(scale=100, size=30), 1000, 2 * 100.0**2, 2, widths)
    assert drowned[14:].sum() > 2 * drowned[:14].sum()
    exact = np.concatenate([[0, 0], np.full(12, 80.0), np.full(16, 2.5)])
    clear = tables_estimates.smooth(exact, 1000, 1.0, 2, widths)
    np.testing.assert_allclose(clear, exact, atol=5)


def test_groups_have_about_equal_mass():
    assert tables_estimates.cut_evenly(np.ones(12), 4).tolist() == [2, 5, 8]
    assert tables_estimates.cut_evenly(np.array([100.0, 1, 1, 1, 1, 1, 1]), 3).tolist() == [0, 3]
    assert len(tables_estimates.cut_evenly(np.zeros(5), 3)) <= 2


def test_cells_are_shrunk_together():
    """Without noise and with many rows, log-odds follow the counts; with noise they shrink towards zero."""
    counts = np.array([[900, 100], [100, 900], [500, 500], [400, 600]])
    kernel = tables_estimates.prior([2, 2], 0.2, 0.3)
    clear = tables_estimates.log_odds(counts, np.array([0.5, 0.5]), kernel, 1e-9)
    drowned = tables_estimates.log_odds(counts, np.array([0.5, 0.5]), kernel, 1e8)
    assert (np.sign(clear[:2, 1]) == [-1, 1]).all()
    assert abs(clear[2, 1]) < 0.1
    np.testing.assert_allclose(clear[:, 0], -clear[:, 1])
    assert np.abs(drowned).max() < 0.05
    assert (tables_estimates.log_odds(np.zeros((4, 3)), np.full(3, 1 / 3), kernel, 1.0) == 0).all()


def test_cells_of_a_number():
    counts = np.array([[1000, 20_000], [1000, -20_000], [0, 0], [1000, 5000]])
    added = tables_estimates.number_values(counts, 0.0, tables_estimates.prior([2, 2], 0.2, 0.3), 1.0, 100.0)
    np.testing.assert_allclose(added[[0, 1, 3]], [20, -20, 5], rtol=0.2)


def test_calibration_rises():
    edges = np.linspace(-3, 3, 9)
    knots = tables_estimates.knots_of(edges)
    exact = 1 / (1 + np.exp(-(0.5 + 0.4 * knots)))
    counts = np.rint(np.stack([1000 * (1 - exact), 1000 * exact], axis=1))
    odds = tables_estimates.calibrate(counts, knots, 2.0)
    np.testing.assert_allclose(odds, 0.5 + 0.4 * knots, atol=0.1)
    wild = tables_estimates.calibrate(np.random.default_rng(0).integers(-50, 50, (10, 2)), knots, 1000.0)
    assert (np.diff(wild) > 0).all()
    assert np.isfinite(wild).all()
    assert np.isfinite(tables_estimates.calibrate(np.zeros((10, 2)), knots, 1.0)).all()


# -- inconsistent requests


TABLES = {
    "columns": [
        np.array([0, 0], np.int32),
        np.array([1, 0, 2, 3, 4], np.int32),
        np.array([0.0]),
        np.array([9], np.int32),
    ],
    "sizes": [np.array([2, 1, 0, 0, 4]), np.array([2, 1, 1, 0, 2]), np.array([-1, 4, 0, 0, 3]), np.zeros(5)],
    "cuts": [np.array([60, 40, 2.5, 10, 20, 30], np.float32), np.full(6, np.nan, np.float32), np.zeros(6)],
    "missing": [
        np.array([4, 0, 0, 3, 0]),
        np.array([-1, 0, 0, 3, 0]),
        np.array([0, 0, 2, 3, 0]),
        np.zeros(2, np.int64),
    ],
    "table_sizes": [np.array([2, 3, 2]), np.array([0, 5, 1]), np.zeros(0, np.int64), np.full(5000, 1)],
    "table_columns": [np.array([0, 3, 1, 2, 5, 0]), np.array([0, 0, 1, 2, 4, 0]), np.array([0, -3, 1, 2, 4, 0])],
}


@pytest.mark.parametrize("field", TABLES)
def test_inconsistent_tables_are_refused(field):
    frame = table(n=50)
    (_, request, _), *_ = [q for q in requests("binary", frame, 1.0) if q[0] == "tables"]
    site = Site("here", frame)
    for value in TABLES[field]:
        with pytest.raises(FormatError):
            plan_counts(site, msgspec.structs.replace(request, **{field: value}), schema())


def test_other_inconsistent_requests_are_refused():
    for task, name, changes in [
        ("binary", "columns", {"columns": np.array([0, 1, 2], np.int32)}),
        ("binary", "columns", {"sizes": np.array([2, 1, 2])}),
        ("binary", "scores", {"edges": np.array([[1.0, 0.0]])}),
        ("binary", "scores", {"edges": np.zeros((2, 3))}),
        ("binary", "scores", {"edges": np.array([[0.0, np.inf]])}),
        ("number", "slopes", {"reach": 0.0}),
        ("number", "slopes", {"centre": float("nan")}),
    ]:
        frame = table(task, 50)
        site = Site("here", frame)
        for kind, request, _ in requests(task, frame, 1.0):
            if kind == name:
                site.blob = KNOWN.get
                with pytest.raises(FormatError):
                    plan_counts(site, msgspec.structs.replace(request, **changes), schema(task))


def test_a_site_with_nonsense_replies_is_named():
    fed = federate()
    member = fed.local_sites["site 1"]
    answer = member.receive

    def lies(data, verb):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CountTables, "add", lambda self, counts, schema: counts[:-1])
            patch.setattr(CountColumns, "add", lambda self, counts, schema: counts[:-1])
            return answer(data, verb)

    member.receive = lies
    with pytest.raises(FederationError, match=r"site 'site 1'.*not the ones requested"):
        sv.HistogramForest(epsilon=1.0).fit(fed)


def test_every_recipe(monkeypatch):
    """Few rows or many: from three public groups per feature to several groupings of large tables."""
    leave_noise_out(monkeypatch)
    draw, used = tables._draw_tables, []
    monkeypatch.setattr(
        tables, "_draw_tables", lambda groups, cells, rng: used.append(cells) or draw(groups, cells, rng)
    )
    for (bound, recipe), task in product(tables.RECIPES, TASKS):
        used.clear()
        epsilon = min(bound, 3000.0) * 5 / 600 * (1 if task != "number" else 2) * 0.9
        forest = sv.HistogramForest(epsilon=epsilon, n_rows=600, noise="total").fit(federate(task, n=600)).forest_
        assert used == [recipe.cells] * recipe.groupings
        assert np.isfinite(forest.value).all()
