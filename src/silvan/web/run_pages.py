"""The pages of runs on this machine: of a run folder, or of a folder with study files and the runs below it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from silvan.deploy.service.process import Background
from silvan.errors import InputError, SilvanError
from silvan.study.run_folder import RUN
from silvan.study.study_file import read_study
from silvan.web.pages import File, Page, stamp
from silvan.web.run_view import folder_in, look_at, process_of_run, report_of, sentences_of

_RUNS = "runs"


class FitFile(NamedTuple):
    """A study file in the folder."""

    file: str
    name: str
    run: str  # its run, if it has begun and is shown here
    problem: str


class RunsFolder:
    """A folder with runs as pages; a run folder is one of a single run."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.single = (self.path / RUN).is_file()
        if not self.single and not self._folders() and not list(self.path.glob("*.toml")):
            raise InputError(
                f"{path}: there is nothing to show: neither a coordinator's folder, nor a site's, nor one with runs "
                "or study files"
            )

    @property
    def name(self) -> str:
        """What all its pages are headed."""
        return self.path.name

    def links(self) -> list[tuple[str, str]]:
        """Return the pages to choose from."""
        return [("/", "Runs")]

    def _folders(self) -> dict[str, Path]:
        """Return the run folders, by name: this one, those in it, or those in ``runs`` in it."""
        if self.single:
            return {self.path.name: self.path}
        found: dict[str, Path] = {}
        for parent in (self.path, self.path / _RUNS):
            for path in parent.glob("*"):
                if (path / RUN).is_file() or process_of_run(path).pid is not None:
                    found.setdefault(path.name, path)
        return found

    def state(self) -> object:
        """Return something that differs when a page may show something else."""
        runs = self._folders().values()
        names = ("progress.json", RUN, "run.log", "report.html")
        files = [*sorted(self.path.glob("*.toml")), *(run / name for run in runs for name in names)]
        return stamp(files), [process_of_run(run).pid for run in runs], int(time.time() / 10)

    # -- pages

    def page(self, path: str) -> Page | None:
        """Return a page."""
        if path == "" and not self.single:
            newest = sorted(self._folders().values(), key=lambda run: run.stat().st_mtime, reverse=True)
            return Page("Runs", "runs.html.jinja", {"runs": [look_at(run) for run in newest], "files": self._files()})
        run = self._find(self.path.name if path == "" else path.removeprefix("studies/"))
        if run is None or not (path == "" or path.startswith("studies/")):
            return None
        view = look_at(run)
        values = {"run": view, "sentences": sentences_of(view.record), "text": "", "act": "fit"}
        again = next(({"file": file.file} for file in self._files() if file.run == view.key), {})
        can_cancel = process_of_run(run).pid is not None
        return Page(view.name, "run.html.jinja", {**values, "again": again, "can_cancel": can_cancel})

    def file(self, path: str) -> File | None:
        """Return a report."""
        parts = path.split("/")
        if len(parts) != 3 or (parts[0], parts[2]) != ("studies", "report"):
            return None
        run = self._find(parts[1])
        record = None if run is None else look_at(run).record
        return None if run is None or record is None else File(report_of(record, run), "text/html")

    def _find(self, key: str) -> Path | None:
        run = self._folders().get(key)
        return None if run is None else folder_in(run.parent, key)

    def _files(self) -> list[FitFile]:
        found, shown = [], {path.resolve(): key for key, path in self._folders().items()}
        for path in sorted(self.path.glob("*.toml")):
            try:
                study = read_study(path)
            except (SilvanError, OSError) as error:
                found.append(FitFile(path.name, path.stem, "", str(error)))
                continue
            found.append(FitFile(path.name, study.name, shown.get(study.run_folder.resolve(), ""), ""))
        return found

    # -- actions

    def actions(self) -> dict[str, Callable[[dict[str, str]], str]]:
        """Return what forms may do."""
        return {"run": self._run, "cancel": self._stop}

    def _run(self, form: dict[str, str]) -> str:
        """Start ``silvan fit``: it goes on when this page is closed."""
        name = form.get("file", "")
        if name not in [path.name for path in self.path.glob("*.toml")]:
            raise InputError("there is no such study file in the folder")
        study = read_study(self.path / name)
        study.run_folder.mkdir(parents=True, exist_ok=True)
        process = process_of_run(study.run_folder.resolve())
        process.log.unlink(missing_ok=True)
        process.start(["-u", "-m", "silvan.cli.main", "fit", name], self.path)
        return f"Started: {study.name}."

    def _stop(self, form: dict[str, str]) -> str:
        run = self._find(form.get("run", ""))
        process: Background | None = None if run is None else process_of_run(run)
        stopped = process is not None and process.stop()
        return "Stopped; run it again, and it goes on where it stopped." if stopped else "It was not running."
