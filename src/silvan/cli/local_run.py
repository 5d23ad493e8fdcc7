"""Runs a study in this process for `silvan fit` and `silvan demo`, with progress bars and a progress file."""

import os
from collections.abc import Mapping

import typer

from silvan.cli import terminal
from silvan.cli.plain_text import clean
from silvan.deploy.jobs.job_progress import PROGRESS, ProgressWriter
from silvan.errors import InputError, SilvanError
from silvan.federation.federation import Federation
from silvan.federation.outgoing import Event
from silvan.federation.site_table import SiteTable
from silvan.report.html import write_report
from silvan.report.summary import summarise
from silvan.study.learnt_rows import keep_learnt_rows
from silvan.study.progress_bars import ProgressBars
from silvan.study.run_folder import AUDIT, EVALUATION, JOURNAL, LEARNT, MODEL, REPORT, RUN, SHARES, Record, Run
from silvan.study.run_study import run_study
from silvan.study.steps import start_record, versions
from silvan.study.study import Study
from silvan.study.study_file import fingerprint_of, make_federation, with_lines
from silvan.study.table_check import profiles_of, questions, questions_of_rows
from silvan.util.readable import count_of

_SAMPLE, _MOST_QUESTIONS = 10_000, 5
"""Rows of each site inspected before training, and the most questions printed."""


class FitListener(ProgressBars):
    """Follows a run of a federation in this process; a quiet one shows bars only."""

    def __init__(self, study: Study, federation: Federation, run: Run, *, quiet: bool) -> None:
        super().__init__()
        self._study, self._federation, self._run, self._quiet = study, federation, run, quiet
        self.noted = ProgressWriter(run, "", run.folder)  # for the live page

    def stage(self, name: str, rounds: int = 0) -> None:
        """Write that a stage begins."""
        self.noted.stage(name, rounds)

    def on(self, event: Event) -> None:
        """Write an event of the federation."""
        self.noted.on(event)

    def agreed(self, record: Record) -> None:
        """Print the model, its training data, how tables differ, and what looks odd in them."""
        if self._quiet:
            return
        who = count_of(len(record.sites), "site" if record.by == "rows" else "party")
        title = f"{record.name}: {self._study.kind} over {who}, {count_of(record.features, 'feature')}"
        terminal.print_parts(clean(title), terminal.differences(summarise(record)))
        ask_about_columns(self._study, self._federation.local_sites)

    def trained(self, record: Record) -> None:
        """Keep hashes of the rows that were trained on, beside the model."""
        if not (self._quiet or self._study.by_columns or self._study.private):
            keep_learnt_rows(self._federation, self._run.folder)


def ask_about_columns(study: Study, sites: Mapping[str, SiteTable]) -> None:
    """Print briefly what looks odd in the first rows of the sites' tables; nothing about a private study."""
    if study.private or study.id is not None or study.memory is not None:
        return
    lines = questions_of_rows(sites) + questions(profiles_of(sites, most=_SAMPLE), study.label, study.task)
    for line in lines[:_MOST_QUESTIONS]:
        typer.echo(f"check {clean(line)}", err=True)
    if len(lines) > _MOST_QUESTIONS:
        more = len(lines) - _MOST_QUESTIONS
        typer.echo(f"{more} more: silvan check {clean(str(study.path))}", err=True)


def carry_out(plan: Study, run: Run, record: Record, *, demo: bool = False) -> None:
    """Run a study and show progress and results; a demo shows less on the way and keeps no journal."""
    with ProgressBars().step("Reading tables and agreeing on columns"):
        federation = make_federation(plan, None if demo else run.file(JOURNAL))
    listener = FitListener(plan, federation, run, quiet=demo)
    with with_lines(plan):
        run_study(plan, federation, run, record, listener)
    federation.journal.close()
    write_report(run)
    listener.noted.stage("done", final=True)

    terminal.print_results(record, few=demo)
    models = [SHARES] if plan.by_columns and demo else [model.file for model in record.models] or [MODEL]
    names = [*(["sites", "study.toml"] if demo else []), *models, EVALUATION, RUN, REPORT, JOURNAL, LEARNT]
    terminal.print_parts(terminal.files(run.folder, names, record.models))


def start_run(study: Study, run: Run, *, resume: bool) -> Record:
    """Start a run, or return the record of the run to resume; raise ``InputError`` if that is of another study."""
    fingerprint = fingerprint_of(study, versions()["silvan"])
    record = start_record(study, fingerprint, os.path.relpath(study.path.resolve(), run.folder.resolve()))
    if not resume:
        put_aside(run)
    elif run.file(RUN).exists():
        try:
            earlier = run.read()
        except SilvanError as error:
            raise type(error)(f"{error}; pass --fresh to set it aside and start over") from None
        if earlier.fingerprint == fingerprint:
            earlier.name, earlier.made = record.name, record.made
            return earlier
        if earlier.status != "started" or earlier.models:
            raise InputError(
                f"{str(run.folder)!r} holds a run of another study, or the study, its tables or silvan have "
                "changed since\n"
                "pass --fresh to set that run aside and start over, or --output for another folder"
            )
        put_aside(run)  # nothing was trained yet, so the study was merely corrected
    run.write(record)
    return record


def put_aside(run: Run) -> None:
    """Move an earlier run's files to a new folder inside the run folder, so that nothing is lost."""
    names = [EVALUATION, REPORT, *AUDIT, LEARNT, PROGRESS, JOURNAL, f"{JOURNAL}-wal", f"{JOURNAL}-shm", RUN]
    files = [run.file(name) for name in names] + sorted(run.folder.glob("model*.silvan"))
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
