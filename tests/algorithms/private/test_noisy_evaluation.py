"""Metrics of a private model with noise: the effect of one row, cost, accuracy, and intervals."""

import numpy as np
import polars as pl
import pytest
from helpers.limits import limited
from helpers.private_study import budgets, federate, schema, site_with, spent
from helpers.studies import table

import silvan as sv
from silvan.algorithms.private import noisy_evaluation
from silvan.algorithms.private.noisy_counts import model_to_count_by
from silvan.algorithms.private.noisy_evaluation import CountByScoreWithNoise, TallyLayout, estimate
from silvan.errors import FormatError, InputError, RefusedError
from silvan.federation.message import Blob
from silvan.federation.store import digest
from silvan.forest.category_set import SET_WORDS
from silvan.privacy.noise.laplace import Noise

pytest.importorskip("opendp", reason="opendp is not installed; to test noise: pip install 'silvan[dp]'")

TASKS = ["binary", "several", "number"]
SETS = {"binary": 1, "several": 5, "number": 2}


def answers(task, n, seed=0):
    """Scores of a model, its decisions and the true labels; some of them odd."""
    rng, k = np.random.default_rng(seed), schema(task).n_classes
    if not k:
        y = rng.uniform(1000, 1150, n)
        scores = (y + rng.normal(0, 20, n))[:, None]
        odd = rng.random(n) < 0.1
        y[odd] = rng.choice([-np.inf, 0.0, np.inf, 1e300, np.nan], odd.sum())
        return scores, np.zeros(n, np.int64), y
    scores = rng.dirichlet(np.ones(k), n)
    scores[rng.random(n) < 0.1] = 1.0 / k
    return scores, scores.argmax(axis=1), rng.integers(0, k, n)


# -- the effect of one row


@pytest.mark.parametrize("task", TASKS)
def test_a_row_is_in_one_cell_of_every_set(task):
    """The noise covers the largest effect of one row: no row, however odd, changes more."""
    layout, everything = TallyLayout.of(schema(task)), answers(task, 300)
    request = CountByScoreWithNoise(epsilon=1.0, schema=Blob(""), model=Blob(""))
    assert request.noises(schema(task)) == (Noise(SETS[task], 1.0),)
    for row in range(300):
        counts = layout.count(*(part[row : row + 1] for part in everything))
        assert [part.sum() for part in layout.split(counts)] == [1] * SETS[task]
        assert counts.min() == 0


# -- figures


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("sums", ["trusted", "masked"])
def test_with_little_noise_metrics_are_nearly_exact(task, sums):
    fed = federate(task, n=900, test=0.3, test_by="row", sums=sums)
    model = sv.HistogramForest(2, max_depth=2, epsilon=100.0).fit(fed)
    exact = model.evaluate(fed).filter(pl.col("site") == "all", pl.col("model") == "federated").to_dicts()[0]
    (noisy,) = model.evaluate(fed, epsilon=1000.0).to_dicts()
    assert noisy["guarantee"] == "epsilon 1000"
    assert (noisy["site"], noisy["model"], noisy["rows"]) == ("all", "federated", exact["rows"])
    for name, off in {"accuracy": 0.0, "f1": 0.0, "mcc": 1e-12, "auc": 0.02, "rmse": 0.5, "r2": 0.02}.items():
        if name in noisy:
            assert noisy[name] == pytest.approx(exact[name], abs=off)
            assert noisy[f"{name}_low"] <= noisy[name] <= noisy[f"{name}_high"]


@pytest.mark.parametrize("task", TASKS)
def test_noisy_intervals_contain_the_population_value(task, monkeypatch):
    """On other rows with other noise, nearly all intervals contain the value of a very large sample without noise."""
    monkeypatch.setattr(noisy_evaluation, "_RESAMPLES", 100)
    layout, rng = TallyLayout.of(schema(task)), np.random.default_rng(1)
    truth = layout.metrics(layout.count(*answers(task, 100_000, seed=5)).astype(float))
    alpha, factor = Noise(SETS[task], 1.0).alpha, 1.5
    held = dict.fromkeys(truth, 0)
    for i in range(40):
        noise = rng.negative_binomial(factor, 1 - alpha, (2, layout.size))
        _, _, between = estimate(
            layout, layout.count(*answers(task, 1500, seed=10 + i)) + noise[0] - noise[1], alpha, factor
        )
        for name, value in truth.items():
            held[name] += between[name][0] <= value <= between[name][1]
    assert min(held.values()) >= 35


def test_metrics_of_pure_noise():
    """If there is nothing to compute metrics from, a message says so, and there is no error."""
    for task in TASKS:
        layout = TallyLayout.of(schema(task))
        for counts in (np.zeros(layout.size), np.full(layout.size, -3), np.arange(layout.size) - 30):
            rows, found, between = estimate(layout, counts, Noise(SETS[task], 0.1).alpha, 3.0)
            assert rows >= 0
            assert set(between) <= set(found)


# -- the cost


def test_noisy_metrics_are_charged_once_and_repeated():
    fed = federate(test=0.25, policy=sv.Policy(epsilon=1.5))
    model = sv.HistogramForest(epsilon=1.0).fit(fed)
    first = model.evaluate(fed, epsilon=0.5)
    assert spent(fed) == pytest.approx(1.5)
    assert model.evaluate(fed, epsilon=0.5).equals(first)
    assert spent(fed) == pytest.approx(1.5)
    with pytest.raises(RefusedError, match="used up"):
        model.evaluate(fed, epsilon=0.4)
    assert spent(fed) == pytest.approx(1.5)
    account = model.evaluation_privacy_
    assert account.total == pytest.approx(0.5)
    assert account.unit == "one row of the test rows, added or removed"
    charges = budgets(fed)["site 0"].charges()
    assert charges[-1].what.startswith("the number of test rows for each score of a model")
    ledger = {line.kind for line in fed.site("site 0").outbox.ledger.lines() if line.outcome == "answered"}
    assert ledger == {"Announce", "CountPeople", "CountColumns", "CountTables", "CountScores", "CountByScoreWithNoise"}


def test_without_epsilon_a_budget_says_what_to_do():
    fed = federate(test=0.25, policy=sv.Policy(epsilon=2.0))
    model = sv.HistogramForest(epsilon=1.0).fit(fed)
    with pytest.raises(
        RefusedError, match=r"EvaluateModels is answered without noise(.|\n)*pass evaluate\(\.\.\., epsilon"
    ):
        model.evaluate(fed)
    assert spent(fed) == pytest.approx(1.0)
    assert model.evaluate(fed, epsilon=1.0)["guarantee"].to_list() == ["epsilon 1"]


def test_invalid_settings():
    fed = federate(test=0.25, policy=sv.Policy(epsilon=2.0))
    model = sv.HistogramForest(epsilon=1.0)
    with pytest.raises(InputError, match="not fitted"):
        model.evaluate(fed, epsilon=0.5)
    model.fit(fed)
    for wrong in (0.0, -1.0, float("nan"), 1e9, "much"):
        with pytest.raises(InputError, match="epsilon must be"):
            model.evaluate(fed, epsilon=wrong)
    with pytest.raises(InputError, match="leave it out to evaluate on a table"):
        model.evaluate(fed, table=pl.DataFrame(), epsilon=0.5)
    open_ = federate(test=0.25)
    plain = sv.HistogramForest(2, max_depth=2).fit(open_)
    with pytest.raises(InputError, match="fitted with epsilon"):
        plain.evaluate(open_, epsilon=0.5)
    without = federate(policy=sv.Policy(epsilon=2.0))
    with pytest.raises(InputError, match="no site has test rows"):
        sv.HistogramForest(epsilon=1.0).fit(without).evaluate(without, epsilon=0.5)
    assert spent(without) == pytest.approx(1.0)
    assert spent(fed) == pytest.approx(1.0)


# -- running time


def chain(known, levels, trees=1):
    """A model whose trees test a row again and again: only a row above all thresholds goes all the way."""
    n = 2 * levels + 1
    feature = np.where((np.arange(n) % 2 == 0) & (np.arange(n) < n - 1), 0, -1).astype(np.int32)
    return sv.Forest(
        schema=known,
        offsets=np.arange(trees + 1) * n,
        feature=np.tile(feature, trees),
        threshold=np.tile(np.where(feature == 0, np.arange(n), 0).astype(np.float32), trees),
        missing_left=np.zeros(n * trees, bool),
        sets=np.zeros((0, SET_WORDS), np.uint64),
        value=np.full(((levels + 1) * trees, 2), 0.5),
        weights=np.ones(trees),
    )


@pytest.mark.parametrize(("levels", "trees", "read"), [(128, 1, True), (129, 1, False), (128, 1025, False)])
def test_response_times_do_not_depend_on_a_row(levels, trees, read):
    """With 4,000 levels the response time revealed one person's presence with AUC 0.988 at epsilon 1e-6."""
    forest = chain(schema(), levels, trees)
    site = site_with(table(n=40), [forest.to_bytes()])
    if read:
        assert model_to_count_by(site, schema(), Blob(digest(forest.to_bytes()))) == forest
        return
    with pytest.raises(FormatError, match="too many levels"):
        model_to_count_by(site, schema(), Blob(digest(forest.to_bytes())))
    with pytest.raises(InputError, match="max_depth must be set"):
        noisy_evaluation.evaluate_with_noise(None, schema(), forest, 1.0, None)


def test_few_models_reveal_their_running_time():
    """Noise hides counts but not running time, so a study counts by no more models than it needs."""
    fed = limited(federate(n=600, test=0.3, test_by="row"), models=2)
    settings = {"max_depth": 2, "epsilon": 10.0, "private": "levels"}
    models = [sv.HistogramForest(2, random_state=seed, **settings).fit(fed) for seed in range(3)]
    for model in models[:2]:
        model.evaluate(fed, epsilon=1.0)
    with pytest.raises(RefusedError, match="in a study: 2 at most"):
        models[2].evaluate(fed, epsilon=1.0)
