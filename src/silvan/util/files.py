"""Writing files so that a crash leaves the old or the new content; names and permissions of files; full disks."""

import contextlib
import errno
import logging
import os
import sqlite3
import stat
import tempfile
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from silvan.errors import FormatError, InputError

log = logging.getLogger("silvan.files")
log.addHandler(logging.NullHandler())

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions for unreadable JSON: damaged, unrelated, or maliciously nested."""

Content = TypeVar("Content")

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def has_no_room(error: BaseException) -> bool:
    """Whether an error means that the disk is full, so that writing may work later."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
    return isinstance(error, OSError) and error.errno in _NO_ROOM


def no_room(path: str | Path | None) -> OSError:
    """Return the error for a full disk."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def file_name(name: str) -> str:
    """Return a name, such as a site's, as a file name that stays in its folder and is not hidden there."""
    quoted = quote(name, safe=" ")
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted


def check_private(path: str | Path) -> None:
    """Raise ``InputError`` if others than a file's owner may read or change it."""
    if os.name == "posix" and stat.S_IMODE(Path(path).stat().st_mode) & 0o077:
        raise InputError(
            f"{path}: others on this machine can read or change this key; if nobody did, `chmod 600` it, otherwise "
            "make a new one and tell those who know the old one"
        )


def keep_private(path: str | Path) -> None:
    """Remove the permissions of others on a file, if any; raise an error if that fails."""
    if os.name != "posix" or not stat.S_IMODE(Path(path).stat().st_mode) & 0o077:
        return
    try:
        Path(path).chmod(0o600)
    except OSError:
        raise InputError(f"{path}: others on this machine can read it, and its rights cannot be changed") from None
    log.warning("%s: others on this machine could read it; now only its owner can", path)


def write_whole(path: str | Path, data: bytes, *, private: bool = False) -> None:
    """Write a file: to a temporary name beside it, flushed to disk, then renamed; a private one for its owner only."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o600 if private else 0o666 & ~mask)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def read_json(path: Path, kind: type[Content], remedy: str) -> Content:
    """Read a JSON file as a type; raise ``FormatError`` with what to do if it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except UNREADABLE:
        raise FormatError(f"{path}: {remedy}") from None


def try_json(path: Path, kind: type[Content]) -> Content | None:
    """Read a JSON file as a type; None if it is missing or damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, *UNREADABLE):
        return None


def write_json(path: Path, content: msgspec.Struct, *, private: bool = False) -> None:
    """Write an indented JSON file that people can read."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(content)) + b"\n", private=private)
