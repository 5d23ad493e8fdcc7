"""Judging a forest in shares: rows are scored as ever, the label holder compares the scores with its labels."""

from typing import ClassVar

import numpy as np

from silvan import metrics
from silvan.algorithms.columns import encode_labels, rows_blob
from silvan.data.schema import Label, Schema
from silvan.errors import FormatError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.message import Blob, Course, Reply, Request, Verb
from silvan.federation.party import party_of
from silvan.federation.site import Site, answers
from silvan.privacy.outbox import policy_of

# -- messages


class Judgement(Reply, frozen=True, kw_only=True):
    """Figures of merit, in the order of ``metrics.CLASSIFICATION``, or moments where a number is predicted."""

    figures: np.ndarray


class JudgeScores(Request, frozen=True, kw_only=True):
    """How well scores fit the labels of rows that were kept for judging."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = Judgement

    rows: Blob
    label: Label
    scores: np.ndarray

    def course(self) -> Course:
        """Judge once: scores that differ for one row show its label."""
        return Course(self.kind())


# -- at the label holder


@answers(JudgeScores)
def judge_scores(site: Site, request: JudgeScores) -> Judgement:
    """Compare scores with labels."""
    y = encode_labels(party_of(site), request.label, request.rows)
    scores, width = request.scores, len(request.label.classes or (0,))
    if scores.shape != (len(y), width) or scores.dtype != np.float64 or not np.isfinite(scores).all():
        raise FormatError("the scores do not match the rows")
    if not policy_of(site).judges(y, len(request.label.classes or ())):
        raise RefusedError(
            "the rows kept for judging are fewer than the party's policy lets figures of merit leave for"
        )
    if request.label.classes is None:
        return Judgement(figures=metrics.moments(scores[:, 0], y))
    if ((scores < 0) | (scores > 1)).any():
        raise FormatError("the scores are no shares")
    return Judgement(figures=np.array(list(metrics.classification(scores, y).values()), np.float64))


# -- at the coordinator


def judge(
    federation: Federation, label_holder: str, schema: Schema, digests: np.ndarray, scores: np.ndarray
) -> dict[str, float]:
    """Have the label holder judge scores; counted apart from training."""
    width = len(metrics.CLASSIFICATION) if schema.n_classes else 4

    def check(site: str, reply: Judgement) -> None:
        figures = reply.figures
        if figures.shape != (width,) or figures.dtype != np.float64 or np.isinf(figures).any():
            raise FormatError("its figures are not those asked for")

    request = JudgeScores(rows=rows_blob(federation, digests), label=schema.label, scores=scores)
    with federation.counted_apart():
        reply: Judgement = federation.ask(request, to=[label_holder], check=check)[label_holder]
    if schema.n_classes:
        return dict(zip(metrics.CLASSIFICATION, reply.figures.tolist(), strict=True))
    return metrics.from_moments(reply.figures)
