"""The demonstration, as a user runs it, and as the tutorial and the README show it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from helpers.runs import silvan

from silvan.datasets import income
from silvan.study.demo_studies import DEMOS, MIN_ROWS, split_unevenly, write_demo
from silvan.study.run_folder import Run
from silvan.study.study_file import read_study

ROOT = Path(__file__).parents[2]
README, PAGE = ROOT / "README.md", ROOT / "docs" / "tutorials" / "demo.md"
VERDICTS = ("significant gain", "significant loss", "not significant", "no difference seen", "too few test rows")


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    words = [sys.executable, "-m", "silvan.cli.main", "demo", "--output", "runs/demo", "--repeats", "2"]
    run = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"}
    )
    return folder / "runs" / "demo", run.stdout


def test_it_prints_and_writes_a_report(demo):
    folder, out = demo
    for word in ("Private", "Self-employed", "Federal-gov", "Local", "Federated", "site mean", "No row left"):
        assert word in " ".join(out.split())
    for name in ("model.silvan", "evaluation.csv", "run.json", "report.html", "study.toml"):
        assert (folder / name).stat().st_size > 0
        assert name in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_some_gains_are_significant_and_some_are_not(demo):
    for out in (demo[1], shown_output()):
        assert out.count("significant gain") >= 2
        assert out.count("not significant") >= 1
        assert "worse" not in out


def test_everybody_is_evaluated(demo):
    record = Run(demo[0]).read()
    names = income()["employer"].unique(maintain_order=True).to_list()
    assert {row.site: row.rows for row in record.evaluation} == {**dict.fromkeys(names, 400), "all": 2400}
    for name, rows in income().group_by("employer", maintain_order=True):
        kept = pl.read_csv(demo[0] / "sites" / f"{name[0].lower()}.csv", schema=rows.drop("employer").schema)
        assert kept.equals(rows.drop("employer"))


def shape(text):
    """The lines of an output without the parts that may differ: numbers, verdicts, widths and line breaks."""
    tables, _, rest = text.partition("\n\nWritten to ")
    tables, sentences = tables.rsplit("\n\n", 1)
    lines = [*tables.splitlines(), "Written to " + rest.splitlines()[0], *rest.splitlines()[1:]]
    masked = []
    for line in lines:
        for words in VERDICTS:
            line = line.replace(words, "VERDICT")
        line = re.sub(r"\b(federated|local|either)( \(\w+\))?(?=\s+[+−±])", "MODEL", line)
        line = re.sub(r"[+−±]?\d[\d.,]*%?( (bytes|KB|MB))?", "N", line)
        line = re.sub(r"\b(once|\w+ times)\b", "TIMES", line)
        masked.append(re.sub(r"\s+|─+", " ", line).strip())
    return " ".join(filter(None, masked)), sentences


def shown_output():
    text = PAGE.read_text(encoding="utf-8")
    [block] = re.findall(r"    \$ silvan demo\n(.*?)\n\n(?=\S)", text, re.S)
    return "\n".join(line.removeprefix("    ") for line in block.strip("\n").splitlines())


def test_the_tutorial_shows_what_it_prints(demo):
    """The same introduction, tables, columns, employers and files; numbers and verdicts come from more repeats."""
    shown, sentences = shape(shown_output())
    printed, said = shape(demo[1])
    assert shown == printed
    for one in (sentences, said):
        one = " ".join(one.split())
        assert re.search(r"of six sites (does|do) better .*\(significant, 95% CI\)", one)
        assert re.search(r"On average over the sites the AUC goes from 0\.8\d+ to 0\.8\d+ \(\+0\.0\d+, 95% CI", one)
        assert re.search(r"Each row was evaluated .*, with models that had not seen it \(\d+ splits\)", one)
        assert re.search(r"Training took \d+ rounds; the average site sent .* No row left its site\.", one)


def test_the_readme_shows_a_table_of_the_tutorial():
    [table] = re.findall(r"    Does joining help\?.*?\n\n", README.read_text(encoding="utf-8"), re.S)
    assert table in PAGE.read_text(encoding="utf-8")


DEALT = {"breast-cancer": 569, "diabetes": 442}


@pytest.fixture(scope="module", params=DEALT)
def dealt(request, tmp_path_factory):
    """A demo whose rows are dealt out, and how to run it."""
    folder = tmp_path_factory.mktemp("dealt")
    words = ["demo", "--output", folder, "--data", request.param, "--sites", "3", "--repeats", "1"]
    silvan(*words)
    return Run(folder), words, DEALT[request.param]


def test_other_data(dealt):
    run, _, rows = dealt
    record = run.read()
    assert len(record.sites) == 3
    assert record.pooled_hash == record.models[0].hash
    assert {row.rows for row in record.evaluation if row.site == "all"} == {rows}


def test_its_study_runs_again_to_the_same_forest(dealt):
    run, words, _ = dealt
    before = run.read()
    silvan(*words)
    again = run.read()
    assert again.models == before.models
    assert again.evaluation == before.evaluation
    assert not list(run.file("report.html").parent.glob("earlier-*"))


def test_columns(tmp_path):
    out = silvan("demo", "--output", tmp_path, "--data", "columns").stdout
    assert "laboratory" in out
    assert "model/" in out
    record = Run(tmp_path).read()
    assert record.by == "columns"
    assert record.pooled_hash == record.models[0].hash


def test_another_demo_in_the_same_folder(tmp_path):
    for name in DEMOS:
        study = read_study(write_demo(tmp_path, DEMOS[name](None, None)))
        written, tables = {path.name for path in (tmp_path / "sites").iterdir()}, list(study.tables.values())
        assert {path.name for path in tables if isinstance(path, Path)} <= written


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--data", "iris"],
            "--data must be one of income, heart, breast-cancer, diabetes, columns, omop, fhir, got 'iris'",
        ),
        (["--sites", "3"], "here every employer is its own site"),
        (["--data", "heart", "--sites", "3"], "here every hospital is its own site"),
        (["--data", "columns", "--repeats", "2"], "--sites and --repeats are for rows"),
    ],
)
def test_wrong_options(tmp_path, words, said):
    result = silvan("demo", "--output", tmp_path, *words, ok=False)
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())


def test_a_foreign_folder_is_left_alone(tmp_path):
    (tmp_path / "study.toml").write_text("name = 'mine'\n")
    result = silvan("demo", "--output", tmp_path, ok=False)
    assert result.exit_code == 1
    assert (tmp_path / "study.toml").read_text() == "name = 'mine'\n"


@pytest.mark.parametrize("n", [2, 5, 12])
def test_every_row_is_assigned_once(n):
    y = np.arange(569) % 3 == 0
    hands = split_unevenly(y, n)
    assert sorted(np.concatenate(hands).tolist()) == list(range(569))
    assert all(min(np.bincount(y[hand].astype(int), minlength=2)) >= MIN_ROWS for hand in hands)
