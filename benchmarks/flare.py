"""What do real machines cost? Site processes with mutual TLS on loopback, beside XGBoost's federated mode."""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import polars as pl

from benchmarks import xgboost_federated
from benchmarks.common import Goal, Report, synthetic
from benchmarks.flare_job import MEASURED, MeasuringCoordinator
from benchmarks.horizontal import BINS, DEPTH, FEATURES, ROWS, TREES
from silvan.deploy.hub import Hub
from silvan.deploy.job_progress import PROGRESS, Progress, read_progress
from silvan.deploy.one_machine import free_port, start_local
from silvan.deploy.services import process_of, processes_of, stop_all
from silvan.deploy.supervise import Supervisor
from silvan.study.remote_study import parse_remote_study
from silvan.study.run_folder import Run

STUDY = """
name = "benchmark"
random_state = {seed}
sampling = "published"

[learner]
kind = "HistogramForest"
n_estimators = {trees}
max_depth = {depth}
max_features = {features}
max_bins = {bins}
"""

COORDINATOR = f"{MeasuringCoordinator.__module__}.{MeasuringCoordinator.__qualname__}"
PATIENCE = 60.0


class MeasuringSupervisor(Supervisor):
    """Has the wire measured after the study, by a class that the server's folder must allow."""

    coordinator = COORDINATOR


class Measured:
    """One study over so many site processes: where its time went."""

    def __init__(self, sites: int, rows: int, repeats: int = 1, between: object = None) -> None:
        root = str(Path(__file__).parent.parent)  # where processes find the class that measures
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        os.environ["NUMBA_NUM_THREADS"] = "2"
        self.runs: list[Progress] = []
        self.wire: list[dict[str, float]] = []  # seconds of a small round, bytes a second
        self.ends: list[tuple[float, float, float]] = []  # seconds: job start, study, teardown
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            X, y = synthetic(rows)
            tables = {}
            for i in range(sites):
                path = folder / f"site{i:02}.parquet"
                frame = pl.DataFrame(X[i::sites], schema=[f"c{j}" for j in range(X.shape[1])])
                frame.with_columns(label=pl.Series(y[i::sites])).write_parquet(path)
                tables[f"site{i:02}"] = str(path)
            hub = Hub.create(folder / "coordinator", "local", list(tables), "localhost", free_port())
            _allow_measuring(hub)
            members = start_local(hub, folder, tables)
            try:
                for seed in range(repeats):
                    self._one(hub, seed)
                    if callable(between):
                        between()
            finally:
                stop_all([*map(process_of, members), *processes_of(hub)])

    def _one(self, hub: Hub, seed: int) -> None:
        text = STUDY.format(seed=seed, trees=TREES, depth=DEPTH, features=FEATURES, bins=BINS)
        supervisor = MeasuringSupervisor(hub, parse_remote_study(text))
        begun = time.time()
        run = supervisor.run_to_end()
        ended = time.time()
        progress = read_progress(run.file(PROGRESS))
        at = progress.seconds
        self.wire.append(_read_measured(run))
        self.runs.append(progress)
        self.ends.append(
            (at["agreeing on columns"] - begun, at["done"] - at["agreeing on columns"], ended - at["done"])
        )

    def median(self, what: str) -> float:
        return statistics.median(run.spent[what] for run in self.runs)


def _allow_measuring(hub: Hub) -> None:
    """Allow the class that measures, in the server's folder of this benchmark alone."""
    path = hub.path / "server" / "local" / "resources.json"
    content = json.loads(path.read_text())
    content["class_allow_list"].append(COORDINATOR)
    path.write_text(json.dumps(content))


def _read_measured(run: Run) -> dict[str, float]:
    """Read the figures that the job writes after the study."""
    end = time.monotonic() + PATIENCE
    while not run.file(MEASURED).exists() and time.monotonic() < end:
        time.sleep(0.1)
    return dict(json.loads(run.file(MEASURED).read_text()))


def main(rows: int = ROWS, repeats: int = 3) -> Report:
    peer: list[float] = []
    four = Measured(4, rows, repeats, lambda: peer.append(xgboost_federated.run(rows, 4)))
    table = []
    for sites in (2, 4, 8, 16):
        found = four if sites == 4 else Measured(sites, rows)
        measured = found.wire[0]
        start, _, end = found.ends[-1]
        every = found.median("all")
        table.append(
            [
                str(sites),
                f"{every:.2f}",
                f"{found.median('sites') / every:.0%}",
                f"{found.median('wire') / every:.0%}",
                f"{1 - (found.median('sites') + found.median('wire')) / every:.0%}",
                f"{measured['round'] * 1000:.1f} ms",
                f"{measured['bytes a second'] / 1e6:.0f} MB/s",
                f"{start:.1f} s",
                f"{end:.1f} s",
            ]
        )
    ours = [run.spent["all"] for run in four.runs]
    ratios = [a / b for a, b in zip(ours, peer, strict=True)]
    return Report(
        "Real sites over NVIDIA FLARE",
        f"{rows:,} x 30 rows, {TREES} trees of depth {DEPTH}: every site a process of its own, mutual TLS on "
        "loopback, signed messages, a journal, ledgers. Time is from the first question of training to the last "
        "answer; its shares are those of the slowest site of every wave, of the wire, and of the coordinator.",
        ["sites", "s", "at sites", "wire", "coordinator", "small round", "to a site", "job start", "job end"],
        table,
        [Goal("4 sites, time against XGBoost 3.2 federated (plain)", statistics.median(ratios), most=0.5)],
        [
            f"XGBoost's workers took {min(peer):.1f}-{max(peer):.1f} s, silvan {min(ours):.1f}-{max(ours):.1f} s, "
            f"ratios {min(ratios):.2f}-{max(ratios):.2f}, interleaved.",
        ],
    )


if __name__ == "__main__":
    main().publish()
