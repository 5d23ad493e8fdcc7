"""Encode a table as arrays of numbers, by a schema.

A feature is a 32-bit float: numbers as they are, categories as their position in the schema, NaN for missing.
The schema decides, never the table, so the same row gives the same numbers at every site. Two sites may store
one column differently, though: a code may be text here and a whole number there, and one missing cell turns
whole numbers to floats. So categories are compared by their plain text form, and classes by value first.

Work is done on columns and on distinct values; nothing loops over rows. Errors count rows and never quote a
value: they may be shown to somebody who must not see it.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, Literal

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from silvan.data.schema import MAX_CATEGORIES, Class, Feature, Label, Schema
from silvan.data.table import Frame
from silvan.errors import InputError, SchemaError
from silvan.util.readable import format_names

Task = Literal["classification", "regression"]
Series = nw.Series[Any]


def infer_schema(
    frame: Frame,
    label: str = "label",
    *,
    task: Task | None = None,
    exclude: Iterable[str] = (),
    min_category_rows: int = 1,
) -> Schema:
    """Describe the columns of a table as they are.

    Numbers and booleans become numeric features, text becomes categorical, in the order of the columns.
    A column without any value is numeric.

    Parameters
    ----------
    frame
        The frame that ``read_table`` returned.
    label
        The column to predict.
    task
        None means regression if the label is floating point and has fractions, otherwise classification.
        Classes that are floats without fractions are named by whole numbers, since a table that had a missing
        label once has 0.0 and 1.0 where others have 0 and 1.
    exclude
        Columns that are not features, such as the site or an identifier.
    min_category_rows
        Only categories with at least so many rows are named, and at most ``MAX_CATEGORIES``, the most
        frequent. The others share one code.
    """
    if task not in (None, "classification", "regression"):
        raise InputError(f"task must be None, 'classification' or 'regression'; got {task!r}")
    label_column(frame, label)
    left_out = {label, exclude} if isinstance(exclude, str) else {label, *exclude}
    absent = sorted(left_out.difference(frame.columns))
    if absent:
        raise SchemaError(f"the table has no column {format_names(absent)} to exclude; check the spelling")
    features = infer_features(frame, left_out, min_category_rows)
    if not features:
        raise SchemaError(f"no column is left to predict {label!r} from; add features or exclude less")
    return Schema(features, infer_label(frame, label, task))


def infer_label(frame: Frame, label: str, task: Task | None = None) -> Label:
    """Describe the column to predict."""
    return describe_label(label_column(frame, label), label, task)


def describe_label(target: Series, label: str, task: Task | None = None) -> Label:
    """Describe some rows of the column to predict."""
    if (task or infer_task(target)) == "regression":
        _targets(target, label)
        return Label(label)
    return Label(label, _infer_classes(target, label, asked=task is not None))


def infer_features(frame: Frame, exclude: Iterable[str] = (), min_category_rows: int = 1) -> tuple[Feature, ...]:
    """Describe all columns but some as features, in their order."""
    left_out = set(exclude)
    names = [name for name in frame.columns if name not in left_out]
    return tuple(_infer_feature(frame[name], name, min_category_rows) for name in names)


def category_texts(series: Series) -> dict[str, int]:
    """Count the rows of each category of a column, by the text form that all sites share."""
    series = series.drop_nulls()
    if not is_text(series):
        values, rows = np.unique(_numbers(series), return_counts=True)
        pairs = [(value, n) for value, n in zip(values.tolist(), rows.tolist(), strict=True) if value == value]
    else:
        counts = series.cast(nw.String).alias("word").value_counts(name="rows")
        pairs = list(zip(counts["word"].to_list(), counts["rows"].to_list(), strict=True))
    texts: dict[str, int] = {}
    for value, n in pairs:
        texts[_text(value)] = texts.get(_text(value), 0) + n
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
        close = get_close_matches(label, frame.columns, n=3) or frame.columns[-3:]
        raise SchemaError(f"the table has no label column {label!r}; did you mean {format_names(close)}?")
    return frame[label]


def encode_features(
    frame: Frame, schema: Schema, *, fill_absent: bool = False, strict: bool = True
) -> NDArray[np.float32]:
    """Return the schema's features as an array, one row a row, one column a feature.

    Columns are found by name. A category that the schema does not name gets the code after the last one if
    the feature has ``other``, and is missing if not. A column of numbers may stand for categories by their
    text form: 1 and 1.0 are ``"1"``, true is ``"true"``. A column that the table lacks is an error, or missing
    throughout with ``fill_absent``. An infinite number is an error, or stays infinite if not ``strict``.
    """
    present = set(frame.columns)
    absent = [name for name in schema.names if name not in present]
    if absent and not fill_absent:
        raise SchemaError(
            f"the table lacks {format_names(absent, most=50)}; add these columns, empty if unknown, or agree on "
            "a schema without them"
        )
    # filled by column and turned once: a column at a time would touch every cache line for each column
    columns = np.empty((len(schema.features), len(frame)), dtype=np.float32)
    for values, feature in zip(columns, schema.features, strict=True):
        values[:] = _encode_feature(frame[feature.name], feature, strict) if feature.name in present else np.nan
    columns += 0.0  # -0.0 becomes 0.0
    return np.ascontiguousarray(columns.T)


def encode_label(frame: Frame, schema: Schema, *, strict: bool = True) -> NDArray[np.int32] | NDArray[np.float64]:
    """Return the label as class codes, or as numbers if the schema has no classes.

    A class matches if it is equal (1, 1.0 and true are) or has the same text form. What is missing or none of the
    classes is an error; if not ``strict`` it is -1, or NaN for a number, and an infinite number stays as it is.
    """
    label = schema.label
    target = label_column(frame, label.name)
    if label.classes is None:
        return _targets(target, label.name, strict)
    if strict:
        _check_present(target, label.name)
    by_value = {value: code for code, value in enumerate(label.classes)}
    by_text = {_text(value): code for code, value in enumerate(label.classes)}
    codes = _codes(target, lambda value: by_value.get(value, by_text.get(_text(value), -1)))
    unknown = int(np.count_nonzero(codes < 0))
    if unknown and strict:
        raise InputError(
            f"the label {label.name!r} is none of the {len(by_value)} agreed classes in {unknown} of "
            f"{len(target)} rows; correct these rows, drop them, or agree on the classes again"
        )
    return codes.astype(np.int32)


def _infer_feature(series: Series, name: str, min_rows: int) -> Feature:
    if _is_void(series) or _is_number(series):
        return Feature(name)
    if not is_text(series):
        raise SchemaError(_unusable(series, name))
    rows = category_texts(series)
    often = sorted((word for word in rows if rows[word] >= min_rows), key=lambda word: (-rows[word], word))
    named = sorted(often[:MAX_CATEGORIES])
    return Feature(name, "categorical", categories=tuple(named), other=len(named) < len(rows))


def _infer_classes(target: Series, label: str, *, asked: bool) -> tuple[Class, ...]:
    _check_present(target, label)
    if is_text(target):
        classes = sorted(target.cast(nw.String).unique().to_list())
    else:
        values = _numbers(target)
        _check_finite(values, label)
        values = np.unique(values)
        whole = values.dtype.kind == "f" and not np.any(values != np.floor(values))
        classes = [int(value) for value in values.tolist()] if whole else values.tolist()
    check_few(len(classes), label, asked=asked)
    return tuple(classes)


def check_few(n: int, label: str, *, asked: bool) -> None:
    """Raise ``SchemaError`` if a label has very many values and nobody said that they are classes."""
    if n > MAX_CATEGORIES and not asked:
        raise SchemaError(
            f"the label {label!r} has {n} different values; say task='regression' if it is a "
            "number to predict, or task='classification' if these really are classes"
        )


def _encode_feature(series: Series, feature: Feature, strict: bool) -> NDArray[np.floating]:
    name = feature.name
    if _is_void(series):
        # a column without values has no kind of its own, whatever type it was read as
        return np.full(len(series), np.nan, dtype=np.float32)
    numeric_or_text(series, name)
    if feature.categorical:
        return _encode_categories(series, feature)
    if is_text(series):
        raise SchemaError(
            f"column {name!r} holds text, but the schema says it is numeric; make every cell a number or "
            "empty, or agree on it as categorical"
        )
    # by way of 64 bits, so that whole numbers and the same numbers read as floats round alike
    with np.errstate(over="ignore", under="ignore"):
        values = series.cast(nw.Float64).to_numpy().astype(np.float32)
    endless = int(np.count_nonzero(np.isinf(values)))
    if endless and strict:
        raise InputError(
            f"column {name!r} is infinite, or too large for a 32-bit float, in {endless} of {len(values)} "
            "rows; leave these cells empty or scale the column"
        )
    return values


def _encode_categories(series: Series, feature: Feature) -> NDArray[np.floating]:
    if feature.categories is None:
        raise SchemaError(f"the categories of {feature.name!r} are not agreed yet; name them in the schema")
    code_of = {word: code for code, word in enumerate(feature.categories)}
    unnamed = len(code_of) if feature.other else -1
    codes = _codes(series, lambda value: code_of.get(_text(value), unnamed))
    return np.where(codes < 0, np.nan, codes)


def _codes(series: Series, code: Callable[[Any], int]) -> NDArray[np.int64]:
    """Call ``code`` once for each distinct value; -1 where missing."""
    codes = np.full(len(series), -1, dtype=np.int64)
    present = ~series.is_null().to_numpy().astype(bool)
    series = series.drop_nulls()
    if is_text(series):
        words = series.cast(nw.String)
        distinct = words.unique().to_list()
        if distinct:
            new = [code(word) for word in distinct]
            codes[present] = words.replace_strict(distinct, new, return_dtype=nw.Int64).to_numpy()
    else:
        values, inverse = np.unique(_numbers(series), return_inverse=True)
        # NaN, where the library does not count it as null
        new = [-1 if value != value else code(value) for value in values.tolist()]
        codes[present] = np.array(new, dtype=np.int64)[inverse]
    return codes


def _text(value: Class) -> str:
    """Return a value as the text that all sites use: ``1`` for 1 and 1.0, ``true`` for True."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _numbers(series: Series) -> NDArray[Any]:
    """Return the values of a column without nulls; whole numbers stay whole, since large ones do not fit a float."""
    if series.dtype == nw.Boolean:
        return series.to_numpy().astype(bool)
    if series.dtype.is_integer() and series.dtype not in (nw.Int128, nw.UInt128):
        return series.to_numpy()
    return series.cast(nw.Float64).to_numpy()


def _targets(target: Series, label: str, strict: bool = True) -> NDArray[np.float64]:
    if strict:
        _check_present(target, label)
    if not _is_number(target):
        raise SchemaError(f"the label {label!r} holds text, but a number is to be predicted; did you mean classes?")
    values = target.cast(nw.Float64).to_numpy().astype(np.float64)
    if strict:
        _check_finite(values, label)
    return values


def _check_present(target: Series, label: str) -> None:
    if not (_is_void(target) or _is_number(target) or is_text(target)):
        raise SchemaError(_unusable(target, label))
    missing = target.null_count()
    if target.dtype.is_float():
        missing = int(np.count_nonzero(np.isnan(target.to_numpy())))
    if missing:
        raise InputError(f"the label {label!r} is missing in {missing} of {len(target)} rows; fill in or drop them")


def _check_finite(values: NDArray[Any], label: str) -> None:
    endless = int(np.count_nonzero(~np.isfinite(values)))
    if endless:
        raise InputError(f"the label {label!r} is infinite in {endless} of {len(values)} rows; correct or drop them")


def _is_void(series: Series) -> bool:
    return series.null_count() == len(series)


def _is_number(series: Series) -> bool:
    return series.dtype.is_numeric() or series.dtype == nw.Boolean


def is_text(series: Series) -> bool:
    """Whether a column holds text."""
    return series.dtype in (nw.String, nw.Categorical, nw.Enum)


def numeric_or_text(series: Series, name: str) -> None:
    """Raise ``SchemaError`` if a column holds neither numbers nor text."""
    if not (_is_number(series) or is_text(series)):
        raise SchemaError(_unusable(series, name))


def _unusable(series: Series, name: str) -> str:
    return (
        f"column {name!r} holds {series.dtype}; only numbers, booleans and text can be used: convert it (a "
        "date to days or years, mixed objects to one type), or leave it out"
    )
