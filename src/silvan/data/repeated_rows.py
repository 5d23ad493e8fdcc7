"""Rows that are exact copies of others, within a table or between the tables of several sites.

In a table with few columns and few values, equal rows may simply be similar people. Two signs point to copies. First,
every row occurs twice, or three times. Second, there are many more equal rows than chance explains: chance would make
even more rows equal in all columns except one with few values, and only in tables with few possible rows.

Rows are compared by 64-bit hashes: among a million rows, the chance of a collision is one in 40 million.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any
from zlib import crc32

import narwhals as nw
import numpy as np

from silvan.data.batches import Batched
from silvan.data.cells import holds_objects
from silvan.util.cell_text import value_text
from silvan.util.readable import count_of, list_some

if TYPE_CHECKING:
    import polars as pl

MOST_ROWS = 2_000_000
"""Only the first rows of a table are compared, at most this many."""

_LEAST, _SHARE = 3, 0.01  # fewest copies worth a warning, and their least share of the rows
_PATTERNS = 10  # this many distinct rows all occur an even number of times by chance in one of a thousand tables
_FEW = 100  # rows that differ only in a column with at most this many values are nearly equal
_MARGIN = 10  # ratio of equal rows to those explained by chance
_MEAN = 3  # average number of occurrences of a row in a table with few possible rows
_SAMPLE = 10_000  # numbers that show how a column is rounded
_DIGITS = range(-6, 7)  # decimals that numbers may be rounded to


def repeated_rows(tables: Mapping[str, Batched]) -> list[str]:
    """Return a line for each table with repeated rows, and one for tables with rows in common."""
    lines = []
    for site, table in tables.items():
        copies, times = _copies(table)
        if copies:
            cut = f" of the first {MOST_ROWS:,}" if len(table) > MOST_ROWS else ""
            what = f"each row occurs {times} times" if times > 1 else f"{count_of(copies, 'row')}{cut} repeat others"
            lines.append(
                f"the table of {site}: {what}, equal in all columns: was it appended or joined twice, or is a column "
                "missing that distinguishes them? The model knows a test row whose copy is a training row"
            )
    pairs = [f"{a} and {b} ({count_of(rows, 'row')})" for (a, b), rows in _shared(tables).most_common()]
    if pairs:
        lines.append(
            f"tables have rows in common, equal in all columns: {list_some(pairs, 'pair', most=4)}: are the same "
            "people at both sites? The model knows a test row of one site that is a training row at the other"
        )
    return lines


def _copies(table: Batched) -> tuple[int, int]:
    """Return the number of repeated rows, unless chance explains it, and the common number of occurrences."""
    ids = {name for name in table.names if not table.dtypes[name].is_float() and _all_differ(_hashes([table], [name]))}
    for names in (table.names, [name for name in table.names if name not in ids]):  # copies may have new ids
        hashes = _hashes([table], names)
        if not names or _all_differ(hashes):
            continue
        rows, first, counts = np.unique(hashes, return_index=True, return_counts=True)
        times = int(np.gcd.reduce(counts))
        if times > 1 and len(rows) >= _PATTERNS:
            return len(hashes) - len(rows), times
        share = float(np.sum(counts * (counts - 1.0))) / len(hashes) / (len(hashes) - 1.0)
        if _are_many(len(hashes) - len(rows), len(hashes)) and not _by_chance(
            [table], names, rows, first, counts > 1, share
        ):
            return len(hashes) - len(rows), 1
    return 0, 1


def _shared(tables: Mapping[str, Batched]) -> Counter[tuple[str, str]]:
    """Return the number of rows shared by each pair of sites, unless chance explains it."""
    shared: Counter[tuple[str, str]] = Counter()
    alike = [{(name, _is_number(table.dtypes[name])) for name in table.names} for table in tables.values()]
    names = sorted(name for name, _ in set.intersection(*alike))
    if len(tables) < 2 or not names:
        return shared
    lengths = np.array([min(len(table), MOST_ROWS) for table in tables.values()])
    hashes = _hashes(list(tables.values()), names)
    rows, first, places = np.unique(hashes, return_index=True, return_inverse=True)
    held, times = np.unique(
        places * len(tables) + np.repeat(np.arange(len(tables)), lengths), return_counts=True
    )  # each row at each site
    row, site = held // len(tables), held % len(tables)
    several = np.bincount(row) > 1
    pairs = np.bincount(row, times.astype(float)) ** 2 - np.bincount(row, times.astype(float) ** 2)
    share = float(pairs.sum()) / (float(lengths.sum()) ** 2 - float(np.sum(lengths.astype(float) ** 2)))
    if not several.any() or _by_chance(list(tables.values()), names, rows, first, several, share):
        return shared
    held_by = {name: row[(site == i) & several[row]] for i, name in enumerate(tables)}
    for (i, one), (j, other) in combinations(enumerate(held_by), 2):
        common = len(np.intersect1d(held_by[one], held_by[other], assume_unique=True))
        same = lengths[i] == lengths[j] == common  # the same table twice has a question of its own
        if _are_many(common, min(lengths[i], lengths[j])) and not same:
            shared[one, other] = common
    return shared


def _are_many(copies: int, rows: int) -> bool:
    return copies >= max(_LEAST, _SHARE * rows)


def _by_chance(
    tables: Sequence[Batched],
    names: Sequence[str],
    rows: np.ndarray,
    first: np.ndarray,
    repeated: np.ndarray,
    share: float,
) -> bool:
    """Whether chance explains the ``repeated`` rows among the distinct ``rows``, which first occur at ``first``.

    ``share`` is the share of pairs of equal rows.
    """
    import polars as pl

    possible, near, total = 1.0, np.zeros(len(rows), np.bool_), 0
    for name in names:
        column = pl.concat([_column(table, name) for table in tables])
        total, values = len(column), column.n_unique()
        possible *= _possible(column, values)
        if values <= _FEW:
            near |= pl.Series(rows - _hash(column)[first]).is_duplicated().to_numpy()
    return bool(len(rows) * _MEAN < total or share * possible < _MARGIN or 2 * near[repeated].sum() >= repeated.sum())


def _possible(column: "pl.Series", values: int) -> float:
    """Return the number of possible values of a column; for rounded numbers, all from minimum to maximum."""
    if not column.dtype.is_numeric():
        return values
    numbers = column.drop_nulls().to_numpy()
    numbers = numbers[np.isfinite(numbers)]
    for digits in _DIGITS:
        steps = numbers[:_SAMPLE] * 10.0**digits
        if len(steps) and np.allclose(steps, np.round(steps), rtol=0, atol=1e-6):
            return float(numbers.max() - numbers.min()) * 10.0**digits + 1
    return float(2**52)


def _hashes(tables: Sequence[Batched], names: Sequence[str]) -> np.ndarray:
    """Return a hash of each of the first rows of tables, over some columns."""
    total = np.zeros(sum(min(len(table), MOST_ROWS) for table in tables), np.uint64)
    start = 0
    for table in tables:
        for frame in _frames(table, names):
            for name in names:
                total[start : start + len(frame)] += _hash(_plain(frame[name]))
            start += len(frame)
    return total


def _frames(table: Batched, names: Sequence[str]) -> Any:
    left = MOST_ROWS
    for frame in table.batches(names):
        yield frame.head(left)
        left -= len(frame)
        if left <= 0:
            return


def _column(table: Batched, name: str) -> "pl.Series":
    import polars as pl

    return pl.concat([_plain(frame[name]) for frame in _frames(table, [name])])


def _plain(series: Any) -> "pl.Series":
    """Return a column as numbers or as text, so that equal cells are equal at all sites."""
    import polars as pl

    if _is_number(series.dtype):
        return pl.Series(series.name, series.cast(nw.Float64).to_numpy())
    texts = series if holds_objects(series) else series.cast(nw.String)
    if isinstance(texts.to_native(), pl.Series) and texts.dtype == nw.String:
        return texts.to_native()
    return pl.Series(series.name, list(map(value_text, texts.to_list())), pl.String)


def _is_number(dtype: Any) -> bool:
    return bool(dtype.is_numeric() or dtype.is_boolean())


def _hash(column: "pl.Series") -> np.ndarray:
    return column.hash(seed=crc32(column.name.encode())).to_numpy()


def _all_differ(hashes: np.ndarray) -> bool:
    import polars as pl

    return pl.Series(hashes).n_unique() == len(hashes)
