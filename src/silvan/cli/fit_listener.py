"""Shows how `silvan fit` goes: bars in the terminal, a progress file, and what is odd about tables."""

from collections.abc import Mapping

import typer

from silvan.cli import terminal
from silvan.cli.plain_text import clean
from silvan.deploy.jobs.job_progress import ProgressWriter
from silvan.federation.federation import Federation
from silvan.federation.outgoing import Event
from silvan.federation.site_table import SiteTable
from silvan.report.summary import summarise
from silvan.study.learnt_rows import keep_learnt_rows
from silvan.study.progress_bars import ProgressBars
from silvan.study.run_folder import Record, Run
from silvan.study.study import Study
from silvan.study.table_check import profiles_of, questions
from silvan.util.readable import count_of

_SAMPLE, _MOST_QUESTIONS = 10_000, 5
"""Rows of each site that are looked at before training, and lines that are shown."""


class FitListener(ProgressBars):
    """Follows a run of a federation in this process; a quiet one shows bars only."""

    def __init__(self, study: Study, federation: Federation, run: Run, *, quiet: bool) -> None:
        super().__init__()
        self._study, self._federation, self._run, self._quiet = study, federation, run, quiet
        self.noted = ProgressWriter(run, "", run.folder)  # for whoever looks at the folder meanwhile

    def stage(self, name: str, rounds: int = 0) -> None:
        """Write that a stage begins."""
        self.noted.stage(name, rounds)

    def on(self, event: Event) -> None:
        """Write an event of the federation."""
        self.noted.on(event)

    def agreed(self, record: Record) -> None:
        """Print what is learnt from what, how tables differ, and what looks odd in them."""
        if self._quiet:
            return
        who = count_of(len(record.sites), "site" if record.by == "rows" else "party")
        title = f"{record.name}: {self._study.kind} over {who}, {count_of(record.features, 'feature')}"
        terminal.print_parts(clean(title), terminal.differences(summarise(record)))
        ask_about_columns(self._study, self._federation.local_sites)

    def trained(self, record: Record) -> None:
        """Keep hashes of the rows that were learnt from, beside the model."""
        if not (self._quiet or self._study.by_columns or self._study.private):
            keep_learnt_rows(self._federation, self._run.folder)


def ask_about_columns(study: Study, sites: Mapping[str, SiteTable]) -> None:
    """Print what looks odd in the first rows of the sites' tables, shortly; nothing of a private study."""
    if study.private or study.id is not None or study.memory is not None:
        return
    lines = questions(profiles_of(sites, most=_SAMPLE), study.label, study.task)
    for line in lines[:_MOST_QUESTIONS]:
        typer.echo(f"look at {clean(line)}", err=True)
    if len(lines) > _MOST_QUESTIONS:
        more = len(lines) - _MOST_QUESTIONS
        typer.echo(f"look at {more} more: silvan check {clean(str(study.path))}", err=True)
