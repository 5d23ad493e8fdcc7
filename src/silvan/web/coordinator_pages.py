"""The pages of a coordinator's folder: the federation's sites and studies, and what its owner can start and stop."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from silvan.deploy.membership.coordinator_folder import HUB, Hub
from silvan.deploy.membership.startup_kit import ADMIN
from silvan.deploy.service.start_stop import processes_of, start_hub, stop_all
from silvan.deploy.service.status import hub_status
from silvan.deploy.service.supervise import CANCELLED, RECENT, Supervisor
from silvan.errors import InputError, SilvanError
from silvan.federation.flare import Session
from silvan.study.study_file import read_remote_study
from silvan.util.folder_lock import is_locked
from silvan.web.pages import File, Page, stamp
from silvan.web.run_view import STUDY, RunView, folder_in, look_at, process_of_run, report_of, sentences_of

_RUNS = "runs"
_ASK_EVERY, _NOBODY_LOOKS = 3.0, 20.0


class StudyFile(NamedTuple):
    """A study file in the coordinator's folder."""

    file: str
    name: str
    run: str  # its run folder, if it has begun
    problem: str


class CoordinatorFolder:
    """The coordinator's folder as pages."""

    def __init__(self, path: Path) -> None:
        self.hub = Hub(path)
        self.name = f"coordinator of {self.hub.read().name}"
        self._presence = Presence(self.hub)

    def links(self) -> list[tuple[str, str]]:
        """Return the pages to choose from."""
        return [("/", "Studies"), ("/sites", "Sites")]

    def state(self) -> object:
        """Return something that differs when a page may show something else."""
        folder = self.hub.path
        runs = list((folder / _RUNS).glob("*"))
        names = ("progress.json", "run.json", "run.log", CANCELLED, "report.html")
        files = [folder / HUB, *sorted(folder.glob("*.toml")), *(run / name for run in sorted(runs) for name in names)]
        pids = [process.pid for process in processes_of(self.hub)] + [process_of_run(run).pid for run in runs]
        return stamp(files), pids, self._presence.connected(), int(time.time() / 10)

    # -- pages

    def page(self, path: str) -> Page | None:
        """Return a page."""
        if path == "":
            return Page("Studies", "coordinator.html.jinja", self._overview())
        if path == "sites":
            return Page("Sites", "sites.html.jinja", self._status())
        first, _, key = path.partition("/")
        run = folder_in(self.hub.path / _RUNS, key) if first == "studies" else None
        return None if run is None else self._study(run)

    def file(self, path: str) -> File | None:
        """Return a report."""
        parts = path.split("/")
        run = folder_in(self.hub.path / _RUNS, parts[1]) if len(parts) == 3 else None
        if run is None or (parts[0], parts[2]) != ("studies", "report"):
            return None
        record = self._look(run).record
        return None if record is None else File(report_of(record, run), "text/html")

    def _status(self) -> dict[str, Any]:
        connected = self._presence.connected()
        return {"status": hub_status(self.hub, connected or ()), "asking": connected is None}

    def _overview(self) -> dict[str, Any]:
        folders = [path for path in (self.hub.path / _RUNS).glob("*") if path.is_dir()]
        newest = sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)
        return {**self._status(), "runs": [self._look(path) for path in newest], "files": self._files()}

    def _look(self, run: Path) -> RunView:
        return look_at(run, is_locked(run), (run / CANCELLED).exists())

    def _study(self, run: Path) -> Page:
        view = self._look(run)
        text = (run / STUDY).read_text(errors="replace") if (run / STUDY).is_file() else ""
        values = {"run": view, "sentences": sentences_of(view.record), "text": text, "act": "study"}
        return Page(
            view.name,
            "run.html.jinja",
            {**values, "again": {"run": run.name} if text else {}, "can_cancel": bool(text)},
        )

    def _files(self) -> list[StudyFile]:
        found = []
        for path in sorted(self.hub.path.glob("*.toml")):
            try:
                study = read_remote_study(path)
            except (SilvanError, OSError) as error:
                found.append(StudyFile(path.name, path.stem, "", str(error)))
                continue
            begun = (self.hub.path / _RUNS / study.folder).is_dir()
            found.append(StudyFile(path.name, study.name, study.folder if begun else "", ""))
        return found

    # -- actions

    def actions(self) -> dict[str, Callable[[dict[str, str]], str]]:
        """Return what forms may do."""
        return {"start": self._start, "stop": self._stop, "run": self._run, "cancel": self._cancel}

    def _start(self, form: dict[str, str]) -> str:
        start_hub(self.hub)
        return "The coordinator runs: sites can join and connect."

    def _stop(self, form: dict[str, str]) -> str:
        stopped = stop_all(processes_of(self.hub))
        return "Stopped; a study that runs goes on when it is started again." if stopped else "Nothing was running."

    def _run(self, form: dict[str, str]) -> str:
        """Start the command that runs a study: it goes on when this page is closed."""
        path = self._study_file(form)
        study = read_remote_study(path)
        run = Supervisor(self.hub, study).run.folder  # which checks that all its sites have joined
        run.mkdir(parents=True, exist_ok=True)
        words = ["-u", "-m", "silvan.cli.main", "study", "run", str(path), "--in", str(self.hub.path)]
        process = process_of_run(run)
        process.log.unlink(missing_ok=True)
        process.start(words, self.hub.path)
        return f"Started: {study.name}."

    def _cancel(self, form: dict[str, str]) -> str:
        ended = Supervisor(self.hub, read_remote_study(self._study_file(form))).cancel()
        return "Cancelled." if ended else "Nothing to cancel: it has not begun, or is done."

    def _study_file(self, form: dict[str, str]) -> Path:
        """Return the study file that a form names: one in the folder, or that of a run."""
        run, name = folder_in(self.hub.path / _RUNS, form.get("run", "")), form.get("file", "")
        if run is not None:
            return run / STUDY
        if name not in [path.name for path in self.hub.path.glob("*.toml")]:
            raise InputError("there is no such study file in the coordinator's folder")
        return self.hub.path / name


class Presence:
    """Which sites are connected, asked of the server every few seconds while somebody looks."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._lock = hub, threading.Lock()
        self._found: list[str] | None = None
        self._looked, self._thread = 0.0, threading.Thread()

    def connected(self) -> list[str] | None:
        """Return the sites that were connected a moment ago; None until that is known."""
        with self._lock:
            self._looked = time.monotonic()
            if not self._thread.is_alive():
                self._thread = threading.Thread(target=self._ask, daemon=True, name="silvan-presence")
                self._thread.start()
        return self._found

    def _ask(self) -> None:
        session: Session | None = None
        try:
            while time.monotonic() - self._looked < _NOBODY_LOOKS:
                try:
                    if processes_of(self._hub)[0].pid is None:
                        raise ConnectionError
                    session = session or Session(self._hub.path / "admin", ADMIN, timeout=5.0)
                    seen = session.sites()
                    self._found = sorted(site for site, at in seen.items() if time.time() - at < RECENT)
                except ConnectionError:
                    self._found = []
                    if session is not None:
                        session.close()
                    session = None
                time.sleep(_ASK_EVERY)
        finally:
            if session is not None:
                session.close()
