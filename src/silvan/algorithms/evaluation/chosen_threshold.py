"""A threshold for all sites, chosen when a forest is fitted: from a sum of training rows by score and class.

Sites score their training rows by trees that did not learn from them (``site_thresholds.py``). No test row takes part.
"""

from typing import ClassVar

import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.contenders import Contender, check_contenders, list_contenders, model_of
from silvan.algorithms.evaluation.site_thresholds import Draws, unseen_rows
from silvan.algorithms.shared.requests import schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, PartitionsWay, Reply, Request, Verb
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest


class UnseenCounts(Reply, frozen=True, kw_only=True):
    """Training rows by class and by score on a grid."""

    counts: np.ndarray


class CountUnseen(Request, frozen=True, kw_only=True):
    """How many training rows have which score on a grid, each by the trees that did not learn from it."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = UnseenCounts
    partitions: ClassVar[PartitionsWay] = "site"

    schema: Blob
    model: Contender


@answers(CountUnseen)
def count_unseen(site: Site, request: CountUnseen) -> UnseenCounts:
    """Count the training rows on the grid of scores; none where too few are left or it is not known what trees saw."""
    schema, model = schema_of(site, request.schema), request.model
    if schema.n_classes != 2 or model.sent is None or not isinstance(model.draws, Draws):
        raise FormatError("a threshold is for a model of two classes that is sent, whose draws are known")
    check_contenders(site, [model])
    unseen = unseen_rows(site, schema, model_of(site, schema, model.sent), model.draws)
    if unseen is None:
        return UnseenCounts(counts=np.zeros((2, metrics.GRID), np.int64))
    [counts] = metrics.count_scores(unseen.answer.scores, unseen.y, exact=False)
    return UnseenCounts(counts=np.ascontiguousarray(counts, np.int64))


def asks_for_threshold(threshold: object) -> tuple[type[Request], ...]:
    """Return the kinds of messages that a learner with such a parameter asks."""
    return (CountUnseen,) if isinstance(threshold, str) else ()


def choose_threshold(federation: Federation, schema: Schema, forest: Forest, draws: Draws, rule: str) -> float:
    """Return the score from which on the second of two classes is decided on: the best by a rule."""

    def check(site: str, reply: UnseenCounts) -> None:
        if reply.counts.shape != (2, metrics.GRID) or reply.counts.dtype != np.int64 or reply.counts.min() < 0:
            raise FormatError("its counts are not those asked for")

    listed = list_contenders(federation, [forest], {forest.hash: draws})
    schema_blob = federation.blob(schema.to_json().encode())
    shared = next(iter(listed.values()))[0]
    request = CountUnseen(schema=schema_blob, model=shared)
    total: UnseenCounts = federation.total(request, check=check)
    negatives, positives = total.counts
    chosen = metrics.best_threshold(metrics.grid_scores(), negatives, positives, rule)
    if np.isnan(chosen):
        raise InputError(
            f"threshold={rule!r} needs training rows of both classes that some trees did not learn from: set "
            "bootstrap=True, or give a number"
        )
    return chosen
