"""A private forest of small tables: three noisy sums, whatever the number of trees.

Each tree is oblivious: a contingency table of a few features, drawn at random and cut into a few groups. Round A counts
rows in public bins of numeric columns and says where to cut; round B counts classes in the cells of all tables; round C counts
classes by score and calibrates. All else is made of these noisy counts and costs nothing. Which features, tables and questions
there are depends on public numbers only, and a row adds one to one cell of each histogram.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import ClassVar

import numpy as np

from silvan.algorithms import table_values as tables
from silvan.algorithms.private_grid import check_public, even_cuts, public_cuts
from silvan.algorithms.private_round import ROWS_SHARE, Rounds, warn_if_small
from silvan.algorithms.shared_bins import schema_of
from silvan.algorithms.table_trees import Group, table_forest
from silvan.data.schema import MAX_BINS, Schema
from silvan.errors import FormatError
from silvan.federation.message import Blob, Reply, Request, Verb
from silvan.federation.site import Part, Site, answers
from silvan.privacy.noise import Noise
from silvan.privacy.noisy import Noisy, drawn_once
from silvan.tree.forest import Forest
from silvan.tree.predict import tally
from silvan.tree.save import from_bytes, to_bytes

MAX_CELLS = 1 << 20
MAX_TABLES = 1 << 12

MOST = 127
"""A number to predict is kept as a whole number between plus and minus this."""

_ROWS_OF_BOTH = Fraction(2, 5)
"""Of a question for rows and sums, the part of epsilon that goes to the rows."""

# -- messages


class NoisyCounts(Reply, frozen=True, kw_only=True):
    """Counts with noise."""

    counts: np.ndarray


class CountPeople(Noisy, frozen=True, kw_only=True):
    """How many rows there are to learn from, with noise."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = NoisyCounts

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """A row adds one."""
        return (self.noise(1),)


class CountColumns(Noisy, frozen=True, kw_only=True):
    """How many rows fall into public bins of some columns, with noise."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = NoisyCounts

    schema: Blob
    columns: np.ndarray  # int32, features
    sizes: np.ndarray  # int64, cut points of each
    cuts: np.ndarray  # float32, column after column

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """A row adds one to a bin of every column."""
        return (self.noise(len(self.columns)),)

    def said(self) -> str:
        """Say what is asked for."""
        return f"rows in public bins of {len(self.columns)} columns, with noise for epsilon {self.epsilon:.4g}"


class CountTables(Noisy, frozen=True, kw_only=True):
    """How many rows of each class fall into the cells of some tables, with noise."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = NoisyCounts

    schema: Blob
    columns: np.ndarray  # int32, features, each once
    sizes: np.ndarray  # int64, cut points of each, 0 for a categorical one
    cuts: np.ndarray  # float32, column after column
    missing: np.ndarray  # int64, the group of missing values
    table_sizes: np.ndarray  # int64, columns of each table
    table_columns: np.ndarray  # int64, places in ``columns``, table after table

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """A row adds one to a cell of every table, or one and at most ``MOST``."""
        times = len(self.table_sizes)
        if schema.n_classes:
            return (self.noise(times),)
        return self.noise(times, _ROWS_OF_BOTH), self.noise(times * MOST, 1 - _ROWS_OF_BOTH)

    def said(self) -> str:
        """Say what is asked for."""
        return (
            f"rows by class in the cells of {len(self.table_sizes)} tables, with noise for epsilon {self.epsilon:.4g}"
        )


class CountScores(Noisy, frozen=True, kw_only=True):
    """How many rows of each class have which score by a model, with noise."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = NoisyCounts

    schema: Blob
    model: Blob
    edges: np.ndarray  # float64 (classes, edges), rising

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """A row adds one to a bin of every class's scores."""
        return (self.noise(len(self.edges)),)


class SumTargets(Noisy, frozen=True, kw_only=True):
    """The sum of the number to predict, clipped to its bounds, with noise."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = NoisyCounts

    schema: Blob

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """A row adds at most ``MOST``."""
        return (self.noise(MOST),)


class SumSlopes(Noisy, frozen=True, kw_only=True):
    """How a model's answers go along with the number to predict: four sums, with noise."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = NoisyCounts

    schema: Blob
    model: Blob
    centre: float
    reach: float

    def noises(self, schema: Schema) -> tuple[Noise, ...]:
        """A row adds at most ``MOST`` to each of four sums."""
        return (self.noise(4 * MOST),)


# -- at a site


@answers(CountPeople)
def count_people(site: Site, request: CountPeople) -> NoisyCounts:
    """Count the training rows."""
    exact = np.array([site.n_train], np.int64)
    return drawn_once(
        site, request, NoisyCounts, lambda: exact, lambda counts: NoisyCounts(counts=request.noise(1).add(counts))
    )


def _answer(site: Site, request: CountColumns | CountTables | CountScores | SumTargets | SumSlopes) -> NoisyCounts:
    schema = schema_of(site, request.schema)
    return drawn_once(
        site,
        request,
        NoisyCounts,
        lambda: exact_counts(site, request, schema),
        lambda counts: NoisyCounts(counts=request.add(counts, schema)),
    )


for _kind in (CountColumns, CountTables, CountScores, SumTargets, SumSlopes):
    answers(_kind)(_answer)


def exact_counts(site: Site, request: Request, schema: Schema) -> np.ndarray:
    """Count what a question asks for, without noise: this never leaves."""
    part = site.part(schema)
    if isinstance(request, CountColumns):
        return _count_columns(part, request, schema)
    if isinstance(request, CountTables):
        return _count_tables(part, request, schema)
    if isinstance(request, SumTargets):
        return np.array([whole_target(part.y, schema).sum()], np.int64)
    if isinstance(request, CountScores):
        return _count_scores(part, request, schema, _model(site, request.model, schema), site.n_jobs)
    if isinstance(request, SumSlopes):
        return _sum_slopes(part, request, schema, _model(site, request.model, schema), site.n_jobs)
    raise FormatError("there is nothing to count")


def _count_columns(part: Part, request: CountColumns, schema: Schema) -> np.ndarray:
    cuts = _cuts(request, schema)
    if any(schema.features[f].categorical for f in request.columns.tolist()):
        raise FormatError("only numeric columns are counted in bins")
    found = []
    for f, edges in zip(request.columns.tolist(), cuts, strict=True):
        column = part.X[:, f]
        bins = np.where(np.isnan(column), 0, 1 + np.searchsorted(edges, column))
        found.append(np.bincount(bins, minlength=len(edges) + 2))
    return np.concatenate(found).astype(np.int64)


def _count_tables(part: Part, request: CountTables, schema: Schema) -> np.ndarray:
    groups, listed = _tables(request, schema)
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


def _count_scores(part: Part, request: CountScores, schema: Schema, forest: Forest, n_jobs: int | None) -> np.ndarray:
    edges = request.edges
    # the scores of two classes mirror each other, so one histogram tells all
    n = 1 if schema.n_classes == 2 else schema.n_classes
    if edges.ndim != 2 or edges.dtype != np.float64 or len(edges) != n or not 1 <= edges.shape[1] <= MAX_BINS:
        raise FormatError("the edges of scores do not match the classes")
    if not np.isfinite(edges).all() or (np.diff(edges, axis=1) <= 0).any():
        raise FormatError("the edges of scores must rise")
    if forest.combine != "log_odds":
        raise FormatError("scores are counted of models that add log-odds")
    sums = tally(forest, part.X, forest.weights, n_jobs, votes=False).values
    counts = np.zeros((n, edges.shape[1] + 1, 2), np.int64)
    for i, row in enumerate(edges):
        k = schema.n_classes - n + i
        np.add.at(counts[i], (np.searchsorted(row, sums[:, k]), (part.y == k).astype(np.int64)), 1)
    return counts


def _sum_slopes(part: Part, request: SumSlopes, schema: Schema, forest: Forest, n_jobs: int | None) -> np.ndarray:
    if schema.n_classes or not (np.isfinite(request.centre) and 0.0 < request.reach < np.inf):
        raise FormatError("slopes are for numbers, around a centre and within a reach")
    told = (forest.scores(part.X, n_jobs)[:, 0] - request.centre) / request.reach
    score = np.rint(np.clip(told, -1.0, 1.0) * MOST).astype(np.int64)
    target = whole_target(part.y, schema)
    products = np.rint(score * target / MOST), np.rint(score * score / MOST)
    return np.array([score.sum(), target.sum(), *(int(p.sum()) for p in products)], np.int64)


def whole_target(y: np.ndarray, schema: Schema) -> np.ndarray:
    """Clip a number to its public bounds and scale it to whole numbers between plus and minus ``MOST``."""
    if schema.label.bounds is None:
        raise FormatError("the number to predict has no bounds")
    low, high = schema.label.bounds
    middle, half = low / 2 + high / 2, high / 2 - low / 2
    return np.rint((np.clip(y, low, high) - middle) / half * MOST).astype(np.int64)


def _model(site: Site, blob: Blob, schema: Schema) -> Forest:
    forest = from_bytes(site.blob(blob.hash))
    if forest.schema != schema:
        raise FormatError("a model of another schema than the rows are encoded by")
    return forest


def _cuts(request: CountColumns | CountTables, schema: Schema) -> list[np.ndarray]:
    """Take the cut points apart, refusing columns that do not exist and cuts that do not rise."""
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
    if any((np.diff(c) <= 0).any() for c in cuts):
        raise FormatError("the cut points must rise")
    return cuts


def _tables(request: CountTables, schema: Schema) -> tuple[list[Group], list[list[int]]]:
    """Take a question about tables apart, refusing what does not hold together."""
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
    if ((sizes < 1) | (sizes > 32)).any() or sizes.sum() != len(places):
        raise FormatError("the tables do not match the columns")
    if (places < 0).any() or (places >= len(groups)).any():
        raise FormatError("a table of a column that is not listed")
    listed = [part.tolist() for part in np.split(places, np.cumsum(sizes)[:-1])]
    if any(len(set(table)) < len(table) for table in listed):
        raise FormatError("a table has a column twice")
    if sum(prod(groups[i].n for i in table) for table in listed) * max(schema.n_classes, 2) > MAX_CELLS:
        raise FormatError("the tables have too many cells")
    return groups, listed


# -- at the coordinator


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
    (100.0, Recipe(3, 32, 1, 0.2, 0.3, 24, 1.0)),
    (400.0, Recipe(4, 64, 1, 0.2, 0.3, None, 0.7)),
    (1500.0, Recipe(6, 64, 1, 0.2, 0.3, None, 0.7)),
    (np.inf, Recipe(6, 512, 3, 0.5, 0.5, None, 0.7)),
)
"""Each up to so many rows times epsilon a feature."""

MOST_COLUMNS = 6
"""Of one table."""

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
    schema, purse, placing = rounds.schema, rounds.purse, rounds.placing
    check_public(schema)
    sharers = placing.sharers
    people = None if n_rows is not None else CountPeople(epsilon=purse.take(ROWS_SHARE), sharers=sharers)
    n = rounds.rows(n_rows, people)
    # noise at every site is noisier by the root of their number
    strength = n * float(purse.left) / np.sqrt(placing.factor)
    warn_if_small(n, float(purse.left) / np.sqrt(placing.factor), 50.0 if schema.n_classes else _LEAST_NUMBERS)
    rng = np.random.default_rng(key)
    m = int(np.clip(strength // _ROWS_A_FEATURE, _LEAST_FEATURES, len(schema.features)))
    features = np.sort(rng.permutation(len(schema.features))[:m])
    # sums are noisier than counts
    each = strength / len(features) / (1 if schema.n_classes else 2)
    recipe = next(recipe for bound, recipe in RECIPES if each < bound)
    for_cuts = _CLASS_SHARES[0] if schema.n_classes else _NUMBER_SHARES[0]
    groups = _cut(rounds, features, recipe, n, for_cuts if strength >= _FOR_CUTS else None)
    listed = [table for _ in range(recipe.groupings) for table in _deal(groups, recipe.cells, rng)]
    if schema.n_classes:
        calibrated = strength >= _FOR_CALIBRATION * (1 if schema.n_classes == 2 else schema.n_classes)
        return _classes(rounds, recipe, groups, listed, calibrated)
    return _numbers(rounds, recipe, groups, listed, n)


def _cut(rounds: Rounds, features: np.ndarray, recipe: Recipe, n: int, share: Fraction | None) -> list[Group]:
    """Round A: cut every feature into groups, at public places or where noisy counts say."""
    schema, q = rounds.schema, recipe.groups
    bins = {f: public_cuts(schema.features[f], recipe.bins) for f in features if not schema.features[f].categorical}
    asked = [f for f, cuts in bins.items() if len(cuts) + 1 > q] if share is not None else []
    found: dict[int, Group] = {}
    if asked and share is not None:
        sizes = np.array([len(bins[f]) for f in asked], np.int64)
        request = CountColumns(
            epsilon=rounds.purse.take(share),
            sharers=rounds.placing.sharers,
            schema=rounds.named,
            columns=np.array(asked, np.int32),
            sizes=sizes,
            cuts=np.concatenate([bins[f] for f in asked]),
        )
        counts = rounds.total(request, f"bins of {len(asked)} columns", len(asked), (int((sizes + 2).sum()),))
        variance = _variance(rounds, request)
        ends = np.cumsum(sizes + 2)
        for f, here in zip(asked, np.split(counts, ends[:-1]), strict=True):
            # missing values and the lowest bin stand alone
            mass = tables.smooth(here, n, variance, 2)
            cuts = bins[f][tables.cut_evenly(mass[1:] ** recipe.power, q)]
            own = mass[0] >= n / (2 * q)
            found[f] = Group(int(f), 0, cuts, len(cuts) + 1 if own else 0)
    for f in features.tolist():
        feature = schema.features[f]
        if feature.categorical:
            # missing values are among the others, or follow the first category
            found[f] = Group(f, feature.n_codes, np.zeros(0, np.float32), feature.n_codes - 1 if feature.other else 0)
        elif f not in found:
            found[f] = Group(f, 0, bins[f] if len(bins[f]) + 1 <= q else even_cuts(feature, q), 0)
    return [found[f] for f in features.tolist()]


def _deal(groups: Sequence[Group], cells: int, rng: np.random.Generator) -> list[list[int]]:
    """Deal features out to tables at random: each goes to the first that has room."""
    dealt: list[list[int]] = []
    for i in rng.permutation(len(groups)).tolist():
        for table in dealt:
            if len(table) < MOST_COLUMNS and prod(groups[j].n for j in table) * groups[i].n <= cells:
                table.append(i)
                break
        else:
            dealt.append([i])
    return dealt


def _ask_tables(
    rounds: Rounds, epsilon: float, groups: Sequence[Group], listed: list[list[int]]
) -> tuple[list[np.ndarray], CountTables]:
    """Round B: count classes, or rows and sums, in all cells."""
    request = CountTables(
        epsilon=epsilon,
        sharers=rounds.placing.sharers,
        schema=rounds.named,
        columns=np.array([g.feature for g in groups], np.int32),
        sizes=np.array([len(g.cuts) for g in groups], np.int64),
        cuts=np.concatenate([g.cuts for g in groups]),
        missing=np.array([g.missing for g in groups], np.int64),
        table_sizes=np.array([len(table) for table in listed], np.int64),
        table_columns=np.concatenate(listed).astype(np.int64),
    )
    sizes = [prod(groups[i].n for i in table) for table in listed]
    shape = sum(sizes), rounds.schema.n_classes or 2
    counts = rounds.total(request, f"cells of {len(listed)} tables", len(listed), shape)
    return [counts[a:b] for a, b in pairwise([0, *np.cumsum(sizes).tolist()])], request


def _classes(
    rounds: Rounds, recipe: Recipe, groups: Sequence[Group], listed: list[list[int]], calibrated: bool
) -> Forest:
    """Rounds B and C for classes: log-odds of cells, then what sums of them mean."""
    schema, purse = rounds.schema, rounds.purse
    for_scores = purse.take(_CLASS_SHARES[1]) if calibrated else 0.0
    counts, request = _ask_tables(rounds, purse.rest(), groups, listed)
    variance = _variance(rounds, request)
    shares = tables.class_shares(counts)
    kernels: dict[tuple[int, ...], np.ndarray] = {}
    values = []
    for table, here in zip(listed, counts, strict=True):
        shape = tuple(groups[i].n for i in table)
        if shape not in kernels:
            kernels[shape] = tables.prior(shape, recipe.pairs, recipe.alone)
        values.append(tables.log_odds(here, shares, kernels[shape], variance))
    odds = np.log(shares / (1.0 - shares))[:, None]
    trees = [[groups[i] for i in table] for table in listed]
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
    return _calibrated(rounds, for_scores, forest, counts, values, recipe.groupings)


def _calibrated(
    rounds: Rounds,
    epsilon: float,
    forest: Forest,
    counts: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    groupings: int,
) -> Forest:
    """Round C: count classes by score, and read probabilities off."""
    schema = rounds.schema
    judged = [1] if schema.n_classes == 2 else list(range(schema.n_classes))
    edges = np.array([tables.score_edges(counts, values, k, groupings) for k in judged])
    request = CountScores(
        epsilon=epsilon,
        sharers=rounds.placing.sharers,
        schema=rounds.named,
        model=rounds.federation.blob(to_bytes(forest)),
        edges=edges,
    )
    shape = len(judged), tables.SCORE_BINS, 2
    told = rounds.total(request, f"scores of {len(judged)} class{'es' * (len(judged) > 1)}", len(judged), shape)
    variance = _variance(rounds, request)
    knots = np.array([tables.knots_of(row) for row in edges])
    odds = np.array([tables.calibrate(rows, at, variance) for rows, at in zip(told, knots, strict=True)])
    if schema.n_classes == 2:
        knots, odds = np.stack([-knots[0, ::-1], knots[0]]), np.stack([-odds[0, ::-1], odds[0]])
    return replace(forest, knots=knots, odds=odds)


def _numbers(rounds: Rounds, recipe: Recipe, groups: Sequence[Group], listed: list[list[int]], n: int) -> Forest:
    """Rounds B and C for a number: the mean, what cells add to it, and how much of that to believe."""
    schema, purse, sharers = rounds.schema, rounds.purse, rounds.placing.sharers
    _, for_mean, for_slope = _NUMBER_SHARES
    asked = SumTargets(epsilon=purse.take(for_mean), sharers=sharers, schema=rounds.named)
    first = rounds.total(asked, "sum of the target", 1, (1,))[0] / n, _variance(rounds, asked) / n**2
    mean = tables.believed([first])
    slope_epsilon = purse.take(for_slope)
    counts, request = _ask_tables(rounds, purse.rest(), groups, listed)
    row_noise, sum_noise = (noise.variance * rounds.placing.factor for noise in request.noises(schema))
    values = []
    for table, here in zip(listed, counts, strict=True):
        kernel = tables.prior([groups[i].n for i in table], recipe.pairs, recipe.alone)
        values.append(tables.numbers(here, mean, kernel, row_noise, sum_noise))
    trees = [[groups[i] for i in table] for table in listed]
    low, high = schema.label.bounds or (-1.0, 1.0)
    middle, unit = low / 2 + high / 2, (high / 2 - low / 2) / MOST

    def forest(offset: float, slope: float) -> Forest:
        # the mean over trees is the offset and the sum of what the trees of a grouping add
        added = [offset + slope * value * len(trees) / recipe.groupings for value in values]
        return table_forest(schema, trees, [middle + unit * a[:, None] for a in added], weights=np.ones(len(trees)))

    reach = 2.0 * unit * max(_spread(counts, values, recipe.groupings), 1.0)
    asked_slope = SumSlopes(
        epsilon=slope_epsilon,
        sharers=sharers,
        schema=rounds.named,
        model=rounds.federation.blob(to_bytes(forest(mean, 1.0))),
        centre=middle + unit * mean,
        reach=reach,
    )
    sums = rounds.total(asked_slope, "slope of the target", 4, (4,)) / n
    spread = _variance(rounds, asked_slope) / n**2
    mean = tables.believed([first, (sums[1], spread)])
    slope, shift = tables.slope_of(sums, mean, spread, reach / (unit * MOST))
    return forest(mean - shift, slope)


def _variance(rounds: Rounds, request: Noisy) -> float:
    """Give the variance of the noise on a sum over all sites."""
    return request.noises(rounds.schema)[0].variance * rounds.placing.factor


def _spread(counts: Sequence[np.ndarray], values: Sequence[np.ndarray], groupings: int) -> float:
    """Guess how far sums over tables spread, from the noisy tables alone."""
    variance = 0.0
    for here, value in zip(counts, values, strict=True):
        mass = np.maximum(here[:, 0], 0.0)
        mass = mass / max(mass.sum(), 1.0)
        variance += mass @ (value - mass @ value) ** 2 / groupings
    return float(1.5 * np.sqrt(variance))
