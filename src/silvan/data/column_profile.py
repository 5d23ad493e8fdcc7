"""A profile of each column for the site's owner before training: kind, missing values, range, oddities.

Only the owner sees profiles; they never leave the site.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from silvan.data.batches import Batched
from silvan.data.cells import MARKERS, MISSING, Series, cell_dates, cell_numbers, distinct, fold, is_text
from silvan.data.schema import CROWDED, MAX_CATEGORIES
from silvan.metrics import count_scores, roc_auc
from silvan.util.cell_text import cell_text
from silvan.util.readable import count_of, format_names

IDENTIFIER = "every value occurs once: an identifier? then leave it out (exclude)"

_REPEATED = [int(digit * n) for digit in "789" for n in (2, 3, 4, 5)]
_CODES = (-1, -7, -8, -9, -98, -998, -9998, 98, 998, 9998, *_REPEATED, *(-code for code in _REPEATED))
"""Numbers that people often use for missing values."""

_OFTEN = 10  # an extreme number this many times as frequent as any other is suspicious
_ZEROS = r"^\s*[+-]?0\d"
_PADDED = (
    'leading zeros are lost in {}, since 0012 is read as 12: are these codes? then set its kind (kinds: "categorical")'
)
_LARGEST = np.finfo(np.float32).max
_INFINITE = "infinite, or too large for a 32-bit float, in {}, which stops a study: leave these cells empty"
_MOST_CATEGORIES = 50
_SPREAD = (np.arange(40) + 0.5) / 40
_FEW = 20  # values of smaller tables are not checked


@dataclass(frozen=True)
class ColumnProfile:
    """A column as its owner sees it; ``low``, ``median`` and ``high`` are numbers, or days for dates.

    ``categories`` are listed if there are few. ``spread`` holds quantiles of the non-zero numbers, if there are many.
    ``codes`` counts the rows with outlying numbers that may mark missing values. ``auc`` is how well the column alone
    ranks the rows of the label's two classes. ``classes`` counts the rows of each value of the label, if there are few.
    """

    name: str
    kind: str
    rows: int
    missing: int
    distinct: int
    low: float | None = None
    median: float | None = None
    high: float | None = None
    notes: list[str] = field(default_factory=list)
    categories: list[str] = field(default_factory=list)
    spread: list[float] = field(default_factory=list)
    codes: dict[int, int] = field(default_factory=dict)
    auc: float | None = None
    classes: dict[str, int] = field(default_factory=dict)


def profile_columns(table: Batched, label: str, most: int | None = None) -> list[ColumnProfile]:
    """Return the profile of each column, from all rows or the first ``most``."""
    frame = next(table.batches())
    frame = frame if most is None else frame.head(most)
    truth = _two_classes(frame, label)
    found = [_profile(frame[name], name, table, truth if name != label else None) for name in table.names]
    found = [replace(c, classes=_classes(frame[label])) if c.name == label else c for c in found]
    padded = padded_columns(table, most)
    return [replace(c, notes=[*c.notes, padded[c.name]]) if c.name in padded else c for c in found]


def padded_columns(table: Batched, most: int | None = None) -> dict[str, str]:
    """Return the numeric columns whose cells have leading zeros, each with a remark."""
    if table.pieces is None:
        return {}
    names = [name for name in table.names if table.dtypes[name].is_numeric() and name not in table.kinds]
    counts, seen = dict.fromkeys(names, 0), 0
    for piece in table.pieces():
        for name in names:
            counts[name] += int(piece[name].cast(str).str.contains(_ZEROS).sum())
        seen += len(piece)
        if most is not None and seen >= most:
            break
    return {name: _PADDED.format(count_of(rows, "row")) for name, rows in counts.items() if rows}


def _profile(series: Series, name: str, table: Batched, truth: np.ndarray | None) -> ColumnProfile:
    notes: list[str] = []
    if name in table.refused:
        return ColumnProfile(name, "mixed", len(series), int(series.null_count()), 0, notes=[table.refused[name]])
    values, places = distinct(series)
    if name in table.dates:
        kind, numbers = "date", cell_dates(series, "days")[0]
        days, places = ~np.isnan(numbers), np.full(len(numbers), MISSING, np.int64)
        found_days, places[days] = np.unique(numbers[days], return_inverse=True)
        values = found_days.tolist()
    else:
        kind = "categorical" if is_text(series) or table.kinds.get(name) in ("categorical", "folded") else "numeric"
        numbers = cell_numbers(series)[0] if kind == "numeric" else np.zeros(0)
    present = int(np.count_nonzero(places != MISSING))
    if not present:
        return ColumnProfile(name, "empty", len(series), len(series), 0, notes=["all cells are empty"])
    finite = numbers[np.isfinite(numbers)]
    ends: tuple[float | None, float | None, float | None] = (None, None, None)
    if len(finite):
        ends = float(finite.min()), float(np.median(finite)), float(finite.max())
    found = len(values)
    if found == 1 and len(series) > 1:
        notes.append("has only one value")
    if infinite := int(np.count_nonzero(np.abs(numbers) > _LARGEST)):
        notes.append(_INFINITE.format(count_of(infinite, "row")))
    codes, auc, spread = {}, None, []
    if present >= _FEW:
        notes += _odd(kind, finite, values, present)
        codes = _codes(finite) if kind == "numeric" else {}
        auc = _auc_alone(kind, numbers, places, found, truth) if truth is not None and found > 1 else None
    if kind == "numeric" and np.count_nonzero(finite) >= _FEW:
        spread = np.quantile(finite[finite != 0], _SPREAD, method="nearest").tolist()
    few = kind == "categorical" and found <= _MOST_CATEGORIES
    as_read = fold if table.kinds.get(name) == "folded" else str
    names = sorted({as_read(cell_text(value)) for value in values}) if few else []
    return ColumnProfile(name, kind, len(series), len(series) - present, found, *ends, notes, names, spread, codes, auc)


def _odd(kind: str, numbers: np.ndarray, values: list[Any], present: int) -> list[str]:
    """Return remarks about odd values of a column."""
    notes = []
    whole = kind == "numeric" and not np.any(numbers != np.floor(numbers))
    if len(values) == present and (whole or kind == "categorical"):
        notes.append(IDENTIFIER)
    elif kind == "categorical" and len(values) > MAX_CATEGORIES:
        notes.append(f"{CROWDED}; if they matter, group them (a code by its first letters) or turn them into numbers")
    if whole and len(numbers) and _are_dates(numbers):
        notes.append("looks like dates written as 20200131, which are read as numbers: write them as 2020-01-31")
    markers = sorted(value for value in values if isinstance(value, str) and value.strip().lower() in MARKERS)
    if markers and kind == "categorical":
        listed = ", ".join(f'"{value.strip()}"' for value in markers)
        notes.append(f"has {format_names(markers)} as categories: do they mean missing? then set missing = [{listed}]")
    if kind == "categorical" and all(cell_text(value).strip().isdigit() for value in values):
        notes.append('text that consists of numbers: codes or numbers? for numbers, set its kind (kinds: "numeric")')
    return notes


def _are_dates(numbers: np.ndarray) -> bool:
    """Whether whole numbers are all dates from 1800 to 2200, written as year, month and day without separators."""
    months, days = numbers // 100 % 100, numbers % 100
    inside = (numbers > 18_000_000) & (numbers < 22_000_000)
    return bool(np.all(inside & (months >= 1) & (months <= 12) & (days >= 1) & (days <= 31)))


def _codes(numbers: np.ndarray) -> dict[int, int]:
    """Count the rows of numbers that people often use for missing values, if these are far from all others.

    A listed number stands apart if it is far larger than all others, the only negative number, further from the next
    value than half the range of the others, or an extreme that is ten times as frequent as any other. An unlisted
    number must be that far away and more frequent than any of many others.
    """
    values, rows = np.unique(numbers, return_counts=True)
    listed = np.isin(values, _CODES)
    found = {}
    for i in np.flatnonzero(listed | np.isin(np.arange(len(values)), (0, len(values) - 1))).tolist():
        others = ~listed & (np.arange(len(values)) != i)
        if others.sum() < 2:
            continue
        code, n, most = float(values[i]), int(rows[i]), int(rows[others].max())
        low, high = float(values[others][0]), float(values[others][-1])
        gap = max(low - code, code - high)
        far, outside = gap > (high - low) / 2 > 0, gap > 0
        if listed[i]:
            apart = abs(code) > 2 * max(abs(low), abs(high)) or (n > 1 and (code < 0 <= low or far))
            apart |= outside and n >= _OFTEN * most
        else:
            apart = far and n > max(1, most) and others.sum() >= _FEW and code == round(code)
        if apart:
            found[int(code)] = n
    return found


def _classes(label: Series) -> dict[str, int]:
    """Count the rows of each value of a label with few values."""
    values, places = distinct(label)
    if len(values) > _MOST_CATEGORIES or not values:
        return {}
    return dict(
        zip(map(cell_text, values), np.bincount(places[places >= 0], minlength=len(values)).tolist(), strict=True)
    )


def _two_classes(frame: Any, label: str) -> np.ndarray | None:
    """Return which rows have the second of two classes; None unless there are two."""
    if label not in frame.columns:
        return None
    values, places = distinct(frame[label])
    if len(values) != 2 or np.any(places == MISSING):
        return None
    return places == 1


def _auc_alone(kind: str, numbers: np.ndarray, places: np.ndarray, found: int, truth: np.ndarray) -> float | None:
    """Return how well the column alone ranks the rows of the two classes; None if too many values are missing."""
    if kind == "categorical":
        if found > len(truth) / 10:
            return None
        known = places != MISSING
        rows = np.bincount(places[known], minlength=found)
        shares = np.bincount(places[known], weights=truth[known], minlength=found) / np.maximum(rows, 1)
        numbers = np.where(known, shares[places], np.nan)
    known = ~np.isnan(numbers)
    (counts,) = count_scores(np.stack([numbers[known]] * 2, axis=1), truth[known], exact=True)
    share = roc_auc(*counts)
    if np.isnan(share):  # all rows with a value have the same class
        share = 0.5
    return None if np.count_nonzero(known) < len(truth) / 2 else max(share, 1 - share)
