"""Studies submitted to the coordinator's process: the files in their run folders, and who submitted them."""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from silvan.errors import FederationError
from silvan.study.run_folder import Run
from silvan.util.files import try_json, write_whole

SUBMITTED, SUPERVISED, CANCELLED = "submitted.json", "supervised.json", "cancelled"
"""Files in a run folder: who wants the study to run, what came of that, and who ended it."""

PAUSE = 0.2
"""Seconds between two looks at these files."""

_MOST_LINES = 500


class Submitted(Protocol):
    """A submission: a checked study, and its run folder."""

    run: Run

    def write_study(self) -> None:
        """Write the study's text into its run folder."""


class Act(msgspec.Struct, frozen=True):
    """Who requested something, and when; ``id`` distinguishes requests."""

    id: str
    by: str
    at: str

    @classmethod
    def now(cls, by: str) -> "Act":
        """Return an act of this moment."""
        return cls(secrets.token_hex(8), by, datetime.now(UTC).isoformat(timespec="seconds"))


class Supervised(msgspec.Struct):
    """The state of a submission."""

    id: str = ""  # of the submission
    dropped: int = 0  # number of lines dropped from these
    lines: list[tuple[str, str]] = []  # when, and what happened
    ended: bool = False
    error: str = ""


def submit(supervisor: Submitted, by: str) -> Act:
    """Submit a study, or find its unfinished submission; the supervisor has checked that it can run."""
    run = supervisor.run
    run.folder.mkdir(parents=True, exist_ok=True)
    known = pending(run)
    if known is not None and not run.file(CANCELLED).exists():
        return known
    supervisor.write_study()
    run.file(CANCELLED).unlink(missing_ok=True)
    made = Act.now(by)
    write_whole(run.file(SUBMITTED), msgspec.json.encode(made))
    return made


def pending(run: Run) -> Act | None:
    """Return the unfinished submission of a run; None if there is none."""
    wanted = try_json(run.file(SUBMITTED), Act)
    found = try_json(run.file(SUPERVISED), Supervised)
    over = wanted is None or (found is not None and found.id == wanted.id and found.ended)
    return None if over else wanted


def watch(run: Run, submission: Act, report: Callable[[str], None], runs: Callable[[], bool]) -> None:
    """Report what happens to a study until its end; raise ``FederationError`` if it failed.

    ``runs`` says whether the coordinator's process runs.
    """
    seen, told = 0, False
    while True:
        found = try_json(run.file(SUPERVISED), Supervised)
        if found is not None and found.id == submission.id:
            for _, line in found.lines[max(seen - found.dropped, 0) :]:
                report(line)
            seen = found.dropped + len(found.lines)
            if found.ended:
                if found.error:
                    raise FederationError(found.error)
                return
        if not told and not runs():
            report("the study is submitted, and waits: the coordinator does not run (`silvan study start`)")
            told = True
        time.sleep(PAUSE)


def cancel(run: Run, by: str) -> bool:
    """End a study that runs or waits; return whether there was anything to end."""
    if pending(run) is None:
        return False
    write_whole(run.file(CANCELLED), msgspec.json.encode(Act.now(by)))
    return True


def cancelled_by(run: Run) -> str | None:
    """Return who cancelled a study; None if nobody did."""
    if not run.file(CANCELLED).exists():
        return None
    found = try_json(run.file(CANCELLED), Act)
    return "somebody" if found is None else found.by


class Account:
    """Writes the state of a submission."""

    def __init__(self, run: Run, submission: Act) -> None:
        self._run = run
        known = try_json(run.file(SUPERVISED), Supervised)
        self.now = Supervised(submission.id) if known is None or known.id != submission.id else known
        if not self.now.lines:
            self.line(f"submitted by {submission.by}")

    def line(self, text: str) -> None:
        """Add a line."""
        self.now.lines.append((datetime.now(UTC).isoformat(timespec="seconds"), text))
        gone = max(len(self.now.lines) - _MOST_LINES, 0)
        del self.now.lines[:gone]
        self.now.dropped += gone
        self._write()

    def end(self, error: str) -> None:
        """Record that the study has ended."""
        self.now.ended, self.now.error = True, error
        self._write()

    def _write(self) -> None:
        write_whole(self._run.file(SUPERVISED), msgspec.json.encode(self.now))
