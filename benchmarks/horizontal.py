"""What does it cost that rows stay at their sites?"""

import time
from typing import Any

import numpy as np

import silvan as sv
from benchmarks import forest, xgboost_federated
from benchmarks.common import Goal, Report, interleave, peak_memory, ratio, synthetic
from benchmarks.stopwatch import Stopwatch
from silvan.federation.federation import Federation

ROWS, TREES, DEPTH, FEATURES, BINS = 200_000, 100, 8, 5, 64


def federation(X: np.ndarray, y: np.ndarray, sites: int) -> Federation:
    """Distribute rows to sites."""
    place = np.arange(len(y)) % sites
    tables = {f"site{i:02}": (X[place == i], y[place == i]) for i in range(sites)}
    return sv.federate_rows(tables, n_jobs=2)


def learner(trees: int = TREES) -> Any:
    """Make the learner under test."""
    return sv.HistogramForest(trees, max_depth=DEPTH, max_features=FEATURES, max_bins=BINS)


def memory_job(name: str) -> tuple[Any, Any]:
    """Return the wide table: 300 rows of 20,000 columns at five sites, made and trained in one process."""
    X = np.random.default_rng(0).normal(size=(300, 20_000)).astype(np.float32)
    y = (X[:, :50].sum(axis=1) > 0).astype(np.int64)

    def job() -> object:
        model = sv.HistogramForest(100, max_depth=6).fit(federation(X, y, 5))
        if model.rounds_ > 6 + 3:
            raise RuntimeError(f"took {model.rounds_} rounds")
        return model

    return lambda: None, job


def coordinator_seconds(sites: int) -> float:
    """Return the coordinator's own time for a small forest over a number of sites."""
    X, y = synthetic(20_000)
    fed = federation(X, y, sites)
    model = learner(20)
    watch = Stopwatch(fed)
    start = time.perf_counter()
    model.fit(fed)
    return time.perf_counter() - start - sum(watch.seconds.values())


def main() -> None:
    """Measure and report."""
    X, y = synthetic(ROWS)
    few, many = federation(X, y, 4), federation(X, y, 10)
    part = federation(X[: ROWS // 4], y[: ROWS // 4], 4)
    learner(8).fit(few)
    xgbrf = forest.models()["XGBRF"]
    jobs: dict[str, Any] = {
        "silvan, 4 sites": lambda: learner().fit(few),
        "silvan, 10 sites": lambda: learner().fit(many),
        "XGBRF, one place": lambda: xgbrf().fit(X, y),
        "silvan, one place": lambda: forest.models()["silvan"]().fit(X, y),
        "quarter of the rows": lambda: learner().fit(part),
        "XGBoost federated, 4 workers": lambda: xgboost_federated.run(ROWS, 4),
    }
    times = interleave(jobs, {**dict.fromkeys(jobs, 5), "XGBoost federated, 4 workers": 2})
    report = Report(
        "Rows at several sites",
        f"{ROWS:,} x 30 synthetic rows, {TREES} trees of depth {DEPTH}, {FEATURES} features a node, {BINS} bins; all "
        "messages serialised as on a wire, sites in one process that take turns with two threads. Times as multiples "
        "of XGBRF's on all rows in one place, in the same round, median (smallest-largest). XGBoost's federated mode "
        "(plain, without encryption) has a process and a thread a worker.",
        ["", "time", "rounds", "sent by a site, MB"],
    )
    base = "XGBRF, one place"
    model = {4: learner().fit(few), 10: learner().fit(many)}
    for name in jobs:
        sites = 4 if "4 sites" in name else (10 if "10 sites" in name else 0)
        sent = max(b["sent"] for b in model[sites].bytes_.values()) / 1e6 if sites else 0.0
        cells = [str(model[sites].rounds_), f"{sent:.1f}"] if sites else ["", ""]
        report.rows.append([name, ratio(times, name, base)[1], *cells])
    entries = 16 * 30 * BINS * int((model[4].forest_.feature >= 0).sum())
    for sites, fitted in model.items():
        sent = max(b["sent"] for b in fitted.bytes_.values())
        slower = ratio(times, f"silvan, {sites} sites", base)[0]
        report.goals += [
            Goal(f"{sites} sites: time, times XGBRF in one place", slower, most=1.0),
            Goal(f"{sites} sites: bytes a site, share of XGBoost's entries", sent / entries, most=0.05),
        ]
    faster = ratio(times, "XGBoost federated, 4 workers", "silvan, 4 sites")[0]
    report.goals += [
        Goal("times faster than XGBoost federated (4 sites)", faster, least=6),
        Goal("4 times the rows, times the time", ratio(times, "silvan, 4 sites", "quarter of the rows")[0], most=4.4),
        Goal("rounds", float(model[4].rounds_), most=DEPTH + 3),
    ]
    own = {sites: min(coordinator_seconds(sites) for _ in range(3)) for sites in (1, 10, 100)}
    line = own[1] + 99 * max((own[10] - own[1]) / 9, 1e-4)
    report.goals.append(
        Goal("coordinator's time at 100 sites, times the line through 1 and 10", own[100] / line, most=1.5)
    )
    report.notes.append(
        f"The coordinator's own time (20,000 rows, 20 trees) is {own[1]:.2f} s with one site and grows by "
        f"{1000 * (own[100] - own[1]) / 99:.1f} ms for each further one up to 100."
    )
    wide = peak_memory("benchmarks.horizontal", "wide")
    report.goals.append(Goal("300 x 20,000 over five sites: peak memory beyond the table, GB", wide / 1e9, most=2.0))
    report.publish()


if __name__ == "__main__":
    main()
