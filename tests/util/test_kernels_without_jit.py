"""Kernels run as plain Python too, so that a debugger can step through them and coverage sees them."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent

SOME = [
    "tree/test_draw.py::test_reference_vectors",
    "tree/test_draw.py::test_samples_computed_by_hand",
    "tree/test_split.py::test_best_split_of_a_feature",
    "tree/test_split.py::test_n_log_n",
    "tree/test_histogram.py::test_fused_search_and_search_from_sums",
    "tree/test_partition_bits.py",
    "tree/test_stump.py",
    "forest/test_forest.py::test_scores_match_the_naive_version",
    "forest/test_score.py::test_confusions_match_the_naive_version",
]
"""Tests of kernels of every kind: hashes that wrap around, histograms, splits, bits, walks down trees."""


def test_kernels_run_without_the_compiler():
    """A few tests in a separate process; by hand, all of tests/tree and tests/forest can be run like this."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "few", *SOME]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    run = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:]
