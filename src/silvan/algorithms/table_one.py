"""Table 1 as data and as text: the columns of a study, over all sites and at each site that reports numbers."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from silvan.federation.describe import FLOOR
from silvan.federation.members import OVERALL
from silvan.util.readable import format_number, html_table

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")

QUANTILES = (0.25, 0.5, 0.75)

ROUNDED_TO = 5
"""Counts at a site are rounded to multiples of this."""


class Numbers(msgspec.Struct, frozen=True):
    """A column's numbers at one site, or over all; None: not shown, because too few rows are behind it."""

    missing: int | None
    mean: float | None = None
    deviation: float | None = None
    quartiles: tuple[float | None, ...] = ()
    counts: tuple[int | None, ...] = ()


class Line(msgspec.Struct, frozen=True):
    """A column of the tables: ``by_site`` has the numbers over all sites first, then those of single sites.

    ``difference`` is the largest standardised difference between two sites.
    """

    name: str
    categories: tuple[str, ...] | None  # None: a number
    by_site: dict[str, Numbers]
    difference: float | None = None


class TableOne(msgspec.Struct, frozen=True):
    """Table 1 of a study: training rows by site, the columns with the label last, and sites without numbers."""

    rows: dict[str, int]
    lines: list[Line]
    refused: list[str]

    def frame(self) -> "pl.DataFrame":
        """Return all numbers, a line for each column, category and site; null where too few rows are behind one."""
        import polars as pl  # slow to import

        found: list[tuple[Any, ...]] = []
        for line in self.lines:
            for site, of in line.by_site.items():
                numbers = (of.mean, of.deviation, *(of.quartiles or (None,) * len(QUANTILES)))
                found.append((line.name, None, site, self.rows[site], of.missing, None, *numbers, line.difference))
                for name, count in zip(line.categories or (), of.counts, strict=True):
                    found.append((line.name, name, site, self.rows[site], None, count, *(None,) * 6))
        kinds: dict[str, Any] = {"column": pl.String, "category": pl.String, "site": pl.String}
        kinds |= dict.fromkeys(("rows", "missing", "count"), pl.Int64)
        names = ("mean", "standard_deviation", "q25", "median", "q75", "difference")
        return pl.DataFrame(found, {**kinds, **dict.fromkeys(names, pl.Float64)}, orient="row")

    @property
    def heads(self) -> list[str]:
        """The column heads of the table of texts."""
        return ["", *("All sites" if site == OVERALL else site for site in self.rows), "SMD"]

    def texts(self, most: int = 12) -> list[list[str]]:
        """Return the table as texts, with at most this many categories of a column."""
        table = [["training rows", *(f"{n:,}" for n in self.rows.values()), ""]]
        for line in self.lines:
            missing = ["  missing", *(_share(line.by_site[s].missing, n) for s, n in self.rows.items()), ""]
            some = [missing] if any(line.by_site[site].missing != 0 for site in self.rows) else []
            last = "" if line.difference is None else f"{line.difference:.2f}"
            if line.categories is None:
                shown = (_median(line.by_site[site]) for site in self.rows)
                table += [[line.name, *shown, last], *some]
                continue
            table.append([line.name, *[""] * len(self.rows), last])
            for code, name in enumerate(line.categories[:most]):
                counts = (_share(line.by_site[site].counts[code], n) for site, n in self.rows.items())
                table.append([f"  {name}", *counts, ""])
            if len(line.categories) > most:
                table.append([f"  ({len(line.categories) - most} more)", *[""] * len(self.rows), ""])
            table += some
        return table

    @property
    def note(self) -> str:
        """A note on what the table leaves out."""
        few = (
            f"Numbers: median [quartiles]; categories: rows (%). –: fewer than {FLOOR} rows. "
            f"Counts at a site are rounded to multiples of {ROUNDED_TO}."
        )
        apart = " SMD: the largest standardised mean difference between two sites." if len(self.rows) > 2 else ""
        refused = f" No numbers of their own: {', '.join(self.refused)}." if self.refused else ""
        return few + apart + refused

    def seen_by(self, site: str, *, overall: bool) -> "TableOne":
        """Return what one site may see: its own numbers and, with ``overall``, those over all sites."""
        seen = {OVERALL: overall, site: True}

        def kept(of: Mapping[str, T]) -> dict[str, T]:
            return {name: one for name, one in of.items() if seen.get(name)}

        lines = [Line(line.name, line.categories, kept(line.by_site)) for line in self.lines]
        return TableOne(kept(self.rows), lines, [name for name in self.refused if name == site])

    def __str__(self) -> str:
        table = [self.heads, *self.texts()]
        widths = [max(len(row[i]) for row in table) for i in range(len(self.heads))]
        lines = ("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in table)
        return "\n".join([*lines, self.note])

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        return html_table(self.heads, self.texts(), "Table 1", self.note)


def _share(count: int | None, rows: int) -> str:
    return "–" if count is None else f"{count:,} ({count / rows:.0%})"


def _median(of: Numbers) -> str:
    if not of.quartiles or of.quartiles[1] is None:
        return "–"
    low, middle, high = ("–" if x is None else format_number(x) for x in of.quartiles)
    return f"{middle} [{low}, {high}]"
