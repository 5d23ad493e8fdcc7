"""AdaBoost with stumps: compared with scikit-learn and plain code, and with little data."""

from functools import cache
from itertools import combinations, product

import numpy as np
import polars as pl
import pytest
from helpers.boosters import few_values, rows_of, uneven, with_one_class
from helpers.studies import Shuffled, federate, parts, table
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.ensemble import AdaBoostClassifier
from sklearn.tree import DecisionTreeClassifier

import silvan as sv
from silvan.algorithms.boosting.adaboost import ONE, boost, pooled_boost, reweigh, stage_weight, weigh
from silvan.algorithms.boosting.stumps import Boosting, StumpTable, check_stumps, find_stump, join_stumps
from silvan.data.bins.bins import find_bins
from silvan.errors import FormatError, InputError, RefusedError
from silvan.forest.predict import decide, scores

FEDERATED = (sv.BOPPID, sv.AdaBoostPL, sv.MultBoost)
LEARNERS = (sv.LocalAdaBoost, *FEDERATED)


# -- one table


@pytest.mark.parametrize("criterion", ["gini", "entropy"])
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_scikit_learn(seed, criterion):
    """Errors, weights and decisions equal scikit-learn's after every round; its weights are twice ours."""
    X, y = few_values(seed=seed)
    mine = sv.LocalAdaBoost(n_estimators=40, criterion=criterion).fit(federate({"a": (X, y)})).forests_["a"]
    stump = DecisionTreeClassifier(max_depth=1, min_samples_leaf=2, criterion=criterion)
    theirs = AdaBoostClassifier(stump, n_estimators=40, learning_rate=1.0, random_state=0).fit(X, y)
    assert len(mine) == len(theirs.estimators_) == 40
    assert mine.weights == pytest.approx(theirs.estimator_weights_ / 2, abs=1e-9)
    error = 1 / (1 + np.exp(2 * mine.weights))
    assert error == pytest.approx(theirs.estimator_errors_, abs=1e-9)
    for t, decided in enumerate(theirs.staged_predict(X)):
        assert np.array_equal(mine.take(slice(0, t + 1)).predict(X), decided)
    assert mine.predict_proba(X)[:, 1] == pytest.approx((theirs.decision_function(X) / 2 + 1) / 2, abs=1e-9)


def plain_adaboost(table, rounds):
    """Alg. 2 in floats, with exp and log: a naive version of the fixed-point loop."""
    w = np.ones(len(table)) / len(table)
    alphas = []
    for _ in range(rounds):
        _, right = find_stump(table, w, Boosting())
        error = w[right < 0].sum() / w.sum()
        alphas.append(0.5 * np.log((1 - error) / error))
        w = w * np.exp(-alphas[-1] * right)
        w /= w.sum()
    return alphas


def test_fixed_point_weights_follow_the_formula():
    fed = federate(uneven())
    for site in fed.sites:
        *_, ready = rows_of(fed, site)
        assert boost(ready, Boosting(30)).weight == pytest.approx(plain_adaboost(ready, 30), rel=1e-7)


@given(st.integers(0, 10**6), st.integers(2, 300), st.floats(0.05, 0.45))
def test_weights_stay_a_distribution(seed, n, share):
    """After a round half of the mass is misclassified: the stump is no better than chance on it (as in the proof)."""
    rng = np.random.default_rng(seed)
    weight = rng.random(n) + 0.01
    weight /= weight.sum()
    right = np.where(rng.random(n) < share, -1, 1).astype(np.int8)
    right[:2] = 1, -1
    masses = weigh(weight, right)
    assert abs(masses.sum() - ONE) <= n
    if stage_weight(masses, n) == 0.0:
        return
    after = reweigh(weight, right, masses, n)
    assert after.sum() == pytest.approx(1.0, rel=1e-9)
    assert after[right < 0].sum() == pytest.approx(0.5, rel=1e-9)
    undecided = right.copy()
    undecided[2:] = np.where(rng.random(n - 2) < 0.3, 0, right[2:])
    masses = weigh(weight, undecided)
    if stage_weight(masses, n) > 0.0:
        after = reweigh(weight, undecided, masses, n)
        assert after.sum() == pytest.approx(1.0, rel=1e-9)
        assert after[undecided > 0].sum() == pytest.approx(after[undecided < 0].sum(), rel=1e-9)
        kept = after[undecided == 0] / weight[undecided == 0]
        assert kept == pytest.approx(kept[:1].repeat(len(kept)))


def gini_of(w, y, left):
    return sum(2 * w[s][y[s] == 0].sum() * w[s][y[s] == 1].sum() / w[s].sum() for s in (left, ~left))


def error_of(w, y, left):
    wrong = w[left == (y == 1)].sum()
    return min(wrong, w.sum() - wrong)


@pytest.mark.parametrize(("criterion", "worth"), [("gini", gini_of), ("error", error_of)])
def test_no_stump_is_better(criterion, worth):
    """Every cut, every set of categories, and missing values on either side."""
    fed = federate({"a": table(n=150, seed=5)})
    X, y, ready = rows_of(fed, "a", floor=1)
    rng = np.random.default_rng(0)
    found = set()
    even, heavy = rng.random(150), np.where(X[:, 3] == 2, 50.0, rng.random(150))
    for w in (np.ones(150), even, even**4 + 1e-6, heavy, np.where(y == 1, 1.0, even / 5)):
        w = w / w.sum()
        stump, right = find_stump(ready, w, Boosting(criterion=criterion))
        forest = stump.forest(fed.schema)
        best = np.inf
        for f, feature in enumerate(fed.schema.features):
            codes, gap = ready.codes[:, f].astype(int), ready.codes[:, f] == 0
            values = np.unique(codes[~gap])
            if feature.categorical:
                sets = [s for k in range(len(values) + 1) for s in combinations(values, k)]
            else:
                sets = [values[values <= v] for v in [0, *values]]
            for inside, with_gap in product(sets, (False, True)):
                left = np.where(gap, with_gap, np.isin(codes, inside))
                if 2 <= left.sum() <= 148:
                    best = min(best, worth(w, y, left))
        if stump.feature[0] >= 0:
            found.add(int(stump.feature[0]))
            nodes = scores(forest, X)[:, 1] == stump.vote[0, 0]
            assert worth(w, y, nodes) == pytest.approx(best, rel=1e-6)
        assert np.array_equal(decide(forest, X) == y, right > 0)
    assert len(found) > 1  # otherwise the weights would have no effect


@pytest.mark.parametrize("criterion", ["gini", "error"])
def test_stumps_agree_by_bins_and_by_values(criterion):
    """A stump classifies rows by bins as its forest does by values, in every round."""
    fed = federate(uneven())
    for site in fed.sites:
        X, y, ready = rows_of(fed, site)
        w = np.full(len(y), 1 / len(y))
        stumps = []
        for _ in range(25):
            stump, right = find_stump(ready, w, Boosting(criterion=criterion))
            check_stumps(stump, fed.schema, 1)
            assert np.array_equal(decide(stump.forest(fed.schema), X) == y, right > 0)
            w = reweigh(w, right, weigh(w, right), len(y))
            stumps.append(stump)
        split = join_stumps(stumps).feature
        categorical = np.array([f.categorical for f in fed.schema.features])
        assert categorical[split[split >= 0]].any()
        assert not categorical[split[split >= 0]].all()


def test_small_leaves():
    X, y = few_values(60)
    forest = sv.LocalAdaBoost(min_samples_leaf=20).fit(federate({"a": (X, y)})).forests_["a"]
    for t in range(len(forest)):
        if len(tree := forest.take([t]).feature) == 3:
            left = (X[:, tree[0]] <= forest.take([t]).threshold[0]).sum()
            assert 20 <= left <= 40


# -- little to learn from


def stump_table(X, y):
    schema = federate({"a": (X, y)}, task="classification").schema
    bins, codes = find_bins(np.asarray(X, np.float32), schema, 64)
    return schema, StumpTable(codes, bins, np.asarray(y, np.int64))


def test_a_stump_that_is_always_right():
    """Half a row counts as wrong, and boosting stops."""
    X = np.arange(20.0).reshape(-1, 1)
    schema, ready = stump_table(X, np.arange(20) >= 8)
    stumps = boost(ready, Boosting(50))
    assert stumps.weight == pytest.approx([0.5 * np.log(20 / 0.5)])
    assert np.array_equal(stumps.forest(schema).predict(X), ready.y.astype(bool))


def test_nothing_better_than_chance():
    """A single stump, a guess without weight; the resulting forest still predicts."""
    schema, ready = stump_table(np.ones((10, 1)), np.arange(10) % 2)
    stumps = boost(ready, Boosting(50))
    assert (stumps.feature.tolist(), stumps.weight.tolist(), stumps.vote.tolist()) == ([-1], [0.0], [[0, 0]])
    assert stumps.forest(schema).predict_proba([[1.0]]).tolist() == [[1.0, 0.0]]


def test_a_constant_guess_is_a_stump():
    """As in any AdaBoost: it has a weight, and leaves both classes for the next round."""
    _, ready = stump_table(np.ones((10, 1)), np.arange(10) < 7)
    stumps = boost(ready, Boosting(50))
    assert stumps.feature.tolist() == [-1]
    assert stumps.weight == pytest.approx([0.5 * np.log(7 / 3)])
    assert stumps.vote.tolist() == [[1, 1]]


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_a_few_rows(n):
    frame = table(n=60 + n)
    fed = federate({"big": frame[:60], "few": frame[60:]})
    for learner in LEARNERS:
        model = learner(n_estimators=5).fit(fed)
        assert np.isfinite(model.predict_proba(frame.drop("label"), site="few")).all()


def test_a_site_with_one_class():
    """Its stump votes for that class, has no weight, and does not influence the others."""
    fed = federate(with_one_class(), test=0.2)
    alone = sv.LocalAdaBoost(n_estimators=10).fit(fed).forests_["only yes"]
    assert len(alone) == len(alone.feature) == 1
    assert alone.value.tolist() == [[0.0, 1.0]]
    everyone = table(seed=3).drop("label")
    for learner in FEDERATED:
        model = learner(n_estimators=10).fit(fed)
        votes = model.predict(everyone, site="site 0")
        assert set(votes) == {"no", "yes"}
        figures = model.evaluate(fed).filter(pl.col("site") == "only yes")
        assert figures["auc"].is_nan().all()  # one class: nothing to rank
        assert not figures["accuracy"].is_nan().any()
    without = {site: frame for site, frame in with_one_class().items() if site != "only yes"}
    fewer = federate(without, test=0.2, schema=fed.schema)
    apart, joined = (sv.AdaBoostPL(n_estimators=6).fit(f).forest_ for f in (fewer, fed))
    assert joined.predict_proba(everyone) == pytest.approx(apart.predict_proba(everyone), abs=1e-12)
    stages = sv.MultBoost(n_estimators=6).fit(fed).forest_
    assert stages.weights.reshape(-1, 3).tolist() == [[1.0, 1.0, 0.0]] * len(stages.say)


@pytest.mark.filterwarnings("ignore:.* absent at")
def test_a_site_that_lacks_a_column():
    """There, all values of the column are missing: it finds no stump, and the stumps of other sites still predict."""
    frame = table(n=300)
    fed = federate({"whole": frame[:150], "lacking": frame[150:].drop("age")}, test=0.2)
    age = fed.schema.names.index("age")
    assert age in sv.LocalAdaBoost(n_estimators=9).fit(fed).forests_["whole"].feature
    assert age not in sv.LocalAdaBoost(n_estimators=9).fit(fed).forests_["lacking"].feature
    for learner in FEDERATED:
        figures = learner(n_estimators=9).fit(fed).evaluate(fed)
        assert figures["auc"].min() > 0.5


# -- learners


@pytest.mark.filterwarnings("ignore:all rows of all sites are of one class")
@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (table("several", n=60), "for two classes, as it was published; the label 'label' has 4 classes"),
        (table("number", n=60), "for two classes, as it was published; the label 'label' is a number"),
        (table(n=60).with_columns(label=pl.lit("yes")), "the label 'label' has one class only"),
    ],
    ids=["four", "a number", "one"],
)
def test_two_classes_only(learner, rows, said):
    with pytest.raises(InputError, match=said):
        learner().fit(federate(parts(rows, 2)))


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"n_estimators": 0}, "n_estimators must be a whole number of at least 1, got 0"),
        ({"n_estimators": 10**6}, "n_estimators must be at most 65536"),
        ({"criterion": "squared_error"}, "criterion must be one of"),
        ({"criterion": "poisson"}, "criterion must be one of error, gini, entropy, log_loss, got 'poisson'"),
        ({"min_samples_leaf": 0}, "min_samples_leaf must be a whole number of at least 1"),
        ({"max_bins": 1}, "max_bins must be a whole number of at least 2"),
    ],
)
def test_parameters(learner, given, text):
    with pytest.raises(InputError, match=text):
        learner(**given).fit(federate(parts(table(n=60), 2)))
    with pytest.raises(TypeError, match="max_depth"):
        learner(max_depth=3)


def test_learners_are_estimators():
    model = sv.BOPPID(n_estimators=7, tau=0.2)
    assert clone(model).get_params() == model.get_params()
    assert sorted(sv.MultBoost().get_params()) == [
        "criterion",
        "max_bins",
        "min_samples_leaf",
        "n_estimators",
        "random_state",
    ]
    assert all(learner().n_estimators == 50 for learner in LEARNERS)
    with pytest.raises(InputError, match="not fitted yet"):
        model.predict(np.zeros((1, 5)))


@pytest.mark.parametrize("learner", LEARNERS)
def test_evaluated_beside_local_and_pooled_adaboost(learner):
    fed = federate(uneven(), test=0.25)
    model = learner(n_estimators=12).fit(fed)
    figures = model.evaluate(fed)
    assert set(figures["model"]) == {"local", "federated", "pooled"}
    alone = sv.LocalAdaBoost(n_estimators=12, criterion=model.criterion).fit(fed).forests_
    pooled = pooled_boost(fed, fed.schema, Boosting(12, model.criterion))
    for site in fed.sites:
        part = fed.site(site).part(fed.schema, test=True)
        expected = {"local": alone[site], "federated": model.forests_[site], "pooled": pooled}
        for name, forest in expected.items():
            row = figures.filter((pl.col("site") == site) & (pl.col("model") == name))
            assert row["accuracy"].item() == pytest.approx((decide(forest, part.X) == part.y).mean(), abs=5e-4)
    fresh = table(seed=8)
    on_table = model.evaluate(fed, fresh)
    for site in fed.sites:
        row = on_table.filter((pl.col("site") == site) & (pl.col("model") == "local"))
        right = alone[site].predict(fresh.drop("label")) == fresh["label"].to_numpy()
        assert row["accuracy"].item() == pytest.approx(right.mean())


def test_pooled_is_adaboost_on_all_rows():
    """With exact bins, the order of the sites' rows does not matter."""
    X, y = few_values()
    fed = federate({"a": (X[:150], y[:150]), "b": (X[150:], y[150:])})
    together = sv.LocalAdaBoost(n_estimators=20).fit(federate({"all of it": (X, y)})).forests_["all of it"]
    pooled = pooled_boost(fed, fed.schema, Boosting(20))
    assert pooled.weights == pytest.approx(together.weights, rel=1e-9)
    assert np.array_equal(pooled.predict(X), together.predict(X))


@pytest.mark.parametrize("learner", LEARNERS)
def test_models_are_kept(learner, tmp_path):
    model = learner(n_estimators=6).fit(federate(uneven()))
    X = table(seed=4).drop("label")
    for site, forest in model.forests_.items():
        forest.save(tmp_path / "one.silvan")
        again = sv.Forest.load(tmp_path / "one.silvan")
        assert again == forest
        assert np.array_equal(again.predict(X), model.predict(X, site=site))


def outcome(learner, one_class, kind=None, **settings):
    """Everything that must not depend on where sites run."""
    tables = with_one_class() if one_class else uneven()
    fed = federate(tables, *([kind] if kind else []), test=0.25, **settings)
    model = learner(n_estimators=8).fit(fed)
    shown = {site: forest.hash for site, forest in model.forests_.items()}
    bytes_ = None if settings.get("sums") else model.bytes_  # masked sums take more
    return shown, model.rounds_, bytes_, repr(model.evaluate(fed).rows())


usual_outcome = cache(outcome)


@pytest.mark.parametrize("learner", FEDERATED)
@pytest.mark.parametrize("how", ["cold", "shuffled", "ring", "in time"])
def test_the_same_wherever_sites_run(learner, how):
    given = {
        "cold": {"cold": True},
        "shuffled": {"kind": Shuffled},
        "ring": {"sums": "ring"},
        "in time": {"timeout": 60},
    }[how]
    usual, other = usual_outcome(learner, how == "cold"), outcome(learner, how == "cold", **given)
    assert [a for a, b in zip(usual, other, strict=True) if b is not None] == [b for b in other if b is not None]


@pytest.mark.parametrize("learner", FEDERATED)
def test_a_study_resumes_from_its_journal(learner, tmp_path):
    def run():
        fed = federate(uneven(), journal=str(tmp_path / "journal"))
        model = learner(n_estimators=4).fit(fed)
        fed.close()
        return model.forests_["small"].hash, model.rounds_, model.bytes_

    assert run() == run()


@pytest.mark.parametrize("learner", FEDERATED)
def test_small_leaves_are_refused(learner):
    with pytest.raises(RefusedError, match=r"site 'large' refused .*leaves of at least 2 rows"):
        learner(min_samples_leaf=1).fit(federate(uneven()))
    assert learner(min_samples_leaf=1, n_estimators=2).fit(federate(uneven(), policy=sv.Policy(min_leaf=1)))


def test_thresholds_are_never_values_of_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2)) + np.pi
    y = (X.sum(axis=1) + rng.normal(size=300) > 2 * np.pi).astype(int)
    fed = federate({"a": (X[:150], y[:150]), "b": (X[150:], y[150:])})
    for learner in FEDERATED:
        for forest in learner(n_estimators=10).fit(fed).forests_.values():
            assert not np.isin(forest.threshold[forest.feature >= 0], X.astype(np.float32)).any()


def test_stumps_are_checked_as_forests_are():
    """The general check of forests runs after the check of stumps."""
    fed = federate(uneven())
    *_, ready = rows_of(fed, "large")
    stumps = boost(ready, Boosting(20))
    check_stumps(stumps, fed.schema, 20)
    with pytest.raises(FormatError, match="more stumps than requested"):
        check_stumps(stumps, fed.schema, 19)
    category = np.flatnonzero(stumps.words[:, 0] > 0)[:1]
    assert len(category)
    one = stumps.take(category)
    with pytest.raises(FormatError, match="contradicts the missing direction"):
        check_stumps(join_stumps([one.__class__(**{**fields(one), "missing_left": ~one.missing_left})]), fed.schema, 1)


def fields(stumps):
    return {name: getattr(stumps, name) for name in stumps.__struct_fields__}
