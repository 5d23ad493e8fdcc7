"""How predictions depend on a column: their mean over all sites' test rows with the column set to each of some values.

Sites are told the values, which come from the schema or from the model itself, and answer with sums of predictions. No
label takes part.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from silvan.algorithms.evaluation.candidates import SentModel
from silvan.algorithms.evaluation.explained_rows import explained_rows, score_range
from silvan.algorithms.evaluation.subgroups import places_of
from silvan.algorithms.requests import schema_of
from silvan.data.schema import Feature, Schema
from silvan.errors import FormatError, InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, PartitionsWay, Reply, Total
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.util.readable import count_of

POINTS = 21
"""Values of a numeric column, unless others are given."""

MOST_POINTS, MOST_COLUMNS = 300, 50
"""Most values of a column, and most columns of a question."""

_UNITS = 4096
"""Predictions are told in so many parts of their range."""


class Grid(msgspec.Struct, frozen=True):
    """A feature by its place in the schema, and the values that it is set to: numbers, or codes of categories."""

    feature: int
    values: np.ndarray


class MeanPredictions(Reply, frozen=True, kw_only=True):
    """Test rows, and sums of a model's predictions of them with a column set to each of some values."""

    rows: np.ndarray
    sums: np.ndarray


class SetColumns(Total[MeanPredictions], frozen=True, kw_only=True):
    """Mean predictions of test rows with a column set to each of some values."""

    partitions: ClassVar[PartitionsWay] = "site"

    schema: Blob
    model: SentModel
    grids: list[Grid]
    by: tuple[int, ...] = ()  # places of columns, if the model is evaluated by subgroups of them: it counts as that one

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        n = sum(len(grid.values) for grid in self.grids)
        return (
            "sums of a model's predictions of the site's own test rows, with a column set to each of "
            f"{count_of(n, 'value')}"
        )


# -- at a site


@answers(SetColumns)
def set_columns(site: Site, request: SetColumns) -> MeanPredictions:
    """Sum the predictions of the site's test rows; none where these are too few."""
    schema = schema_of(site, request.schema)
    _check_grids(schema, request.grids)
    some = explained_rows(site, schema, request.model, request.by)
    sums = np.zeros((sum(len(grid.values) for grid in request.grids), _outputs(schema)), np.int64)
    if not some.usable:
        return MeanPredictions(rows=np.zeros(1, np.int64), sums=sums)
    low, spread = score_range(some.forest)
    X, line = some.X.copy(), 0
    for grid in request.grids:
        for value in grid.values.tolist():
            X[:, grid.feature] = value
            sums[line] = np.round((some.scores(X) - low).sum(axis=0) * (_UNITS / spread))
            line += 1
        X[:, grid.feature] = some.X[:, grid.feature]
    return MeanPredictions(rows=np.array([len(X)], np.int64), sums=np.maximum(sums, 0))


def _check_grids(schema: Schema, grids: Sequence[Grid]) -> None:
    if not 1 <= len(grids) <= MOST_COLUMNS:
        raise FormatError(f"columns that are set must be 1 to {MOST_COLUMNS}")
    for grid in grids:
        fits = 0 <= grid.feature < len(schema.features) and grid.values.ndim == 1
        if not fits or grid.values.dtype != np.float64 or not 1 <= len(grid.values) <= MOST_POINTS:
            raise FormatError("the values of a column are not possible")
        feature = schema.features[grid.feature]
        possible = np.isfinite(grid.values) & (np.abs(grid.values) <= np.finfo(np.float32).max)
        if feature.categorical:
            possible &= np.isin(grid.values, np.arange(feature.n_codes))
        if not possible.all():
            raise FormatError("the values of a column are not possible")


def _outputs(schema: Schema) -> int:
    return schema.n_classes if schema.n_classes > 2 else 1


# -- at the coordinator


def make_grid(schema: Schema, forest: Forest, column: str, values: Sequence[Any] | None = None) -> Grid:
    """Return the values that a column is set to: all categories, or numbers between the cut points of the trees."""
    if column not in schema.names:
        raise InputError(f"there is no column {column!r} to learn from")
    place = schema.names.index(column)
    feature = schema.features[place]
    if feature.categorical:
        return Grid(place, _codes(feature, values))
    if values is None:
        return Grid(place, _between_cuts(forest, place, feature))
    try:
        given = np.array(values, np.float64)
    except (TypeError, ValueError):
        given = np.array(math.nan)
    if given.ndim != 1 or not 1 <= len(given) <= MOST_POINTS or not np.isfinite(given).all():
        raise InputError.about("grid", f"must be 1 to {MOST_POINTS} numbers for {column!r}")
    return Grid(place, given)


def _codes(feature: Feature, values: Sequence[Any] | None) -> np.ndarray:
    names = list(feature.categories or ())
    if values is None:
        return np.arange(len(names), dtype=np.float64)
    unknown = [value for value in values if value not in names]
    if unknown or not len(values):
        raise InputError(f"grid: {feature.name!r} has no category {unknown[0]!r}" if unknown else "grid is empty")
    return np.array([names.index(value) for value in values], np.float64)


def _between_cuts(forest: Forest, place: int, feature: Feature) -> np.ndarray:
    """Return numbers from the schema's bounds, or spread as the cut points of the trees are."""
    if feature.bounds is not None:
        return np.linspace(*feature.bounds, POINTS)
    cuts = np.unique(forest.threshold[forest.feature == place]).astype(np.float64)
    cuts = cuts[np.abs(cuts) < np.finfo(np.float32).max]  # which tells rows with a number from those without
    if not len(cuts):
        return np.zeros(1)
    return np.unique(np.quantile(cuts, np.linspace(0.0, 1.0, POINTS)))


def mean_predictions(
    federation: Federation,
    schema: Schema,
    model: SentModel,
    forest: Forest,
    grids: Sequence[Grid],
    by: Sequence[str] = (),
) -> list[np.ndarray]:
    """Return the mean predictions for each value of each column: (values, outputs) a column."""
    n = sum(len(grid.values) for grid in grids)

    def check(site: str, reply: MeanPredictions) -> None:
        for name, shape in {"rows": (1,), "sums": (n, _outputs(schema))}.items():
            counts = getattr(reply, name)
            if counts.shape != shape or counts.dtype != np.int64 or counts.min() < 0:
                raise FormatError(f"its {name} are not those asked for")

    blob = federation.blob(schema.to_json().encode())
    with federation.counted_apart():
        request = SetColumns(schema=blob, model=model, grids=list(grids), by=places_of(schema, by))
        total: MeanPredictions = federation.total(request, check=check)
    rows = int(total.rows[0])
    if not rows:
        raise InputError("no site has enough test rows to learn how predictions depend on a column")
    low, spread = score_range(forest)
    means = low + total.sums * (spread / _UNITS / rows)
    return np.split(means, np.cumsum([len(grid.values) for grid in grids])[:-1])
