"""Locks of folders between processes; the system releases a lock when its process ends, however it ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silvan.errors import FederationError

_LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path, *, wait: bool = False) -> Iterator[None]:
    """Lock a folder; wait while another process holds the lock, or raise ``FederationError`` if ``wait`` is not set."""
    handle = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FederationError("another job of this study is running") from None
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Whether some process holds the lock of a folder."""
    try:
        with lock_folder(folder):
            return False
    except FederationError:
        return True
