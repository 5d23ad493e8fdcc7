"""Runs a study to its end: submits a FLARE job, waits, and submits it again if FLARE, a site or the machine fails.

FLARE does not resume jobs. All replies are in the study's journal, so a resubmitted job continues where the last one
stopped, and ends with the same forest.
"""

import contextlib
import shutil
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from silvan.deploy.jobs.job_folder import check_number_of_sites, job_arguments, job_name
from silvan.deploy.jobs.job_progress import INTERRUPTED, PROGRESS, StudyProgress, line_of
from silvan.deploy.membership import startup_kit
from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.service.submissions import cancelled_by
from silvan.deploy.studies.send_results import is_done, sites_without_results
from silvan.errors import FederationError
from silvan.federation.flare import Session
from silvan.study.run_folder import JOURNAL, Run
from silvan.study.study import Study
from silvan.util.files import try_json, write_whole
from silvan.util.folder_lock import is_locked
from silvan.util.pid_file import read_pid

Answer = TypeVar("Answer")

RECENT = 20.0
"""Seconds since a site last connected, after which it counts as not connected."""

MOST_TRIES = 8
"""Jobs in a row that may end without any new answer."""

_SITES = "sites.json"
"""A file in the run folder: the sites that the study began with, which others that join later do not change."""

_QUEUED = {"SUBMITTED", "APPROVED"}
_RUNNING = {*_QUEUED, "DISPATCHED", "RUNNING"}
STALE, SILENT = 60.0, 3.0
"""Seconds without new progress after which a job is looked for: one that has no process yet, and one that had one."""

_PAUSE = 0.15
"""Seconds between two looks at a job."""


class Attempts:
    """When to resubmit a study: as long as each job gets further than the last one; otherwise a few times."""

    def __init__(self) -> None:
        self._answers, self._without_success = 0, 0

    def next(self, answers: int, error: str) -> float:
        """Return the seconds to wait before the next attempt; raise ``FederationError`` if there should be none."""
        self._without_success = 0 if answers > self._answers else self._without_success + 1
        self._answers = max(self._answers, answers)
        if self._without_success >= MOST_TRIES:
            why = f": {error}" if error else ""
            raise FederationError(
                f"{MOST_TRIES} jobs ended without a single new answer{why}; see the logs of server and sites, then run "
                "the study again: it goes on where it is"
            )
        return float(min(2**self._without_success, 60)) if self._without_success else 0.0


class CancelledError(FederationError):
    """Somebody cancelled the study."""


class Supervisor:
    """Runs one study to its end; ``report`` is called with a line of text whenever something changes."""

    coordinator = startup_kit.COORDINATOR
    """The class that runs at the server; a subclass may name another that the server's folder allows."""

    def __init__(self, hub: CoordinatorFiles, study: Study, report: Callable[[str], None] = lambda text: None) -> None:
        self.hub, self.study, self._report = hub, study, report
        self.run = Run(hub.path / "runs" / study.folder)
        self.sites = study.site_names or try_json(self.run.file(_SITES), list[str]) or list(hub.read().sites)
        hub.roster(self.sites)
        check_number_of_sites(study, len(self.sites))
        self._session: Session | None = None
        self._away: set[str] = set()  # sites that the study continues without
        self._last_line = ""

    def write_study(self) -> None:
        """Write the study's text and its sites into its run folder."""
        self.run.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.run.file("study.toml"), self.study.text.encode())
        write_whole(self.run.file(_SITES), msgspec.json.encode(self.sites))

    def run_to_end(self) -> Run:
        """Run the study to its end and return its run folder; raise ``FederationError`` if it failed."""
        self.write_study()
        if self._done() and not self._lacking():
            return self.run
        try:
            attempts, job = Attempts(), self._running_job()
            while job is not None or not self._done():
                progress = self._follow(job or self._submit(self._wait_for_sites()))
                if progress is not None and progress.final:
                    if progress.error:
                        raise FederationError(progress.error)
                    break
                if self._done():  # the job was ended after the study was
                    break
                seconds = attempts.next(self._answers(), "" if progress is None else progress.error)
                again = f" in {seconds:g} s" if seconds else ""
                self._tell(f"the job ended before the study did; it is handed in again{again} and goes on")
                self._pause(seconds)
                job = None
            return self._bring_results()
        except CancelledError:
            job = self._running_job()
            if job is not None:
                with contextlib.suppress(ConnectionError):
                    self._open().abort(job)
            raise
        finally:
            self._close()

    def _pause(self, seconds: float) -> None:
        """Wait, unless the study is cancelled."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._check_cancelled()
            time.sleep(_PAUSE)

    def _bring_results(self) -> Run:
        """Deliver the results of a finished study to connected sites that lack them; return the run."""
        for _ in range(MOST_TRIES):
            here = self._wait_for_lacking()
            if not here:
                break
            progress = self._follow(self._submit(dict.fromkeys(set(self.sites) - set(here), "is not there")))
            if progress is not None and progress.final:  # sites that lack them now do not accept them
                break
        if lacking := _listed(self._lacking()):
            self._tell(f"the study is done; {lacking} did not get the results: run it again when they are there")
        return self.run

    def _lacking(self) -> list[str]:
        return sites_without_results(self.run, self.study, self.sites)

    def _wait_for_lacking(self) -> list[str]:
        """Return the connected sites that lack the results; a participating one has some time to come back."""
        start = time.monotonic()
        while True:
            lacking = self._lacking()
            connected = self._connected() if lacking else []
            here = [site for site in lacking if site in connected]
            expected = [site for site in lacking if site not in connected and site not in self._away]
            if here or not expected or time.monotonic() - start > RECENT:
                return here
            self._tell(f"the study is done; waiting for {_listed(expected)} to connect, and get the results")
            time.sleep(0.25)

    def _check_cancelled(self) -> None:
        who = cancelled_by(self.run)
        if who is not None:
            raise CancelledError(f"{who} cancelled the study; run it again, and it goes on where it stopped")

    def _answers(self) -> int:
        """Return the size of the study's journal, which grows with every reply and every evaluated split."""
        with contextlib.suppress(OSError):
            split = sum(path.stat().st_size for path in self.run.folder.glob(f"{JOURNAL}.split*"))
            return (self.run.file(JOURNAL).stat().st_size << 40) + split  # which starts over with every split
        return 0

    def _done(self) -> bool:
        with contextlib.suppress(Exception):
            return is_done(self.run)
        return False

    def progress(self) -> StudyProgress | None:
        """Read the study's progress; None if there is none yet."""
        return try_json(self.run.file(PROGRESS), StudyProgress)

    def _progress_of(self, job: str) -> StudyProgress | None:
        """Read the progress that a job has written; None if it has written none yet."""
        found = self.progress()
        return found if found is not None and found.job == job else None

    # -- one job

    def _running_job(self) -> str | None:
        """Return the job of this study that an earlier command submitted, if it still runs.

        If a job has reported its end and FLARE is still ending it, wait for it: its report is not about this run.
        """
        try:
            job = self.run.file("job").read_text().strip()
        except OSError:
            return None
        start = time.monotonic()
        while job and self._status(job) in _RUNNING:
            last = self._progress_of(job)
            if last is None or not last.final:
                return job
            if time.monotonic() - start > SILENT and not is_locked(self.run.folder):
                with contextlib.suppress(ConnectionError):
                    self._open().abort(job)
                return None
            time.sleep(_PAUSE)
        return None

    def _wait_for_sites(self) -> dict[str, str]:
        """Wait until all sites are connected; return those that the study continues without, and why."""
        start = time.monotonic()
        while True:
            self._check_cancelled()
            connected = self._connected()
            self._check_stopped()
            missing = [site for site in self.sites if site not in connected]
            if not missing:
                return {}
            if time.monotonic() - start > self.study.timeout:
                left = len(self.sites) - len(missing)
                why = f"was not there for {self.study.timeout:g} s"
                if self.study.quorum is None or left < self.study.quorum:
                    raise FederationError(f"{_listed(missing)} {why}; start it (`silvan site start`) and run again")
                self._away.update(missing)
                return dict.fromkeys(missing, why)
            self._tell(f"waiting for {_listed(missing)} to connect")
            time.sleep(0.25)

    def _check_stopped(self) -> None:
        """Raise ``FederationError`` if a site of the study may not connect: its owner must fix that first."""
        for site, why in self.hub.stopped().items():
            if site in self.sites:
                raise FederationError(
                    f"site {site} is stopped: {why}; when its owner has put that right, let it in again (`silvan study "
                    f"readmit {site}`) and run the study again"
                )

    def _submit(self, without: dict[str, str]) -> str:
        folder = self.run.file("job-files")
        shutil.rmtree(folder, ignore_errors=True)
        sites = [site for site in self.sites if site not in without]
        arguments = job_arguments(self.study, self.sites, without)
        startup_kit.write_job(folder, job_name(self.study), sites, arguments, coordinator=self.coordinator)
        job = ""
        while not job:
            job = self._asked(lambda session: session.submit(folder), "")
        write_whole(self.run.file("job"), f"{job}\n".encode())
        self._tell("handed in")
        return job

    def _follow(self, job: str) -> StudyProgress | None:
        """Wait for the end of a job; return its last progress."""
        changed = time.monotonic()
        before = None
        while True:
            mine = self._progress_of(job)
            if mine is not None and mine.final:
                return mine
            self._check_cancelled()
            if mine != before:
                before, changed = mine, time.monotonic()
            if mine is not None:
                self._tell(line_of(mine))
            status = self._status(job)
            if status and status not in _RUNNING:
                time.sleep(0.2)  # its last progress may arrive a moment later
                return self._progress_of(job)
            process = startup_kit.process_file(self.hub.path / "server" / job)
            # queued, or its process has not reported yet: for as long as that takes
            if status in _QUEUED or (mine is None and read_pid(process) is not None):
                changed = time.monotonic()
                time.sleep(_PAUSE)
                continue
            patience = STALE if mine is None and not process.exists() else SILENT
            if time.monotonic() - changed > patience and not is_locked(self.run.folder):
                last = self._progress_of(job)  # it may have ended since its progress was read
                if last is not None and last != mine:
                    continue
                if mine is None or mine.stage != INTERRUPTED:
                    self._tell("the job is gone; FLARE only thinks that it runs")
                with contextlib.suppress(ConnectionError):
                    self._open().abort(job)
                return mine
            time.sleep(_PAUSE)

    # -- FLARE

    def _open(self) -> Session:
        if self._session is None:
            self._session = Session(self.hub.path / "admin", startup_kit.ADMIN)
        return self._session

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _asked(self, ask: Callable[[Session], Answer], otherwise: Answer) -> Answer:
        """Return the reply of FLARE's server; without one, close the session and wait a second."""
        try:
            return ask(self._open())
        except ConnectionError:
            self._tell("the server does not answer; is it running? (`silvan study start`)")
            self._close()
            time.sleep(1.0)
            return otherwise

    def _status(self, job: str) -> str:
        """Return the status of a job in FLARE's words; empty if the server does not respond."""
        return self._asked(lambda session: session.status(job), "").split(":")[0]

    def _connected(self) -> list[str]:
        last_seen: dict[str, float] = self._asked(lambda session: session.sites(), {})
        return [site for site, at in last_seen.items() if time.time() - at < RECENT]

    def _tell(self, line: str) -> None:
        """Report a line unless it was the last one reported."""
        if line != self._last_line:
            self._last_line = line
            self._report(line)


def _listed(sites: list[str]) -> str:
    return f"site{'s' if len(sites) > 1 else ''} {', '.join(sites)}" if sites else ""
