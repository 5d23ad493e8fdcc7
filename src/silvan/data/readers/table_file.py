"""A table in a file, and the format of its cells; files may be compressed or inside an archive."""

import gzip
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from silvan.errors import InputError
from silvan.util.readable import format_names

if TYPE_CHECKING:
    import polars as pl

FileKind = Literal["csv", "excel", "feather", "parquet"]

_SUFFIXES: dict[str, FileKind] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
    ".xlsx": "excel",
}
KNOWN_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".parquet", ".feather", ".arrow", ".xlsx", ".zip")
WANTED = "should end in .csv, .csv.gz, .tsv, .parquet, .feather, .arrow, .xlsx or .zip"


@dataclass(frozen=True)
class Table:
    """A table in a file, with options for reading it.

    Options that are None are detected: the separator from the first line, the encoding from the first bytes (text that
    is not UTF-8 is read as Windows-1252, which includes Latin-1). In a file with semicolons, ``12,5`` is twelve and a
    half.

    Parameters
    ----------
    path
        A ``.csv``, ``.tsv``, ``.parquet``, ``.feather``, ``.arrow`` or ``.xlsx`` file, a ``.csv.gz``, or a ``.zip``
        that contains one of them.
    separator
        The character between the cells of a text file, such as ";".
    decimal
        The decimal separator, "." or ",". With ",", points between thousands are ignored.
    encoding
        The encoding of a text file, such as "latin-1" or "utf-16".
    missing
        Texts and numbers that mark missing values, such as -9 or "unknown": a list for all columns, or lists for single
        columns by their names in the study: ``{"weight": [-999]}``.
    sheet
        The sheet of an Excel file, if several sheets have content.
    rename
        New names of columns, by their names in the file: ``{"alter": "age"}``.

    Examples
    --------
    >>> import silvan as sv
    >>> sv.Table("north.csv", separator=";", decimal=",", missing=[-9])
    Table('north.csv', separator=';', decimal=',', missing=('-9',))
    """

    path: str | Path
    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    missing: Sequence[str | float] | Mapping[str, Sequence[str | float]] = field(default=(), hash=False)
    sheet: str | None = None
    rename: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Raise ``InputError`` for invalid options."""
        object.__setattr__(self, "missing", _checked_missing(self.missing))
        mark: Any = self.separator
        if mark is not None and not _separates(mark):
            raise InputError.wrong("separator", "one character such as ';', ',' or a tab", mark)
        if self.decimal not in (None, ".", ","):
            raise InputError.wrong("decimal", "'.' or ','", self.decimal)
        if self.decimal == "," == self.separator:
            raise InputError.about("decimal", "and separator cannot both be ','")
        sheet: Any = self.sheet
        if sheet is not None and not isinstance(sheet, str):
            raise InputError.wrong("sheet", "the name of a sheet", sheet)
        object.__setattr__(self, "rename", _checked_names(self.rename))
        try:
            if self.encoding is not None:
                "".encode(self.encoding)  # some of Python's codecs are not for text
        except (LookupError, TypeError, ValueError):
            raise InputError.wrong("encoding", "one that Python knows, such as 'latin-1'", self.encoding) from None

    def __repr__(self) -> str:
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        return f"Table({', '.join([repr(str(self.path)), *options])})"

    @property
    def options(self) -> dict[str, Any]:
        """The options of the file, without its path."""
        return {f.name: getattr(self, f.name) for f in fields(self)[1:] if getattr(self, f.name)}

    def beside(self, folder: Path) -> "Table":
        """Return the table with a relative path resolved against a folder."""
        return replace(self, path=folder / self.path)

    @property
    def file(self) -> Path:
        """The path."""
        return Path(self.path)

    @property
    def where(self) -> str:
        """The path, for messages."""
        return repr(str(self.path))

    # -- names of columns

    def renamed(self, names: Sequence[str]) -> dict[str, str]:
        """Return the study's names of columns, by their names in the file; raise an error for conflicts."""
        absent = [name for name in self.rename if name not in names]
        if absent:
            old, new = absent[0], self.rename[absent[0]]
            if new in names:
                hint = f"it has {new!r}: write the name in the file first, and the study's name after it"
            else:
                close = get_close_matches(old, names, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"it has {format_names(list(names))}"
            raise InputError.about("rename", f"names the column {old!r}, which {self.where} does not have; {hint}")
        found = {name: self.rename.get(name, name) for name in names}
        for name in self.missing if isinstance(self.missing, Mapping) else ():
            if name not in found.values():
                close = get_close_matches(name, found.values(), n=1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise InputError.about("missing", f"names the column {name!r}, which {self.where} does not have{hint}")
        twice = [name for name, times in Counter(found.values()).items() if times > 1]
        if twice:
            raise InputError.about(
                "rename",
                f"would give several columns of {self.where} the name {format_names(twice)}; rename the other one too",
            )
        return found

    def without(self, frame: "pl.DataFrame") -> "pl.DataFrame":
        """Return rows with the study's names of columns, and markers of missing values removed."""
        import polars as pl

        columns = []
        for column in frame if self.missing else ():
            texts = self.missing.get(column.name, ()) if isinstance(self.missing, Mapping) else self.missing
            words, numbers = [str(text) for text in texts], [n for text in texts if (n := _number(text)) is not None]
            if words and column.dtype == pl.String:
                text = column.str.strip_chars()
                plain = text.str.replace(",", ".", literal=True).cast(pl.Float64, strict=False)
                gone = text.is_in(words) | plain.is_in(numbers).fill_null(False)
                columns.append(column.set(gone, None))
            elif numbers and column.dtype.is_numeric():
                gone = column.cast(pl.Float64).is_in(numbers)
                columns.append(pl.select(pl.when(~gone).then(column)).to_series().alias(column.name))
        return frame.with_columns(columns)

    @property
    def renaming(self) -> list[str]:
        """A note about renamed columns."""
        others = " and ".join(f"{old!r} as {new!r}" for old, new in self.rename.items())
        return [f"read with {others}"] if others else []

    # -- content of the file

    def kind(self) -> FileKind:
        """Return the format of the file, or of the only file in an archive, by its name; raise an error for others."""
        if self.file.is_dir():
            raise InputError(f"{self.where} is a folder; name a file in it")
        if not self.file.is_file():
            place = "" if self.file.is_absolute() else f" in {str(Path.cwd())!r}"
            raise InputError(f"there is no file {self.where}{place}; check the path")
        name = self._member().lower() if self.is_zip else self.file.name.lower().removesuffix(".gz")
        kind = _SUFFIXES.get(Path(name).suffix)
        packed = self.file.name.lower().endswith(".gz") and kind != "csv"
        if kind is None or packed:
            raise InputError(f"{self.where} {WANTED}; convert it to one of these")
        if self.sheet is not None and kind != "excel":
            raise InputError.about("sheet", f"is for Excel files, which {self.where} is not")
        if kind != "csv" and (self.separator or self.encoding or self.decimal):
            option = next(name for name in ("separator", "decimal", "encoding") if getattr(self, name))
            raise InputError.about(option, f"is for text files, which {self.where} is not")
        return kind

    @property
    def is_zip(self) -> bool:
        """Whether the file is an archive."""
        return self.file.name.lower().endswith(".zip")

    def _member(self) -> str:
        """Return the name of the only table in an archive."""
        try:
            with zipfile.ZipFile(self.file) as archive:
                size = sum(member.file_size for member in archive.infolist())
                names = [name for name in archive.namelist() if not name.endswith("/")]
        except (zipfile.BadZipFile, OSError):
            raise InputError(f"{self.where} cannot be read as an archive; it may be cut short") from None
        names = [n for n in names if not n.startswith("__MACOSX/") and not Path(n).name.startswith(".")]
        if len(names) != 1:
            found = f"{len(names)} files ({format_names(sorted(names))})" if names else "no file"
            raise InputError(f"{self.where} has {found} in it; an archive must hold one table")
        packed = self.file.stat().st_size
        if size > max(_LARGE, _TIMES * packed):
            raise InputError(
                f"{self.where} unpacks to {size / packed:,.0f} times its size, which is suspicious; if it is a table, "
                "unpack it yourself"
            )
        return names[0]

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the file, decompressed."""
        try:
            if self.is_zip:
                with zipfile.ZipFile(self.file) as archive, archive.open(self._member()) as member:
                    yield member
            elif self.file.name.lower().endswith(".gz"):
                with gzip.open(self.file) as unpacked:
                    yield unpacked  # type: ignore[misc]
            else:
                with self.file.open("rb") as file:
                    yield file
        except (zipfile.BadZipFile, gzip.BadGzipFile, RuntimeError):
            raise InputError(
                f"{self.where} cannot be unpacked; it may be cut short, locked, or of another kind"
            ) from None


_LARGE = 1 << 28
"""Any archive may unpack to this many bytes."""

_TIMES = 200
"""A larger one may unpack to this multiple of its size: tables reach 5 to 50, zip bombs 1,000."""


def _separates(mark: Any) -> bool:
    """Whether a text may separate cells: one ASCII character that does not occur in cells."""
    return (
        isinstance(mark, str) and len(mark) == 1 and mark.isascii() and not mark.isalnum() and mark not in "\"'\r\n.-+"
    )


def _checked_missing(missing: Any) -> tuple[str, ...] | dict[str, tuple[str, ...]]:
    """Return markers of missing values, for all columns or by column, in a canonical order."""
    if isinstance(missing, Mapping):
        if all(isinstance(name, str) and isinstance(texts, list | tuple) for name, texts in missing.items()):
            return {name: _checked_texts(texts) for name, texts in sorted(missing.items())}
    elif isinstance(missing, list | tuple):
        return _checked_texts(missing)
    raise InputError.wrong("missing", "a list of texts and numbers, or such a list for each of some columns", missing)


def _checked_texts(texts: Sequence[Any]) -> tuple[str, ...]:
    for text in texts:
        if not isinstance(text, str | int | float) or isinstance(text, bool):
            raise InputError.wrong("missing", "texts and numbers", text)
    return tuple(str(text).strip() for text in texts)


def _number(text: Any) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _checked_names(rename: Any) -> dict[str, str]:
    """Return new names of columns, in a canonical order."""
    fit = isinstance(rename, Mapping) and all(isinstance(name, str) for pair in rename.items() for name in pair)
    if not fit or not all(new.strip() for new in rename.values()):
        raise InputError.about(
            "rename", f"must map names of columns to the study's names, such as alter = 'age'; got {rename!r}"
        )
    twice = [name for name, times in Counter(rename.values()).items() if times > 1]
    if twice:
        raise InputError.about(
            "rename", f"would give several columns the name {format_names(twice)}; keep only one of them"
        )
    return dict(sorted(rename.items()))


def as_table(source: Any) -> Table | None:
    """Return a path as a table; None if it is not a path."""
    if isinstance(source, Table):
        return source
    return Table(source) if isinstance(source, str | Path) else None


class UnchangedFile:
    """A file that must not change after it was first read."""

    def __init__(self, path: Path) -> None:
        self.path, self.then = path, self._now(path)

    @staticmethod
    def _now(path: Path) -> tuple[int, ...]:
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def check(self) -> None:
        """Raise ``InputError`` if the file has changed."""
        try:
            same = self._now(self.path) == self.then
        except OSError:
            same = False
        if not same:
            raise InputError(f"{str(self.path)!r} was changed or moved while in use; put it back, or start again")
