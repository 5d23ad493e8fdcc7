"""Tables with types that fit all their rows: inspects columns of text and objects, and checks names.

If a source declares no types, a column gets the narrowest type that fits all its cells, so one row can change it. With
a schema, the cells of categories and classes are therefore read as text. ``column_types`` decides about columns of text
or objects.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import narwhals as nw
import numpy as np
from narwhals.exceptions import DuplicateError

from silvan.data.cells import cell_numbers, distinct, holds_objects, is_dates, is_text, text_columns
from silvan.data.column_types import CellTypes, Kinds, kind_of
from silvan.data.schema import Schema
from silvan.errors import InputError, SchemaError
from silvan.util.cell_text import STRANGE, value_text
from silvan.util.readable import format_names

if TYPE_CHECKING:
    import polars as pl

Frame = nw.DataFrame[Any]


class TypedTable(NamedTuple):
    """A table, with access to its original cells where types were inferred.

    ``refused`` explains why columns have no single type; their cells are text. ``unclear`` are those whose numbers can
    be read but are ambiguous. ``texts`` reads the original cells of columns whose type was inferred. ``dates`` are the
    columns of dates.
    """

    frame: Frame
    refused: dict[str, str]
    texts: "Callable[[list[str]], list[Any]] | None" = None
    dates: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()  # the detected format of a file
    pieces: "Callable[[], Iterator[pl.DataFrame]] | None" = None  # reads the cells of a file as written
    unclear: Mapping[str, str] = MappingProxyType({})

    def check_clear(self, schema: Schema) -> None:
        """Raise ``SchemaError`` if numbers that the schema needs are ambiguous."""
        for name in (f.column for f in schema.features if not f.categorical):
            if name in self.unclear:
                raise SchemaError(self.unclear[name])

    def by(self, schema: Schema) -> Frame:
        """Return the table with types that keep each cell readable by itself."""
        return self.with_texts(text_columns(schema))

    def with_texts(self, names: Collection[str]) -> Frame:
        """Return the table with some columns as text, if the source declares no types."""
        typed = [name for name in self.frame.columns if name in names and not is_text(self.frame[name])]
        if self.texts is None or not typed:
            return self.frame
        texts = [nw.from_native(text, series_only=True) for text in self.texts(typed)]
        backend = self.frame.implementation
        texts = [
            text
            if text.implementation == backend
            else nw.new_series(text.name, text.to_list(), nw.String, backend=backend)
            for text in texts
        ]
        return self.frame.with_columns(*texts)


def look_at_texts(frames: "Iterable[pl.DataFrame]", kinds: Kinds, typed: Collection[str] = ()) -> dict[str, CellTypes]:
    """Inspect all text columns; ``typed`` are those that the source declares as text."""
    import polars as pl

    found: dict[str, CellTypes] = {}
    for frame in frames:
        for column in frame:
            if column.dtype == pl.String:
                if column.name not in found:
                    found[column.name] = CellTypes(kind_of(kinds, column.name), typed=column.name in typed)
                found[column.name].add(column)
    return found


def settle(found: dict[str, CellTypes]) -> tuple[dict[str, Any], dict[str, str], frozenset[str]]:
    """Return the types of columns that hold no text, the complaints about others, and the columns of dates."""
    import polars as pl

    refused = {name: text for name, cells in found.items() if (text := cells.complaint(name)) is not None}
    types = {name: cells.narrowest() for name, cells in found.items() if cells.narrowest() != pl.String}
    return types, refused, frozenset(name for name, cells in found.items() if cells.found == "date")


def dates_in(schema: Any) -> frozenset[str]:
    """Return the columns of a frame with a date type."""
    return frozenset(name for name, dtype in schema.items() if dtype in (nw.Date, nw.Datetime))


def describe_frame(frame: Frame, kinds: Kinds) -> TypedTable:
    """Inspect the columns of text and objects; numbers mixed with markers of missing values become numbers."""
    refused: dict[str, str] = {}
    typed: list[Any] = []
    dates = set(dates_in(frame.schema))
    for name in frame.columns:
        series = frame[name]
        objects = holds_objects(series) and series.dtype == nw.Object
        if not objects and series.dtype != nw.String:
            continue
        values, rows = _counted(series, objects)
        if STRANGE in values:
            dates |= {name} if is_dates(series) else set()
            continue  # ``encode`` reports unusable columns
        cells = CellTypes(kind_of(kinds, name), typed=True)
        cells.add_values(values, rows)
        if cells.found == "date":
            dates.add(name)
        if cells.found == "numeric" and not cells.all_numbers:
            cells.others = (np.flatnonzero(cell_numbers(series)[1])[:3] + 1).tolist()
        complaint = cells.complaint(name)
        if complaint is not None:
            refused[name] = complaint
        new = _retyped(series, cells, objects)
        typed += [] if new is None else [new]
    if not typed:
        return TypedTable(frame, refused, None, frozenset(dates))
    names = {series.name for series in typed}
    texts = lambda wanted: [frame[name].to_native() for name in wanted if name in names]  # noqa: E731
    return TypedTable(frame.with_columns(*typed), refused, texts, frozenset(dates))


def _counted(series: Any, objects: bool) -> tuple[list[Any], list[int]]:
    """Return the distinct values of a column and the number of rows with each."""
    if objects:
        values, places = distinct(series)
        return values, np.bincount(places[places >= 0], minlength=len(values)).tolist()
    counts = series.drop_nulls().alias("word").value_counts(name="rows")
    return counts["word"].to_list(), counts["rows"].to_list()


def _retyped(series: Any, cells: CellTypes, objects: bool) -> Any:
    """Return a column of text or objects with its proper type; None if it has that already."""
    import polars as pl

    backend = series.implementation
    if cells.narrowest() == pl.String or not (cells.present or cells.markers):
        if not objects:
            return None
        return nw.new_series(series.name, list(map(value_text, series.to_list())), nw.String, backend=backend)
    numbers = [None if n != n else n for n in cell_numbers(series)[0].tolist()]
    return nw.new_series(series.name, numbers, nw.Float64, backend=backend)


def checked(frame: Frame, what: str) -> Frame:
    """Return a frame with text as column names; raise ``InputError`` if it has no rows or unusable names."""
    names = [str(name) for name in frame.columns]
    check_names(names, what)
    if not len(frame):
        raise InputError(f"{what} has columns but no rows; at least one row is needed")
    if names == list(frame.columns):
        return frame
    # pandas allows names that are not strings, and numbers columns by default
    frame = frame.rename(dict(zip(frame.columns, names, strict=True)))
    if names != list(frame.columns):
        raise InputError(f"the column names of {what} have several levels; join them into one string each")
    return frame


def check_names(names: list[str], what: str) -> None:
    """Raise ``InputError`` if there are no columns, or names are missing or repeated."""
    if not names:
        raise InputError(f"{what} is empty: it has no columns")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(
            f"{what} has more than one column called {format_names(twice)}; give every column its own name"
        )
    if not all(name.strip() for name in names):
        position = next(i for i, name in enumerate(names, 1) if not name.strip())
        raise InputError(f"column {position} of {what} has no name; name it, or remove it if it only numbers the rows")


def read_frame(source: Any, wanted: str) -> Frame:
    """Return any library's data frame as a narwhals frame; ``wanted`` names the expected input for errors."""
    try:
        frame = nw.from_native(source)
    except DuplicateError:
        # pyarrow's columns are the data, its column_names the names
        names = getattr(source, "column_names", None) or source.columns
        check_names([str(name) for name in names], "the table")
        raise
    except TypeError:
        raise InputError(f"{wanted}; got {type(source).__name__}") from None
    return frame.collect() if isinstance(frame, nw.LazyFrame) else frame
