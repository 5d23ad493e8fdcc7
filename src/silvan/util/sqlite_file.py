"""SQLite files of our own: written so that a crash leaves them whole, and never mixed up with other programs' files."""

import sqlite3
from pathlib import Path

from silvan.errors import InputError


def open_database(
    path: str | Path | None, what: str, application: int, tables: str, timeout: float = 5.0
) -> sqlite3.Connection:
    """Open a database file, or make it with these tables; any thread may use the connection, one at a time.

    ``what`` names the file in errors, ``application`` is the number that marks our files, None is a database in
    memory, and ``timeout`` is how many seconds to wait for another process. Raises ``InputError`` if there can be no
    such file, and ``sqlite3.DatabaseError`` if the file is damaged or another program's.
    """
    address = ":memory:" if path is None else str(path)
    try:
        db = sqlite3.connect(address, isolation_level=None, check_same_thread=False, timeout=timeout)
    except sqlite3.Error:
        raise InputError(f"{what} {str(path)!r} cannot be opened; is there such a folder?") from None
    try:
        _prepare(db, application, tables)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, application: int, tables: str) -> None:
    """Make the tables of a new database; raise ``sqlite3.DatabaseError`` if it is another program's."""
    whose = db.execute("PRAGMA application_id").fetchone()[0]
    empty = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0
    if whose != application and not (empty and whose == 0):
        raise sqlite3.DatabaseError("it is a database of something else")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute(f"PRAGMA application_id={application}")
    db.executescript(tables)
