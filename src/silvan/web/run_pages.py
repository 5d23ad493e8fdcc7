"""The pages of runs on this machine: of one run folder, or of a folder with study files and runs."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from silvan.deploy.service.process import Background
from silvan.errors import InputError, SilvanError
from silvan.study.run_folder import RUN
from silvan.study.study import Study
from silvan.study.study_file import read_study
from silvan.web.pages import File, Page, stamp
from silvan.web.run_view import RunView, chart_of, folder_in, look_at, process_of_run, report_of, sentences_of

RUNS = "runs"
_WATCHED = ("progress.json", RUN, "run.log", "report.html", "cancelled", "supervised.json")


class StudyFile(NamedTuple):
    """A study file in a folder."""

    file: str
    name: str
    run: str  # its run folder, if it has started and is shown here
    problem: str


class StudiesFolder(ABC):
    """A folder with study files and runs as pages; subclasses know where runs are and how studies run."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name

    @abstractmethod
    def _folders(self) -> dict[str, Path]:
        """Return the run folders, by name."""

    @abstractmethod
    def _read(self, file: Path) -> Study:
        """Read a study file."""

    @abstractmethod
    def _run_folder(self, study: Study) -> Path:
        """Return the run folder of a study."""

    def _look(self, run: Path) -> RunView:
        return look_at(run)

    def _find(self, key: str) -> Path | None:
        run = self._folders().get(key)
        return None if run is None else folder_in(run.parent, key)

    def _newest(self) -> list[RunView]:
        runs = sorted(self._folders().values(), key=lambda run: run.stat().st_mtime, reverse=True)
        return [self._look(run) for run in runs]

    def _files(self) -> list[StudyFile]:
        files, shown = [], {path.resolve(): key for key, path in self._folders().items()}
        for path in sorted(self.path.glob("*.toml")):
            try:
                study = self._read(path)
            except (SilvanError, OSError) as error:
                files.append(StudyFile(path.name, path.stem, "", str(error)))
                continue
            files.append(StudyFile(path.name, study.name, shown.get(self._run_folder(study).resolve(), ""), ""))
        return files

    def state(self) -> object:
        """Return a value that changes whenever a page may change."""
        runs = sorted(self._folders().values())
        files = [*sorted(self.path.glob("*.toml")), *(run / name for run in runs for name in _WATCHED)]
        return stamp(files), [process_of_run(run).pid for run in runs], int(time.time() / 10)

    def file(self, path: str) -> File | None:
        """Return a report."""
        parts = path.split("/")
        run = self._find(parts[1]) if len(parts) == 3 and (parts[0], parts[2]) == ("studies", "report") else None
        record = None if run is None else self._look(run).record
        return None if run is None or record is None else File(report_of(record, run), "text/html")

    def _run_page(self, view: RunView, text: str, act: str, again: dict[str, str], can_cancel: bool) -> Page:
        """Return the page of a run; ``again`` are the fields of the form that runs it again."""
        values = {
            "run": view,
            "sentences": sentences_of(view.record),
            "chart": chart_of(view.record),
            "text": text,
            "act": act,
        }
        return Page(view.name, "run.html.jinja", {**values, "again": again, "can_cancel": can_cancel})

    def _study_file(self, form: dict[str, str]) -> Path:
        """Return the study file that a form names."""
        name = form.get("file", "")
        if name not in [path.name for path in self.path.glob("*.toml")]:
            raise InputError("there is no such study file in the folder")
        return self.path / name


class RunsFolder(StudiesFolder):
    """A folder with runs of ``silvan fit`` as pages, or a single run folder."""

    links = (("/", "Runs"),)

    def __init__(self, path: Path) -> None:
        super().__init__(path.resolve(), path.resolve().name)
        self.single = (self.path / RUN).is_file()
        if not self.single and not self._folders() and not list(self.path.glob("*.toml")):
            raise InputError(
                f"{path}: there is nothing to show: it is not a coordinator's or a site's folder, and has no runs or "
                "study files"
            )

    def _folders(self) -> dict[str, Path]:
        """Return the run folders by name: this folder, or those in it and in its folder ``runs``."""
        if self.single:
            return {self.path.name: self.path}
        runs: dict[str, Path] = {}
        for parent in (self.path, self.path / RUNS):
            for path in parent.glob("*"):
                if (path / RUN).is_file() or process_of_run(path).pid is not None:
                    runs.setdefault(path.name, path)
        return runs

    def _read(self, file: Path) -> Study:
        return read_study(file)

    def _run_folder(self, study: Study) -> Path:
        return study.run_folder

    def _run(self, form: dict[str, str]) -> str:
        """Start the command that runs a study; it continues when this page is closed."""
        file = self._study_file(form)
        study = self._read(file)
        run = self._run_folder(study).resolve()
        run.mkdir(parents=True, exist_ok=True)
        process = process_of_run(run)
        process.log.unlink(missing_ok=True)
        process.start(["-u", "-m", "silvan.cli.main", "fit", file.name], self.path)
        return f"Started: {study.name}."

    def page(self, path: str) -> Page | None:
        """Return a page."""
        if path == "" and not self.single:
            return Page("Runs", "runs.html.jinja", {"runs": self._newest(), "files": self._files()})
        run = self._find(self.path.name if path == "" else path.removeprefix("studies/"))
        if run is None or not (path == "" or path.startswith("studies/")):
            return None
        view = self._look(run)
        again = next(({"file": file.file} for file in self._files() if file.run == view.key), {})
        return self._run_page(view, "", "fit", again, process_of_run(run).pid is not None)

    def actions(self) -> dict[str, Callable[[dict[str, str]], str]]:
        """Return the actions of forms."""
        return {"run": self._run, "cancel": self._stop}

    def _stop(self, form: dict[str, str]) -> str:
        run = self._find(form.get("run", ""))
        process: Background | None = None if run is None else process_of_run(run)
        stopped = process is not None and process.stop()
        return "Stopped; run it again to resume." if stopped else "It was not running."
