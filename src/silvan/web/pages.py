"""What a page is: a template with its values."""

import re
from collections.abc import Iterable
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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
