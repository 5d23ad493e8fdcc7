"""A private forest of small tables: three noisy sums, whatever the number of trees.

Each tree is oblivious: a contingency table of a few random features, cut into a few groups. Round A counts
rows in public bins of numeric columns to choose the cuts; round B counts classes in the cells of all tables; round C
counts classes by score and calibrates (``table_counts.py``). Everything else is computed from these noisy counts
(``tables_estimates.py``) and costs no epsilon. The choice of features, tables and requests depends only on public
numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np

from silvan.algorithms.private import tables_estimates as estimates
from silvan.algorithms.private.noisy_counts import (
    MOST,
    ROWS_SHARE,
    Rounds,
    warn_if_small,
)
from silvan.algorithms.private.public_cuts import bin_widths, check_public, even_cuts, public_cuts
from silvan.algorithms.private.table_counts import (
    CountColumns,
    CountPeople,
    CountScores,
    CountTables,
    SumSlopes,
    SumTargets,
)
from silvan.algorithms.private.tables_forest import Group, table_forest
from silvan.forest.forest import Forest
from silvan.util.readable import count_of


@dataclass(frozen=True)
class Recipe:
    """How finely to cut and count, given the number of rows for each feature and unit of noise."""

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
"""Each applies up to this number of rows times epsilon per feature."""

MOST_COLUMNS = 6  # of one table
_ROWS_A_FEATURE = 20
_LEAST_FEATURES = 3
_FOR_CUTS, _FOR_CALIBRATION = 100.0, 500.0
_LEAST_NUMBERS = 1000.0
"""Minimum rows times epsilon for which choosing cuts and calibrating are worth their cost; and for regression."""

_CLASS_SHARES = (Fraction(1, 5), Fraction(1, 10))  # cuts, calibration
_NUMBER_SHARES = (Fraction(3, 20), Fraction(1, 10), Fraction(1, 10))  # cuts, mean, slope
_UNCALIBRATED_SLOPE = 0.5  # sums of correlated tables are overconfident


def fit(rounds: Rounds, key: np.ndarray, n_rows: int | None) -> Forest:
    """Request noisy counts and build a forest from them."""
    schema, split_epsilon, placing = rounds.schema, rounds.split_epsilon, rounds.placing
    check_public(schema)
    if n_rows is None:
        request = CountPeople(epsilon=split_epsilon.take(ROWS_SHARE), sharers=placing.sharers)
        n = max(int(rounds.total(request, "number of rows", 1, (1,))[0]), 1)
    else:
        n = int(n_rows)
        rounds.public.append(f"{n_rows} training rows, as n_rows says")
    # noise at every site is larger by the root of their number
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
    """Round A: cut every feature into groups, at public points or, for a share of epsilon, by noisy counts."""
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
        # missing values and the lowest bin stay separate
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
    """Fit a forest of classes: count them in cells, compute log-odds, and calibrate their sums."""
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
    """Fit a regression forest: the mean, the additions of cells, and the factor that shrinks them."""
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
        # the mean over trees is the offset and the sum of the additions of a grouping's trees
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
    """Estimate the spread of sums over tables, from the noisy tables alone."""
    variance = 0.0
    for here, value in zip(counts, values, strict=True):
        mass = np.maximum(here[:, 0], 0.0)
        mass = mass / max(mass.sum(), 1.0)
        variance += mass @ (value - mass @ value) ** 2 / groupings
    return float(estimates.settled(1.5 * np.sqrt(variance)))
