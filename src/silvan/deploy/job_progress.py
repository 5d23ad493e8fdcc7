"""How a study stands, in a file of its run folder: written by the job, read by whoever waits for it."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from silvan.errors import FederationError
from silvan.federation.question import Event
from silvan.study.run_folder import Run
from silvan.util.files import write_whole

PROGRESS = "progress.json"


class Progress(msgspec.Struct):
    """How a study stands, for whoever waits for it."""

    job: str
    stage: str = "starting"
    round: int = 0
    waiting: dict[str, str] = {}  # for which sites, and why
    lost: dict[str, str] = {}
    error: str = ""
    final: bool = False  # it has ended, and will not go on if it is submitted again
    seconds: dict[str, float] = {}  # when things happened: seconds since 1970
    spent: dict[str, float] = {}  # seconds of training: at the slowest site of every wave, on the wire, in all
    measured: dict[str, float] = {}


class ProgressWriter:
    """Writes progress to the run folder, not too often."""

    def __init__(self, run: Run, job: str) -> None:
        self._path, self._last = run.file(PROGRESS), 0.0
        self.now = Progress(job)

    def stage(self, name: str) -> None:
        """Begin something else."""
        self.now.stage = name
        self.now.seconds[name] = time.time()
        self.write()

    def on(self, event: Event) -> None:
        """Take in what a federation tells."""
        self.now.round = event.round
        if event.what == "waiting":
            self.now.waiting[event.site] = event.kind
        elif event.what == "answer":
            self.now.waiting.pop(event.site, None)
        elif event.what == "lost":
            self.now.lost[event.site] = event.kind
        if time.monotonic() - self._last > 0.5 or event.what in ("waiting", "lost"):
            self.write()

    def write(self) -> None:
        """Write how it stands."""
        self._last = time.monotonic()
        write_whole(self._path, msgspec.json.encode(self.now))


def line_of(progress: Progress) -> str:
    """Say it in a line."""
    text = progress.stage if not progress.round else f"{progress.stage}, round {progress.round}"
    if progress.waiting:
        text += "; waiting for " + ", ".join(f"{site} ({why})" for site, why in progress.waiting.items())
    return text


_LOCK = ".lock"


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Hold a folder; refuse if another process does. Whatever becomes of this one, it lets go at its end."""
    handle = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise FederationError("another job of this study is running") from None
    finally:
        os.close(handle)


def is_held(folder: Path) -> bool:
    """Whether some process holds a folder."""
    try:
        with hold(folder):
            return False
    except FederationError:
        return True
