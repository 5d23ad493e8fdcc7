"""Find the password of a database in the environment or in a file, never in a URL, and never show it.

URLs end up in study files, shell histories, process lists and messages, so a URL with a password is refused before
anything can repeat it.
"""

import os
import re
from pathlib import Path

from silvan.errors import InputError

_LINE = re.compile(4 * r"((?:\\.|[^\\:])*):" + "(.*)")

PASSWORD, PASSWORD_FILE = "SILVAN_DATABASE_PASSWORD", "SILVAN_DATABASE_PASSWORD_FILE"

OWN_ADVICE = f"put the password into {PASSWORD}, or into a file named in {PASSWORD_FILE}"

ADVICE = f"put the password into PGPASSWORD or {PASSWORD}, or into a file named in PGPASSFILE or {PASSWORD_FILE}"


def own_password() -> str | None:
    """Return the password from the environment, or from the file named there; None if there is none."""
    if os.environ.get(PASSWORD):
        return os.environ[PASSWORD]
    if os.environ.get(PASSWORD_FILE):
        return _read(Path(os.environ[PASSWORD_FILE]), PASSWORD_FILE).rstrip("\r\n")
    return None


def find_password(host: str, port: int, database: str, user: str) -> str | None:
    """Return the password for PostgreSQL from the environment or a password file; None if there is none."""
    found = own_password() or os.environ.get("PGPASSWORD")
    if found:
        return found
    given = os.environ.get("PGPASSFILE")
    path = Path(given) if given else Path.home() / ".pgpass"
    if not given and not path.is_file():
        return None
    return _look_up(_read(path, "PGPASSFILE"), [host, str(port), database, user])


def _read(path: Path, name: str) -> str:
    """Read a file; raise ``InputError`` if anybody but its owner may read it."""
    try:
        text = path.read_text()
        open_to_others = os.name == "posix" and path.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError):
        raise InputError(
            f"{name} names a file {str(path)!r} that cannot be read; check the path and its owner"
        ) from None
    if open_to_others:
        raise InputError(f"{str(path)!r} holds a password and others may read it; run: chmod 600 {str(path)!r}")
    return text


def _look_up(text: str, wanted: list[str]) -> str | None:
    """Find the first matching line host:port:database:user:password; ``*`` matches all, a backslash escapes."""
    for line in text.splitlines():
        found = None if line.startswith("#") else _LINE.fullmatch(line)
        if found is not None:
            *fields, password = (re.sub(r"\\(.)", r"\1", part) for part in found.groups())
            if all(field in ("*", want) for field, want in zip(fields, wanted, strict=True)):
                return password
    return None
