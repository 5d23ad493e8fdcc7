"""Tables that come as arrays: a pair (X, y), where X may also be a data frame."""

import math
from typing import Any

import narwhals as nw
import numpy as np

from silvan.data.cells import is_dates, numbers_of
from silvan.data.column_types import CellTypes, Kinds, kind_of
from silvan.data.typed_table import TypedTable, checked, describe_frame, read_frame
from silvan.errors import InputError
from silvan.util.cell_text import STRANGE, plain_value, value_text
from silvan.util.readable import format_bytes
from silvan.util.user_warnings import warn_user

Array = np.ndarray[Any, np.dtype[Any]]

_DENSE_BYTES = 2_000_000_000  # a sparse matrix that is larger when dense is refused


def densify(X: Any, *, warn: bool) -> Any:
    """Return a sparse matrix as a dense array, with a warning about its size; other input unchanged."""
    if not type(X).__module__.startswith("scipy.sparse"):
        return X
    size = 4 * math.prod(X.shape)
    if size > _DENSE_BYTES:
        most = format_bytes(_DENSE_BYTES)
        raise InputError(
            f"X is sparse, and dense it would take {format_bytes(size)}, over {most}: trees take dense tables; leave "
            "columns out, or pass fewer rows at a time"
        )
    if warn:
        warn_user(f"X is sparse and was made dense: {format_bytes(size)}")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is refused
        return X.astype(np.float32).toarray()


def read_pair(source: tuple[Any, ...], label: str, kinds: Kinds) -> TypedTable:
    """Read a tuple (X, y), matching rows by position."""
    import polars as pl

    if len(source) != 2:
        raise InputError(f"a tuple must be (X, y); got {len(source)} parts")
    X, y = densify(source[0], warn=True), source[1]
    columns: dict[str, Array] = {}
    refused: dict[str, str] = {}
    if isinstance(X, np.ndarray | list):
        columns = {f"x{i}": column for i, column in enumerate(_array(X, "X", 2).T)}
        parts = {n: _uniform(column, n, f"column {n[1:]} of X", refused, kinds) for n, column in columns.items()}
        frame = checked(nw.from_native(pl.DataFrame(parts), eager_only=True), "X")
        dates = frozenset(name for name in frame.columns if is_dates(frame[name], kind_of(kinds, name)))
        described = TypedTable(frame, refused, dates=dates)
    else:
        frame = checked(read_frame(X, "X must be a data frame or a two-dimensional array"), "X")
        described = describe_frame(frame, kinds)
        refused |= described.refused
    target = _array(_without_index(y), "y", 1)
    if len(frame) != len(target):
        raise InputError(f"X has {len(frame)} rows but y has {len(target)}; they must belong to the same rows")
    if label in frame.columns:
        raise InputError(f"X already has a column {label!r}; call the label something else")
    values = _uniform(target, label, "y", refused, kinds)
    made = described.frame.with_columns(nw.new_series(label, values, backend=frame.implementation))

    def texts(names: list[str]) -> list[Any]:
        of_frame = [] if described.texts is None else described.texts([name for name in names if name != label])
        objects = {name: a for name, a in {**columns, label: target}.items() if name in names and a.dtype == object}
        return [*of_frame, *(pl.Series(name, list(map(value_text, a)), pl.String) for name, a in objects.items())]

    return TypedTable(made, refused, texts, described.dates)


def _without_index(y: Any) -> Any:
    """Return the values of a series without its index, since X and y are matched by position."""
    series = nw.from_native(y, series_only=True, pass_through=True)
    if not isinstance(series, nw.Series):
        return y
    values = series.to_numpy()
    if values.dtype == object:
        values = values.copy()
        values[series.is_null().to_numpy()] = None
    return values


def _array(values: Any, name: str, ndim: int) -> Array:
    try:
        array = np.asarray(values)
    except ValueError:
        raise InputError(f"{name} has rows of different lengths") from None
    if not isinstance(values, np.ndarray) and _types_differ(values, array):
        array = np.asarray(values, dtype=object)  # otherwise one text would turn all numbers into text
    if array.ndim != ndim:
        shape = "two-dimensional, rows by columns" if ndim == 2 else "one-dimensional, one value a row"
        raise InputError.about(name, f"must be {shape}; got {type(values).__name__} of {array.ndim} dimensions")
    if array.dtype.kind not in "biufUO":
        raise InputError.about(name, f"must hold numbers or text; got {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8):
        return array.astype(np.float64)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _types_differ(values: Any, array: Array) -> bool:
    """Whether numpy changed values, by turning a list into text or merging several types."""
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2):
        return array.dtype.kind == "U"
    rows = [values] if array.ndim == 1 else values
    return len({type(value) for row in rows for value in row}) > 1


def _uniform(column: Array, name: str, what: str, refused: dict[str, str], kinds: Kinds) -> Array | list[str | None]:
    """Return a column of one type; objects of different types become text."""
    if column.dtype.kind in "biuf":
        return np.ascontiguousarray(column)
    values = [plain_value(value) for value in column.tolist()]
    present = [value for value in values if value is not None]
    if STRANGE in present:
        refused[name] = f"{what} mixes types; make it all numbers or all text"
        return [value_text(value) for value in values]
    cells = CellTypes(kind_of(kinds, name), typed=True)
    cells.add_values(present, [1] * len(present))
    if not any(isinstance(value, str) for value in present):
        numbers = np.array([math.nan if value is None else value for value in values])
        return numbers.astype(np.float64) if numbers.dtype == object else numbers
    texts = [value_text(value) for value in values]
    if cells.found in ("numeric", "empty") and cells.all_numbers:
        return np.array([math.nan if n is None else float(n) for n in numbers_of([text or "" for text in texts])])
    values_of = numbers_of([text or "0" for text in texts])
    cells.others = [row for row, number in enumerate(values_of, 1) if number is None][:3]
    if (complaint := cells.complaint(name)) is not None:
        refused[name] = complaint
    return texts
