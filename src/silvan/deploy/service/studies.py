"""The coordinator's process that runs all its studies to their ends, whether anybody watches or not.

``silvan study run`` and the live page only submit a study and watch it: they write a file into its run folder. This
process finds the file, supervises the study (``supervise.py``), and writes what happens into another. Both stay, so a
process that is started anew goes on with all studies that are not at their end.
"""

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.errors import FederationError, SilvanError
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import Run
from silvan.util.files import has_no_room, try_json, write_whole
from silvan.util.folder_lock import lock_folder

if TYPE_CHECKING:
    from silvan.deploy.service.supervise import Supervisor

log = logging.getLogger("silvan.studies")

SUBMITTED, SUPERVISED, CANCELLED = "submitted.json", "supervised.json", "cancelled"
"""Files in a run folder: who wants the study to run, what came of that, and who ended it."""

_MOST_LINES, _PAUSE, _FULL = 500, 0.2, 5.0


class Act(msgspec.Struct, frozen=True):
    """Who wanted something, and when; ``id`` tells one act from the next."""

    id: str
    by: str
    at: str

    @classmethod
    def now(cls, by: str) -> "Act":
        """Return an act of this moment."""
        return cls(secrets.token_hex(8), by, datetime.now(UTC).isoformat(timespec="seconds"))


class Supervised(msgspec.Struct):
    """What came of a submission so far."""

    id: str = ""  # of the submission
    dropped: int = 0  # lines that are no longer among these
    lines: list[tuple[str, str]] = []  # when, and what happened
    ended: bool = False
    error: str = ""


# -- for whoever submits and watches


def submit(supervisor: "Supervisor", by: str) -> Act:
    """Submit a study, or find its submission that is not at its end; the supervisor has checked that it can run."""
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
    """Return the submission of a run that is not at its end; None if there is none."""
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
        time.sleep(_PAUSE)


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


# -- the process


class Record:
    """Writes what happens to a submission."""

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
        """Note that the study is at its end."""
        self.now.ended, self.now.error = True, error
        self._write()

    def _write(self) -> None:
        write_whole(self._run.file(SUPERVISED), msgspec.json.encode(self.now))


def supervise(hub: CoordinatorFiles, run: Run, submission: Act) -> None:
    """Run a study to its end; write down what happens, whatever that is."""
    from silvan.deploy.service.supervise import Supervisor

    record = Record(run, submission)
    try:
        study = parse_remote_study(run.file("study.toml").read_text())
        Supervisor(hub, study, record.line).run_to_end()
        error = ""
    except SilvanError as failed:
        error = str(failed)
    except Exception as failed:
        log.exception("%s", run.folder)
        if has_no_room(failed):  # it is begun again, until there is room
            time.sleep(_FULL)
            return
        error = f"a mistake in silvan: {type(failed).__name__}: {failed}"
    record.end(error)


def serve(hub: CoordinatorFiles, stop: threading.Event) -> None:
    """Supervise every study that is submitted, each in a thread of its own, until told to stop."""
    at_work: dict[Path, threading.Thread] = {}
    while not stop.wait(_PAUSE):
        for path in sorted((hub.path / "runs").glob(f"*/{SUBMITTED}")):
            run = Run(path.parent)
            busy = at_work.get(run.folder)
            submission = None if busy is not None and busy.is_alive() else pending(run)
            if submission is not None:
                thread = threading.Thread(target=supervise, args=(hub, run, submission), daemon=True)
                at_work[run.folder] = thread
                thread.start()


def main() -> None:
    """Run the process for the folder named on the command line until stopped."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    hub = CoordinatorFiles(Path(sys.argv[1]))
    (hub.path / "runs").mkdir(exist_ok=True)
    with lock_folder(hub.path / "runs", wait=10.0):
        serve(hub, threading.Event())


if __name__ == "__main__":
    main()
