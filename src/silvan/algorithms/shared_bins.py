"""Bin edges that all sites share, from sums over the public grid: two rounds.

Sites count rows in all coarse cells first, then in fine cells inside the heavy ones. No value of a site becomes an
edge.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from silvan.algorithms.requests import schema_of
from silvan.data.bins import grid
from silvan.data.bins.bins import Bins, make_bins, most_in_a_bin
from silvan.data.bins.cut_points import choose_cuts, given_cuts, staggered_bins
from silvan.data.bins.grid import Grid, Heavy, most_fine_cells
from silvan.data.bins.time_bins import N_CODES, time_cells
from silvan.data.schema import MAX_BINS, Feature, Schema
from silvan.errors import FormatError, reject
from silvan.federation import wire
from silvan.federation.describe import FLOOR
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Blob, Derived, Fixed, PartitionsWay, SummedReply, Total
from silvan.federation.part import Part
from silvan.federation.site import Site, answers
from silvan.federation.store import CacheKey
from silvan.util.threads import thread_count, thread_map


class GridCounts(SummedReply, frozen=True, kw_only=True):
    """Rows in each coarse cell, (columns, cells), and of the label: in each class, or in each cell."""

    cells: np.ndarray
    label: np.ndarray


class CountGrid(Total[GridCounts], frozen=True, kw_only=True):
    """The number of rows in each coarse cell of the public grid, column by column."""

    partitions: ClassVar[PartitionsWay] = "add up"

    schema: Agreed[Blob]


class FineCounts(SummedReply, frozen=True, kw_only=True):
    """Rows in each fine cell, column after column."""

    cells: np.ndarray


class CountFine(Total[FineCounts], frozen=True, kw_only=True):
    """The number of rows in each fine cell, within coarse cells that hold many rows."""

    partitions: ClassVar[PartitionsWay] = "add up"

    schema: Agreed[Blob]
    max_bins: Fixed[int]  # bins of a tree, which determine how many cells are refined, and how finely
    columns: Derived[np.ndarray]  # column of each heavy cell, ascending
    cells: Derived[np.ndarray]  # its number, ascending within the column
    shifts: Derived[np.ndarray]  # how finely it is divided


class CutPoints(msgspec.Struct, frozen=True):
    """The edges of all columns as sent, and which trees use which of them."""

    sizes: np.ndarray
    values: np.ndarray
    steps: np.ndarray | None = None  # uint8: see ``data/bins/cut_points.py``; None: all trees have all
    max_bins: int = MAX_BINS  # of a tree

    @classmethod
    def of(cls, bins: Bins, max_bins: int) -> "CutPoints":
        """Return the cut points of bins, where each tree has at most ``max_bins`` bins."""
        steps = np.concatenate([np.diff(codes) for codes in bins.codes]).astype(np.uint8)
        return cls(np.array([len(c) for c in bins.cuts], np.int64), np.concatenate(bins.cuts), steps, max_bins)


# -- at a site


def bins_of(site: Site, blob: Blob, schema: Schema, max_bins: int = MAX_BINS, *, public: bool = False) -> Bins:
    """Read the bins that a request refers to; raise ``FormatError`` unless they can result from counts.

    ``public`` bins follow from a schema's bounds instead, and may be anywhere.
    """

    def read() -> Bins:
        points = wire.decode(site.blob(blob.hash), CutPoints)
        sizes, values = points.sizes, points.values
        if sizes.shape != (len(schema.features),) or sizes.dtype != np.int64 or values.dtype != np.float32:
            raise FormatError("the bins are not those of the schema")
        if (sizes < 0).any() or (sizes >= MAX_BINS).any() or values.shape != (sizes.sum(),):
            raise FormatError("the bins do not match")
        cuts = np.split(values, np.cumsum(sizes)[:-1])
        reject(not np.isfinite(values).all() or any((np.diff(c) <= 0).any() for c in cuts), "the cut points must rise")
        steps = _steps(points)
        reject(points.max_bins > max_bins, "a tree has more bins than the request says")
        for feature, own in zip(schema.features, cuts, strict=True):
            _check_cuts(feature, own, len(schema.features), max_bins if steps is None else MAX_BINS, public=public)
        return make_bins(schema, cuts, steps, points.max_bins)

    return site.cache.once(CacheKey[Bins]("bins", blob.hash, schema.hash, max_bins, public), read)


def _check_cuts(feature: Feature, cuts: np.ndarray, n_columns: int, max_bins: int, *, public: bool) -> None:
    """Raise ``FormatError`` for cut points of a column that cannot result from counts."""
    images, step = grid.images(cuts), 1 << Grid.for_columns(n_columns).finest
    if feature.edges is not None and not public:
        if not np.array_equal(images, given_cuts(feature.edges)):
            raise FormatError("the cut points are not the edges of the schema")
    elif len(cuts) >= max_bins and feature.edges is None:
        raise FormatError("there are more cut points than a tree has bins")
    elif not public and (images % step).any():
        raise FormatError("a cut point is not on the public grid")


def _steps(points: CutPoints) -> list[np.ndarray] | None:
    """Return the steps between codes by column; raise ``FormatError`` if they do not match the cut points."""
    reject(not 2 <= points.max_bins <= MAX_BINS, "the bins of a tree are not possible")
    if points.steps is None:
        return None
    if points.steps.shape != points.values.shape or points.steps.dtype != np.uint8:
        raise FormatError("the steps do not match the cut points")
    return np.split(points.steps, np.cumsum(points.sizes)[:-1])


@answers(CountGrid)
def count_grid(site: Site, request: CountGrid) -> GridCounts:
    """Count the training rows on the coarse grid."""
    schema = schema_of(site, request.schema)
    part = site.part(schema)
    label = count_labels(site.rows_to_sample(schema), schema)
    return GridCounts(cells=coarse_table(part, schema, site.n_jobs), label=label)


@answers(CountFine)
def count_fine(site: Site, request: CountFine) -> FineCounts:
    """Count the training rows inside the heavy cells."""
    schema = schema_of(site, request.schema)
    heavy = _by_column(request, schema)
    return FineCounts(cells=fine_table(site.part(schema), heavy, schema, site.n_jobs))


# -- both sides: counts of rows


def coarse_table(part: Part, schema: Schema, n_jobs: int | None = None) -> np.ndarray:
    """Count rows in coarse cells: (columns, cells); columns without grid bins stay zero."""
    table_grid = Grid.for_columns(len(schema.features))
    table = np.zeros((len(schema.features), table_grid.n_cells), np.int32)

    def count(f: int, images: np.ndarray) -> None:
        table[f] += grid.coarse_counts(images, table_grid.coarse, table_grid.n_cells)

    _count_columns(part, [f for f in range(len(table)) if _on_grid(schema, f)], count, n_jobs)
    return table


def fine_table(part: Part, heavy: list[Heavy], schema: Schema, n_jobs: int | None = None) -> np.ndarray:
    """Count rows in the fine cells inside each column's heavy cells, column after column."""
    table_grid = Grid.for_columns(len(schema.features))
    starts = _starts(heavy, table_grid)
    table = np.zeros(starts[-1], np.int32)

    def count(f: int, images: np.ndarray) -> None:
        table[starts[f] : starts[f + 1]] += grid.fine_counts(images, heavy[f], table_grid)

    _count_columns(part, [f for f in range(len(heavy)) if len(heavy[f].cells)], count, n_jobs)
    return table


def _count_columns(
    part: Part, columns: list[int], count: Callable[[int, np.ndarray], None], n_jobs: int | None
) -> None:
    """Call ``count`` with each column and the grid positions of its values, a piece of the rows at a time."""
    for piece in part.pieces():

        def one(f: int, X: np.ndarray = piece.X) -> None:
            count(f, grid.images(X[:, f]))

        thread_map(one, columns, thread_count(n_jobs))


def _starts(heavy: list[Heavy], table_grid: Grid) -> np.ndarray:
    """Return where each column's fine counts begin, and where the last ones end."""
    return np.concatenate([[0], np.cumsum([h.starts(table_grid.coarse)[-1] for h in heavy])]).astype(np.int64)


def count_labels(part: Part, schema: Schema) -> np.ndarray:
    """Count rows by class, or by coarse cell of the target; a person with several rows counts in each cell reached.

    So no tree has more rows of a class than counted, whichever row of a person it sampled.
    """
    if not part.of_persons:
        return sum((label_counts(piece.y, schema) for piece in part.pieces()), start=label_counts(part.y[:0], schema))
    label_grid, cells = Grid.for_columns(1), part.y
    if schema.label.event is not None:
        cells = time_cells(part.y)
    elif not schema.n_classes:
        with np.errstate(over="ignore"):
            images = grid.images(part.y.astype(np.float32))
        cells = grid.coarse_cells(images, label_grid.coarse, label_grid.n_cells)
    n, persons = _label_cells(schema), np.unique(part.row_keys["person"], return_inverse=True)[1]
    return np.bincount(np.unique(persons * n + cells) % n, minlength=n).astype(np.int64)


def _label_cells(schema: Schema) -> int:
    """Return how many counts of labels there are."""
    if schema.label.event is not None:
        return N_CODES
    return schema.n_classes or Grid.for_columns(1).n_cells


def label_counts(y: np.ndarray, schema: Schema) -> np.ndarray:
    """Count rows by class, by coarse cell of the target, or by cell of the time and event."""
    if schema.n_classes:
        return np.bincount(y, minlength=schema.n_classes).astype(np.int64)
    if schema.label.event is not None:
        return np.bincount(time_cells(y), minlength=N_CODES).astype(np.int64)
    label_grid = Grid.for_columns(1)
    with np.errstate(over="ignore"):
        small = y.astype(np.float32)
    counts = grid.coarse_counts(grid.images(small), label_grid.coarse, label_grid.n_cells)
    return counts.astype(np.int64)


def _on_grid(schema: Schema, f: int) -> bool:
    feature = schema.features[f]
    return not feature.categorical and feature.edges is None


def _by_column(request: CountFine, schema: Schema) -> list[Heavy]:
    """Return the heavy cells of a request by column; raise ``FormatError`` for unknown cells."""
    table_grid, n = Grid.for_columns(len(schema.features)), len(schema.features)
    columns, cells, shifts = request.columns, request.cells, request.shifts
    if any(a.ndim != 1 or a.dtype != np.int32 or a.shape != cells.shape for a in (columns, cells, shifts)):
        raise FormatError("the cells do not match")
    if (np.diff(columns) < 0).any() or (np.diff(cells)[np.diff(columns) == 0] <= 0).any():
        raise FormatError("the cells must rise, column by column")
    if len(cells) and not (
        0 <= cells.min() <= cells.max() < table_grid.n_cells
        and 0 <= columns[0] <= columns[-1] < n
        and table_grid.finest <= shifts.min() <= shifts.max() <= table_grid.coarse
    ):
        raise FormatError("a cell does not exist")
    bounds = np.searchsorted(columns, np.arange(n + 1))
    heavy = [Heavy(cells[a:b], shifts[a:b]) for a, b in pairwise(bounds)]
    # whatever the counts are, few cells can hold many rows, and are refined for as many bins as a tree has
    reject(not 2 <= request.max_bins <= MAX_BINS, "the bins of a tree are not possible")
    most = staggered_bins(request.max_bins)
    if any(h.starts(table_grid.coarse)[-1] > most_fine_cells(table_grid, most) for h in heavy):
        raise FormatError("the cells are looked into too closely")
    return heavy


# -- at the coordinator


class SharedBins(NamedTuple):
    """The bins of all sites' training rows, and the counts behind them."""

    bins: Bins
    blob: Blob
    label: np.ndarray  # rows by class, or by coarse cell of the target
    most: np.ndarray  # int64, by column: maximum rows in a bin of a tree's histograms


class ValueCounts(NamedTuple):
    """Numbers of all sites' training rows in the cells of the public grid, coarse and fine."""

    schema: Schema
    coarse: GridCounts
    heavy: list[Heavy]
    fine: np.ndarray

    @property
    def grid(self) -> Grid:
        """The grid of the columns."""
        return Grid.for_columns(len(self.schema.features))

    def of(self, f: int) -> tuple[np.ndarray, Heavy, np.ndarray]:
        """Return the counts of a column: in coarse cells, which of these are heavy, and in their fine cells."""
        starts = _starts(self.heavy, self.grid)
        return self.coarse.cells[f], self.heavy[f], self.fine[starts[f] : starts[f + 1]]


def count_values(federation: Federation, schema: Schema, max_bins: int) -> ValueCounts:
    """Count all sites' training rows on the public grid, in two rounds."""
    named, coarse = federation.blob(schema.to_json().encode()), coarse_total(federation, schema)
    heavy = _heavy(coarse.cells, schema, staggered_bins(max_bins))
    size = int(_starts(heavy, Grid.for_columns(len(schema.features)))[-1])
    fine: FineCounts = federation.total(
        CountFine(
            schema=named,
            max_bins=max_bins,
            columns=np.repeat(np.arange(len(heavy)), [len(h.cells) for h in heavy]).astype(np.int32),
            cells=np.concatenate([h.cells for h in heavy]),
            shifts=np.concatenate([h.shifts for h in heavy]),
        ),
        check=lambda site, reply: _check_counts(reply.cells, (size,), np.int32),
        most=int(coarse.cells.max(initial=0)),
    )
    return ValueCounts(schema, coarse, heavy, fine.cells)


def find_shared_bins(federation: Federation, schema: Schema, max_bins: int) -> SharedBins:
    """Find the bins of all sites' training rows."""
    counts = count_values(federation, schema, max_bins)
    label = counts.coarse.label
    bins = _bins_from_counts(counts, max_bins, staggered=True)
    blob = federation.blob(wire.encode(CutPoints.of(bins, max_bins)))
    most = _most_in_bins(bins, counts)
    if federation.agreement.grouped:  # a tree may sample other rows of persons than those counted
        most[:] = label.sum()
    return SharedBins(bins, blob, label, most)


def _most_in_bins(bins: Bins, counts: ValueCounts) -> np.ndarray:
    """Return the maximum rows in a bin of each column: all rows if nothing is counted on the grid."""
    rows = int(counts.coarse.label.sum())
    most = np.full(len(counts.heavy), rows)
    for f in range(len(most)):
        if _on_grid(counts.schema, f):
            missing = rows - int(counts.coarse.cells[f].sum(dtype=np.int64))
            most[f] = max(missing, most_in_a_bin(bins, f, *counts.of(f), counts.grid))
    return most


def coarse_total(federation: Federation, schema: Schema) -> GridCounts:
    """Count all sites' training rows on the coarse grid."""

    def check(site: str, reply: GridCounts) -> None:
        cells = Grid.for_columns(len(schema.features)).n_cells
        _check_counts(reply.cells, (len(schema.features), cells), np.int32)
        _check_counts(reply.label, (_label_cells(schema),), np.int64)

    named, rows = federation.blob(schema.to_json().encode()), sum(federation.rows.values())
    counts: GridCounts = federation.total(CountGrid(schema=named), check=check, most=rows or None)
    return counts


def _check_counts(counts: np.ndarray, shape: tuple[int, ...], dtype: type) -> None:
    if counts.shape != shape or counts.dtype != dtype or counts.min(initial=0) < 0:
        raise FormatError("its counts are not the ones requested")


def _heavy(coarse: np.ndarray, schema: Schema, max_bins: int) -> list[Heavy]:
    table_grid = Grid.for_columns(len(schema.features))
    return [grid.heavy_cells(row, table_grid, max_bins, FLOOR) for row in coarse]


def _bins_from_counts(counts: ValueCounts, max_bins: int, *, staggered: bool) -> Bins:
    """Choose every column's cut points from counts only."""
    cuts, steps = [], []
    for f, feature in enumerate(counts.schema.features):
        own, apart = np.zeros(0, np.int32), None
        if feature.edges is not None:
            own = given_cuts(feature.edges)
        elif not feature.categorical:
            own, apart = choose_cuts(*counts.of(f), counts.grid, max_bins, staggered=staggered)
        cuts.append(grid.values(own))
        steps.append(apart)
    return make_bins(counts.schema, cuts, steps, max_bins)


def pooled_bins(part: Part, schema: Schema, max_bins: int, *, staggered: bool = True) -> Bins:
    """Find the same bins from pooled rows."""
    coarse, most = coarse_table(part, schema), staggered_bins(max_bins) if staggered else max_bins
    heavy = _heavy(coarse, schema, most)
    label = np.array([len(part)], np.int64)
    counts = ValueCounts(schema, GridCounts(cells=coarse, label=label), heavy, fine_table(part, heavy, schema))
    return _bins_from_counts(counts, max_bins, staggered=staggered)
