"""Tables for the estimators: data frames of any library, columns that change, unusable input."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.exceptions import NotFittedError

from silvan import ForestClassifier, ForestRegressor
from silvan.errors import InputError, SchemaError

both = pytest.mark.parametrize("make", [ForestClassifier, ForestRegressor])
libraries = pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])

rng = np.random.default_rng(0)
N = 120
AGE = rng.normal(50, 10, N)
WARD = np.array(["north", "south", "east"])[rng.integers(0, 3, N)]
X = np.stack([AGE, rng.normal(size=N)], axis=1)
Y = ((WARD == "north") | (AGE > 60)).astype(int)


def columns(n=N, **other):
    """A number, a text with gaps, a boolean."""
    ward = [None if i % 11 == 0 else str(w) for i, w in enumerate(WARD[:n])]
    age = [None if i % 13 == 0 else float(a) for i, a in enumerate(AGE[:n])]
    return {"age": age, "ward": ward, "smoker": [bool(a > 45) for a in AGE[:n]]} | other


# -- data frames


@libraries
@both
def test_columns_of_text_and_gaps(library, make):
    table = library(columns())
    model = make(30, random_state=1).fit(table, Y)
    assert model.score(table, Y) > (0.9 if make is ForestClassifier else 0.6)
    assert [f.categorical for f in model.forest_.schema.features] == [False, True, False]
    assert list(model.feature_names_in_) == ["age", "ward", "smoker"]


def test_every_library_gives_the_same_forest():
    frames = [pd.DataFrame(columns()), pl.DataFrame(columns()), pl.DataFrame(columns()).to_arrow()]
    frames.append(pd.DataFrame(columns()).astype({"ward": "category"}))
    frames.append(pl.DataFrame(columns(), schema_overrides={"ward": pl.Categorical}))
    models = [ForestClassifier(10).fit(frame, Y) for frame in frames]
    assert len({model.forest_.hash for model in models}) == 1
    np.testing.assert_array_equal(models[0].predict_proba(frames[0]), models[1].predict_proba(frames[1]))


@libraries
def test_numbers_in_a_frame_are_an_array_with_names(library):
    named = ForestClassifier(10).fit(library({"a": X[:, 0], "b": X[:, 1]}), Y)
    plain = ForestClassifier(10).fit(X, Y)
    assert named.forest_.schema.names == ("a", "b")
    np.testing.assert_array_equal(named.forest_.threshold, plain.forest_.threshold)


@libraries
def test_whole_numbers_with_gaps(library):
    table = library({"a": [1, None, 3, 4] * 30, "b": X[:, 0]})
    assert ForestClassifier(10).fit(table, Y).predict(table).shape == (N,)
    nullable = pd.DataFrame({"a": pd.array([1, None, 3, 4] * 30, dtype="Int64"), "b": X[:, 0]})
    assert ForestClassifier(10).fit(nullable, Y).forest_ == ForestClassifier(10).fit(table, Y).forest_


@libraries
def test_unseen_categories_count_as_missing(library):
    model = ForestClassifier(10).fit(library(columns()), Y)
    unseen, missing = (library(columns(ward=[value] * N)) for value in ("attic", None))
    np.testing.assert_array_equal(model.predict_proba(unseen), model.predict_proba(missing))


def test_a_column_may_lose_all_its_values_later():
    model = ForestClassifier(10).fit(pd.DataFrame(columns()), Y)
    for gone in ("age", "ward", "smoker"):
        assert np.isfinite(model.predict_proba(pd.DataFrame(columns(**{gone: [None] * N})))).all()


@libraries
def test_the_order_of_columns(library):
    """scikit-learn's estimators need the columns in the fitted order; a forest finds columns by name."""
    table, turned = library(columns()), library(dict(reversed(columns().items())))
    model = ForestClassifier(10).fit(table, Y)
    with pytest.raises(ValueError, match="same order"):
        model.predict(turned)
    np.testing.assert_allclose(model.forest_.predict_proba(turned), model.predict_proba(table), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", ["y", "y_", "label"])
def test_a_column_may_share_the_labels_name(name):
    table = pd.DataFrame(columns()).rename(columns={"age": name}).assign(y_=1.0)
    assert ForestClassifier(5).fit(table.loc[:, ~table.columns.duplicated()], Y).score(table, Y) > 0.8


def test_columns_without_names():
    table = pd.DataFrame(columns()).set_axis([0, 1, 2], axis=1)
    model = ForestClassifier(5).fit(table, Y)
    assert model.forest_.schema.names == ("0", "1", "2")
    assert model.score(table, Y) > 0.8


def test_codes_for_categories():
    """An array of codes stands for a table with text; scikit-learn warns about the names."""
    table = pd.DataFrame(columns())
    model = ForestClassifier(10).fit(table, Y)
    code = {"east": 0, "north": 1, "south": 2}
    array = np.array([[a, code.get(w, -1), s] for a, w, s in zip(*columns().values(), strict=True)], float)
    with pytest.warns(UserWarning, match="feature names"):
        found = model.predict_proba(array)
    np.testing.assert_array_equal(found, model.predict_proba(table))
    with (
        pytest.warns(UserWarning, match="feature names"),
        pytest.raises(InputError, match="text in a data frame"),
    ):
        model.predict(table.to_numpy())


# -- odd but valid input


@both
def test_one_class_or_one_number(make):
    model = make(5).fit(X, np.full(N, 7))
    assert (model.predict(X) == 7).all()
    assert len(model.forest_.feature) == 5  # nothing to split


@both
def test_constant_and_empty_columns(make):
    odd = np.column_stack([np.ones(N), np.full(N, np.nan), X[:, 0]])
    model = make(10, max_features=1).fit(odd, AGE > 50)
    assert model.score(odd, AGE > 50) > 0.9
    assert set(model.forest_.feature) == {-1, 2}
    hopeless = make(10).fit(odd[:, :2], Y)
    assert np.ptp(hopeless.predict(odd[:, :2]).astype(float)) == 0
    table = pd.DataFrame(columns(ward=[None] * N))
    assert make(10).fit(table, AGE > 50).score(table, AGE > 50) > 0.8


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [-1.0, 2.0], [3, 10**12]])
def test_labels_of_any_type(labels):
    wanted = np.array(labels)[Y]
    for given in (wanted, wanted.tolist(), pd.Series(wanted), pl.Series(wanted)):
        model = ForestClassifier(10).fit(X, given)
        assert model.classes_.tolist() == labels
        assert set(model.predict(X)) == set(labels)
        assert model.forest_.schema.label.classes == tuple(labels)


# -- unusable input


@both
def test_missing_labels(make):
    gaps = {
        "float": np.where(np.arange(N) < 3, np.nan, Y),
        "list": [None, None, None, *Y[3:].tolist()],
        "words": np.array([None, np.nan, None, *map(str, Y[3:])], object),
        "list of words": [float("nan")] * 3 + [str(v) for v in Y[3:]],
        "pandas": pd.Series(pd.array([None] * 3 + Y[3:].tolist(), dtype="Int64")),
        "pandas words": pd.Series([None] * 3 + [str(v) for v in Y[3:]]),
        "polars": pl.Series([None] * 3 + Y[3:].tolist()),
    }
    for name, label in gaps.items():
        for table in (X, pd.DataFrame(columns())):
            with pytest.raises(InputError, match=f"y is missing in 3 of {N} rows"):
                make(5).fit(table, label)
            assert name


TABLES = {"array": X, "frame": pd.DataFrame(columns())}
ENDLESS = np.where(np.arange(N) < 2, np.inf, AGE)


@pytest.mark.parametrize(
    ("make", "table", "label", "error", "said"),
    [
        (ForestRegressor, "array", ENDLESS, ValueError, "y contains infinity"),
        (ForestRegressor, "frame", ENDLESS, InputError, f"y is missing or infinite in 2 of {N} rows"),
        (ForestClassifier, "array", AGE, ValueError, "continuous"),
        *((ForestRegressor, table, WARD, InputError, "y must be numbers for regression") for table in TABLES),
        *((ForestClassifier, table, None, ValueError, "y") for table in TABLES),
        *((ForestClassifier, table, Y[:-1], ValueError, f"{N}.*{N - 1}") for table in TABLES),
    ],
)
def test_labels_of_the_wrong_kind(make, table, label, error, said):
    with pytest.raises(error, match=said):
        make(5).fit(TABLES[table], label)


@both
@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e300])
def test_infinities(make, value):
    endless = X.copy()
    endless[3, 1] = value
    with pytest.raises(ValueError, match="X contains infinity or a value too large"):
        make(5).fit(endless, Y)
    with pytest.raises(InputError, match="column 'age' is infinite"):
        make(5).fit(pd.DataFrame(columns(age=endless[:, 1])), Y)
    model = make(5).fit(X, Y)
    with pytest.raises(ValueError, match="X contains infinity or a value too large"):
        model.predict(endless)
    with pytest.raises(InputError, match="X holds infinite values"):
        model.forest_.predict(endless)


@both
@pytest.mark.parametrize(
    ("table", "error", "said"),
    [
        (np.empty((0, 2)), ValueError, r"0 sample\(s\)"),
        (pd.DataFrame(columns())[:0], InputError, "no rows"),
        (pd.DataFrame(index=range(5)), InputError, "no columns"),
        (pd.DataFrame(X, columns=["a", "a"]), InputError, "more than one column called 'a'"),
        (pd.DataFrame(columns()).set_axis(["a", "b", "a"], axis=1), InputError, "more than one column called 'a'"),
        (pd.DataFrame({"stay": pd.to_timedelta(range(N), unit="h")}), SchemaError, "column 'stay' holds Duration"),
    ],
    ids=["no rows", "no rows of a frame", "no columns", "two of a name", "two of a name, with text", "time spans"],
)
def test_unusable_tables(make, table, error, said):
    with pytest.raises(error, match=said):
        make(5).fit(table, Y[: len(table)])


@libraries
def test_changed_columns(library):
    model = ForestClassifier(5).fit(library(columns()), Y)
    numbers = ForestClassifier(5).fit(library({"a": X[:, 0]}), Y)
    without = library({k: v for k, v in columns().items() if k != "ward"})
    for used, table, error, said in (
        (model, without, ValueError, r"now missing:\n- ward"),
        (model.forest_, without, SchemaError, "lacks 'ward'"),
        (model, library(columns(age=["old"] * N)), SchemaError, "column 'age' holds text"),
        (numbers, library({"a": ["old"] * N}), SchemaError, "column 'a' holds text"),
        (ForestClassifier(5).fit(X[:, :1], Y), X, ValueError, "2 features"),
    ):
        with pytest.raises(error, match=said):
            used.predict(table)


def test_before_fit():
    for use in (lambda m: m.predict(X), lambda m: m.predict_proba(X), lambda m: m.feature_importances_):
        with pytest.raises(NotFittedError):
            use(ForestClassifier())
