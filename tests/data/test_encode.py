"""Features: the schema decides, whichever library holds the table, and codes decode to the categories."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from helpers.schemas import infer_schema
from hypothesis import given
from hypothesis import strategies as st

from silvan.data.encode import encode_features
from silvan.data.schema import MAX_CATEGORIES, Feature, Label, Schema
from silvan.data.table import read_table
from silvan.errors import InputError, SchemaError

LIBRARIES = [pl.DataFrame, pd.DataFrame, pa.table]
libraries = pytest.mark.parametrize("make", LIBRARIES)
any_library = st.sampled_from(LIBRARIES)

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=4).map("w{}".format)


def table(make=pl.DataFrame, **columns):
    return read_table(make(columns))


def feature(series, **parameters):
    frame = table(pd.DataFrame if isinstance(series, pd.Series) else pl.DataFrame, f=series)
    return infer_schema(frame.with_columns(label=frame["f"].is_null()), **parameters).features[0]


def encode(feature, values, make=pl.DataFrame):
    schema = Schema.of([feature])
    return encode_features(read_table(make({"f": values}), schema=schema), schema)[:, 0]


# -- what features columns become


@libraries
def test_features_in_the_order_of_columns(make):
    frame = table(
        make,
        z=[1.5, None, 2],
        site=["p", "q", "p"],
        label=[1, 0, 1],
        b=["y", None, "x"],
        a=[True, False, True],
    )
    schema = infer_schema(frame, exclude=["site"])
    assert schema.features == (
        Feature("z"),
        Feature("b", "categorical", categories=("x", "y")),
        Feature("a"),
    )
    assert schema.label == Label("label", (0, 1))


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical, pl.Enum(["c", "a", "b"])])
def test_text_of_any_kind_is_categorical(dtype):
    assert feature(pl.Series(["b", "a", None], dtype=dtype)).categories == ("a", "b")
    assert feature(pd.Series(["b", "a", None]).astype("category")).categories == ("a", "b")


def test_rare_categories_are_other():
    column = pl.Series(["a"] * 3 + ["b"] * 2 + ["c"] + [None])
    assert feature(column, min_category_rows=2) == Feature("f", "categorical", categories=("a", "b"), other=True)
    assert feature(column, min_category_rows=9) == Feature("f", "categorical", categories=(), other=True)
    assert not feature(column).other


def test_the_most_frequent_categories_are_named():
    names = [f"n{i:03}" for i in range(MAX_CATEGORIES + 2)]
    column = pl.Series([*names, names[-1]])
    named = feature(column)
    assert named.categories == (*names[: MAX_CATEGORIES - 1], names[-1])  # one frequent, ties by name
    assert named.other
    whole = feature(pl.Series(names[:MAX_CATEGORIES]))
    assert whole.categories == tuple(names[:MAX_CATEGORIES])
    assert not whole.other


def test_a_column_without_values_is_numeric():
    for column in (
        pl.Series([None, None]),
        pl.Series([None, None], dtype=pl.String),
        pd.Series([None, None]),
    ):
        assert feature(column) == Feature("f")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pl.Series([datetime.timedelta(1)]), "Duration"),
        (pl.Series([datetime.time(1)]), "Time"),
        (pl.Series([[1]]), "List"),
        (pl.Series([{"a": 1}]), "Struct"),
    ],
)
def test_other_types_are_refused(column, kind):
    with pytest.raises(SchemaError, match=f"column 'f' holds {kind}.*convert it"):
        feature(column)
    for agreed in (Feature("f"), Feature("f", "categorical", categories=("a",))):
        with pytest.raises(SchemaError, match=f"column 'f' holds {kind}"):
            encode(agreed, column)


def test_objects_are_read_singly_by_the_schema():
    mixed = pd.Series([1, "a", None, 1.0, True, "2.5", np.float64(3.5), Decimal("0.5")], dtype=object)
    with pytest.raises(
        SchemaError, match=r"column 'f' mixes numbers and text: 1 of its 7 cells \(row 2\) is no number"
    ):
        feature(mixed)
    agreed = Feature("f", "categorical", categories=("1", "a", "2.5"), other=True)
    np.testing.assert_array_equal(encode(agreed, mixed, pd.DataFrame), [0, 1, np.nan, 0, 3, 2, 3, 3])
    with pytest.raises(SchemaError, match=r"'f' holds text, .* numeric, in 1 of 8 rows \(row 2\)"):
        encode(Feature("f"), mixed, pd.DataFrame)
    np.testing.assert_array_equal(encode(Feature("f"), mixed.drop(1), pd.DataFrame), [1, np.nan, 1, 1, 2.5, 3.5, 0.5])
    for column, make in [(pl.Series([object()]), pl.DataFrame), (pd.Series([1, []]), pd.DataFrame)]:
        for kind in (Feature("f"), agreed):
            with pytest.raises(SchemaError, match="column 'f' holds"):
                encode(kind, column, make)


def test_columns_that_are_not_there():
    frame = table(age=[1], Lable=[0])
    with pytest.raises(SchemaError, match="no label column 'label'; did you mean 'Lable'"):
        infer_schema(frame)
    with pytest.raises(SchemaError, match="no label column 'outcome'; it has 'age', 'Lable'"):
        infer_schema(frame, "outcome")


# -- features as numbers


@libraries
def test_arrays_fit_the_kernels(make):
    frame = table(make, extra=["?"] * 3, b=["x", None, "z"], label=[0, 1, 0], a=[1, None, 3], c=[True, False, True])
    schema = Schema.of(["a", "c", Feature("b", "categorical", categories=("x", "y"), other=True)])
    X = encode_features(frame, schema)
    assert X.dtype == np.float32
    assert X.flags.c_contiguous
    np.testing.assert_array_equal(X, [[1, 1, 0], [np.nan, 0, np.nan], [3, 1, 2]])


@pytest.mark.parametrize("other", [True, False])
@libraries
def test_unknown_categories(make, other):
    agreed = Feature("f", "categorical", categories=("a", "b"), other=other)
    expected = [1, 2 if other else np.nan, np.nan, 0]
    np.testing.assert_array_equal(encode(agreed, ["b", "new", None, "a"], make), expected)


@pytest.mark.parametrize(
    ("column", "categories", "codes"),
    [
        (pl.Series([2, 1, None]), ("1", "2"), [1, 0, np.nan]),
        (pl.Series([2.0, 1.0, float("nan")]), ("1", "2"), [1, 0, np.nan]),
        (pl.Series([2.5, -0.0, None]), ("0", "2.5"), [1, 0, np.nan]),
        (pl.Series([True, False, None]), ("false", "true"), [1, 0, np.nan]),
        (pl.Series([2**53 + 1, 2**53, None]), (str(2**53), str(2**53 + 1)), [1, 0, np.nan]),
        (pl.Series([7, 1, 1]), ("1", "2"), [np.nan, 0, 0]),
    ],
)
def test_numbers_may_stand_for_categories(column, categories, codes):
    agreed = Feature("f", "categorical", categories=categories)
    for values, make in [(column, pl.DataFrame), (column.to_pandas(), pd.DataFrame)]:
        if column.dtype == pl.Boolean and make is pd.DataFrame:
            values = values.astype("boolean")
        elif column.dtype == pl.Int64 and make is pd.DataFrame:
            values = column.to_pandas(use_pyarrow_extension_array=True)
        np.testing.assert_array_equal(encode(agreed, values, make), codes)


def test_text_cannot_stand_for_numbers():
    said = r"column 'f' holds text, but the schema says it is numeric, in 4 of 6 rows \(rows 2, 4, 5, \.\.\.\)"
    with pytest.raises(SchemaError, match=said) as caught:
        encode(Feature("f"), ["12.5", "secret", None, "1,5", "0x10", "1_000"])
    assert "secret" not in str(caught.value)


def test_texts_that_are_numbers():
    cells = ["12.5", " 1", "1e3", "+2", "01", "TRUE", "false", "nan", "", "  ", None]
    np.testing.assert_array_equal(
        encode(Feature("f"), cells), np.array([12.5, 1, 1000, 2, 1, 1, 0, *[np.nan] * 4], np.float32)
    )


@pytest.mark.parametrize("agreed", [Feature("f"), Feature("f", "categorical", categories=("a",), other=True)])
@pytest.mark.parametrize("column", [pl.Series([None] * 2), pl.Series([None] * 2, dtype=pl.String)])
def test_a_column_without_values_fits_any_feature(agreed, column):
    assert np.isnan(encode(agreed, column)).all()


def test_categories_must_be_agreed():
    with pytest.raises(SchemaError, match="categories of 'f' are not agreed"):
        encode(Feature("f", "categorical"), ["a"])


@libraries
@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), 1e39, -3.5e38])
def test_infinite_features_are_counted(make, bad):
    with pytest.raises(InputError, match=r"column 'f' is infinite, or too large .* in 2 of 4 rows"):
        encode(Feature("f"), [bad, 1.0, None, bad], make)


def test_whole_numbers_and_floats_round_alike():
    values = [2**24 + 1, 2**31 - 1, 2**60 + 2**36 + 1, -(2**53) - 1]
    np.testing.assert_array_equal(
        encode(Feature("f"), values), encode(Feature("f"), [float(value) for value in values])
    )


@given(st.lists(st.none() | st.floats(width=32, allow_infinity=False), min_size=1), any_library)
def test_numbers_are_unchanged(values, make):
    encoded = encode(Feature("f"), pa.array(values, pa.float64()) if make is pa.table else values, make)
    expected = np.array([np.nan if value is None else value for value in values], dtype=np.float32)
    np.testing.assert_array_equal(encoded, expected)
    assert not np.signbit(encoded[encoded == 0]).any()


@given(st.lists(st.none() | words, min_size=1).filter(any), st.integers(1, 3), any_library)
def test_codes_decode_to_the_categories(values, min_rows, make):
    frame = table(make, f=values, label=[0] * len(values))
    schema = infer_schema(frame, min_category_rows=min_rows)
    agreed = schema.features[0]
    assert list(agreed.categories) == sorted(w for w in {*values} - {None} if values.count(w) >= min_rows)
    codes = encode_features(frame, schema)[:, 0]
    for value, code in zip(values, codes, strict=True):
        if value is None:
            assert np.isnan(code)
        elif code == len(agreed.categories):
            assert agreed.other
            assert value not in agreed.categories
        else:
            assert agreed.categories[int(code)] == value


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1), any_library)
def test_numbers_and_their_text_get_the_same_codes(values, make):
    text = [str(value) for value in values]
    agreed = Feature("f", "categorical", categories=tuple(sorted(set(text))[:5]))
    np.testing.assert_array_equal(encode(agreed, values, make), encode(agreed, text, make))


@pytest.mark.parametrize("dtype", ["float32", "Float32", "float32[pyarrow]"])
def test_32_bit_and_64_bit_floats_agree(dtype):
    """Also with missing cells, and with a library's own types for them."""
    cells = pd.DataFrame({"x": pd.Series([1.5, None, -0.0, 1e-40, 3e38], dtype=dtype)})
    schema = Schema((Feature("x"),), Label("y"))
    narrow, wide = (encode_features(read_table(frame), schema) for frame in (cells, cells.astype("float64")))
    assert narrow.tobytes() == wide.tobytes()
    assert not np.signbit(narrow[2, 0])
    cells.loc[0, "x"] = np.inf
    with pytest.raises(InputError, match="infinite"):
        encode_features(read_table(cells), schema)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["b"], "lacks 'a', 'age'"),
        (["a", "Age", "b"], "lacks 'age'; it has 'Age': rename it if it is the same, otherwise add these"),
    ],
)
def test_missing_columns_are_named_with_suggestions(names, said):
    with pytest.raises(SchemaError, match=said):
        encode_features(table(**{name: [1] for name in names}), Schema.of(["a", "age", "b"]))
