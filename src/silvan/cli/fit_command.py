"""``silvan fit``: trains and judges the model of a study file, and writes the run folder."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from silvan.cli.plain_text import clean
from silvan.errors import InputError, SilvanError
from silvan.util.readable import count_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from silvan.federation.site_table import SiteTable
    from silvan.study.plan import Study
    from silvan.study.run_folder import Record, Run


_SAMPLE, _MOST_QUESTIONS = 10_000, 5
"""Rows of each site that are looked at before training, and lines that are shown."""


def fit(
    study: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file, see docs/study.md.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="The run folder; the study names one too."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume/--fresh", help="Go on with an interrupted run, or put it aside and start again."),
    ] = True,
) -> None:
    """Train and judge the model of a study, and write the run folder."""
    from rich.console import Console

    from silvan.study.run_folder import Run
    from silvan.study.study_file import read_study

    plan = read_study(study)
    run = Run(plan.output if output is None else output)
    carry_out(plan, run, start_run(plan, run, resume=resume), Console())


def carry_out(plan: "Study", run: "Run", record: "Record", console: "Console", *, demo: bool = False) -> None:
    """Agree, train, judge and report; a demo says less on the way, and keeps no journal."""
    from silvan.cli import terminal
    from silvan.cli.tables import figure_tables
    from silvan.deploy.job_progress import ProgressWriter
    from silvan.report.html import write_report
    from silvan.report.summary import summarise
    from silvan.study import steps
    from silvan.study.progress_bars import Progress
    from silvan.study.repeat_steps import judge_repeatedly
    from silvan.study.run_folder import EVALUATION, JOURNAL, LEARNT, MODEL, REPORT, RUN, SHARES
    from silvan.study.study_file import make_federation, make_learner
    from silvan.study.tables.learnt_rows import keep_learnt_rows

    progress = Progress()
    with progress.step("Reading tables and agreeing on columns"):
        federation = make_federation(plan, None if demo else run.file(JOURNAL))
        steps.note_agreement(record, federation)
    run.write(record)
    who = count_of(len(federation.sites), "site" if plan.id is None else "party")
    title = f"{plan.name}: {plan.kind} over {who}, {count_of(record.features, 'feature')}"
    if not demo:
        terminal.print_parts(console, clean(title), terminal.differences(summarise(record)))
        ask_about_columns(plan, federation.local_sites, private=steps.is_private(record))

    noted = ProgressWriter(run, "", run.folder)  # for who looks at the folder meanwhile
    federation.watch(noted.on)
    with plan.pointing():
        model = make_learner(plan, federation.schema)
        steps.check_with_sites(plan, federation, model)
        rounds = model.expected_rounds
        noted.stage("training", 0 if rounds is None else federation.rounds + rounds)
        seconds = steps.train(federation, model, progress)
    steps.note_training(record, run, federation, model, seconds)
    if not (demo or plan.by_columns or steps.is_private(record)):
        keep_learnt_rows(federation, run.folder)
    run.write(record)
    noted.stage("judging")
    with plan.pointing():
        if plan.repeats:
            judge_repeatedly(record, federation, model, plan, progress)
        elif any(site.test_rows for site in record.sites) or (plan.test > 0 and steps.is_private(record)):
            steps.judge(record, federation, model, progress, epsilon=plan.evaluation_epsilon, by=plan.by)
            if steps.is_private(record):
                steps.note_test_rows(record)
        steps.explain_model(record, federation, model, plan, progress)
    if record.evaluation:
        run.write_evaluation(record.evaluation)
    record.status = "done"
    run.write(record)
    federation.journal.close()
    write_report(run)
    noted.stage("done", final=True)

    summary = summarise(record)
    further = [] if demo else figure_tables.further(record, summary)
    terminal.print_parts(console, terminal.results(summary), *further, terminal.sentences(summary))
    models = [SHARES] if plan.by_columns and demo else [model.file for model in record.models] or [MODEL]
    names = [*(["sites", "study.toml"] if demo else []), *models, EVALUATION, RUN, REPORT, JOURNAL, LEARNT]
    terminal.print_parts(console, terminal.files(run.folder, names, record.models))


def ask_about_columns(study: "Study", sites: "Mapping[str, SiteTable]", *, private: bool) -> None:
    """Print what looks odd in the first rows of the sites' tables, shortly; nothing of a private study."""
    from silvan.study.tables.table_check import profiles_of, questions

    if private or study.id is not None or study.memory is not None:
        return
    lines = questions(profiles_of(sites, most=_SAMPLE), study.label, study.task)
    for line in lines[:_MOST_QUESTIONS]:
        typer.echo(f"look at {clean(line)}", err=True)
    if len(lines) > _MOST_QUESTIONS:
        more = len(lines) - _MOST_QUESTIONS
        typer.echo(f"look at {more} more: silvan check {clean(str(study.path))}", err=True)


def start_run(study: "Study", run: "Run", *, resume: bool) -> "Record":
    """Start a run, or return the record of the one to go on with; raise ``InputError`` if it is of another study."""
    from silvan.study.run_folder import RUN, Record
    from silvan.study.steps import versions

    made_with, made = versions(), datetime.now(UTC).isoformat(timespec="seconds")
    fingerprint = study.fingerprint(made_with["silvan"])
    if not resume:
        put_aside(run)
    elif run.file(RUN).exists():
        try:
            earlier = run.read()
        except SilvanError as error:
            raise type(error)(f"{error}; pass --fresh to put it aside and start again") from None
        if earlier.fingerprint != fingerprint and earlier.status == "started" and not earlier.models:
            put_aside(run)  # nothing was trained: a study that was corrected goes on
            return start_run(study, run, resume=True)
        if earlier.fingerprint != fingerprint:
            raise InputError(
                f"{str(run.folder)!r} holds a run of another study, or the study, its tables or silvan have "
                "changed since\n"
                "pass --fresh to put that run aside and start again, or --output for another folder"
            )
        earlier.name, earlier.made = study.name, made
        return earlier
    record = Record(
        name=study.name,
        made=made,
        versions=made_with,
        study=study.settings(),
        study_file=os.path.relpath(study.path.resolve(), run.folder.resolve()),
        fingerprint=fingerprint,
    )
    run.write(record)
    return record


def put_aside(run: "Run") -> None:
    """Move an earlier run's files to a new folder inside the run folder: nothing is lost."""
    from silvan.deploy.job_progress import PROGRESS
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
