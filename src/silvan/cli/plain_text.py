"""Prints plain lines; text from files is cleaned of what a terminal would act upon."""

from typing import Any

import typer


def clean(text: Any) -> str:
    """Return text with unprintable characters replaced, so that it cannot control a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def print_lines(*lines: str) -> None:
    """Print lines, cleaned."""
    for line in lines:
        typer.echo(clean(line))
