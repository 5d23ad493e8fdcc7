"""Read tables a batch of rows at a time.

``Whole`` is a table in memory: one batch. ``Batched`` reads its source again for every pass, so that no more than a
batch is in memory at a time: a Parquet or CSV file is read where it lies, what a database answers is kept in a file
without a name, since it might answer differently the next time. All batches of a table have the same types: those
that all rows fit, or, with a schema, those in which every cell can be read by itself.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any

import narwhals as nw

from silvan.data.cells import text_columns
from silvan.data.column_types import Kinds, convert, said_categorical
from silvan.data.disk_arrays import Folder, StoredFrames
from silvan.data.readers.database import read_batches
from silvan.data.readers.delimited import Delimited
from silvan.data.readers.query import Query
from silvan.data.readers.table_file import Table, UnchangedFile, as_table
from silvan.data.schema import Schema
from silvan.data.table import PIECE, as_query, not_arrow, open_table, settle_query, without
from silvan.data.typed_table import Frame, check_names, dates_in, look_at_texts, settle
from silvan.errors import InputError

if TYPE_CHECKING:
    import polars as pl


class Batched:
    """A table that is read again whenever it is needed, ``room`` bytes of it at a time.

    ``refused`` says of columns without one type why they cannot be described. The cells of columns that ``kinds`` says
    are categorical are texts, if the source has them; ``dtypes`` are the types without that. ``dates`` are the columns
    of dates, ``notes`` what was found out of how a file is written; ``pieces`` reads its cells as they are written.
    """

    def __init__(
        self,
        source: Any,
        label: str,
        room: int,
        folder: Folder = None,
        exclude: Sequence[str] = (),
        kinds: Kinds | None = None,
    ) -> None:
        self.room, self.folder, self.kinds = max(room, 1), folder, kinds or {}
        self.refused: dict[str, str] = {}
        self.dates: frozenset[str] = frozenset()
        self.notes: tuple[str, ...] = ()
        self.pieces: Callable[[], Iterator[pl.DataFrame]] | None = None
        columns, self.rows, self._read = self._open(source, label)
        check_names(list(columns), self.what)
        if not self.rows:
            raise InputError(f"{self.what} has columns but no rows; at least one row is needed")
        self.excluded = [name for name in exclude if name in columns]
        self.names = [name for name in columns if name not in self.excluded]
        self.refused = {name: text for name, text in self.refused.items() if name in self.names}
        empty = nw.from_native(next(self._read(self.names, 1, ()))[:0], eager_only=True)
        self.dtypes = dict(empty.schema)
        self.dates = frozenset(self.names) & (self.dates | dates_in(self.dtypes))

    def __len__(self) -> int:
        return self.rows

    def batches(self, names: Sequence[str] | None = None, schema: Schema | None = None) -> Iterator[Frame]:
        """Yield all rows in batches, in their order; only the named columns, if any are named."""
        names = self.names if names is None else list(names)
        wanted = said_categorical(self.kinds) if schema is None else text_columns(schema)
        as_text = [name for name in wanted if name in names]
        for frame in self._read(names, self._batch_rows(len(names)), as_text):
            yield nw.from_native(frame, eager_only=True)

    def _batch_rows(self, columns: int) -> int:
        return max(1, self.room // (8 * max(columns, 8)))  # a single column may be of text

    def _open(self, source: Any, label: str) -> "tuple[Sequence[str], int, _Read]":
        """Return the columns of a source, how many rows it has, and the function that reads it."""
        query = as_query(source)
        if query is not None:
            self.what = f"the query on {query.where}"
            return self._open_query(query)
        file, self.what = as_table(source), "the table"
        if file is not None:
            kind, self.what = file.kind(), file.where
            if kind == "csv":
                return self._open_csv(file)
            if kind == "parquet" and not file.is_zip:
                return self._open_parquet(file)
        return self._open_whole(source, label)

    def _open_whole(self, source: Any, label: str) -> "tuple[Sequence[str], int, _Read]":
        """Read the source once, and keep it in memory."""
        table = open_table(source, label, self.kinds)
        self.refused, self.dates = table.refused, table.dates
        self.notes, self.pieces = table.notes, table.pieces

        def read(names: Sequence[str], rows: int, as_text: Collection[str]) -> Iterator[Any]:
            some: Any = table.with_texts(as_text).select(names)
            for start in range(0, len(some), rows):
                yield some[start : start + rows].to_native()

        return table.frame.columns, len(table.frame), read

    def _open_parquet(self, table: Table) -> "tuple[Sequence[str], int, _Read]":
        """Look at all cells of text once; every pass then reads the file again."""
        import polars as pl

        path, file = table.file, UnchangedFile(table.file)

        def scan() -> "pl.LazyFrame":
            return pl.scan_parquet(path, glob=False).rename(called)

        try:
            called = table.renamed(pl.scan_parquet(path, glob=False).collect_schema().names())
            schema = scan().collect_schema()
            n = int(scan().select(pl.len()).collect().item())
        except (pl.exceptions.PolarsError, OSError):
            raise not_arrow(table) from None
        self.notes = tuple(table.renaming)

        def frames(columns: Sequence[str], rows: int) -> "Iterator[pl.DataFrame]":
            for start in range(0, n, rows):
                file.check()
                try:
                    some = scan().select(columns).slice(start, rows).collect()
                except (pl.exceptions.PolarsError, OSError):
                    raise not_arrow(table) from None
                yield without(some, table.missing)

        texts = [name for name, dtype in schema.items() if dtype == pl.String]
        return schema.names(), n, self._read_typed(frames, texts)

    def _read_typed(
        self, frames: "Callable[[Sequence[str], int], Iterator[pl.DataFrame]]", texts: Sequence[str]
    ) -> "_Read":
        """Look at all cells of text once, in a source that has types of its own; return what reads all columns."""
        found = look_at_texts(frames(texts, self._batch_rows(len(texts))) if texts else (), self.kinds, texts)
        types, self.refused, self.dates = settle(found)

        def read(columns: Sequence[str], rows: int, as_text: Collection[str]) -> "Iterator[pl.DataFrame]":
            for some in frames(columns, rows):
                yield convert_texts(some, types, as_text)

        return read

    def _open_query(self, query: Query) -> "tuple[Sequence[str], int, _Read]":
        """Keep what the database answers, and look at all cells of text."""
        kept, names, n = StoredFrames(self.folder), [], 0

        def keep(frame: "pl.DataFrame") -> None:
            nonlocal names, n
            names, n = frame.columns, n + len(frame)
            kept.append(frame)

        retyped = read_batches(query, keep, self.room)
        types, self.refused, self.dates = settle_query(kept, self.kinds, names, retyped)

        def read(columns: Sequence[str], rows: int, as_text: Collection[str]) -> "Iterator[pl.DataFrame]":
            for frame in kept:
                yield from convert_texts(frame.select(columns), types, as_text).iter_slices(rows)

        return names, n, read

    def _open_csv(self, table: Table) -> "tuple[Sequence[str], int, _Read]":
        """Look at all cells once, for the narrowest type that fits; every pass then reads the file again."""
        import polars as pl

        file = Delimited(table)
        check_names(file.header(), self.what)
        size = max(self.room // 2, 1)
        found = look_at_texts(file.frames(size), self.kinds)
        _, self.refused, self.dates = settle(found)
        self.refused |= file.complaints()
        self.notes, self.pieces = tuple(file.notes), lambda: file.frames(min(size, PIECE))
        types = {name: cells.narrowest() for name, cells in found.items()}
        n = max((cells.seen for cells in found.values()), default=0)

        def read(columns: Sequence[str], rows: int, as_text: Collection[str]) -> "Iterator[pl.DataFrame]":
            wanted = {name: pl.String if name in as_text else types[name] for name in columns}
            for frame in file.frames(size):
                for some in frame.select(columns).iter_slices(rows):
                    yield convert_texts(some, wanted, ())

        return list(types), n, read


class Whole(Batched):
    """A table in memory: one batch, which is kept."""

    def __init__(
        self, source: Any, label: str = "label", exclude: Sequence[str] = (), kinds: Kinds | None = None
    ) -> None:
        super().__init__(source, label, sys.maxsize, None, exclude, kinds)

    def _open(self, source: Any, label: str) -> "tuple[Sequence[str], int, _Read]":
        self.what = "the table"
        return self._open_whole(source, label)

    @cached_property
    def frame(self) -> Frame:
        """All rows, as they are without a schema."""
        return next(super().batches())

    def batches(self, names: Sequence[str] | None = None, schema: Schema | None = None) -> Iterator[Frame]:
        """Yield all rows at once; only the named columns, if any are named."""
        if schema is not None:
            return super().batches(names, schema)
        return iter([self.frame if names is None else self.frame.select(names)])


_Read = Callable[[Sequence[str], int, Collection[str]], "Iterator[Any]"]
"""Reads columns, so many rows at a time, some of the columns as text if their types come from all rows."""


def convert_texts(frame: "pl.DataFrame", types: dict[str, Any], as_text: Collection[str]) -> "pl.DataFrame":
    """Return a frame with columns of text converted, but for some."""
    names = [name for name in types if name in frame.columns and name not in as_text]
    return frame.with_columns([convert(frame[name], types[name]) for name in names])


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def read_size(value: Any, name: str = "memory") -> int:
    """Return a size in bytes, given as a number or as text such as "2GB"."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?|)B?\s*", value.upper())
        size = int(float(found[1]) * _UNITS[found[2]]) if found else 0
    else:
        size = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else 0
    if size < 1:
        raise InputError.wrong(name, "a number of bytes, or text such as '2GB' or '500MB'", value)
    return size
