"""Runs the cases of experiments, several at a time, and stores each finished one at once."""

import os
import warnings
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

from experiments.reproduce.data import Downloads, find
from experiments.reproduce.keep import Kept
from experiments.reproduce.paper import Item, NotHere, Paper, Record, Run

from silvan.study.progress_bars import ProgressBars
from silvan.util.readable import count_of

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"), "1")

Outcome = tuple[str, list[Record] | str]
"""How a case ended, "done", "absent" or "failed", and its rows or what there is to say."""


@dataclass
class Outcomes:
    """The outcome of an experiment: finished cases, and messages about the others."""

    kept: dict[str, Kept]
    todo: list[tuple[Run, Record]] = field(default_factory=list)
    total: int = 0
    done: int = 0
    absent: dict[str, int] = field(default_factory=dict)  # what is missing, and how many cases need it
    failed: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def plan_paper(paper: Paper, items: list[Item], quick: bool, folder: Path) -> Outcomes:
    """List the unfinished cases that some items need, all tables and figures seed by seed."""
    files = {run.name: folder / (run.kept or paper.name) / f"{run.name}.csv" for run in paper.runs}
    outcomes = Outcomes({run.name: Kept(files[run.name], run) for run in paper.runs})
    missing = _missing(paper, outcomes)
    for run in paper.runs:
        if all(item.run != run.name for item in items):
            continue
        cases, done = list(run.cases(quick)), outcomes.kept[run.name].done
        outcomes.total += len(cases)
        for settings in cases:
            if run.key(settings) in done:
                outcomes.done += 1
            elif settings.get("data") in missing:
                text = missing[settings["data"]]
                outcomes.absent[text] = outcomes.absent.get(text, 0) + 1
            else:
                outcomes.todo.append((run, settings))
    # so that an interrupted run has something of everything
    outcomes.todo.sort(key=lambda case: case[1].get("seed", 0))
    return outcomes


def run_cases(paper: Paper, outcomes: Outcomes, jobs: int, progress: ProgressBars) -> None:
    """Run the open cases; every finished case is stored at once."""
    todo, before = outcomes.todo, outcomes.done
    with progress.step(f"{paper.name}: {count_of(len(todo), 'case')}") as step:
        for n, (run, settings, (how, what)) in enumerate(_results(paper, todo, jobs), start=1):
            if isinstance(what, list):
                outcomes.kept[run.name].add(settings, what)
                outcomes.done += 1
            elif how == "absent":
                outcomes.absent[what] = outcomes.absent.get(what, 0) + 1
            else:
                outcomes.failed.append(f"{run.name} {settings}: {what}")
            step.advance(n, len(todo))
            step.detail = f"{before + n} of {before + len(todo)}"


def _missing(paper: Paper, outcomes: Outcomes) -> dict[str, str]:
    """Return messages about missing data sets; remark on files of another version."""
    missing = {}
    for called, name in paper.data.items():
        try:
            remark = find(name)
        except NotHere as error:
            missing[called] = str(error)
        else:
            outcomes.remarks += [remark] if remark else []
    return missing


def _results(paper: Paper, todo: list[tuple[Run, Record]], jobs: int) -> Iterator[tuple[Run, Record, Outcome]]:
    """Yield the outcome of every case as it ends; in this process if one at a time is enough."""
    if jobs == 1 or len(todo) < 2:
        for run, settings in todo:
            yield run, settings, make_rows(paper.module, run.name, settings)
        return
    with _pool(min(jobs, len(todo))) as pool:
        waiting = list(reversed(todo))
        running: dict[Future[Outcome], tuple[Run, Record]] = {}
        while waiting or running:
            while waiting and len(running) < 2 * jobs:
                run, settings = waiting.pop()
                running[pool.submit(make_rows, paper.module, run.name, settings)] = run, settings
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                run, settings = running.pop(future)
                try:
                    yield run, settings, future.result()
                except BrokenProcessPool:
                    text = "a process ended without a word, perhaps for lack of memory; --jobs 1 needs less"
                    yield run, settings, ("failed", text)
                    for run, settings in [*running.values(), *reversed(waiting)]:
                        yield run, settings, ("failed", "not run, since a process ended")
                    return


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes, each with one thread; after an interruption of this one, their work is dropped."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_begin, initargs=(Downloads.allowed,))
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _begin(downloads: bool) -> None:
    """Prepare a process: an interruption concerns only the process that started it."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Downloads.allowed = downloads


def make_rows(module: str, run: str, settings: Record) -> Outcome:
    """Run one case; its errors are reported and do not stop other cases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            rows = list(import_module(module).PAPER.run(run).make(**settings))
        except NotHere as error:
            return "absent", str(error)
        except ImportError as error:
            return "absent", f"the package {error.name or error} is not installed: pip install it to run these cases"
        except Exception as error:  # one case of many
            return "failed", f"{type(error).__name__}: {error}"
    return ("done", rows) if rows else ("failed", "no rows")
