"""Rare classes: weights, thresholds chosen on training rows, and a note if a class is never predicted."""

import numpy as np
import polars as pl
import pytest
from helpers.column_studies import federate as federate_by_columns
from helpers.column_studies import split, wide
from helpers.studies import federate, parts, table
from sklearn import metrics as sk

import silvan as sv
from silvan.errors import InputError

SMALL = {"n_estimators": 20, "max_depth": 5, "min_samples_leaf": 12}
LEARNERS = [sv.HistogramForest, sv.MergedForest, sv.BOFRF]


def rare(n=600, seed=0):
    """A table in which 25 rows have the second class, which is hard to predict."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) < 25
    X = rng.normal(size=(n, 4)) + 0.7 * y[:, None]
    frame = pl.DataFrame(X, schema=list("abcd")).with_columns(label=pl.Series(np.where(y, "yes", "no")))
    return frame.sample(fraction=1.0, shuffle=True, seed=seed)


def rare_federation(**settings):
    return federate(parts(rare(), 3), test=0.4, **settings)


@pytest.mark.parametrize("threshold", ["youden", 0.2])
@pytest.mark.parametrize("learner", [sv.HistogramForest, sv.AutoForest])
def test_sensitivity_uses_the_decision_threshold(learner, threshold):
    """With a threshold set, all metrics follow what ``predict`` returns."""
    fed = rare_federation()
    model = learner(**SMALL, threshold=threshold).fit(fed)
    found = model.evaluate(fed).filter(model="federated")
    for site in fed.sites:
        part = fed.site(site).part(fed.schema, test=True)
        decided = model.forests_[site].predict_proba(part.X)[:, 1] >= model.threshold_
        row = found.filter(site=site).row(0, named=True)
        assert row["threshold"] == pytest.approx(model.threshold_, abs=1e-3)
        assert row["sensitivity"] == pytest.approx(sk.recall_score(part.y, decided), abs=1e-3)
        assert row["f1"] == pytest.approx(sk.f1_score(part.y, decided), abs=1e-3)


def test_classes_never_predicted_give_one_warning():
    """A numeric label read as classes has hundreds of them."""
    rng = np.random.default_rng(0)
    frame = pl.DataFrame({"a": rng.normal(size=300), "label": rng.integers(0, 90, 300)})
    fed = federate(parts(frame, 2), test=0.4, schema=sv.Schema.of(["a"], sv.Label("label", tuple(range(90)))))
    with pytest.warns(UserWarning, match=r"never predicts \d+ of \d+ classes .* set task='regression'") as said:
        sv.HistogramForest(**SMALL).fit(fed).evaluate(fed)
    assert len(said) == 1


@pytest.mark.parametrize("learner", LEARNERS[:2])
def test_a_class_that_is_never_predicted_is_named(learner):
    fed = rare_federation()
    model = learner(**SMALL).fit(fed)
    with pytest.warns(UserWarning, match=r"never predicts label = 'yes', though 11 of 241 .* class_weight='balanced'"):
        frame = model.evaluate(fed)
    assert frame.filter(site="all", model="federated")["f1"].item() == 0.0


@pytest.mark.filterwarnings("ignore:no tree is above tau")
@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize(
    "parameters", [{"class_weight": "balanced"}, {"threshold": "f1"}, {"threshold": "youden"}], ids=str
)
def test_a_rare_class_is_predicted_with_weights_or_a_threshold(learner, parameters):
    fed = rare_federation()
    model = learner(**SMALL, **parameters).fit(fed)
    frame = model.evaluate(fed)
    assert frame.filter(site="all", model="federated")["f1"].item() > 0.08
    rows = rare()
    predicted = model.predict(rows)
    assert (predicted == "yes").any()
    if model.threshold is not None:
        kinds = [kind.kind() for kind in model.asks(fed.schema)]
        assert "CountOutOfBag" in kinds
        assert np.array_equal(predicted == "yes", model.predict_proba(rows)[:, 1] >= model.threshold_)
        assert model.rounds_ <= model.expected_rounds


def test_metrics_follow_the_threshold():
    fed = rare_federation()
    model = sv.MergedForest(**SMALL, threshold=0.1).fit(fed)
    assert model.threshold_ == 0.1
    tests = [fed.site(site).part(fed.schema, test=True) for site in fed.sites]
    y = np.concatenate([part.y for part in tests])
    score = np.concatenate([model.forest_.predict_proba(part.X)[:, 1] for part in tests])
    row = model.evaluate(fed).filter(site="all", model="federated").to_dicts()[0]
    assert row["f1"] == pytest.approx(sk.f1_score(y, score >= 0.1))
    assert row["accuracy"] == pytest.approx(sk.accuracy_score(y, score >= 0.1))


@pytest.mark.parametrize("sums", ["trusted", "masked"])
def test_the_threshold_does_not_depend_on_the_kind_of_sums(sums):
    fed = rare_federation(sums=sums)
    model = sv.HistogramForest(**SMALL, threshold="youden").fit(fed)
    assert model.forest_ == sv.HistogramForest(**SMALL).fit(fed).forest_
    assert model.threshold_ == sv.HistogramForest(**SMALL, threshold="youden").fit(rare_federation()).threshold_


@pytest.mark.parametrize(
    ("learner", "threshold", "message"),
    [
        (sv.HistogramForest, "best", "threshold must be 'f1', 'youden'"),
        (sv.HistogramForest, 1.0, "above 0 and below 1"),
        (sv.HistogramForest, True, "above 0 and below 1"),
        (sv.PooledForest, "youden", "cannot be chosen by this learner"),
        (sv.LocalForest, "f1", "cannot be chosen by this learner"),
    ],
)
def test_invalid_thresholds(learner, threshold, message):
    with pytest.raises(InputError, match=message):
        learner(2, max_depth=2, threshold=threshold).fit(federate(parts(table(n=60), 2)))


def test_thresholds_are_for_two_classes():
    with pytest.raises(InputError, match="two classes"):
        sv.MergedForest(2, threshold=0.3).fit(federate(parts(table("several", n=60), 2)))


def test_no_threshold_rule_without_out_of_bag_rows():
    with pytest.raises(InputError, match="bootstrap=True, or give a number"):
        sv.HistogramForest(2, max_depth=2, threshold="f1", bootstrap=False).fit(federate(parts(table(n=60), 2)))


def test_a_threshold_over_columns(tmp_path):
    fed = federate_by_columns(split(wide(n=80), 2), test=0.25)
    model = sv.VerticalForest(5, max_depth=3, threshold=0.9).fit(fed)
    shares, predicted = model.predict_proba(fed), model.predict(fed)
    yes = predicted["prediction"] == shares.columns[2]
    assert (yes == (shares[shares.columns[2]] >= 0.9)).all()
    assert model.evaluate(fed).filter(model="federated")["accuracy"][0] <= 1.0
    model.save(tmp_path / "model")
    assert sv.VerticalForest.load(tmp_path / "model").threshold_ == 0.9
