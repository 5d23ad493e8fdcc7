"""Column effects on a model's predictions: mean predictions with a column set to values, and errors with it shuffled.

Sites reply with sums over their test rows. Mean predictions need no label: values come from the schema or the model.

For importances a site shuffles columns by a key that the coordinator does not have, all columns in one request. A model
could be made so that shuffling a column moves a single row, so rows are not compared with their labels. Each has the
class shares, or the mean number, of its group by the model's scores, as the evaluation of the same model discloses them
(``score_groups.py``). So losses follow from known values and from the columns, whatever the labels are.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from silvan.algorithms.evaluation.candidates import SentModel, check_candidates, model_of
from silvan.algorithms.evaluation.details import Floors, numbers_differ
from silvan.algorithms.evaluation.evaluation import answer_of
from silvan.algorithms.evaluation.score_groups import (
    Answer,
    check_by,
    hides_one_class,
    in_groups,
    in_groups_by_cell,
    places_of,
)
from silvan.algorithms.evaluation.site_models import answer_on_test_rows, test_cells
from silvan.algorithms.keyed_rows import check_samples, rows_sampled
from silvan.algorithms.requests import counts_of, schema_of
from silvan.data.schema import Feature, Schema
from silvan.errors import FormatError, InputError, reject
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Blob, Fixed, PartitionsWay, SummedReply, Total
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.forest.predict import calibrated, tally, voting_weights
from silvan.privacy.gate import policy_of

MOST_ROWS = 5_000  # maximum number of test rows of a site that explain a model; of more, evenly spaced ones are used


class ExplainedRows(NamedTuple):
    """A model that is sent, and the rows that explain it; ``taken`` are their places in the test part.

    Training rows are scored by the trees that did not see them: ``seen`` has lines of rows, and the line of each tree.
    """

    forest: Forest
    X: np.ndarray
    taken: np.ndarray
    absent: np.ndarray
    n_jobs: int | None
    seen: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def usable(self) -> bool:
        """Whether there are rows, and trees that predict them."""
        return len(self.X) > 0 and (self.seen is not None or not np.isnan(self.scores(self.X[:1])).any())

    def scores(self, X: np.ndarray) -> np.ndarray:
        """Return the model's scores of rows: of the positive class of two, of each of several, or the number."""
        found, label = self.answer(X).scores, self.forest.schema.label
        return found[:, [label.positive_code]] if label.positive_class is not None else found

    def answer(self, X: np.ndarray) -> Answer:
        """Return the model's scores and decisions for rows."""
        if self.seen is None:
            return answer_of(self.forest, X, self.absent, self.n_jobs)
        lines, places = self.seen
        weights = voting_weights(self.forest, self.absent)
        means = tally(self.forest, X, weights, self.n_jobs, votes=False, skip=lines, skipping=places).means()
        return Answer(calibrated(self.forest, means), means.argmax(axis=1))


def explained_rows(site: Site, schema: Schema, model: SentModel, by: Sequence[int] = ()) -> ExplainedRows:
    """Read a model, which counts as an evaluated one; the rows are empty if there are too few."""
    check_by(schema, by)
    check_candidates(site, [model], by)
    forest, part = model_of(site, schema, model.model), site.part(schema, test=True)
    n = len(part)
    if n < Floors.of(policy_of(site)).rows:
        n = 0
    taken = np.arange(n) if n <= MOST_ROWS else np.linspace(0, n - 1, MOST_ROWS).astype(np.int64)
    return ExplainedRows(forest, part.take(taken), taken, site.absent(schema), site.n_jobs)


def unseen_rows_here(site: Site, schema: Schema, model: SentModel) -> tuple[ExplainedRows, np.ndarray]:
    """Return training rows for explaining a model, with their labels; empty if too few or with unknown samples."""
    check_candidates(site, [model])
    forest, part, draws = model_of(site, schema, model.model), site.part(schema), model.draws
    if draws is None or forest.combine not in ("mean", "vote"):
        raise FormatError("which rows its trees sampled must be known")
    check_samples(draws, len(forest))
    n = len(part)
    taken = np.arange(n) if n <= MOST_ROWS else np.linspace(0, n - 1, MOST_ROWS).astype(np.int64)
    lines, places = rows_sampled(site, part, draws, taken)
    some = ExplainedRows(forest, part.X[taken], taken, site.absent(schema), site.n_jobs, (lines, places))
    known = ~np.isnan(some.scores(some.X)).any(axis=1)
    if known.sum() < Floors.of(policy_of(site)).rows:
        known[:] = False
    y = part.y[taken][known]
    return some._replace(X=some.X[known], taken=np.arange(len(y)), seen=(lines[:, known], places)), y


def score_range(forest: Forest) -> tuple[float, float]:
    """Return the lowest possible score, and the range of scores: 0 and 1 for classes."""
    if forest.schema.n_classes:
        return 0.0, 1.0
    low, high = float(forest.value.min()), float(forest.value.max())
    return low, high - low if high > low else 1.0


POINTS = 21  # values of a numeric column, by default
MOST_POINTS, MOST_COLUMNS = 300, 50  # maximum number of values of a column, and of columns in a request
MOST_REPEATS = 100

_LARGEST = 2**52  # the largest sum of losses that a site reports
_UNITS = 4096  # predictions are summed in so many parts of their range, losses in parts of the largest error of a row


class ColumnGrid(msgspec.Struct, frozen=True):
    """A feature by its position in the schema, and the values that it is set to: numbers, or codes of categories."""

    feature: int
    values: np.ndarray


class RowSums(SummedReply, frozen=True, kw_only=True):
    """The number of a site's test rows, and sums over them; empty if there are too few."""

    rows: np.ndarray
    sums: np.ndarray


class OnTestRows(Total[RowSums], frozen=True, kw_only=True):
    """A request for sums of a model's predictions on test rows with changed columns."""

    partitions: ClassVar[PartitionsWay] = "site"

    schema: Agreed[Blob]
    model: Fixed[SentModel]
    # positions of subgroup columns, if the model is evaluated with them: it counts as that one
    by: Fixed[tuple[int, ...]] = ()


class SetColumns(OnTestRows, frozen=True, kw_only=True):
    """Mean predictions of test rows with a column set to each of some values."""

    grids: Fixed[list[ColumnGrid]]


class ShuffleColumns(OnTestRows, frozen=True, kw_only=True):
    """The increase of a model's error when a column is shuffled, for all columns, on test or on training rows."""

    feature_key: Fixed[np.ndarray]
    repeats: Fixed[int]
    training: Fixed[bool] = False  # training rows, each scored by out-of-bag trees


# -- mean predictions: at a site
@answers(SetColumns)
def set_columns(site: Site, request: SetColumns) -> RowSums:
    """Sum the predictions of the site's test rows; empty if there are too few."""
    schema = schema_of(site, request.schema)
    _check_grids(schema, request.grids)
    some = explained_rows(site, schema, request.model, request.by)
    sums = np.zeros((sum(len(grid.values) for grid in request.grids), _outputs(schema)), np.int64)
    if not some.usable:
        return RowSums(rows=np.zeros(1, np.int64), sums=sums)
    low, spread = score_range(some.forest)
    X, line = some.X.copy(), 0
    for grid in request.grids:
        for value in grid.values.tolist():
            X[:, grid.feature] = value
            sums[line] = np.round((some.scores(X) - low).sum(axis=0) * (_UNITS / spread))
            line += 1
        X[:, grid.feature] = some.X[:, grid.feature]
    return RowSums(rows=np.array([len(X)], np.int64), sums=np.maximum(sums, 0))


def _check_grids(schema: Schema, grids: Sequence[ColumnGrid]) -> None:
    reject(not 1 <= len(grids) <= MOST_COLUMNS, f"columns that are set must be 1 to {MOST_COLUMNS}")
    for grid in grids:
        fits = 0 <= grid.feature < len(schema.features) and grid.values.ndim == 1
        if not fits or grid.values.dtype != np.float64 or not 1 <= len(grid.values) <= MOST_POINTS:
            raise FormatError("the values of a column are not possible")
        feature = schema.features[grid.feature]
        possible = np.isfinite(grid.values) & (np.abs(grid.values) <= np.finfo(np.float32).max)
        if feature.categorical:
            possible &= np.isin(grid.values, np.arange(feature.n_codes))
        reject(not possible.all(), "the values of a column are not possible")


def _outputs(schema: Schema) -> int:
    return schema.n_classes if schema.n_classes > 2 else 1


# -- mean predictions: at the coordinator
def make_grid(schema: Schema, forest: Forest, column: str, values: Sequence[Any] | None = None) -> ColumnGrid:
    """Return the values that a column is set to: all categories, or numbers between the cut points of the trees."""
    if column not in schema.names:
        raise InputError(f"there is no column {column!r} to learn from")
    place = schema.names.index(column)
    feature = schema.features[place]
    if feature.categorical:
        return ColumnGrid(place, _codes(feature, values))
    if values is None:
        return ColumnGrid(place, _between_cuts(forest, place, feature))
    try:
        given = np.array(values, np.float64)
    except (TypeError, ValueError):
        given = np.array(math.nan)
    if given.ndim != 1 or not 1 <= len(given) <= MOST_POINTS or not np.isfinite(given).all():
        raise InputError.about("grid", f"must be 1 to {MOST_POINTS} numbers for {column!r}")
    return ColumnGrid(place, given)


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
    cuts = cuts[np.abs(cuts) < np.finfo(np.float32).max]  # which separates rows with a number from those without
    if not len(cuts):
        return np.zeros(1)
    return np.unique(np.quantile(cuts, np.linspace(0.0, 1.0, POINTS)))


def mean_predictions(
    federation: Federation,
    schema: Schema,
    model: SentModel,
    forest: Forest,
    grids: Sequence[ColumnGrid],
    by: Sequence[str] = (),
) -> list[np.ndarray]:
    """Return the mean predictions for each value of each column: (values, outputs) per column."""
    n = sum(len(grid.values) for grid in grids)
    blob, places = federation.blob(schema.to_json().encode()), places_of(schema, by)
    request = SetColumns(schema=blob, model=model, grids=list(grids), by=places)
    sums, rows = _total(federation, request, "how predictions depend on a column", (n, _outputs(schema)))
    low, spread = score_range(forest)
    means = low + sums * (spread / _UNITS / rows)
    return np.split(means, np.cumsum([len(grid.values) for grid in grids])[:-1])


def _total(federation: Federation, request: OnTestRows, what: str, shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """Return the sums over all sites, and their number of test rows."""
    with federation.counted_apart():
        total: RowSums = federation.total(request, check=counts_of(rows=(1,), sums=shape))
    if not total.rows[0]:
        raise InputError(f"no site has enough test rows to learn {what}")
    return total.sums, int(total.rows[0])


# -- importances: at a site
@answers(ShuffleColumns)
def shuffle_columns(site: Site, request: ShuffleColumns) -> RowSums:
    """Return the losses of the site's rows; empty if there are too few or all have one class."""
    reject(not 1 <= request.repeats <= MOST_REPEATS, f"columns are shuffled 1 to {MOST_REPEATS} times")
    schema = schema_of(site, request.schema)
    columns = columns_of_features(schema)
    nothing = RowSums(rows=np.zeros(1, np.int64), sums=np.zeros(1 + len(columns), np.int64))
    if request.training:
        reject(bool(request.by), "training rows are in no subgroups")
        some, y = unseen_rows_here(site, schema, request.model)
    else:
        some = explained_rows(site, schema, request.model, request.by)
    if not some.usable:
        return nothing
    if request.training:
        grouped, labels = in_groups(some.answer(some.X), y, schema.n_classes, policy_of(site).score_groups)
    else:
        grouped, labels = answer_on_test_rows(site, schema, request.model, request.feature_key, request.by)
        y = site.part(schema, test=True).y
    if hides_one_class(policy_of(site), labels, schema.n_classes):
        return nothing
    known, expected = _expected(site, schema, some, grouped, labels, y, request.by)
    some, expected = some._replace(X=some.X[known]), expected[known]
    if not len(expected):
        return nothing
    losses = _losses(site, some, expected, list(columns.values()), request.repeats)
    unit = score_range(some.forest)[1] ** 2 / _UNITS
    counted = np.minimum(np.round(losses / unit), _LARGEST).astype(np.int64)
    return RowSums(rows=np.array([len(expected)], np.int64), sums=counted)


def columns_of_features(schema: Schema) -> dict[str, list[int]]:
    """Return the positions of features by source column, because parts of a date are shuffled together."""
    found: dict[str, list[int]] = {}
    for place, feature in enumerate(schema.features):
        found.setdefault(feature.column, []).append(place)
    return found


def _expected(
    site: Site,
    schema: Schema,
    some: ExplainedRows,
    grouped: Answer,
    labels: np.ndarray,
    y: np.ndarray,
    by: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows take part, and of each the shares of classes, or the mean number, of its group."""
    n = schema.n_classes
    floors = Floors.of(policy_of(site))
    if not n and floors.numbers_differ:
        grouped, labels = in_groups_by_cell(grouped, y, 0, floors.rows, test_cells(site, schema, by))
    wanted = np.eye(n)[labels][:, 1 if n == 2 else 0 :] if n else np.asarray(labels, np.float64)[:, None]
    everyone = np.ones(len(some.X), np.bool_)
    if policy_of(site).score_groups == 1:
        return everyone, wanted[some.taken]
    shared = np.column_stack([grouped.scores, grouped.decided]) if n else grouped.scores
    cell = np.unique(shared, axis=0, return_inverse=True)[1].ravel()
    if not n:  # the mean of a group of equal numbers would reveal each of them: such groups are merged
        plain = np.array([not numbers_differ(labels[cell == c]) for c in range(cell.max() + 1)])
        cell = np.where(plain[cell], -1, cell) + 1
        everyone = (cell > 0)[some.taken] | numbers_differ(labels[cell == 0])
    sizes = np.maximum(np.bincount(cell), 1)
    means = np.stack([np.bincount(cell, column) / sizes for column in wanted.T], axis=1)
    return everyone, means[cell[some.taken]]


def _losses(
    site: Site, some: ExplainedRows, expected: np.ndarray, columns: list[list[int]], repeats: int
) -> np.ndarray:
    """Return the sum over rows and repeats of the expected squared error: as rows are, and with each column shuffled.

    The error of a number is that against the mean of its group, which lacks the same in every case.
    """
    of_classes = bool(some.forest.schema.n_classes)
    used = set(np.unique(some.forest.feature).tolist())

    def loss(X: np.ndarray) -> float:
        found = some.scores(X)
        spread = expected * (1.0 - expected) if of_classes else 0.0
        return float(((found - expected) ** 2 + spread).sum())

    plain = loss(some.X) * repeats
    losses = np.full(1 + len(columns), plain)
    shuffled = some.X.copy()
    for i, places in enumerate(columns):
        places = [place for place in places if place in used]
        if places:
            losses[1 + i] = 0.0
            for repeat in range(repeats):
                order = _shuffle(site, i, repeat, len(shuffled))
                shuffled[:, places] = some.X[order][:, places]
                losses[1 + i] += loss(shuffled)
            shuffled[:, places] = some.X[:, places]
    return losses


def _shuffle(site: Site, column: int, repeat: int, n: int) -> np.ndarray:
    """Sample an order of rows with the sites' sampling key."""
    text = f"shuffle {column} {repeat} {site.name}".encode()
    seed = hashlib.sha256(np.ascontiguousarray(site.sampling_key).tobytes() + text).digest()
    return np.random.default_rng(np.frombuffer(seed, np.uint32)).permutation(n)


# -- importances: at the coordinator
def importances(
    federation: Federation,
    schema: Schema,
    model: SentModel,
    feature_key: np.ndarray,
    forest: Forest,
    repeats: int,
    by: Sequence[str] = (),
    training: bool = False,
) -> dict[str, float]:
    """Return the increase of the mean squared error when a column is shuffled, by column.

    On test rows, or on out-of-bag ``training`` rows.
    """
    if not 1 <= repeats <= MOST_REPEATS:
        raise InputError.wrong("repeats", f"between 1 and {MOST_REPEATS}", repeats)
    columns = columns_of_features(schema)
    blob, places = federation.blob(schema.to_json().encode()), places_of(schema, by)
    request = ShuffleColumns(
        schema=blob, model=model, feature_key=feature_key, repeats=repeats, by=places, training=training
    )
    sums, rows = _total(federation, request, "which columns matter", (1 + len(columns),))
    unit = score_range(forest)[1] ** 2 / _UNITS
    growth = (sums[1:] - sums[0]) * unit / (rows * repeats)
    return dict(zip(columns, growth.tolist(), strict=True))
