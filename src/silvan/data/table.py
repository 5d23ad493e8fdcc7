"""Read tables of any kind into one kind of data frame.

A table is a file, a database query, a data frame of any library, or a pair of arrays. All become an eager narwhals
frame over the caller's library, so that nothing is copied unnecessarily. Objects that are no table are refused here;
``encode`` checks whether columns match the schema.

The libraries behind the frames are imported where they are needed, because polars alone takes longer to import than the
rest of the package.
"""

from typing import Any

from silvan.data.array_table import read_pair
from silvan.data.column_types import Kinds
from silvan.data.schema import Schema
from silvan.data.stored_table import open_stored
from silvan.data.typed_table import Frame, TypedTable, checked, describe_frame, read_frame
from silvan.errors import SchemaError


def read_table(source: Any, label: str = "label", schema: Schema | None = None) -> Frame:
    """Read a table from a file, a data frame or a pair of arrays.

    Parameters
    ----------
    source
        The path of a file, or a ``Table`` that says how the file is written; a ``Query`` or the URL of a table in a
        database; a pandas, polars, pyarrow or other data frame that narwhals understands, lazy ones included;
        or a tuple ``(X, y)``, where the columns of an array X are called ``x0``, ``x1``, ...
    label
        The name of the column made of y.
    schema
        The meaning of the columns, if known. Cells of categories and classes are then text if the source declares no
        types, and columns with mixed types are no error.

    Notes
    -----
    In a CSV file, empty and blank cells are missing, and a column has the narrowest type that fits all its cells: whole
    numbers, numbers, ``true`` and ``false`` in any case, or text. Among numbers, markers such as ``NA`` are missing,
    and any other text is an error. A column without values is numeric.
    """
    table = open_table(source, label, by_schema=schema is not None)
    if schema is not None:
        table.check_clear(schema)
        return table.by(schema)
    for complaint in table.refused.values():
        raise SchemaError(complaint)
    return table.frame


def open_table(source: Any, label: str = "label", kinds: Kinds | None = None, *, by_schema: bool = False) -> TypedTable:
    """Read a table with types that fit all rows, and record columns that need a schema.

    With ``by_schema``, a schema decides about columns, so data frames are taken as they are.
    """
    kinds = kinds or {}
    stored = open_stored(source, kinds)
    if stored is not None:
        return stored.whole()
    if isinstance(source, tuple):
        return read_pair(source, label, kinds)
    frame = read_frame(source, "a table must be a path, a query, a data frame or a tuple (X, y)")
    frame = checked(frame, "the table")
    return TypedTable(frame, {}) if by_schema else describe_frame(frame, kinds)
