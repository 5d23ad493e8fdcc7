"""Two columns that decide together, and neither alone: every forest finds them, as on the pooled table.

Without sampling rows or columns, no first split has a gain there.
"""

import numpy as np
import polars as pl
import pytest

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels

WHOLE = {"n_estimators": 3, "bootstrap": False, "max_features": None, "max_depth": 4}


def table(columns, label):
    """All four combinations twenty times, an id, and a constant column."""
    a, b = (np.tile(half, 20) for half in ([0, 0, 1, 1], [0, 1, 0, 1]))
    y = a ^ b
    values = {"text": lambda x: np.where(x, "yes", "no"), "numbers": lambda x: x * 1.5}[columns]
    labels = {"class": np.where(y, "ill", "well"), "number": y * 2.0 + 3}[label]
    return pl.DataFrame({"id": np.arange(80), "a": values(a), "b": values(b), "c": np.ones(80), "label": labels})


def assert_learnt(forest, frame):
    """Both columns are used, and every prediction is right."""
    assert np.diff(forest.offsets).tolist() == [7, 7, 7]
    answers = forest.predict(frame)
    assert answers.tolist() == frame["label"].to_list()


every_kind = pytest.mark.parametrize(
    ("columns", "label"), [(c, y) for c in ("text", "numbers") for y in ("class", "number")]
)


@every_kind
def test_rows(columns, label):
    frame = table(columns, label)
    model = (sv.ForestClassifier if label == "class" else sv.ForestRegressor)(**WHOLE)
    X, y = frame.select("a", "b", "c"), frame["label"].to_numpy()
    assert (model.fit(X.to_pandas(), y).predict(X.to_pandas()) == y).all()
    task = "classification" if label == "class" else "regression"
    fed = sv.federate_rows({"x": frame[:30].drop("id"), "y": frame[30:].drop("id")}, label="label", task=task)
    forest = sv.HistogramForest(**WHOLE).fit(fed).forest_
    assert forest.hash == sv.PooledForest(**WHOLE).fit(fed).forest_.hash
    assert_learnt(forest, frame)


@every_kind
@pytest.mark.parametrize("labels", ["encoded", "encrypted"])
def test_columns(columns, label, labels, monkeypatch):
    monkeypatch.setattr(encrypted_labels, "TESTING", True)
    frame = table(columns, label)
    task = "classification" if label == "class" else "regression"
    parties = {"x": frame.select("id", "a", "label"), "y": frame.select("id", "b", "c")}
    fed = sv.federate_columns(parties, id="id", label="label", task=task)
    given = {"labels": labels} | ({"key_bits": 512} if labels == "encrypted" else {})
    forest = sv.VerticalForest(**WHOLE, **given).fit(fed).forest_
    assert forest.hash == sv.PooledForest(**WHOLE).fit(fed).forest_.hash
    assert_learnt(forest, frame)


@pytest.mark.parametrize("cold", [False, True])
def test_useless_splits_are_undone(cold):
    """A step function, and irrelevant columns: one split per tree, in every mode."""
    rng = np.random.default_rng(0)
    x = np.repeat([0.0, 1.0], 40)
    frame = pl.DataFrame(
        {"id": np.arange(80), "x": x, "z": rng.normal(size=80), "w": rng.normal(size=80), "label": 7 * x}
    )
    settings = {**WHOLE, "max_features": 1, "n_estimators": 8, "max_depth": 6}
    by_rows = sv.federate_rows({"a": frame[::2].drop("id"), "b": frame[1::2].drop("id")}, task="regression", cold=cold)
    parties = {"a": frame.select("id", "x", "label"), "b": frame.select("id", "z", "w")}
    by_columns = sv.federate_columns(parties, id="id", label="label", task="regression", cold=cold)
    grown = [sv.HistogramForest(**settings).fit(by_rows), sv.VerticalForest(**settings).fit(by_columns)]
    for model, fed in zip(grown, (by_rows, by_columns), strict=True):
        forest = model.forest_
        assert forest.hash == sv.PooledForest(**settings).fit(fed).forest_.hash
        splits = forest.feature >= 0
        assert (forest.value[forest.leaf[forest.left[splits]]] != forest.value[forest.leaf[forest.right[splits]]]).any()
    whole = sv.ForestRegressor(**{**settings, "max_features": None}).fit(frame.select("x", "z", "w").to_pandas(), 7 * x)
    assert np.diff(whole.forest_.offsets).tolist() == [3] * 8
    model = sv.HistogramForest(**{**settings, "max_features": None}).fit(by_rows)
    assert np.diff(model.forest_.offsets).tolist() == [3] * 8
    model = sv.VerticalForest(**{**settings, "max_features": None}).fit(by_columns)
    assert np.diff(model.forest_.offsets).tolist() == [3] * 8
