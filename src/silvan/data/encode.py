"""Encode a table as arrays of numbers, by a schema.

A feature is a 32-bit float: numbers as they are, categories as their position in the schema, NaN for missing values.
The schema decides, never the table, so the same row gives the same numbers at every site. But two sites may store the
same column differently: a code may be text here and a whole number there, and one missing cell turns whole numbers into
floats. So each cell is read independently (``cells.py``).

Errors count rows and never quote a value, since they may be shown to people who must not see it.
"""

from collections.abc import Iterable
from difflib import get_close_matches

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from silvan.data.cells import (
    MISSING,
    NEITHER,
    UNKNOWN,
    Series,
    category_places,
    cell_dates,
    cell_numbers,
    class_places,
    holds_objects,
    is_dates,
    is_number,
    is_text,
    is_void,
    plain_numbers,
)
from silvan.data.column_types import Kinds, date_parts, kind_of, places_text
from silvan.data.schema import MAX_CATEGORIES, Class, DatePart, Feature, Label, Schema, Task
from silvan.data.survival import encode_events, signed_times
from silvan.data.typed_table import Frame
from silvan.errors import InputError, SchemaError
from silvan.util.cell_text import cell_text
from silvan.util.readable import format_names

_LARGEST = np.finfo(np.float32).max
_PIECE = 1 << 16  # numbers transposed at a time


def describe_label(target: Series, label: str, task: Task | None = None, first_row: int = 1) -> Label:
    """Describe the column to predict, or some rows of it.

    Without a task, labels with fractions mean regression, and all others classification. Floats without fractions
    become whole-number classes, since a table that once had a missing label has 0.0 and 1.0 where others have 0 and 1.
    """
    if (task or infer_task(target)) == "regression":
        _encode_targets(target, Label(label), True, first_row)
        return Label(label)
    return Label(label, _infer_classes(target, label, first_row, asked=task is not None))


def infer_features(
    frame: Frame, exclude: Iterable[str] = (), min_category_rows: int = 1, kinds: Kinds | None = None
) -> tuple[Feature, ...]:
    """Describe all columns except some as features, in order.

    Numbers and booleans become numeric features, dates the days since 1970, text categorical features. A column without
    values is numeric. Only the most frequent categories are named, at most ``MAX_CATEGORIES``, each with at least
    ``min_category_rows`` rows; the others share one code.
    """
    left_out, kinds = set(exclude), kinds or {}
    features: list[Feature] = []
    for name in frame.columns:
        if name in left_out:
            continue
        series = frame[name]
        if is_dates(series, kind_of(kinds, name)):
            features += date_features(name, date_parts(kinds, name))
        else:
            features.append(_infer_feature(series, name, min_category_rows, kind_of(kinds, name)))
    return tuple(features)


def date_features(name: str, parts: Iterable[DatePart]) -> list[Feature]:
    """Return the features made from a column of dates."""
    return [Feature(name if part == "days" else f"{name} ({part})", date=part) for part in parts]


def category_texts(series: Series) -> dict[str, int]:
    """Count the rows of each category of a column, by the text that all sites share."""
    series = series.drop_nulls()
    if not is_text(series):
        values, rows = np.unique(plain_numbers(series), return_counts=True)
        pairs = [(value, n) for value, n in zip(values.tolist(), rows.tolist(), strict=True) if value == value]
    else:
        counts = series.cast(nw.String).alias("word").value_counts(name="rows")
        pairs = list(zip(counts["word"].to_list(), counts["rows"].to_list(), strict=True))
    texts: dict[str, int] = {}
    for value, n in pairs:
        texts[cell_text(value)] = texts.get(cell_text(value), 0) + n
    return texts


def infer_task(target: Series) -> Task:
    """Return "regression" if the values are floating point and some have fractions, otherwise "classification"."""
    if not (target.dtype.is_float() or target.dtype.is_decimal()):
        return "classification"
    values = target.cast(nw.Float64).to_numpy()
    values = values[np.isfinite(values)]
    return "regression" if np.any(values != np.floor(values)) else "classification"


def label_column(frame: Frame, label: str) -> Series:
    """Return the label's column; raise ``SchemaError`` with similar names if there is none."""
    if label not in frame.columns:
        close = near_names([label], frame.columns) or get_close_matches(label, frame.columns, n=3)
        hint = f"did you mean {format_names(close)}?" if close else f"it has {format_names(frame.columns)}"
        raise SchemaError(f"the table has no label column {label!r}; {hint}")
    return frame[label]


def near_names(absent: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the names of a table that resemble absent ones."""
    spare = {name.lower(): name for name in names}
    return [spare[match] for name in absent for match in get_close_matches(name.lower(), list(spare), n=1)]


def mostly_unknown(frame: Frame, schema: Schema) -> dict[str, int]:
    """Return the columns with mostly unknown categories, and the number of affected rows."""
    unknown = {}
    for feature in schema.features:
        if feature.categories and feature.column in frame.columns:
            words = {word: code for code, word in enumerate(feature.categories)}
            codes = category_places(frame[feature.column], words)
            rows = int(np.count_nonzero(codes == UNKNOWN))
            if 2 * rows > np.count_nonzero(codes != MISSING):
                unknown[feature.name] = rows
    return unknown


def encode_features(
    frame: Frame, schema: Schema, *, fill_absent: bool = False, strict: bool = True, first_row: int = 1
) -> NDArray[np.float32]:
    """Return the schema's features as an array (rows, features).

    Columns are matched by name. An unknown category gets the code after the last one if the feature has ``other``, and
    is missing otherwise. Numbers match categories by their text: 1 and 1.0 are ``"1"``, true is ``"true"``. An absent
    column is an error, or missing throughout with ``fill_absent``. Cells of a numeric column that are not numbers, or
    too large, raise an error that names up to three rows, counted from ``first_row``. If not ``strict``, they become
    missing, or the largest float.
    """
    present = set(frame.columns)
    absent = [feature.column for feature in schema.features if feature.column not in present]
    if absent and not fill_absent:
        near = near_names(absent, [name for name in frame.columns if name not in schema.columns])
        meant = f"it has {format_names(near)}: rename it if it is the same, otherwise " if near else ""
        raise SchemaError(
            f"the table lacks {format_names(absent, most=50)}; {meant}add these columns, empty if unknown, or agree on "
            "a schema without them"
        )
    # filled by column and transposed once: filling rows column by column would touch every cache line for each column
    columns = np.empty((len(schema.features), len(frame)), dtype=np.float32)
    for values, feature in zip(columns, schema.features, strict=True):
        if feature.column not in present:
            values[:] = np.nan
        elif feature.categorical:
            values[:] = _encode_categories(frame[feature.name], feature, strict, first_row)
        else:
            values[:] = _encode_numbers(frame[feature.column], feature, strict, first_row)
    return _turned(columns)


def _turned(columns: NDArray[np.float32]) -> NDArray[np.float32]:
    """Transpose columns to rows, in pieces that fit the processor's cache; -0.0 becomes 0.0."""
    rows = np.empty(columns.shape[::-1], np.float32)
    step = max(1, _PIECE // max(1, len(columns)))
    for start in range(0, len(rows), step):
        np.add(columns[:, start : start + step].T, np.float32(0.0), out=rows[start : start + step])
    return rows


def encode_label(
    frame: Frame, schema: Schema, *, strict: bool = True, first_row: int = 1
) -> NDArray[np.int32] | NDArray[np.float64]:
    """Return the label as class codes, or as numbers if the schema has no classes: see ``survival.py`` for times.

    A class matches if it has the same text, is equal (1, 1.0 and true are) or stands for the same number. A missing
    or unknown label is an error; if not ``strict``, it is -1, or NaN for a number, and infinite numbers stay.
    """
    label = schema.label
    target = label_column(frame, label.name)
    if label.event is not None:
        events = label_column(frame, label.event)
        return _encode_survival(target, events, label, first_row)
    if label.classes is None:
        return _encode_targets(target, label, strict, first_row)
    if strict:
        _check_usable(target, label.name)
    codes = class_places(target, label.classes, folded=label.folded)
    if not strict:
        return np.maximum(codes, -1).astype(np.int32)
    _stop_at(codes == MISSING, f"the label {label.name!r} is missing", "fill in or drop them", first_row)
    what = f"the label {label.name!r} is none of the {len(label.classes)} agreed classes"
    _stop_at(codes < MISSING, what, "correct these rows, drop them, or agree on the classes again", first_row)
    return codes.astype(np.int32)


def _infer_feature(series: Series, name: str, min_rows: int, kind: str | None) -> Feature:
    if is_void(series) or (is_number(series) and kind != "categorical"):
        return Feature(name, "categorical", categories=()) if kind == "categorical" else Feature(name)
    numeric_or_text(series, name)
    rows = category_texts(series)
    often = sorted((word for word in rows if rows[word] >= min_rows), key=lambda word: (-rows[word], word))
    named = sorted(often[:MAX_CATEGORIES])
    return Feature(name, "categorical", categories=tuple(named), other=len(named) < len(rows))


def _infer_classes(target: Series, label: str, first_row: int, *, asked: bool) -> tuple[Class, ...]:
    if not is_void(target):
        numeric_or_text(target, label)
    missing = target.is_null().to_numpy().astype(bool)
    if target.dtype.is_float():
        missing = np.isnan(target.to_numpy())
    _stop_at(missing, f"the label {label!r} is missing", "fill in or drop them", first_row)
    if is_text(target):
        classes = sorted(target.cast(nw.String).unique().to_list())
    else:
        values = plain_numbers(target)
        _stop_at(~np.isfinite(values), f"the label {label!r} is infinite", "correct or drop them", first_row)
        values = np.unique(values)
        whole = values.dtype.kind == "f" and not np.any(values != np.floor(values))
        classes = [int(value) for value in values.tolist()] if whole else values.tolist()
    check_few(len(classes), label, asked=asked)
    return tuple(classes)


def check_few(n: int, label: str, *, asked: bool) -> None:
    """Raise ``SchemaError`` if a label has very many values and is not declared as classes."""
    if n > MAX_CATEGORIES and not asked:
        raise SchemaError(
            f"the label {label!r} has {n} different values; set task='regression' if it is a "
            "number to predict, or task='classification' if these really are classes"
        )


def _encode_numbers(series: Series, feature: Feature, strict: bool, first_row: int) -> NDArray[np.float32]:
    name, noun = feature.column, "number" if feature.date is None else "date"
    if strict and feature.date is None:
        _check_usable(series, name)
    plain = series.to_numpy() if series.dtype == nw.Float32 and feature.date is None else None
    if plain is not None and plain.dtype == np.float32:
        values, strange = plain, np.zeros(len(plain), np.bool)
    else:
        numbers, strange = cell_numbers(series) if feature.date is None else cell_dates(series, feature.date)
        # via 64 bits, so that whole numbers and the same numbers read as floats round in the same way
        with np.errstate(over="ignore", under="ignore"):
            values = numbers.astype(np.float32)
    if not strict:
        return np.clip(values, -_LARGEST, _LARGEST)
    mend = f"make every cell a {noun} or empty, or agree on it as categorical"
    kind = "is numeric" if feature.date is None else "holds dates"
    _stop_at(strange, f"column {name!r} holds text, but the schema says it {kind},", mend, first_row, SchemaError)
    what = f"column {name!r} is infinite, or too large for a 32-bit float,"
    _stop_at(np.isinf(values), what, "leave these cells empty or scale the column", first_row)
    return values


def _encode_categories(series: Series, feature: Feature, strict: bool, first_row: int) -> NDArray[np.floating]:
    if feature.categories is None:
        raise SchemaError(f"the categories of {feature.name!r} are not agreed yet; name them in the schema")
    if strict:
        _check_usable(series, feature.name)
    codes = category_places(series, {word: code for code, word in enumerate(feature.categories)})
    if strict:
        what = f"column {feature.name!r} holds neither numbers, booleans nor text"
        _stop_at(codes == NEITHER, what, "convert these cells, or leave them empty", first_row, SchemaError)
    if feature.other:
        codes[codes == UNKNOWN] = len(feature.categories)
    return np.where(codes < 0, np.nan, codes)


def _encode_targets(target: Series, label: Label, strict: bool, first_row: int) -> NDArray[np.float64]:
    if strict:
        _check_usable(target, label.name)
    numbers, strange = cell_numbers(target)
    if not strict:
        return numbers
    name = f"the label {label.name!r}"
    mend = "make every cell a number; or did you mean classes?"
    _stop_at(strange, f"{name} holds text, but a number is to be predicted,", mend, first_row, SchemaError)
    _stop_at(np.isnan(numbers), f"{name} is missing", "fill in or drop them", first_row)
    _stop_at(np.isinf(numbers), f"{name} is infinite", "correct or drop them", first_row)
    return numbers


def _encode_survival(times: Series, events: Series, label: Label, first_row: int) -> NDArray[np.float64]:
    """Return times with the sign of the event; they are rounded as all numbers of a table are, to 32 bits."""
    with np.errstate(over="ignore"):
        numbers = _encode_targets(times, label, True, first_row).astype(np.float32).astype(np.float64)
    what, mend = f"the time {label.name!r}", "times count from the start of a row's own observation"
    _stop_at(numbers < 0, f"{what} is negative", f"correct or drop them: {mend}", first_row)
    _stop_at(np.isinf(numbers), f"{what} is too large for a 32-bit float", "use another unit", first_row)
    happened, strange = encode_events(events)
    name = f"the event {label.event!r}"
    _stop_at(happened < 0, f"{name} is missing", "fill in or drop them", first_row)
    mend = "write 1, true or yes where the event happened, and 0, false or no where a row was censored"
    _stop_at(strange, f"{name} is neither yes nor no", mend, first_row, SchemaError)
    return signed_times(numbers, happened > 0)


def _stop_at(bad: NDArray[np.bool], what: str, mend: str, first_row: int, error: type[InputError] = InputError) -> None:
    """Raise an error that counts the affected rows and names the first ones."""
    rows = np.flatnonzero(bad)
    if len(rows):
        which = places_text([first_row + row for row in rows[:3].tolist()], len(rows))
        raise error(f"{what} in {len(rows):,} of {len(bad):,} rows ({which}); {mend}")


def _check_usable(series: Series, name: str) -> None:
    """Raise ``SchemaError`` for a column of an unusable type; columns without values are fine."""
    if not (is_void(series) or holds_objects(series)):
        numeric_or_text(series, name)


def numeric_or_text(series: Series, name: str) -> None:
    """Raise ``SchemaError`` if a column holds neither numbers nor text."""
    if not (is_number(series) or is_text(series)):
        raise SchemaError(
            f"column {name!r} holds {series.dtype}; only numbers, booleans, dates and text can be used: convert it (a "
            "duration to hours, mixed objects to one type), or leave it out"
        )
