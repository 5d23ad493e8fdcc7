"""Sample test rows by a seed: a share of every class, or one of several folds.

The result takes one bit per row. For large tables, the arrays that are sorted and shuffled are in files.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from silvan.data.batches import Batched, Whole
from silvan.data.disk_arrays import Folder, scratch
from silvan.data.encode import label_column
from silvan.data.groups import Groups

_PIECE = 1 << 16  # rows sorted at a time


class Fold(NamedTuple):
    """One fold of a shuffled table: its number, the number of folds, and the shuffle."""

    number: int
    of: int
    shuffle: int = 0

    @property
    def parts(self) -> "tuple[Fold, ...]":
        """The studies of the split: only this one."""
        return (self,)

    @property
    def test(self) -> float:
        """The share of each site's rows in the test set."""
        return 1.0 / self.of

    def members(self, sites: Iterable[str]) -> list[str]:
        """Return the participating sites: all."""
        return list(sites)

    def study(self, name: str) -> str:
        """Return the study's name, as sites see it, with this fold as the test set."""
        return f"{name}; fold {self.number} of {self.of}, {self.shuffle}"


class LeftOut(NamedTuple):
    """A split by site: the model is trained at all other sites and evaluated on all rows of this one.

    It consists of two studies: first the other sites train, then this site ``evaluates``.
    """

    site: str
    evaluates: bool = False

    @property
    def parts(self) -> "tuple[LeftOut, LeftOut]":
        """The two studies of the split."""
        return LeftOut(self.site), LeftOut(self.site, evaluates=True)

    @property
    def test(self) -> float:
        """The share of each participant's rows in the test set: none or all."""
        return float(self.evaluates)

    def members(self, sites: Iterable[str]) -> list[str]:
        """Return the participating sites."""
        return [site for site in sites if (site == self.site) == self.evaluates]

    def study(self, name: str) -> str:
        """Return the name of this study, as sites see it."""
        return f"{name}; {'at' if self.evaluates else 'without'} {self.site}"


Split = Fold | LeftOut


class HeldOut:
    """The test rows: initially none, or all."""

    def __init__(self, rows: int, every: bool = False) -> None:
        self.rows, self.bits = rows, np.full(-(-rows // 8), 255 * every, np.uint8)
        self.kept = rows * every

    def between(self, start: int, stop: int) -> np.ndarray:
        """Return which rows from ``start`` up to ``stop`` are held out: bool."""
        first = start // 8
        bits = np.unpackbits(self.bits[first : -(-stop // 8)])
        return bits[start - 8 * first : stop - 8 * first].astype(np.bool_)

    def add(self, rows: np.ndarray) -> None:
        """Hold out more rows, none of which was held out before."""
        for first in range(0, len(rows), _PIECE):
            some = rows[first : first + _PIECE]
            np.bitwise_or.at(self.bits, some >> 3, np.uint8(128) >> (some & 7).astype(np.uint8))
        self.kept += len(rows)

    def with_persons(self, groups: Groups) -> "HeldOut":
        """Hold out all rows of the persons whose first row is held out."""
        chosen = np.zeros(len(groups.ids), np.bool_)
        chosen[groups.person[groups.first & self.between(0, self.rows)]] = True
        held = HeldOut(self.rows)
        held.add(np.flatnonzero(chosen[groups.person]))
        return held


def hold_out(
    table: Batched,
    label: str,
    share: float,
    seed: Any,
    folder: Folder = None,
    fold: Fold | None = None,
    groups: Groups | None = None,
) -> HeldOut:
    """Sample the rows to hold out: a share of every class, or those of one fold.

    With ``groups``, whole persons are sampled, by the class of their first row.
    """
    n = len(table)
    held = HeldOut(n)
    if share <= 0.0:
        return held
    words = _words(table, label)
    rng = np.random.default_rng(seed)
    carry, dealt = 0.5, 0
    for rows in _groups(table, label, words, not isinstance(table, Whole), folder):
        if groups is not None:
            rows = rows[groups.first[rows]]
        rng.shuffle(rows)
        if fold is not None:
            held.add(rows[(dealt + np.arange(len(rows))) % fold.of == fold.number])
            dealt += len(rows)  # the next class continues in turn, so that folds have equal sizes
            continue
        part = share * len(rows) + carry
        held.add(rows[: int(part)])
        carry = part - int(part)  # small classes share the remainders of rounding
    held = held if groups is None else held.with_persons(groups)
    return held if held.kept < n else HeldOut(n)  # there must be training rows


def _words(table: Batched, label: str) -> np.ndarray | None:
    """Return the texts of the classes, ascending; None if the label is a number."""
    most, distinct, kind = max(2, len(table) // 5), np.zeros(0), None
    for i, batch in enumerate(table.batches([label] if label in table.names else None)):
        values = label_column(batch, label).to_numpy()
        if values.dtype.kind == "f":
            kind = values.dtype
            values = values.view(f"i{kind.itemsize}")  # compare bits, since -0.0 and 0.0 have different texts
        elif values.dtype.kind not in "biu":
            values = values.astype(str)
        values = np.unique(values)
        distinct = values if i == 0 else np.unique(np.concatenate([distinct, values]))
        if len(distinct) > 2 * most:  # different values may have equal texts, but not so many
            return None
    words = np.unique((distinct if kind is None else distinct.view(kind)).astype(str))
    return words if len(words) <= most else None


def _groups(table: Batched, label: str, words: np.ndarray | None, stored: bool, folder: Folder) -> Any:
    """Yield the rows of each class, ascending."""
    n = len(table)
    if words is None:
        rows = _space(stored, folder, n, np.uint32)
        rows[:] = np.arange(n, dtype=np.uint32)
        yield rows
        return
    codes = _space(stored, folder, n, np.min_scalar_type(len(words)))
    start = 0
    for batch in table.batches([label]):
        values = label_column(batch, label).to_numpy()
        for first in range(0, len(values), _PIECE):
            piece = values[first : first + _PIECE]
            codes[start : start + len(piece)] = np.searchsorted(words, piece.astype(str))
            start += len(piece)
    sizes = np.zeros(len(words), np.int64)
    for first in range(0, n, _PIECE):
        sizes += np.bincount(codes[first : first + _PIECE], minlength=len(words))
    ends = np.cumsum(sizes)
    order, at = _space(stored, folder, n, np.uint32), ends - sizes
    for first in range(0, n, _PIECE):
        piece = codes[first : first + _PIECE]
        by_class = np.argsort(piece, kind="stable")
        classes, begin, count = np.unique(piece[by_class], return_index=True, return_counts=True)
        place = np.arange(len(piece)) - np.repeat(begin - at[classes], count)
        order[place] = by_class + first
        at[classes] += count
    for size, end in zip(sizes, ends, strict=True):
        yield order[end - size : end]


def _space(stored: bool, folder: Folder, n: int, dtype: Any) -> np.ndarray:
    return scratch(folder, n, dtype) if stored else np.empty(n, dtype)
