"""The run sequence of a study, the only one: agree, announce, describe, train, evaluate, explain, write, close.

`silvan fit`, the demo, FLARE's jobs and the trial behind an approval all call it. They differ in the federation, the
folder and the listener. Its requests follow from the study and the replies alone, so a journal of replies leads to the
same requests again.
"""

import time

from silvan.federation.federation import Federation
from silvan.privacy.identity.shared_key import share_key
from silvan.study import steps
from silvan.study.listener import Listener
from silvan.study.run_folder import Record, Run
from silvan.study.steps import evaluate_model, has_test_rows
from silvan.study.study import Study
from silvan.study.study_file import make_learner


def run_study(
    study: Study, federation: Federation, run: Run, record: Record, listener: Listener, *, secret_sampling: bool = False
) -> Record:
    """Run a study, and return the record of its results.

    The record is written after each step, so that results survive a later failure. With ``secret_sampling``, sites
    first agree on a key, so that only they know which rows are in which tree.
    """
    federation.watch(listener.on)

    listener.stage("agreeing on columns")
    if study.by_columns:  # requests to parties do not depend on their columns
        steps.announce_study(study, federation, make_learner(study, None))
    steps.note_agreement(record, federation, study)
    run.write(record)
    listener.agreed(record)

    learner = make_learner(study, federation.schema)
    if not study.by_columns:
        steps.announce_study(study, federation, learner, sampling=secret_sampling)
    if secret_sampling:
        share_key(federation)

    steps.describe_columns(record, federation, study, listener)
    if study.describe == "only":
        return _finish(record, federation, study, run)

    rounds = learner.expected_rounds
    listener.stage("training", 0 if rounds is None else federation.rounds + rounds)
    start = time.monotonic()
    with listener.step("Growing trees") as step:
        step.follow(federation, rounds)
        learner.fit(federation)
    steps.note_training(record, run, federation, learner.result(), time.monotonic() - start)
    run.write(record)
    listener.trained(record)

    listener.stage("evaluating")
    if has_test_rows(record, federation, study):
        evaluate_model(record, federation, learner, study, listener)
        steps.explain_model(record, federation, learner, study, listener)
        run.write_evaluation(record.evaluation)

    return _finish(record, federation, study, run)


def _finish(record: Record, federation: Federation, study: Study, run: Run) -> Record:
    """Close the study at its sites, and record that it is done."""
    steps.close(record, federation, study)
    record.status = "done"
    run.write(record)
    return record
