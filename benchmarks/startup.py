"""How long does a new user wait: the very first forest, which compiles the kernels, and the next process's?"""

import os
import subprocess
import sys
import tempfile
import time

from benchmarks.common import Goal, Report

CODE = """
import time
start = time.perf_counter()
import silvan as sv
sv.ForestClassifier  # names are loaded when they are used
imported = time.perf_counter()
from sklearn.datasets import load_breast_cancer
X, y = load_breast_cancer(return_X_y=True)
begin = time.perf_counter()
sv.ForestClassifier().fit(X, y).predict_proba(X)
print("TIMES", imported - start, time.perf_counter() - begin, time.time())
"""


def run(cache: str) -> tuple[float, float, float, float]:
    """Grow the first forest of a process: seconds for the import, for the forest, and in total."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code, too
    start = time.time()
    out = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, check=True, capture_output=True, text=True
    ).stdout
    end = time.time()
    imported, forest, grown = map(float, out.split("TIMES")[1].split())
    return imported, forest, grown - start, end - start


def main() -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory() as cache:
        first = run(cache)
        later = sorted((run(cache) for _ in range(5)), key=lambda times: times[2])[2]
    report = Report(
        "The first forest",
        "Seconds until the first forest on breast cancer data (569 rows, 100 trees, predictions included): once "
        "with no compiled kernels, then in new processes that find them in the cache (median of 5). Most of the import "
        "is scikit-learn's: SciPy, and pandas where it is installed.",
        ["", "import", "first forest", "from start to first forest", "whole process"],
        [["first time", *(f"{x:.1f}" for x in first)], ["later", *(f"{x:.1f}" for x in later)]],
    )
    report.goals += [
        Goal("first forest after installation, seconds", first[2], most=20),
        Goal("a later process from its start to its first forest, seconds", later[2], most=2),
    ]
    report.publish()


if __name__ == "__main__":
    main()
