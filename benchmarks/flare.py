"""What do real machines cost? Site processes with mutual TLS on loopback, beside XGBoost's federated mode."""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks import xgboost_federated
from benchmarks.common import Goal, Report, synthetic
from benchmarks.flare_job import MEASURED, MeasuringCoordinator
from benchmarks.horizontal import BINS, DEPTH, FEATURES, ROWS, TREES
from silvan.deploy.jobs.job_progress import PROGRESS, StudyProgress
from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.joined_site import SETTINGS
from silvan.deploy.service.process import Background
from silvan.deploy.service.start_stop import free_port, process_of, processes_of, start_local, stop_all
from silvan.deploy.service.supervise import Supervisor
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import Run
from silvan.util.files import try_json

STUDY = """
name = "benchmark"
random_state = {seed}
{more}

[learner]
kind = "{kind}"
n_estimators = {trees}
max_depth = {depth}
max_features = {features}
max_bins = {bins}
"""

ROWS_STUDY = ("HistogramForest", 'sampling = "published"')
COORDINATOR = f"{MeasuringCoordinator.__module__}.{MeasuringCoordinator.__qualname__}"
PATIENCE = 60.0


class MeasuringSupervisor(Supervisor):
    """Measures the wire after the study, with a class that the server's folder must allow."""

    coordinator = COORDINATOR


class Measured:
    """The time of one study over several site processes, by part."""

    def __init__(
        self, sites: int, rows: int, repeats: int = 1, between: object = None, *, by_columns: bool = False
    ) -> None:
        self.by_columns = by_columns
        root = str(Path(__file__).parent.parent)  # where processes find the class that measures
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        os.environ["NUMBA_NUM_THREADS"] = "2"
        self.runs: list[StudyProgress] = []
        self.wire: list[dict[str, float]] = []  # seconds of a small round, bytes per second
        self.ends: list[tuple[float, float, float]] = []  # seconds: job start, study, teardown
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            tables = {}
            for i, frame in enumerate(_parts(rows, sites, by_columns)):
                path = folder / f"site{i:02}.parquet"
                frame.write_parquet(path)
                tables[f"site{i:02}"] = str(path)
            hub = CoordinatorFiles.create(folder / "coordinator", "local", list(tables), "localhost", free_port())
            _allow_measuring(hub)
            members = start_local(hub, folder, tables)
            for member in members if by_columns else ():
                settings = member.path / SETTINGS
                settings.write_text(f'id = "id"\n{settings.read_text()}')
            processes = [*map(process_of, members), *processes_of(hub)]
            try:
                for seed in range(repeats):
                    _wait_until_idle(processes)
                    self._one(hub, seed)
                    if callable(between):
                        between()
            finally:
                stop_all(processes)

    def _one(self, hub: CoordinatorFiles, seed: int) -> None:
        kind, more = ("VerticalForest", 'match = "keyed"') if self.by_columns else ROWS_STUDY
        text = STUDY.format(seed=seed, trees=TREES, depth=DEPTH, features=FEATURES, bins=BINS, kind=kind, more=more)
        supervisor = MeasuringSupervisor(hub, parse_remote_study(text))
        begun = time.time()
        run = supervisor.run_to_end()
        ended = time.time()
        progress = try_json(run.file(PROGRESS), StudyProgress)
        assert progress is not None
        at = progress.seconds
        self.wire.append(_read_measured(run))
        self.runs.append(progress)
        self.ends.append(
            (at["agreeing on columns"] - begun, at["done"] - at["agreeing on columns"], ended - at["done"])
        )

    def median(self, what: str) -> float:
        return statistics.median(run.spent[what] for run in self.runs)


def _parts(rows: int, sites: int, by_columns: bool) -> list[pl.DataFrame]:
    """Distribute the usual table, by rows, or by columns with the label at the first party."""
    X, y = synthetic(rows)
    names, label = [f"c{j}" for j in range(X.shape[1])], pl.Series("label", y)
    if not by_columns:
        whole = pl.DataFrame(X, schema=names).with_columns(label)
        return [whole[i::sites] for i in range(sites)]
    ids = pl.Series("id", np.random.default_rng(0).permutation(rows))
    dealt = [pl.DataFrame(X[:, k::sites], schema=names[k::sites]).with_columns(ids) for k in range(sites)]
    return [dealt[0].with_columns(label), *dealt[1:]]


def _wait_until_idle(processes: list[Background]) -> None:
    """Wait until machines that were just started, or that just ended a job, are nearly idle, as usual."""
    time.sleep(12.0)  # some time after a job has begun, a process is prepared for the next one
    ticks, end = os.sysconf("SC_CLK_TCK"), time.monotonic() + PATIENCE
    before = None
    while time.monotonic() < end:
        fields = [
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            for process in processes
            for pid in process.with_children()
        ]
        spent = sum(int(one[11]) + int(one[12]) for one in fields) / ticks
        if before is not None and spent - before < 0.1 * len(processes) / 4:
            return
        before = spent
        time.sleep(2.0)


def _allow_measuring(hub: CoordinatorFiles) -> None:
    """Allow the class that measures, only in the server's folder of this benchmark."""
    path = hub.path / "server" / "local" / "resources.json"
    content = json.loads(path.read_text())
    content["class_allow_list"].append(COORDINATOR)
    path.write_text(json.dumps(content))


def _read_measured(run: Run) -> dict[str, float]:
    """Read the results that the job writes after the study."""
    end = time.monotonic() + PATIENCE
    while not run.file(MEASURED).exists() and time.monotonic() < end:
        time.sleep(0.1)
    return dict(json.loads(run.file(MEASURED).read_text()))


def _line(name: str, found: Measured) -> list[str]:
    """Return a line of the table: the parts of a study's time."""
    measured, (start, _, end), every = found.wire[0], min(found.ends), found.median("all")
    return [
        name,
        f"{every:.2f}",
        f"{found.median('sites') / every:.0%}",
        f"{found.median('wire') / every:.0%}",
        f"{1 - (found.median('sites') + found.median('wire')) / every:.0%}",
        f"{measured['round'] * 1000:.1f} ms",
        f"{measured['bytes a second'] / 1e6:.0f} MB/s",
        f"{start:.1f} s",
        f"{end:.1f} s",
    ]


def _compare(found: Measured, peer: list[float]) -> tuple[float, str]:
    """Return the median of our time over the peer's in the same round, and all of it as text."""
    ours = [run.spent["all"] for run in found.runs]
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    text = (
        f"XGBoost's workers took {min(peer):.1f}-{max(peer):.1f} s, silvan {min(ours):.1f}-{max(ours):.1f} s, "
        f"ratios {min(ratios):.2f}-{max(ratios):.2f}, interleaved."
    )
    return statistics.median(ratios), text


def main(rows: int = ROWS, repeats: int = 3) -> Report:
    peer: list[float] = []
    by_columns: list[float] = []
    two = Measured(2, rows, repeats, lambda: by_columns.append(xgboost_federated.run(rows, 2, True)), by_columns=True)
    four = Measured(4, rows, repeats, lambda: peer.append(xgboost_federated.run(rows, 4)))
    table, starts = [], {}
    for sites in (2, 4, 8, 16):
        found = four if sites == 4 else Measured(sites, rows, 2)
        starts[sites] = min(start for start, _, _ in found.ends)
        table.append(_line(str(sites), found))
    table.append(_line("2, by columns", two))
    (of_rows, said), (of_columns, said_of_columns) = _compare(four, peer), _compare(two, by_columns)
    return Report(
        "Real sites over NVIDIA FLARE",
        f"{rows:,} x 30 rows, {TREES} trees of depth {DEPTH}: every site a process of its own, mutual TLS on "
        "loopback, signed messages, a journal, ledgers. Time is from the first question of training to the last "
        "answer; its shares are those of the slowest site of every wave, of the wire, and of the coordinator.",
        ["sites", "s", "at sites", "wire", "coordinator", "small round", "to a site", "job start", "job end"],
        table,
        [
            Goal("4 sites, time against XGBoost 3.2 federated (plain)", of_rows, most=0.4),
            Goal("2 parties, labels encoded, time against its column split (plain)", of_columns, most=0.6),
            Goal("job start at 4 sites, seconds", starts[4], most=6.0),
            Goal("job start at 16 sites, seconds", starts[16], most=15.0),
        ],
        [f"By rows: {said}", f"By columns, matching apart: {said_of_columns}"],
    )


if __name__ == "__main__":
    main().publish()
