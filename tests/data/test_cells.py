"""Cells: each is read by itself, by the schema, whatever the other rows contain and wherever the table is stored."""

import csv
import datetime
import io
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pytest
from helpers.examples import examples
from hypothesis import example, given, settings
from hypothesis import strategies as st

import silvan as sv
from silvan.data.cells import distinct, numbers_of
from silvan.data.encode import encode_features, encode_label
from silvan.data.table import read_table
from silvan.errors import InputError, SchemaError, SiteError
from silvan.federation.site import Site

LONG = 2**53 + 1

TEXTS = ["1", "1.0", " 1", "01", "1e0", "+1", "0", "0.0", "-0", "2.5", str(LONG), "9" * 20, "1e39", "inf"]
TEXTS += ["true", "TRUE", "False", "x", " x", "nan", "", "  ", "2020-01-01", "1,5", 'a "b"\nc', "é", "=1"]
TEXTS += ["NA", " n/a", "?", ".", "-", "null"]
VALUES = [1, 1.0, 0, 0.0, -0.0, 2.5, 1e39, float("inf"), True, False, None, 7, -3]
OBJECTS = [datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 6), b"1", [1]]

CELLS = {
    "csv": st.sampled_from(TEXTS),
    "sqlite": st.sampled_from([*TEXTS, *VALUES, LONG, -(2**63), b"1"]),
    "polars": st.sampled_from([*TEXTS, None]),
    "pandas": st.sampled_from([*TEXTS, *VALUES, *OBJECTS, float("nan")]),
    "arrays": st.sampled_from([*TEXTS, *VALUES, *OBJECTS, LONG, 10**400, float("nan")]),
}

named = st.lists(
    st.sampled_from(["1", "1.0", "01", "0", "true", "x", str(LONG), "2.5", "nan", "False", "NA"]),
    unique=True,
    max_size=5,
)
labels = st.sampled_from(
    [
        sv.Label("y", classes=(0, 1)),
        sv.Label("y", classes=("0", "1", "01")),
        sv.Label("y", classes=(False, True)),
        sv.Label("y", classes=("x", "1.0")),
        sv.Label("y", classes=(0.5, 1.0, 2.5)),
        sv.Label("y", bounds=(0.0, 1.0)),
    ]
)


@st.composite
def schemas(draw):
    ward = sv.Feature("ward", "categorical", categories=tuple(draw(named)), other=draw(st.booleans()))
    number = sv.Feature("a", date=draw(st.sampled_from([None, "days"])))
    return sv.Schema.of(["i", number, ward], draw(labels))


def keep(folder: Path, kind: str, rows: list) -> object:
    """Stores rows as a table of some kind."""
    names = ["i", "a", "ward", "y"]
    if kind == "csv":
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([names, *rows])
        (folder / "t.csv").write_text(text.getvalue())
        return folder / "t.csv"
    if kind == "sqlite":
        (folder / "t.db").unlink(missing_ok=True)
        with sqlite3.connect(folder / "t.db") as database:
            database.execute("PRAGMA synchronous = OFF")
            database.execute("CREATE TABLE t (i, a, ward, y)")
            database.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", rows)
        database.close()
        return f"sqlite:///{folder / 't.db'}?table=t"
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    if kind == "polars":
        texts = {name: pl.Series(columns[name], dtype=pl.String) for name in names[1:]}
        return pl.DataFrame({"i": columns["i"], **texts})
    if kind == "pandas":
        return pd.DataFrame({name: list(values) for name, values in columns.items()})
    X = np.empty((len(rows), 3), object)
    for i, row in enumerate(rows):
        X[i] = row[:3]
    y = np.empty(len(rows), object)
    y[:] = columns["y"]
    return X, y


def encoded(kind: str, rows: list, schema: sv.Schema, memory: int | None = None) -> tuple:
    """Returns what a site makes of a table."""
    if kind == "arrays":
        names = ["x0", "x1", "x2"]
        features = (
            sv.Feature(n, f.kind, categories=f.categories, other=f.other, date=f.date)
            for n, f in zip(names, schema.features, strict=True)
        )
        schema = sv.Schema(tuple(features), schema.label)
    with TemporaryDirectory() as folder:
        source = keep(Path(folder), kind, rows)
        part = Site("north", source, label="y", memory=memory).part(schema, strict=False)
        return part.X, part.y


@pytest.mark.parametrize("kind", CELLS)
@settings(max_examples=max(25, settings().max_examples // 10))
@given(data=st.data(), schema=schemas())
def test_a_row_is_read_independently_of_the_others(kind, data, schema):
    cells = st.tuples(CELLS[kind], CELLS[kind], CELLS[kind])
    rows = [(float(i), *row) for i, row in enumerate(data.draw(st.lists(cells, min_size=2, max_size=5)))]
    one = data.draw(st.integers(0, len(rows) - 1))
    X, y = encoded(kind, rows, schema)
    batched = encoded(kind, rows, schema, memory=1 << 9)
    np.testing.assert_array_equal(X, batched[0])
    np.testing.assert_array_equal(y, batched[1])
    alone = encoded(kind, [rows[one]], schema)
    others = encoded(kind, rows[:one] + rows[one + 1 :], schema)
    np.testing.assert_array_equal(X[[one]], alone[0])
    np.testing.assert_array_equal(y[[one]], alone[1])
    np.testing.assert_array_equal(np.delete(X, one, 0), others[0])
    np.testing.assert_array_equal(np.delete(y, one), others[1])


@given(st.lists(st.sampled_from(TEXTS) | st.text("0123456789.e+-naif _", max_size=6), min_size=1, max_size=6))
@example(["1", "x"])
def test_a_file_and_a_frame_of_its_texts_are_read_alike(words):
    schema = sv.Schema.of(["a"], sv.Label("y", classes=(0, 1)))
    with TemporaryDirectory() as folder:
        source = keep(Path(folder), "csv", [(0, word, "", "1") for word in words])
        frame = read_table(source, "y", schema)
        file = encode_features(frame, schema, strict=False)
        assert encode_label(frame, schema).tolist() == [1] * len(words)
    frame = read_table(pl.DataFrame({"a": words, "y": 1}), "y", schema)
    np.testing.assert_array_equal(encode_features(frame, schema, strict=False), file)


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt8, pl.Int64, pl.UInt64])
@given(st.data())
@examples(30)
def test_distinct_whole_numbers(dtype, data):
    """Close together, far apart, at the limits of their type, or missing: the values present, ascending, and where."""
    limits = np.iinfo(str(dtype).lower())
    near = st.sampled_from([limits.min, limits.max, max(0, limits.min)]).flatmap(
        lambda at: st.integers(max(limits.min, at - 3), min(limits.max, at + 3))
    )
    cells = data.draw(st.lists(st.none() | near, max_size=12))
    values, places = distinct(nw.from_native(pl.Series("x", cells, dtype), series_only=True))
    assert values == sorted({cell for cell in cells if cell is not None})
    assert [None if place < 0 else values[place] for place in places] == cells


def test_the_meaning_of_texts():
    words = {"1": 1, "1.0": 1.0, " 01 ": 1, "1e3": 1000.0, str(LONG): LONG, "TRUE": True, "false": False, "-.5": -0.5}
    assert numbers_of(list(words)) == list(words.values())
    assert [type(n) for n in numbers_of(list(words))] == [type(n) for n in words.values()]
    assert numbers_of(["x", "", "1_000", "0x1", "1,5", "2020-01-01", "1 2", "--", "unknown"]) == [None] * 9
    assert np.isnan(numbers_of(["NA", "n/a", "#N/A", " ? ", ".", "-", "NULL", "None", "NaN", "<NA>"])).all()


def test_places_in_batches_are_those_of_the_table(tmp_path):
    schema = sv.Schema.of(["i", "a"], sv.Label("y", classes=(0, 1)))
    source = keep(tmp_path, "csv", [(i, "x" if i in (300, 301) else i, "", 1) for i in range(1, 400)])
    for memory, said in ((None, r"in 2 of 399 rows \(rows 300, 301\)"), (1 << 9, r"\(row 300\)|\(rows 300, 301\)")):
        with pytest.raises(SchemaError, match=said):
            Site("north", source, label="y", memory=memory).part(schema)


def test_untyped_columns_are_refused_only_without_a_schema(tmp_path):
    rows = [(1.0, 1, "x", 1), (2.0, "2.5", "x", 0), (3.0, "many", 1, 0)]
    source = keep(tmp_path, "sqlite", rows)
    numbers = sv.Schema.of(["i", "a"], sv.Label("y", classes=(0, 1)))
    with pytest.raises(SchemaError, match="column 'a' mixes numbers and text"):
        read_table(source)
    with pytest.raises(SiteError, match="does not fit") as caught:
        sv.federate_rows({"north": source, "south": source}, label="y")
    assert "column 'a' mixes numbers and text" in str(caught.value.__cause__)
    with pytest.raises(SchemaError, match=r"column 'a' holds text, .* in 1 of 3 rows \(row 3\)"):
        Site("north", source, label="y").part(numbers)
    part = Site("north", source, label="y").part(numbers, strict=False)
    np.testing.assert_array_equal(part.X, [[1, 1], [2, 2.5], [3, np.nan]])


def test_a_file_that_changed_between_two_readings_is_refused(tmp_path):
    schema = sv.Schema.of(["i"], sv.Label("y", classes=(0, 1)))
    source = keep(tmp_path, "csv", [(1, 1, "", 1), (2, 2, "", 0)])
    site = Site("north", source, label="y")
    assert len(site.table) == 2
    keep(tmp_path, "csv", [(1, 1, "", 1), (2, 2, "", 0), (3, 3, "", 0)])
    with pytest.raises(InputError, match="was changed or moved while in use"):
        site.part(schema)
