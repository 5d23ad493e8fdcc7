"""Advice on the command line."""

import polars as pl
import pytest
from algorithms.bofrf.test_clusters import unlike
from helpers.runs import silvan, write_study

import silvan as sv


@pytest.fixture
def path(tmp_path):
    return write_study(tmp_path, unlike())


@pytest.mark.filterwarnings("ignore:'height' is absent at young 3")
def test_nearest_sites_are_listed(path, tmp_path):
    said = " ".join(silvan("advise", path, "--output", tmp_path / "distances.csv").output.split())
    assert "old 1 is nearest to old 2 (" in said
    assert "Two clusters are suggested" in said
    assert "BOFRF(clusters=2" in said
    federation = sv.federate_rows({name: str(tmp_path / f"{i}.csv") for i, name in enumerate(unlike())}, test=0.3)
    written = pl.read_csv(tmp_path / "distances.csv")
    assert written.equals(sv.advise(federation).frame())
    assert not (tmp_path / "runs").exists()  # nothing was trained


def test_options_are_respected(path):
    said = silvan("advise", path, "-k", 3, "--metric", "euclidean", "--first", "old 2").output
    assert "euclidean distances" in said
    assert "Three clusters, as asked for" in said
    assert "around old 2" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--clusters", 7], "--clusters must be a whole number from 1 to 5, the number of sites"),
        (["--metric", "far"], "metric must be one of"),
        (["--first", "nobody"], "first must be one of the sites"),
    ],
)
def test_impossible_requests_name_the_reason(path, words, said):
    result = silvan("advise", path, *words, ok=False)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_many_sites_are_described_in_words(tmp_path):
    tables = {f"site {i}": unlike(40, seed=i)["old 1"] for i in range(14)}
    said = silvan("advise", write_study(tmp_path, tables)).output
    assert "distances between" not in said
    assert "site 13 is nearest to" in said
