"""Fitting a study: what is written, what is refused, and what survives."""

import csv
import json
import os
import subprocess
import sys
from unittest import mock

import polars as pl
import pytest
from helpers.runs import fitted, silvan, write_study
from helpers.studies import parts, table

import silvan as sv
from silvan.federation.transport import InProcess
from silvan.study import progress_bars
from silvan.study.run_folder import Run
from silvan.study.study_file import read_study

DIES = """
import os, sys
from silvan.federation.transport import InProcess
from silvan.cli.main import main
answer, count = InProcess._answer, [0]
def dies(self, *args):
    count[0] += 1
    if count[0] > int(os.environ["LAST_ANSWER"]):
        os._exit(9)
    return answer(self, *args)
InProcess._answer = dies
main()
"""


def test_a_run_folder_is_complete(tmp_path):
    record = fitted(tmp_path)
    run = Run(tmp_path / "run")
    assert record.status == "done"
    assert [site.name for site in record.sites] == ["north", "east", "south"]
    forest = sv.Forest.load(run.file("model.silvan"))
    assert forest.hash == record.models[0].hash == record.pooled_hash
    with run.file("evaluation.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["site"] for row in rows} == {"north", "east", "south", "all"}
    assert {row["model"] for row in rows} == {"local", "federated", "pooled"}
    assert run.file("report.html").read_text().startswith("<!doctype html>")
    assert sum(t.sent for t in record.traffic) > sum(ways["sent"] for ways in record.bytes.values()) > 0
    assert record.rounds <= 3 + 3
    assert not list(run.folder.glob(".*")), "temporary files are left"


def test_metrics_equal_those_of_the_library(tmp_path):
    record = fitted(tmp_path)
    study = read_study(tmp_path / "study.toml")
    federation = sv.federate_rows({k: str(v) for k, v in study.tables.items()}, test=0.3)
    model = sv.HistogramForest(n_estimators=4, max_depth=3).fit(federation)
    assert model.forest_.hash == record.models[0].hash
    mine = {(r.site, r.model): r.metrics["auc"] for r in record.evaluation}
    for row in model.evaluate(federation).to_dicts():
        assert mine[row["site"], row["model"]] == pytest.approx(row["auc"])


@pytest.mark.parametrize("kind", ["MergedForest", "PooledForest"])
def test_other_learners(tmp_path, kind):
    record = fitted(tmp_path, kind=kind)
    assert record.study["learner"]["kind"] == kind
    assert (record.importances is None) == (kind == "MergedForest")


@pytest.mark.parametrize("kind", ["AutoForest", 'AutoForest"\ncalibrate = false #'], ids=["calibrated", "as it is"])
def test_what_each_site_uses(kind, tmp_path):
    """AutoForest: choices are in the record and on the page, and a second evaluation gives the same metrics."""
    tables = parts(table(n=240), 3)
    swap = pl.when(pl.col("label") == "yes").then(pl.lit("no")).otherwise(pl.lit("yes"))
    record = fitted(tmp_path, tables=tables | {"site 2": tables["site 2"].with_columns(label=swap)}, kind=kind)
    assert record.choices["site 2"].startswith(
        "75% the shared trees with leaf values from own rows, 25% own trees: AUC"
    )
    different = [site for site, text in record.choices.items() if not text.startswith("the shared forest:")]
    own = record.choices if kind == "AutoForest" else different  # calibrated, each has a curve from its own rows
    assert [model.site for model in record.models] == ["", *own]
    assert 1 <= len(different) < 3
    assert record.shared_forest.startswith("The shared forest: ")
    silvan("report", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "75% the shared trees with leaf values from own rows" in page
    assert "trees from sums, " in page
    shown = silvan("evaluate", tmp_path / "run").stdout
    assert "site 2" in shown
    assert "trees from sums, " in shown
    listed = silvan("fit", tmp_path / "study.toml", "--output", tmp_path / "again").stdout
    assert "the forest for site 2" in " ".join(listed.split())


def test_each_site_its_own_forest(tmp_path):
    record = fitted(tmp_path, kind="LocalForest")
    assert [model.site for model in record.models] == ["north", "east", "south"]
    assert len({model.hash for model in record.models}) == 3
    refused = silvan("predict", tmp_path / "run", tmp_path / "0.csv", ok=False)
    assert refused.exit_code == 1
    assert "--site" in refused.stderr
    silvan("predict", tmp_path / "run", tmp_path / "0.csv", "--site", "east")


def test_numbers_and_several_classes(tmp_path):
    for task in ("number", "several"):
        folder = tmp_path / task
        folder.mkdir()
        record = fitted(folder, tables=parts(table(task, n=150), 2))
        assert (record.classes is None) == (task == "number") == (not record.curves)


def test_one_table_and_a_column_that_names_the_site(tmp_path):
    frame = table(n=90).with_columns(pl.Series("clinic", ["a", "b", "c"] * 30))
    frame.write_csv(tmp_path / "all.csv")
    path = tmp_path / "study.toml"
    path.write_text('table = "all.csv"\nsite = "clinic"\n[learner]\nn_estimators = 2\nmax_depth = 2\n')
    result = silvan("fit", path)
    run = Run(tmp_path / "runs" / "study")
    assert [site.name for site in run.read().sites] == ["a", "b", "c"]
    assert run.read().evaluation == []  # nothing was held out for evaluation
    assert "Written to" in result.output


def test_differences_are_shown(tmp_path):
    tables = parts(table(n=120), 2)
    tables["site 1"] = tables["site 1"].drop("noise")
    result = silvan("fit", write_study(tmp_path, tables))
    assert "noise" in result.output
    assert "absent at site 1" in result.output


def test_a_label_missing_at_one_site_names_the_site(tmp_path):
    tables = parts(table(n=120), 3)
    tables["site 1"] = tables["site 1"].rename({"label": "outcome"})
    result = silvan("fit", write_study(tmp_path, tables), ok=False)
    assert result.exit_code == 1
    assert "study.toml:7: site 'site 1': the table has no label column 'label'" in result.stderr
    assert "Traceback" not in result.stderr


def test_empty_labels_at_one_site_name_the_site(tmp_path):
    tables = parts(table(n=120), 3)
    holes = pl.when(pl.int_range(pl.len()) < 3).then(None).otherwise(pl.col("label")).alias("label")
    tables["site 2"] = tables["site 2"].with_columns(holes)
    result = silvan("fit", write_study(tmp_path, tables), ok=False)
    assert "site 'site 2': the label 'label' is missing in 3 of" in result.stderr


def test_debug_shows_where(tmp_path):
    result = silvan("fit", tmp_path / "none.toml", "--debug", ok=False)
    assert isinstance(result.exception, sv.InputError)


def test_interrupted_by_hand_then_resumed(tmp_path):
    answer, count = InProcess._answer, [0]

    def stopped(self, *args):
        count[0] += 1
        if count[0] > 8:
            raise KeyboardInterrupt
        return answer(self, *args)

    path = write_study(tmp_path)
    with mock.patch.object(InProcess, "_answer", stopped):
        result = silvan("fit", path, "--output", tmp_path / "run", ok=False)
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert Run(tmp_path / "run").read().status == "started"

    asked = []
    with mock.patch.object(InProcess, "_answer", lambda *a: asked.append(1) or answer(*a)):
        silvan("fit", path, "--output", tmp_path / "run")
    silvan("fit", path, "--output", tmp_path / "whole")
    resumed, whole = Run(tmp_path / "run").read(), Run(tmp_path / "whole").read()
    assert resumed.models == whole.models
    assert resumed.evaluation == whole.evaluation
    assert resumed.bytes == whole.bytes  # what the first attempt sent counts too
    asked_before = len(asked)
    with mock.patch.object(InProcess, "_answer", lambda *a: asked.append(1) or answer(*a)):
        silvan("fit", path, "--output", tmp_path / "run")
    assert len(asked) == asked_before, "a finished run asks nothing again"


def test_killed_then_resumed(tmp_path):
    """The process dies without warning; a new one resumes and gets the same forest."""
    path, run = write_study(tmp_path), Run(tmp_path / "run")
    words = ["fit", str(path), "--output", str(run.folder)]
    killed = subprocess.run([sys.executable, "-c", DIES, *words], env={**os.environ, "LAST_ANSWER": "14"}, check=False)
    assert killed.returncode == 9
    assert not run.file("evaluation.csv").exists()
    command = [sys.executable, "-m", "silvan.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout  # plain without a terminal
    silvan("fit", path, "--output", tmp_path / "whole")
    assert run.read().models == Run(tmp_path / "whole").read().models


def test_a_failed_evaluation_keeps_the_model(tmp_path):
    path = write_study(tmp_path)
    with mock.patch("silvan.learners.base.evaluate", side_effect=sv.FederationError("the sites went home")):
        result = silvan("fit", path, "--output", tmp_path / "run", ok=False)
    assert result.exit_code == 1
    assert "the sites went home" in result.stderr
    record = Run(tmp_path / "run").read()
    assert record.status == "trained"
    assert sv.Forest.load(tmp_path / "run" / "model.silvan").hash == record.models[0].hash
    silvan("evaluate", tmp_path / "run")
    assert Run(tmp_path / "run").read().status == "done"


def test_another_study_is_not_overwritten(tmp_path):
    record = fitted(tmp_path)
    path = tmp_path / "study.toml"
    path.write_text(path.read_text().replace("max_depth = 3", "max_depth = 2"))
    result = silvan("fit", path, "--output", tmp_path / "run", ok=False)
    assert result.exit_code == 1
    assert "--fresh" in result.stderr
    assert Run(tmp_path / "run").read() == record
    silvan("fit", path, "--output", tmp_path / "run", "--fresh")
    assert Run(tmp_path / "run").read().models != record.models
    assert Run(tmp_path / "run" / "earlier-1").read() == record


def test_changed_rows_are_noticed(tmp_path):
    fitted(tmp_path)
    lines = (tmp_path / "1.csv").read_text().splitlines()
    (tmp_path / "1.csv").write_text("\n".join([*lines, lines[-1]]) + "\n")
    assert "--fresh" in silvan("fit", tmp_path / "study.toml", "-o", tmp_path / "run", ok=False).stderr


def test_a_damaged_record_is_refused(tmp_path):
    fitted(tmp_path)
    path = tmp_path / "run" / "run.json"
    whole = json.loads(path.read_text())
    for broken, said in (
        ("{", "damaged"),
        ("[]", "damaged"),
        (json.dumps({**whole, "format": "other"}), "format"),
        (json.dumps({**whole, "version": 99}), "upgrade"),
        (json.dumps({**whole, "sites": 3}), "sites"),
    ):
        path.write_text(broken)
        for command in (["report", tmp_path / "run"], ["fit", tmp_path / "study.toml", "-o", tmp_path / "run"]):
            result = silvan(*command, ok=False)
            assert result.exit_code == 1
            assert said in result.stderr


def test_an_output_that_cannot_be_written(tmp_path):
    path = write_study(tmp_path)
    (tmp_path / "file").write_text("")
    result = silvan("fit", path, "--output", tmp_path / "file" / "run", ok=False)
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr


def test_progress_shows_rounds_and_remaining_time(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_bars, "PATIENCE", 0.0)
    monkeypatch.setattr(progress_bars, "PAUSE", 0.001)
    result = silvan("fit", write_study(tmp_path))
    assert "Growing trees ... round" in result.stderr
    assert "of up to 5" in result.stderr
    assert " left" in result.stderr
