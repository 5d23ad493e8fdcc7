"""Columns of repeated ids: signs of tables with several rows per person, such as visits of patients.

An id repeats, and rows with the same id agree in other columns more often than rows that share an age or a ward. A
column with a typical name of ids needs less evidence.
"""

import re
from collections.abc import Mapping

import numpy as np

from silvan.data.batches import Batched
from silvan.data.cells import MISSING, Series, cell_numbers, distinct, is_text
from silvan.util.readable import list_some

_ROWS, _COLUMNS = 20_000, 12
"""Number of first rows inspected, and of columns in which rows with the same id are compared."""

_FEWEST = 20  # distinct ids
_MOST_EACH, _LEAST_EACH = 50, 1.15
"""Bounds on the average number of rows per id."""

_ALIKE = 0.5  # least median agreement of rows with the same id over other columns: 0 by chance, 1 complete
_NAMED_ALIKE = 0.1  # the same for a column with a typical name of ids
_WHOLLY = 0.9  # agreement in a third of the other columns, if the rest changes from visit to visit
_NAMED = re.compile(
    r"(?i)(^|[^a-z])(id|ids|pid|mrn|nhs|patient\w*|person\w*|subject\w*|participant\w*|case|customer\w*|client\w*|"
    r"resident\w*|pseudonym\w*|member\w*|user\w*)([^a-z]|$)"
)


def repeating_ids(tables: Mapping[str, Batched], label: str) -> list[str]:
    """Return a line for each column that looks like the id of persons with several rows."""
    found: dict[str, dict[str, float]] = {}
    for site, table in tables.items():
        for name, each in _ids(table, label).items():
            found.setdefault(name, {})[site] = each
    return [
        f"{name} at {list_some(list(sites), 'site', most=4)}: looks like an id that repeats, in "
        f"{max(sites.values()):.1f} rows each: does a person have several rows? then set group = "
        f'"{name}", or the model is tested on persons it was trained on'
        for name, sites in found.items()
    ]


def _ids(table: Batched, label: str) -> dict[str, float]:
    """Return the number of rows per value for columns that look like ids."""
    known = [*table.names, *(name for name in table.excluded if name not in table.names)]
    frame = next(table.batches(known)).head(_ROWS)
    found = {}
    for name in known:
        series = frame[name]
        if name == label or not (is_text(series) or _whole(series)):
            continue
        values, places = distinct(series)
        present = int(np.count_nonzero(places != MISSING))
        each = present / max(len(values), 1)
        if len(values) < _FEWEST or not _LEAST_EACH <= each <= _MOST_EACH or present < len(frame) / 2:
            continue
        others = [other for other in known if other != name][-_COLUMNS:]
        alike = [_agreement(places, frame[other]) for other in others]
        least = _NAMED_ALIKE if _NAMED.search(name) else _ALIKE
        known_alike = np.array([share for share in alike if share is not None])
        wholly = int(np.count_nonzero(known_alike > _WHOLLY))
        if len(known_alike) > 1 and (np.median(known_alike) > least or wholly >= max(3, len(known_alike) / 3)):
            found[name] = each
    return found


def _whole(series: Series) -> bool:
    if not series.dtype.is_numeric():
        return False
    numbers = cell_numbers(series)[0]
    numbers = numbers[np.isfinite(numbers)]
    return bool(len(numbers)) and not np.any(numbers % 1)


def _agreement(group: np.ndarray, series: Series) -> float | None:
    """Return the agreement of a group's rows in a column: 0 as by chance, 1 complete; None if unknown."""
    if is_text(series) or not series.dtype.is_numeric():
        try:
            values, codes = distinct(series)
        except (TypeError, ValueError):
            return None
        kept = (codes != MISSING) & (group != MISSING)
        return _kappa(group[kept], codes[kept], len(values))
    numbers = cell_numbers(series)[0]
    kept = np.isfinite(numbers) & (group != MISSING)
    ranks = np.empty(int(kept.sum()))
    values_at, places = np.unique(numbers[kept], return_inverse=True)
    if len(values_at) < 2:
        return None
    ends = np.cumsum(np.bincount(places))
    ranks = (ends - np.bincount(places) / 2)[places]  # ties share the middle of their ranks
    at = np.unique(group[kept], return_inverse=True)[1]
    rows = np.bincount(at)
    left = len(ranks) - len(rows)
    if left < _FEWEST // 2:
        return None
    within = float(np.sum((ranks - (np.bincount(at, ranks) / rows)[at]) ** 2)) / left
    return 1.0 - within / float(ranks.var())


def _kappa(group: np.ndarray, codes: np.ndarray, n_codes: int) -> float | None:
    """Return how much more often two rows of one group share a code than any two rows do."""
    if n_codes < 2 or len(codes) < _FEWEST:
        return None
    _, counts = np.unique(group * np.int64(n_codes) + codes, return_counts=True)
    rows = np.bincount(group)
    pairs = float(np.sum(rows * (rows - 1.0)))
    all_codes = np.bincount(codes)
    by_chance = float(np.sum((all_codes / len(codes)) ** 2))
    if pairs < _FEWEST or by_chance >= 1.0:
        return None
    return float((np.sum(counts * (counts - 1.0)) / pairs - by_chance) / (1.0 - by_chance))
