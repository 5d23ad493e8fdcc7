"""Schemas: contradictions are refused, and JSON gives back the same schema."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silvan.data.schema import MAX_BINS, MAX_CATEGORIES, Feature, Label, Schema
from silvan.errors import FormatError, SchemaError

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
rising = st.tuples(finite, finite).filter(lambda pair: pair[0] < pair[1])


def edges(most=20):
    return st.lists(finite, max_size=most, unique=True).map(lambda values: tuple(sorted(values)))


def features(name):
    numeric = st.builds(
        Feature, st.just(name), bounds=st.none() | rising, edges=st.none() | edges().filter(_really_rising)
    )
    categories = st.none() | st.lists(words, max_size=8, unique=True).map(tuple)
    categorical = st.builds(Feature, st.just(name), st.just("categorical"), categories=categories, other=st.booleans())
    return numeric | categorical


def _really_rising(values):
    return all(a < b for a, b in pairwise(values))  # 0.0 and -0.0 are unique to hypothesis


classes = st.one_of(
    st.lists(words, min_size=1, max_size=5, unique=True),
    st.lists(st.integers(-(2**60), 2**60), min_size=1, max_size=5, unique=True),
    st.lists(finite, min_size=1, max_size=5, unique=True),
    st.just([False, True]),
).map(tuple)

labels = st.builds(Label, st.just("the label"), classes=classes) | st.builds(
    Label, st.just("the label"), bounds=st.none() | rising
)


@st.composite
def schemas(draw):
    names = draw(st.lists(words.filter(lambda w: w and w != "the label"), max_size=6, unique=True))
    return Schema(tuple(draw(features(name)) for name in names), draw(labels))


@given(schemas())
def test_json_round_trip(schema):
    text = schema.to_json()
    again = Schema.from_json(text)
    assert again == schema
    assert again.to_json() == text
    assert again.hash == schema.hash
    assert Schema.from_json(text.encode()) == schema
    kinds = [type(value) for value in schema.label.classes or ()]
    assert [type(value) for value in again.label.classes or ()] == kinds


@given(schemas(), schemas())
def test_the_hash_distinguishes_schemas(one, other):
    assert (one.hash == other.hash) == (one.to_json() == other.to_json())


def test_of_takes_plain_names():
    schema = Schema.of(["a", Feature("b", "categorical")], "y")
    assert schema.names == ("a", "b")
    assert [feature.categorical for feature in schema.features] == [False, True]
    assert schema.label == Label("y")
    assert schema.n_classes == 0


def test_counts_of_codes_and_classes():
    assert Feature("f", "categorical", categories=("a", "b"), other=True).n_codes == 3
    assert Feature("f", "categorical").n_codes == 0
    assert Schema.of(["a"], Label("y", ("n", "y"))).n_classes == 2


def test_values_of_numpy_become_plain_ones():
    cuts = np.array([0.5, 1.5])
    schema = Schema(
        (
            Feature(np.str_("age"), bounds=(np.float32(0.5), np.int64(90)), edges=tuple(cuts)),
            Feature("dose", edges=cuts.astype(np.float32)),
            Feature("ward", "categorical", categories=np.array(["north", "south"])),
        ),
        Label(np.str_("ill"), classes=tuple(np.array([0, 1]))),
    )
    assert Schema.from_json(schema.to_json()) == schema
    assert hash(schema.features) == hash(Schema.from_json(schema.to_json()).features)
    age, dose, ward = schema.features
    assert [type(value) for value in (age.name, *age.bounds, *dose.edges, *ward.categories)] == [
        str,
        float,
        int,
        float,
        float,
        str,
        str,
    ]
    for classes in ([np.True_, np.False_], [np.float64(0.5)], [np.str_("a")]):
        assert Schema.from_json(Schema((), Label("y", classes)).to_json()).label.classes == tuple(classes)
    assert Schema.of([], Label("y", bounds=np.array([0.0, 1.0]))).label.bounds == (0.0, 1.0)
    with pytest.raises(SchemaError, match="feature 'ward': categories are text; write numbers as '1'"):
        Feature("ward", "categorical", categories=(1, 2))


def test_names_depend_only_on_the_schema():
    assert Schema.of(["a"]).hash != Schema.of(["b"]).hash
    assert Schema.of(["a"], "y").hash != Schema.of(["a"], "z").hash
    first = Schema.of([Feature("f", "categorical", categories=("a", "b"))])
    second = Schema.of([Feature("f", "categorical", categories=("b", "a"))])
    assert first.hash != second.hash


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Feature(""), "needs a name"),
        (lambda: Feature("f", "categorical", bounds=(0, 1)), "'f' is categorical"),
        (lambda: Feature("f", "categorical", edges=(0.5,)), "'f' is categorical"),
        (lambda: Feature("f", "categorical", categories=("a", "a")), "'f' names a category twice"),
        (
            lambda: Feature("f", "categorical", categories=tuple(map(str, range(MAX_CATEGORIES + 1)))),
            f"at most {MAX_CATEGORIES}",
        ),
        (lambda: Feature("f", categories=("a",)), "'f' is numeric"),
        (lambda: Feature("f", other=True), "'f' is numeric"),
        (lambda: Feature("f", bounds=(1, 1)), "'f': bounds"),
        (lambda: Feature("f", bounds=(0, math.inf)), "'f': bounds"),
        (lambda: Feature("f", bounds=(math.nan, 1)), "'f': bounds"),
        (lambda: Feature("f", edges=(1, 1)), "'f': edges"),
        (lambda: Feature("f", edges=(math.nan,)), "'f': edges"),
        (lambda: Feature("f", edges=tuple(map(float, range(MAX_BINS)))), f"at most {MAX_BINS - 1} edges"),
        (lambda: Label("y", ()), "at least one class"),
        (lambda: Label("y", (0, 0)), "names a class twice"),
        (lambda: Label("y", (0, 1), bounds=(0, 1)), "bounds are for numbers"),
        (lambda: Label("y", bounds=(1, 0)), "'y': bounds"),
        (lambda: Schema.of(["a", "a"]), "'a' appears twice"),
        (lambda: Schema.of(["a"], "a"), "'a' is also listed as a feature"),
    ],
)
def test_contradictions(make, message):
    with pytest.raises(SchemaError, match=message):
        make()


def test_largest_allowed_sizes():
    assert Feature("f", "categorical", categories=tuple(map(str, range(MAX_CATEGORIES))), other=True).n_codes
    assert Feature("f", edges=tuple(map(float, range(MAX_BINS - 1)))).edges


GOOD = json.loads(Schema.of(["a"], Label("y", (0, 1))).to_json())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        b"\xff\xfe",
        json.dumps({"features": []}),
        json.dumps(GOOD | {"more": 1}),
        json.dumps(GOOD | {"features": [{"name": "a", "kind": "date"}]}),
        json.dumps(GOOD | {"features": [{"name": "a", "knid": "numeric"}]}),
        json.dumps(GOOD | {"features": [{"name": 5}]}),
        json.dumps(GOOD | {"features": [{"name": "a"}, {"name": "a"}]}),
        json.dumps(GOOD | {"features": [{"name": "a", "bounds": [0, 1, 2]}]}),
        json.dumps(GOOD | {"features": [{"name": "a", "bounds": [1, 0]}]}),
        json.dumps(GOOD | {"label": {"name": "y", "classes": []}}),
        json.dumps(GOOD | {"label": {"name": "y", "classes": [[0]]}}),
    ],
)
def test_json_from_outside_is_checked(text):
    with pytest.raises(FormatError, match="not a schema"):
        Schema.from_json(text)


def test_a_schema_prints_a_line_a_column():
    features = [Feature("age", bounds=(0, 120)), Feature("ward", "categorical", categories=("a", "b"))]
    lines = str(Schema.of(features, Label("ill", classes=("no", "yes")))).splitlines()
    assert lines == [
        "age   numeric      0 to 120",
        "ward  categorical  'a', 'b'",
        "ill   label        classes: 'no', 'yes'",
    ]
