"""Labels: classes and targets are recognised, matched across types, and never shown in an error."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from helpers.schemas import infer_schema
from hypothesis import given
from hypothesis import strategies as st

from silvan.data.encode import encode_label, infer_task
from silvan.data.schema import Label, Schema
from silvan.data.table import read_table
from silvan.errors import InputError, SchemaError

LIBRARIES = [pl.DataFrame, pd.DataFrame, pa.table]
libraries = pytest.mark.parametrize("make", LIBRARIES)

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=4).map("w{}".format)


def table(make=pl.DataFrame, **columns):
    return read_table(make(columns))


@libraries
@pytest.mark.parametrize(
    ("values", "classes"),
    [
        ([2, 0, 2], (0, 2)),
        ([1.0, 0.0, 1.0], (0, 1)),
        ([True, False, True], (False, True)),
        (["no", "yes", "a"], ("a", "no", "yes")),
        ([0.5, 1.0, 2.0], None),
    ],
)
def test_label_and_task(make, values, classes):
    frame = table(make, x=[1, 2, 3], label=values)
    label = infer_schema(frame).label
    assert label == Label("label", classes)
    assert [type(value) for value in label.classes or ()] == [type(value) for value in classes or ()]
    assert infer_task(frame["label"]) == ("regression" if classes is None else "classification")


def test_task_can_be_said():
    assert infer_schema(table(x=[1, 2], label=[0, 1]), task="regression").label == Label("label")
    assert infer_schema(table(x=[1, 2], label=[0.5, 1.0]), task="classification").label.classes == (0.5, 1.0)
    with pytest.raises(SchemaError, match="'label' holds text"):
        infer_schema(table(x=[1, 2], label=["a", "b"]), task="regression")


def test_very_many_classes_need_an_explicit_task():
    frame = table(x=range(300), label=range(300))
    with pytest.raises(SchemaError, match="300 different values; set task="):
        infer_schema(frame)
    assert infer_schema(frame, task="classification").n_classes == 300


@libraries
@pytest.mark.parametrize("values", [[1, None, None], [0.5, None, float("nan")], ["a", None, None]])
def test_missing_labels_are_counted(make, values):
    frame = table(make, x=[1, 2, 3], label=values)
    for task in (None, "classification"):
        with pytest.raises(InputError, match="'label' is missing in 2 of 3 rows"):
            infer_schema(frame, task=task)
    with pytest.raises(InputError, match="'label' is missing in 2 of 3 rows"):
        encode_label(frame, Schema.of(["x"], Label("label", (1, "a"))))


@libraries
@pytest.mark.parametrize(
    ("classes", "columns"),
    [
        ((0, 1), [[1, 0], [1.0, 0.0], [True, False], ["1", "0"]]),
        ((0.0, 1.0), [[1, 0], [1.0, 0.0], [True, False], ["1", "0"]]),
        ((False, True), [[1, 0], [1.0, 0.0], [True, False], ["true", "false"]]),
        (("0", "1"), [[1, 0], [1.0, 0.0], ["1", "0"]]),
        (("false", "true"), [[True, False], ["true", "false"]]),
    ],
)
def test_classes_match_across_types(make, classes, columns):
    for values in columns:
        y = encode_label(table(make, label=values), Schema.of([], Label("label", classes)))
        assert y.dtype == np.int32
        assert y.tolist() == [1, 0]


def test_codes_follow_the_schema_not_the_table():
    schema = Schema.of([], Label("label", ("yes", "no", "perhaps")))
    assert encode_label(table(label=["no", "no"]), schema).tolist() == [1, 1]


@libraries
def test_unknown_classes_are_counted_and_not_shown(make):
    for values, classes in [(["a", "secret", "secret"], ("a", "b")), ([0, 4711, 4711], (0, 1))]:
        with pytest.raises(InputError, match="none of the 2 agreed classes in 2 of 3 rows") as caught:
            encode_label(table(make, label=values), Schema.of([], Label("label", classes)))
        assert "secret" not in str(caught.value)
        assert "4711" not in str(caught.value)


@libraries
def test_targets(make):
    schema = Schema.of([], "label")
    y = encode_label(table(make, label=[1, 2, 3]), schema)
    assert y.dtype == np.float64
    assert y.tolist() == [1, 2, 3]
    assert encode_label(table(make, label=["0.5", "1"]), schema).tolist() == [0.5, 1.0]


@libraries
@pytest.mark.parametrize(
    ("columns", "error", "said"),
    [
        ({"label": [0.5, None]}, InputError, "missing in 1 of 2 rows"),
        ({"label": [0.5, float("inf")]}, InputError, "infinite in 1 of 2 rows"),
        ({"label": ["high", *["low"] * 20, "0.5"]}, SchemaError, "'label' holds text"),
        ({"other": [1]}, SchemaError, "no label column"),
    ],
)
def test_invalid_targets(make, columns, error, said):
    with pytest.raises(error, match=said):
        encode_label(table(make, **columns), Schema.of([], "label"))


def test_infinite_classes_are_refused():
    with pytest.raises(InputError, match="infinite in 2 of 3 rows"):
        infer_schema(table(x=[1, 2, 3], label=[float("inf"), 1.0, float("inf")]))


@given(
    st.one_of(
        st.lists(st.integers(-(2**62), 2**62), min_size=1),
        st.lists(words, min_size=1),
        st.lists(st.booleans(), min_size=1),
        st.lists(st.integers(-(2**53), 2**53).map(float), min_size=1),
    ),
    st.sampled_from(LIBRARIES),
)
def test_class_codes_decode_to_the_labels(values, make):
    frame = table(make, x=[0] * len(values), label=values)
    schema = infer_schema(frame)
    codes = encode_label(frame, schema)
    assert [schema.label.classes[code] for code in codes] == values
    assert list(schema.label.classes) == sorted(set(values))
    again = encode_label(frame, Schema.from_json(schema.to_json()))
    np.testing.assert_array_equal(again, codes)
