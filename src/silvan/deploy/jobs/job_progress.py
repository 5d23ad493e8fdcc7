"""The progress of a study: a file in its run folder, which the job writes and the supervisor reads."""

import time
from pathlib import Path

import msgspec

from silvan.deploy.jobs.job_folder import mark_in_use
from silvan.federation.outgoing import Event
from silvan.study.listener import Listener
from silvan.study.run_folder import Run
from silvan.util.files import write_whole

PROGRESS = "progress.json"

INTERRUPTED = "interrupted"
"""The stage of a job that FLARE ended, and that is submitted again."""


class StudyProgress(msgspec.Struct):
    """The contents of ``progress.json``."""

    job: str
    stage: str = "starting"
    round: int = 0
    waiting: dict[str, str] = {}  # for which sites, and why
    lost: dict[str, str] = {}
    error: str = ""
    final: bool = False  # it has ended, and will not continue if it is submitted again
    seconds: dict[str, float] = {}  # when each stage began: seconds since 1970
    spent: dict[str, float] = {}  # seconds of training: at the slowest site of every wave, on the wire, in all
    rounds: int = 0  # the last one of this stage, if that is known
    answered: dict[str, int] = {}  # the last round that each site answered


class ProgressWriter(Listener):
    """Writes progress to the run folder, at most twice a second unless a site is waited for or lost.

    ``folder`` is that of the job.
    """

    def __init__(self, run: Run, job: str, folder: Path) -> None:
        self._path, self._folder, self._last = run.file(PROGRESS), folder, 0.0
        self.now = StudyProgress(job)

    def stage(self, name: str, rounds: int = 0, *, final: bool = False) -> None:
        """Record that a stage begins, and when; it ends with the round ``rounds`` at the latest, if that is known."""
        self.now.stage, self.now.rounds, self.now.final = name, rounds, self.now.final or final
        self.now.seconds[name] = time.time()
        self.write()

    def on(self, event: Event) -> None:
        """Record an event of the federation."""
        self.now.round = event.round
        if event.what == "waiting":
            self.now.waiting[event.site] = event.kind
        elif event.what == "answer":
            self.now.waiting.pop(event.site, None)
            self.now.answered[event.site] = event.round
        elif event.what == "lost":
            self.now.lost[event.site] = event.kind
        if time.monotonic() - self._last > 0.5 or event.what in ("waiting", "lost"):
            self.write()

    def write(self) -> None:
        """Write the file."""
        self._last = time.monotonic()
        write_whole(self._path, msgspec.json.encode(self.now))
        mark_in_use(self._folder)


def line_of(progress: StudyProgress) -> str:
    """Return the progress as one line of text."""
    text = progress.stage if not progress.round else f"{progress.stage}, round {progress.round}"
    if progress.waiting:
        text += "; waiting for " + ", ".join(f"{site} ({why})" for site, why in progress.waiting.items())
    return text
