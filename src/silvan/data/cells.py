"""Read the cells of a column one by one: what a cell means never depends on the other rows.

A cell is missing, or a number, true or false, or text. A text may stand for a number: the same text always stands for
the same one, in a file where every cell is text as in a frame. So a column that one row turns to text, or one missing
cell to floats, is read as before. Anything else (a date, a list, bytes) cannot be read.

Work is done on distinct values; only a column of Python objects is looped over.
"""

import math
from collections.abc import Container, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from silvan.data.schema import Class, Schema

Series = nw.Series[Any]

STRANGE = "\0"
"""The text of a value that is neither a number, nor true or false, nor text."""

MISSING = -1
UNKNOWN = -2
NEITHER = -3
"""Places of cells that hold nothing, hold what has no code, or hold what is neither a number nor text."""


def cell_text(value: Class) -> str:
    """Return a value as the text that all sites use: ``1`` for 1 and 1.0, ``true`` for True."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def plain_value(value: Any) -> Class | None:
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


def text_columns(schema: Schema) -> list[str]:
    """Return the columns whose cells are compared as text: those of categories and classes."""
    names = [feature.name for feature in schema.features if feature.categorical]
    return names if schema.label.classes is None else [*names, schema.label.name]


def numbers_of(words: Sequence[str]) -> list[int | float | bool | None]:
    """Return what texts stand for: a whole number, a number, true or false; None for any other text.

    Blanks around it do not count. ``nan`` is a number, as in most programs.
    """
    if not words:
        return []
    import polars as pl

    clean = pl.Series(words, dtype=pl.String).str.strip_chars()
    truth = {"true": True, "false": False}
    found = zip(
        clean.cast(pl.Int64, strict=False).to_list(),
        clean.cast(pl.Float64, strict=False).to_list(),
        clean.str.to_lowercase().to_list(),
        strict=True,
    )
    return [whole if whole is not None else truth.get(word, number) for whole, number, word in found]


def distinct(series: Series) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the distinct values of a column, and for each row the place of its value among them; -1 where missing."""
    places = np.full(len(series), MISSING, np.int64)
    present = ~series.is_null().to_numpy().astype(bool)
    if holds_objects(series):
        return _distinct_objects(series, present, places)
    series = series.drop_nulls()
    values: list[Any]
    if is_text(series):
        words = series.cast(nw.String)
        values = words.unique().to_list()
        if values:
            places[present] = words.replace_strict(values, range(len(values)), return_dtype=nw.Int64).to_numpy()
    elif is_number(series):
        found, inverse = np.unique(plain_numbers(series), return_inverse=True)
        values = found.tolist()
        places[present] = inverse
        # NaN, where the library does not count it as null
        lost = [i for i, value in enumerate(values) if value != value]
        if lost:
            places[np.isin(places, lost)] = MISSING
    else:
        values = [STRANGE]
        places[present] = 0
    return values, places


def _distinct_objects(series: Series, present: NDArray[np.bool], places: NDArray[np.int64]) -> tuple[list[Any], Any]:
    # by type and value: 1, 1.0 and True are equal, but another text
    at: dict[tuple[type, Any], int] = {}
    for row, (cell, there) in enumerate(zip(series.to_list(), present.tolist(), strict=True)):
        value = plain_value(cell) if there else None
        if value is not None:
            places[row] = at.setdefault((type(value), value), len(at))
    return [value for _, value in at], places


def category_places(series: Series, code_of: Mapping[str, int]) -> NDArray[np.int64]:
    """Return the code of each row by its text; below 0 where there is none.

    A text counts as it is, if some code has it. Otherwise, if it stands for a number, the number's own text counts:
    ``1.0`` and ``01`` are ``1``. Last, codes whose texts stand for the number.
    """
    values, places = distinct(series)
    stands_for = _stands_for(values, code_of)
    by_number: dict[str, int] | None = None
    codes = []
    for value in values:
        code = code_of.get(cell_text(value), NEITHER if value == STRANGE else UNKNOWN)
        number = stands_for.get(value) if isinstance(value, str) else value
        if code == UNKNOWN and number is not None:
            by_number = _by_number(code_of) if by_number is None else by_number
            text = cell_text(number)
            code = MISSING if number != number else code_of.get(text, by_number.get(text, UNKNOWN))
        codes.append(code)
    return np.array([*codes, MISSING], np.int64)[places]


def _stands_for(values: Sequence[Any], known: Container[str] = ()) -> dict[str, Any]:
    """Return what texts that are not known as they are stand for."""
    words = [value for value in values if isinstance(value, str) and value not in known]
    return dict(zip(words, numbers_of(words), strict=True))


def _by_number(code_of: Mapping[str, int]) -> dict[str, int]:
    """Return the codes by the number that their texts stand for, the first of equals."""
    found: dict[str, int] = {}
    for number, code in zip(numbers_of(list(code_of)), code_of.values(), strict=True):
        if number is not None and number == number:
            found.setdefault(cell_text(number), code)
    return found


def class_places(series: Series, classes: Sequence[Class]) -> NDArray[np.int64]:
    """Return the code of each row's class; below 0 where it is none.

    A class is the cell's text, or equal to it (1, 1.0 and true are), or has the text of the number that the cell
    stands for.
    """
    by_value = {value: code for code, value in enumerate(classes)}
    by_text = {cell_text(value): code for code, value in enumerate(classes)}
    values, places = distinct(series)
    stands_for = _stands_for(values, by_text)

    def code(value: Any) -> int:
        if isinstance(value, str):
            if value in by_text:
                return by_text[value]
            value = stands_for[value]
            if value is None:
                return UNKNOWN
        if value != value:
            return MISSING
        return by_value.get(value, by_text.get(cell_text(value), UNKNOWN))

    return np.array([*map(code, values), MISSING], np.int64)[places]


def cell_numbers(series: Series) -> tuple[NDArray[np.float64], NDArray[np.bool]]:
    """Return the number of each row, NaN where there is none, and which rows hold something that is no number.

    Blank text is missing, true is 1 and false is 0.
    """
    if is_number(series):
        numbers = series.cast(nw.Float64).to_numpy().astype(np.float64)
        return numbers, np.zeros(len(numbers), np.bool)
    values, places = distinct(series)
    stands_for = _stands_for(values)
    found = [stands_for[value] if isinstance(value, str) else value for value in values]
    strange = [number is None and bool(str(value).strip()) for value, number in zip(values, found, strict=True)]
    numbers = np.array([np.nan if number is None else float(number) for number in [*found, None]], np.float64)
    return numbers[places], np.array([*strange, False], np.bool)[places]


def plain_numbers(series: Series) -> NDArray[Any]:
    """Return the values of a column without nulls; whole numbers stay whole, since large ones do not fit a float."""
    if series.dtype == nw.Boolean:
        return series.to_numpy().astype(bool)
    if series.dtype.is_integer() and series.dtype not in (nw.Int128, nw.UInt128):
        return series.to_numpy()
    return series.cast(nw.Float64).to_numpy()


def is_void(series: Series) -> bool:
    """Whether a column has no values."""
    return series.null_count() == len(series)


def is_number(series: Series) -> bool:
    """Whether a column holds numbers or booleans."""
    return series.dtype.is_numeric() or series.dtype == nw.Boolean


def is_text(series: Series) -> bool:
    """Whether a column holds text."""
    return series.dtype in (nw.String, nw.Categorical, nw.Enum)


def holds_objects(series: Series) -> bool:
    """Whether a column holds Python objects, each of any type."""
    return series.dtype == nw.Object or getattr(series.to_native(), "dtype", None) == np.dtype(object)
