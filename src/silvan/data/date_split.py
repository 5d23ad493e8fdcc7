"""Test rows by date: the model is trained on earlier rows and evaluated on later ones, as in later use."""

import re
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from silvan.data.batches import Batched
from silvan.data.cells import cell_dates, cell_numbers, date_number, read_date
from silvan.data.holdout import HeldOut
from silvan.errors import InputError
from silvan.util.declared import NOT_EMPTY
from silvan.util.readable import count_of

EXPECTED = '{ by = "date", test = "last 20%" }, or test = "since 2024-01-31"'
"""The expected form of a split by date, as in a study file."""

NEEDS_DATE = "must name a date if there is a privacy budget, as in since 2024-01-31: the last 20% depend on all rows"

_LAST = re.compile(r"last\s+(\d+(?:\.\d+)?)\s*%")
_SINCE = re.compile(r"since\s+(\S+)")


class DateSplit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The column that orders rows in time, and which of them are test rows.

    Parameters
    ----------
    by
        A column of dates, or of numbers such as years. It is not used as a feature.
    test
        "last 20%" for the latest rows of each site, "since 2024-01-31" for the same date at all sites, or "since 2024"
        for a column of numbers. Rows of one date stay together.
    """

    by: Annotated[str, Meta(pattern=NOT_EMPTY)]
    test: str

    def __post_init__(self) -> None:
        since, share = self.since, self.share
        if (since is None and share is None) or (share is not None and not 0.0 < share < 1.0):
            raise ValueError("test")

    @property
    def share(self) -> float | None:
        """The share of every site's rows, if given as a share."""
        found = _LAST.fullmatch(self.test.strip().lower())
        return None if found is None else float(found[1]) / 100.0

    @property
    def since(self) -> str | None:
        """The first date or number of test rows, as written, if given in this form."""
        found = _SINCE.fullmatch(self.test.strip())
        known = found is not None and (read_date(found[1]) is not None or _number(found[1]) is not None)
        return found[1] if found is not None and known else None

    def hold_out(self, table: Batched, person: np.ndarray | None = None) -> HeldOut:
        """Return the test rows of a table; raise ``InputError`` if the column does not determine them.

        ``person`` is the number of each row's person; all rows of a person count as of that person's first date.
        """
        times, dates = self._times(table)
        if person is not None and len(person):
            first = np.full(int(person.max()) + 1, np.inf)
            np.minimum.at(first, person, times)
            times = first[person]
        later = times >= (self._start_of(times) if self.share is not None else self._start(dates))
        if later.all() or not later.any():
            which = "no row is" if not later.any() else "all rows are"
            raise InputError.about(
                "split", f"by {self.by!r}: {which} in the test set ({self.test}); both sets need rows"
            )
        held = HeldOut(len(table))
        held.add(np.flatnonzero(later))
        return held

    def _times(self, table: Batched) -> tuple[np.ndarray, bool]:
        """Return the day since 1970, or the number, of each row, and whether these are dates."""
        read = [batch[self.by] for batch in self._read(table)]
        as_dates = _joined([cell_dates(series, "days") for series in read])
        as_numbers = _joined([cell_numbers(series) for series in read]) if as_dates[1].any() else as_dates
        dates = as_dates[1].sum() <= as_numbers[1].sum()
        times, strange = as_dates if dates else as_numbers
        if strange.any():
            what = f"{count_of(int(strange.sum()), 'cell')} of {len(times):,}"
            raise InputError.about(
                "split", f"by {self.by!r}: {what} hold neither a date (2024-01-31) nor a number; correct them"
            )
        missing = int(np.isnan(times).sum())
        if missing:
            raise InputError.about(
                "split",
                f"by {self.by!r}: {count_of(missing, 'row')} of {len(times):,} have no date; fill in the dates, or "
                "drop these rows",
            )
        return times, dates

    def _read(self, table: Batched) -> Any:
        if self.by not in (*table.names, *table.excluded):
            raise InputError.about("split", f"names {self.by!r}, but the table has no such column")
        return table.batches([self.by])

    def _start_of(self, times: np.ndarray) -> float:
        """Return the first time of the test rows, with whole dates whose share of rows is the nearest."""
        distinct, counts = np.unique(times, return_counts=True)
        later = counts[::-1].cumsum()[::-1] / max(len(times), 1)  # the share of rows from each time on
        if len(distinct) < 2:
            return np.inf  # one date: nothing is later
        return float(distinct[1:][np.argmin(np.abs(later[1:] - (self.share or 0.0)))])

    def _start(self, dates: bool) -> float:
        """Return the first time of the test rows, in the column's terms."""
        since = self.since or ""
        day, number = read_date(since), _number(since)
        if dates and day is not None:
            return date_number(day, "days") or 0.0
        if not dates and number is not None:
            return number
        kind, other = ("dates", "a date, as since 2024-01-31") if dates else ("numbers", "a number, as since 2024")
        raise InputError.about("split", f"by {self.by!r}: the column holds {kind}; name {other}")


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([values for values, _ in parts]), np.concatenate([odd for _, odd in parts])


def check_split(split: Any) -> DateSplit | None:
    """Return a split by date, given as such or as a dict; raise ``InputError`` for anything else."""
    if split is None or isinstance(split, DateSplit):
        return split
    try:
        return msgspec.convert(split, DateSplit)
    except (msgspec.ValidationError, ValueError):
        raise InputError.wrong(
            "split", '{"by": "date", "test": "last 20%"}, or as test "since 2024-01-31"', split
        ) from None


def _number(text: str) -> float | None:
    try:
        found = float(text)
    except ValueError:
        return None
    return found if np.isfinite(found) else None
