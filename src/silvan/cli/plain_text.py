"""Prints plain lines; text from files is cleaned of what a terminal would act upon."""

from typing import Any

import typer

from silvan.util.readable import printable


def clean(text: Any) -> str:
    """Return text with unprintable characters replaced, so that it cannot control a terminal."""
    return printable(text)


def print_lines(*lines: str) -> None:
    """Print lines, cleaned."""
    for line in lines:
        typer.echo(clean(line))
