"""What a page is: a template with its values; and what a folder must be able to do to have pages."""

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from jinja2 import Environment
from markupsafe import Markup, escape

from silvan.report.html import page_environment
from silvan.util.readable import format_bytes, printable

_HERE = Path(__file__).parent / "page"
_TICKS = re.compile("`([^`<>]*)`")


class Page(NamedTuple):
    """A page: its title, its template, and what the template shows."""

    title: str
    template: str
    values: dict[str, Any]


class File(NamedTuple):
    """A file to send: its content and type, and what it is called if it is to be kept."""

    data: bytes
    type: str
    name: str = ""


class Folder(Protocol):
    """A folder that has pages."""

    name: str  # what all its pages are headed

    @property
    def links(self) -> tuple[tuple[str, str], ...]:
        """The pages to choose from: path and title."""

    def page(self, path: str) -> Page | None:
        """Return the page of a path; None if there is none."""

    def file(self, path: str) -> File | None:
        """Return the file of a path; None if there is none."""

    def state(self) -> object:
        """Return something that differs when a page may show something else; found quickly."""

    def actions(self) -> dict[str, Callable[[dict[str, str]], str]]:
        """Return what forms may do: given the fields, each returns what to show, or raises ``SilvanError``."""


def stamp(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return of each file that is there its path, its size and when it was changed."""
    found = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((str(path), status.st_size, status.st_mtime_ns))
    return found


@cache
def environment() -> Environment:
    """Return the templates; every text is escaped, and what could turn or hide text is replaced."""
    made = page_environment(_HERE, format_bytes=format_bytes, moment=_moment, commands=_commands)
    made.finalize = _plain
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(value, keep="\n")


def _commands(text: str) -> Markup:
    """Return text with commands, which stand between backticks, set as such."""
    return Markup(_TICKS.sub(r"<code>\1</code>", str(escape(_plain(text)))))  # noqa: S704  escaped


def _moment(text: str) -> str:
    """Return a time as it stands in files in a shorter way."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return text
