"""Locks of folders between processes; the system releases a lock when its process ends, however it ends."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silvan.errors import FederationError

_LOCK = ".lock"
_PAUSE = 0.02

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


@contextmanager
def lock_folder(folder: Path, *, wait: float = 0.0) -> Iterator[None]:
    """Lock a folder; raise ``FederationError`` if another holds the lock for ``wait`` seconds (``math.inf``: never)."""
    handle = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        end = time.monotonic() + wait
        while not _take(handle):
            if time.monotonic() >= end:
                raise FederationError("another job of this study is running")
            time.sleep(_PAUSE)
        yield
    finally:
        os.close(handle)


def _take(handle: int) -> bool:
    """Take a lock; return whether it was free."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_locked(folder: Path) -> bool:
    """Whether some process holds the lock of a folder."""
    try:
        with lock_folder(folder):
            return False
    except FederationError:
        return True
