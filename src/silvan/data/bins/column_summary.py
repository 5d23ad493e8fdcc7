"""Summarise a table in one pass over its batches: kinds of columns, magnitudes of numbers, classes of the label."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from silvan.data.batches import Batched
from silvan.data.bins import grid
from silvan.data.bins.grid import LARGEST
from silvan.data.cells import MARKERS, Series, is_text
from silvan.data.column_types import kind_of
from silvan.data.encode import check_few, describe_label, infer_task, label_column, numeric_or_text
from silvan.data.schema import Class, Label, Task
from silvan.errors import InputError, SchemaError
from silvan.util.cell_text import cell_text
from silvan.util.kernels import njit

_SHIFT = 23  # medians are rounded to powers of two, keeping the sign and the exponent
_MOST = 1 << 16  # most classes


class Sizes:
    """The magnitudes of a column's values by powers of two: their number, and the smallest and largest of each.

    This suffices to locate the median: if the two middle values have different powers, they are the largest of one and
    the smallest of the other.
    """

    def __init__(self) -> None:
        self.counts = np.zeros(257, np.int64)
        self.low, self.high = np.full(257, np.iinfo(np.int32).max, np.int32), np.zeros(257, np.int32)
        self.present = False  # whether any cell has a value

    def add(self, series: Series) -> None:
        """Add some rows."""
        present = series.drop_nulls() if series.null_count() else series
        self.present |= len(present) > 0
        with np.errstate(over="ignore"):
            column = np.abs(present.to_numpy().astype(np.float32))
        _add_sizes(grid.images(column), self.counts, self.low, self.high)

    def merge(self, counts: np.ndarray, low: np.ndarray, high: np.ndarray, present: bool) -> None:
        """Add the summary of other rows."""
        self.counts += counts
        np.minimum(self.low, low, out=self.low)
        np.maximum(self.high, high, out=self.high)
        self.present |= present

    @property
    def rows(self) -> int:
        """The number of values with a magnitude."""
        return int(self.counts.sum())

    def median_cell(self) -> int:
        """Return the power of two above the median, in steps of the grid."""
        n, ends = self.rows, np.cumsum(self.counts)
        first, second = (int(c) for c in np.searchsorted(ends, [(n - 1) // 2, n // 2], side="right"))
        if first == second:
            return first
        middle = np.median(grid.values(np.array([self.high[first], self.low[second]])))
        return -(-int(grid.images(np.array([middle], np.float32))[0]) >> _SHIFT)


@njit(nogil=True, cache=True)
def _add_sizes(image: np.ndarray, counts: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Count positive magnitudes by powers of two, and track the smallest and largest of each."""
    for i in range(image.shape[0]):
        size = image[i]
        if 0 < size <= LARGEST:
            cell = -(-size >> _SHIFT)
            counts[cell] += 1
            low[cell] = min(low[cell], size)
            high[cell] = max(high[cell], size)


@dataclass(frozen=True)
class Summary:
    """The features in order with the magnitudes of numeric ones, the kind of each column, and the label.

    A column is "numeric", "categorical", "date", or "empty" if it has no values.
    """

    sizes: dict[str, Sizes | None]
    kinds: dict[str, str]
    label: Label


def summarise(
    table: Batched,
    label: str,
    task: Task | None = None,
    apart: Mapping[str, Sizes] | None = None,
    counted: np.ndarray | None = None,
    event: str | None = None,
) -> Summary:
    """Summarise all rows in one pass; ``apart`` holds the magnitudes of numeric columns that are already known.

    Magnitudes are those of the ``counted`` rows, by default all. ``event`` is a column of the label.
    """
    names = [name for name in table.names if name not in (label, event)]
    kinds = {name: "date" if name in table.dates else kind_of(table.kinds, name) or "empty" for name in names}
    apart = {name: sizes for name, sizes in (apart or {}).items() if kinds.get(name) in ("empty", "numeric")}
    sizes: dict[str, Sizes] = {name: apart[name] if name in apart else Sizes() for name in names}
    kinds |= {name: "numeric" for name, known in apart.items() if known.present}
    target = _Target(label, task, named=kind_of(table.kinds, label) == "categorical")
    start = 0
    for complaint in table.refused.values():
        raise SchemaError(complaint)
    for batch in table.batches([name for name in table.names if name not in apart]):
        label_column(batch, label)
        if event is not None:
            label_column(batch, event)
        if not names:
            raise SchemaError(f"no column is left to predict {label!r} from; add features or exclude fewer")
        for name in [name for name in names if name not in apart]:
            series = batch[name]
            if series.null_count() == len(series) or kinds[name] == "date":
                continue
            numeric_or_text(series, name)
            if kinds[name] == "empty":
                kinds[name] = "categorical" if is_text(series) else "numeric"
            if kinds[name] == "numeric":
                some = series if counted is None else series.filter(counted[start : start + len(batch)].tolist())
                sizes[name].add(some)
        try:
            target.add(batch[label], start + 1)
        except InputError as error:
            if len(batch) == len(table):
                raise
            raise type(error)(f"in rows {start + 1:,} to {start + len(batch):,}: {error}") from None
        start += len(batch)
    found = {name: sizes[name] if kinds[name] in ("numeric", "empty") else None for name in names}
    return Summary(found, kinds, target.label())


class _Target:
    """The summary of the label so far. ``named`` classes are texts, whatever the type of the cells."""

    def __init__(self, name: str, task: Task | None, *, named: bool = False) -> None:
        self.name, self.named = name, named
        self.asked: Task | None = "classification" if named and task is None else task
        self.number = task in ("regression", "survival")
        self.classes: set[Class] = set()

    def add(self, series: Series, first_row: int) -> None:
        """Add some rows."""
        self.number |= self.asked is None and infer_task(series) == "regression"
        label = describe_label(series, self.name, "regression" if self.number else "classification", first_row)
        if label.classes is not None and len(self.classes) <= _MOST:
            self.classes.update(map(cell_text, label.classes) if self.named else label.classes)

    def label(self) -> Label:
        """Return the label."""
        if self.number:
            return Label(self.name)
        check_few(len(self.classes), self.name, asked=self.asked is not None)
        if not self.named and any(isinstance(c, str) and c.strip().lower() in MARKERS for c in self.classes):
            raise SchemaError(
                f"a class of the label {self.name!r} is a marker of missing values, such as NA; drop these rows, or "
                f'set its kind if it is a class (kinds: {self.name} = "categorical")'
            )
        broken = any(isinstance(value, float) for value in self.classes)
        classes: list[Class] = [float(value) for value in self.classes] if broken else list(self.classes)
        return Label(self.name, tuple(sorted(classes)))
