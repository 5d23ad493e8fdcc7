"""The steps of a run and what they record: agreement, announcement, model, evaluation, explanation.

The caller writes the record after each step, before the next one starts.
"""

import inspect
import platform
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version

import msgspec
import numpy as np
from sklearn.base import clone

from silvan import metrics
from silvan.algorithms.describe_columns import describe_plan, describe_tables
from silvan.algorithms.evaluation.evaluation import FEDERATED, Evaluation, Row, advised
from silvan.algorithms.evaluation.repeats import folds_of, over_sites, over_splits
from silvan.algorithms.evaluation.score_groups import places_of
from silvan.data.readers.table_file import Table
from silvan.errors import InputError
from silvan.federate.alignment import Alignment, agree_on_columns, asks_to_align
from silvan.federation.agree import agree_on
from silvan.federation.agreement import Agreement
from silvan.federation.describe import CountRows
from silvan.federation.federation import Federation
from silvan.federation.handlers import HANDLERS
from silvan.federation.members import OVERALL
from silvan.learners.base import Learner
from silvan.learners.compare import evaluate_splits
from silvan.learners.federated_estimator import FederatedEstimator
from silvan.learners.result import Result
from silvan.privacy.announce import RequestPlan, announce
from silvan.privacy.close_study import check_sums, close_study
from silvan.privacy.held_columns import share_columns
from silvan.privacy.identity.shared_key import DealKey, TakeKey
from silvan.study import column_steps
from silvan.study.listener import Listener
from silvan.study.run_folder import (
    Counts,
    Curve,
    Dependence,
    Difference,
    Kind,
    MetricsRow,
    Record,
    Run,
    SiteRows,
    Traffic,
)
from silvan.study.study import Study
from silvan.study.table_check import ONE_SITE
from silvan.util.readable import count_of

_MOST_COLUMNS = 200  # the record keeps what sites disclosed about at most this many columns


def versions() -> dict[str, str]:
    """Return the versions of the packages, of Python and of the system."""
    packages = {name: version(name) for name in ("silvan", "numpy", "numba", "polars")}
    return {**packages, "python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}


def start_record(study: Study, fingerprint: str, file: str = "study.toml") -> Record:
    """Return the record of a study before any request; ``file`` is its path from the run folder."""
    return Record(
        name=study.name,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        study=study.settings(),
        readings={party: dict(table.options) for party, table in _files_of_parties(study)},
        study_file=file,
        fingerprint=fingerprint,
    )


def _files_of_parties(study: Study) -> list[tuple[str, Table]]:
    """Return the parties whose files have format options in the study."""
    own = study.tables if study.by_columns else {}
    return [(party, table) for party, table in own.items() if isinstance(table, Table)]


def agree(federation: Federation, study: Study) -> Agreement:
    """Let sites or parties on other machines agree."""
    if study.by_columns:
        how = Alignment(study.label, study.match, test=study.test, task=study.task, schema=study.schema)
        return agree_on_columns(federation, how)
    # with a given schema, sites may even withhold their numbers of rows
    alone = study.private or len(federation.sites) == 1  # noise protects columns of single sites
    columns = None if alone else partial(share_columns, federation)
    known = study.label, study.task, study.schema
    return agree_on(
        federation,
        *known,
        count_rows=False,
        kinds=study.kinds,
        positive=study.positive,
        grouped=study.group is not None,
        absent=study.absent,
        event=study.event,
        share_columns=columns,
    )


def note_agreement(record: Record, federation: Federation, study: Study) -> None:
    """Record the schema, the sites or parties with their rows, and how their tables differ."""
    schema = federation.schema
    record.schema_hash, record.features, record.label = schema.hash, len(schema.features), schema.label.name
    record.classes = None if schema.label.classes is None else [str(c) for c in schema.label.classes]
    record.positive = None if schema.label.positive_class is None else str(schema.label.positive_class)
    record.sums = federation.sums.name
    record.differences = [Difference(*note) for note in federation.differences.notes]
    record.warnings = list(federation.differences.warnings)
    if len(federation.sites) == 1 and federation.columns is None:
        record.warnings.insert(0, ONE_SITE)
    record.agreement_rounds = federation.agreement_rounds
    # reports are passed on: for a private study they contain noisy results only
    record.columns = [] if study.private else federation.agreement.described[:_MOST_COLUMNS]
    if federation.columns is not None:
        record.by, record.sites = "columns", column_steps.parties(federation)
    elif study.private or not federation.local_sites:
        record.sites = [SiteRows(name, federation.rows.get(name, 0)) for name in federation.sites]
    else:
        record.sites = [_site(federation, name) for name in federation.sites]


def _site(federation: Federation, name: str) -> SiteRows:
    """Count the rows and positives of a site in this process, where its owner runs the command."""
    site, schema = federation.site(name), federation.schema
    parts = [site.part(schema), site.part(schema, test=True)]
    y = np.concatenate([part.y for part in parts])
    positives = float(np.mean(y == schema.label.positive_code)) if schema.n_classes == 2 else None
    return SiteRows(name, len(parts[0]), len(parts[1]), positives)


def announce_study(
    study: Study, federation: Federation, learner: FederatedEstimator, *, sampling: bool = False
) -> None:
    """Announce all requests of the study: raise an error if a site would refuse, before anything is spent."""
    unknown = [name for name in study.evaluation.dependence if name not in federation.schema.names]
    if unknown:
        raise InputError.about("dependence", f"names {unknown[0]!r}, which is not a feature")
    if study.evaluation.by:
        places_of(federation.schema, study.evaluation.by)
    with learner.held_to_text(federation):
        announce(federation, request_plan_of(study, federation, learner, sampling=sampling))


def request_plan_of(
    study: Study, federation: Federation, learner: FederatedEstimator, *, sampling: bool = False
) -> RequestPlan:
    """Return all requests of the study: to sites once there is a schema, to parties from the first message on.

    With ``sampling``, sites agree on a sampling key.
    """
    request_plan = describe_plan() if study.describe else RequestPlan((), tasks=0)
    if study.describe == "only":
        return request_plan
    request_plan += learner.request_plan(federation)
    if study.by_columns:
        request_plan += RequestPlan(asks_to_align(study.match), tasks=0)
    if study.on_splits and not federation.local_sites:
        request_plan += RequestPlan((CountRows,), tasks=0)
    if study.evaluated:
        request_plan += learner.evaluation_plan(federation, study.evaluation.by, study.evaluation.epsilon)
        if study.evaluation.importance or study.evaluation.dependence:
            request_plan += learner.explanation_plan(study.evaluation.importance, study.evaluation.dependence)
    if sampling:
        request_plan += RequestPlan((DealKey, TakeKey), tasks=0)
    return request_plan


def describe_columns(record: Record, federation: Federation, study: Study, listener: Listener) -> None:
    """Record Table 1, if the study asks for it."""
    if study.describe:
        with listener.step("Describing columns"), federation.working_on("describing"):
            record.table_one = describe_tables(federation, study.max_bins)
        note_traffic(record, federation)


def note_training(record: Record, run: Run, federation: Federation, result: Result, seconds: float) -> None:
    """Write the model; record its rounds, bytes, seconds, importances, weights and the sites' choices."""
    record.models = run.save_models(result)
    record.at_sites, record.threshold, record.importances = result.at_sites, result.threshold, result.importances
    record.rounds, record.bytes, record.seconds = result.rounds, result.bytes, round(seconds, 3)
    record.weights, record.shared_forest, record.choices = result.weights, result.shared_forest, dict(result.choices)
    record.clusters, record.distances = dict(result.clusters), dict(result.distances)
    record.status = "trained"
    note_traffic(record, federation)


def explain_model(
    record: Record, federation: Federation, learner: FederatedEstimator, study: Study, listener: Listener
) -> None:
    """Record importance and partial dependence of columns, if the study asks for it."""
    if not (study.evaluation.importance or study.evaluation.dependence):
        return
    names = federation.schema.label.scored or ["prediction"]
    try:
        with listener.step("Measuring column effects"):
            found = learner.explained(
                federation, study.evaluation.importance, study.evaluation.dependence, study.evaluation.by
            )
    except InputError as error:  # too few rows, or no forest for all sites: the model exists all the same
        record.warnings.append(str(error))
        return
    record.permutation = found.permutation
    record.dependence = [
        Dependence(column, values, dict(zip(names, np.round(means.T, 6).tolist(), strict=True)))
        for column, (values, means) in found.dependence.items()
    ]
    note_traffic(record, federation)


def close(record: Record, federation: Federation, study: Study) -> None:
    """Close the study at sites that sign, check its sums against their statements, and record the verification."""
    if not federation.verifiable:
        return
    found = check_sums(federation, close_study(federation))
    if found.wrong:
        record.warnings += found.wrong
        record.verification = "sums are not verified: " + found.wrong[0]
    else:
        record.verification = "sums verified, decisions not verified"
        if found.unknown:
            record.verification += f"; {count_of(len(found.unknown), 'sum')} not verified: {found.unknown[0]}"
    if study.auditor is not None:
        record.verification += f"; {study.auditor} verifies both"
    note_traffic(record, federation)


def note_traffic(record: Record, federation: Federation) -> None:
    """Record the bytes and a description of every kind of message so far."""
    kinds = dict.fromkeys(kind for _, _, kind in federation.traffic)
    record.traffic = [
        Traffic(site, kind, federation.traffic[site, "sent", kind], federation.traffic[site, "received", kind])
        for site in federation.sites
        for kind in kinds
    ]
    record.kinds = describe_kinds(kinds)


def describe_kinds(names: Iterable[str]) -> list[Kind]:
    """Describe each kind of request and its reply; unknown names are left out."""
    requests = {name: HANDLERS[name][0] for name in names if name in HANDLERS}
    return [
        Kind(name, _first_paragraph(request), _first_paragraph(request.reply), request.verb)
        for name, request in requests.items()
    ]


def _first_paragraph(message: type) -> str:
    """Return the first paragraph of a message's docstring, in one line."""
    return " ".join(inspect.cleandoc(message.__doc__ or "").split("\n\n")[0].replace("``", "").split())


# -- evaluation
_MOST_CLASSES = 12  # maximum number of classes with curves


def has_test_rows(record: Record, federation: Federation, study: Study) -> bool:
    """Return whether there are test rows, as far as this is known."""
    if study.on_splits or not _knows_test_rows(federation, study):
        return study.evaluated
    return any(site.test_rows for site in record.sites)


def evaluate_model(
    record: Record, federation: Federation, learner: FederatedEstimator, study: Study, listener: Listener
) -> None:
    """Record the metrics of the model and of local models at the sites, and by subgroups."""
    if study.on_splits:
        found = _evaluate_on_splits(record, federation, learner, study, listener)
    else:
        epsilon = study.evaluation.epsilon
        with listener.step("Evaluating at the sites") as step:
            step.follow(federation, 1, apart=True)
            candidates = learner.candidates(federation) if epsilon is None else None
            found = learner.evaluation(federation, candidates=candidates, by=study.evaluation.by, epsilon=epsilon)
        if not _knows_test_rows(federation, study):
            rows = {row.site: row.rows for row in found.rows if row.site != OVERALL}
            record.sites = [msgspec.structs.replace(site, test_rows=rows.get(site.name, 0)) for site in record.sites]
    record.warnings += found.warnings
    record.pooled_hash = found.pooled_hash
    record.evaluation = [metrics_row(row) for row in found.rows]
    record.subgroups = [metrics_row(row) for row in found.subgroups]
    scored = federation.schema.label.scored
    record.counts = [counts_of(row, scored) for row in found.rows if row.epsilon is None]
    record.curves = list(curves(found.models, found.curves, scored))
    note_traffic(record, federation)


def _evaluate_on_splits(
    record: Record, federation: Federation, learner: FederatedEstimator, study: Study, listener: Listener
) -> Evaluation:
    """Evaluate the learner on the study's splits."""
    if not isinstance(learner, Learner):
        raise InputError("evaluation on splits is for learners of rows at sites; leave repeats and split out")
    splits, found, scores, names, pooled = study.splits(federation.active), [], None, tuple[str, ...](), None
    with listener.step(f"Evaluating on {count_of(len(splits), 'split')}") as step:
        listener.stage(f"evaluating, split 1 of {len(splits)}")
        for number, split in enumerate(evaluate_splits(federation, {FEDERATED: clone(learner)}, splits), 1):
            found.append(split.rows)
            names = tuple(dict.fromkeys(row.model for row in split.rows))
            if split.scores is not None:
                scores = split.scores if scores is None else scores + split.scores
            step.detail = f"split {number} of {len(splits)}"
            step.advance(number, len(splits))
            if number < len(splits):
                listener.stage(f"evaluating, split {number + 1} of {len(splits)}")
    if study.spec.lossless and federation.local_sites:
        with listener.step("Growing the pooled forest to compare with", expected=record.seconds):
            pooled = learner.pooled_model(federation).hash
    if study.split == "sites":
        record.folds = len(splits)
        return Evaluation(over_sites(found), models=names, pooled_hash=pooled)
    folds = folds_of(study.test, study.repeats)
    record.repeats, record.folds = study.repeats or 0, folds[0].of
    rows = advised(over_splits(found, folds))
    return Evaluation(rows, models=names, curves=scores, pooled_hash=pooled)


def _knows_test_rows(federation: Federation, study: Study) -> bool:
    """Return whether the numbers of test rows are known before the evaluation; sometimes only sites know them."""
    return federation.columns is not None or (bool(federation.local_sites) and not study.private)


def metrics_row(row: Row) -> MetricsRow:
    """Return a line of the evaluation; NaN, which JSON lacks, becomes None."""
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
        None if row.positive is None else str(row.positive),
    )


def counts_of(row: Row, scored: list[str]) -> Counts:
    """Return the counts behind a line of the evaluation; ``scored`` are the classes with scores, if any."""
    detail = row.detail
    if detail is None:
        return Counts(row.site, row.model)
    groups = {
        name: [(a, b, c) for a, b, c in g.tolist()] for name, g in zip(scored or [""], detail.groups, strict=False)
    }
    tables = detail.confusion.tolist(), detail.at_threshold.tolist()
    return Counts(row.site, row.model, *tables, groups, detail.net_benefit())


def curves(models: Sequence[str], scores: np.ndarray | None, scored: list[str]) -> Iterator[Curve]:
    """Yield one-against-rest ROC curves of models, from counts of rows by score."""
    if scores is None:
        return
    for model, tables in zip(models, scores, strict=True):
        for name, (negatives, positives) in zip(scored[:_MOST_CLASSES], tables, strict=False):
            if negatives.sum() and positives.sum():
                yield Curve(model, name, corners(*metrics.roc_curve(negatives, positives)))


def corners(x: np.ndarray, y: np.ndarray) -> list[tuple[float, float]]:
    """Return the points of a curve without those on a line between their neighbours."""
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
