"""A threshold for all sites, chosen when a forest is fitted: from a sum of training rows by score and class.

Sites score their training rows by trees that did not learn from them (``out_of_bag.py``). No test row takes part.
"""

from typing import ClassVar

import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.candidates import SentModel, check_candidates, model_of, sent_model
from silvan.algorithms.evaluation.out_of_bag import Draws, unseen_rows
from silvan.algorithms.requests import schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, PartitionsWay, Reply, Request, Total
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest


class OutOfBagCounts(Reply, frozen=True, kw_only=True):
    """Training rows by class and by score on a grid."""

    counts: np.ndarray


class CountOutOfBag(Total[OutOfBagCounts], frozen=True, kw_only=True):
    """How many training rows have which score on a grid, each by the trees that did not learn from it."""

    partitions: ClassVar[PartitionsWay] = "site"

    schema: Blob
    model: SentModel


@answers(CountOutOfBag)
def count_unseen(site: Site, request: CountOutOfBag) -> OutOfBagCounts:
    """Count the training rows on the grid of scores; none where too few are left or it is not known what trees saw."""
    schema, model = schema_of(site, request.schema), request.model
    if schema.n_classes != 2 or model.draws is None:
        raise FormatError("a threshold is for a model of two classes whose draws are known")
    check_candidates(site, [model])
    unseen = unseen_rows(site, schema, model_of(site, schema, model.model), model.draws)
    if unseen is None:
        return OutOfBagCounts(counts=np.zeros((2, metrics.GRID), np.int64))
    [counts] = metrics.count_scores(unseen.answer.scores, unseen.y, exact=False)
    return OutOfBagCounts(counts=np.ascontiguousarray(counts, np.int64))


def asks_for_threshold(threshold: object) -> tuple[type[Request], ...]:
    """Return the kinds of messages that a learner with such a parameter asks."""
    return (CountOutOfBag,) if isinstance(threshold, str) else ()


def choose_threshold(federation: Federation, schema: Schema, forest: Forest, draws: Draws, rule: str) -> float:
    """Return the score from which on the second of two classes is decided on: the best by a rule."""

    def check(site: str, reply: OutOfBagCounts) -> None:
        if reply.counts.shape != (2, metrics.GRID) or reply.counts.dtype != np.int64 or reply.counts.min() < 0:
            raise FormatError("its counts are not those asked for")

    schema_blob = federation.blob(schema.to_json().encode())
    request = CountOutOfBag(schema=schema_blob, model=sent_model(federation, forest, {forest.hash: draws}))
    total: OutOfBagCounts = federation.total(request, check=check)
    negatives, positives = total.counts
    chosen = metrics.best_threshold(metrics.grid_scores(), negatives, positives, rule)
    if np.isnan(chosen):
        raise InputError(
            f"threshold={rule!r} needs training rows of both classes that some trees did not learn from: set "
            "bootstrap=True, or give a number"
        )
    return chosen
