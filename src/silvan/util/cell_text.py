"""Values as plain Python objects, and as the one text that all sites use for each."""

import math
from decimal import Decimal
from numbers import Real
from typing import Any

import numpy as np

Plain = str | int | float | bool

STRANGE = "\0"  # the text of a value that is neither a number, nor true or false, nor text


def cell_text(value: Plain) -> str:
    """Return a value as the text that all sites use: ``1`` for 1 and 1.0, ``true`` for True."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def plain_value(value: Any) -> Plain | None:
    """Return a Python object as a number, a boolean or text; None if it is missing."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    if not isinstance(value, Real | Decimal):
        return STRANGE
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf  # type: ignore[operator]
    return None if number != number else number


def value_text(value: Any) -> str | None:
    """Return a Python object as text; None if it is missing."""
    plain = plain_value(value)
    return None if plain is None else cell_text(plain)
