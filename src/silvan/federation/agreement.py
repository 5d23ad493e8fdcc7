"""What a federation has agreed on before anything is learned, by rows or by columns."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from silvan.data.schema import Schema

Absent = Literal["missing", "drop"]
"""What becomes of columns that some sites lack: they are missing in all rows there, or are left out."""


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
    """What sites disclosed about a column when they agreed, and no more than that.

    ``sites`` have it. ``sizes``, of numbers: the two powers of two between which the median of a site's values lies,
    without their signs and zeros. ``categories``: how many categories a site named. A site that is in neither has too
    few values to tell.
    """

    name: str
    kind: str  # numeric, categorical or date
    sites: list[str] = []
    sizes: dict[str, tuple[float, float]] = {}
    categories: dict[str, int] = {}


@dataclass(frozen=True)
class Columns:
    """Who holds what: each party's features by index, the label, and the rows in common by their digests."""

    owners: dict[str, range]
    label_holder: str | None
    common: np.ndarray
    held_out: np.ndarray  # bool, which of the rows in common are held out for evaluation
    schema: Schema  # as the coordinator learns it: numbers for names, unless the study has names shown
    known: dict[str, np.ndarray] | None = None  # digests by party, where the coordinator has seen them
    draws: bytes = b""  # the key by which trees draw rows, sealed for the parties

    @property
    def training(self) -> np.ndarray:
        """Digests of the rows to learn from."""
        return self.common[~self.held_out]

    @property
    def test(self) -> np.ndarray:
        """Digests of the rows held out for evaluation."""
        return self.common[self.held_out]


@dataclass(frozen=True)
class Agreement:
    """What all sites go by. With ``columns`` they hold columns of the same rows, without they hold different rows.

    The schema has the names of columns also if the coordinator goes by numbers, where the parties are in this process.
    """

    schema: Schema
    differences: Differences = field(default_factory=Differences)
    rows: dict[str, int] = field(default_factory=dict)  # to learn from, by site; empty where policies keep it back
    columns: Columns | None = None
    described: list[ColumnAtSites] = field(default_factory=list)  # what sites disclosed about their columns
    by_asking: bool = True  # whether the schema was found by asking the sites, not given
    grouped: bool = False  # whether persons may have several rows, of which counts have one
