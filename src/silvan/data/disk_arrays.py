"""Arrays and data frames in anonymous files, mapped into memory one part at a time.

Nobody else can open an anonymous file, and it vanishes when the process ends, however it ends. A window maps only its
rows, and frees their memory when it is released.
"""

import io
import os
import tempfile
import threading
import weakref
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from silvan.errors import InputError
from silvan.util.files import has_no_room

if TYPE_CHECKING:
    import polars as pl

Folder = str | PathLike[str] | None
"""The folder for files; None: the system's folder for temporary files."""


def nameless(folder: Folder) -> Any:
    """Open an anonymous file, which only this process can read."""
    try:
        return tempfile.TemporaryFile(dir=folder, buffering=0)
    except OSError as error:
        if has_no_room(error):
            raise
        where = tempfile.gettempdir() if folder is None else str(Path(folder))
        raise InputError(f"cannot create a file in {where!r} ({error.strerror}); name another folder") from None


def _write(file: Any, data: memoryview) -> None:
    """Write all data; system errors, such as a full disk, are passed on."""
    while len(data):
        data = data[file.write(data) :]


class Stored:
    """An array that grows by rows."""

    def __init__(self, folder: Folder, dtype: Any, width: int | None = None) -> None:
        self.dtype, self.width = np.dtype(dtype), width
        self.rows = 0
        self._file = nameless(folder)
        weakref.finalize(self, self._file.close)

    def __len__(self) -> int:
        return self.rows

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize * (1 if self.width is None else self.width)

    def append(self, rows: np.ndarray) -> None:
        """Append some rows."""
        assert rows.shape[1:] == (() if self.width is None else (self.width,))  # noqa: S101
        _write(self._file, np.ascontiguousarray(rows, self.dtype).reshape(-1).view(np.uint8).data)
        self.rows += len(rows)

    def window(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Return some rows, mapped from the file. Writing to them does not change the file."""
        stop = self.rows if stop is None else min(stop, self.rows)
        n = max(stop - start, 0)
        shape = (n,) if self.width is None else (n, self.width)
        if not n or not self.row_bytes:
            return np.zeros(shape, self.dtype)
        mapped = np.memmap(self._file, self.dtype, "c", start * self.row_bytes, shape)
        return mapped.view(np.ndarray)


def scratch(folder: Folder, n: int, dtype: Any) -> np.ndarray:
    """Return a writable array in a file, whose unused parts need not stay in memory."""
    dtype = np.dtype(dtype)
    with nameless(folder) as file:
        size = max(n, 1) * dtype.itemsize
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)  # otherwise a full disk would crash the process later
        else:
            file.truncate(size)
        return np.memmap(file, dtype, "r+", shape=(max(n, 1),)).view(np.ndarray)[:n]


class StoredFrames:
    """A sequence of data frames with the same columns."""

    def __init__(self, folder: Folder) -> None:
        self._file = nameless(folder)
        weakref.finalize(self, self._file.close)
        self._ends = [0]
        self._lock = threading.Lock()

    def append(self, frame: "pl.DataFrame") -> None:
        """Append a frame."""
        packed = io.BytesIO()
        frame.write_ipc(packed, compression="lz4")
        with self._lock:
            self._file.seek(self._ends[-1])
            _write(self._file, packed.getbuffer())
        self._ends.append(self._ends[-1] + packed.getbuffer().nbytes)

    def __iter__(self) -> "Iterator[pl.DataFrame]":
        import polars as pl

        for start, end in zip(self._ends, self._ends[1:], strict=False):
            with self._lock:
                self._file.seek(start)
                packed = self._file.read(end - start)
            yield pl.read_ipc(io.BytesIO(packed))
