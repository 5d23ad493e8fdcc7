"""Interleaved timing, memory of one job, and a report with goals and results."""

import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

PEERS = ("silvan", "scikit-learn", "xgboost", "lightgbm", "numba", "numpy")


@dataclass
class Goal:
    """A goal, as a number with a bound."""

    text: str
    value: float
    most: float | None = None
    least: float | None = None

    @property
    def reached(self) -> bool:
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)

    def row(self) -> str:
        bound = f"at most {self.most:g}" if self.most is not None else f"at least {self.least:g}"
        return f"| {self.text} | {bound} | {self.value:.3g} | {'yes' if self.reached else '**no**'} |"


@dataclass
class Report:
    """The results of a benchmark."""

    title: str
    about: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[str]] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.about, ""]
        if self.rows:
            lines += [f"| {' | '.join(self.columns)} |", f"|{' --- |' * len(self.columns)}"]
            lines += [f"| {' | '.join(row)} |" for row in self.rows] + [""]
        if self.goals:
            lines += ["| goal | bound | measured | reached |", "| --- | --- | --- | --- |"]
            lines += [goal.row() for goal in self.goals] + [""]
        return "\n".join(lines + [note + "\n" for note in self.notes])

    def publish(self) -> None:
        """Print the report, or hand it to ``python -m benchmarks``."""
        target = os.environ.get("SILVAN_BENCH_OUT")
        if target:
            Path(target).write_text(json.dumps(asdict(self)))
        print(self.markdown(), flush=True)


def interleave(jobs: dict[str, Callable[[], object]], repeats: dict[str, int] | int) -> dict[str, list[float]]:
    """Time jobs in turn, round after round, so that a slow period of the machine affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    most = repeats if isinstance(repeats, int) else max(repeats.values())
    for turn in range(most):
        for name, job in jobs.items():
            if turn >= (repeats if isinstance(repeats, int) else repeats.get(name, most)):
                continue
            gc.collect()
            start = time.perf_counter()
            own = job()
            # a job with overhead, such as starting processes, times itself
            times[name].append(own if isinstance(own, float) else time.perf_counter() - start)
            print(f"  {name}: {times[name][-1]:.3f} s", file=sys.stderr, flush=True)
    return times


def ratio(times: dict[str, list[float]], a: str, b: str) -> tuple[float, str]:
    """Return the median of a's time over b's in the same round, with the smallest and largest."""
    ratios = [x / y for x, y in zip(times[a], times[b], strict=False)]
    return float(np.median(ratios)), f"{np.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def peak_memory(module: str, job: str) -> int:
    """Run ``module.memory_job(job)`` in a separate process and return the bytes it needed beyond its input."""
    code = f"import {module} as m, benchmarks.common as c; print('PEAK', c.own_peak(*m.memory_job({job!r})))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    return int(out.split("PEAK")[1])


def own_peak(warm: Callable[[], object], job: Callable[[], object]) -> int:
    """Return the peak of resident memory during a job above what was resident before it."""
    warm()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    keep = job()
    peak = _status("VmHWM")
    del keep
    return peak - before


def whole_peak() -> int:
    """Return the peak of this process's resident memory so far."""
    return _status("VmHWM")


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return 1024 * int(line.split()[1])
    raise KeyError(key)


def machine() -> str:
    """Describe the machine and the versions in one paragraph."""
    cpu = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x),
        platform.processor(),
    )
    versions = []
    for name in PEERS:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} absent")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{cpu}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB; Python {platform.python_version()}; "
        + ", ".join(versions)
    )


def synthetic(rows: int, columns: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Make the table that most benchmarks use: 12 informative columns, 6 mixtures of them, noise."""
    from sklearn.datasets import make_classification

    X, y = make_classification(
        rows, columns, n_informative=12, n_redundant=6, flip_y=0.05, class_sep=0.8, random_state=seed
    )
    return X.astype(np.float32), y
