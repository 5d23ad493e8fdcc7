"""Reading tables: every kind of source gives the same frame, and anything else gets a plain error."""

import gzip
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from silvan.data.table import read_table
from silvan.errors import InputError

COLUMNS = {"age": [63, 41], "sex": ["f", "m"], "label": [0, 1]}


def plain(frame):
    return frame.to_dict(as_series=False)


def write(path, text):
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "T.CSV", "t.parquet"])
def test_files_of_all_kinds_agree(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        pl.DataFrame(COLUMNS).write_parquet(path)
    else:
        write(path, pl.DataFrame(COLUMNS).write_csv())
    assert plain(read_table(path)) == COLUMNS
    assert plain(read_table(str(path))) == COLUMNS


@pytest.mark.parametrize("make", [pl.DataFrame, pl.LazyFrame, pd.DataFrame, pa.table])
def test_data_frames_of_all_libraries_agree(make):
    frame = read_table(make(COLUMNS))
    assert plain(frame) == COLUMNS
    assert plain(read_table(frame)) == COLUMNS


@pytest.mark.parametrize(
    ("cells", "dtype", "last"),
    [
        (["1", "2.5"], pl.Float64, 2.5),
        (["x", "1"], pl.String, "1"),
        (["1", "NA"], pl.Int64, None),
        (["2.5", "?"], pl.Float64, None),
        (["true", "."], pl.Boolean, None),
        (["true", "2"], pl.Float64, 2.0),
        (["1", " 2 "], pl.Int64, 2),
        (["", "7"], pl.Int64, 7),
        (["true", "False"], pl.Boolean, False),
        (["", "True"], pl.Boolean, True),
        (["true", "maybe"], pl.String, "maybe"),
        (["1", "99999999999999999999999999999999999999999"], pl.Float64, 1e41),
        (["", ""], pl.Float64, None),
    ],
)
def test_csv_types_look_at_all_rows(tmp_path, cells, dtype, last):
    early, late = cells
    path = write(tmp_path / "t.csv", "a,b\n" + f"{early},0\n" * 30_000 + f"{late},0\n")
    column = read_table(path).to_native()["a"]
    assert column.dtype == dtype
    assert column[-1] == last


def test_empty_and_blank_cells_are_missing(tmp_path):
    path = write(tmp_path / "t.csv", 'number,word\n,\n"",""\n  , \n5,x\n')
    assert plain(read_table(path)) == {"number": [None, None, None, 5], "word": [None, None, None, "x"]}


def test_csv_is_read_with_byte_order_mark_quotes_and_windows_lines(tmp_path):
    path = write(tmp_path / "t.csv", '\ufeff"a, or b",c\r\n"x\ny",1\r\n')
    assert plain(read_table(path)) == {"a, or b": ["x\ny"], "c": [1]}


def test_glob_characters_in_a_path_mean_themselves(tmp_path):
    assert plain(read_table(write(tmp_path / "t[1]*.csv", "a\n1\n"))) == {"a": [1]}


def test_arrays():
    frame = read_table((np.array([[1.0, np.nan], [3.0, 4.0]]), np.array(["n", "y"])), label="ill")
    assert frame.columns == ["x0", "x1", "ill"]
    assert np.isnan(frame["x1"][0])
    assert frame["ill"].to_list() == ["n", "y"]


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64, np.float16, np.float32, ">f8", np.longdouble])
def test_arrays_of_any_number_type(dtype):
    values = np.array([0, 1], dtype=dtype)
    for X in (values[:, None], pa.table({"x0": [0, 1]})):
        assert plain(read_table((X, values))) == {"x0": [0, 1], "label": [0, 1]}


def test_lists_and_objects_keep_each_columns_type():
    expected = {"x0": [1.0, 2.5], "x1": ["a", None], "label": [True, False]}
    assert plain(read_table(([[1, "a"], [2.5, None]], [True, False]))) == expected
    objects = np.array([[1, "a"], [2.5, np.nan]], dtype=object)
    assert plain(read_table((objects, np.array([True, False], dtype=object)))) == expected


@pytest.mark.parametrize("make", [pl.DataFrame, pd.DataFrame, pa.table])
def test_frame_and_target_are_joined_by_position(make):
    X = make({"a": [1, 2, 3]})
    y = pd.Series(["u", None, "w"], dtype="string", index=[2, 1, 0])
    frame = read_table((X, y))
    assert frame["label"].is_null().to_list() == [False, True, False]
    assert frame["label"].to_list()[::2] == ["u", "w"]
    assert read_table((X, pl.Series([3, 2, 1])))["label"].to_list() == [3, 2, 1]


def test_pandas_index_does_not_reorder():
    X = pd.DataFrame({"a": [1, 2]}, index=[9, 4])
    assert plain(read_table((X, pd.Series([0, 1], index=[4, 9])))) == {"a": [1, 2], "label": [0, 1]}


def test_names_that_are_numbers_become_text():
    assert read_table(pd.DataFrame(np.zeros((1, 2)))).columns == ["0", "1"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.txt", "a\n1\n", "should end in .csv, .csv.gz, .tsv, .parquet"),
        ("t.csv", "", "no columns"),
        ("t.csv", "\n\n", "no columns"),
        ("t.csv", "a,b\n", "no rows"),
        ("t.csv.gz", "a,b\n", "no rows"),
        ("t.csv", "a,b,a\n1,2,3\n", "more than one column called 'a'"),
        ("t.csv.gz", "a,b,a\n1,2,3\n", "more than one column called 'a'"),
        ("t.csv", '\n"x,y",b,"x,y"\n1,2,3\n', "more than one column called 'x,y'"),
        ("t.csv", ",a\n0,1\n", "column 1 of .* has no name"),
        ("t.csv", "a,b\n1,2\nsecret,3,4\n", "more cells than the header"),
        ("t.parquet", "a,b\n1,2\n", "cannot be read as Parquet"),
    ],
)
def test_bad_files(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read_table(write(tmp_path / name, text))
    assert "secret" not in str(caught.value)
    assert name in str(caught.value)


def test_bad_bytes(tmp_path):
    whole = gzip.compress(b"a,b\n" + b"1,2\n" * 50_000)
    for name, data in [
        ("plain.csv.gz", b"a,b\n1,2\n"),
        ("short.csv.gz", whole[:12]),
        ("short2.csv.gz", whole[: len(whole) // 2]),
        ("half.csv", "a,b\n1,2\n".encode("utf-16")[:-1]),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match=name):
            read_table(tmp_path / name)


def test_file_not_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"no file 'nowhere.csv' in"):
        read_table("nowhere.csv")
    with pytest.raises(InputError, match="is a folder; name a file in it"):
        read_table(tmp_path)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (pl.DataFrame(), "no columns"),
        (pl.DataFrame({"a": []}), "no rows"),
        (pd.DataFrame(np.zeros((1, 3)), columns=["a", "b", "a"]), "more than one column called 'a'"),
        (pd.DataFrame(np.zeros((1, 2)), columns=[1, "1"]), "more than one column called '1'"),
        (pa.table([[1], [2]], names=["a", "a"]), "more than one column called 'a'"),
        (pl.DataFrame({" ": [1]}), "column 1 of the table has no name"),
        (pd.DataFrame([[1]], columns=pd.MultiIndex.from_tuples([("a", "b")])), "several levels"),
        (np.zeros((2, 2)), "must be a path, a query, a data frame or a tuple .* got ndarray"),
        (None, "got NoneType"),
        ((np.zeros((2, 2)),), "got 1 parts"),
        ((np.zeros(2), [0, 1]), "X must be two-dimensional"),
        ((np.zeros((2, 2, 2)), [0, 1]), "X must be two-dimensional"),
        ((pd.Series([1, 2]), [0, 1]), "X must be a data frame or a two-dimensional array; got Series"),
        (([[1, 2], [3]], [0, 1]), "X has rows of different lengths"),
        ((np.zeros((2, 0)), [0, 1]), "X is empty"),
        ((np.zeros((0, 2)), []), "X has columns but no rows"),
        ((np.zeros((2, 1)), [0, 1, 1]), "X has 2 rows but y has 3"),
        ((np.zeros((2, 1)), [[0], [1]]), "y must be one-dimensional"),
        ((np.zeros((2, 1)), None), "y must be one-dimensional"),
        ((np.zeros((2, 1)), ["a", 1]), "'label' mixes numbers and text"),
        ((np.array([["a"], [1]], dtype=object), [0, 1]), "'x0' mixes numbers and text"),
        ((np.zeros((2, 1), dtype=complex), [0, 1]), "X must hold numbers or text; got complex128"),
        ((pl.DataFrame({"label": [1, 2]}), [0, 1]), "X already has a column 'label'"),
    ],
)
def test_bad_frames_and_arrays(source, message):
    with pytest.raises(InputError, match=message):
        read_table(source)


def test_importing_does_not_import_data_frame_libraries():
    code = "import sys, silvan.datasets; print({'polars', 'pandas', 'pyarrow'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
