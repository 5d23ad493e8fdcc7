"""Tables in files and databases, whose rows are read again for each pass, one piece at a time.

Parquet and CSV files are read in place. The result of a database is stored, because it might change. All pieces have
the same types: those that fit all rows, or with a schema those that keep each cell readable by itself.
"""

import logging
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import narwhals as nw

from silvan.data.column_types import Kinds, convert
from silvan.data.disk_arrays import Folder, StoredFrames
from silvan.data.hospital.cohort_rows import CohortRows
from silvan.data.readers.database import read_batches
from silvan.data.readers.delimited import Delimited
from silvan.data.readers.excel import Sheet
from silvan.data.readers.query import Query, is_url
from silvan.data.readers.table_file import Table, UnchangedFile, as_table
from silvan.data.typed_table import TypedTable, check_names, dates_in, look_at_texts, settle
from silvan.errors import InputError, UnavailableError

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger("silvan.data")

_MOST = 1 << 26  # bytes read at a time, unless memory is limited further
_PIECE = 1 << 22  # bytes of a file inspected at a time, where cells are inspected as written

Frames = Callable[[Sequence[str], int], "Iterator[pl.DataFrame]"]
"""Reads columns as the source has them, a number of rows at a time."""

Read = Callable[[Sequence[str], int, Collection[str]], Iterator[Any]]
"""Reads columns, a number of rows at a time; some of them as text, if their types were inferred."""


class StoredTable(NamedTuple):
    """A table that can be read again; fields from ``refused`` on are as in ``TypedTable``."""

    what: str  # its description, for messages
    columns: Sequence[str]
    rows: int
    read: Read
    refused: dict[str, str]
    dates: frozenset[str]
    notes: tuple[str, ...] = ()
    pieces: "Callable[[], Iterator[pl.DataFrame]] | None" = None
    unclear: Mapping[str, str] = MappingProxyType({})

    def check(self) -> None:
        """Raise ``InputError`` if there are no rows, or unusable names."""
        check_names(list(self.columns), self.what)
        if not self.rows:
            raise InputError(f"{self.what} has columns but no rows; at least one row is needed")

    def whole(self) -> TypedTable:
        """Read all rows."""
        import polars as pl

        def joined(names: Sequence[str], as_text: Collection[str]) -> "pl.DataFrame":
            return pl.concat(self.read(names, self.rows, as_text))

        self.check()
        frame = nw.from_native(joined(self.columns, ()), eager_only=True)
        dates = self.dates | dates_in(frame.schema)
        texts = lambda names: joined(names, names).get_columns()  # noqa: E731
        return TypedTable(frame, self.refused, texts, dates, self.notes, self.pieces, self.unclear)


def open_stored(source: Any, kinds: Kinds, room: int | None = None, folder: Folder = None) -> StoredTable | None:
    """Open a file or a query, keeping ``room`` bytes in memory at a time; None for anything else.

    The result of a database is stored in a file in ``folder``, or in memory if ``room`` is None.
    """
    if is_url(source) or isinstance(source, Query):
        query = source if isinstance(source, Query) else Query(source)
        return _open_query(query, kinds, room or _MOST, lambda: [] if room is None else StoredFrames(folder))
    if isinstance(source, CohortRows):
        with source.opened(folder) as made:
            opened = _open_query(made, kinds, room or _MOST, lambda: [] if room is None else StoredFrames(folder))
        return opened._replace(what=f"the cohort in {source.source.where}")
    file = as_table(source)
    if file is None:
        return None
    kind = file.kind()
    if kind in ("csv", "excel"):
        return _open_cells(file, kinds, room)
    if kind == "parquet" and not file.is_zip:
        return _open_parquet(file, kinds, room or sys.maxsize)
    frame = read_arrow(file)
    frames = lambda names, rows: frame.select(names).iter_slices(rows)  # noqa: E731
    return _typed(file, frame.schema, len(frame), frames, kinds, sys.maxsize)


def typed_frames(
    what: str, columns: Sequence[str], texts: Sequence[str], rows: int, frames: Frames, kinds: Kinds, room: int
) -> StoredTable:
    """Inspect all text cells of a source that declares column types."""
    inspected = look_at_texts(frames(texts, batch_rows(room, len(texts))) if texts else (), kinds, texts)
    types, refused, dates = settle(inspected)
    return StoredTable(what, columns, rows, _reader(frames, types), refused, dates)


def _typed(table: Table, schema: "pl.Schema", rows: int, frames: Frames, kinds: Kinds, room: int) -> StoredTable:
    """Return a Parquet or Feather file."""
    import polars as pl

    texts = [name for name, dtype in schema.items() if dtype == pl.String]
    opened = typed_frames(table.where, list(schema), texts, rows, frames, kinds, room)
    return opened._replace(notes=tuple(table.renaming))


def batch_rows(room: int, columns: int) -> int:
    """Return the number of rows of some columns that fit in ``room`` bytes."""
    return max(1, room // (8 * max(columns, 8)))  # a single column may hold long texts


def _reader(frames: Frames, types: Mapping[str, Any]) -> Read:
    """Return a reader of columns that converts text columns unless they are requested as text."""

    def read(columns: Sequence[str], rows: int, as_text: Collection[str]) -> "Iterator[pl.DataFrame]":
        names = [name for name in types if name in columns and name not in as_text]
        for frame in frames(columns, rows):
            yield frame.with_columns([convert(frame[name], types[name]) for name in names])

    return read


def _open_parquet(table: Table, kinds: Kinds, room: int) -> StoredTable:
    import polars as pl

    path, file = table.file, UnchangedFile(table.file)

    def scan() -> "pl.LazyFrame":
        return pl.scan_parquet(path, glob=False).rename(called)

    def frames(columns: Sequence[str], rows: int) -> "Iterator[pl.DataFrame]":
        for start in range(0, n, rows):
            file.check()
            try:
                some = scan().select(columns).slice(start, min(rows, n)).collect()
            except (pl.exceptions.PolarsError, OSError):
                raise _not_arrow(table) from None
            yield table.without(some)

    try:
        called = table.renamed(pl.scan_parquet(path, glob=False).collect_schema().names())
        schema = scan().collect_schema()
        n = int(scan().select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, OSError):
        raise _not_arrow(table) from None
    return _typed(table, schema, n, frames, kinds, room)


_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds to wait before repeating a query whose connection broke."""


def _open_query(
    query: Query, kinds: Kinds, room: int, store: "Callable[[], list[pl.DataFrame] | StoredFrames]"
) -> StoredTable:
    """Store the database's result and inspect all text cells."""
    kept = store()
    names: list[str] = []
    n, pauses, connected = 0, iter(_PAUSES), False

    def keep(frame: "pl.DataFrame") -> None:
        nonlocal names, n
        names, n = frame.columns, n + len(frame)
        kept.append(frame)

    def frames(columns: Sequence[str], rows: int) -> "Iterator[pl.DataFrame]":
        for frame in kept:
            yield from frame.select(columns).iter_slices(rows)

    while True:
        try:
            retyped = read_batches(query, keep, room)
            break
        except UnavailableError as error:
            connected = connected or error.connected
            pause = next(pauses, None) if connected else None
            if pause is None:
                raise
            log.warning("%s; repeating the query in %g s", error, pause)
            time.sleep(pause)
            kept, n = store(), 0
    found = look_at_texts(kept, kinds, set(names) - retyped.mixed)
    for cells in found.values():
        cells.others.clear()  # row numbers of a query mean nothing to anybody
    types, refused, dates = settle({name: cells for name, cells in found.items() if name not in retyped.types})
    read = _reader(frames, types | retyped.types)
    return StoredTable(f"the query on {query.where}", names, n, read, refused | retyped.refused, dates)


def _open_cells(table: Table, kinds: Kinds, room: int | None) -> StoredTable:
    """Inspect all cells to find the narrowest types that fit."""
    import polars as pl

    file, size = open_cells(table), max((room or _MOST) // 2, 1)
    check_names(file.header(), table.where)
    # if all rows fit in memory, polars' type inference is four times as fast as reading texts
    typed = file.typed() if room is None and isinstance(file, Delimited) else None
    found = look_at_texts(file.frames(size) if typed is None else [typed], kinds)
    _, refused, dates = settle(found)
    types, unclear = {name: cells.narrowest() for name, cells in found.items()}, file.complaints()

    def read(columns: Sequence[str], rows: int, as_text: Collection[str]) -> "Iterator[pl.DataFrame]":
        for frame in file.frames(size) if typed is None or as_text else [typed]:
            for some in frame.select(columns).iter_slices(rows):
                texts = [column for column in some if column.dtype == pl.String]
                yield some.with_columns(convert(c, pl.String if c.name in as_text else types[c.name]) for c in texts)

    rows = max((cells.seen for cells in found.values()), default=0) if typed is None else len(typed)
    columns, pieces = list(types if typed is None else typed.columns), lambda: file.frames(min(size, _PIECE))
    notes = tuple(file.notes)
    return StoredTable(table.where, columns, rows, read, refused | unclear, dates, notes, pieces, unclear)


def open_cells(table: Table) -> Delimited | Sheet:
    """Open a file with text cells: a text file, or a sheet of an Excel file."""
    return Sheet(table) if table.kind() == "excel" else Delimited(table)


def read_arrow(table: Table) -> "pl.DataFrame":
    """Read a whole Parquet or Feather file."""
    import polars as pl

    read: Any = pl.read_parquet if table.kind() == "parquet" else pl.read_ipc
    try:
        if table.is_zip:
            with table.open() as file:
                frame = read(file.read())
        else:
            frame = read(table.file, **({"glob": False} if table.kind() == "parquet" else {}))
    except (pl.exceptions.PolarsError, OSError):
        raise _not_arrow(table) from None
    return table.without(frame.rename(table.renamed(frame.columns)))


def _not_arrow(table: Table) -> InputError:
    """Return the error for a broken Parquet or Feather file; the reader's own message might quote cells."""
    kind = table.kind().capitalize()
    return InputError(f"{table.where} cannot be read as {kind}; it may be cut short or of another kind")
