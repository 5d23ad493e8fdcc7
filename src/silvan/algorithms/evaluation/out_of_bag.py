"""Thresholds chosen on training rows: every row is scored by out-of-bag trees.

A site chooses a threshold for itself, or all sites choose one when a forest is fitted, from a sum of training rows by
score and class. Test rows take no part. Rows are grouped as the site's policy says, so a threshold reveals no row.
"""

from typing import ClassVar, NamedTuple

import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.candidates import SentModel, check_candidates, model_of, sent_model
from silvan.algorithms.evaluation.score_groups import Answer, hides_one_class, in_groups
from silvan.algorithms.keyed_rows import RowSamples, check_samples, rows_sampled
from silvan.algorithms.requests import counts_of, schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation.describe import FLOOR
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Blob, Fixed, PartitionsWay, Request, SummedReply, Total
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.forest.predict import calibrated, tally, voting_weights
from silvan.privacy.gate import policy_of

_MOST_ROWS = 20_000  # maximum number of training rows for choosing a threshold; of more, evenly spaced ones are used


class Scored(NamedTuple):
    """Training rows (an even subset if there are many), with out-of-bag predictions and labels.

    Scores are NaN where all trees saw the row; ``votes`` counts classes where trees vote.
    """

    scores: np.ndarray
    votes: np.ndarray
    y: np.ndarray


def unseen_rows(
    site: Site, schema: Schema, forest: Forest, draws: RowSamples | None
) -> tuple[Answer, np.ndarray] | None:
    """Score training rows by the trees that did not see them, in groups; return also the labels to count them by.

    None if that is not known or not allowed.
    """
    found = score_unseen(site, schema, forest, draws)
    if found is None:
        return None
    known = ~np.isnan(found.scores).any(axis=1)
    scores, y = found.scores[known], found.y[known]
    if len(y) < FLOOR or not policy_of(site).allows_metrics(len(y)):
        return None
    decided = found.votes[known].argmax(axis=1) if forest.decides_by_votes else scores.argmax(axis=1)
    policy = policy_of(site)
    answer, labels = in_groups(Answer(scores, decided), y, schema.n_classes, policy.score_groups)
    return None if hides_one_class(policy, labels, schema.n_classes) else (answer, labels)


def score_unseen(site: Site, schema: Schema, forest: Forest, draws: RowSamples | None) -> Scored | None:
    """Score training rows by their out-of-bag trees; None if these are unknown."""
    if draws is not None:
        check_samples(draws)
    part = site.part(schema)
    if draws is None or forest.combine not in ("mean", "vote") or sum(draws.sizes) != len(forest):
        return None
    weights = voting_weights(forest, site.absent(schema))
    if not weights.any():
        return None
    taken = np.arange(len(part))
    if len(part) > _MOST_ROWS:
        taken = np.linspace(0, len(part) - 1, _MOST_ROWS).astype(np.int64)
    drawn, skipping = rows_sampled(site, part, draws, taken)
    votes = forest.decides_by_votes
    total = tally(forest, part.take(taken), weights, site.n_jobs, votes=votes, skip=drawn, skipping=skipping)
    return Scored(calibrated(forest, total.means()), total.votes, part.y[taken])


def best_threshold(score: np.ndarray, negatives: np.ndarray, positives: np.ndarray, rule: str = "youden") -> float:
    """Return the threshold that does best by "youden" (sensitivity + specificity) or "f1", from counts by score.

    It lies half-way between two scores, at three decimals; of equals it is the one nearest to a half. NaN with one
    class only.
    """
    levels, cell = np.unique(score, return_inverse=True)
    neg, pos = np.bincount(cell, negatives), np.bincount(cell, positives)
    if not neg.sum() or not pos.sum():
        return np.nan
    true, false = (np.cumsum(counts[::-1])[::-1] for counts in (pos, neg))  # of scores of at least each level
    youden, f1_score = true / pos.sum() - false / neg.sum(), 2.0 * true / (true + false + pos.sum())
    merit = youden if rule == "youden" else f1_score
    lower = np.concatenate([[0.0], levels[:-1]])
    places = np.round((lower + levels) / 2.0, 3)
    # rounding must not move a threshold beyond its level
    places = np.where((places > lower) & (places <= levels), places, levels)
    best = merit > merit.max() - 1e-12
    return float(min(places[best], key=lambda t: (abs(t - 0.5), t)))


def site_threshold(site: Site, schema: Schema, forest: Forest, draws: RowSamples | None, rule: str = "youden") -> float:
    """Return the decision threshold for the positive class of two, chosen by a rule; NaN if unknown."""
    unseen = unseen_rows(site, schema, forest, draws) if schema.n_classes == 2 else None
    if unseen is None:
        return np.nan
    answer, y = unseen
    positive = schema.label.positive_code
    negatives, positives = metrics.count_scores(answer.scores, y, exact=True, positive=positive)[0]
    return best_threshold(np.unique(answer.scores[:, positive])[::-1], negatives, positives, rule)


class OutOfBagCounts(SummedReply, frozen=True, kw_only=True):
    """Training rows by score on a grid: (tables, 2, scores), others and rows of the class, as of ``count_scores``."""

    counts: np.ndarray


class CountOutOfBag(Total[OutOfBagCounts], frozen=True, kw_only=True):
    """The number of training rows for each out-of-bag score on a grid."""

    partitions: ClassVar[PartitionsWay] = "site"

    schema: Agreed[Blob]
    model: Fixed[SentModel]


@answers(CountOutOfBag)
def count_unseen(site: Site, request: CountOutOfBag) -> OutOfBagCounts:
    """Count training rows on the score grid; empty if too few are left or the trees' samples are unknown."""
    schema, model = schema_of(site, request.schema), request.model
    if not schema.n_classes or model.draws is None or model.adjust:
        raise FormatError("scores are counted of a model of classes whose draws are known")
    check_candidates(site, [model])
    unseen = unseen_rows(site, schema, model_of(site, schema, model.model), model.draws)
    if unseen is None:
        return OutOfBagCounts(counts=np.zeros((tables_of(schema), 2, metrics.GRID), np.int64))
    counts = metrics.count_scores(unseen[0].scores, unseen[1], exact=False, positive=schema.label.positive_code)
    return OutOfBagCounts(counts=np.ascontiguousarray(counts, np.int64))


def tables_of(schema: Schema) -> int:
    """Return the number of score tables: two classes need only the positive one."""
    return 1 if schema.n_classes == 2 else schema.n_classes


def asks_for_threshold(threshold: object) -> tuple[type[Request], ...]:
    """Return the kinds of messages that a learner with such a parameter sends."""
    return (CountOutOfBag,) if isinstance(threshold, str) else ()


def total_unseen(federation: Federation, schema: Schema, forest: Forest, draws: RowSamples) -> np.ndarray:
    """Return all sites' training rows by score, (tables, 2, scores): one round."""
    schema_blob = federation.blob(schema.to_json().encode())
    request = CountOutOfBag(schema=schema_blob, model=sent_model(federation, forest, {forest.hash: draws}))
    total: OutOfBagCounts = federation.total(request, check=counts_of(counts=(tables_of(schema), 2, metrics.GRID)))
    return total.counts


def choose_threshold(schema: Schema, forest: Forest, counts: np.ndarray, rule: str) -> float:
    """Return the decision threshold for the positive class of two that is best by a rule.

    ``counts`` are rows by score before calibration.
    """
    [(negatives, positives)], score = counts, metrics.grid_scores()
    both = np.stack([1.0 - score, score] if schema.label.positive_code else [score, 1.0 - score], axis=1)
    score = calibrated(forest, both)[:, schema.label.positive_code]
    chosen = best_threshold(score, negatives, positives, rule)
    if np.isnan(chosen):
        raise InputError(
            f"threshold={rule!r} needs training rows of both classes that some trees did not learn from: set "
            "bootstrap=True, or give a number"
        )
    return chosen
