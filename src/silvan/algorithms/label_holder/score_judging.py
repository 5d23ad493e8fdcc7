"""Evaluation of scores by the label holder, who compares them with its labels.

To judge a model, rows that were kept for it are scored as new rows are, and the scores sent to the label holder; or the
leaves that rows fall into, where only the label holder knows what these are worth. Scores may be any that the
coordinator likes: rows count in groups as the holder's policy says, and each set of scores is a model.
"""

from typing import Any, ClassVar

import numpy as np
from msgspec import UNSET, UnsetType

from silvan import metrics
from silvan.algorithms.evaluation.contenders import count_models
from silvan.algorithms.evaluation.details import Detail, Floors, check_detail, detail_of, nothing
from silvan.algorithms.evaluation.figures import Answer, rounded
from silvan.algorithms.evaluation.score_groups import hides_one_class, in_groups
from silvan.algorithms.vertical.coded_names import named_label
from silvan.algorithms.vertical.columns import encode_labels, rows_blob
from silvan.algorithms.vertical.prediction import own_answer
from silvan.data.schema import Label, Schema
from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Course, Reply, Request, Verb
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.privacy.gate.gate import policy_of

# -- messages


class Judgement(Reply, frozen=True, kw_only=True):
    """Figures of merit, in the order of ``metrics.CLASSIFICATION``, or moments where a number is predicted."""

    figures: np.ndarray
    detail: Detail | None = None


class JudgeScores(Request, frozen=True, kw_only=True):
    """How well scores fit the labels of rows that were kept for judging."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = Judgement

    rows: Blob
    label: Label
    scores: np.ndarray | UnsetType = UNSET
    decided: np.ndarray | UnsetType = UNSET  # the class of each row, where it need not be that of the highest score
    model: str = ""  # with leaves: the one that they are of
    leaves: np.ndarray | UnsetType = UNSET  # (rows, trees), where only the label holder knows what they are worth
    weights: np.ndarray | UnsetType = UNSET  # of the trees
    votes: bool = False  # with leaves: whether trees vote for a class
    threshold: float | UnsetType = UNSET  # with leaves: from which score on the second of two classes is decided on

    def course(self) -> Course:
        """Return a course of a single question: scores that differ for one row would show its label."""
        return Course(self.kind())


# -- at the label holder


@answers(JudgeScores)
def judge_scores(site: Site, request: JudgeScores) -> Judgement:
    """Compare scores with labels, if the party's policy allows figures of so few rows."""
    party, policy, n_classes = party_of(site), policy_of(site), len(request.label.classes or ())
    count_models(site, {digest(wire.encode(request))})
    y = encode_labels(party, named_label(party, request.label), request.rows)
    answer, labels = in_groups(_answer(party, request, len(y), n_classes), y, n_classes, policy.score_groups)
    if not policy.allows_figures(y, n_classes):
        raise RefusedError(
            "the rows kept for judging are fewer than the party's policy lets figures of merit leave for"
        )
    if hides_one_class(policy, labels, n_classes):
        return Judgement(figures=np.full(len(metrics.CLASSIFICATION), np.nan))
    if n_classes:
        figures = np.array(list(metrics.classification(answer.scores, labels, answer.decided).values()), np.float64)
    else:
        figures = metrics.moments(answer.scores[:, 0], labels)
    if policy.score_groups > 1:
        figures = rounded(figures[None], bool(n_classes))[0]
    return Judgement(figures=figures, detail=detail_of(*answer, labels, n_classes, Floors.of(policy)))


def _answer(party: Party, request: JudgeScores, n: int, n_classes: int) -> Answer:
    """Return what is to be judged: scores of so many rows, and the class that is decided on of each."""
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


def judge(
    federation: Federation,
    label_holder: str,
    schema: Schema,
    digests: np.ndarray,
    scores: np.ndarray | UnsetType = UNSET,
    decided: np.ndarray | UnsetType = UNSET,
    **found: Any,
) -> tuple[dict[str, float], Detail]:
    """Ask the label holder for figures of merit of scores, and details; the round is not counted as training.

    ``found`` are other fields of ``JudgeScores``: leaves in place of scores.
    """
    width = len(metrics.CLASSIFICATION) if schema.n_classes else 4

    def check(site: str, reply: Judgement) -> None:
        figures = reply.figures
        if figures.shape != (width,) or figures.dtype != np.float64 or np.isinf(figures).any():
            raise FormatError("its figures are not those asked for")
        if reply.detail is not None:
            check_detail(reply.detail, schema.n_classes, len(digests))

    rows = rows_blob(federation, digests)
    request = JudgeScores(rows=rows, label=schema.label, scores=scores, decided=decided, **found)
    with federation.counted_apart():
        reply: Judgement = federation.ask(request, to=[label_holder], check=check)[label_holder]
    detail = nothing() if reply.detail is None else reply.detail
    if schema.n_classes:
        return dict(zip(metrics.CLASSIFICATION, reply.figures.tolist(), strict=True)), detail
    return metrics.from_moments(reply.figures), detail
