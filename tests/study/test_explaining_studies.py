"""Studies that explain columns: in the study file, in approvals, and in the run folder."""

import re

import pytest
from helpers.runs import silvan, write_study
from helpers.studies import parts, table
from typer.testing import CliRunner

from silvan.cli.main import app
from silvan.deploy.studies.send_results import copy_for
from silvan.deploy.studies.trial import try_out
from silvan.errors import InputError
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import Run
from silvan.study.study_file import fingerprint_of, read_study

ASKS = '\n[evaluation]\nimportance = true\ndependence = ["age", "ward"]\n'


def written(folder, more=ASKS, **settings):
    path = write_study(folder, **settings)
    path.write_text(path.read_text() + more)
    return path


@pytest.mark.parametrize("kind", ["MergedForest", "BOFRF"])
def test_a_run_has_the_requested_parts(tmp_path, kind):
    path = written(tmp_path, kind=kind)
    out = silvan("fit", path, "--output", tmp_path / "run").output
    assert "Most important columns" in out
    record = Run(tmp_path / "run").read()
    assert set(record.permutation) == {"age", "dose", "sex", "ward", "noise"}
    assert [one.column for one in record.dependence] == ["age", "ward"]
    assert record.dependence[1].values[0] == "a"
    assert len(record.dependence[1].means["yes"]) == len(record.dependence[1].values)
    assert {"ShuffleColumns", "SetColumns"} <= {kind.name for kind in record.kinds}
    assert "when a column is shuffled at every site" in (tmp_path / "run" / "report.html").read_text()


def test_a_run_by_subgroups(tmp_path):
    """The output fits 80 columns; all metrics are available on request."""
    tables = dict(zip(("north", "east"), parts(table(n=240), 2).values(), strict=True))
    path = written(tmp_path, '\n[evaluation]\nby = ["sex"]\n', tables=tables)
    words = ["fit", str(path), "--output", str(tmp_path / "run")]
    out = CliRunner().invoke(app, words, env={"COLUMNS": "80"}).output
    assert "sex = f" in out
    assert re.search(r"95% CI  Brier +At  Sens.  Spec.", out)
    record = Run(tmp_path / "run").read()
    assert {row.group for row in record.subgroups} == {"sex = f", "sex = m"}
    assert {row.group for row in record.evaluation} == {""}
    again = CliRunner().invoke(app, ["evaluate", str(tmp_path / "run"), "--all"], env={"COLUMNS": "80"}).output
    assert "log_loss" in again
    assert "log_loss" not in out
    for line in (out + again).splitlines():
        assert len(line) <= 80 or str(tmp_path) in line
    kept = copy_for(record, parse_remote_study("[learner]\n"), "north")
    assert {row.site for row in kept.subgroups} == {"north"}


def test_a_study_without_explanations_is_unchanged(tmp_path):
    plain = read_study(write_study(tmp_path))
    assert "evaluation" not in plain.settings()
    asked = read_study(written(tmp_path))
    assert asked.settings()["evaluation"] == {"importance": True, "dependence": ["age", "ward"]}
    assert fingerprint_of(asked, "1") != fingerprint_of(plain, "1")


def test_without_a_forest_for_all_sites(tmp_path):
    silvan("fit", written(tmp_path, kind="LocalForest"), "--output", tmp_path / "run")
    record = Run(tmp_path / "run").read()
    assert record.permutation is None
    assert any("forest for all sites" in text for text in record.warnings)


def test_too_few_test_rows(tmp_path):
    """The model and the metrics are there anyway."""
    silvan("fit", written(tmp_path, f"{ASKS}\n[policy]\nmin_test = 30\n"), "--output", tmp_path / "run")
    record = Run(tmp_path / "run").read()
    assert record.status == "done"
    assert any("enough test rows" in text for text in record.warnings)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("importance = 1", "true or false"),
        ('dependence = "age"', "a list of columns"),
        ('dependence = ["age", "age"]', "each once"),
        ("importances = true", "did you mean"),
        ('by = "sex"', "a list of columns"),
    ],
)
def test_invalid_settings(tmp_path, lines, why):
    with pytest.raises(InputError, match=why):
        read_study(written(tmp_path, f"\n[evaluation]\n{lines}\n"))


def test_there_must_be_test_rows(tmp_path):
    path = written(tmp_path)
    path.write_text(path.read_text().replace("test = 0.3\n", ""))
    with pytest.raises(InputError, match="needs test rows"):
        read_study(path)


@pytest.mark.parametrize("key", ["dependence", "by"])
def test_an_unknown_column_stops_before_training(tmp_path, key):
    path = written(tmp_path, f'\n[evaluation]\n{key} = ["agee"]\n')
    found = silvan("fit", path, "--output", tmp_path / "run", ok=False)
    assert found.exit_code
    assert f"study.toml:{len(path.read_text().splitlines())}" in found.stderr
    assert Run(tmp_path / "run").read().status == "started"


def test_approvals_list_the_messages():
    text = 'label = "y"\ntest = 0.3\n[learner]\nkind = "MergedForest"\n'
    kinds = {"ShuffleColumns", "SetColumns"}
    assert not kinds & set(try_out(parse_remote_study(text)).kinds)
    asked = try_out(parse_remote_study(text + ASKS))
    assert kinds <= set(asked.kinds)
    assert asked.tasks == 4
