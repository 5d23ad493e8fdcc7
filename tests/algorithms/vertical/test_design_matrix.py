"""Columns of linear models equal the output of scikit-learn's transformers."""

import numpy as np
import polars as pl
import pytest
from helpers.schemas import infer_schema
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import StandardScaler

import silvan as sv
from silvan.algorithms.vertical.linear_shares import Design
from silvan.data.encode import encode_features
from silvan.data.table import read_table


def table(n=200, seed=0):
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "age": [None if x < 35 else x for x in rng.normal(50, 12, n).tolist()],
            "dose": rng.integers(1, 6, n),
            "ward": [None if x == "?" else x for x in rng.choice(["a", "b", "c", "?"], n).tolist()],
            "sex": rng.choice(["f", "m"], n),
            "same": np.full(n, 7.0),
            "label": rng.integers(0, 2, n),
        }
    )


def encoded(frame, schema=None):
    schema = infer_schema(read_table(frame), "label") if schema is None else schema
    return encode_features(read_table(frame), schema, fill_absent=True), schema


def test_columns_equal_scikit_learns():
    frame = table()
    X, schema = encoded(frame)
    design, columns = Design.of(X, schema)
    words = [
        "age",
        "dose",
        "ward = a",
        "ward = b",
        "ward = c",
        "sex = f",
        "sex = m",
        "same",
        "age is missing",
        "ward is missing",
    ]
    assert design.names == words
    raw = {"age": frame["age"], "dose": frame["dose"]}
    for name in ("ward", "sex"):
        for category in sorted(frame[name].drop_nulls().unique()):
            raw[f"{name} = {category}"] = (frame[name] == category).cast(float)
    raw["same"] = frame["same"]
    numbers = pl.DataFrame(raw).cast(pl.Float32).cast(pl.Float64).to_numpy()
    filled = SimpleImputer().fit_transform(numbers)
    gaps = np.stack([frame["age"].is_null(), frame["ward"].is_null()], axis=1).astype(float)
    expected = StandardScaler().fit_transform(np.concatenate([filled, gaps], axis=1))
    assert np.allclose(columns, expected, atol=1e-12)
    assert np.allclose(design.apply(X), columns, atol=1e-12)


def test_new_rows():
    X, schema = encoded(table())
    design, columns = Design.of(X, schema)
    new, _ = encoded(
        pl.DataFrame({"age": [None, 50.0], "dose": [None, 3], "ward": ["a", None], "sex": ["x", "f"]}), schema
    )
    out = dict(zip(design.names, design.apply(new).T, strict=True))
    assert out["dose"][0] == 0  # at the mean, without a column for it: none was missing before
    assert out["age"][0] == pytest.approx((design.fill[0] - design.mean[0]) * design.scale[0])
    assert out["age is missing"][0] > 0 > out["age is missing"][1]
    assert out["sex = f"][0] == pytest.approx(0, abs=1e-12)  # an unknown category counts as missing
    assert out["sex = m"][0] == pytest.approx(0, abs=1e-12)
    assert (out["same"] == 0).all()
    assert np.isfinite(columns).all()


def test_empty_columns_and_rows():
    X, schema = encoded(table())
    X[:, 0] = np.nan
    design, columns = Design.of(X, schema)
    assert not columns[:, design.names.index("age")].any()
    assert "age is missing" not in design.names
    assert np.isfinite(design.apply(np.full_like(X, np.nan))).all()
    none, empty = Design.of(np.zeros((5, 0), np.float32), sv.Schema((), sv.Label("label")))
    assert empty.shape == (5, 0)
    assert none.fits()
    assert none.names == []


@given(st.integers(1, 40), st.integers(0, 10**6))
def test_columns_are_on_one_scale(n, seed):
    X, schema = encoded(table(n, seed))
    design, columns = Design.of(X, schema)
    assert design.fits()
    assert columns.shape == (n, len(design.names))
    assert np.allclose(columns.mean(axis=0), 0, atol=1e-9)
    deviation = columns.std(axis=0)
    assert np.allclose(deviation[design.scale > 0], 1)
    assert not deviation[design.scale == 0].any()
    assert np.allclose(design.apply(X), columns, atol=1e-9)


def test_arrays_that_do_not_fit():
    X, schema = encoded(table())
    design, _ = Design.of(X, schema)
    parts = {name: getattr(design, name) for name in ("fill", "gaps", "mean", "scale")}
    for name, array in parts.items():
        assert not Design(schema, **{**parts, name: array[1:]}).fits()
    assert not Design(schema, **{**parts, "gaps": parts["gaps"].astype(np.int64)}).fits()
    assert not Design(schema, **{**parts, "mean": parts["mean"] * np.nan}).fits()
