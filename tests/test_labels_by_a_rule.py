"""If a noise-free rule decides the label, a forest with more columns per node is more confident: docs/faq.md."""

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import log_loss, roc_auc_score

import silvan as sv


def table(n=900):
    """Three columns choose which of eight others is the label; four more are irrelevant."""
    X = np.random.default_rng(0).integers(0, 2, (n, 15))
    return X, X[np.arange(n), 3 + X[:, :3] @ [4, 2, 1]]


def in_one_place(X, y, tested, settings):
    return sv.ForestClassifier(n_estimators=30, **settings).fit(X, y).predict_proba(tested)[:, 1]


def over_rows(X, y, tested, settings):
    frame = pl.DataFrame(X).with_columns(label=y)
    fed = sv.federate_rows({"a": frame[:250], "b": frame[250:]}, label="label", task="classification")
    forest = sv.HistogramForest(n_estimators=30, **settings).fit(fed).forest_
    return forest.predict_proba(pl.DataFrame(tested))[:, 1]


@pytest.mark.parametrize("answers", [in_one_place, over_rows])
def test_more_columns_per_node_make_a_forest_more_confident(answers):
    X, y = table()
    loss, auc = {}, {}
    for share in ("sqrt", 0.5, None):
        given = answers(X[:600], y[:600], X[600:], {"max_features": share})
        loss[share], auc[share] = log_loss(y[600:], np.clip(given, 1e-3, 1 - 1e-3)), roc_auc_score(y[600:], given)
    assert loss[0.5] < 0.85 * loss["sqrt"]
    assert loss[None] < 0.6 * loss["sqrt"]
    assert auc["sqrt"] < auc[0.5] < auc[None]


def test_so_do_leaves_of_one_row():
    X, y = table()
    two, one = (log_loss(y[600:], in_one_place(X[:600], y[:600], X[600:], {"min_samples_leaf": n})) for n in (2, 1))
    assert one < 0.95 * two
