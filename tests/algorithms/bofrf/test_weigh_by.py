"""Tree weights by another metric, and clusters too small for secure aggregation."""

import numpy as np
import polars as pl
import pytest
from helpers.studies import parts, table
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

import silvan as sv
from silvan.errors import InputError

SMALL = {"n_estimators": 4, "max_depth": 3}


def federate(tables, **options):
    return sv.federate_rows(tables, label="label", **options)


@pytest.mark.parametrize(
    ("weigh_by", "metric"), [("mcc", matthews_corrcoef), ("accuracy", accuracy_score), ("f1", f1_score)]
)
def test_weights_are_the_metric_of_votes_at_all_sites(weigh_by, metric):
    fed = federate(parts(table(n=240), 3))
    model = sv.BOFRF(**SMALL, weigh_by=weigh_by, tau=0.0).fit(fed)
    rows = [fed.site(site).part(fed.schema) for site in fed.active]
    X, y = np.concatenate([part.X for part in rows]), np.concatenate([part.y for part in rows])
    trees = [model._local[site].take(t) for site in fed.active for t in range(4)]
    expected = [metric(y, tree.scores(X).argmax(axis=1)) for tree in trees]
    assert model.weights_ == pytest.approx(expected)


def test_regression_has_a_single_weight():
    with pytest.raises(InputError, match="weigh_by"):
        sv.BOFRF(**SMALL, weigh_by="f1").fit(federate(parts(table("number", n=120), 2)))


@pytest.mark.parametrize("sums", ["masked", "ring"])
def test_clusters_too_small_for_masked_sums_are_refused_before_training(sums, monkeypatch):
    frame = table(n=400)
    far = frame.with_columns(age=pl.col("age") + 60, noise=pl.col("noise") + 60)
    fed = federate({"a": frame[:100], "b": frame[100:200], "c": frame[200:300], "far": far[300:]}, sums=sums)
    monkeypatch.setattr("silvan.learners.bofrf.weigh", lambda *given: pytest.fail("trees were grown"))
    with pytest.raises(InputError, match="cluster of 1 site"):
        sv.BOFRF(**SMALL, clusters=2, first="a").fit(fed)
