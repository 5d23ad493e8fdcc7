"""Read a sheet of an Excel file with all cells as text; column types are inferred as for text files."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from silvan.data.readers.table_file import Table
from silvan.errors import InputError
from silvan.util.readable import format_names

if TYPE_CHECKING:
    import polars as pl


class Sheet:
    """A sheet of an Excel file, read once."""

    def __init__(self, table: Table) -> None:
        self.table = table
        names, self._rows = _read(table)
        called = table.renamed(names)
        self._names = [called[name] for name in names]
        self.notes = table.renaming

    def header(self) -> list[str]:
        """Return the names in the first row."""
        return self._names

    def frames(self, size: int) -> "Iterator[pl.DataFrame]":
        """Yield all cells as text."""
        yield self.table.without(self._rows.rename(dict(zip(self._rows.columns, self._names, strict=True))))

    def complaints(self) -> dict[str, str]:
        """Return no complaints: a sheet has only one number format."""
        return {}


def _read(table: Table) -> "tuple[list[str], pl.DataFrame]":
    """Return the names in the first row, and the other rows; formulas have the value that Excel last computed."""
    import polars as pl

    try:
        import fastexcel
    except ImportError:
        raise InputError(f"{table.where} is an Excel file; to read it, pip install 'silvan[excel]'") from None
    try:
        with table.open() as file:
            book = fastexcel.read_excel(file.read())
        names = [table.sheet] if table.sheet is not None else book.sheet_names
        if table.sheet is not None and table.sheet not in book.sheet_names:
            raise InputError(
                f"{table.where} has no sheet {table.sheet!r}; its sheets are {format_names(book.sheet_names)}"
            )
        sheets = {name: book.load_sheet(name, header_row=None, dtypes="string").to_polars() for name in names}
    except fastexcel.FastExcelError:
        raise InputError(
            f"{table.where} cannot be read as an Excel file; it may be cut short, locked, or of another kind"
        ) from None
    filled = {name: sheet for name, sheet in sheets.items() if sheet.width} if len(sheets) > 1 else sheets
    if len(filled) > 1:
        raise InputError(
            f"{table.where} has {len(filled)} sheets, {format_names(list(filled))}; set sheet to one of them"
        )
    cells = next(iter(filled.values()), pl.DataFrame())
    if not cells.height:
        return [], pl.DataFrame()
    header = ["" if name is None else str(name).strip() for name in cells.row(0)]
    rows = cells.slice(1)
    return header, rows.filter(~pl.all_horizontal(pl.all().is_null())) if rows.height else rows
