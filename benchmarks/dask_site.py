"""A site whose rows are partitions on two Dask workers, compared with one process and XGBoost's Dask interface."""

import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import silvan as sv
from benchmarks.common import Goal, Report, interleave, ratio, whole_peak

COLUMNS, TREES, DEPTH, BINS = 10, 10, 8, 64
SIZES = tuple(int(float(n)) for n in os.environ.get("SILVAN_DASK_ROWS", "1e6,3e6,1e7").split(","))
REPEATS = int(os.environ.get("SILVAN_DASK_REPEATS", "3"))
PARTITIONS = 4
_CHUNK = 250_000


def write_table(folder: Path, rows: int) -> None:
    """Write Parquet files: 6 columns decide a noisy label, the others are noise."""
    import polars as pl

    weights = np.where(np.arange(COLUMNS) < 6, np.random.default_rng(0).normal(size=COLUMNS), 0.0)
    folder.mkdir()
    for i, size in enumerate(np.diff(np.linspace(0, rows, PARTITIONS + 1).astype(int))):
        parts = []
        for j in range(0, size, _CHUNK):
            rng, n = np.random.default_rng([1, i, j]), min(_CHUNK, size - j)
            X = rng.normal(size=(n, COLUMNS)).astype(np.float32)
            y = (X @ weights + rng.normal(size=n) > 0).astype(np.int64)
            parts.append(pl.DataFrame(X, schema=[f"x{k}" for k in range(COLUMNS)]).with_columns(label=pl.Series(y)))
        pl.concat(parts).write_parquet(folder / f"{i}.parquet")


def fit(source: Any, n_jobs: int | None) -> str:
    """Grow a forest, from files to trees; return its hash."""
    import polars as pl

    if isinstance(source, Path):
        source = pl.read_parquet(source / "*.parquet")
    fed = sv.federate_rows({"bank": source}, n_jobs=n_jobs)
    model = sv.HistogramForest(TREES, max_depth=DEPTH, max_bins=BINS).fit(fed)
    assert model.forest_ is not None
    return model.forest_.hash


PARAMETERS = {
    "objective": "binary:logistic",
    "tree_method": "hist",
    "max_bin": BINS,
    "max_depth": DEPTH,
    "num_parallel_tree": TREES,
    "subsample": 0.632,
    "colsample_bynode": np.sqrt(COLUMNS) / COLUMNS,
    "learning_rate": 1.0,
}
"""A random forest of XGBoost's."""


def fit_xgboost(folder: Path, client: Any = None) -> None:
    """Grow XGBoost's forest, in this process or by its Dask interface."""
    import dask.dataframe as dd
    import pandas as pd
    import xgboost
    import xgboost.dask

    if client is None:
        frame = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))])
        table = xgboost.QuantileDMatrix(frame.drop(columns="label"), frame["label"], max_bin=BINS, nthread=2)
        xgboost.train({**PARAMETERS, "nthread": 2}, table, num_boost_round=1)
        return
    held = dd.read_parquet(str(folder / "*.parquet")).persist()  # otherwise a column has other partitions
    table = xgboost.dask.DaskQuantileDMatrix(client, held.drop(columns="label"), held["label"], max_bin=BINS)
    xgboost.dask.train(client, PARAMETERS, table, num_boost_round=1)


def processor_seconds() -> float:
    """Return the CPU time of this process so far."""
    return sum(os.times()[:2])


def measure(client: Any, folder: Path, rows: int, report: Report) -> tuple[dict[str, list[float]], bool]:
    """Time all ways on one table."""
    hashes = set()
    jobs = {
        "two workers": lambda: hashes.add(fit(sv.Partitions(folder), None)),
        "one process, two threads": lambda: hashes.add(fit(folder, 2)),
        "one process, one thread": lambda: hashes.add(fit(folder, 1)),
        "XGBoost on two workers": lambda: fit_xgboost(folder, client),
        "XGBoost in one process, two threads": lambda: fit_xgboost(folder),
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}

    def counted(name: str) -> float:
        here, there = processor_seconds(), sum(client.run(processor_seconds).values())
        start = time.perf_counter()
        jobs[name]()
        taken = time.perf_counter() - start
        spent[name].append((processor_seconds() - here, sum(client.run(processor_seconds).values()) - there))
        return taken

    times = interleave({name: partial(counted, name) for name in jobs}, 1 if rows == max(SIZES) else REPEATS)
    for name, taken in times.items():
        times_one = ratio(times, name, "one process, two threads")[1]
        here, there = np.median(spent[name], axis=0)
        report.rows.append([f"{rows:,}", name, f"{np.median(taken):.1f}", times_one, f"{here:.1f}", f"{there:.1f}"])
    return times, len(hashes) == 1


def main() -> None:
    """Measure each size on a cluster of two processes."""
    from distributed import Client, LocalCluster

    report = Report(
        "A site on a Dask cluster",
        f"One site, {COLUMNS} columns, {PARTITIONS} Parquet files; {TREES} trees of depth {DEPTH}, {BINS} bins; two "
        "workers on this machine, processes of one thread each. Seconds from opening the files to the forest, what "
        "columns are found out included; and processor seconds in this process and of both workers.",
        ["rows", "way", "s", "times one process of two threads", "processor, s, here", "processor, s, workers"],
    )
    found, same = {}, True
    with (
        tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as parent,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit="3GB") as cluster,
        Client(cluster) as client,
    ):
        warm = Path(parent) / "warm"
        write_table(warm, 20_000)
        measure(client, warm, 0, Report("", ""))
        for rows in SIZES:
            folder = Path(parent) / str(rows)
            write_table(folder, rows)
            found[rows], alike = measure(client, folder, rows, report)
            same &= alike
        peak = max(client.run(whole_peak).values())
    least, most = SIZES[0], SIZES[-1]
    mine = {rows: float(np.median(times["two workers"])) for rows, times in found.items()}
    large = found[most]
    report.goals += [
        Goal("the same forest as in one process", float(same), least=1.0),
        Goal(
            f"two workers over one process of one thread, {most:,} rows",
            ratio(large, "two workers", "one process, one thread")[0],
            most=0.7,
        ),
        Goal(
            f"two workers over one process of two threads, {most:,} rows",
            ratio(large, "two workers", "one process, two threads")[0],
            most=1.3,
        ),
        Goal(
            f"two workers over XGBoost's Dask interface, {most:,} rows",
            ratio(large, "two workers", "XGBoost on two workers")[0],
            most=1.0,
        ),
        Goal(
            f"time for {most / least:g} times the rows, over {most / least:g} times the time",
            mine[most] / mine[least] / (most / least),
            most=1.2,
        ),
    ]
    report.notes.append(f"Peak of a worker's memory, all of the above: {peak / 1e6:,.0f} MB.")
    report.publish()


if __name__ == "__main__":
    main()
