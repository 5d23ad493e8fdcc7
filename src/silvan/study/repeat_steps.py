"""The step that judges a study on many splits, each row as often as the study says."""

from typing import Any

from sklearn.base import clone

from silvan.algorithms.evaluation.figures import FEDERATED, LOCAL
from silvan.algorithms.evaluation.repeats import over_splits
from silvan.federation.federation import Federation
from silvan.learners.compare import judge_splits, mark_best
from silvan.study.plan import Study
from silvan.study.progress_bars import Progress
from silvan.study.run_folder import Record
from silvan.study.steps import counts_of, curves, figures, note_traffic
from silvan.util.readable import count_of

LOSSLESS = ("HistogramForest",)
"""Learners whose forest should be that of pooled rows, which is grown to see whether it is."""


def judge_repeatedly(record: Record, federation: Federation, model: Any, plan: Study, progress: Progress) -> None:
    """Judge how the learner does at the sites on many splits, beside what sites have alone.

    A site should use the one with the better mean figure: the learner's model, or what it has alone.
    """
    folds = plan.folds
    splits, scores, names = [], None, list[str]()
    with progress.step(f"Judging on {count_of(len(folds), 'split')}") as step:
        for judged in judge_splits(federation, {FEDERATED: clone(model)}, folds):
            splits.append(judged.rows)
            names = list(dict.fromkeys(row.model for row in judged.rows))
            if judged.scores is not None:
                scores = judged.scores if scores is None else scores + judged.scores
            step.detail = f"split {len(splits)} of {len(folds)}"
            step.advance(len(splits), len(folds))
    if type(model).__name__ in LOSSLESS and federation.local_sites:
        with progress.step("Growing the pooled forest to compare with", expected=record.seconds):
            record.pooled_hash = model.pooled_model(federation).hash
    judged_rows = mark_best(over_splits(splits, folds), [FEDERATED, LOCAL])
    record.evaluation = [figures(row) for row in judged_rows]
    record.counts = [counts_of(row, record.classes) for row in judged_rows]
    record.curves = [] if scores is None else list(curves(names, scores, record.classes or []))
    record.repeats, record.folds, record.status = plan.repeats, folds[0].of, "done"
    note_traffic(record, federation)
