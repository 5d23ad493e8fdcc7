"""What a run records at its steps: what sites agreed on, what was announced to them, the model, and what columns do.

The caller writes the record after each step, before the next one starts.
"""

import inspect
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version

import numpy as np

from silvan.algorithms.evaluation.score_groups import places_of
from silvan.errors import InputError
from silvan.federate.alignment import Alignment, agree_on_columns, asks_to_align
from silvan.federation.agree import agree_on
from silvan.federation.agreement import Agreement
from silvan.federation.describe import CountRows
from silvan.federation.federation import Federation
from silvan.federation.handlers import HANDLERS
from silvan.learners.federated_estimator import FederatedEstimator
from silvan.learners.result import Result
from silvan.privacy.announce import RequestPlan, announce
from silvan.privacy.close_study import check_own_sums, close_study
from silvan.privacy.identity.shared_key import DealKey, TakeKey
from silvan.study import column_steps
from silvan.study.listener import Listener
from silvan.study.run_folder import Dependence, Difference, Kind, Record, Run, SiteRows, Traffic
from silvan.study.study import Study
from silvan.util.readable import count_of

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


def start_record(study: Study, fingerprint: str, file: str = "study.toml") -> Record:
    """Return the record of a study before anything was asked; ``file`` is the path from the run folder."""
    return Record(
        name=study.name,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        study=study.settings(),
        study_file=file,
        fingerprint=fingerprint,
    )


def agree(federation: Federation, study: Study) -> Agreement:
    """Find out what sites, or parties, on other machines have in common."""
    if study.by_columns:
        how = Alignment(study.label, study.match, test=study.test, task=study.task, schema=study.schema)
        return agree_on_columns(federation, how)
    # with a given schema sites may not even say how many rows they have
    return agree_on(federation, study.label, study.task, study.schema, count_rows=False, kinds=study.kinds)


def note_agreement(record: Record, federation: Federation, study: Study) -> None:
    """Record the schema, the sites or parties with their rows, and how their tables differ."""
    schema = federation.schema
    record.schema_hash, record.features, record.label = schema.hash, len(schema.features), schema.label.name
    record.classes = None if schema.label.classes is None else [str(c) for c in schema.label.classes]
    record.sums = federation.sums.name
    record.differences = [Difference(*note) for note in federation.differences.notes]
    record.warnings = list(federation.differences.warnings)
    record.agreement_rounds = federation.agreement_rounds
    # a report is passed on: what the sites of a private study do not tell with noise is not in it
    record.columns = [] if study.private else federation.agreement.described[:_MOST_COLUMNS]
    if federation.columns is not None:
        record.by, record.sites = "columns", column_steps.parties(federation)
    elif study.private or not federation.local_sites:
        record.sites = [SiteRows(name, federation.rows.get(name, 0)) for name in federation.sites]
    else:
        record.sites = [_site(federation, name) for name in federation.sites]


def _site(federation: Federation, name: str) -> SiteRows:
    """Count the rows and positives of a site in this process, whose owner therefore runs this command."""
    site, schema = federation.site(name), federation.schema
    parts = [site.part(schema), site.part(schema, test=True)]
    y = np.concatenate([part.y for part in parts])
    positives = float(np.mean(y == 1)) if schema.n_classes == 2 else None
    return SiteRows(name, len(parts[0]), len(parts[1]), positives)


def announce_study(
    study: Study, federation: Federation, learner: FederatedEstimator, *, sampling: bool = False
) -> None:
    """Announce all that the study will ask: raise an error if a site would refuse, before anything is spent."""
    unknown = [name for name in study.evaluation.dependence if name not in federation.schema.names]
    if unknown:
        raise InputError.about("dependence", f"names {unknown[0]!r}, which is no column to learn from")
    if study.evaluation.by:
        places_of(federation.schema, study.evaluation.by)
    announce(federation, request_plan_of(study, federation, learner, sampling=sampling))


def request_plan_of(
    study: Study, federation: Federation, learner: FederatedEstimator, *, sampling: bool = False
) -> RequestPlan:
    """Return all that the study will ask: of sites once there is a schema, of parties from the first message on.

    With ``sampling`` sites agree on a key of draws.
    """
    request_plan = learner.request_plan(federation)
    if study.by_columns:
        request_plan += RequestPlan(asks_to_align(study.match), tasks=0)
    if study.repeats and not federation.local_sites:
        request_plan += RequestPlan((CountRows,), tasks=0)
    if study.test > 0 or study.repeats:
        request_plan += learner.evaluation_plan(federation, study.evaluation.by, study.evaluation.epsilon)
        if study.evaluation.importance or study.evaluation.dependence:
            request_plan += learner.explanation_plan(study.evaluation.importance, study.evaluation.dependence)
    if sampling:
        request_plan += RequestPlan((DealKey, TakeKey), tasks=0)
    return request_plan


def note_training(record: Record, run: Run, federation: Federation, result: Result, seconds: float) -> None:
    """Write the model; record its rounds, bytes, seconds, importances, weights and what sites chose."""
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
    """Record which columns matter and how predictions depend on some, if the study asks for it."""
    if not (study.evaluation.importance or study.evaluation.dependence):
        return
    classes = record.classes
    names = ["prediction"] if classes is None else classes[1:] if len(classes) == 2 else classes
    try:
        with listener.step("Asking what columns do"):
            found = learner.explained(
                federation, study.evaluation.importance, study.evaluation.dependence, study.evaluation.by
            )
    except InputError as error:  # too few rows, or no forest for all sites: the model is there all the same
        record.warnings.append(str(error))
        return
    record.permutation = found.permutation
    record.dependence = [
        Dependence(column, values, dict(zip(names, np.round(means.T, 6).tolist(), strict=True)))
        for column, (values, means) in found.dependence.items()
    ]
    note_traffic(record, federation)


def close(record: Record, federation: Federation, study: Study) -> None:
    """Close the study at sites that sign, check its sums by their statements, and record how far it is verified."""
    if not federation.verifiable:
        return
    found = check_own_sums(federation, close_study(federation))
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
    """Record the bytes of every kind of message so far, and a description of each kind."""
    kinds = dict.fromkeys(kind for _, _, kind in federation.traffic)
    record.traffic = [
        Traffic(site, kind, federation.traffic[site, "sent", kind], federation.traffic[site, "received", kind])
        for site in federation.sites
        for kind in kinds
    ]
    record.kinds = describe_kinds(kinds)


def describe_kinds(names: Iterable[str]) -> list[Kind]:
    """Return what each kind of request, by name, asks and answers; unknown names are left out."""
    requests = {name: HANDLERS[name][0] for name in names if name in HANDLERS}
    return [
        Kind(name, _first_paragraph(request), _first_paragraph(request.reply), request.verb)
        for name, request in requests.items()
    ]


def _first_paragraph(message: type) -> str:
    """Return the first paragraph of a message's docstring, in one line."""
    return " ".join(inspect.cleandoc(message.__doc__ or "").split("\n\n")[0].replace("``", "").split())
