"""Holding a run folder: two jobs of one study do not run at once, and whoever waits can see whether one does."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silvan.errors import FederationError

_LOCK = ".lock"


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold a folder; refuse if another process does. Whatever becomes of this one, it lets go at its end."""
    handle = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise FederationError("another job of this study is running") from None
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool:
    """Whether some process holds a folder."""
    try:
        with hold(folder):
            return False
    except FederationError:
        return True
