"""Prints plain lines; text from files is cleaned of what a terminal would act upon."""

import io
import re
from typing import Any

import typer

from silvan.util.readable import printable


def clean(text: Any) -> str:
    """Return text with unprintable characters replaced, so that it cannot control a terminal."""
    return printable(text)


_LETTER = r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]"
_RIGHT_TO_LEFT = re.compile(rf"{_LETTER}(?:[^A-Za-z0-9,;:()\n]*{_LETTER})?")


def isolate(text: str) -> str:
    """Return text in which words written from right to left do not turn around what stands beside them in a line."""
    before, after = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"
    return _RIGHT_TO_LEFT.sub(lambda found: f"{before}{found[0]}{after}", text)


class Terminal(io.TextIOWrapper):
    """Output to a terminal: words that are written from right to left are kept apart in each line."""

    def write(self, text: str) -> int:
        """Write some text."""
        return super().write(isolate(text))


_WORDS = {"None": "'none'", "True": "true", "False": "false", "a dict": "a table", "dict": "table"}
_OUTSIDE_QUOTES = re.compile(r"""'[^']*'|"[^"]*"|\bNone\b(?! of)|\bTrue\b|\bFalse\b|\ba dict\b|\bdict\b""")


def plain_words(text: str) -> str:
    """Return a message with the words of study files for those of Python; what is quoted stays as it is."""
    return _OUTSIDE_QUOTES.sub(lambda found: _WORDS.get(found[0], found[0]), text)


def print_json(content: Any) -> None:
    """Print an object as JSON, with what is not ASCII escaped: a terminal acts on nothing of it."""
    import json

    import msgspec

    typer.echo(json.dumps(msgspec.to_builtins(content), indent=1))


def print_lines(*lines: str) -> None:
    """Print lines, cleaned."""
    for line in lines:
        typer.echo(clean(line))
