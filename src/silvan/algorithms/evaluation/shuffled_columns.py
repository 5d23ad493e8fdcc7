"""How much columns matter: by how much a model's squared error grows when a column is shuffled within each site.

One question for all columns that trees use. A site shuffles by a key that the coordinator does not have, and the losses
are summed over sites. A model could be made so that shuffling a column moves one row alone, so rows are not compared
with their labels: each has the share of classes, or the mean number, of the group that the model's own scores put it
in, as the evaluation of the same model discloses it (``score_groups.py``). So the losses follow from what that tells
and from the columns, whatever the labels are.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.evaluation.candidates import SentModel
from silvan.algorithms.evaluation.details import Floors, numbers_differ
from silvan.algorithms.evaluation.explained_rows import Explained, explained_rows, score_range
from silvan.algorithms.evaluation.score_groups import Answer, hides_one_class
from silvan.algorithms.evaluation.site_scores import answer_on_test_rows, test_cells
from silvan.algorithms.evaluation.subgroups import in_groups_by_cell, places_of
from silvan.algorithms.requests import schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, PartitionsWay, Reply, Total
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.privacy.gate import policy_of

MOST_REPEATS = 100

_UNITS = 4096
"""Losses are told in so many parts of the largest error that one row can have."""

_LARGEST = 2**52
"""Losses of one site are told up to this."""


class ShuffledLosses(Reply, frozen=True, kw_only=True):
    """Test rows, the model's squared error on them, and that with each column shuffled."""

    rows: np.ndarray
    losses: np.ndarray


class ShuffleColumns(Total[ShuffledLosses], frozen=True, kw_only=True):
    """By how much a model's error on test rows grows when a column is shuffled, for all columns."""

    partitions: ClassVar[PartitionsWay] = "site"

    schema: Blob
    model: SentModel
    feature_key: np.ndarray
    repeats: int
    by: tuple[int, ...] = ()  # columns of subgroups, as the model is evaluated by

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        return "a model's squared error on the site's own test rows, as they are and with each column shuffled"


# -- at a site


@answers(ShuffleColumns)
def shuffle_columns(site: Site, request: ShuffleColumns) -> ShuffledLosses:
    """Return the losses of the site's test rows; none where these are too few or of one class."""
    if not 1 <= request.repeats <= MOST_REPEATS:
        raise FormatError(f"columns are shuffled 1 to {MOST_REPEATS} times")
    schema = schema_of(site, request.schema)
    some = explained_rows(site, schema, request.model, request.by)
    columns = columns_of_features(schema)
    nothing = ShuffledLosses(rows=np.zeros(1, np.int64), losses=np.zeros(1 + len(columns), np.int64))
    if not some.usable:
        return nothing
    grouped, labels = answer_on_test_rows(site, schema, request.model, request.feature_key, request.by)
    if hides_one_class(policy_of(site), labels, schema.n_classes):
        return nothing
    known, expected = _expected(site, schema, some, grouped, labels, request.by)
    some, expected = some._replace(X=some.X[known]), expected[known]
    if not len(expected):
        return nothing
    losses = _losses(site, some, expected, list(columns.values()), request.repeats)
    unit = score_range(some.forest)[1] ** 2 / _UNITS
    counted = np.minimum(np.round(losses / unit), _LARGEST).astype(np.int64)
    return ShuffledLosses(rows=np.array([len(expected)], np.int64), losses=counted)


def columns_of_features(schema: Schema) -> dict[str, list[int]]:
    """Return the places of features by the column that they are read from: parts of a date are shuffled together."""
    found: dict[str, list[int]] = {}
    for place, feature in enumerate(schema.features):
        found.setdefault(feature.column, []).append(place)
    return found


def _expected(
    site: Site, schema: Schema, some: Explained, grouped: Answer, labels: np.ndarray, by: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows take part, and of each the shares of classes, or the mean number, of its group."""
    n = schema.n_classes
    floors = Floors.of(policy_of(site))
    if not n and floors.numbers_differ:
        part = site.part(schema, test=True)
        grouped, labels = in_groups_by_cell(grouped, part.y, 0, floors.rows, test_cells(site, schema, by))
    wanted = np.eye(n)[labels][:, 1 if n == 2 else 0 :] if n else np.asarray(labels, np.float64)[:, None]
    everyone = np.ones(len(some.X), np.bool_)
    if policy_of(site).score_groups == 1:
        return everyone, wanted[some.taken]
    shared = np.column_stack([grouped.scores, grouped.decided]) if n else grouped.scores
    cell = np.unique(shared, axis=0, return_inverse=True)[1].ravel()
    if not n:  # the mean of a group in which all numbers are the same tells each of them: such groups are joined
        plain = np.array([not numbers_differ(labels[cell == c]) for c in range(cell.max() + 1)])
        cell = np.where(plain[cell], -1, cell) + 1
        everyone = (cell > 0)[some.taken] | numbers_differ(labels[cell == 0])
    sizes = np.maximum(np.bincount(cell), 1)
    means = np.stack([np.bincount(cell, column) / sizes for column in wanted.T], axis=1)
    return everyone, means[cell[some.taken]]


def _losses(site: Site, some: Explained, expected: np.ndarray, columns: list[list[int]], repeats: int) -> np.ndarray:
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
    """Draw an order of rows by the key that sites draw rows by."""
    text = f"shuffle {column} {repeat} {site.name}".encode()
    seed = hashlib.sha256(np.ascontiguousarray(site.sampling_key).tobytes() + text).digest()
    return np.random.default_rng(np.frombuffer(seed, np.uint32)).permutation(n)


# -- at the coordinator


def importances(
    federation: Federation,
    schema: Schema,
    model: SentModel,
    feature_key: np.ndarray,
    forest: Forest,
    repeats: int,
    by: Sequence[str] = (),
) -> dict[str, float]:
    """Return by how much the mean squared error grows when a column is shuffled, by column."""
    if not 1 <= repeats <= MOST_REPEATS:
        raise InputError.wrong("repeats", f"between 1 and {MOST_REPEATS}", repeats)
    columns = columns_of_features(schema)

    def check(site: str, reply: ShuffledLosses) -> None:
        shapes = {"rows": (1,), "losses": (1 + len(columns),)}
        for name, shape in shapes.items():
            counts = getattr(reply, name)
            if counts.shape != shape or counts.dtype != np.int64 or counts.min() < 0:
                raise FormatError(f"its {name} are not those asked for")

    blob = federation.blob(schema.to_json().encode())
    places = places_of(schema, by)
    request = ShuffleColumns(schema=blob, model=model, feature_key=feature_key, repeats=repeats, by=places)
    with federation.counted_apart():
        total: ShuffledLosses = federation.total(request, check=check)
    rows = int(total.rows[0])
    if not rows:
        raise InputError("no site has enough test rows to learn which columns matter")
    unit = score_range(forest)[1] ** 2 / _UNITS
    growth = (total.losses[1:] - total.losses[0]) * unit / (rows * repeats)
    return dict(zip(columns, growth.tolist(), strict=True))
