"""Text files with cells: their encoding, separator and cells as text.

The format is detected from the header and the first bytes, or cell by cell, so no row affects how others are read.
Bytes that are not UTF-8 are read as Windows-1252.
"""

import codecs
import csv
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from silvan.data.readers.csv_pieces import first_end, pieces
from silvan.data.readers.table_file import Table, UnchangedFile
from silvan.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_HEAD = 1 << 16  # bytes inspected first

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_COMMA = r"^\s*[+-]?\d*,\d+([eE][+-]?\d+)?\s*$"
_POINT = r"^\s*[+-]?\d*\.\d+([eE][+-]?\d+)?\s*$"
_THOUSANDS = r"^\s*[+-]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?\s*$"
_OTHER_FILES = {
    b"PK\x03\x04": "an archive or an Excel file; let its name end in .zip or .xlsx",
    b"\x1f\x8b": "packed; let its name end in .csv.gz",
    b"PAR1": "a Parquet file; let its name end in .parquet",
    b"ARROW1": "an Arrow file; let its name end in .arrow",
    b"\xd0\xcf\x11\xe0": "an old Excel file, or a locked one; save it as .xlsx or .csv",
}
"""Kinds of files that are not text, by their first bytes."""

csv.field_size_limit(2**31 - 1)  # a cell may hold a whole report


_WINDOWS = {0xDC00 + b: bytes([b]).decode("cp1252", "ignore") or chr(b) for b in range(128, 256)}
"""Windows-1252 characters for bytes that are not UTF-8, which the decoder passes on as lone surrogates."""


class Delimited:
    """A text file with cells, which must not change between passes."""

    def __init__(self, table: Table) -> None:
        self.table, self.file = table, UnchangedFile(table.file)
        self.both: dict[str, set[str]] = {}  # number formats found in each column
        self.recoded = False  # whether some bytes were not UTF-8
        with self._reading(), table.open() as raw:
            head = raw.read(_HEAD)
        self.encoding = table.encoding or _by_mark(head)
        with self._reading():
            decoder = codecs.getincrementaldecoder(self.encoding or "utf-8")(self._errors)
            first = self._recoded(decoder.decode(head)).lstrip("\ufeff\r\n")
        self._check_text(head, first)
        self.skip = first.lower().startswith("sep=") and len(first.split("\n", 1)[0].strip()) == 5
        line = first[: first_end(first.encode())] if not self.skip else first.split("\n", 1)[0]
        self.separator = table.separator or (line[4] if self.skip else self._sniff(line))
        self.commas = table.decimal == "," or (table.decimal is None and self.separator == ";")

    @property
    def notes(self) -> list[str]:
        """The detected format of the file."""
        notes = []
        if self.table.separator is None and self.separator != ",":
            notes.append(f"separated by {_SEPARATORS.get(self.separator, repr(self.separator))}")
        if self.table.decimal is None and any("comma" in ways for ways in self.both.values()):
            notes.append("with decimal commas")
        if self.table.encoding is None and (self.encoding or self.recoded):
            notes.append(f"encoded as {self.encoding or 'Windows-1252'}")
        return notes + self.table.renaming

    def _sniff(self, line: str) -> str:
        """Detect the separator in the first line, ignoring quoted parts."""
        bare = "".join(line.split('"')[::2])
        counts = {mark: bare.count(mark) for mark in _SEPARATORS}
        best = max(counts, key=lambda mark: counts[mark])
        if best != "," and counts[","] > 0:
            raise InputError(
                f"{self.table.where} may be separated by {_SEPARATORS[best]} or by commas; set separator to one of them"
            )
        return best if counts[best] else ","

    def header(self) -> list[str]:
        """Read the names in the first line; polars would silently rename duplicates."""
        with self._text() as text:
            names = next((row for row in csv.reader(map(self._recoded, text), delimiter=self.separator) if row), [])
        called = self.table.renamed(names)
        return [called[name] for name in names]

    def typed(self) -> "pl.DataFrame | None":
        """Read with types that polars infers from the first rows; None if a later row does not fit.

        Also None for files that polars cannot read alone, or with missing last cells, since polars silently pads short
        rows.
        """
        import polars as pl

        special = self.table.is_zip or self.skip or self.commas or self.table.missing or self.encoding is not None
        if special or self.separator != ",":
            return None
        try:
            frame = pl.read_csv(self.table.file, infer_schema_length=10_000, glob=False)
        except (pl.exceptions.PolarsError, OSError):
            return None
        return None if frame.width > 1 and frame[:, -1].null_count() else self._named(frame)

    def frames(self, size: int) -> "Iterator[pl.DataFrame]":
        """Yield all cells as text, one piece of the file at a time."""
        import polars as pl

        self.file.check()
        try:
            with self._text() as text:
                head, before = b"", 0
                for piece in pieces(lambda n: self._recoded(text.read(n)).encode(), size):
                    if not head:
                        piece = piece.lstrip(b"\r\n")
                        head = piece[: first_end(piece)]
                        piece = piece[len(head) :]
                        head = head.rstrip(b"\r\n") + b"\n"
                    frame = pl.read_csv(head + piece, infer_schema_length=0, separator=self.separator)
                    frame = self._whole_rows(frame, before, head + piece)
                    before += len(frame)
                    yield self._cells(frame)
        except (pl.exceptions.PolarsError, OSError):
            raise self.broken() from None

    def _cells(self, frame: "pl.DataFrame") -> "pl.DataFrame":
        """Return cells with decimal points instead of commas, and without the declared markers of missing values."""
        import polars as pl

        frame = self.table.without(self._named(frame))
        if not self.commas:
            return frame
        return frame.with_columns(self._points(column) for column in frame if column.dtype == pl.String)

    def _named(self, frame: "pl.DataFrame") -> "pl.DataFrame":
        """Rename columns to the study's names."""
        return frame.rename(dict(self.table.rename), strict=False) if self.table.rename else frame

    def _points(self, text: "pl.Series") -> "pl.Series":
        """Replace decimal commas by points, and record the column's number formats."""
        ways = self.both.setdefault(text.name, set())
        comma, point, thousands = (text.str.contains(how).fill_null(False) for how in (_COMMA, _POINT, _THOUSANDS))
        point &= ~thousands
        if self.table.decimal == ",":
            plain = text.str.replace_all(".", "", literal=True)
            text, comma = plain.zip_with(thousands, text), comma | thousands
        elif thousands.any():
            ways.add("thousands")
        ways |= {"comma"} if comma.any() else set()
        ways |= {"point"} if point.any() else set()
        return text.str.replace(",", ".", literal=True).zip_with(comma, text) if comma.any() else text

    def complaints(self) -> dict[str, str]:
        """Return complaints about columns with mixed or ambiguous number formats."""
        formats = set().union(*self.both.values())
        points = "point" in formats and "comma" not in formats
        complaints = {}
        for name, ways in self.both.items():
            if "comma" in ways and len(ways) > 1:
                complaints[name] = (
                    f"column {name!r} writes numbers with decimal commas and with points; set decimal to one of them"
                )
            elif ways == {"thousands"} and not points:
                complaints[name] = (
                    f"column {name!r} writes numbers such as 1.234, which may mean 1,234 or a little over one: "
                    'set decimal to "," if points separate thousands, to "." if they are decimal points'
                )
        return complaints

    def _whole_rows(self, frame: "pl.DataFrame", before: int, piece: bytes) -> "pl.DataFrame":
        """Remove blank lines, which polars reads as rows; raise an error for short rows."""
        import polars as pl

        if frame.width < 2 or not frame[:, -1].null_count():
            return frame
        rows = csv.reader(io.StringIO(piece.decode(), newline=""), delimiter=self.separator)
        width, *cells = (len(row) for row in rows)
        short = [i for i, n in enumerate((n for n in cells if n), 1) if n < width]
        if short:
            noun = "row" if len(short) == 1 else "rows"
            raise InputError(
                f"{self.table.where} has {len(short):,} {noun} with fewer cells than the header, the first is row "
                f"{before + short[0]:,}; complete or remove them"
            )
        return frame.filter(pl.Series(cells) > 0)

    # -- bytes

    def _check_text(self, head: bytes, first: str) -> None:
        """Raise an error for a file that does not consist of lines of text."""
        kind = next((kind for mark, kind in _OTHER_FILES.items() if head.startswith(mark)), None)
        if kind is not None:
            raise InputError(f"{self.table.where} is {kind}")
        if first.lstrip().lower().startswith(("<!doctype", "<html", "<table", "<?xml")):
            raise InputError(f"{self.table.where} is a web page or XML, not CSV; open it in Excel and save it as .csv")
        if self.encoding is None and 3 * head[:300].count(0) > len(head[:300]):
            raise InputError(f'{self.table.where} is not UTF-8 text; set encoding, perhaps to "utf-16-le"')
        if "\r" in first and "\n" not in first:
            raise InputError(f"{self.table.where} has line ends of old Macs; save it with line ends of Windows or Unix")

    @property
    def _errors(self) -> str:
        return "strict" if self.encoding else "surrogateescape"

    def _recoded(self, text: str) -> str:
        """Read bytes that are not UTF-8 as Windows-1252, and record that there are some."""
        try:
            text.encode()
        except UnicodeEncodeError:
            self.recoded = True
            return text.translate(_WINDOWS)
        return text

    def broken(self) -> InputError:
        """Return the error for a broken file, since the reader's own message would quote cells."""
        return InputError(
            f"{self.table.where} cannot be read as CSV; look for a row with more cells than the header, or an open "
            "quote"
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Convert errors of unpacking and decoding to ones that name the file."""
        try:
            yield
        except UnicodeError:
            raise InputError(f"{self.table.where} is not {self.encoding} text; set the right encoding") from None
        except csv.Error:
            raise self.broken() from None
        except (EOFError, zlib.error):
            raise InputError(f"{self.table.where} cannot be unpacked; it may be cut short") from None

    @contextmanager
    def _text(self) -> Iterator[IO[str]]:
        """Open the file as text, starting at the header."""
        with self._reading(), self.table.open() as raw:
            text = io.TextIOWrapper(raw, self.encoding or "utf-8", errors=self._errors, newline="")
            if text.read(1) not in ("\ufeff", ""):
                text.seek(0)
            if self.skip:
                text.readline()
            yield text


def _by_mark(head: bytes) -> str | None:
    """Return the encoding given by a byte order mark; None for UTF-8."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    return "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else None
