"""Read a query from an SQLite file.

SQLite has no types of columns, only of values. So a column's type is found first, over all rows: whole numbers,
numbers, or text. Values of a column that mixes them, or holds bytes, come as the text of each.
"""

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from silvan.data.cells import value_text
from silvan.data.sources.query import Query, Retyped, quoted
from silvan.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_CELL = 96
"""Bytes that a value takes while it is read, about."""

_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_TRANSACTION,
}


def read_sqlite(query: Query, sink: Callable[["pl.DataFrame"], object], room: int) -> Retyped:
    """Read all rows of a query in batches."""
    path = query.path
    if not path.is_file():
        raise InputError(
            f"there is no database {str(path)!r}; check the path (sqlite:///relative, sqlite:////absolute)"
        )
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
        ) as database:
            database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY)
            database.execute("BEGIN")  # one state of the database for all that follows
            return _read(database, query, sink, room)
    except sqlite3.Error as error:
        raise InputError(_explanation(error, query)) from None


def _explanation(error: sqlite3.Error, query: Query) -> str:
    """Return the text of an error; SQLite's own words are repeated only where no value can be in them."""
    text = str(error)
    if text.startswith(("no such table", "no such column", "near ", "incomplete input", "ambiguous column")):
        return f"the query on {query.where} cannot be run: {text}; correct the query or the name"
    if "not authorized" in text or "prohibited" in text or "readonly" in text:
        return f"the query on {query.where} would write or change settings; a site's database is only read"
    if "not a database" in text or "malformed" in text:
        return f"{query.where} is not an SQLite database, or is damaged"
    if "locked" in text:
        return f"{query.where} is being written by another program; try again when it is done"
    return f"{query.where} cannot be read ({getattr(error, 'sqlite_errorname', 'unknown error')})"


def _read(database: sqlite3.Connection, query: Query, sink: Callable[["pl.DataFrame"], object], room: int) -> Retyped:
    import polars as pl

    source = query.select()
    described = database.execute(f"SELECT * FROM {source} LIMIT 0").description  # noqa: S608, the owner's own query
    names = [column[0] for column in described]
    # of two columns of a name the second comes as "name:1"
    query.check_columns([re.sub(r":\d+$", "", name) if ":" in name and not query.is_table else name for name in names])
    types, retyped = _types(database, source, names)
    order = ", ".join(map(quoted, names))
    cursor = database.execute(f"SELECT * FROM {source} ORDER BY {order}")  # noqa: S608
    size, first = max(1, room // (_CELL * len(names))), True
    while (rows := cursor.fetchmany(size)) or first:
        columns = zip(*rows, strict=True) if rows else [()] * len(names)
        sink(pl.DataFrame([_column(*parts) for parts in zip(names, columns, types, strict=True)]))
        first = False
    return retyped


def _column(name: str, values: Any, dtype: "pl.DataType") -> "pl.Series":
    import polars as pl

    if dtype == pl.Float64:
        values = [None if value is None else float(value) for value in values]
    if dtype == pl.String:
        values = list(map(value_text, values))
    return pl.Series(name, values, dtype)


_KINDS = ("= 'integer'", "= 'real'", "= 'text'", "= 'blob'")
_EXACT = 1 << 53


def _types(database: sqlite3.Connection, source: str, names: list[str]) -> tuple[list[Any], Retyped]:
    """Find the type of every column."""
    import polars as pl

    asked = [f"max(typeof({quoted(name)}) {kind})" for name in names for kind in _KINDS]
    asked += [
        f"max(typeof({name}) = 'integer' AND {name} NOT BETWEEN {-_EXACT} AND {_EXACT})" for name in map(quoted, names)
    ]
    found = database.execute(f"SELECT {', '.join(asked)} FROM {source}").fetchone()  # noqa: S608
    types: list[Any] = []
    retyped, mixed = Retyped({}, {}), set()
    for i, name in enumerate(names):
        whole, real, text, blob = found[len(_KINDS) * i : len(_KINDS) * (i + 1)]
        if blob:
            retyped.refused[name] = (
                f"column {name!r} holds bytes; leave it out of the query, or say in it what you want of it"
            )
        elif text and (whole or real):
            mixed.add(name)
        elif whole and real and found[len(_KINDS) * len(names) + i]:
            retyped.types[name] = pl.Float64  # as floats, long whole numbers would not be what they are
        as_text = text or blob or name in retyped.types
        types.append(pl.String if as_text else pl.Int64 if whole and not real else pl.Float64)
    return types, retyped._replace(mixed=frozenset(mixed))
