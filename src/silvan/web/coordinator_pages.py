"""The pages of a coordinator's folder: sites, studies, and the processes that its owner can start and stop."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from silvan.deploy.membership.coordinator_folder import HUB, CoordinatorFiles
from silvan.deploy.membership.startup_kit import ADMIN
from silvan.deploy.service.start_stop import processes_of, start_coordinator, stop_all
from silvan.deploy.service.status import coordinator_status
from silvan.deploy.service.submissions import CANCELLED, SUPERVISED, Supervised, cancel, pending, submit
from silvan.deploy.service.supervise import RECENT, Supervisor
from silvan.federation.flare import Session
from silvan.study.run_folder import Run
from silvan.study.study import Study
from silvan.study.study_file import read_remote_study
from silvan.util.files import try_json
from silvan.util.folder_lock import is_locked
from silvan.web.pages import Page, stamp
from silvan.web.run_pages import RUNS, StudiesFolder
from silvan.web.run_view import STUDY, RunView, look_at

_ASK_EVERY, _NOBODY_LOOKS = 3.0, 20.0


class CoordinatorFolder(StudiesFolder):
    """The coordinator's folder as pages."""

    links = (("/", "Studies"), ("/sites", "Sites"))

    def __init__(self, path: Path) -> None:
        self.hub = CoordinatorFiles(path)
        super().__init__(self.hub.path, f"coordinator of {self.hub.read().name}")
        self._presence = Presence(self.hub)

    def state(self) -> object:
        """Return a value that changes whenever a page may change."""
        pids = [process.pid for process in processes_of(self.hub)]
        return super().state(), stamp([self.path / HUB]), pids, self._presence.connected()

    def _folders(self) -> dict[str, Path]:
        return {path.name: path for path in (self.path / RUNS).glob("*") if path.is_dir()}

    def _read(self, file: Path) -> Study:
        return read_remote_study(file)

    def _run_folder(self, study: Study) -> Path:
        return self.path / RUNS / study.folder

    def _run(self, form: dict[str, str]) -> str:
        """Submit a study; the coordinator's process runs it to its end."""
        study = self._read(self._study_file(form))
        submit(Supervisor(self.hub, study), form["by"])
        return f"Submitted: {study.name}."

    def _look(self, run: Path) -> RunView:
        """Return the state of a study, from what its job writes and what the coordinator's process does with it."""
        wanted, at_work = pending(Run(run)) is not None, is_locked(run)
        view = look_at(run, wanted or at_work, (run / CANCELLED).exists())
        supervised = try_json(run / SUPERVISED, Supervised) or Supervised()
        if view.state == "running" and supervised.lines and not at_work:
            return view._replace(text=supervised.lines[-1][1])
        if view.state in ("stopped", "failed") and supervised.ended and supervised.error:
            return view._replace(state="failed", text=supervised.error)
        return view

    # -- pages

    def page(self, path: str) -> Page | None:
        """Return a page."""
        if path == "":
            values = {**self._status(), "runs": self._newest(), "files": self._files()}
            return Page("Studies", "coordinator.html.jinja", values)
        if path == "sites":
            return Page("Sites", "sites.html.jinja", self._status())
        first, _, key = path.partition("/")
        run = self._find(key) if first == "studies" else None
        if run is None:
            return None
        text = (run / STUDY).read_text(errors="replace") if (run / STUDY).is_file() else ""
        return self._run_page(self._look(run), text, "study", {"run": run.name} if text else {}, bool(text))

    def _status(self) -> dict[str, Any]:
        connected = self._presence.connected()
        return {"status": coordinator_status(self.hub, connected or ()), "asking": connected is None}

    # -- actions

    def actions(self) -> dict[str, Callable[[dict[str, str]], str]]:
        """Return the actions of forms."""
        return {"start": self._start, "stop": self._stop, "run": self._run, "cancel": self._cancel}

    def _start(self, form: dict[str, str]) -> str:
        start_coordinator(self.hub)
        return "The coordinator is running: sites can join and connect."

    def _stop(self, form: dict[str, str]) -> str:
        stopped = stop_all(processes_of(self.hub))
        return "Stopped; a running study resumes at the next start." if stopped else "Nothing was running."

    def _cancel(self, form: dict[str, str]) -> str:
        ended = cancel(Run(self.hub.path / "runs" / self._read(self._study_file(form)).folder), form["by"])
        return "Cancelled." if ended else "Nothing to cancel: the study has not started, or is done."

    def _study_file(self, form: dict[str, str]) -> Path:
        """Return the study file that a form names: one in the folder, or that of a run."""
        run = self._find(form.get("run", ""))
        return super()._study_file(form) if run is None else run / STUDY


class Presence:
    """Which sites are connected, polled every few seconds while somebody is looking."""

    def __init__(self, hub: CoordinatorFiles) -> None:
        self._hub, self._lock = hub, threading.Lock()
        self._connected: list[str] | None = None
        self._looked, self._thread = 0.0, threading.Thread()

    def connected(self) -> list[str] | None:
        """Return the sites that were connected a moment ago; None until the first poll."""
        with self._lock:
            self._looked = time.monotonic()
            if not self._thread.is_alive():
                self._thread = threading.Thread(target=self._ask, daemon=True, name="silvan-presence")
                self._thread.start()
        return self._connected

    def _ask(self) -> None:
        session: Session | None = None
        while time.monotonic() - self._looked < _NOBODY_LOOKS:
            try:
                if processes_of(self._hub)[0].pid is None:
                    raise ConnectionError
                session = session or Session(self._hub.path / "admin", ADMIN, timeout=5.0)
                seen = session.sites()
                self._connected = sorted(site for site, at in seen.items() if time.time() - at < RECENT)
            except ConnectionError:
                self._connected = []
                if session is not None:
                    session.close()
                session = None
            time.sleep(_ASK_EVERY)
        if session is not None:
            session.close()
