"""Pages (a template with its values), and the interface of folders that have pages."""

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
    """A page: its title, its template, and the template's values."""

    title: str
    template: str
    values: dict[str, Any]


class File(NamedTuple):
    """A file to send: its content and type, and its name if it is a download."""

    data: bytes
    type: str
    name: str = ""


class Folder(Protocol):
    """A folder that has pages."""

    name: str  # the heading of all its pages

    @property
    def links(self) -> tuple[tuple[str, str], ...]:
        """The pages in the menu: path and title."""

    def page(self, path: str) -> Page | None:
        """Return the page of a path; None if there is none."""

    def file(self, path: str) -> File | None:
        """Return the file of a path; None if there is none."""

    def state(self) -> object:
        """Return a value that changes whenever a page may change; must be quick."""

    def actions(self) -> dict[str, Callable[[dict[str, str]], str]]:
        """Return the actions of forms: each takes the fields and returns a text to show, or raises ``SilvanError``."""


def stamp(paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Return path, size and modification time of each file that exists."""
    stamps = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        stamps.append((str(path), status.st_size, status.st_mtime_ns))
    return stamps


@cache
def environment() -> Environment:
    """Return the templates, which escape all text and replace characters that could reorder or hide text."""
    made = page_environment(_HERE, format_bytes=format_bytes, moment=_moment, commands=_commands)
    made.finalize = _plain
    return made


def _plain(value: Any) -> Any:
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return printable(value, keep="\n")


def _commands(text: str) -> Markup:
    """Return text with commands (between backticks) set as code."""
    return Markup(_TICKS.sub(r"<code>\1</code>", str(escape(_plain(text)))))  # noqa: S704  escaped


def _moment(text: str) -> str:
    """Return a time from a file in a shorter form."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return text
