"""The label holder compares scores of rows with its labels, or writes them to a file beside its IDs.

Keyed digests of IDs identify the rows. The coordinator sends the label holder their scores or, if only the label holder
knows leaf values, their leaves. The coordinator may send any scores, so in an evaluation rows count in groups as the
holder's policy says, and each set of scores counts as a model. Written predictions stay with the label holder; the
coordinator learns their number.
"""

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.candidates import count_models
from silvan.algorithms.evaluation.details import Detail, Floors, check_detail, detail_of, nothing
from silvan.algorithms.evaluation.evaluation import FEDERATED, Row, metrics_by_name, rounded
from silvan.algorithms.evaluation.score_groups import Answer, hides_one_class, in_groups
from silvan.algorithms.level_checks import check_arrays
from silvan.algorithms.vertical.coded_names import named_label
from silvan.algorithms.vertical.columns import encode_labels, rows_blob
from silvan.algorithms.vertical.party_shares import share_of
from silvan.data.schema import Label, Schema
from silvan.errors import FormatError, RefusedError, reject
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.members import OVERALL
from silvan.federation.message import Agreed, Ask, Blob, Derived, Reply
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.forest.model_in_shares import ModelInShares
from silvan.forest.reach import leaf_scores, votes_of_leaves
from silvan.privacy.gate import policy_of
from silvan.privacy.identity.identity import places_of
from silvan.util.cell_text import cell_text
from silvan.util.csv_text import csv_text
from silvan.util.files import write_whole

_BYTES = 1 << 26
"""Larger predictions are sent in several messages, each of which becomes a file."""

_MOST_PARTS = 10_000

# -- messages


class RowScores(msgspec.Struct, frozen=True, tag="scores"):
    """Scores of rows: probabilities of classes, or one number."""

    scores: np.ndarray  # (rows, outputs)
    decided: np.ndarray | None = None  # the class of each row, which may differ from that of the highest score

    def part(self, some: slice) -> "RowScores":
        """Return the scores of some of the rows."""
        return RowScores(self.scores[some], None if self.decided is None else self.decided[some])


class RowLeaves(msgspec.Struct, frozen=True, tag="leaves"):
    """The leaves that rows fall into, where only the label holder knows what they are worth."""

    model: str
    leaves: np.ndarray  # (rows, trees), numbered from left to right
    weights: np.ndarray  # of the trees
    votes: bool = False  # whether trees vote for a class
    threshold: float | None = None  # a score of at least this means the positive class of two
    positive: int = 1

    def part(self, some: slice) -> "RowLeaves":
        """Return the leaves of some of the rows."""
        return msgspec.structs.replace(self, leaves=self.leaves[some])


class ScoreMetrics(Reply, frozen=True, kw_only=True):
    """Main metrics, in the order of ``metrics.main_metrics``; in regression, moments."""

    metrics: np.ndarray
    detail: Detail | None = None


class EvaluateScores(Ask[ScoreMetrics], frozen=True, kw_only=True):
    """How well scores fit the labels of test rows."""

    once: ClassVar[bool] = True  # scores that differ for one row would reveal its label

    rows: Derived[Blob]
    label: Agreed[Label]
    found: Derived[RowScores | RowLeaves]


class PredictionsKept(Reply, frozen=True, kw_only=True):
    """The number of predictions written by the party; they stay with it."""

    rows: int


class KeepPredictions(Ask[PredictionsKept], frozen=True, kw_only=True):
    """Write predictions with the IDs of rows, in the party's folder."""

    model: Derived[str]
    rows: Derived[Blob]
    label: Agreed[Label]
    part: Derived[int]
    found: Derived[RowScores | RowLeaves]


# -- at the label holder


@answers(EvaluateScores)
def evaluate_scores(site: Site, request: EvaluateScores) -> ScoreMetrics:
    """Compare scores with labels, if the party's policy allows metrics of so few rows."""
    party, policy, n_classes = party_of(site), policy_of(site), len(request.label.classes or ())
    count_models(site, {digest(wire.encode(request))})
    label = named_label(party, request.label)
    y, positive = encode_labels(party, label, request.rows), label.positive_code
    answer, labels = in_groups(answer_of(party, request.found, len(y), n_classes), y, n_classes, policy.score_groups)
    if not policy.allows_metrics(len(y)):
        raise RefusedError("the rows held out for evaluation are fewer than the party's policy lets metrics leave for")
    if hides_one_class(policy, labels, n_classes):
        return ScoreMetrics(metrics=np.full(len(metrics.main_metrics(n_classes)), np.nan))
    if n_classes:
        found = metrics.classification(answer.scores, labels, answer.decided, positive)
        values = np.array(list(found.values()), np.float64)
    else:
        values = metrics.moments(answer.scores[:, 0], labels)
    if policy.score_groups > 1:
        values = rounded(values[None], bool(n_classes))[0]
    detail = detail_of(*answer, labels, n_classes, Floors.of(policy), positive=positive)
    return ScoreMetrics(metrics=values, detail=detail)


@answers(KeepPredictions)
def write_predictions(site: Site, request: KeepPredictions) -> PredictionsKept:
    """Write IDs with predictions to the party's folder, in the order of its table."""
    party = party_of(site)
    if party.predictions is None:
        raise RefusedError("the party takes no predictions in this study")
    party.check_model(request.model)
    reject(not 0 <= request.part < _MOST_PARTS, "there is no such part")
    label, places = named_label(party, request.label), places_of(party, request.rows)
    if (places < 0).any():
        raise RefusedError("the party lacks some of the rows")
    scores, decided = answer_of(party, request.found, len(places), len(label.classes or ()))
    order = np.argsort(places)
    ids = party.frame[party.id_column].to_list()
    head, cells = _columns(label, scores[order], decided[order])
    table = [[party.id_column, *head], *([ids[place], *row] for place, row in zip(places[order], cells, strict=True))]
    path: Path = party.predictions
    if request.part:
        path = path.with_name(f"{path.stem}-{request.part + 1}{path.suffix}")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, csv_text(table).encode())
    path.chmod(0o600)
    return PredictionsKept(rows=len(places))


def answer_of(party: Party, found: RowScores | RowLeaves, n: int, n_classes: int) -> Answer:
    """Return the scores of a number of rows and the class of each; raise ``FormatError`` for impossible scores."""
    if isinstance(found, RowLeaves):
        found = _look_up(party, found)
    scores, width = found.scores, max(n_classes, 1)
    check_arrays("the scores do not match the rows", (scores, (n, width), np.float64))
    if not np.isfinite(scores).all() or (n_classes and ((scores < 0) | (scores > 1)).any()):
        raise FormatError("the scores are not possible")
    decided = scores.argmax(axis=1) if found.decided is None else found.decided
    check_arrays("the decisions do not match the rows", (decided, (n,), np.int64))
    reject(((decided < 0) | (decided >= width)).any(), "the decisions do not match the rows")
    return Answer(scores, decided)


def _look_up(party: Party, found: RowLeaves) -> RowScores:
    """Score rows with the leaf values that only the label holder has."""
    share, leaves, weights = share_of(party, found.model), found.leaves, found.weights
    if not len(share.value):
        raise RefusedError("the party does not have the leaf values")
    check_arrays(
        "the leaves do not match the trees",
        (leaves, (*leaves.shape[:1], weights.size), np.int64),
        (weights, (weights.size,), np.float64),
    )
    reject(leaves.min(initial=0) < 0 or leaves.max(initial=0) >= share.n_leaves, "there is no such leaf")
    reject(not np.isin(weights, (0.0, 1.0)).all() or not weights.any(), "the trees have other weights")
    return scores_of_leaves(share.value, found)


def scores_of_leaves(value: np.ndarray, found: RowLeaves) -> RowScores:
    """Average the leaf values of rows; choose a class by the threshold if given, else by votes if requested.

    ``value`` is what each leaf is worth, from left to right.
    """
    scores = leaf_scores(found.leaves, value, found.weights)
    if found.threshold is not None and scores.shape[1] == 2:
        reject(found.positive not in (0, 1), "there is no such class")
        return RowScores(scores, metrics.decided_at(found.threshold, scores, found.positive))
    if not found.votes:
        return RowScores(scores)
    return RowScores(scores, leaf_scores(found.leaves, votes_of_leaves(value), found.weights).argmax(axis=1))


def _columns(label: Label, scores: np.ndarray, decided: np.ndarray) -> tuple[list[str], list[list[Any]]]:
    """Return the header and the cells of predictions: numbers, or classes and the probability of each."""
    if label.classes is None:
        return ["prediction"], [[repr(float(value))] for value in scores[:, 0]]
    names = [cell_text(name) for name in label.classes]
    cells = [[names[code], *(f"{p:.6g}" for p in row)] for code, row in zip(decided, scores, strict=True)]
    return ["prediction", *(f"probability_{name}" for name in names)], cells


# -- at the coordinator


def ask_label_holder(
    federation: Federation, label_holder: str, schema: Schema, digests: np.ndarray, found: RowScores | RowLeaves
) -> Row:
    """Ask the label holder for metrics and details of scores; the round is not counted as training."""
    width = len(metrics.main_metrics(schema.n_classes)) if schema.n_classes else 4

    def check(site: str, reply: ScoreMetrics) -> None:
        check_arrays("its metrics are not the ones requested", (reply.metrics, (width,), np.float64))
        reject(np.isinf(reply.metrics).any(), "its metrics are not the ones requested")
        if reply.detail is not None:
            check_detail(reply.detail, schema.n_classes, len(digests))

    request = EvaluateScores(rows=rows_blob(federation, digests), label=schema.label, found=found)
    with federation.counted_apart():
        reply: ScoreMetrics = federation.ask(request, to=[label_holder], check=check)[label_holder]
    detail = nothing() if reply.detail is None else reply.detail
    by_name = metrics_by_name(schema.n_classes, reply.metrics)
    return Row(OVERALL, FEDERATED, len(digests), by_name).with_detail(detail, schema)


def keep_predictions(
    federation: Federation, model: ModelInShares, digests: np.ndarray, found: RowScores | RowLeaves
) -> int:
    """Send the label holder the result for each row, to keep; return the number of rows."""
    holder, n = model.label_holder, len(digests)
    step = max(1, _BYTES * n // max(1, (found.scores if isinstance(found, RowScores) else found.leaves).nbytes))

    def keep_part(part: int) -> int:
        some = slice(part * step, (part + 1) * step)
        rows = digests[some]

        def check(site: str, reply: PredictionsKept) -> None:
            reject(reply.rows != len(rows), "it kept other predictions than it received")

        request = KeepPredictions(
            model=model.model,
            rows=rows_blob(federation, rows),
            label=model.schema.label,
            part=part,
            found=found.part(some),
        )
        reply: PredictionsKept = federation.ask(request, to=[holder], check=check)[holder]
        return reply.rows

    with federation.one_round():
        return sum(keep_part(part) for part in range((n + step - 1) // step))
