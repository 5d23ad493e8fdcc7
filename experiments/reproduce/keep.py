"""Rows of finished cases, in a CSV file that is always complete, so that an interrupted run can resume."""

import math
from collections.abc import Iterable
from pathlib import Path

import polars as pl
from experiments.reproduce.paper import Record, Run

from silvan.errors import InputError
from silvan.util.files import write_whole

CASE = "case"
_DECIMALS = 6


class Kept:
    """The rows of one run; rows of removed cases are dropped when a row is added."""

    def __init__(self, path: Path, run: Run) -> None:
        self.path, self.run = path, run
        self.valid = {run.key(settings) for quick in (True, False) for settings in run.cases(quick)}
        self.rows: list[Record] = []
        if path.exists():
            try:
                found = pl.read_csv(path, infer_schema_length=None, schema_overrides={CASE: pl.String})
                self.rows = [row for row in found.rows(named=True) if row[CASE] in self.valid]
            except (pl.exceptions.PolarsError, KeyError) as error:
                raise InputError(f"{path} cannot be read as results ({error}); move it away and run again") from None

    @property
    def done(self) -> set[str]:
        """The finished cases."""
        return {row[CASE] for row in self.rows}

    def add(self, settings: Record, made: Iterable[Record]) -> None:
        """Store the rows of a case; the file is replaced as a whole."""
        key = self.run.key(settings)
        self.rows += [{CASE: key, **settings, **{k: _short(v) for k, v in row.items()}} for row in made]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, pl.DataFrame(self.rows, infer_schema_length=None).write_csv().encode())

    def frame(self, quick: bool) -> pl.DataFrame:
        """Return the rows of the cases of a quick or a full run, in the order of its cases."""
        order = {self.run.key(settings): i for i, settings in enumerate(self.run.cases(quick))}
        rows = sorted((row for row in self.rows if row[CASE] in order), key=lambda row: order[row[CASE]])
        return pl.DataFrame(rows, infer_schema_length=None)


def _short(value: object) -> object:
    """Return a number with a few decimals; anything else is left out."""
    if isinstance(value, float):
        return round(value, _DECIMALS) if math.isfinite(value) else None
    return value
