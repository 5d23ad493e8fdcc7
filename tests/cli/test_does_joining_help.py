"""Whether joining helps, on the command line; and runs in which sites chose their model."""

import csv
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
from helpers.runs import fitted, silvan, write_study
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.algorithms.evaluation.evaluation import ADVICE, CERTAINTY
from silvan.federation.outgoing import Event
from silvan.learners.result import Result
from silvan.report.summary import summarise_run
from silvan.study.listener import TimedStep
from silvan.study.run_folder import Run


def test_the_table_and_the_file(tmp_path):
    study = write_study(tmp_path, parts(table(n=400), 3))
    shown = silvan("fit", study, "--output", tmp_path / "run").stdout
    assert "Does joining help?" in shown
    shown, _ = shown.split("Federated model")  # a table of further metrics
    sites = summarise_run(tmp_path / "run")["sites"]
    for site in sites:
        [line] = [text for text in shown.split("Does joining help?")[1].splitlines() if text.startswith(site["title"])]
        assert CERTAINTY[site["certainty"]] in line
        assert ADVICE[site["certainty"]] in line
    page, text = (tmp_path / "run" / "report.html").read_text(), silvan("report", tmp_path / "run", "--markdown").stdout
    for site in sites:  # the report and its text use the same words
        words = ADVICE[site["certainty"]], CERTAINTY[site["certainty"]]
        [row] = [part for part in page.split("Does joining help?")[1].split("<tr") if site["title"] in part][:1]
        assert f'class="{site["certainty"]}"' in row  # its words are in the legend
        assert words[0] in row
        lines = text.split("Does joining help?")[1].splitlines()
        [line] = [t for t in lines if t.startswith(f"| {site['title']} |")][:1]
        assert all(word in line for word in words)
    with (tmp_path / "run" / "evaluation.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "federated" and row["site"] != "all"]
    assert [row["use"] == "true" for row in rows] == [site["certainty"] == "gained" for site in sites]
    assert [round(float(row["gain_low"]), 3) for row in rows] == [site["low"] for site in sites]


def test_one_class_is_shown_as_undefined(tmp_path):
    tables = parts(table(n=300), 3)
    tables["site 1"] = tables["site 1"].with_columns(pl.lit("no").alias("label"))
    study = write_study(tmp_path, tables)
    shown = silvan("fit", study, "--output", tmp_path / "run").stdout
    above, below = shown.split("Does joining help?")
    for text in (above, *below.split("Federated model")):
        [line] = [t for t in text.splitlines() if t.startswith("site 1")]
        assert "undefined" in line
    assert "nan" not in shown.lower()
    again = silvan("evaluate", tmp_path / "run", tmp_path / "1.csv").stdout
    assert "undefined" in again


@pytest.mark.parametrize("journal", [True, False])
def test_sites_that_choose_are_evaluated_again_alike(tmp_path, journal):
    record = fitted(tmp_path, kind="BOFRF", tables=parts(table(n=300), 3))
    assert {row.model for row in record.evaluation} == {"local", "own", "global", "federated", "pooled"}
    run = Run(tmp_path / "run")
    if not journal:
        run.file("journal.sqlite").unlink()
    silvan("evaluate", run.folder, "--output", tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == run.file("evaluation.csv").read_bytes()
    assert run.file("journal.sqlite").exists() == journal
    shown = silvan("evaluate", run.folder, tmp_path / "0.csv").stdout
    assert "site 0, own" in shown


def test_a_study_that_tunes(tmp_path):
    study = write_study(tmp_path, parts(table(n=120), 2), kind="BOFRF")
    study.write_text(study.read_text() + "tune = { max_depth = [2, 'none'], n_estimators = [3, 6] }\n")
    silvan("fit", study, "--output", tmp_path / "run")
    study.write_text(study.read_text().replace("n_estimators = [3, 6]", "trees = [3]"))
    wrong = silvan("fit", study, "--output", tmp_path / "other", ok=False)
    assert wrong.exit_code == 1
    assert "study.toml:13: tune: grid names 'trees'" in wrong.stderr


def test_forests_in_a_run():
    fed = federate(parts(table(n=120), 2))
    model = sv.MergedForest(n_estimators=4, max_depth=2).fit(fed)
    assert list(model.result().to_keep) == [""]
    model.forests_ = {site: replace(forest) for site, forest in model.forests_.items()}
    assert list(model.result().to_keep) == [""], "copies are the same forest"
    model.forests_["site 1"] = model.forest_.take([0, 1])
    assert list(model.result().to_keep) == ["", "site 1"]
    model.forest_ = None
    assert list(model.result().to_keep) == ["site 0", "site 1"]


def test_a_runs_forests_by_site(tmp_path):
    """Where a site differs from the global forest, it gets its own forest, and the others the global one."""
    fed = federate(parts(table(n=120), 2))
    forest = sv.MergedForest(n_estimators=4, max_depth=2).fit(fed).forest_
    fitted(tmp_path, tables=parts(table(n=120), 2), kind="MergedForest")
    run = Run(tmp_path / "run")
    record = run.read()
    record.models = run.save_models(Result(1, {}, forest, {"site 0": forest, "site 1": forest.take([0])}))
    run.write(record)
    assert [model.file for model in record.models] == ["model.silvan", "model-1.silvan"]
    assert (len(run.forest()), len(run.forest("site 0")), len(run.forest("site 1"))) == (4, 4, 1)


def test_progress_of_tuning_is_shown():
    watchers = []
    step = TimedStep("Growing trees")
    step.follow(SimpleNamespace(rounds=0, active=["north", "south"], watch=watchers.append), 3)
    [on] = watchers
    on(Event("question", "Grow", 1, "north"))
    on(Event("progress", "tuning", 1, "north", done=30, total=120))
    assert "tuning at north, 25%" in str(step)
    on(Event("answer", "Grow", 1, "north"))
    assert "round 1 of up to 3" in str(step)
    assert step.done == 1
