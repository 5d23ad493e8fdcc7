"""Files that a crash leaves whole: written at once, or kept by SQLite; and disks that are full."""

import contextlib
import errno
import os
import sqlite3
import tempfile
from pathlib import Path

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def has_no_room(error: BaseException) -> bool:
    """Whether something could not be written because a disk is full: it can be, later."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def no_room(path: str | Path | None) -> OSError:
    """Say that a disk is full."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def prepare_database(db: sqlite3.Connection, application: int, tables: str) -> None:
    """Make the tables of a new database that outlives crashes; refuse one that is something else's."""
    whose = db.execute("PRAGMA application_id").fetchone()[0]
    empty = db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] == 0
    if whose != application and not (empty and whose == 0):
        raise sqlite3.DatabaseError("it is a database of something else")
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute(f"PRAGMA application_id={application}")
    db.executescript(tables)


def write_whole(path: str | Path, data: bytes) -> None:
    """Write to a temporary name beside the target, flush to disk, then rename over it."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
