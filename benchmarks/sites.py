"""How many sites can take part? Masked sums over many small sites in one process."""

import json
import subprocess
import sys
import time

import numpy as np

import silvan as sv
from benchmarks.common import Goal, Report, whole_peak

SITES = (10, 50, 100, 200)
ROWS, COLUMNS, TREES, DEPTH = 100, 10, 10, 6
MOST_SECONDS = 20.0  # of processors: the clock depends on what else the machine does
MOST_MEMORY = 80.0

PROGRAM = "nvflare.private.fed.app.client.worker_process"
DRIVERS = "nvflare.fuel.f3.communicator"
EMPTY = f"import importlib as i; i.import_module('{PROGRAM}'); i.import_module('{DRIVERS}').load_comm_drivers()"
READY = f"import silvan.deploy.jobs.ready_process as p; p.load('{PROGRAM}')"
SHOW = "print(open('/proc/self/smaps_rollup').read())"


def tables(sites: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Make a small table for each site."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(sites * ROWS, COLUMNS)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] * X[:, 2] + rng.normal(size=len(X)) > 0).astype(int)
    return {f"site{i:03}": (X[i::sites], y[i::sites]) for i in range(sites)}


def measure(sites: int) -> dict[str, float]:
    """Train over a number of sites: wall-clock seconds, CPU seconds, and the whole process's peak of memory."""
    few = sv.federate_rows(tables(3), sums="masked")
    sv.HistogramForest(n_estimators=2, max_depth=2).fit(few)  # kernels are compiled
    fed = sv.federate_rows(tables(sites), sums="masked")
    begun, spent = time.perf_counter(), time.process_time()
    model = sv.HistogramForest(n_estimators=TREES, max_depth=DEPTH).fit(fed)
    return {
        "seconds": time.perf_counter() - begun,
        "processor": time.process_time() - spent,
        "bytes": whole_peak(),
        "sent": max(one["sent"] for one in model.bytes_.values()),
    }


def in_own_process(sites: int) -> dict[str, float]:
    """Measure in a separate process."""
    words = [sys.executable, "-m", "benchmarks.sites", str(sites)]
    return dict(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))


def job_memory(load: str) -> float:
    """Return the proportional set size, in MB, of a process that has loaded what a job needs."""
    words = [sys.executable, "-c", f"{load}; {SHOW}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()  # input stays open: no job comes
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


def main() -> None:
    """Measure and report."""
    found = {sites: in_own_process(sites) for sites in SITES}
    job_memory(READY)  # kernels are compiled
    empty, ready = job_memory(EMPTY), job_memory(READY)
    rows = [
        [
            str(sites),
            f"{one['seconds']:.1f}",
            f"{one['processor']:.1f}",
            f"{one['bytes'] / 1e6:.0f}",
            f"{one['sent'] / 1e6:.1f}",
        ]
        for sites, one in found.items()
    ]
    Report(
        "Many sites",
        f"{ROWS} x {COLUMNS} rows a site, {TREES} trees of depth {DEPTH}, masked sums, all sites in one process. "
        "Memory is the peak of the whole process. Every site seals for a third of the others a share of each of its "
        "masks, so bytes grow with the square of the sites times the neighbours with whom a site shares masks.",
        ["sites", "s", "processor s", "MB", "sent by a site, MB"],
        rows,
        [
            Goal("200 masked sites, processor seconds", found[200]["processor"], most=MOST_SECONDS),
            Goal("a site's process that waits for a job, MB beyond FLARE's", ready - empty, most=MOST_MEMORY),
        ],
        [f"A site's process: {ready:.0f} MB (proportional set size); FLARE's alone: {empty:.0f} MB."],
    ).publish()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
    else:
        main()
