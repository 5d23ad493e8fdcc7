"""Who may open a folder's page: named people, each with a token of which the folder keeps only the digest.

The file is in the folder and readable only by its owner. A person may ``view`` or ``approve``. A reverse proxy with
single sign-on also has a token, with the right ``proxy``: it names the person in a header.
"""

import hmac
import re
import secrets
from pathlib import Path
from typing import Literal

import msgspec

from silvan.errors import InputError
from silvan.federation.store import digest
from silvan.util.files import read_json, write_json

PEOPLE = "web-people.json"
"""The name of the file in a folder."""

Right = Literal["view", "approve", "proxy"]
RIGHTS = ("view", "approve", "proxy")

_NAME = re.compile(r"[^\s\x00-\x1f\x7f](?:[^\x00-\x1f\x7f]{0,60}[^\s\x00-\x1f\x7f])?")


class Person(msgspec.Struct, frozen=True):
    """A person who opens the page, and their right."""

    name: str
    right: Right
    token: str = ""  # its digest

    @property
    def may_act(self) -> bool:
        """Whether the person's forms have any effect."""
        return self.right == "approve"


class _Content(msgspec.Struct):
    people: list[Person] = []


class People:
    """The people of a folder; without a folder, only the person who started the page."""

    def __init__(self, folder: Path | None, starter: Person | None = None) -> None:
        self.path = None if folder is None else folder / PEOPLE
        self._starter = starter

    def listed(self) -> list[Person]:
        """Return the people of the file."""
        if self.path is None or not self.path.is_file():
            return []
        return read_json(self.path, _Content, "damaged; remove it, and add the people again").people

    def add(self, name: str, right: str) -> str:
        """Add a person, or give one a new token and right; return the token, which is stored nowhere."""
        if right not in RIGHTS:
            raise InputError.wrong("right", f"one of {', '.join(RIGHTS)}", right)
        if not _NAME.fullmatch(name):
            raise InputError.about("name", "must be a person's name, of at most 62 printable characters")
        token = secrets.token_urlsafe(32)
        made = Person(name, right, digest(token.encode()))  # type: ignore[arg-type]  # one of them, checked
        self._write([*(one for one in self.listed() if one.name != name), made])
        return token

    def remove(self, name: str) -> None:
        """Revoke a person's access immediately."""
        if not any(one.name == name for one in self.listed()):
            raise InputError(f"there is nobody called {name!r}; there are {', '.join(p.name for p in self.listed())}")
        self._write([one for one in self.listed() if one.name != name])

    def by_token(self, token: str) -> Person | None:
        """Return the person with this token."""
        given, owner = digest(token.encode()), None
        for one in [*self.listed(), *([self._starter] if self._starter is not None else [])]:
            if one.token and hmac.compare_digest(one.token, given):
                owner = one
        return owner

    def by_name(self, name: str) -> Person | None:
        """Return the person that a proxy names."""
        return next((one for one in self.listed() if one.name == name and one.right != "proxy"), None)

    def _write(self, people: list[Person]) -> None:
        assert self.path is not None  # noqa: S101
        write_json(self.path, _Content(people), private=True)
