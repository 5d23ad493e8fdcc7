"""Read tables of any kind into one kind of data frame.

A table is a file, a query to a database, a data frame of any library, or a pair of arrays. All become an eager
narwhals frame over the caller's own library, so nothing is copied that need not be. What cannot be a table at all
is refused here; whether the columns mean what was agreed is checked by ``encode``.

Where a source has no types of its own, a column gets the narrowest that all its cells fit, so one row can change it.
With a schema the cells of categories and classes therefore come as the text of each. What a column of text or objects
is, ``column_types`` decides.

The libraries behind the frames are imported where they are needed: polars alone takes longer to import than
the rest of the package.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import narwhals as nw
import numpy as np
from narwhals.exceptions import DuplicateError

from silvan.data.cells import (
    STRANGE,
    cell_numbers,
    distinct,
    holds_objects,
    is_dates,
    is_text,
    numbers_of,
    plain_value,
    text_columns,
    value_text,
)
from silvan.data.column_types import CellTypes, Kinds, convert, kind_of
from silvan.data.schema import Schema
from silvan.data.sources.database import read_query
from silvan.data.sources.delimited import Delimited
from silvan.data.sources.excel import Sheet
from silvan.data.sources.query import Query, Retyped, is_url
from silvan.data.sources.table_file import Table, as_table
from silvan.errors import InputError, SchemaError
from silvan.util.readable import format_names

if TYPE_CHECKING:
    import polars as pl

Frame = nw.DataFrame[Any]
Array = np.ndarray[Any, np.dtype[Any]]

_SAMPLE_ROWS = 10_000
"""Rows from which the types of a CSV file are guessed."""


class TypedTable(NamedTuple):
    """A table, and the way back to its cells as they were where types come from all rows.

    ``refused`` says of columns without one type why: their cells are texts. ``texts`` reads the cells of columns as
    text, or as the objects they are, those that have a type of their own left out. ``dates`` are the columns of dates.
    """

    frame: Frame
    refused: dict[str, str]
    texts: "Callable[[list[str]], list[Any]] | None" = None
    dates: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()  # what was found out of how a file is written

    def by(self, schema: Schema) -> Frame:
        """Return the table with types in which every cell can be read by itself."""
        return self.with_texts(text_columns(schema))

    def with_texts(self, names: Collection[str]) -> Frame:
        """Return the table with the cells of some columns as text, where the source has no types of its own."""
        typed = [name for name in self.frame.columns if name in names and not is_text(self.frame[name])]
        if self.texts is None or not typed:
            return self.frame
        texts = [nw.from_native(text, series_only=True) for text in self.texts(typed)]
        backend = self.frame.implementation
        texts = [
            text
            if text.implementation == backend
            else nw.new_series(text.name, text.to_list(), nw.String, backend=backend)
            for text in texts
        ]
        return self.frame.with_columns(*texts)


def read_table(source: Any, label: str = "label", schema: Schema | None = None) -> Frame:
    """Read a table from a file, a data frame or a pair of arrays.

    Parameters
    ----------
    source
        The path of a file, or a ``Table`` that says how the file is written; a ``Query`` or the URL of a table in a
        database; a pandas, polars, pyarrow or other data frame that narwhals understands, lazy ones included;
        or a tuple ``(X, y)``, where the columns of an array X are called ``x0``, ``x1``, ...
    label
        What to call the column made of y.
    schema
        What the columns mean, if that is known. The cells of categories and classes then come as text where the source
        has no types of its own, and a column of several types is no error.

    Notes
    -----
    In a CSV file an empty or blank cell is missing, and a column has the narrowest type that all of its cells
    fit: whole numbers, numbers, ``true`` and ``false`` in any case, or text. Among numbers, markers such as ``NA`` are
    missing, and any other text is an error. A column without any value is numeric.
    """
    table = open_table(source, label, by_schema=schema is not None)
    if schema is not None:
        return table.by(schema)
    for complaint in table.refused.values():
        raise SchemaError(complaint)
    return table.frame


def open_table(source: Any, label: str = "label", kinds: Kinds | None = None, *, by_schema: bool = False) -> TypedTable:
    """Read a table, with the types that all rows fit; what it cannot be without a schema is noted.

    ``by_schema`` says that a schema decides what columns are, so that data frames are taken as they come.
    """
    kinds = kinds or {}
    query = as_query(source)
    if query is not None:
        return _read_database(query, kinds)
    file = as_table(source)
    if file is not None:
        return _read_file(file, kinds)
    if isinstance(source, tuple):
        return _read_pair(source, label, kinds)
    frame = _read_frame(source, "a table must be a path, a query, a data frame or a tuple (X, y)")
    frame = _checked(frame, "the table")
    return TypedTable(frame, {}) if by_schema else describe_frame(frame, kinds)


def _read_database(query: Query, kinds: Kinds) -> TypedTable:
    raw, retyped = read_query(query)
    frame = _checked(nw.from_native(raw, eager_only=True), f"the query on {query.where}")
    found: dict[str, CellTypes] = {}
    for name, column in text_of(raw).items():
        found[name] = CellTypes(kind_of(kinds, name), typed=name not in retyped.mixed)
        found[name].add(column)
    types, refused, dates = retyped_columns(found, retyped)
    typed = raw.with_columns([convert(raw[name], dtype) for name, dtype in types.items()])
    frame = nw.from_native(typed, eager_only=True)
    return TypedTable(
        frame, refused, lambda names: [raw[name] for name in names if name in types], dates | dates_in(frame.schema)
    )


def text_of(frame: "pl.DataFrame") -> "dict[str, pl.Series]":
    """Return the columns of text."""
    import polars as pl

    return {column.name: column for column in frame if column.dtype == pl.String}


def retyped_columns(
    found: dict[str, CellTypes], retyped: Retyped
) -> tuple[dict[str, Any], dict[str, str], frozenset[str]]:
    """Return the types of a query's columns of text, what cannot be described, and which hold dates."""
    import polars as pl

    types, refused = dict(retyped.types), {}
    for name, cells in found.items():
        if name in types:
            continue
        cells.others.clear()  # the rows of a query have no numbers that anybody knows
        complaint = retyped.refused.get(name) or cells.complaint(name)
        if complaint is not None:
            refused[name] = complaint
        elif cells.narrowest() != pl.String:
            types[name] = cells.narrowest()
    return types, refused, frozenset(name for name, cells in found.items() if cells.found == "date")


def dates_in(schema: Any) -> frozenset[str]:
    """Return the columns of a frame that are dates by their type."""
    return frozenset(name for name, dtype in schema.items() if dtype in (nw.Date, nw.Datetime))


def describe_frame(frame: Frame, kinds: Kinds) -> TypedTable:
    """Look at the columns of text and of objects: numbers with markers among them become numbers."""
    refused: dict[str, str] = {}
    typed: list[Any] = []
    dates = set(dates_in(frame.schema))
    for name in frame.columns:
        series = frame[name]
        objects = holds_objects(series) and series.dtype == nw.Object
        if not objects and series.dtype != nw.String:
            continue
        values, rows = _counted(series, objects)
        if STRANGE in values:
            dates |= {name} if is_dates(series) else set()
            continue  # what cannot be used at all is for ``encode`` to say
        cells = CellTypes(kind_of(kinds, name), typed=True)
        cells.add_values(values, rows)
        if cells.found == "date":
            dates.add(name)
        if cells.found == "numeric" and not cells.all_numbers:
            cells.others = (np.flatnonzero(cell_numbers(series)[1])[:3] + 1).tolist()
        complaint = cells.complaint(name)
        if complaint is not None:
            refused[name] = complaint
        new = _retyped(series, cells, objects)
        typed += [] if new is None else [new]
    if not typed:
        return TypedTable(frame, refused, None, frozenset(dates))
    names = {series.name for series in typed}
    texts = lambda wanted: [frame[name].to_native() for name in wanted if name in names]  # noqa: E731
    return TypedTable(frame.with_columns(*typed), refused, texts, frozenset(dates))


def _counted(series: Any, objects: bool) -> tuple[list[Any], list[int]]:
    """Return the distinct values of a column and how many rows have each."""
    if objects:
        values, places = distinct(series)
        return values, np.bincount(places[places >= 0], minlength=len(values)).tolist()
    counts = series.drop_nulls().alias("word").value_counts(name="rows")
    return counts["word"].to_list(), counts["rows"].to_list()


def _retyped(series: Any, cells: CellTypes, objects: bool) -> Any:
    """Return a column of text or objects with the type that it should have; None if it has that."""
    import polars as pl

    backend = series.implementation
    if cells.narrowest() == pl.String or not (cells.present or cells.markers):
        if not objects:
            return None
        return nw.new_series(series.name, list(map(value_text, series.to_list())), nw.String, backend=backend)
    numbers = [None if n != n else n for n in cell_numbers(series)[0].tolist()]
    return nw.new_series(series.name, numbers, nw.Float64, backend=backend)


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


def _read_file(table: Table, kinds: Kinds) -> TypedTable:
    kind = table.kind()
    if kind in ("parquet", "feather"):
        frame = _checked(nw.from_native(read_arrow(table), eager_only=True), table.where)
        return describe_frame(frame, kinds)
    source = open_cells(table)
    check_names(source.header(), table.where)
    raw = source.typed(_SAMPLE_ROWS)
    found = {name: CellTypes(kind_of(kinds, name)) for name in text_of(raw)}
    for name, cells in found.items():
        cells.add(raw[name])
    typed = raw.with_columns(convert(raw[name], cells.narrowest()) for name, cells in found.items())
    refused, dates = complaints(found)
    frame = _checked(nw.from_native(typed, eager_only=True), table.where)
    refused |= source.complaints()
    return TypedTable(frame, refused, lambda names: _texts(source, names), dates, tuple(source.notes))


def open_cells(table: Table) -> "Delimited | Sheet":
    """Open a file whose cells are text: a text file, or a sheet of an Excel file."""
    return Sheet(table) if table.kind() == "excel" else Delimited(table)


def _texts(source: "Delimited | Sheet", names: list[str]) -> "list[pl.Series]":
    """Read some columns of a text file again, as text."""
    import polars as pl

    frame = source.frame(names)
    return [convert(frame[name], pl.String) for name in names]


def complaints(found: dict[str, CellTypes]) -> tuple[dict[str, str], frozenset[str]]:
    """Return why some columns of text cannot be described, and which of them hold dates."""
    refused = {name: text for name, cells in found.items() if (text := cells.complaint(name)) is not None}
    return refused, frozenset(name for name, cells in found.items() if cells.found == "date")


def read_arrow(table: Table) -> "pl.DataFrame":
    """Read a Parquet or Feather file whole."""
    import polars as pl

    read: Any = pl.read_parquet if table.kind() == "parquet" else pl.read_ipc
    try:
        if table.is_zip:
            with table.open() as file:
                frame = read(file.read())
        else:
            frame = read(table.file, **({"glob": False} if table.kind() == "parquet" else {}))
    except (pl.exceptions.PolarsError, OSError):
        raise not_arrow(table) from None
    return without(frame, table.missing)


def without(frame: "pl.DataFrame", missing: Sequence[str]) -> "pl.DataFrame":
    """Return a typed table without the values that are said to mean missing."""
    import polars as pl

    if not missing:
        return frame
    numbers = [number for number in numbers_of(list(missing)) if number is not None and number == number]
    columns = []
    for column in frame:
        if column.dtype == pl.String:
            columns.append(column.set(column.str.strip_chars().is_in(list(missing)), None))
        elif column.dtype.is_numeric() and numbers:
            gone = column.cast(pl.Float64).is_in([float(number) for number in numbers])
            columns.append(pl.select(pl.when(~gone).then(column)).to_series().alias(column.name))
    return frame.with_columns(columns)


def not_arrow(table: Table) -> InputError:
    """Return the error for a broken Parquet or Feather file; the reader's own message might quote cells."""
    kind = table.kind().capitalize()
    return InputError(f"{table.where} cannot be read as {kind}; it may be cut short or of another kind")


def _read_pair(source: tuple[Any, ...], label: str, kinds: Kinds) -> TypedTable:
    if len(source) != 2:
        raise InputError(f"a tuple must be (X, y); got {len(source)} parts")
    X, y = source
    columns: dict[str, Array] = {}
    refused: dict[str, str] = {}
    if isinstance(X, np.ndarray | list):
        columns = {f"x{i}": column for i, column in enumerate(_array(X, "X", 2).T)}
        frame = _checked(_array_frame(columns, refused, kinds), "X")
        dates = frozenset(name for name in frame.columns if is_dates(frame[name], kind_of(kinds, name)))
        described = TypedTable(frame, refused, dates=dates)
    else:
        frame = _checked(_read_frame(X, "X must be a data frame or a two-dimensional array"), "X")
        described = describe_frame(frame, kinds)
        refused |= described.refused
    target = _array(_without_index(y), "y", 1)
    if len(frame) != len(target):
        raise InputError(f"X has {len(frame)} rows but y has {len(target)}; they must belong to the same rows")
    if label in frame.columns:
        raise InputError(f"X already has a column {label!r}; call the label something else")
    values = _uniform(target, label, "y", refused, kinds)
    made = described.frame.with_columns(nw.new_series(label, values, backend=frame.implementation))

    def texts(names: list[str]) -> list[Any]:
        own = [] if described.texts is None else described.texts([name for name in names if name != label])
        return [*own, *_object_texts({**columns, label: target}, names)]

    return TypedTable(made, refused, texts, described.dates)


def _object_texts(columns: dict[str, Array], names: list[str]) -> "list[pl.Series]":
    """Return the texts of columns of objects, each by itself."""
    import polars as pl

    objects = {name: columns[name] for name in names if name in columns and columns[name].dtype.kind == "O"}
    return [pl.Series(name, list(map(value_text, column)), pl.String) for name, column in objects.items()]


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
    if not isinstance(values, np.ndarray) and _types_differ(values, array):
        array = np.asarray(values, dtype=object)  # or one text among numbers would turn them all to text
    if array.ndim != ndim:
        shape = "two-dimensional, rows by columns" if ndim == 2 else "one-dimensional, one value a row"
        raise InputError(f"{name} must be {shape}; got {type(values).__name__} of {array.ndim} dimensions")
    if array.dtype.kind not in "biufUO":
        raise InputError(f"{name} must hold numbers or text; got {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _types_differ(values: Any, array: Array) -> bool:
    """Whether numpy made text of a list, or one type of several, and so values what they were not."""
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2):
        return array.dtype.kind == "U"
    rows = [values] if array.ndim == 1 else values
    return len({type(value) for row in rows for value in row}) > 1


def _array_frame(columns: dict[str, Array], refused: dict[str, str], kinds: Kinds) -> Frame:
    import polars as pl

    parts = {
        name: _uniform(column, name, f"column {i} of X", refused, kinds)
        for i, (name, column) in enumerate(columns.items())
    }
    return nw.from_native(pl.DataFrame(parts), eager_only=True)


def _uniform(column: Array, name: str, what: str, refused: dict[str, str], kinds: Kinds) -> Array | list[str | None]:
    """Return a column of one type; in an array of objects each is looked at, and if they differ they become text."""
    if column.dtype.kind in "biuf":
        return np.ascontiguousarray(column)
    values = [plain_value(value) for value in column.tolist()]
    present = [value for value in values if value is not None]
    if STRANGE in present:
        refused[name] = f"{what} mixes types; make it all numbers or all text"
        return [value_text(value) for value in values]
    cells = CellTypes(kind_of(kinds, name), typed=True)
    cells.add_values(present, [1] * len(present))
    if not any(isinstance(value, str) for value in present):
        numbers = np.array([math.nan if value is None else value for value in values])
        return numbers.astype(np.float64) if numbers.dtype == object else numbers
    texts = [value_text(value) for value in values]
    if cells.found in ("numeric", "empty") and cells.all_numbers:
        return np.array([math.nan if n is None else float(n) for n in numbers_of([text or "" for text in texts])])
    known = numbers_of([text or "0" for text in texts])
    cells.others = [row for row, number in enumerate(known, 1) if number is None][:3]
    if (complaint := cells.complaint(name)) is not None:
        refused[name] = complaint
    return texts
