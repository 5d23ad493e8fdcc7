"""Evaluation of scores by the label holder, who compares them with its labels.

To evaluate a model, test rows are scored as new rows are, and the scores sent to the label holder; or the
leaves that rows fall into, where only the label holder knows what these are worth. Scores may be any that the
coordinator likes: rows count in groups as the holder's policy says, and each set of scores is a model.
"""

from typing import Any, ClassVar

import numpy as np
from msgspec import UNSET, UnsetType

from silvan import metrics
from silvan.algorithms.evaluation.candidates import count_models
from silvan.algorithms.evaluation.details import Detail, Floors, check_detail, detail_of, nothing
from silvan.algorithms.evaluation.evaluation import FEDERATED, Row, metrics_by_name, rounded
from silvan.algorithms.evaluation.score_groups import Answer, hides_one_class, in_groups
from silvan.algorithms.vertical.coded_names import named_label
from silvan.algorithms.vertical.columns import encode_labels, rows_blob
from silvan.algorithms.vertical.prediction import own_answer
from silvan.data.schema import Label, Schema
from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.federation import OVERALL, Federation
from silvan.federation.message import Ask, Blob, Reply
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.privacy.gate import policy_of

# -- messages


class ScoreMetrics(Reply, frozen=True, kw_only=True):
    """Main metrics, in the order of ``metrics.main_metrics``, or moments where a number is predicted."""

    metrics: np.ndarray
    detail: Detail | None = None


class EvaluateScores(Ask[ScoreMetrics], frozen=True, kw_only=True):
    """How well scores fit the labels of test rows."""

    once: ClassVar[bool] = True  # scores that differ for one row would show its label

    rows: Blob
    label: Label
    scores: np.ndarray | UnsetType = UNSET
    decided: np.ndarray | UnsetType = UNSET  # the class of each row, where it need not be that of the highest score
    model: str = ""  # with leaves: the one that they are of
    leaves: np.ndarray | UnsetType = UNSET  # (rows, trees), where only the label holder knows what they are worth
    weights: np.ndarray | UnsetType = UNSET  # of the trees
    votes: bool = False  # with leaves: whether trees vote for a class
    threshold: float | UnsetType = UNSET  # with leaves: from which score on the second of two classes is decided on


# -- at the label holder


@answers(EvaluateScores)
def evaluate_scores(site: Site, request: EvaluateScores) -> ScoreMetrics:
    """Compare scores with labels, if the party's policy allows metrics of so few rows."""
    party, policy, n_classes = party_of(site), policy_of(site), len(request.label.classes or ())
    count_models(site, {digest(wire.encode(request))})
    y = encode_labels(party, named_label(party, request.label), request.rows)
    answer, labels = in_groups(_answer(party, request, len(y), n_classes), y, n_classes, policy.score_groups)
    if not policy.allows_figures(y, n_classes):
        raise RefusedError(
            "the rows kept for judging are fewer than the party's policy lets figures of merit leave for"
        )
    if hides_one_class(policy, labels, n_classes):
        return ScoreMetrics(metrics=np.full(len(metrics.main_metrics(n_classes)), np.nan))
    if n_classes:
        values = np.array(list(metrics.classification(answer.scores, labels, answer.decided).values()), np.float64)
    else:
        values = metrics.moments(answer.scores[:, 0], labels)
    if policy.score_groups > 1:
        values = rounded(values[None], bool(n_classes))[0]
    return ScoreMetrics(metrics=values, detail=detail_of(*answer, labels, n_classes, Floors.of(policy)))


def _answer(party: Party, request: EvaluateScores, n: int, n_classes: int) -> Answer:
    """Return what is to be evaluated: scores of so many rows, and the class that is decided on of each."""
    scores, decided, width = request.scores, request.decided, max(n_classes, 1)
    if not isinstance(request.leaves, UnsetType) and not isinstance(request.weights, UnsetType):
        scores, decided = own_answer(
            party, request.model, request.leaves, request.weights, request.votes, request.threshold
        )
    if (
        isinstance(scores, UnsetType)
        or scores.shape != (n, width)
        or scores.dtype != np.float64
        or not np.isfinite(scores).all()
    ):
        raise FormatError("the scores do not match the rows")
    if not n_classes:
        return Answer(scores, np.zeros(n, np.int64))
    if ((scores < 0) | (scores > 1)).any():
        raise FormatError("the scores are no shares")
    decided = scores.argmax(axis=1) if isinstance(decided, UnsetType) else decided
    if decided.shape != (n,) or decided.dtype != np.int64 or ((decided < 0) | (decided >= width)).any():
        raise FormatError("the decisions do not match the rows")
    return Answer(scores, decided)


# -- at the coordinator


def ask_label_holder(
    federation: Federation,
    label_holder: str,
    schema: Schema,
    digests: np.ndarray,
    scores: np.ndarray | UnsetType = UNSET,
    decided: np.ndarray | UnsetType = UNSET,
    **leaves: Any,
) -> Row:
    """Ask the label holder for metrics and details of scores; the round is not counted as training.

    ``leaves`` are other fields of ``EvaluateScores``: leaves in place of scores.
    """
    width = len(metrics.main_metrics(schema.n_classes)) if schema.n_classes else 4

    def check(site: str, reply: ScoreMetrics) -> None:
        values = reply.metrics
        if values.shape != (width,) or values.dtype != np.float64 or np.isinf(values).any():
            raise FormatError("its metrics are not those asked for")
        if reply.detail is not None:
            check_detail(reply.detail, schema.n_classes, len(digests))

    rows = rows_blob(federation, digests)
    request = EvaluateScores(rows=rows, label=schema.label, scores=scores, decided=decided, **leaves)
    with federation.counted_apart():
        reply: ScoreMetrics = federation.ask(request, to=[label_holder], check=check)[label_holder]
    detail = nothing() if reply.detail is None else reply.detail
    found = metrics_by_name(schema.n_classes, reply.metrics)
    return Row(OVERALL, FEDERATED, len(digests), found).with_detail(detail, schema)
