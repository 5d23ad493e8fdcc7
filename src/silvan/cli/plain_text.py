"""Prints plain lines; text from files is cleaned of what a terminal would act upon."""

import io
import re
import shutil
import textwrap
from typing import Any

import typer
from typer.core import TyperGroup

from silvan.util.readable import printable

clean = printable
"""Returns text with unprintable characters replaced, so that it cannot control a terminal."""

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

    typer.echo(json.dumps(msgspec.json.decode(msgspec.json.encode(content)), indent=1))


def print_lines(*lines: str) -> None:
    """Print lines, cleaned."""
    for line in lines:
        typer.echo(clean(line))


def print_wrapped(*lines: str) -> None:
    """Print lines, cleaned, and broken between words where the terminal is too narrow: names and paths stay whole."""
    width = shutil.get_terminal_size().columns
    for line in lines:
        typer.echo(textwrap.fill(clean(line), width, break_long_words=False, break_on_hyphens=False))


def posix_only() -> None:
    """Refuse systems on which neither a site nor a coordinator can run."""
    from silvan.deploy.service.process import require_posix

    require_posix()


_VALUES = {"int": "N", "float": "NUMBER", "bool": "", "Path": "PATH"}


class PlainGroup(TyperGroup):
    """A group of commands whose help names no types of Python's."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the group's own options."""
        return _named_plainly(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _named_plainly(command.get_params(ctx))
        return command


def _named_plainly(params: list[Any]) -> list[Any]:
    """Return arguments, which need no explanation, and options, each with a word for its value unless it is a flag."""
    for param in params:
        if param.param_type_name == "argument":
            vars(param)["display_type_rich"] = lambda ctx: None
        elif param.param_type_name == "option" and param.metavar is None:
            value = param.type_descriptor.annotation
            param.metavar = "" if param.is_flag else _VALUES.get(getattr(value, "__name__", ""), "TEXT")
    return params
