"""Private forests on another processor, whose linear algebra and logarithms differ in the last digits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FIT = """
import sys, warnings
import silvan as sv
from helpers.private_study import budgets, federate
warnings.simplefilter("ignore")
fed = federate(task=sys.argv[1], n=1200, budgets=sys.argv[2], policy=sv.Policy(epsilon=5.0))
model = sv.HistogramForest(epsilon=4.0, n_rows=1200).fit(fed)
print(model.forest_.hash, [len(budget.charges()) for budget in budgets(fed).values()])
"""

OTHER = {
    "OPENBLAS_CORETYPE": "Prescott",  # what every x86 processor supports; no effect elsewhere
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX",
}


def fit(task: str, budgets: object, **settings: str) -> str:
    words = [sys.executable, "-W", "ignore", "-c", FIT, task, str(budgets)]
    place = {"PYTHONPATH": str(Path(__file__).parents[2])}  # of helpers
    run = subprocess.run(words, capture_output=True, text=True, env=os.environ | place | settings, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("task", ["binary", "number"])
def test_a_coordinator_on_another_processor_makes_the_same_forest_at_no_cost(tmp_path, task):
    """Only an identical request gets the same noise again, and one request has values derived from noisy counts."""
    assert fit(task, tmp_path) == fit(task, tmp_path, **OTHER)
