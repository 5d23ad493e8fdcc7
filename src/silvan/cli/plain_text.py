"""Prints plain lines; removes control characters from text that comes from files."""

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
    """Return text in which right-to-left words do not reorder their neighbours on the line."""
    before, after = "\N{FIRST STRONG ISOLATE}", "\N{POP DIRECTIONAL ISOLATE}"
    return _RIGHT_TO_LEFT.sub(lambda found: f"{before}{found[0]}{after}", text)


class Terminal(io.TextIOWrapper):
    """Output to a terminal that isolates right-to-left words on each line."""

    def write(self, text: str) -> int:
        """Write some text."""
        return super().write(isolate(text))


_WORDS = {"None": "'none'", "True": "true", "False": "false", "a dict": "a table", "dict": "table"}
_OUTSIDE_QUOTES = re.compile(r"""'[^']*'|"[^"]*"|\bNone\b(?! of)|\bTrue\b|\bFalse\b|\ba dict\b|\bdict\b""")


def plain_words(text: str) -> str:
    """Return a message with study-file words in place of Python's; quoted text stays unchanged."""
    return _OUTSIDE_QUOTES.sub(lambda found: _WORDS.get(found[0], found[0]), text)


def print_json(content: Any) -> None:
    """Print an object as JSON; non-ASCII characters are escaped, so that none can control a terminal."""
    import json

    import msgspec

    typer.echo(json.dumps(msgspec.json.decode(msgspec.json.encode(content)), indent=1))


def print_lines(*lines: str) -> None:
    """Print lines, cleaned."""
    for line in lines:
        typer.echo(clean(line))


def print_wrapped(*lines: str) -> None:
    """Print lines, cleaned and wrapped between words, so that names and paths stay whole."""
    width = shutil.get_terminal_size().columns
    for line in lines:
        typer.echo(textwrap.fill(clean(line), width, break_long_words=False, break_on_hyphens=False))


def posix_only() -> None:
    """Raise an error on systems that cannot run a site or a coordinator."""
    from silvan.deploy.service.process import require_posix

    require_posix()


_VALUES = {"int": "N", "float": "NUMBER", "bool": "", "Path": "PATH"}


class PlainGroup(TyperGroup):
    """A group of commands whose help shows no Python types."""

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
    """Return parameters: arguments without a type, options with a word for their value unless they are flags."""
    for param in params:
        if param.param_type_name == "argument":
            vars(param)["display_type_rich"] = lambda ctx: None
        elif param.param_type_name == "option" and param.metavar is None:
            value = param.type_descriptor.annotation
            param.metavar = "" if param.is_flag else _VALUES.get(getattr(value, "__name__", ""), "TEXT")
    return params
