"""The person acting on the command line: the user of the operating system, and who became that user by ``sudo``."""

import os
from importlib import import_module


def acting_user() -> str:
    """Return the name of the operating system's user; with ``sudo``, first that of who called it."""
    name = _name(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    before = os.environ.get("SUDO_USER", "")
    return f"{before} (as {name})" if before and before != name else name


def owner_of(path: str | os.PathLike[str]) -> str:
    """Return the user that a file belongs to."""
    return _name(os.stat(path).st_uid)


def _name(number: int) -> str:
    try:
        return str(import_module("pwd").getpwuid(number).pw_name)
    except (ImportError, KeyError):  # not a POSIX system, or a user without a name, as in containers
        return f"user {number}"
