"""What a page shows of a run folder: the state of the run, the progress of each site, and the results.

Any file in the folder may be half written or come from elsewhere; the page names what it cannot read.
"""

import time
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from markupsafe import Markup

from silvan.deploy.jobs.job_progress import PROGRESS, StudyProgress
from silvan.deploy.service.process import Background
from silvan.errors import InputError, SilvanError
from silvan.report.html import plot_html, render
from silvan.report.summary import read_beside, summarise
from silvan.study.run_folder import RUN, Record, Run
from silvan.study.toml_lines import read_toml
from silvan.util.files import file_name, try_json

COMMAND = "run"
"""The name of the process that runs a study; its log and its id are in the run folder."""

STUDY = "study.toml"
"""The study's text, in the run folder of a study between machines."""

_RECENT = 20.0
"""Seconds without progress after which a run with an unknown process counts as stopped."""


class SiteView(NamedTuple):
    """The progress of a site."""

    name: str
    state: str  # "ready", "waiting" or "lost"
    text: str
    round: int


class RunView(NamedTuple):
    """The state of a run."""

    key: str  # the name of its folder
    name: str
    state: str  # "running", "done", "failed", "stopped", "cancelled" or "unreadable"
    text: str  # one line
    stage: str
    round: int
    rounds: int
    sites: list[SiteView]
    record: Record | None

    @property
    def shown(self) -> str:
        """The state in words."""
        return "cannot be read" if self.state == "unreadable" else self.state

    @property
    def spoken(self) -> str:
        """What a screen reader announces when it changes, which is not every round."""
        waits = [site.name for site in self.sites if site.state == "waiting"] if self.state == "running" else []
        more = f"; waiting for {', '.join(waits[:3])}{' and others' if len(waits) > 3 else ''}" if waits else ""
        return f"{self.name}: {self.stage if self.state == 'running' else self.shown}{more}"


def process_of_run(folder: Path) -> Background:
    """Return the process that runs a study, if this page started it."""
    return Background(folder, COMMAND)


def look_at(folder: Path, locked: bool = False, cancelled: bool = False) -> RunView:
    """Return the state of a run; ``locked`` means that a job is working on it."""
    record, problem = _read_record(folder)
    progress = try_json(folder / PROGRESS, StudyProgress)
    process = process_of_run(folder)
    started = process.pid is not None
    ended = progress is not None and progress.final and not (started and _began_later(folder))
    state, text = "running", ""
    if problem:
        state, text = "unreadable", problem
    elif record is not None and record.status == "done" and (progress is None or ended or not started):
        state = "done"
    elif cancelled and not started:
        state, text = "cancelled", "It was cancelled; run it again to resume."
    elif ended and progress is not None and progress.error:
        state, text = "failed", progress.error
    elif not started and not locked and not _is_recent(folder):
        words = _last_words(process)
        state, text = ("failed", words) if words else ("stopped", "Run it again to resume.")
    elif progress is None or not locked:
        text = _last_words(process)
    name, at = _name_of(folder) if record is None else record.name, progress or StudyProgress("")
    sites = _sites(record, at, state)
    return RunView(folder.name, name, state, text, at.stage, at.round, at.rounds, sites, record)


def _name_of(folder: Path) -> str:
    """Return the name of a study, or of the folder if the study has no name."""
    try:
        name = read_toml(folder / STUDY)[1].get("name")
    except InputError:
        return folder.name
    return name if isinstance(name, str) and name.strip() else folder.name


def _began_later(folder: Path) -> bool:
    """Whether the process started after the last progress was written, by an earlier process."""
    try:
        return (folder / f"{COMMAND}.pid").stat().st_mtime > (folder / PROGRESS).stat().st_mtime
    except OSError:
        return True


def _sites(record: Record | None, progress: StudyProgress, state: str) -> list[SiteView]:
    names, views = [] if record is None else [site.name for site in record.sites], []
    for name in dict.fromkeys([*names, *sorted({*progress.answered, *progress.waiting, *progress.lost})]):
        at = progress.answered.get(name, 0)
        if name in progress.lost:
            views.append(SiteView(name, "lost", progress.lost[name], at))
        elif name in progress.waiting and state == "running":
            views.append(SiteView(name, "waiting", progress.waiting[name], at))
        else:
            views.append(SiteView(name, "ready", f"answered round {at}" if at else "", at))
    return sorted(views, key=lambda site: site.state == "ready")  # sites that keep others waiting come first


def _read_record(folder: Path) -> tuple[Record | None, str]:
    if not (folder / RUN).is_file():
        return None, ""
    try:
        return Run(folder).read(), ""
    except (SilvanError, OSError):
        return None, f"Its {RUN} is damaged, half written, or another kind of file."


def _is_recent(folder: Path) -> bool:
    try:
        return time.time() - (folder / PROGRESS).stat().st_mtime < _RECENT
    except OSError:
        return False


def _last_words(process: Background) -> str:
    """Return the last line of a process's log, without the leading seconds or name."""
    line = process.last_log_line().strip()
    first, _, rest = line.partition(" s  ")
    if rest and first.strip().replace(".", "").isdigit():
        line = rest
    return line.removeprefix("silvan: ").strip()


def report_of(record: Record, folder: Path) -> bytes:
    """Render the report of a run anew, since anybody may have put a file into the folder."""
    return _report(msgspec.json.encode(record), msgspec.json.encode(read_beside(Run(folder), record)))


@lru_cache(maxsize=4)
def _report(record: bytes, beside: bytes) -> bytes:
    summary = summarise(msgspec.json.decode(record, type=Record), msgspec.json.decode(beside))
    return render(summary).encode(errors="replace")


def sentences_of(record: Record | None) -> list[str]:
    """Return the results of a run in sentences; empty before the evaluation."""
    return [] if record is None or not record.evaluation else _sentences(msgspec.json.encode(record))


@lru_cache(maxsize=64)
def _sentences(record: bytes) -> list[str]:
    try:
        sentences: list[str] = summarise(msgspec.json.decode(record, type=Record))["sentences"]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # impossible metrics
        return ["Its metrics are impossible: silvan did not write this file, or somebody changed it."]
    return sentences


def chart_of(record: Record | None) -> Markup:
    """Return the forest plot of a run's gains; empty before the evaluation."""
    return Markup("") if record is None or not record.evaluation else _chart(msgspec.json.encode(record))


@lru_cache(maxsize=64)
def _chart(record: bytes) -> Markup:
    try:
        return plot_html(summarise(msgspec.json.decode(record, type=Record)))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # see ``_sentences``
        return Markup("")


def folder_in(parent: Path, key: str) -> Path | None:
    """Return the folder of this name inside another one, if it exists; never one elsewhere."""
    if not key or key != Path(key).name or key.startswith(".") or file_name(key).startswith("%2E"):
        return None
    path = parent / key
    return path if path.is_dir() and not path.is_symlink() else None
