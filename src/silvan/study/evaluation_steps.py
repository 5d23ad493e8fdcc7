"""What a run records of its evaluation: metrics, counts and curves, on test rows or on many splits."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from sklearn.base import clone

from silvan import metrics
from silvan.algorithms.evaluation.evaluation import FEDERATED, LOCAL, Evaluation, Row
from silvan.algorithms.evaluation.repeats import over_splits
from silvan.errors import InputError
from silvan.federation.federation import OVERALL, Federation
from silvan.learners.base import Learner
from silvan.learners.compare import evaluate_splits, mark_best
from silvan.learners.federated_estimator import FederatedEstimator
from silvan.study.listener import Listener
from silvan.study.run_folder import Counts, Curve, MetricsRow, Record
from silvan.study.steps import note_traffic
from silvan.study.study import Study
from silvan.util.readable import count_of

_MOST_CLASSES = 12  # curves are kept for so many classes


def has_test_rows(record: Record, federation: Federation, study: Study) -> bool:
    """Return whether there are rows to evaluate the model on, as far as it is known."""
    if study.repeats or not _knows_test_rows(federation, study):
        return bool(study.test or study.repeats)
    return any(site.test_rows for site in record.sites)


def evaluate_model(
    record: Record, federation: Federation, learner: FederatedEstimator, study: Study, listener: Listener
) -> None:
    """Record how the model does at the sites, and by subgroups, beside what sites have alone."""
    if study.repeats:
        found = _evaluate_on_splits(record, federation, learner, study, listener)
    else:
        epsilon = study.evaluation.epsilon
        with listener.step("Judging at the sites") as step:
            step.follow(federation, 1, apart=True)
            candidates = learner.candidates(federation) if epsilon is None else None
            found = learner.evaluation(federation, candidates=candidates, by=study.evaluation.by, epsilon=epsilon)
        if not _knows_test_rows(federation, study):
            rows = {row.site: row.rows for row in found.rows if row.site != OVERALL}
            record.sites = [msgspec.structs.replace(site, test_rows=rows.get(site.name, 0)) for site in record.sites]
    record.warnings += found.warnings
    record.pooled_hash = found.pooled_hash
    record.evaluation = [figures(row) for row in found.rows]
    record.subgroups = [figures(row) for row in found.subgroups]
    record.counts = [counts_of(row, record.classes) for row in found.rows if row.epsilon is None]
    record.curves = list(curves(found.models, found.curves, record.classes or []))
    note_traffic(record, federation)


def _evaluate_on_splits(
    record: Record, federation: Federation, learner: FederatedEstimator, study: Study, listener: Listener
) -> Evaluation:
    """Evaluate the learner on many splits, each row as often as the study says.

    A site should use the one with the better mean metric: the learner's model, or what it has alone.
    """
    if not isinstance(learner, Learner):
        raise InputError("repeats is for learners of rows at sites; leave it out")
    folds, splits, scores, names, pooled = study.folds, [], None, tuple[str, ...](), None
    with listener.step(f"Judging on {count_of(len(folds), 'split')}") as step:
        listener.stage(f"judging, split 1 of {len(folds)}")
        for number, split in enumerate(evaluate_splits(federation, {FEDERATED: clone(learner)}, folds), 1):
            splits.append(split.rows)
            names = tuple(dict.fromkeys(row.model for row in split.rows))
            if split.scores is not None:
                scores = split.scores if scores is None else scores + split.scores
            step.detail = f"split {number} of {len(folds)}"
            step.advance(number, len(folds))
            if number < len(folds):
                listener.stage(f"judging, split {number + 1} of {len(folds)}")
    if study.spec.lossless and federation.local_sites:
        with listener.step("Growing the pooled forest to compare with", expected=record.seconds):
            pooled = learner.pooled_model(federation).hash
    record.repeats, record.folds = study.repeats or 0, folds[0].of
    rows = mark_best(over_splits(splits, folds), [FEDERATED, LOCAL])
    return Evaluation(rows, models=names, curves=scores, pooled_hash=pooled)


def _knows_test_rows(federation: Federation, study: Study) -> bool:
    """Return whether the numbers of test rows are known before the evaluation: not where only sites know them."""
    return federation.columns is not None or (bool(federation.local_sites) and not study.private)


def figures(row: Row) -> MetricsRow:
    """Return a line of the evaluation; NaN, which JSON does not have, becomes None."""
    known, more = ({k: None if np.isnan(v) else float(v) for k, v in of.items()} for of in (row.metrics, row.more))
    return MetricsRow(
        row.site,
        row.model,
        row.rows,
        known,
        *(row.gain, row.low, row.high, row.use, row.same_as, row.between, row.epsilon),
        more,
        row.note,
        row.group,
    )


def counts_of(row: Row, classes: list[str] | None) -> Counts:
    """Return the counts behind a line of the evaluation."""
    detail = row.detail
    if detail is None:
        return Counts(row.site, row.model)
    names = [""] if classes is None else classes[1:] if len(classes) == 2 else classes
    groups = {name: [(a, b, c) for a, b, c in g.tolist()] for name, g in zip(names, detail.groups, strict=False)}
    tables = detail.confusion.tolist(), detail.at_threshold.tolist()
    return Counts(row.site, row.model, *tables, groups, detail.net_benefit())


def curves(models: Sequence[str], scores: np.ndarray | None, classes: list[str]) -> Iterator[Curve]:
    """Yield the ROC curves of models, from counts of rows by score, for a class against the rest."""
    if scores is None:
        return
    of = classes[1:] if len(classes) == 2 else classes[:_MOST_CLASSES]
    for model, tables in zip(models, scores, strict=True):
        for name, (negatives, positives) in zip(of, tables, strict=False):
            if negatives.sum() and positives.sum():
                yield Curve(model, name, corners(*metrics.roc_curve(negatives, positives)))


def corners(x: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
    """Return the points of a curve without those on the line between their neighbours."""
    points: list[tuple[float, float]] = []
    for point in zip(x.tolist(), y.tolist(), strict=True):
        if points and points[-1] == point:
            continue
        if len(points) > 1:
            (ax, ay), (bx, by) = points[-2:]
            if abs((bx - ax) * (point[1] - ay) - (by - ay) * (point[0] - ax)) < 1e-12:
                points.pop()
        points.append(point)
    return [(round(px, 5), round(py, 5)) for px, py in points]
