"""A class with few rows or none does not affect the metrics of the other classes, and is named."""

import numpy as np
import pytest
import sklearn.metrics as sk
from helpers.studies import federate, table

import silvan as sv
from silvan import metrics
from silvan.algorithms.evaluation.score_quality import intervals
from silvan.tree.sampling import make_key

KEY = make_key(0, "intervals")


def of_classes(*sizes, seed=0):
    """Scores of two models on rows of some classes, some of which may be empty."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int32)
    raw = [rng.random((len(y), len(sizes))) + np.eye(len(sizes))[y] * weight for weight in (0.2, 0.6)]
    return [scores / scores.sum(axis=1, keepdims=True) for scores in raw], y


def test_the_auc_averages_classes_with_rows():
    (scores, _), y = of_classes(30, 40, 0, 25)
    found = metrics.classification(scores, y)
    aucs = [sk.roc_auc_score(y == c, scores[:, c]) for c in (0, 1, 3)]
    assert found["auc"] == pytest.approx(np.mean(aucs))
    assert found["pr_auc"] == pytest.approx(
        np.mean([sk.average_precision_score(y == c, scores[:, c]) for c in (0, 1, 3)])
    )
    assert np.isnan(metrics.classification(scores[:4], np.zeros(4, np.int32))["auc"])


def test_intervals_cover_classes_with_rows():
    answers, y = of_classes(30, 40, 0, 25)
    present = [0, 1, 3]
    without = [answer[:, present] for answer in answers]
    recoded = np.searchsorted(present, y).astype(np.int32)
    low, high = intervals(answers, 0, y, 4, KEY)[1]
    assert 0 < low < high
    assert [low, high] == intervals(without, 0, recoded, 3, KEY)[1].tolist()
    gain = metrics.classification(answers[1], y)["auc"] - metrics.classification(answers[0], y)["auc"]
    assert low < gain < high


@pytest.mark.parametrize("sizes", [(30, 40, 2), (60, 0, 0), (30, 4, 0)])
def test_a_class_with_few_rows_has_no_interval(sizes):
    answers, y = of_classes(*sizes)
    assert np.isnan(intervals(answers, 0, y, 3, KEY)[1]).all()


@pytest.mark.filterwarnings("ignore:the federated model never predicts")
def test_two_rows_of_a_class_leave_every_auc(recwarn):
    """The class occurs only in the training rows, at one of the sites."""
    frame = table("several", n=239)
    frame = frame.with_columns(label=frame["label"].replace({"top": "high"}))
    rare = frame.with_row_index().with_columns(label=(frame["label"].scatter([5, 9], "rare"))).drop("index")
    fed = federate({"a": rare[:120], "b": rare[120:]}, test=0.3)
    assert "rare" in fed.schema.label.classes
    found = sv.HistogramForest(n_estimators=6, max_depth=4).fit(fed).evaluate(fed)
    assert found["auc"].is_finite().all()
    at_b = found.filter(site="b", model="federated")
    assert at_b["note"][0] == "no test rows of 'rare': metrics are of the other classes"
    tested = any("no test row is of label = 'rare'" in str(one.message) for one in recwarn)
    notes = found.filter(site="a", model="federated")["note"][0]
    assert tested == ("rare" in notes)
