"""Tables that are read one batch of rows at a time.

``Whole`` is a table in memory, a single batch. ``Batched`` reads its source again for each pass, so that only one batch
is in memory at a time.
"""

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from numbers import Integral
from typing import Any

import narwhals as nw

from silvan.data.cells import text_columns
from silvan.data.column_types import Kinds, said_categorical
from silvan.data.disk_arrays import Folder
from silvan.data.schema import Schema
from silvan.data.stored_table import StoredTable, batch_rows, open_stored
from silvan.data.table import open_table
from silvan.data.typed_table import Frame, dates_in
from silvan.errors import InputError


class Batched:
    """A table that is read again for each pass, ``room`` bytes at a time.

    ``refused`` explains why columns of mixed types cannot be described. Columns declared categorical in ``kinds`` are
    read as text if possible; ``dtypes`` are the types before that. ``dates`` are the columns with dates, ``notes``
    describe the detected format of a file, and ``pieces`` reads its cells as written.
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
        table = self._open(source, label)
        self.what, self.rows, self._read = table.what, table.rows, table.read
        self.notes, self.pieces = table.notes, table.pieces
        table.check()
        self.excluded = [name for name in exclude if name in table.columns]
        self.names = [name for name in table.columns if name not in self.excluded]
        self.refused = {name: text for name, text in table.refused.items() if name in self.names}
        empty = nw.from_native(next(self._read(self.names, 1, ()))[:0], eager_only=True)
        self.dtypes = dict(empty.schema)
        self.dates = frozenset(self.names) & (table.dates | dates_in(self.dtypes))

    def __len__(self) -> int:
        return self.rows

    def batches(self, names: Sequence[str] | None = None, schema: Schema | None = None) -> Iterator[Frame]:
        """Yield all rows in batches, in order; with ``names``, only these columns."""
        names = self.names if names is None else list(names)
        wanted = said_categorical(self.kinds) if schema is None else text_columns(schema)
        as_text = [name for name in wanted if name in names]
        for frame in self._read(names, batch_rows(self.room, len(names)), as_text):
            yield nw.from_native(frame, eager_only=True)

    def _open(self, source: Any, label: str) -> StoredTable:
        opened = open_stored(source, self.kinds, self.room, self.folder)
        return self._open_whole(source, label) if opened is None else opened

    def _open_whole(self, source: Any, label: str) -> StoredTable:
        """Read the source once and keep it in memory."""
        table = open_table(source, label, self.kinds)

        def read(names: Sequence[str], rows: int, as_text: Collection[str]) -> Iterator[Any]:
            some: Any = table.with_texts(as_text).select(names)
            for start in range(0, len(some), rows):
                yield some[start : start + rows].to_native()

        details = (table.refused, table.dates, table.notes, table.pieces)
        return StoredTable("the table", table.frame.columns, len(table.frame), read, *details)


class Whole(Batched):
    """A table in memory, a single batch."""

    def __init__(
        self, source: Any, label: str = "label", exclude: Sequence[str] = (), kinds: Kinds | None = None
    ) -> None:
        super().__init__(source, label, sys.maxsize, None, exclude, kinds)

    def _open(self, source: Any, label: str) -> StoredTable:
        return self._open_whole(source, label)

    @cached_property
    def frame(self) -> Frame:
        """All rows, read without a schema."""
        return next(super().batches())

    def batches(self, names: Sequence[str] | None = None, schema: Schema | None = None) -> Iterator[Frame]:
        """Yield all rows at once; with ``names``, only these columns."""
        if schema is not None:
            return super().batches(names, schema)
        if names is not None and not set(names) <= set(self.names):  # an excluded column
            return super().batches(names)
        return iter([self.frame if names is None else self.frame.select(names)])


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


def read_size(value: Any) -> int:
    """Return a size of memory in bytes, given as a number or as text such as "2GB"."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?|)B?\s*", value.upper())
        size = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    else:
        size = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else 0
    if size < 1:
        raise InputError.wrong("memory", "a number of bytes, or text such as '2GB' or '500MB'", value)
    return size
