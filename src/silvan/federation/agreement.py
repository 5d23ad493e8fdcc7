"""What a federation agrees on before training, by rows or by columns."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from silvan.data.schema import Schema

Absent = Literal["missing", "drop"]
"""How to treat columns that some sites lack: as missing in all rows there, or drop them."""


@dataclass(repr=False)
class Differences:
    """Differences between the sites' tables: one line per difference, and how it was handled."""

    notes: list[tuple[str, str, str]] = field(default_factory=list)  # column, what differs, what was done
    warnings: list[str] = field(default_factory=list)

    def add(self, column: str, what: str, done: str) -> None:
        """Note one difference."""
        self.notes.append((column, what, done))

    def __str__(self) -> str:
        widths = [max((len(note[i]) for note in self.notes), default=0) for i in range(2)]
        lines = [f"{column:{widths[0]}}  {what:{widths[1]}}  {done}" for column, what, done in self.notes]
        return "\n".join([*lines, *(f"Warning: {text}" for text in self.warnings)]) or "no known differences"

    __repr__ = __str__


class ColumnAtSites(msgspec.Struct, frozen=True):
    """What sites disclosed about a column during the agreement.

    ``sites`` have the column. ``sizes`` are, for numbers, the two powers of two around the median magnitude of a site's
    non-zero values. ``categories`` is the number of categories that a site named. A site in neither has too few values.
    """

    name: str
    kind: str  # numeric, categorical or date
    sites: list[str] = []
    sizes: dict[str, tuple[float, float]] = {}
    categories: dict[str, int] = {}


@dataclass(frozen=True)
class Columns:
    """What each party holds: its features by index, the label, and the digests of the common rows."""

    owners: dict[str, range]
    label_holder: str | None
    common: np.ndarray
    held_out: np.ndarray  # bool, which of the rows in common are held out for evaluation
    schema: Schema  # as the coordinator sees it: numbers for names, unless the study shows names
    known: dict[str, np.ndarray] | None = None  # digests by party, if the coordinator has seen them
    draws: bytes = b""  # the key by which trees sample rows, sealed for the parties

    @property
    def training(self) -> np.ndarray:
        """Digests of the training rows."""
        return self.common[~self.held_out]

    @property
    def test(self) -> np.ndarray:
        """Digests of the rows held out for evaluation."""
        return self.common[self.held_out]


@dataclass(frozen=True)
class Agreement:
    """The agreement of all sites. With ``columns`` they hold columns of the same rows, otherwise different rows.

    If the parties are in this process, the schema has column names, even if the coordinator sees numbers.
    """

    schema: Schema
    differences: Differences = field(default_factory=Differences)
    rows: dict[str, int] = field(default_factory=dict)  # training rows by site; empty where policies withhold them
    columns: Columns | None = None
    described: list[ColumnAtSites] = field(default_factory=list)  # what sites disclosed about their columns
    by_asking: bool = True  # whether the schema came from the sites instead of being given
    grouped: bool = False  # whether persons may have several rows, and count as one
