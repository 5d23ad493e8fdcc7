"""Predictions of new rows by a model in shares: a separate study whose results stay with the label holder.

It has the text of the study that trained the model, and a section that names the model. So it is approved, journalled
and recorded in ledgers like any other.
"""

from collections.abc import Callable

from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.site_files import PREDICTIONS
from silvan.deploy.studies.send_results import is_done
from silvan.errors import InputError
from silvan.federate.alignment import asks_to_match, common_rows
from silvan.federation.federation import Federation
from silvan.learners.in_shares import InShares
from silvan.privacy.announce import RequestPlan, announce
from silvan.study.column_steps import read_model
from silvan.study.parse import predicting
from silvan.study.run_folder import Record, Run, SiteRows
from silvan.study.steps import note_traffic, start_record
from silvan.study.study import Study


def next_prediction(hub: CoordinatorFiles, study: Study) -> Study:
    """Return the study that predicts new rows with a study's model: an unfinished one, or the next."""
    if not study.by_columns:
        raise InputError(
            f"{study.kind} is one forest that is in the run folder: predict with it where the rows are "
            "(`silvan predict`)"
        )
    run = Run(hub.path / "runs" / study.model_folder)
    if not is_done(run):
        raise InputError(f"{study.name!r} has no model yet; finish it with `silvan study run`")
    model, number = read_model(run, run.read()).kept.model, 1
    while True:
        made = predicting(study, model, number)
        if not is_done(Run(hub.path / "runs" / made.folder)):
            return made
        number += 1


def new_rows_plan(study: Study, model: InShares) -> RequestPlan:
    """Return all requests of predictions to parties."""
    return model.prediction_plan() + RequestPlan(asks_to_match(study.match), tasks=0)


def predict_new_rows(federation: Federation, study: Study, run: Run, stage: Callable[[str], None]) -> Record:
    """Predict the rows that all parties have, and make the label holder keep the predictions; return the record."""
    trained = Run(run.folder.parent / study.model_folder)
    model = read_model(trained, trained.read())
    if study.predict is None or model.kept.model != study.predict.model:
        raise InputError("the run folder has another model than the study names; predict again")
    announce(federation, new_rows_plan(study, model))
    stage("matching rows")
    digests = common_rows(federation, study.match, model.kept.label_holder)
    stage("predicting")
    rows = model.send_predictions(federation, digests)
    record = start_record(study, study.unique_name)
    record.by, record.label, record.sums = "columns", study.label, federation.sums.name
    record.sites = [SiteRows(name, rows) for name in federation.sites]
    record.rounds, record.agreement_rounds = federation.rounds, federation.agreement_rounds
    record.bytes, record.status = federation.bytes, "done"
    note_traffic(record, federation)
    run.write(record)
    return record


def what_was_predicted(hub: CoordinatorFiles, study: Study) -> tuple[int, str, str]:
    """Return how many rows a study has predicted, at which party, and in which file there."""
    trained = Run(hub.path / "runs" / study.model_folder)
    holder = read_model(trained, trained.read()).kept.label_holder
    record = Run(hub.path / "runs" / study.folder).read()
    return record.sites[0].rows, holder, f"{PREDICTIONS}/{study.folder}.csv"
