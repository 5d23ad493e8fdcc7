"""SQLite has types only for values, not for columns, so column types are first determined over all rows.

A column holds whole numbers, numbers or text. Columns that mix these, or hold bytes, are read as text.
"""

import sqlite3
import time
from typing import Any

from silvan.data.readers.query import Query, Retyped, quoted
from silvan.errors import InputError

_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_TRANSACTION,
}
_OF_THE_QUERY = ("no such ", "near ", "incomplete input", "ambiguous column", "not authorized", "You can only execute")
"""The beginnings of errors that cannot contain values."""


def connect(driver: Any, query: Query, _: str | None) -> sqlite3.Connection:
    """Open a file read-only."""
    path = query.path
    if not path.is_file():
        raise InputError(
            f"there is no database {str(path)!r}; check the path (sqlite:///relative, sqlite:////absolute)"
        )
    database: sqlite3.Connection = driver.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
    database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY)
    return database


def limit(database: sqlite3.Connection, seconds: float) -> None:
    """End statements after so many seconds from now, all together."""
    end = time.monotonic() + seconds
    database.set_progress_handler(lambda: time.monotonic() > end, _STEPS)


def said(error: BaseException) -> tuple[str, str]:
    """Return the name of an error, and its text if it concerns the query."""
    text = str(error)
    return getattr(error, "sqlite_errorname", ""), text if text.startswith(_OF_THE_QUERY) else ""


_KINDS = ("= 'integer'", "= 'real'", "= 'text'", "= 'blob'")
_EXACT = 1 << 53
_STEPS = 100_000  # of SQLite's machine, between two looks at the clock


def find_types(cursor: Any, query: Query, names: list[str]) -> tuple[dict[str, type], Retyped]:
    """Determine the type of each column; ``object`` for those read as text."""
    import polars as pl

    asked = [f"max(typeof({quoted(name)}) {kind})" for name in names for kind in _KINDS]
    asked += [
        f"max(typeof({name}) = 'integer' AND {name} NOT BETWEEN {-_EXACT} AND {_EXACT})" for name in map(quoted, names)
    ]
    cursor.execute(f"{query.before}SELECT {', '.join(asked)} FROM {query.select()}")  # noqa: S608, the owner's own query
    (found,) = cursor.fetchall()
    types: dict[str, type] = {}
    retyped, mixed = Retyped({}, {}), set()
    for i, name in enumerate(names):
        whole, real, text, blob = found[len(_KINDS) * i : len(_KINDS) * (i + 1)]
        if blob:
            retyped.refused[name] = f"column {name!r} holds bytes; leave it out of the query, or convert it there"
        elif text and (whole or real):
            mixed.add(name)
        elif whole and real and found[len(_KINDS) * len(names) + i]:
            retyped.types[name] = pl.Float64  # long whole numbers would lose digits as floats
        as_text = text or blob or name in retyped.types
        types[name] = object if as_text else int if whole and not real else float
    return types, retyped._replace(mixed=frozenset(mixed))
