"""What has a change cost? CPU time of fits in two checkouts of this repository, interleaved.

``python -m benchmarks.before_after PATH`` compares the checkout at PATH with this one, in the same environment: for
instance ``git worktree add /tmp/before COMMIT``, then ``python -m benchmarks.before_after /tmp/before``.
"""

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.common import Goal, Report

ROUNDS, FITS = 5, 3
HERE = Path(__file__).parent.parent
ROWS, SMALL, COLUMNS = 40_000, 2_000, 20


def _jobs() -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    """Return the timed jobs by name: a function that makes the input anew, and the job."""
    import silvan as sv

    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, COLUMNS))
    y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=ROWS) > 0).astype(int)
    names = [f"x{j}" for j in range(COLUMNS)]
    frame = pl.DataFrame(X, schema=names).with_columns(label=pl.Series(y))
    tables = {f"site{i}": frame[i::4] for i in range(4)}
    small = {name: table[:SMALL] for name, table in tables.items()}
    schema = sv.Schema.of([sv.Feature(name, bounds=(-5, 5)) for name in names], sv.Label("label", (0, 1)))
    rows = frame[: ROWS // 2].with_row_index("id")
    parties = {"a": rows.select("id", *names[:10], "label"), "b": rows.select("id", *names[10:])}

    def judged() -> tuple[Any, Any]:
        fed = sv.federate_rows(small, test=0.3)
        return sv.MergedForest(n_estimators=20, max_depth=6).fit(fed), fed

    def columns(n: int) -> Any:
        some = {name: table[:n] for name, table in parties.items()}
        return sv.federate_columns(some, id="id", label="label", match="keyed")

    usual: dict[str, Any] = {"n_estimators": 40, "max_depth": 8}
    private: dict[str, Any] = {"epsilon": 1.0, "private": "levels", "n_estimators": 4, "max_depth": 3}
    return {
        "exact": (lambda: sv.federate_rows(tables), lambda f: sv.HistogramForest(**usual).fit(f)),
        "exact, masked sums": (
            lambda: sv.federate_rows(tables, sums="masked"),
            lambda f: sv.HistogramForest(**usual).fit(f),
        ),
        "merged": (lambda: sv.federate_rows(tables), lambda f: sv.MergedForest(**usual).fit(f)),
        "BOFRF": (lambda: sv.federate_rows(small, test=0.2), lambda f: sv.BOFRF(**usual).fit(f)),
        "evaluation of a merged forest": (judged, lambda made: made[0].evaluate(made[1])),
        "private, tables": (
            lambda: sv.federate_rows(tables, schema=schema, sums="masked"),
            lambda f: sv.HistogramForest(epsilon=1.0, n_rows=ROWS).fit(f),
        ),
        "private, levels": (
            lambda: sv.federate_rows(tables, schema=schema, sums="masked"),
            lambda f: sv.HistogramForest(**private).fit(f),
        ),
        "columns, encoded labels": (
            lambda: columns(ROWS // 2),
            lambda f: sv.VerticalForest(n_estimators=20, max_depth=8).fit(f),
        ),
        "columns, encrypted labels": (
            lambda: columns(SMALL),
            lambda f: sv.VerticalForest(n_estimators=2, max_depth=4, labels="encrypted").fit(f),
        ),
    }


def measure() -> None:
    """Print the least CPU time of each job, of its set-up and itself, in this process."""
    warnings.simplefilter("ignore")
    found = {}
    for name, (make, job) in _jobs().items():
        times = []
        for _ in range(FITS):
            begun = time.process_time()
            given = make()
            middle = time.process_time()
            job(given)
            times.append((middle - begun, time.process_time() - middle))
        found[name] = [min(column) for column in zip(*times[1:], strict=True)]  # the first compiles
    print(json.dumps(found))


def _run(checkout: Path) -> dict[str, list[float]]:
    caches = {"NUMBA_CACHE_DIR": str(checkout / ".numba_cache")}
    environment = {**os.environ, **caches, "PYTHONPATH": os.pathsep.join([str(checkout / "src"), str(HERE)])}
    code = "from benchmarks.before_after import measure; measure()"
    out = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    return dict(json.loads(out.stdout.splitlines()[-1]))


def main(before: Path) -> None:
    """Measure both checkouts in turn, each in a separate process, and report."""
    runs: list[tuple[dict[str, list[float]], dict[str, list[float]]]] = []
    for turn in range(ROUNDS):
        runs.append((_run(before), _run(HERE)))
        print(f"  round {turn + 1} of {ROUNDS}", file=sys.stderr, flush=True)
    report = Report(
        "Before and after",
        f"Least processor time of {ROUNDS} processes, {FITS - 1} times each, in this checkout over that in "
        f"{before.name}, in turn: {ROWS:,} x {COLUMNS} rows over four sites, or half of them over two parties "
        f"({SMALL:,} rows where labels are encrypted or forests are judged).",
        ["", "making the federation", "fit", "before, s"],
    )
    for name in runs[0][0]:
        least = [[min(run[i][name][step] for run in runs) for i in (0, 1)] for step in (0, 1)]
        (made, made_now), (fitted, fitted_now) = least
        report.rows.append([name, f"{made_now / made:.2f}", f"{fitted_now / fitted:.2f}", f"{fitted:.3f}"])
        report.goals.append(Goal(f"{name}, times before", fitted_now / fitted, most=1.1))
    report.publish()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
