"""What workers do with the partitions of a table: inspect columns and read rows."""

import io
from typing import TYPE_CHECKING, Any, NamedTuple

from silvan.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_TYPES = {
    "whole numbers": "Int64",
    "numbers": "Float64",
    "true and false": "Boolean",
    "text": "String",
    "dates": "Date",
    "times": "Datetime",
}
"""Polars types by the kind of a column, in words."""

_KINDS = {name: kind for kind, name in _TYPES.items()} | {"Categorical": "text", "Enum": "text", "Null": ""}


class Looked(NamedTuple):
    """The description of a partition: the kind of each column in words, and the number of rows."""

    columns: dict[str, str]
    rows: int


def look_at(source: Any) -> Looked:
    """Inspect the columns of a partition and count its rows."""
    import polars as pl

    if isinstance(source, str):
        lazy = _scan(source)
        try:
            rows = int(lazy.select(pl.len()).collect().item())
            dtypes = dict(lazy.collect_schema())
        except (pl.exceptions.PolarsError, OSError):
            raise _broken(source) from None
    else:
        rows, dtypes = len(source), dict(_converted(source).schema)
    return Looked({name: kind_of_column(dtype) for name, dtype in dtypes.items()}, rows)


def kind_of_column(dtype: Any) -> str:
    """Return the kind of a column in words; empty if it has no values."""
    if dtype.is_integer():
        return "whole numbers"
    return "numbers" if dtype.is_numeric() else _KINDS.get(dtype.base_type().__name__, str(dtype))


def read_frame_of(source: Any, names: list[str], casts: dict[str, str], start: int = 0, stop: int | None = None) -> Any:
    """Return some rows of some columns of a partition; ``casts`` are the common types of some columns."""
    import polars as pl

    if isinstance(source, str):
        try:
            frame = _scan(source).select(names).slice(start, None if stop is None else stop - start).collect()
        except (pl.exceptions.PolarsError, OSError):
            raise _broken(source) from None
    else:
        frame = _converted(source.iloc[start:stop]).select(names)
    try:
        some = {name: _TYPES[kind] for name, kind in casts.items() if name in names and kind in _TYPES}
        return frame.cast({name: getattr(pl, dtype) for name, dtype in some.items()})
    except pl.exceptions.PolarsError:  # its message quotes cells
        raise InputError("the types of a partition's columns have changed; was the table modified?") from None


def read_slice(source: Any, names: list[str], casts: dict[str, str], start: int, stop: int) -> bytes:
    """Return some rows of some columns of a partition, as an Arrow file."""
    packed = io.BytesIO()
    read_frame_of(source, names, casts, start, stop).write_ipc(packed)  # numbers hardly become smaller
    return packed.getvalue()


def _scan(path: str) -> "pl.LazyFrame":
    import polars as pl

    return pl.scan_parquet(path, glob=False)


def _broken(path: str) -> InputError:
    return InputError(
        f"{path!r} cannot be read by a worker of the cluster; it may be cut short, of another kind, or not on its disk"
    )


def _converted(frame: Any) -> "pl.DataFrame":
    """Return a pandas data frame as one of polars, without its index; raise ``InputError`` for mixed columns."""
    import polars as pl

    columns = []
    for place, name in enumerate(frame.columns):
        try:
            column: pl.Series = pl.from_pandas(frame.iloc[:, place])  # type: ignore[assignment]
        except Exception:  # of pyarrow; its message quotes cells
            raise InputError(f"column {str(name)!r} mixes types, such as numbers and text; make it one type") from None
        columns.append(column.alias(str(name)))
    return pl.DataFrame(columns)
