"""The demonstration, as a person runs it."""

import subprocess
import sys

import numpy as np
import pytest
from helpers.runs import silvan

from silvan.cli.demo_command import MIN_ROWS, split_unevenly
from silvan.study.run_folder import Run


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "out"
    words = [sys.executable, "-m", "silvan.cli.main", "demo", "--output", str(folder), "--sites", "3"]
    return folder, subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_it_tells_and_writes(demo):
    folder, out = demo
    for word in ("Alder", "Birch", "Cedar", "Local", "Merged", "Federated", "Pooled", "site mean", "node for node"):
        assert word in out
    for name in ("model.silvan", "evaluation.csv", "run.json", "report.html", "study.toml"):
        assert (folder / name).stat().st_size > 0
        assert name in out
    assert "\x1b" not in out


def test_what_it_claims_was_compared(demo):
    record = Run(demo[0]).read()
    assert record.pooled_hash == record.models[0].hash
    assert sum(site.rows + site.test_rows for site in record.sites) == 569
    assert len({site.rows for site in record.sites}) > 1


def test_its_study_runs_again_to_the_same_forest(demo):
    folder, _ = demo
    before = Run(folder).read().models
    silvan("fit", folder / "study.toml", "--output", folder.parent / "again")
    assert Run(folder.parent / "again").read().models == before


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "study.toml").write_text("name = 'mine'\n")
    result = silvan("demo", "--output", tmp_path, ok=False)
    assert result.exit_code == 1
    assert (tmp_path / "study.toml").read_text() == "name = 'mine'\n"


@pytest.mark.parametrize("n", [2, 5, 12])
def test_every_row_is_dealt_once(n):
    y = np.arange(569) % 3 == 0
    hands = split_unevenly(y, n)
    assert sorted(np.concatenate(hands).tolist()) == list(range(569))
    assert all(min(np.bincount(y[hand].astype(int), minlength=2)) >= MIN_ROWS for hand in hands)
