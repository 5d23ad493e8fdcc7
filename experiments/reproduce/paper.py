"""The parts of an experiment: runs of cases, and the tables and figures made from their rows.

A case is a flat record of settings (data set, sites, seed, ...). A run turns each case into rows of results, which
are stored with the settings. A table or figure of the publication shows rows of a run: ``by`` names its lines, and
values are averaged over the rest (seeds). Claims are sentences of the publication; each is checked on the same rows.
"""

import csv
import hashlib
import json
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl

from silvan.errors import InputError

Record = dict[str, Any]

PAPERS = {
    "federated-forest": "experiments.federated_forest.paper",
    "histogram": "experiments.histogram.paper",
    "frf-health": "experiments.frf_health.paper",
    "bofrf": "experiments.bofrf.paper",
    "thesis": "experiments.thesis.paper",
    "autoforest": "experiments.autoforest.paper",
}
"""The publications, by the name of their experiment, and where it is."""


class NotHere(Exception):  # noqa: N818, nothing went wrong
    """Something that a case needs is missing; the text names it and says how to get it. Other cases are run."""


@dataclass(frozen=True)
class Run:
    """Cases of one kind, and the function that turns one into rows of results. All rows are stored in one CSV file.

    ``cases(quick)`` lists the settings of every case, ``make(**settings)`` yields its rows. A change of ``make``
    needs another ``version``, so that cases are run again; a change of settings makes other cases anyway.
    Publications that share a run store its rows in the folder of one of them, ``kept``, or else in a publication's
    own.
    """

    name: str
    cases: Callable[[bool], Iterable[Record]]
    make: Callable[..., Iterable[Record]]
    version: int = 1
    kept: str = ""

    def key(self, settings: Record) -> str:
        """Return the key of a case: a hash of the run, its version and the settings."""
        text = json.dumps([self.name, self.version, settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Claim:
    """A claim of the publication, and how it is checked.

    ``check`` returns whether it held, None if the numbers are inconclusive, and these numbers; None if there are none.
    """

    text: str
    check: Callable[[pl.DataFrame], tuple[bool | None, str] | None]


@dataclass(frozen=True)
class Drawing:
    """How an item is drawn: values over a column, with a panel for each value of another."""

    x: str
    y: str  # name of the vertical axis
    panels: str | None = None
    figures: tuple[str, ...] = ()  # all, if none is named


@dataclass(frozen=True)
class Item:
    """A table or figure of the publication, made from the rows of a run."""

    name: str  # "table 1", "figure 3"
    title: str
    run: str
    by: tuple[str, ...]  # columns that name a line
    figures: dict[str, str]  # columns that are averaged over the rows of a line, and their titles
    select: Callable[[pl.DataFrame], pl.DataFrame] = field(default=lambda rows: rows)
    claims: tuple[Claim, ...] = ()
    drawing: Drawing | None = None
    digits: int = 3


@dataclass(frozen=True)
class Paper:
    """A publication: its runs and items, the data sets that its cases name, and texts beside its module.

    The module's folder may have ``published.csv`` (item, row, column, value; a row is named by the values of ``by``,
    separated by commas) and ``notes.toml`` (``about``, ``absent``, and for each item ``published`` and ``why``).
    """

    name: str
    title: str
    module: str  # where it is: ``__name__``
    runs: tuple[Run, ...]
    items: tuple[Item, ...]
    data: dict[str, str]  # names of data sets in cases, and for ``load``

    @property
    def folders(self) -> list[str]:
        """The folders with its results, its own among them."""
        return sorted({self.name, *(run.kept or self.name for run in self.runs)})

    @property
    def folder(self) -> Path:
        """The folder of its texts."""
        return Path(import_module(self.module).__file__ or "").parent

    def run(self, name: str) -> Run:
        """Return a run by its name."""
        return next(run for run in self.runs if run.name == name)

    def item(self, name: str) -> Item:
        """Return a table or figure by its name."""
        for item in self.items:
            if item.name == name:
                return item
        there = ", ".join(item.name for item in self.items)
        raise InputError(f"{self.name} has no {name}; there are {there}")

    def published(self) -> dict[tuple[str, str, str], float]:
        """Return the published values, by item, row and column."""
        path = self.folder / "published.csv"
        if not path.exists():
            return {}
        with path.open(newline="") as file:
            return {(line["item"], line["row"], line["column"]): float(line["value"]) for line in csv.DictReader(file)}

    def notes(self) -> Record:
        """Return the texts beside items."""
        path = self.folder / "notes.toml"
        return tomllib.loads(path.read_text()) if path.exists() else {}


def find_paper(name: str) -> Paper:
    """Return an experiment by its name; raise ``InputError`` if there is none."""
    if name not in PAPERS:
        raise InputError(f"there is no experiment {name!r}; there are {', '.join(PAPERS)}, and all")
    paper: Paper = import_module(PAPERS[name]).PAPER
    return paper


def line_name(row: Record, by: Iterable[str]) -> str:
    """Return the name of a line of a table: the values of some columns."""
    return ", ".join(f"{row[c]:g}" if isinstance(row[c], float) else str(row[c]) for c in by)
