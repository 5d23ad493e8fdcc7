"""Tables that are never cut off: if the terminal is too narrow, the columns continue in further tables below."""

from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Column, Table
from rich.text import Text

RULES = box.Box("    \n    \n ── \n    \n ── \n ── \n    \n    \n")
"""Only a rule below the head and between sections."""

_GAP = 2
"""Spaces between columns."""

_FOLDED = 8
"""Minimum width of a text column that may break anywhere."""


class WholeTable(Table):
    """A table that splits into several if it is too wide, each with the first column."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Any:
        """Yield one table, or as many as necessary."""
        widths = [_least_width(console, column) for column in self.columns]
        if len(self.columns) < 3 or sum(widths) + _GAP * (len(widths) - 1) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        for places in _chunks(widths, options.max_width):
            if places[0] != 1:
                yield Text()
            part = make_table()
            for column in (self.columns[place] for place in (0, *places)):
                part.add_column(
                    column.header,
                    justify=column.justify,
                    overflow=column.overflow,
                    no_wrap=column.no_wrap,
                    min_width=column.min_width,
                )
            cells = [list(self.columns[place].cells) for place in (0, *places)]
            for i, row in enumerate(self.rows):
                part.add_row(*(column[i] for column in cells), style=row.style, end_section=row.end_section)
            yield part


def make_table() -> WholeTable:
    """Return an empty table in the common style."""
    return WholeTable(box=RULES, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 1, 0, 0))


def _least_width(console: Console, column: Column) -> int:
    """Return the minimum width of a column in characters."""
    cells: list[RenderableType] = [column.header, *column.cells]
    sizes = [console.measure(cell) for cell in cells]
    if column.overflow == "fold" and not column.no_wrap:
        return min(max(column.min_width or 0, _FOLDED), max(size.maximum for size in sizes))
    return max(size.maximum if column.no_wrap else size.minimum for size in sizes)


def _chunks(widths: list[int], room: int) -> list[list[int]]:
    """Return groups of columns, each as large as fits next to the first column."""
    chunks: list[list[int]] = [[]]
    left = room - widths[0]
    for place in range(1, len(widths)):
        if chunks[-1] and left < widths[place] + _GAP:
            chunks.append([])
            left = room - widths[0]
        chunks[-1].append(place)
        left -= widths[place] + _GAP
    return chunks
