"""Our SQLite files: intact after a crash, readable only by their owner, never confused with other programs' files."""

import contextlib
import os
import sqlite3
import time
from pathlib import Path

from silvan.errors import InputError
from silvan.util.files import keep_private

_MEMORY = ":memory:"  # SQLite's address of a database in memory
_WAITS = (0.01, 0.05, 0.2, 1.0)  # seconds before another attempt to switch to a write-ahead log


def open_database(
    path: str | Path | None, what: str, application: int, tables: str, timeout: float = 5.0
) -> sqlite3.Connection:
    """Open a database file, or make it with these tables; any thread may use the connection, one at a time.

    Only its owner may read it: one that others could read is closed to them.

    ``what`` names the file in errors, ``application`` is the number that marks our files, None is a database in
    memory, and ``timeout`` is how many seconds to wait for another process. Raises ``InputError`` if there can be no
    such file, and ``sqlite3.DatabaseError`` if the file is damaged or another program's.
    """
    address = _MEMORY if path is None else str(path)
    files = [] if address == _MEMORY else [address, f"{address}-wal", f"{address}-shm"]
    try:
        if files:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(address, os.O_CREAT | os.O_EXCL, 0o600))
        db = sqlite3.connect(address, isolation_level=None, check_same_thread=False, timeout=timeout)
    except (sqlite3.Error, FileNotFoundError, PermissionError, NotADirectoryError):
        raise InputError(f"{what} {str(path)!r} cannot be opened; is there such a folder?") from None
    try:
        _check_ours(db, application)
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                keep_private(file)
        _prepare(db, application, tables)
    except BaseException:
        db.close()
        raise
    return db


def _check_ours(db: sqlite3.Connection, application: int) -> None:
    """Raise ``sqlite3.DatabaseError`` if a database is another program's."""
    db.execute("BEGIN")  # both are read from one state: another process may be creating the tables
    try:
        whose = db.execute("PRAGMA application_id").fetchone()[0]
        empty = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")
    if whose != application and not (empty and whose == 0):
        raise sqlite3.DatabaseError("it is a database of something else")


def _prepare(db: sqlite3.Connection, application: int, tables: str) -> None:
    """Make the tables of a new database, all at once."""
    for wait in (*_WAITS, None):
        try:
            db.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:  # of two concurrent changes, one does not get to wait
            if wait is None or error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
            time.sleep(wait)
    db.execute("PRAGMA synchronous=FULL")
    db.execute("BEGIN IMMEDIATE")
    try:
        db.execute(f"PRAGMA application_id={application}")
        for statement in tables.split(";"):
            db.execute(statement)
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
