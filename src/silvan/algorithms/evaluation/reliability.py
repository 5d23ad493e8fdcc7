"""Reliability of scores: calibration of probabilities, and the errors behind intervals.

Both come from training rows, each scored by out-of-bag trees. The coordinator learns only sums over
sites: rows by class and score on a grid (``CountOutOfBag``), from which it fits one curve for all sites, and rows by
the size of their error (``CountErrors``). A forest carries both (``Forest.curve``, ``Forest.errors``).

A site then adjusts both to its own rows, and keeps what comes of it: the curve is the shared one unless its rows say
otherwise, and errors are its own where it has enough of them. The order of rows by score stays the same.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.candidates import SentModel, check_candidates, model_of, sent_model
from silvan.algorithms.evaluation.out_of_bag import unseen_rows
from silvan.algorithms.evaluation.score_groups import Answer
from silvan.algorithms.keyed_rows import RowSamples
from silvan.algorithms.requests import counts_of, schema_of
from silvan.data.schema import Schema
from silvan.errors import InputError, reject
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Blob, Fixed, PartitionsWay, SummedReply, Total
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.forest.predict import calibrated, log_odds
from silvan.privacy.gate import policy_of
from silvan.util.logistic import fit_logistic

_SHARED_PRIOR = (0.5, 0.5)
"""Penalties on intercept and slope that pull the shared curve towards no change: worth a few rows."""

_SITE_PRIOR = (2.0, 8.0)
"""The same for a site's curve towards the shared one: intercepts vary with the share of positives, slopes little."""

_FLATTEST, _STEEPEST = 0.05, 50.0  # slopes of curves
_FURTHEST = 50.0  # intercepts
_DIGITS = 6  # decimals of curves: exponentials differ in their last digits between processors, and forests must not

OWN_ERRORS = 200
"""A site with at least this many rows uses its own errors for intervals; coverage then varies by about two points."""

_SIDE = 512  # cells for errors on one side of zero
_SMALLEST, _LARGEST = 1e-4, 16.0
"""The first and last edge of cells for errors, in units of the spread of leaf values; cells grow in between."""

_ERROR_CELLS = 1024  # cells for errors of classes, which are between 0 and 1


# -- curves
def fit_curve(
    scores: np.ndarray, hits: np.ndarray, weights: np.ndarray, around: Sequence[float], prior: Sequence[float]
) -> tuple[float, float]:
    """Fit the intercept and slope of log-odds by penalised logistic regression: weights are numbers of rows.

    ``around`` is what both are drawn to, and ``prior`` by how much.
    """
    columns = np.stack([np.ones(len(scores)), log_odds(scores)])
    at = fit_logistic(
        columns, weights, weights * hits, centre=np.array(around, np.float64), penalty=np.array(prior, np.float64)
    )
    at = np.clip(at, (-_FURTHEST, _FLATTEST), (_FURTHEST, _STEEPEST))
    intercept, slope = np.round(at, _DIGITS) + 0.0
    return float(intercept), float(slope)


def shared_curve(tables: np.ndarray, n_classes: int, positive: int) -> np.ndarray:
    """Return the curve computed from summed counts by score, (classes, 2); ``tables`` as of ``count_scores``."""
    score = metrics.grid_scores()
    found = []
    for misses, hits in tables:
        both = np.concatenate([score, score])
        right = np.concatenate([np.zeros(len(score)), np.ones(len(score))])
        found.append(fit_curve(both, right, np.concatenate([misses, hits]), (0.0, 1.0), _SHARED_PRIOR))
    return _by_class(found, n_classes, positive)


def _by_class(found: Sequence[tuple[float, float]], n_classes: int, positive: int) -> np.ndarray:
    """Return curves of all classes; with two, the other one's is the mirror image."""
    if n_classes != 2:
        return np.array(found)
    [(intercept, slope)] = found
    curve = np.array([[-intercept, slope], [intercept, slope]])
    return curve if positive else curve[::-1]


def site_curve(shared: np.ndarray, answer: Answer, y: np.ndarray, positive: int) -> np.ndarray:
    """Return the curve of a site: the shared one, adjusted to the site's rows."""
    n_classes, ones = len(shared), np.ones(len(y))
    classes = [positive] if n_classes == 2 else range(n_classes)
    found = [fit_curve(answer.scores[:, c], y == c, ones, shared[c].tolist(), _SITE_PRIOR) for c in classes]
    return _by_class(found, n_classes, positive)


# -- errors
def error_edges(forest: Forest) -> np.ndarray:
    """Return the edges of error cells; the outermost cells also hold values beyond them."""
    if forest.schema.n_classes:
        return np.linspace(0.0, 1.0, _ERROR_CELLS + 1)
    spread = float(np.ptp(forest.value)) or max(abs(float(forest.value.flat[0])), 1.0)
    side = np.geomspace(_SMALLEST, _LARGEST, _SIDE) * spread
    return np.concatenate([-side[::-1], side])


def count_errors(forest: Forest, answer: Answer, y: np.ndarray, least: int) -> np.ndarray:
    """Count the errors of rows in cells: label less prediction, or 1 less the probability of the true class.

    Errors are sorted, and at least this many of them share their mean: the largest error would reveal one row.
    """
    scores = calibrated(forest, answer.scores)
    if forest.schema.n_classes:
        errors = 1.0 - np.take_along_axis(scores, y.astype(np.int64)[:, None], axis=1)[:, 0]
    else:
        errors = y - scores[:, 0]
    edges, starts = error_edges(forest), np.arange(0, max(len(y) - least, 0) + 1, least)
    sizes = np.diff([*starts, len(y)])
    errors = np.repeat(np.add.reduceat(np.sort(errors), starts) / sizes, sizes)
    return np.bincount(np.clip(np.searchsorted(edges, errors, "left") - 1, 0, len(edges) - 2), minlength=len(edges) - 1)


def error_table(forest: Forest, counts: np.ndarray) -> np.ndarray | None:
    """Return errors and cumulative row counts of the occupied cells, or None without any."""
    if not counts.sum():
        return None
    edges = error_edges(forest)
    held = np.concatenate([[False], counts > 0])
    kept = held | np.append(held[1:], False)  # both ends of each cell
    return np.stack([edges[kept], np.concatenate([[0], np.cumsum(counts)])[kept]]).astype(np.float64)


# -- messages
class ErrorCounts(SummedReply, frozen=True, kw_only=True):
    """Training rows by the size of their error."""

    counts: np.ndarray


class CountErrors(Total[ErrorCounts], frozen=True, kw_only=True):
    """The number of training rows for each size of the out-of-bag error."""

    partitions: ClassVar[PartitionsWay] = "site"

    schema: Agreed[Blob]
    model: Fixed[SentModel]


# -- at a site
@answers(CountErrors)
def count_unseen_errors(site: Site, request: CountErrors) -> ErrorCounts:
    """Count training rows by error; empty if too few are left or the trees' samples are unknown."""
    schema, model = schema_of(site, request.schema), request.model
    reject(model.draws is None or model.adjust, "errors are counted only for a model with known row samples")
    check_candidates(site, [model])
    forest = model_of(site, schema, model.model)
    unseen = unseen_rows(site, schema, forest.plain(), model.draws)
    if unseen is None:
        return ErrorCounts(counts=np.zeros(len(error_edges(forest)) - 1, np.int64))
    counts = count_errors(forest, *unseen, policy_of(site).score_groups)
    return ErrorCounts(counts=counts.astype(np.int64))


def adjusted(site: Site, schema: Schema, forest: Forest, draws: RowSamples | None) -> Forest:
    """Return a forest whose curve and errors are adjusted to the site's rows; unchanged with too few rows."""
    unseen = unseen_rows(site, schema, forest.plain(), draws)
    if unseen is None:
        return forest
    answer, y = unseen
    if forest.curve is not None:
        forest = replace(forest, curve=site_curve(forest.curve, answer, y, schema.label.positive_code))
    if forest.errors is not None and len(y) >= OWN_ERRORS:
        counts = count_errors(forest, answer, y, policy_of(site).score_groups)
        forest = replace(forest, errors=error_table(forest, counts))
    return forest


# -- at the coordinator
def with_curve(schema: Schema, forest: Forest, counts: np.ndarray) -> Forest:
    """Return the forest with the calibration curve of all sites' rows; unchanged if there are no rows."""
    if not counts.sum():
        return forest
    return replace(forest, curve=shared_curve(counts, schema.n_classes, schema.label.positive_code))


def with_errors(federation: Federation, schema: Schema, forest: Forest, draws: RowSamples) -> Forest:
    """Return the forest with the errors of all sites' rows: one round."""
    request = CountErrors(
        schema=federation.blob(schema.to_json().encode()), model=sent_model(federation, forest, {forest.hash: draws})
    )
    cells = len(error_edges(forest)) - 1
    total: ErrorCounts = federation.total(request, check=counts_of(counts=(cells,)))
    table = error_table(forest, total.counts)
    if table is None:
        raise InputError(
            "intervals=True needs training rows that some trees did not learn from, at a site with enough of them: set "
            "bootstrap=True, or leave intervals out"
        )
    return replace(forest, errors=table)
