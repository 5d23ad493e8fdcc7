"""Read tables of any kind into one kind of data frame.

A table is a file, a query to a database, a data frame of any library, or a pair of arrays. All become an eager
narwhals frame over the caller's own library, so nothing is copied that need not be. What cannot be a table at all
is refused here; whether the columns mean what was agreed is checked by ``encode``.

The libraries behind the frames are imported where they are needed: polars alone takes longer to import than
the rest of the package.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import narwhals as nw

from silvan.data.array_table import read_pair
from silvan.data.cells import numbers_of
from silvan.data.column_types import Kinds, convert
from silvan.data.readers.database import read_batches
from silvan.data.readers.delimited import Delimited
from silvan.data.readers.excel import Sheet
from silvan.data.readers.query import Query, Retyped, is_url
from silvan.data.readers.table_file import Table, as_table
from silvan.data.schema import Schema
from silvan.data.typed_table import (
    Frame,
    TypedTable,
    check_names,
    checked,
    dates_in,
    describe_frame,
    look_at_texts,
    read_frame,
    settle,
)
from silvan.errors import InputError, SchemaError

if TYPE_CHECKING:
    import polars as pl

_SAMPLE_ROWS = 10_000
"""Rows from which the types of a CSV file are guessed."""

PIECE = 1 << 22
"""Bytes of a file that are looked at together, where its cells are looked at as they are written."""


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
        table.check_clear(schema)
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
        return read_pair(source, label, kinds)
    frame = read_frame(source, "a table must be a path, a query, a data frame or a tuple (X, y)")
    frame = checked(frame, "the table")
    return TypedTable(frame, {}) if by_schema else describe_frame(frame, kinds)


def _read_database(query: Query, kinds: Kinds) -> TypedTable:
    import polars as pl

    parts: list[pl.DataFrame] = []
    retyped = read_batches(query, parts.append)
    raw = pl.concat(parts)
    checked(nw.from_native(raw, eager_only=True), f"the query on {query.where}")
    types, refused, dates = settle_query([raw], kinds, raw.columns, retyped)
    typed = raw.with_columns([convert(raw[name], dtype) for name, dtype in types.items()])
    frame = nw.from_native(typed, eager_only=True)
    return TypedTable(
        frame, refused, lambda names: [raw[name] for name in names if name in types], dates | dates_in(frame.schema)
    )


def settle_query(
    frames: "Iterable[pl.DataFrame]", kinds: Kinds, names: Collection[str], retyped: Retyped
) -> tuple[dict[str, Any], dict[str, str], frozenset[str]]:
    """Return the types of a query's columns of text, what cannot be described, and which hold dates."""
    found = look_at_texts(frames, kinds, set(names) - retyped.mixed)
    for cells in found.values():
        cells.others.clear()  # the rows of a query have no numbers that anybody knows
    types, refused, dates = settle({name: cells for name, cells in found.items() if name not in retyped.types})
    return types | retyped.types, refused | retyped.refused, dates


def as_query(source: Any) -> Query | None:
    """Return a source as a query if it is a table in a database, None if not."""
    if is_url(source):
        return Query(source)
    return source if isinstance(source, Query) else None


def _read_file(table: Table, kinds: Kinds) -> TypedTable:
    import polars as pl

    kind = table.kind()
    if kind in ("parquet", "feather"):
        frame = checked(nw.from_native(read_arrow(table), eager_only=True), table.where)
        return describe_frame(frame, kinds)._replace(notes=tuple(table.renaming))
    source = open_cells(table)
    check_names(source.header(), table.where)
    raw = source.typed(_SAMPLE_ROWS)
    found = look_at_texts([raw], kinds)
    typed = raw.with_columns(convert(raw[name], cells.narrowest()) for name, cells in found.items())
    _, refused, dates = settle(found)
    frame = checked(nw.from_native(typed, eager_only=True), table.where)
    refused |= (unclear := source.complaints())
    texts = lambda names: [convert(column, pl.String) for column in source.frame(names)]  # noqa: E731
    return TypedTable(frame, refused, texts, dates, tuple(source.notes), lambda: source.frames(PIECE), unclear)


def open_cells(table: Table) -> "Delimited | Sheet":
    """Open a file whose cells are text: a text file, or a sheet of an Excel file."""
    return Sheet(table) if table.kind() == "excel" else Delimited(table)


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
    return without(frame.rename(table.renamed(frame.columns)), table.missing)


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
