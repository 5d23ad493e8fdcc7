"""Numbers far beyond all thresholds of a forest are counted; those in the range of training rows are not."""

import numpy as np
import polars as pl
import pytest
from helpers.runs import fitted, said, silvan
from helpers.studies import table

import silvan as sv
from silvan.data.encode import encode_features
from silvan.forest.extrapolation import far_outside

RNG = np.random.default_rng(0)
ROWS = {
    "normal": RNG.normal(50, 12, 400),
    "heavy": np.exp(RNG.normal(0, 1.2, 400)),
    "whole": RNG.integers(1, 6, 400).astype(float),
    "flag": RNG.integers(0, 2, 400).astype(float),
    "gaps": np.where(RNG.random(400) < 0.3, np.nan, RNG.normal(-5, 1, 400)),
}


@pytest.fixture(scope="module")
def forest():
    frame = pl.DataFrame(ROWS).with_columns(sex=pl.Series(["f", "m"] * 200))
    signal = sum(np.nan_to_num(values) / (1 + np.nanstd(values)) for values in ROWS.values())
    label = np.where(signal + RNG.normal(size=400) > np.median(signal), "yes", "no")
    return sv.ForestClassifier(n_estimators=40).fit(frame, label).forest_


def outside(forest, **changed):
    columns = {name: np.array(values[:50]) for name, values in ROWS.items()} | {"sex": ["f", "m"] * 25}
    for name, change in changed.items():
        columns[name] = change(np.array(columns[name]))
    X = encode_features(sv.data.table.read_table(pl.DataFrame(columns)), forest.schema)
    return {one.column: one.rows for one in far_outside(forest, X)}


def first(value):
    def change(values):
        values[0] = value
        return values

    return change


def test_training_rows_are_not_outside(forest):
    assert outside(forest) == {}


@pytest.mark.parametrize(
    ("changed", "rows"),
    [
        ({"normal": lambda x: x * 10}, 50),
        ({"normal": first(2000.0)}, 1),
        ({"normal": first(-999.0)}, 1),
        ({"normal": first(120.0)}, 0),  # farther than any, by less than three times the span
        ({"whole": first(99.0)}, 1),
        ({"gaps": lambda x: np.full(50, np.nan)}, 0),
        ({"gaps": lambda x: -x * 4}, None),
    ],
)
def test_values_far_outside(forest, changed, rows):
    [name] = changed
    found = outside(forest, **changed)
    assert set(found) <= {name}
    if rows is None:
        assert found[name] > 30
    else:
        assert found.get(name, 0) == rows


def test_predict_sums_up_what_is_extrapolated(tmp_path):
    frame = table(n=240)
    fitted(tmp_path, tables={site: frame[i::3] for i, site in enumerate("abc")})
    frame.head(40).write_csv(tmp_path / "same.csv")
    odd = frame.head(40).with_columns(
        age=pl.col("age") * 12, noise=pl.when(pl.int_range(40) < 2).then(900.0).otherwise(20.0)
    )
    odd.write_csv(tmp_path / "odd.csv")
    for command in ("predict", "evaluate"):
        assert "look at" not in said(silvan(command, tmp_path / "run", tmp_path / "same.csv"))
        shown = said(silvan(command, tmp_path / "run", tmp_path / "odd.csv"))
        assert (
            "of 40 rows lie far outside the values that the forest was trained on (its thresholds lie between" in shown
        )
        assert "check noise: 2 of 40 rows lie far outside" in shown
        assert "cells of 2 columns are extrapolated, with the predictions of the nearest known values" in shown
