"""Writing files so that a crash leaves the old content or the new, and recognising full disks."""

import contextlib
import errno
import os
import sqlite3
import tempfile
from pathlib import Path

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def has_no_room(error: BaseException) -> bool:
    """Whether an error means that the disk is full, so that writing may work later."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def no_room(path: str | Path | None) -> OSError:
    """Return the error for a full disk."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def write_whole(path: str | Path, data: bytes) -> None:
    """Write a file: to a temporary name beside it, flushed to disk, then renamed."""
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
