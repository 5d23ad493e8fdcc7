"""What does it cost to match the rows of two parties by private set intersection?"""

import os
import resource
import time
from collections import Counter

import numpy as np
import polars as pl

import silvan as sv
from benchmarks.common import Goal, Report
from silvan.federation.handlers import HANDLERS
from silvan.privacy.identity import psi

ROWS = int(1_000_000 * float(os.environ.get("SILVAN_BENCH_SCALE", "1")))
"""Of each party; half of them are in common."""

STEPS = {
    "HideIds": "label holder: hash and hide its ids",
    "HideTwice": "other party: hide these once more, hash and hide its own",
    "Intersect": "label holder: hide the other's once more, compare",
}


def main() -> None:
    """Measure and report, in CPU seconds, because the machine may be busy."""
    ids = np.random.default_rng(0).permutation(2**40 + np.arange(3 * ROWS // 2))
    tables = {
        "bank": pl.DataFrame({"id": ids[:ROWS], "a": np.zeros(ROWS), "label": np.arange(ROWS) % 2}),
        "shop": pl.DataFrame({"id": ids[-ROWS:], "b": np.zeros(ROWS)}),
    }
    few = {name: table[:2] for name, table in tables.items()}
    sv.federate_columns({**few, "shop": few["bank"].select("id", b="a")}, id="id", label="label", n_jobs=1)  # compiles
    seconds: Counter[str] = Counter()
    for kind in STEPS:
        HANDLERS[kind] = (HANDLERS[kind][0], _timed(HANDLERS[kind][1], kind, seconds))
    start = time.process_time()
    fed = sv.federate_columns(tables, id="id", label="label", n_jobs=1)
    seconds["all"] = time.process_time() - start
    if len(fed.columns.common) != 2 * ROWS - len(ids):
        raise RuntimeError("other rows are in common")
    start = time.process_time()
    sv.federate_columns(tables, id="id", label="label", n_jobs=1, match="keyed")
    keyed = time.process_time() - start
    moved: Counter[tuple[str, str]] = Counter()
    for (name, way, kind), n in fed.traffic.items():
        if kind in STEPS or kind in {getattr(psi, step).reply.__name__ for step in STEPS}:
            moved[name, way] += n
    report = Report(
        "Matching rows",
        f"Private set intersection of 2 x {ROWS:,} ids, half of them in common, one thread: the two parties and the "
        "coordinator in one process, where they take turns. Seconds of work.",
        ["", "seconds", "microseconds an id"],
    )
    for kind, what in STEPS.items():
        report.rows.append([what, f"{seconds[kind]:.1f}", f"{1e6 * seconds[kind] / ROWS:.0f}"])
    hidden = sum(seconds[kind] for kind in STEPS)
    report.rows.append(["together", f"{hidden:.1f}", f"{1e6 * hidden / ROWS:.0f}"])
    report.goals = [Goal("microseconds an id", 1e6 * hidden / ROWS, most=250)]
    traffic = "; ".join(f"the {n} {w} {moved[n, w] / 1e6:.1f} MB" for n in tables for w in ("sent", "received"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    report.notes.append(
        f'{traffic}. The whole federation took {seconds["all"]:.1f} s, with `match="keyed"` {keyed:.1f} s; all of it '
        f"in {peak:,.0f} MB of memory."
    )
    report.publish()


def _timed(handler: object, kind: str, seconds: Counter[str]) -> object:
    def answer(*args: object) -> object:
        start = time.process_time()
        try:
            return handler(*args)  # type: ignore[operator]
        finally:
            seconds[kind] += time.process_time() - start

    return answer


if __name__ == "__main__":
    main()
