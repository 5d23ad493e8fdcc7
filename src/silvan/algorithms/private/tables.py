"""A private forest of small tables: three noisy sums, whatever the number of trees.

Each tree is oblivious: a contingency table of a few features, drawn at random and cut into a few groups. Round A counts
rows in public bins of numeric columns and says where to cut; round B counts classes in the cells of all tables; round C
counts classes by score and calibrates. All else is computed from these noisy counts (``tables_estimates.py``) and costs
no epsilon. Which features, tables and questions there are depends on public numbers only.

A site works out by itself how much one row can change an answer, from the request alone: a row adds one to one cell of
every histogram that is asked for. Each request is checked before any row is looked at.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from silvan.algorithms.private import tables_estimates as estimates
from silvan.algorithms.private.noisy_counts import (
    MOST,
    ROWS_SHARE,
    NoisyCounts,
    NoisyTotal,
    Rounds,
    answer_with_noise,
    histogram_noises,
    labelled_rows,
    model_to_count_by,
    warn_if_small,
    whole_target,
)
from silvan.algorithms.private.public_cuts import bin_widths, check_public, even_cuts, public_cuts
from silvan.algorithms.private.tables_forest import Group, table_forest
from silvan.data.schema import MAX_BINS, Schema
from silvan.errors import FormatError, reject
from silvan.federation.bound import Agreed, Derived
from silvan.federation.message import Blob
from silvan.federation.part import Part
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.forest.predict import tally
from silvan.privacy.noise.laplace import Noise
from silvan.privacy.noise.noisy_request import Noisy, drawn_once
from silvan.util.readable import count_of

MAX_CELLS = 1 << 20
MAX_TABLES = 1 << 12


# -- messages
class CountPeople(NoisyTotal, frozen=True, kw_only=True):
    """How many rows there are to learn from, with noise."""

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row adds 1."""
        return (self.noise(1),)


class CountColumns(NoisyTotal, frozen=True, kw_only=True):
    """How many rows fall into public bins of some columns, with noise."""

    schema: Agreed[Blob]
    columns: Derived[np.ndarray]  # int32, features
    sizes: Derived[np.ndarray]  # int64, cut points of each
    cuts: Derived[np.ndarray]  # float32, column after column

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row is in a bin of every column."""
        return (self.noise(len(self.columns)),)


class CountTables(NoisyTotal, frozen=True, kw_only=True):
    """How many rows of each class fall into the cells of some tables, with noise."""

    schema: Agreed[Blob]
    columns: Derived[np.ndarray]  # int32, features, each once
    sizes: Derived[np.ndarray]  # int64, cut points of each, 0 for a categorical one
    cuts: Derived[np.ndarray]  # float32, column after column
    missing: Derived[np.ndarray]  # int64, the group of missing values
    table_sizes: Derived[np.ndarray]  # int64, columns of each table
    table_columns: Derived[np.ndarray]  # int64, places in ``columns``, table after table

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row is in a cell of every table."""
        return histogram_noises(self, len(self.table_sizes), schema)


class CountScores(NoisyTotal, frozen=True, kw_only=True):
    """How many rows of each class have which score by a model, with noise."""

    schema: Agreed[Blob]
    model: Derived[Blob]
    edges: Derived[np.ndarray]  # float64 (classes, edges), rising

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row is in a bin of every class's scores."""
        return (self.noise(len(self.edges)),)


class SumTargets(NoisyTotal, frozen=True, kw_only=True):
    """The sum of the number to predict, clipped to its bounds, with noise."""

    schema: Agreed[Blob]

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """Return the noise: one more row adds at most ``MOST``."""
        return (self.noise(MOST),)


class SumSlopes(NoisyTotal, frozen=True, kw_only=True):
    """How a model's answers go along with the number to predict: four sums, with noise."""

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
    """Check a question without a look at the rows; return what counts them without noise, which never leaves the site.

    Raises ``FormatError`` for a question that does not hold together.
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
    # the scores of two classes mirror each other, so one histogram is enough
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


@dataclass(frozen=True)
class Recipe:
    """How finely to cut and count, by how many rows there are for each feature and unit of noise."""

    groups: int
    cells: int
    groupings: int
    pairs: float
    alone: float
    bins: int | None
    power: float


RECIPES = (
    (35.0, Recipe(3, 32, 1, 0.2, 0.3, 24, 1.0)),
    (100.0, Recipe(4, 32, 1, 0.2, 0.3, 24, 1.0)),
    (400.0, Recipe(4, 64, 1, 0.2, 0.3, None, 0.7)),
    (1500.0, Recipe(6, 64, 1, 0.2, 0.3, None, 0.7)),
    (np.inf, Recipe(6, 512, 3, 0.5, 0.5, None, 0.7)),
)
"""Each up to so many rows times epsilon a feature."""

MOST_COLUMNS = 6  # of one table
_ROWS_A_FEATURE = 20
_LEAST_FEATURES = 3
_FOR_CUTS, _FOR_CALIBRATION = 100.0, 500.0
_LEAST_NUMBERS = 1000.0
"""Rows times epsilon from which looking for cuts, and calibrating, is worth its cost; and to predict a number."""

_CLASS_SHARES = (Fraction(1, 5), Fraction(1, 10))  # cuts, calibration
_NUMBER_SHARES = (Fraction(3, 20), Fraction(1, 10), Fraction(1, 10))  # cuts, mean, slope
_UNCALIBRATED_SLOPE = 0.5  # sums of tables that go along with each other are too sure


def fit(rounds: Rounds, key: np.ndarray, n_rows: int | None) -> Forest:
    """Ask for noisy counts and make a forest of them."""
    schema, split_epsilon, placing = rounds.schema, rounds.split_epsilon, rounds.placing
    check_public(schema)
    if n_rows is None:
        request = CountPeople(epsilon=split_epsilon.take(ROWS_SHARE), sharers=placing.sharers)
        n = max(int(rounds.total(request, "number of rows", 1, (1,))[0]), 1)
    else:
        n = int(n_rows)
        rounds.public.append(f"{n_rows} rows to learn from, as n_rows says")
    # noise at every site is noisier by the root of their number
    epsilon = float(split_epsilon.left) / np.sqrt(placing.factor)
    warn_if_small(n, epsilon, 50.0 if schema.n_classes else _LEAST_NUMBERS)
    strength = n * float(split_epsilon.left) / np.sqrt(placing.factor)
    rng = np.random.default_rng(key)
    m = int(np.clip(strength // _ROWS_A_FEATURE, _LEAST_FEATURES, len(schema.features)))
    features = np.sort(rng.permutation(len(schema.features))[:m])
    each = strength / len(features) / (1 if schema.n_classes else 2)  # sums are noisier than counts
    recipe = next(recipe for bound, recipe in RECIPES if each < bound)
    for_cuts = _CLASS_SHARES[0] if schema.n_classes else _NUMBER_SHARES[0]
    groups = _group_features(rounds, features, recipe, n, for_cuts if strength >= _FOR_CUTS else None)
    tables = [table for _ in range(recipe.groupings) for table in _draw_tables(groups, recipe.cells, rng)]
    if schema.n_classes:
        calibrated = strength >= _FOR_CALIBRATION * (1 if schema.n_classes == 2 else schema.n_classes)
        return _fit_classes(rounds, recipe, groups, tables, calibrated)
    return _fit_number(rounds, recipe, groups, tables, n)


def _group_features(
    rounds: Rounds, features: np.ndarray, recipe: Recipe, n: int, share: Fraction | None
) -> list[Group]:
    """Round A: cut every feature into groups, at public places or, for a share of epsilon, where noisy counts say."""
    schema, q = rounds.schema, recipe.groups
    bins = {f: public_cuts(schema.features[f], recipe.bins) for f in features if not schema.features[f].categorical}
    found: dict[int, Group] = {}
    if share is not None:
        found = _group_by_counts(rounds, {f: cuts for f, cuts in bins.items() if len(cuts) + 1 > q}, recipe, n, share)
    for f in features.tolist():
        feature = schema.features[f]
        if feature.categorical:
            # missing values are among the others, or follow the first category
            found[f] = Group(f, feature.n_codes, np.zeros(0, np.float32), feature.n_codes - 1 if feature.other else 0)
        elif f not in found:
            found[f] = Group(f, 0, bins[f] if len(bins[f]) + 1 <= q else even_cuts(feature, q), 0)
    return [found[f] for f in features.tolist()]


def _group_by_counts(
    rounds: Rounds, bins: dict[int, np.ndarray], recipe: Recipe, n: int, share: Fraction
) -> dict[int, Group]:
    """Count rows in bins of columns, and cut each column into groups of about equally many."""
    if not bins:
        return {}
    sizes = np.array([len(cuts) for cuts in bins.values()], np.int64)
    request = rounds.make(
        CountColumns,
        rounds.split_epsilon.take(share),
        columns=np.array(list(bins), np.int32),
        sizes=sizes,
        cuts=np.concatenate(list(bins.values())),
    )
    counts = rounds.total(request, f"bins of {count_of(len(bins), 'column')}", len(bins), (int((sizes + 2).sum()),))
    variance = rounds.variance(request)
    found = {}
    for (f, edges), here in zip(bins.items(), np.split(counts, np.cumsum(sizes + 2)[:-1]), strict=True):
        # missing values and the lowest bin stand alone
        mass = estimates.smooth(here, n, variance, 2, bin_widths(rounds.schema.features[f], edges))
        cuts = edges[estimates.cut_evenly(mass[1:] ** recipe.power, recipe.groups)]
        own = mass[0] >= n / (2 * recipe.groups)
        found[f] = Group(int(f), 0, cuts, len(cuts) + 1 if own else 0)
    return found


def _draw_tables(groups: Sequence[Group], cells: int, rng: np.random.Generator) -> list[list[int]]:
    """Assign features to tables in random order: each goes to the first table that has room."""
    tables: list[list[int]] = []
    for i in rng.permutation(len(groups)).tolist():
        for table in tables:
            if len(table) < MOST_COLUMNS and prod(groups[j].n for j in table) * groups[i].n <= cells:
                table.append(i)
                break
        else:
            tables.append([i])
    return tables


def _count_cells(
    rounds: Rounds, epsilon: float, groups: Sequence[Group], tables: list[list[int]]
) -> tuple[list[np.ndarray], CountTables]:
    """Round B: count classes, or rows and sums, in all cells."""
    request = rounds.make(
        CountTables,
        epsilon,
        columns=np.array([g.feature for g in groups], np.int32),
        sizes=np.array([len(g.cuts) for g in groups], np.int64),
        cuts=np.concatenate([g.cuts for g in groups]),
        missing=np.array([g.missing for g in groups], np.int64),
        table_sizes=np.array([len(table) for table in tables], np.int64),
        table_columns=np.concatenate(tables).astype(np.int64),
    )
    sizes = [prod(groups[i].n for i in table) for table in tables]
    shape = sum(sizes), rounds.schema.n_classes or 2
    counts = rounds.total(request, f"cells of {len(tables)} tables", len(tables), shape)
    return [counts[a:b] for a, b in pairwise([0, *np.cumsum(sizes).tolist()])], request


def _fit_classes(
    rounds: Rounds, recipe: Recipe, groups: Sequence[Group], tables: list[list[int]], calibrated: bool
) -> Forest:
    """Fit a forest of classes: count them in cells, make log-odds of the counts, and calibrate their sums."""
    schema, split_epsilon = rounds.schema, rounds.split_epsilon
    for_scores = split_epsilon.take(_CLASS_SHARES[1]) if calibrated else 0.0
    counts, request = _count_cells(rounds, split_epsilon.rest(), groups, tables)
    variance = rounds.variance(request)
    shares = estimates.class_shares(counts)
    kernels: dict[tuple[int, ...], np.ndarray] = {}
    values = []
    for table, here in zip(tables, counts, strict=True):
        shape = tuple(groups[i].n for i in table)
        if shape not in kernels:
            kernels[shape] = estimates.prior(shape, recipe.pairs, recipe.alone)
        values.append(estimates.log_odds(here, shares, kernels[shape], variance))
    odds = estimates.settled(np.log(shares / (1.0 - shares)))[:, None]
    trees = [[groups[i] for i in table] for table in tables]
    knots = np.tile([-1.0, 1.0], (schema.n_classes, 1))
    forest = table_forest(
        schema,
        trees,
        values,
        weights=np.full(len(trees), 1.0 / recipe.groupings),
        combine="log_odds",
        knots=knots,
        odds=odds + _UNCALIBRATED_SLOPE * knots,
    )
    if not calibrated:
        return forest
    return _calibrate(rounds, for_scores, forest, counts, values, recipe.groupings)


def _calibrate(
    rounds: Rounds,
    epsilon: float,
    forest: Forest,
    counts: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    groupings: int,
) -> Forest:
    """Round C: count classes by score, and calibrate probabilities."""
    schema = rounds.schema
    judged = [1] if schema.n_classes == 2 else list(range(schema.n_classes))
    edges = np.array([estimates.score_edges(counts, values, k, groupings) for k in judged])
    request = rounds.make(CountScores, epsilon, model=rounds.federation.blob(forest.to_bytes()), edges=edges)
    shape = len(judged), estimates.SCORE_BINS, 2
    counted = rounds.total(request, f"scores of {len(judged)} class{'es' * (len(judged) > 1)}", len(judged), shape)
    variance = rounds.variance(request)
    knots = np.array([estimates.knots_of(row) for row in edges])
    odds = np.array([estimates.calibrate(rows, at, variance) for rows, at in zip(counted, knots, strict=True)])
    if schema.n_classes == 2:
        knots, odds = np.stack([-knots[0, ::-1], knots[0]]), np.stack([-odds[0, ::-1], odds[0]])
    return replace(forest, knots=knots, odds=odds)


def _fit_number(rounds: Rounds, recipe: Recipe, groups: Sequence[Group], tables: list[list[int]], n: int) -> Forest:
    """Fit a forest of a number: its mean, what cells add to it, and by how much to shrink that."""
    schema, split_epsilon = rounds.schema, rounds.split_epsilon
    _, for_mean, for_slope = _NUMBER_SHARES
    asked = rounds.make(SumTargets, split_epsilon.take(for_mean))
    first = rounds.total(asked, "sum of the target", 1, (1,))[0] / n, rounds.variance(asked) / n**2
    mean = estimates.posterior_mean([first])
    slope_epsilon = split_epsilon.take(for_slope)
    counts, request = _count_cells(rounds, split_epsilon.rest(), groups, tables)
    row_noise, sum_noise = (noise.variance * rounds.placing.factor for noise in request.noises(schema))
    values = []
    for table, here in zip(tables, counts, strict=True):
        kernel = estimates.prior([groups[i].n for i in table], recipe.pairs, recipe.alone)
        values.append(estimates.number_values(here, mean, kernel, row_noise, sum_noise))
    trees = [[groups[i] for i in table] for table in tables]
    low, high = schema.label.bounds or (-1.0, 1.0)
    middle, unit = low / 2 + high / 2, (high / 2 - low / 2) / MOST

    def forest(offset: float, slope: float) -> Forest:
        # the mean over trees is the offset and the sum of what the trees of a grouping add
        added = [offset + slope * value * len(trees) / recipe.groupings for value in values]
        return table_forest(schema, trees, [middle + unit * a[:, None] for a in added], weights=np.ones(len(trees)))

    reach = 2.0 * unit * max(_score_spread(counts, values, recipe.groupings), 1.0)
    asked_slope = rounds.make(
        SumSlopes,
        slope_epsilon,
        model=rounds.federation.blob(forest(mean, 1.0).to_bytes()),
        centre=middle + unit * mean,
        reach=reach,
    )
    sums = rounds.total(asked_slope, "slope of the target", 4, (4,)) / n
    spread = rounds.variance(asked_slope) / n**2
    mean = estimates.posterior_mean([first, (sums[1], spread)])
    slope, shift = estimates.slope_of(sums, mean, spread, reach / (unit * MOST))
    return forest(mean - shift, slope)


def _score_spread(counts: Sequence[np.ndarray], values: Sequence[np.ndarray], groupings: int) -> float:
    """Estimate how far sums over tables spread, from the noisy tables alone."""
    variance = 0.0
    for here, value in zip(counts, values, strict=True):
        mass = np.maximum(here[:, 0], 0.0)
        mass = mass / max(mass.sum(), 1.0)
        variance += mass @ (value - mass @ value) ** 2 / groupings
    return float(estimates.settled(1.5 * np.sqrt(variance)))
