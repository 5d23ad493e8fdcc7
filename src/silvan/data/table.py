"""Read tables of any kind into one kind of data frame.

A table is a file, a query to a database, a data frame of any library, or a pair of arrays. All become an eager
narwhals frame over the caller's own library, so nothing is copied that need not be. What cannot be a table at all
is refused here; whether the columns mean what was agreed is checked by ``encode``.

The libraries behind the frames are imported where they are needed: polars alone takes longer to import than
the rest of the package.
"""

import csv
import gzip
import math
import os
import zlib
from collections import Counter
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import narwhals as nw
import numpy as np
from narwhals.exceptions import DuplicateError

from silvan.data.sources.csv_types import narrow
from silvan.data.sources.database import read_query
from silvan.data.sources.query import Query, is_url
from silvan.errors import InputError
from silvan.util.readable import format_names

if TYPE_CHECKING:
    import polars as pl

Frame = nw.DataFrame[Any]
Array = np.ndarray[Any, np.dtype[Any]]

_SAMPLE_ROWS = 10_000
"""Rows from which the types of a CSV file are guessed."""


def read_table(source: Any, label: str = "label") -> Frame:
    """Read a table from a file, a data frame or a pair of arrays.

    Parameters
    ----------
    source
        The path of a ``.csv``, ``.csv.gz`` or ``.parquet`` file; a ``Query`` or the URL of a table in a
        database; a pandas, polars, pyarrow or other data frame that narwhals understands, lazy ones included;
        or a tuple ``(X, y)``, where the columns of an array X are called ``x0``, ``x1``, ...
    label
        What to call the column made of y.

    Notes
    -----
    In a CSV file an empty or blank cell is missing, and a column has the narrowest type that all of its cells
    fit: whole numbers, numbers, ``true`` and ``false`` in any case, or text. A column without any value is
    numeric.
    """
    query = as_query(source)
    if query is not None:
        return _checked(nw.from_native(read_query(query), eager_only=True), f"the query on {query.where}")
    if isinstance(source, str | os.PathLike):
        return _checked(_read_file(Path(source)), repr(str(source)))
    if isinstance(source, tuple):
        return _read_pair(source, label)
    frame = _read_frame(source, "a table must be a path, a query, a data frame or a tuple (X, y)")
    return _checked(frame, "the table")


def as_query(source: Any) -> Query | None:
    """Return a source as a query if it is a table in a database, None if not."""
    if is_url(source):
        return Query(source)
    return source if isinstance(source, Query) else None


def _checked(frame: Frame, what: str) -> Frame:
    """Return a frame whose columns are named by text; raise ``InputError`` if it has no rows or unusable names."""
    names = [str(name) for name in frame.columns]
    check_names(names, what)
    if not len(frame):
        raise InputError(f"{what} has columns but no rows; at least one row is needed")
    if names == list(frame.columns):
        return frame
    # pandas allows names that are not strings, and numbers them by default
    frame = frame.rename(dict(zip(frame.columns, names, strict=True)))
    if names != list(frame.columns):
        raise InputError(f"the column names of {what} have several levels; join them into one string each")
    return frame


def check_names(names: list[str], what: str) -> None:
    """Raise ``InputError`` if there are no columns, if two have the same name, or one has none."""
    if not names:
        raise InputError(f"{what} is empty: it has no columns")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(
            f"{what} has more than one column called {format_names(twice)}; give every column its own name"
        )
    if not all(name.strip() for name in names):
        position = next(i for i, name in enumerate(names, 1) if not name.strip())
        raise InputError(
            f"column {position} of {what} has no name; name it, or leave it out if it only numbers the rows"
        )


def _read_frame(source: Any, wanted: str) -> Frame:
    try:
        frame = nw.from_native(source)
    except DuplicateError:
        # pyarrow's columns are the data, its column_names the names
        names = getattr(source, "column_names", None) or source.columns
        check_names([str(name) for name in names], "the table")
        raise
    except TypeError:
        raise InputError(f"{wanted}; got {type(source).__name__}") from None
    return frame.collect() if isinstance(frame, nw.LazyFrame) else frame


def _read_file(path: Path) -> Frame:
    return nw.from_native(_read_parquet(path) if file_kind(path) == "parquet" else _read_csv(path), eager_only=True)


def file_kind(path: Path) -> Literal["csv", "parquet"]:
    """Return the format of a file, by its name; raise ``InputError`` for others."""
    if not path.is_file():
        where = "" if path.is_absolute() else f" in {str(Path.cwd())!r}"
        raise InputError(f"there is no file {str(path)!r}{where}; check the path")
    name = path.name.lower()
    if name.endswith((".csv", ".csv.gz")):
        return "csv"
    if name.endswith(".parquet"):
        return "parquet"
    raise InputError(f"{str(path)!r} should end in .csv, .csv.gz or .parquet; convert it to one of these")


def _read_parquet(path: Path) -> "pl.DataFrame":
    import polars as pl

    try:
        return pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, OSError):
        raise not_parquet(path) from None


def not_parquet(path: Path) -> InputError:
    """Return the error for a broken Parquet file; the reader's own message might quote cells."""
    return InputError(f"{str(path)!r} cannot be read as Parquet; it may be cut short or of another kind")


def _read_csv(path: Path) -> "pl.DataFrame":
    """Read with types guessed from the first rows; if a later row breaks the guess, look at every cell as text."""
    import polars as pl

    check_names(csv_header(path), repr(str(path)))
    try:
        try:
            frame = pl.read_csv(path, infer_schema_length=_SAMPLE_ROWS, glob=False)
        except pl.exceptions.ComputeError:
            frame = pl.read_csv(path, infer_schema_length=0, glob=False)
    except (pl.exceptions.PolarsError, OSError):
        raise not_csv(path) from None
    return frame.with_columns(narrow(column) for column in frame if column.dtype == pl.String)


def not_csv(path: Path) -> InputError:
    """Return the error for a broken CSV file; the reader's own message would quote cells."""
    return InputError(
        f"{str(path)!r} cannot be read as CSV; look for a row with more cells than the header, an open quote, or "
        "text that is not UTF-8"
    )


def csv_header(path: Path) -> list[str]:
    """Read the names in the first line, which polars would make unique without a warning."""
    packed = path.name.lower().endswith(".gz")
    try:
        with (gzip.open if packed else open)(path, "rt", encoding="utf-8-sig", newline="") as file:
            names = next((row for row in csv.reader(file) if row), [])
    except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error, csv.Error):
        kind = "gzipped UTF-8 text" if packed else "UTF-8 text"
        raise InputError(f"{str(path)!r} is not {kind}; save it again as such") from None
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        raise InputError(f"{str(path)!r} seems to be separated by semicolons or tabs; save it with commas")
    return names


def _read_pair(source: tuple[Any, ...], label: str) -> Frame:
    if len(source) != 2:
        raise InputError(f"a tuple must be (X, y); got {len(source)} parts")
    X, y = source
    if isinstance(X, np.ndarray | list):
        frame = _array_frame(_array(X, "X", 2))
    else:
        frame = _read_frame(X, "X must be a data frame or a two-dimensional array")
    frame = _checked(frame, "X")
    target = _array(_without_index(y), "y", 1)
    if len(frame) != len(target):
        raise InputError(f"X has {len(frame)} rows but y has {len(target)}; they must belong to the same rows")
    if label in frame.columns:
        raise InputError(f"X already has a column {label!r}; call the label something else")
    return frame.with_columns(nw.new_series(label, _uniform(target, "y"), backend=frame.implementation))


def _without_index(y: Any) -> Any:
    """Return the values of a series, since X and y belong together by position and not by index."""
    series = nw.from_native(y, series_only=True, pass_through=True)
    if not isinstance(series, nw.Series):
        return y
    values = series.to_numpy()
    if values.dtype == object:
        values = values.copy()
        values[series.is_null().to_numpy()] = None
    return values


def _array(values: Any, name: str, ndim: int) -> Array:
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths") from None
    if array.dtype.kind == "U" and not isinstance(values, np.ndarray):
        array = np.asarray(values, dtype=object)  # or one text among numbers would turn them all to text
    if array.ndim != ndim:
        shape = "two-dimensional, rows by columns" if ndim == 2 else "one-dimensional, one value a row"
        raise InputError(f"{name} must be {shape}; got {type(values).__name__} of {array.ndim} dimensions")
    if array.dtype.kind not in "biufUO":
        raise InputError(f"{name} must hold numbers or text; got {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _array_frame(X: Array) -> Frame:
    import polars as pl

    columns = {f"x{i}": _uniform(column, f"column {i} of X") for i, column in enumerate(X.T)}
    return nw.from_native(pl.DataFrame(columns), eager_only=True)


def _uniform(column: Array, name: str) -> Array | list[str | None]:
    """Return a column of one type; in an array of objects each is looked at."""
    if column.dtype.kind in "biuf":
        return np.ascontiguousarray(column)
    values = [None if value != value else value for value in column.tolist()]
    if all(value is None or isinstance(value, Real | np.bool) for value in values):
        numbers = np.array([math.nan if value is None else value for value in values])
        return numbers.astype(np.float64) if numbers.dtype == object else numbers
    if all(value is None or isinstance(value, str) for value in values):
        return values
    raise InputError(f"{name} mixes types; make it all numbers or all text")
