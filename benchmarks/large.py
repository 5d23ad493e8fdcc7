"""A table much larger than the memory limit: time, peak memory, and whether both scale as expected."""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import silvan as sv
from benchmarks.common import Goal, Report

COLUMNS, TREES, DEPTH = 30, int(os.environ.get("SILVAN_LARGE_TREES", "10")), 8
SIZES = (1_000_000, 10_000_000)
MEMORY = "100MB"
_CHUNK = 100_000


def write_table(path: Path, rows: int) -> None:
    """Write a Parquet file chunk by chunk: 12 columns decide a noisy label, the others are noise."""
    import polars as pl

    weights = np.where(np.arange(COLUMNS) < 12, np.random.default_rng(0).normal(size=COLUMNS), 0.0)
    parts = []
    for i in range(-(-rows // _CHUNK)):
        rng, n = np.random.default_rng([1, i]), min(_CHUNK, rows - i * _CHUNK)
        X = rng.normal(size=(n, COLUMNS)).astype(np.float32)
        y = (X @ weights + rng.normal(size=n) > 0).astype(np.int64)
        frame = pl.DataFrame(X, schema=[f"x{j}" for j in range(COLUMNS)]).with_columns(label=pl.Series(y))
        parts.append(path.with_suffix(f".{i}.parquet"))
        frame.write_parquet(parts[-1], row_group_size=50_000)
    pl.scan_parquet(parts).sink_parquet(path, row_group_size=50_000)
    for part in parts:
        part.unlink()


def status(key: str) -> int:
    """Read a value of this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(key))


def job(path: str, warm: str, memory: str, folder: str) -> None:
    """Train in this process, and print time and memory."""

    def fit(table: str) -> tuple[float, float, str]:
        start = time.perf_counter()
        fed = sv.federate_rows({"a": table}, test=0.1, memory=memory or None, folder=folder)
        agreed = time.perf_counter()
        model = sv.HistogramForest(TREES, max_depth=DEPTH).fit(fed)
        assert model.forest_ is not None
        return agreed - start, time.perf_counter() - agreed, model.forest_.hash

    fit(warm)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    agree, train, made = fit(path)
    peak = status("VmHWM")
    print(json.dumps({"agree": agree, "train": train, "hash": made, "peak": peak - before, "whole": peak}))


def main() -> None:
    """Train on each size, each in a separate process."""
    report = Report(
        "Larger than memory",
        f"One site, {COLUMNS} columns, a Parquet file; {TREES} trees of depth {DEPTH}; memory {MEMORY}. Seconds from "
        "opening the file to the forest, peak of resident memory above what the warm process had (files that are "
        "mapped included).",
        ["rows", "memory", "table as float32", "agree, s", "train, s", "all, s", "peak above start", "peak in all"],
    )
    found = {}
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        warm = Path(folder) / "warm.parquet"
        write_table(warm, 5000)
        for rows in SIZES:
            path = Path(folder) / f"{rows}.parquet"
            write_table(path, rows)
            # without a limit only the smaller one, to check that the forest is the same
            for memory in (MEMORY, "") if rows == SIZES[0] else (MEMORY,):
                code = f"import benchmarks.large as m; m.job({str(path)!r}, {str(warm)!r}, {memory!r}, {folder!r})"
                out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
                one = found[rows, memory] = json.loads(out)
                print(f"  {rows:,} rows, memory {memory or 'any'}: {one}", file=sys.stderr, flush=True)
                total = one["agree"] + one["train"]
                report.rows.append(
                    [
                        f"{rows:,}",
                        memory or "any",
                        f"{4e-6 * rows * COLUMNS:,.0f} MB",
                        f"{one['agree']:.1f}",
                        f"{one['train']:.1f}",
                        f"{total:.1f}",
                        f"{one['peak'] / 1e6:,.0f} MB",
                        f"{one['whole'] / 1e6:,.0f} MB",
                    ]
                )
            path.unlink()
    small, large = (found[rows, MEMORY] for rows in SIZES)
    times = SIZES[1] / SIZES[0]
    grown = (large["agree"] + large["train"]) / (small["agree"] + small["train"])
    same = small["hash"] == found[SIZES[0], ""]["hash"]
    report.goals += [
        Goal(f"time for {times:g} times the rows, over {times:g} times the time", grown / times, most=1.2),
        Goal("peak memory above start with ten million rows, in MB", large["peak"] / 1e6, most=120.0),
        Goal("the same forest as with all rows in memory", float(same), least=1.0),
    ]
    report.publish()


if __name__ == "__main__":
    main()
