"""Studies that evaluate every row, as the command line runs and shows them."""

import csv
import html

import polars as pl
import pytest
from helpers.runs import silvan, write_study
from helpers.studies import parts, table

import silvan as sv
from silvan.algorithms.evaluation.evaluation import ADVICE
from silvan.errors import InputError
from silvan.learners import compare
from silvan.report.summary import summarise_run
from silvan.study.run_folder import Run
from silvan.study.study_file import make_federation, make_learner, read_study


def study_with_repeats(folder, n=120, line="repeats = 2"):
    study = write_study(folder, parts(table(n=n), 3))
    study.write_text(f"{line}\n{study.read_text()}")
    return study


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("repeats")
    shown = silvan("fit", study_with_repeats(folder), "--output", folder / "run").stdout
    return folder, shown


def test_every_row_is_evaluated(run):
    folder, shown = run
    record = Run(folder / "run").read()
    assert record.repeats == 2
    assert {row.model for row in record.evaluation} == {"local", "federated"}
    rows = {row.site: row.rows for row in record.evaluation}
    assert rows == {**{name: len(part) for name, part in parts(table(n=120), 3).items()}, "all": 120}
    assert "Each row was evaluated two times" in " ".join(shown.split())
    assert "site mean" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert (folder / "run" / "report.html").read_text().count("Nadeau and Bengio") == 1


def test_metrics_equal_those_of_compare(run):
    folder, _ = run
    study = read_study(folder / "study.toml")
    fed = make_federation(study)
    found = sv.compare(fed, {"joined": make_learner(study, fed.schema)}, repeats=2)
    ours = [row for row in Run(folder / "run").read().evaluation if row.model == "federated"]
    theirs = found.frame.filter(pl.col("model") == "joined")
    assert [row.gain for row in ours] == theirs["gain"].to_list()
    assert [row.gain_high for row in ours] == theirs["gain_high"].to_list()


def test_the_recommendation_needs_significance(run):
    record = Run(run[0] / "run").read()
    for site in summarise_run(run[0] / "run")["sites"]:
        assert site["use"] == ADVICE[site["certainty"]]
        marked = [row.model for row in record.evaluation if row.site == site["title"] and row.use]
        assert marked == ([site["use"]] if site["use"] in ("federated", "local") else [])


def test_a_second_evaluation_gives_the_same(run, tmp_path):
    folder, _ = run
    silvan("evaluate", folder / "run", "--output", tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (folder / "run" / "evaluation.csv").read_bytes()
    with (tmp_path / "again.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 8


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("repeats = 0", "repeats must be a whole number of at least 1 and at most 1,000, got 0"),
        ("repeats = 2.5", "repeats must be a whole number"),
        ("repeats = 'ten'", "repeats must be a whole number"),
        ('repeats = 2\nmemory = "1GB"', "repeats needs all rows in memory"),
    ],
)
def test_invalid_repeats(tmp_path, line, said):
    with pytest.raises(InputError, match=said):
        read_study(study_with_repeats(tmp_path, line=line))


def test_an_interrupted_run_resumes_with_the_next_split(run, tmp_path, monkeypatch):
    """The journal has the evaluated splits; the result equals that of an uninterrupted run."""
    study = study_with_repeats(tmp_path)
    made, judged = [], compare._evaluate_split

    def stop_at_third(trained, tested, learners):
        made.append(trained.study)
        if len(made) == 3:
            raise KeyboardInterrupt
        return judged(trained, tested, learners)

    monkeypatch.setattr(compare, "_evaluate_split", stop_at_third)
    silvan("fit", study, "--output", tmp_path / "run", ok=False)
    silvan("fit", study, "--output", tmp_path / "run")
    assert made[2] == made[3]
    assert len(set(made)) == len(made) - 1
    again, before = (Run(folder / "run").read() for folder in (tmp_path, run[0]))
    assert (again.evaluation, again.counts, again.curves) == (before.evaluation, before.counts, before.curves)
    assert again.traffic == before.traffic


# -- one site left out at a time

LEFT_OUT = """split = {split}
{more}
[sites]
north = "north.csv"
east = "east.csv"
south = "south.csv"

[learner]
kind = "{kind}"
n_estimators = 4
{learner}
"""


def study_without_each(folder, more="", kind="HistogramForest", learner="", split='"sites"'):
    for name, part in zip(("north", "east", "south"), parts(table(n=120), 3).values(), strict=True):
        part.write_csv(folder / f"{name}.csv")
    path = folder / "study.toml"
    path.write_text(LEFT_OUT.format(split=split, more=more, kind=kind, learner=learner))
    return path


def test_a_study_that_leaves_out_sites(tmp_path):
    shown = silvan("fit", study_without_each(tmp_path), "--output", tmp_path / "run").stdout
    record = Run(tmp_path / "run").read()
    fed = make_federation(read_study(tmp_path / "study.toml"))
    found = sv.compare(fed, {"forest": sv.HistogramForest(n_estimators=4)}, split="sites")
    assert [(row.site, row.rows, row.metrics["auc"]) for row in record.evaluation] == found.frame.select(
        "site", "rows", "auc"
    ).rows()
    assert {row.gain for row in record.evaluation} == {None}
    text = " ".join(shown.split())
    assert "AUC on all rows of each site, with a model trained at the other sites" in text
    assert "At a site outside the training federation, expect AUC" in text
    assert "site mean" in text
    page = (tmp_path / "run" / "report.html").read_text()
    assert "each site was left out in turn" in page
    assert "model at each site, trained without that site" in page
    assert "Nadeau" not in page
    assert "alone" not in summarise_run(tmp_path / "run")["sentences"][0]


def test_a_report_without_local_models_can_be_made_again(tmp_path):
    silvan("fit", study_without_each(tmp_path), "--output", tmp_path / "run")
    silvan("evaluate", tmp_path / "run", "--output", tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "run" / "evaluation.csv").read_bytes()


@pytest.mark.parametrize(
    ("more", "kind", "learner", "line", "said"),
    [
        ("test = 0.2", "HistogramForest", "", 1, "leave one of split and test out"),
        ("repeats = 2", "HistogramForest", "", 1, "leave one of split and repeats out"),
        ('memory = "1GB"', "HistogramForest", "", 1, "needs all rows in memory"),
        ('sums = "masked"', "HistogramForest", "", 2, "sums must be 'trusted' to leave one site out"),
        ("", "BOFRF", "", 1, "BOFRF has none"),
        ("", "HistogramForest", "epsilon = 1.0", 1, "every split would cost the budgets anew"),
        ("", "HistogramForest", '[evaluation]\nby = ["x0"]', 12, "leave one of by and split out"),
    ],
)
def test_settings_incompatible_with_leaving_sites_out(tmp_path, more, kind, learner, line, said):
    with pytest.raises(InputError) as error:
        read_study(study_without_each(tmp_path, more, kind, learner))
    assert f"study.toml:{line}" in str(error.value)
    assert said in str(error.value)


def test_invalid_values_of_split(tmp_path):
    study = study_without_each(tmp_path)
    study.write_text(study.read_text().replace('"sites"', '"hospitals"', 1))
    with pytest.raises(InputError, match="split must be"):
        read_study(study)


# -- test rows by date

BY_DATE = '{ by = "seen", test = "%s" }'


def study_by_date(folder, test="last 25%", days=60, **settings):
    path = study_without_each(folder, split=BY_DATE % test, **settings)
    for name in ("north", "east", "south"):
        rows = pl.read_csv(folder / f"{name}.csv")
        day = pl.date(2024, 1, 1) + pl.duration(days=pl.int_range(len(rows)) % days)
        rows.with_columns(seen=day).write_csv(folder / f"{name}.csv")
    return path


def test_a_study_with_test_rows_by_date(tmp_path):
    shown = " ".join(silvan("fit", study_by_date(tmp_path), "--output", tmp_path / "run").stdout.split())
    record = Run(tmp_path / "run").read()
    for site in record.sites:
        assert site.test_rows == round((site.rows + site.test_rows) / 4)
    assert "seen" not in record.columns
    said = "Test rows are the last 25% of every site's rows, by seen; the model was trained on earlier ones."
    assert said in shown
    assert said in html.unescape((tmp_path / "run" / "report.html").read_text())
    silvan("evaluate", tmp_path / "run", "--output", tmp_path / "again.csv")
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "run" / "evaluation.csv").read_bytes()


def test_dates_with_gaps_are_found_before_anything_runs(tmp_path):
    study = study_by_date(tmp_path)
    rows = pl.read_csv(tmp_path / "east.csv")
    rows.with_columns(seen=pl.when(pl.int_range(pl.len()) > 2).then("seen")).write_csv(tmp_path / "east.csv")
    for command in ("check", "fit"):
        found = silvan(command, study, ok=False)
        text = " ".join((found.stdout + found.stderr).split())
        assert "east" in text
        assert "3 rows of 41 have no date" in text


@pytest.mark.parametrize(
    ("split", "more", "learner", "said"),
    [
        ("last 120%", "", "", "split must be 'sites', { by = \"date\""),
        ("last 20%", "test = 0.2", "", "leave one of split and test out"),
        ("last 20%", "repeats = 2", "", "leave one of split and repeats out"),
        ("last 20%", "", "epsilon = 1.0", "split must name a date if there is a privacy budget"),
        ("last 20%", 'label = "seen"', "", "which is the label"),
    ],
)
def test_invalid_splits_by_date(tmp_path, split, more, learner, said):
    with pytest.raises(InputError) as error:
        read_study(study_by_date(tmp_path, split, more=more, learner=learner))
    assert "study.toml:1" in str(error.value)
    assert said in str(error.value)
