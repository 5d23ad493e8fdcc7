"""What sites count, with noise, for a private forest of small tables (``tables.py``).

A site computes from the request alone how much one row can change a reply: a row adds one to one cell of every
requested histogram. Each request is checked before any row is read.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from silvan.algorithms.private.noisy_counts import (
    MOST,
    NoisyCounts,
    NoisyTotal,
    answer_with_noise,
    histogram_noises,
    labelled_rows,
    model_to_count_by,
    whole_target,
)
from silvan.algorithms.private.tables_forest import Group
from silvan.data.schema import MAX_BINS, Schema
from silvan.errors import FormatError, reject
from silvan.federation.message import Agreed, Blob, Derived
from silvan.federation.part import Part
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.forest.predict import tally
from silvan.privacy.noise.laplace import Noise
from silvan.privacy.noise.noisy_request import Noisy, drawn_once

MAX_CELLS = 1 << 20
MAX_TABLES = 1 << 12


# -- messages
class CountPeople(NoisyTotal, frozen=True, kw_only=True):
    """The number of training rows, with noise."""

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row adds 1."""
        return (self.noise(1),)


class CountColumns(NoisyTotal, frozen=True, kw_only=True):
    """The number of rows in public bins of some columns, with noise."""

    schema: Agreed[Blob]
    columns: Derived[np.ndarray]  # int32, features
    sizes: Derived[np.ndarray]  # int64, cut points of each
    cuts: Derived[np.ndarray]  # float32, column after column

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row is in a bin of every column."""
        return (self.noise(len(self.columns)),)


class CountTables(NoisyTotal, frozen=True, kw_only=True):
    """The number of rows per class in the cells of some tables, with noise."""

    schema: Agreed[Blob]
    columns: Derived[np.ndarray]  # int32, features, each once
    sizes: Derived[np.ndarray]  # int64, cut points of each, 0 for a categorical one
    cuts: Derived[np.ndarray]  # float32, column after column
    missing: Derived[np.ndarray]  # int64, the group of missing values
    table_sizes: Derived[np.ndarray]  # int64, columns of each table
    table_columns: Derived[np.ndarray]  # int64, positions in ``columns``, table after table

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row is in a cell of every table."""
        return histogram_noises(self, len(self.table_sizes), schema)


class CountScores(NoisyTotal, frozen=True, kw_only=True):
    """The number of rows per class for each score of a model, with noise."""

    schema: Agreed[Blob]
    model: Derived[Blob]
    edges: Derived[np.ndarray]  # float64 (classes, edges), increasing

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row is in a bin of every class's scores."""
        return (self.noise(len(self.edges)),)


class SumTargets(NoisyTotal, frozen=True, kw_only=True):
    """The sum of the numeric target, clipped to its bounds, with noise."""

    schema: Agreed[Blob]

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row adds at most ``MOST``."""
        return (self.noise(MOST),)


class SumSlopes(NoisyTotal, frozen=True, kw_only=True):
    """Four sums that relate a model's predictions to the numeric target, with noise."""

    schema: Agreed[Blob]
    model: Derived[Blob]
    centre: Derived[float]
    reach: Derived[float]

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row adds at most ``MOST`` to each of four sums."""
        return (self.noise(4 * MOST),)


# -- at a site
@answers(CountPeople)
def count_people(site: Site, request: CountPeople) -> NoisyCounts:
    """Count the training rows."""
    noise = request.noise(1)
    return drawn_once(
        site, request, NoisyCounts, lambda: NoisyCounts(counts=noise.add(np.array([site.n_train], np.int64)))
    )


def _answer(site: Site, request: Any) -> NoisyCounts:
    return answer_with_noise(site, request, request.schema, lambda schema: plan_counts(site, request, schema))


for _kind in (CountColumns, CountTables, CountScores, SumTargets, SumSlopes):
    answers(_kind)(_answer)


def plan_counts(site: Site, request: Noisy, schema: Schema) -> Callable[[], np.ndarray]:
    """Check a request without reading rows; return a function that counts them exactly, for the site alone.

    Raises ``FormatError`` for an inconsistent request.
    """
    if isinstance(request, CountColumns):
        cuts = _cuts(request, schema)
        if any(schema.features[f].categorical for f in request.columns.tolist()):
            raise FormatError("only numeric columns are counted in bins")
        return lambda: _count_columns(labelled_rows(site, schema), request.columns, cuts)
    if isinstance(request, CountTables):
        tables = _tables(request, schema)
        return lambda: _count_tables(labelled_rows(site, schema), *tables, schema)
    if isinstance(request, CountScores):
        _check_edges(request.edges, schema)
        model = model_to_count_by(site, schema, request.model)
        reject(model.combine != "log_odds", "scores are counted of models that add log-odds")
        return lambda: _count_scores(labelled_rows(site, schema), request.edges, schema, model, site.n_jobs)
    if schema.label.bounds is None:
        raise FormatError("the number to predict has no bounds")
    if isinstance(request, SumTargets):
        return lambda: np.array([whole_target(labelled_rows(site, schema).y, schema).sum()], np.int64)
    if isinstance(request, SumSlopes):
        model = model_to_count_by(site, schema, request.model)
        if not (np.isfinite(request.centre) and 0.0 < request.reach < np.inf):
            raise FormatError("slopes are for numbers, around a centre and within a reach")
        return lambda: _sum_slopes(labelled_rows(site, schema), request, schema, model, site.n_jobs)
    raise FormatError("there is nothing to count")


def _count_columns(part: Part, columns: np.ndarray, cuts: list[np.ndarray]) -> np.ndarray:
    found = []
    for f, edges in zip(columns.tolist(), cuts, strict=True):
        column = part.X[:, f]
        bins = np.where(np.isnan(column), 0, 1 + np.searchsorted(edges, column))
        found.append(np.bincount(bins, minlength=len(edges) + 2))
    return np.concatenate(found).astype(np.int64)


def _count_tables(part: Part, groups: list[Group], listed: list[list[int]], schema: Schema) -> np.ndarray:
    codes = [group.of(part.X) for group in groups]
    target = part.y.astype(np.int64) if schema.n_classes else whole_target(part.y, schema)
    found = []
    for table in listed:
        sizes = [groups[i].n for i in table]
        cells = np.ravel_multi_index([codes[i] for i in table], sizes)
        if schema.n_classes:
            n = schema.n_classes
            found.append(np.bincount(cells * n + target, minlength=prod(sizes) * n).reshape(-1, n))
        else:
            sums = np.zeros(prod(sizes), np.int64)
            np.add.at(sums, cells, target)
            found.append(np.stack([np.bincount(cells, minlength=prod(sizes)), sums], axis=1))
    return np.concatenate(found).astype(np.int64)


def _count_scores(part: Part, edges: np.ndarray, schema: Schema, forest: Forest, n_jobs: int | None) -> np.ndarray:
    n = len(edges)
    sums = tally(forest, part.X, forest.weights, n_jobs, votes=False).values
    counts = np.zeros((n, edges.shape[1] + 1, 2), np.int64)
    for i, row in enumerate(edges):
        k = schema.n_classes - n + i
        np.add.at(counts[i], (np.searchsorted(row, sums[:, k]), (part.y == k).astype(np.int64)), 1)
    return counts


def _sum_slopes(part: Part, request: SumSlopes, schema: Schema, forest: Forest, n_jobs: int | None) -> np.ndarray:
    with np.errstate(all="ignore"):
        predicted = (forest.scores(part.X, n_jobs)[:, 0] - request.centre) / request.reach
    score = np.rint(np.clip(np.nan_to_num(predicted), -1.0, 1.0) * MOST).astype(np.int64)
    target = whole_target(part.y, schema)
    products = np.rint(score * target / MOST), np.rint(score * score / MOST)
    return np.array([score.sum(), target.sum(), *(int(p.sum()) for p in products)], np.int64)


def _check_edges(edges: np.ndarray, schema: Schema) -> None:
    # the scores of two classes mirror each other, so one histogram suffices
    n = 1 if schema.n_classes == 2 else schema.n_classes
    if edges.ndim != 2 or edges.dtype != np.float64 or not 1 <= n == len(edges) or not 1 <= edges.shape[1] <= MAX_BINS:
        raise FormatError("the edges of scores do not match the classes")
    reject(not np.isfinite(edges).all() or (np.diff(edges, axis=1) <= 0).any(), "the edges of scores must rise")


def _cuts(request: CountColumns | CountTables, schema: Schema) -> list[np.ndarray]:
    """Return the cut points of each column; raise ``FormatError`` for no such columns, or cuts that do not rise."""
    columns, sizes, values = request.columns, request.sizes, request.cuts
    if columns.ndim != 1 or columns.dtype != np.int32 or not 1 <= len(columns) <= len(schema.features):
        raise FormatError("the columns do not match the schema")
    if (np.diff(columns) <= 0).any() or columns[0] < 0 or columns[-1] >= len(schema.features):
        raise FormatError("the columns must rise, and exist")
    if sizes.shape != columns.shape or sizes.dtype != np.int64 or values.ndim != 1 or values.dtype != np.float32:
        raise FormatError("the cut points do not match the columns")
    if ((sizes < 0) | (sizes >= MAX_BINS)).any() or sizes.sum() != len(values) or not np.isfinite(values).all():
        raise FormatError("the cut points do not match the columns")
    cuts = np.split(values, np.cumsum(sizes)[:-1])
    reject(any((np.diff(c) <= 0).any() for c in cuts), "the cut points must rise")
    return cuts


def _tables(request: CountTables, schema: Schema) -> tuple[list[Group], list[list[int]]]:
    """Return the groups of each column and the columns of each table; raise ``FormatError`` where they do not match."""
    cuts, missing = _cuts(request, schema), request.missing
    if missing.shape != request.columns.shape or missing.dtype != np.int64:
        raise FormatError("the groups of missing values do not match the columns")
    groups = []
    for f, edges, lost in zip(request.columns.tolist(), cuts, missing.tolist(), strict=True):
        group = Group(f, schema.features[f].n_codes, edges, lost)
        if schema.features[f].categorical and (len(edges) or not group.n_codes):
            raise FormatError("a categorical column is grouped by its categories")
        if not 0 <= lost <= (group.n_codes - 1 if group.n_codes else len(edges) + 1):
            raise FormatError("a group of missing values does not exist")
        groups.append(group)
    sizes, places = request.table_sizes, request.table_columns
    if any(a.ndim != 1 or a.dtype != np.int64 for a in (sizes, places)) or not 1 <= len(sizes) <= MAX_TABLES:
        raise FormatError("the tables do not match the columns")
    reject(((sizes < 1) | (sizes > 32)).any() or sizes.sum() != len(places), "the tables do not match the columns")
    reject((places < 0).any() or (places >= len(groups)).any(), "a table of a column that is not listed")
    listed = [part.tolist() for part in np.split(places, np.cumsum(sizes)[:-1])]
    reject(any(len(set(table)) < len(table) for table in listed), "a table has a column twice")
    if sum(prod(groups[i].n for i in table) for table in listed) * max(schema.n_classes, 2) > MAX_CELLS:
        raise FormatError("the tables have too many cells")
    return groups, listed
