"""Read the cells of a column independently: the meaning of a cell never depends on other rows.

A cell is missing, a number, true or false, or text. Text may stand for a number, and the same text always stands for
the same number, in files (where every cell is text) and in data frames. So a column is read in the same way even if one
row turns it into text, or one missing cell turns it into floats. Some texts, such as ``NA``, mark missing values. Dates
are read if the schema has a date; anything else (a list, bytes) cannot be read.

Functions work on distinct values; they loop only over columns of Python objects.
"""

import math
import re
import unicodedata
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from silvan.data.schema import Class, DatePart, Schema
from silvan.util.cell_text import STRANGE, cell_text, plain_value

Series = nw.Series[Any]

MARKERS = frozenset(("na", "n/a", "#n/a", "<na>", "nan", "null", "none", "?", ".", "-"))
"""Lower-case texts that mark missing values, unless they are the name of a category or a class."""

MISSING = -1  # code of an empty cell
UNKNOWN = -2  # code of a value that no category or class has
NEITHER = -3  # code of a cell that is neither a number nor text

_CLOSE = 1 << 16  # whole numbers in a range of at most this width are counted instead of sorted


def text_columns(schema: Schema) -> list[str]:
    """Return the columns whose cells are compared as text: those of categories and classes."""
    names = [feature.name for feature in schema.features if feature.categorical]
    return names if schema.label.classes is None else [*names, schema.label.name]


def numbers_of(words: Sequence[str]) -> list[int | float | bool | None]:
    """Return the value of each text: a whole number, a number, true or false; None for any other text.

    Surrounding blanks are ignored. A marker of missing values becomes NaN.
    """
    if not words:
        return []
    import polars as pl

    clean = pl.Series(words, dtype=pl.String).str.strip_chars()
    truth = {"true": True, "false": False, **dict.fromkeys(MARKERS, math.nan)}
    found = zip(
        clean.cast(pl.Int64, strict=False).to_list(),
        clean.cast(pl.Float64, strict=False).to_list(),
        clean.str.to_lowercase().to_list(),
        strict=True,
    )
    return [whole if whole is not None else truth.get(word, number) for whole, number, word in found]


def distinct(series: Series) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the distinct values of a column, and for each row the index of its value; -1 if missing."""
    places = np.full(len(series), MISSING, np.int64)
    present = ~series.is_null().to_numpy().astype(bool)
    if holds_objects(series):
        return _distinct_objects(series, present, places)
    series = series.drop_nulls()
    values: list[Any]
    if is_text(series):
        words = series.cast(nw.String)
        values = sorted(words.unique().to_list())  # polars returns them in any order
        if values:
            places[present] = words.replace_strict(values, range(len(values)), return_dtype=nw.Int64).to_numpy()
    elif is_number(series):
        found, inverse = _distinct_numbers(plain_numbers(series))
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


def _distinct_numbers(numbers: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the distinct numbers, ascending, and the index of each row's number; avoids sorting if possible."""
    if numbers.dtype.kind in "iu" and len(numbers):
        low, high = int(numbers.min()), int(numbers.max())
        if high - low < _CLOSE and high <= np.iinfo(np.int64).max:
            steps = numbers.astype(np.int64) - low
            there = np.bincount(steps, minlength=high - low + 1) > 0
            return (np.flatnonzero(there) + low).astype(numbers.dtype), (np.cumsum(there) - 1)[steps]
    found, places = np.unique(numbers, return_inverse=True)
    return found, places


def _distinct_objects(series: Series, present: NDArray[np.bool], places: NDArray[np.int64]) -> tuple[list[Any], Any]:
    # by type and value: 1, 1.0 and True are equal but have different texts
    at: dict[tuple[type, Any], int] = {}
    for row, (cell, there) in enumerate(zip(series.to_list(), present.tolist(), strict=True)):
        value = plain_value(cell) if there else None
        if value is not None:
            places[row] = at.setdefault((type(value), value), len(at))
    return [value for _, value in at], places


def category_places(series: Series, code_of: Mapping[str, int]) -> NDArray[np.int64]:
    """Return the code of each row by its text; negative if there is none.

    The text itself is looked up first. If that fails and the text stands for a number, the number's text is looked up:
    ``1.0`` and ``01`` are ``1``. Last come codes whose texts stand for the same number.
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
    """Return the values of texts that are not among the known ones."""
    words = [value for value in values if isinstance(value, str) and value not in known]
    return dict(zip(words, numbers_of(words), strict=True))


def _by_number(code_of: Mapping[str, int]) -> dict[str, int]:
    """Return the codes by the numeric value of their texts, the first one for equal values."""
    codes: dict[str, int] = {}
    for number, code in zip(numbers_of(list(code_of)), code_of.values(), strict=True):
        if number is not None and number == number:
            codes.setdefault(cell_text(number), code)
    return codes


def fold(word: str) -> str:
    """Normalise a text: ignore case, surrounding blanks, and different encodings of accented letters."""
    return unicodedata.normalize("NFKC", word).strip().casefold()


def look_alike(words: Iterable[str]) -> list[list[str]]:
    """Return groups of texts that differ only in case, blanks or punctuation, or stand for the same number."""
    groups: dict[str, list[str]] = {}
    for word in words:
        groups.setdefault(_bare(word), []).append(word)
    return [group for group in groups.values() if len(group) > 1]


def _bare(word: str) -> str:
    try:
        return str(Decimal(word.strip()).normalize())  # 1.0 and 01 are 1, and not 10
    except InvalidOperation:
        return re.sub(r"[\s_.,:;()/-]+", "", fold(word)) or word


def class_places(series: Series, classes: Sequence[Class], *, folded: bool = False) -> NDArray[np.int64]:
    """Return the code of each row's class; negative for unknown classes.

    A cell matches a class by its text, by its value (1, 1.0 and true are equal), or by the text of its number. With
    ``folded``, case and surrounding blanks are ignored.
    """
    if folded:
        by_fold = {fold(str(value)): code for code, value in enumerate(classes)}
        values, places = distinct(series)
        codes = [
            NEITHER
            if value == STRANGE
            else by_fold.get(fold(word), MISSING if fold(word) in MARKERS | {""} else UNKNOWN)
            for value, word in zip(values, map(cell_text, values), strict=True)
        ]
        return np.array([*codes, MISSING], np.int64)[places]
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
    """Return the number of each row, NaN if missing, and which rows hold something else.

    Blank text and markers count as missing, true as 1 and false as 0.
    """
    if is_number(series):
        numbers = series.cast(nw.Float64).to_numpy().astype(np.float64, copy=False)
        return numbers, np.zeros(len(numbers), np.bool)
    values, places = distinct(series)
    stands_for = _stands_for(values)
    found = [stands_for[value] if isinstance(value, str) else value for value in values]
    strange = [number is None and bool(str(value).strip()) for value, number in zip(values, found, strict=True)]
    numbers = np.array([np.nan if number is None else float(number) for number in [*found, None]], np.float64)
    return numbers[places], np.array([*strange, False], np.bool)[places]


_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})([T ]\d{1,2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})?)?")
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})([T ]\d{1,2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?")
_HOUR = re.compile(r"(?<=[T ])\d:")
_EPOCH = datetime(1970, 1, 1)


def read_date(word: str) -> datetime | None:
    """Return the date in a text; None if it is not a date, or if day and month could be confused."""
    if len(word) < 8 or not word[0].isdigit():
        return None
    if dotted := _DOTTED.fullmatch(word):
        word = f"{dotted[3]}-{dotted[2]:0>2}-{dotted[1]:0>2}{dotted[4] or ''}"
    elif not _DATE.fullmatch(word):
        return None
    try:
        return datetime.fromisoformat(_HOUR.sub(lambda hour: f"0{hour[0]}", word, count=1))
    except ValueError:
        return None


def date_number(when: Any, part: DatePart) -> float | None:
    """Return a date, or a part of it, as a number; None if it is not a date."""
    if not isinstance(when, date):
        return None
    if part != "days":
        return float(when.isoweekday() if part == "weekday" else getattr(when, part))
    if not isinstance(when, datetime):
        when = datetime(when.year, when.month, when.day)
    elif when.tzinfo is not None:
        when = when.astimezone(UTC).replace(tzinfo=None)
    return (when - _EPOCH) / timedelta(days=1)


def cell_dates(series: Series, part: DatePart) -> tuple[NDArray[np.float64], NDArray[np.bool]]:
    """Return the days since 1970 of each row, or a part of its date, and which rows hold something else.

    If the time zone is known, a day begins at midnight UTC. Weekdays are 1 for Monday to 7 for Sunday.
    """
    numbers, strange = np.full(len(series), np.nan), np.zeros(len(series), np.bool)
    present = ~series.is_null().to_numpy().astype(bool)
    if series.dtype in (nw.Date, nw.Datetime):
        some: Any = series.drop_nulls()
        if part == "days":
            numbers[present] = some.dt.timestamp("us").to_numpy() / 86_400e6
        else:
            numbers[present] = getattr(some.dt, part)().to_numpy()
        return numbers, strange
    if not (is_text(series) or holds_objects(series)):
        return numbers, present
    cells = (series if holds_objects(series) else series.cast(nw.String)).to_list()
    known: dict[Any, tuple[float, bool]] = {}
    for row in np.flatnonzero(present).tolist():
        cell = cells[row]
        if not isinstance(cell, str | date):
            strange[row] = not (isinstance(cell, float) and cell != cell)
            continue
        if cell not in known:
            word = cell.strip() if isinstance(cell, str) else ""
            day = date_number(read_date(word) if isinstance(cell, str) else cell, part)
            lost = day is None and bool(word) and word.lower() not in MARKERS
            known[cell] = (np.nan if day is None else day, lost)
        numbers[row], strange[row] = known[cell]
    return numbers, strange


def is_dates(series: Series, kind: str | None = None) -> bool:
    """Whether a column holds dates, by its type or in every cell."""
    if kind is not None or series.dtype in (nw.Date, nw.Datetime):
        return kind == "date" or (kind is None and not is_void(series))
    if is_void(series) or not (series.dtype == nw.String or holds_objects(series)):
        return False
    some = series.drop_nulls().head(1).to_list()[0]
    if isinstance(some, str) and read_date(some.strip()) is None and some.strip().lower() not in MARKERS:
        return False  # one cell rules out most text
    days, strange = cell_dates(series, "days")
    return not strange.any() and not np.isnan(days).all()


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
