"""``silvan fit``: trains and judges the model of a study file, and writes the run folder."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from silvan.errors import InputError, SilvanError

if TYPE_CHECKING:
    from silvan.study.run_folder import Record, Run
    from silvan.study.study import Study


def fit(
    study: Annotated[Path, Argument(metavar="STUDY.toml", help="The study file, see docs/study.md.")],
    output: Annotated[Path | None, Option("--output", "-o", metavar="DIR", help="If not the study's folder.")] = None,
    resume: Annotated[bool, Option("--resume/--fresh", help="Resume an interrupted run, or put it aside.")] = True,
) -> None:
    """Train and judge the model of a study, and write the run folder."""
    from silvan.study.run_folder import Run
    from silvan.study.study_file import read_study

    plan = read_study(study)
    run = Run(plan.run_folder if output is None else output)
    carry_out(plan, run, start_run(plan, run, resume=resume))


def carry_out(plan: "Study", run: "Run", record: "Record", *, demo: bool = False) -> None:
    """Run a study, show its progress and its results; a demo shows less on the way, and keeps no journal."""
    from silvan.cli import terminal
    from silvan.cli.fit_listener import FitListener
    from silvan.report.html import write_report
    from silvan.study.progress_bars import ProgressBars
    from silvan.study.run_folder import EVALUATION, JOURNAL, LEARNT, MODEL, REPORT, RUN, SHARES
    from silvan.study.run_study import run_study
    from silvan.study.study_file import make_federation

    with ProgressBars().step("Reading tables and agreeing on columns"):
        federation = make_federation(plan, None if demo else run.file(JOURNAL))
    listener = FitListener(plan, federation, run, quiet=demo)
    with plan.pointing():
        run_study(plan, federation, run, record, listener)
    federation.journal.close()
    write_report(run)
    listener.noted.stage("done", final=True)

    terminal.print_results(record, few=demo)
    models = [SHARES] if plan.by_columns and demo else [model.file for model in record.models] or [MODEL]
    names = [*(["sites", "study.toml"] if demo else []), *models, EVALUATION, RUN, REPORT, JOURNAL, LEARNT]
    terminal.print_parts(terminal.files(run.folder, names, record.models))


def start_run(study: "Study", run: "Run", *, resume: bool) -> "Record":
    """Start a run, or return the record of the one to go on with; raise ``InputError`` if it is of another study."""
    from silvan.study.run_folder import RUN
    from silvan.study.steps import start_record, versions

    fingerprint = study.fingerprint(versions()["silvan"])
    record = start_record(study, fingerprint, os.path.relpath(study.path.resolve(), run.folder.resolve()))
    if not resume:
        put_aside(run)
    elif run.file(RUN).exists():
        try:
            earlier = run.read()
        except SilvanError as error:
            raise type(error)(f"{error}; pass --fresh to put it aside and start again") from None
        if earlier.fingerprint == fingerprint:
            earlier.name, earlier.made = record.name, record.made
            return earlier
        if earlier.status != "started" or earlier.models:
            raise InputError(
                f"{str(run.folder)!r} holds a run of another study, or the study, its tables or silvan have "
                "changed since\n"
                "pass --fresh to put that run aside and start again, or --output for another folder"
            )
        put_aside(run)  # nothing was trained: a study that was corrected goes on
    run.write(record)
    return record


def put_aside(run: "Run") -> None:
    """Move an earlier run's files to a new folder inside the run folder: nothing is lost."""
    from silvan.deploy.jobs.job_progress import PROGRESS
    from silvan.study.run_folder import AUDIT, EVALUATION, JOURNAL, LEARNT, REPORT, RUN, SHARES

    known = [EVALUATION, REPORT, *AUDIT, LEARNT, PROGRESS, JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm", RUN]
    files = [run.file(name) for name in known] + sorted(run.folder.glob("model*.silvan"))
    files = [file for file in files if file.is_file()] + [run.file(SHARES)] * run.file(SHARES).is_dir()
    if not files:
        return
    number = 1
    while run.file(f"earlier-{number}").exists():
        number += 1
    aside = run.file(f"earlier-{number}")
    aside.mkdir()
    for file in files:
        file.rename(aside / file.name)
