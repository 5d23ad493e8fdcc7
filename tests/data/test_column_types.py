"""Types of columns: numbers, dates or text. Markers among numbers are missing, and a mixture stops the study."""

import datetime
import sqlite3

import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pytest

import silvan as sv
from silvan.data.cells import MARKERS, distinct
from silvan.data.encode import encode_features
from silvan.data.table import read_table
from silvan.errors import AgreementError, InputError, SchemaError, SiteError
from silvan.federation.site import Site

SOURCES = ["csv", "csv in batches", "polars", "parquet in batches", "pandas", "arrays", "sqlite", "sqlite in batches"]


def keep(folder, kind, cells):
    """Stores texts as the column ``a`` of a table of some kind."""
    label = [i % 2 for i in range(len(cells))]
    if kind.startswith("csv"):
        lines = [f'"{cell}",{y}\n' for cell, y in zip(cells, label, strict=True)]
        (folder / "t.csv").write_text("a,label\n" + "".join(lines))
        return folder / "t.csv"
    if kind.startswith("sqlite"):
        with sqlite3.connect(folder / "t.db") as database:
            database.execute("CREATE TABLE t (a, label)")
            rows = [(float(c) if c.replace(".", "").isdigit() else c, y) for c, y in zip(cells, label, strict=True)]
            database.executemany("INSERT INTO t VALUES (?, ?)", rows)
        database.close()
        return f"sqlite:///{folder / 't.db'}?table=t"
    if kind == "arrays":
        return np.array([[cell] for cell in cells], dtype=object), label
    frame = pl.DataFrame({"a": cells, "label": label})
    if kind.startswith("parquet"):
        frame.write_parquet(folder / "t.parquet")
        return folder / "t.parquet"
    if kind == "pandas":
        mixed = [float(c) if c.replace(".", "").isdigit() else c for c in cells]
        return pd.DataFrame({"a": pd.Series(mixed, dtype=object), "label": label})
    return frame


def site(folder, kind, cells, **settings):
    memory = 1 << 9 if "batches" in kind else None
    return Site("north", keep(folder, kind, cells), memory=memory, **settings)


@pytest.mark.parametrize("kind", SOURCES)
def test_markers_are_missing_among_numbers(tmp_path, kind):
    marked = [form for word in sorted(MARKERS) for form in (word, word.upper(), f" {word} ")]
    cells = ["1.5", "2.5", *marked, "3", ""]
    table = site(tmp_path, kind, cells)
    expected = [1.5, 2.5, *[np.nan] * len(marked), 3, np.nan]
    name = "x0" if kind == "arrays" else "a"
    fed = sv.federate_rows({"north": table.source, "south": table.source}, memory=table.memory)
    assert fed.schema.names == (name,)
    assert not fed.schema.features[0].categorical
    values = fed.site("north").part(fed.schema).X[:, 0]
    if kind.startswith("sqlite"):  # a query's rows come in the order of their values
        values, expected = np.sort(values), np.sort(expected)
    np.testing.assert_array_equal(values, np.array(expected, np.float32))
    if not kind.endswith("batches"):
        frame = read_table(table.source, schema=fed.schema)
        given = encode_features(frame, fed.schema)[:, 0]
        np.testing.assert_array_equal(np.sort(given), np.sort(np.array(expected, np.float32)))


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("bad", [">600", "12,5", "unknown", "12 mg"])
def test_a_few_texts_among_numbers_stop_the_study(tmp_path, kind, bad):
    cells = [str(i + 0.5) for i in range(40)]
    cells[6] = cells[29] = bad
    table = site(tmp_path, kind, cells)
    with pytest.raises(SiteError, match="site 'north': Describe: the site's table does not fit") as caught:
        sv.federate_rows({"north": table.source}, memory=table.memory)
    text = str(caught.value.__cause__)
    places = "" if kind.startswith("sqlite") else " (rows 7, 30)"
    assert f"mixes numbers and text: 2 of its 40 cells{places} are no numbers; correct or empty" in text
    assert "kinds: " in text
    assert bad not in text  # errors may be shown to people who must not see a value
    name = "x0" if kind == "arrays" else "a"
    fed = sv.federate_rows({"north": table.source}, memory=table.memory, kinds={name: "categorical"})
    assert fed.schema.features[0].categorical


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (["a", "b", "NA"], "categorical"),
        (["I10", "J45", "E11", "250"] * 1 + ["K21"] * 20, "categorical"),  # hardly any numbers
        (["+", "-"], "categorical"),
        (["yes", "no", "?"], "categorical"),
        (["true", "false", "maybe"], "categorical"),
        (["0", "1", "unknown"], "mixes numbers and text: 1 of its 3 cells (row 3) is no number"),
        (["250.0", "401.9", "V10"], "mixes numbers and text"),
        (["1,234", "12,500", "1,000,000"], "have separators, signs or units"),
        (["5 %", "7 %"], "have separators, signs or units"),
        (["70 kg", "82 kg"], "have separators, signs or units"),
        (["$5", "$7.50"], "have separators, signs or units"),
        (["10-19", "20-29", "80+"], "categorical"),  # bands are names
        (["01/02/2020", "03/04/2020"], "some formats are ambiguous"),
        (["2020-01-31", "2020-02-01", "NA"], "date"),
        (["31.01.2020", "1.2.2020"], "date"),
        (["2020-01-31", "2020-02-01", "soon"], "mixes dates and text: 1 of its 3 cells (row 3) is no date"),
        (["NA", "-", ""], "empty"),
        (["0012", "0345"], "numeric"),
        (["TRUE", "False", "na"], "numeric"),
    ],
    ids=lambda value: "-".join(value)[:30] if isinstance(value, list) else value[:20],
)
@pytest.mark.parametrize("memory", [None, 1 << 9])
def test_types_of_texts_in_files(tmp_path, cells, found, memory):
    from silvan.data.bins.column_summary import summarise

    table = Site("north", keep(tmp_path, "csv", cells), memory=memory).table
    if found in ("categorical", "numeric", "date", "empty"):
        assert summarise(table, "label").kinds == {"a": found}
        return
    with pytest.raises(SchemaError) as caught:
        summarise(table, "label")
    assert found in str(caught.value)


def test_excluded_columns_may_be_anything(tmp_path):
    path = keep(tmp_path, "csv", ["1", "2", "x", "4"] * 5)
    frame = pl.read_csv(path).with_columns(b=pl.int_range(pl.len()))
    fed = sv.federate_rows({"north": frame, "south": frame}, exclude=["a"])
    assert fed.schema.names == ("b",)


def test_sites_that_read_a_column_differently_stop_before_training(tmp_path):
    numbers, text = pl.DataFrame({"a": [1.0, 2.0] * 9, "label": [0, 1] * 9}), ["low", "high"] * 9
    dates = [datetime.date(2020, 1, 1)] * 18
    for other, said in ((text, "text at south"), (dates, "dates at south")):
        with pytest.raises(AgreementError, match=f"'a' is read as numbers at north and {said}; make the tables alike"):
            sv.federate_rows({"north": numbers, "south": numbers.with_columns(a=pl.Series(other))})


def test_dates_are_days_and_their_parts_on_request(tmp_path):
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(i) for i in range(40)]
    label = [i % 2 for i in range(40)]
    path = tmp_path / "t.csv"
    path.write_text(
        "seen,label\n" + "".join(f"{day.day}.{day.month}.{day.year},{y}\n" for day, y in zip(days, label, strict=True))
    )
    zone = [datetime.datetime(d.year, d.month, d.day, tzinfo=datetime.UTC) for d in days]
    tables = {
        "text": path,
        "polars": pl.DataFrame({"seen": days, "label": label}),
        "pandas": pd.DataFrame({"seen": pd.to_datetime(days), "label": label}),
        "objects": pd.DataFrame({"seen": pd.Series(days, dtype=object), "label": label}),
        "zones": pl.DataFrame({"seen": zone, "label": label}),
    }
    fed = sv.federate_rows(tables, kinds={"seen": ["days", "year", "month", "weekday"]})
    assert fed.schema.names == ("seen", "seen (year)", "seen (month)", "seen (weekday)")
    expected = [[(d - datetime.date(1970, 1, 1)).days, d.year, d.month, d.isoweekday()] for d in days]
    for name in tables:
        np.testing.assert_array_equal(fed.site(name).part(fed.schema).X, expected)
    model = sv.HistogramForest(3, random_state=0).fit(fed)
    again = sv.Forest.load(model.forest_.save(tmp_path / "m.silvan") or tmp_path / "m.silvan")
    for table in tables.values():
        np.testing.assert_array_equal(again.predict(table), model.forest_.predict(tables["polars"]))
    assert sv.federate_rows(tables).schema.names == ("seen",)


def test_an_invalid_date_is_reported_with_its_row():
    schema = sv.Schema.of([sv.Feature("seen", date="days")])
    frame = read_table(pl.DataFrame({"seen": ["2020-01-01", "2020-02-30", "NA", None]}), schema=schema)
    with pytest.raises(SchemaError, match=r"holds text, but the schema says it holds dates, in 1 of 4 rows \(row 2\)"):
        encode_features(frame, schema)


@pytest.mark.parametrize("kinds", [{"a": "text"}, {"a": []}, {"a": ["hour"]}, ["a"], {"a": 1}])
def test_invalid_kinds(kinds):
    frame = pl.DataFrame({"a": [1, 2], "label": [0, 1]})
    with pytest.raises(InputError, match="kinds"):
        sv.federate_rows({"north": frame}, kinds=kinds)


def test_classes_declared_as_text():
    north = pl.DataFrame({"a": range(20), "label": [0, 1] * 10})
    south = north.with_columns(label=pl.col("label").cast(pl.String))
    fed = sv.federate_rows({"north": north, "south": south}, kinds={"label": "categorical"})
    assert fed.schema.label.classes == ("0", "1")
    assert fed.site("north").part(fed.schema).y.tolist() == [0, 1] * 10


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
def test_text_in_a_data_frame_stays_text_unless_it_looks_like_numbers(library):
    """In a file "5more" among numbers may be a typo; a column declared as text was meant as text."""
    doors = ["2", "3", "4", "5more"] * 10
    fed = sv.federate_rows({"north": library({"doors": doors, "label": [0, 1] * 20})}, label="label")
    assert fed.schema.features[0].categories == ("2", "3", "4", "5more")
    many = [f"{i}.5" for i in range(39)] + ["unknown"]
    with pytest.raises(SiteError, match="mixes numbers and text"):
        sv.federate_rows({"north": library({"weight": many, "label": [0, 1] * 20})}, label="label")


@pytest.mark.parametrize("library", [pd.Series, pl.Series])
def test_distinct_texts_come_in_order(library):
    """Polars returns them in another order in each process, and messages about a table must not depend on that."""
    values, places = distinct(nw.from_native(library([f"w{i % 23}" for i in range(200)]), series_only=True))
    assert values == sorted(values)
    assert [values[place] for place in places] == [f"w{i % 23}" for i in range(200)]
