"""The steps of a run, each of which adds its results to the record: agree, train, judge.

The caller writes the record after each step, before the next one starts.
"""

import platform
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import msgspec
import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.evaluate import evaluate
from silvan.algorithms.evaluation.figures import Row, never_decided
from silvan.algorithms.evaluation.subgroups import places_of
from silvan.errors import InputError
from silvan.federate.alignment import asks_to_align
from silvan.federation.agreement.describe import CountRows
from silvan.federation.federation import OVERALL, Federation
from silvan.forest.forest import Forest
from silvan.privacy.gate.announce import Questions, announce
from silvan.privacy.sampling_key import OfferSampling, TakeSampling
from silvan.study import column_steps
from silvan.study.message_kinds import describe_kinds
from silvan.study.plan import Study
from silvan.study.progress_bars import Progress
from silvan.study.remote_study import RemoteStudy
from silvan.study.run_folder import (
    Counts,
    Curve,
    Dependence,
    Difference,
    Figures,
    Record,
    Run,
    Site,
    SiteTrees,
    Traffic,
)

_MOST_CLASSES = 12
"""Curves are kept for so many classes."""

_MOST_COLUMNS = 200
"""What sites told is kept of so many columns."""


def versions() -> dict[str, str]:
    """Return the versions of the packages, of Python and of the system."""
    packages = {name: version(name) for name in ("silvan", "numpy", "numba", "polars")}
    return {
        **packages,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }


def note_agreement(record: Record, federation: Federation) -> None:
    """Record the schema, the sites or parties with their rows, and how their tables differ."""
    _note_schema(record, federation)
    if federation.columns is not None:
        record.by, record.sites = "columns", column_steps.parties(federation)
    elif is_private(record):
        # a report is passed on: what the sites themselves do not tell with noise is not in it
        record.sites = [Site(name, federation.rows.get(name, 0)) for name in federation.sites]
    else:
        record.sites = [_site(federation, name) for name in federation.sites]


def is_private(record: Record) -> bool:
    """Return whether a study's forest is made of noisy counts."""
    return record.study.get("learner", {}).get("epsilon") is not None


def start_record(study: RemoteStudy) -> Record:
    """Return the record of a study between machines before anything was asked."""
    return Record(
        name=study.study.name,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        study=study.study.settings(),
        study_file="study.toml",
        fingerprint=study.id,
    )


def start_remote_record(study: RemoteStudy, federation: Federation) -> Record:
    """Return the record of a study whose sites are other machines, after they agreed on a schema.

    It has the same as that of ``silvan fit``, but for what only the sites know.
    """
    record = start_record(study)
    if federation.columns is not None:
        note_agreement(record, federation)
        return record
    _note_schema(record, federation)
    record.sites = [Site(name, federation.rows.get(name, 0)) for name in federation.sites]
    return record


def _note_schema(record: Record, federation: Federation) -> None:
    schema = federation.schema
    record.schema_hash, record.features, record.label = schema.hash, len(schema.features), schema.label.name
    record.classes = None if schema.label.classes is None else [str(c) for c in schema.label.classes]
    record.sums = federation.sums.name
    record.differences = [Difference(*note) for note in federation.differences.notes]
    record.warnings = list(federation.differences.warnings)
    record.agreement_rounds = federation.agreement_rounds
    record.columns = [] if is_private(record) else federation.agreement.described[:_MOST_COLUMNS]


def _site(federation: Federation, name: str) -> Site:
    """Count the rows and positives of a site in this process, whose owner therefore runs this command."""
    site, schema = federation.site(name), federation.schema
    parts = [site.part(schema), site.part(schema, test=True)]
    y = np.concatenate([part.y for part in parts])
    positives = float(np.mean(y == 1)) if schema.n_classes == 2 else None
    return Site(name, len(parts[0]), len(parts[1]), positives)


def check_with_sites(study: Study, federation: Federation, model: Any, *, sampling: bool = False) -> None:
    """Announce all that the study will ask: raise an error if a site would refuse, before anything is spent."""
    unknown = [name for name in study.dependence if name not in federation.schema.names]
    if unknown:
        raise InputError(f"dependence names {unknown[0]!r}, which is no column to learn from")
    if study.by:
        places_of(federation.schema, study.by)
    announce(federation, questions_of(study, federation, model, sampling=sampling))


def questions_of(study: Study, federation: Federation, model: Any, *, sampling: bool = False) -> Questions:
    """Return all that the study will ask: of sites once there is a schema, of parties from the first message on.

    With ``sampling`` sites agree on a key of draws.
    """
    questions: Questions = model.questions(federation)
    if study.by_columns:
        questions += Questions(asks_to_align(study.match), tasks=0)
    if study.repeats and not federation.local_sites:
        questions += Questions((CountRows,), tasks=0)
    if study.test > 0 or study.repeats:
        noisy = {} if study.evaluation_epsilon is None else {"epsilon": study.evaluation_epsilon}
        judging = model.questions_of_judging(federation, **noisy)
        more = study.models_judged + bool(federation.local_sites) - judging.models if study.by else 0
        questions += judging + Questions((), tasks=0, models=max(more, 0))
        if study.importance or study.dependence:
            questions += model.questions_of_explaining(study.importance, study.dependence)
    if sampling:
        questions += Questions((OfferSampling, TakeSampling), tasks=0)
    return questions


def train(federation: Federation, model: Any, progress: Progress, text: str = "Growing trees") -> float:
    """Fit the learner and return the seconds that it took."""
    start = time.monotonic()
    with progress.step(text) as step:
        step.follow(federation, model.expected_rounds)
        model.fit(federation)
    return time.monotonic() - start


def note_training(record: Record, run: Run, federation: Federation, model: Any, seconds: float) -> None:
    """Write the model; record its rounds, bytes, seconds and importances."""
    in_shares = federation.columns is not None
    forest: Forest | None = None if in_shares and not column_steps.is_whole(model) else getattr(model, "forest_", None)
    record.models = column_steps.save(run, model) if in_shares else run.save_models(forests_to_keep(model))
    record.at_sites = list(getattr(model, "at_sites_", ()))
    record.rounds, record.bytes, record.seconds = model.rounds_, model.bytes_, round(seconds, 3)
    has_gains = forest is not None and forest.gain is not None
    record.importances = forest.importances() if forest is not None and has_gains else None
    record.threshold = getattr(model, "threshold_", None)
    _note_weights(record, model)
    record.status = "trained"
    note_traffic(record, federation)


def _note_weights(record: Record, model: Any) -> None:
    """Record how trees are weighed, what sites chose, and the clusters of sites, of a learner that has them."""
    if hasattr(model, "weights_by_site"):
        record.weights = [SiteTrees(site, **one) for site, one in model.weights_by_site().items()]
    record.choices = dict(getattr(model, "choices_", {}))
    record.shared_forest = getattr(getattr(model, "choices_", None), "shared", "")
    record.clusters, record.distances = getattr(model, "clusters_", None) or {}, getattr(model, "distances_", {})


def forests_to_keep(model: Any) -> dict[str, Forest]:
    """Return the global forest under "", and by name those of sites that should use another."""
    forest: Forest | None = model.forest_
    if forest is None:
        return dict(model.forests_)
    own = {site: one for site, one in model.forests_.items() if one is not forest and one.hash != forest.hash}
    return {"": forest, **own}


def judge(
    record: Record,
    federation: Federation,
    model: Any,
    progress: Progress,
    beside: dict[str, Any] | None = None,
    epsilon: float | None = None,
    by: Sequence[str] = (),
) -> None:
    """Judge the model at the sites, and by subgroups, beside their own forests, the pooled forest, and other learners.

    With ``epsilon`` only the model itself is judged, over all sites, with noise.
    """
    if epsilon is not None:
        with progress.step("Judging at the sites"):
            row = model.judge_with_noise(federation, epsilon)
        record.evaluation, record.status = [figures(row)], "done"
        note_traffic(record, federation)
        return
    if federation.columns is not None:
        rows, record.pooled_hash = column_steps.judge(federation, model, progress, record.seconds)
        record.evaluation, record.status = [figures(row) for row in rows], "done"
        record.counts = [counts_of(row, record.classes) for row in rows]
        note_traffic(record, federation)
        return
    with progress.step("Growing the pooled forest to compare with", expected=record.seconds):
        contenders = list(model.contenders(federation))
    for name, other in (beside or {}).items():
        contenders.insert(1, (name, other.forest_))
    with progress.step("Judging at the sites") as step:
        step.follow(federation, 1, apart=True)
        with federation.working_on(f"judging {type(model).__name__}"):
            draws = model.draws(federation, contenders)
            key, decide = model.feature_key(), model.decide()
            rows, counts, subgroups = evaluate(federation, model.schema_, contenders, key, draws, decide, by)
    record.warnings += never_decided(rows, model.schema_)
    pooled = dict(contenders).get("pooled")
    record.pooled_hash = pooled.hash if isinstance(pooled, Forest) else None
    record.evaluation = [figures(row) for row in rows]
    record.subgroups = [figures(row) for row in subgroups]
    record.counts = [counts_of(row, record.classes) for row in rows]
    names = [name for name, _ in contenders]
    record.curves = [] if counts is None else list(curves(names, counts.scores, record.classes or []))
    record.status = "done"
    note_traffic(record, federation)


def explain_model(record: Record, federation: Federation, model: Any, study: Study, progress: Progress) -> None:
    """Record which columns matter and how predictions depend on some, if the study asks for it."""
    if not (study.importance or study.dependence):
        return
    if model.forest_ is None:
        record.warnings.append("which columns matter is known of a forest for all sites, and there is none here")
        return
    classes = record.classes
    names = ["prediction"] if classes is None else classes[1:] if len(classes) == 2 else classes
    try:
        with progress.step("Asking what columns do"):
            if study.importance:
                record.permutation = model.permutation_importance(federation, by=study.by)
            shown = model.dependence(federation, study.dependence, by=study.by) if study.dependence else {}
    except InputError as error:  # too few rows: the model is there all the same
        record.warnings.append(str(error))
        return
    record.dependence = [
        Dependence(column, values, dict(zip(names, np.round(means.T, 6).tolist(), strict=True)))
        for column, (values, means) in shown.items()
    ]
    note_traffic(record, federation)


def note_test_rows(record: Record) -> None:
    """Record how many rows each site judged by, which is known once it has."""
    if record.by == "columns":
        return  # all parties have the same rows, and these are counted beforehand
    judged = {row.site: row.rows for row in record.evaluation if row.site != OVERALL}
    record.sites = [msgspec.structs.replace(site, test_rows=judged.get(site.name, 0)) for site in record.sites]


def figures(row: Row) -> Figures:
    """Return a line of the evaluation; NaN, which JSON does not have, becomes None."""
    values = {k: None if np.isnan(v) else float(v) for k, v in row.figures.items()}
    gains = row.gain, row.low, row.high, row.use, row.same_as
    more = {name: None if np.isnan(value) else float(value) for name, value in row.more.items()}
    beside: dict[str, Any] = {"between": row.between, "epsilon": row.epsilon, "more": more, "note": row.note}
    beside["group"] = row.group
    return Figures(row.site, row.model, row.rows, values, *gains, **beside)


def counts_of(row: Row, classes: list[str] | None) -> Counts:
    """Return the counts behind a line of the evaluation."""
    detail = row.detail
    if detail is None:
        return Counts(row.site, row.model)
    names = [""] if classes is None else classes[1:] if len(classes) == 2 else classes
    groups = {name: [(a, b, c) for a, b, c in g.tolist()] for name, g in zip(names, detail.groups, strict=False)}
    tables = detail.confusion.tolist(), detail.at_threshold.tolist()
    return Counts(row.site, row.model, *tables, groups, detail.net_benefit())


def curves(models: list[str], scores: np.ndarray, classes: list[str]) -> Iterator[Curve]:
    """Yield the ROC curves of models, from counts of rows by score, for a class against the rest."""
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


def note_traffic(record: Record, federation: Federation) -> None:
    """Record the bytes of every kind of message so far, and a description of each kind."""
    kinds = dict.fromkeys(kind for _, _, kind in federation.traffic)
    record.traffic = [
        Traffic(site, kind, federation.traffic[site, "sent", kind], federation.traffic[site, "received", kind])
        for site in federation.sites
        for kind in kinds
    ]
    record.kinds = describe_kinds(kinds)
