"""CSV text that is safe to open in a spreadsheet: no cell is a formula."""

import re
from collections.abc import Iterable
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Characters at the start of a spreadsheet formula, including full-width signs."""


_QUOTED = re.compile(r'[,"\r\n]')


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV; a text that a spreadsheet would run as a formula gets an apostrophe in front."""
    return "".join(f"{','.join(map(_cell, row))}\n" for row in rows)


def _cell(value: Any) -> str:
    # not by Python's csv: it leaves a carriage return bare, after which a spreadsheet starts a new row
    text = "" if value is None else str(plain_cell(value))
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def plain_cell(value: Any) -> Any:
    """Return a cell in a safe form; a number stays a number, also as text."""
    if not isinstance(value, str) or not value.lstrip(" ").startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
