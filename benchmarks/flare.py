"""What do real machines cost? Site processes with mutual TLS on loopback, beside XGBoost's federated mode."""

import os
import statistics
import tempfile
import time
from pathlib import Path

import msgspec
import polars as pl

from benchmarks import xgboost_federated
from benchmarks.common import Goal, Report, synthetic
from benchmarks.horizontal import BINS, DEPTH, FEATURES, ROWS, TREES
from silvan.deploy.job_progress import PROGRESS, Progress
from silvan.deploy.jobs import MEASURE
from silvan.deploy.one_machine import make_local, process_of, processes_of, stop_all
from silvan.deploy.supervise import Supervisor
from silvan.study.remote_study import parse_far_study

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


class Measured:
    """One study over so many site processes: where its time went."""

    def __init__(self, sites: int, rows: int, repeats: int = 1, between: object = None) -> None:
        os.environ[MEASURE] = "yes"
        os.environ["NUMBA_NUM_THREADS"] = "2"
        self.runs: list[Progress] = []
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
            hub, members = make_local(folder, tables)
            try:
                for seed in range(repeats):
                    self._one(hub, seed)
                    if callable(between):
                        between()
            finally:
                stop_all([*map(process_of, members), *processes_of(hub)])

    def _one(self, hub: object, seed: int) -> None:
        text = STUDY.format(seed=seed, trees=TREES, depth=DEPTH, features=FEATURES, bins=BINS)
        supervisor = Supervisor(hub, parse_far_study(text))  # type: ignore[arg-type]
        begun = time.time()
        run = supervisor.see_through()
        ended = time.time()
        progress = msgspec.json.decode(run.file(PROGRESS).read_bytes(), type=Progress)
        at = progress.seconds
        self.runs.append(progress)
        self.ends.append(
            (at["agreeing on columns"] - begun, at["done"] - at["agreeing on columns"], ended - at["done"])
        )

    def median(self, what: str) -> float:
        return statistics.median(run.spent[what] for run in self.runs)


def main(rows: int = ROWS, repeats: int = 3) -> Report:
    peer: list[float] = []
    four = Measured(4, rows, repeats, lambda: peer.append(xgboost_federated.run(rows, 4)))
    table = []
    for sites in (2, 4, 8, 16):
        found = four if sites == 4 else Measured(sites, rows)
        measured = found.runs[0].measured
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
