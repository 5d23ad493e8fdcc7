"""Unusual studies: what ``silvan check``, ``fit`` and ``predict`` say about them."""

import warnings

import polars as pl
import pytest
from helpers.runs import fitted, said, silvan, write_study
from helpers.studies import parts, table


def three(change=lambda frame: frame):
    return {site: change(frame) for site, frame in zip("abc", parts(table(n=120), 3).values(), strict=True)}


@pytest.mark.parametrize("cell", [float("inf"), float("-inf"), 1e39])
def test_check_locates_infinite_cells(tmp_path, cell):
    tables = three()
    tables["b"] = tables["b"].with_columns(age=pl.when(pl.int_range(pl.len()) < 2).then(cell).otherwise(pl.col("age")))
    study = write_study(tmp_path, tables)
    assert "age at b: infinite, or too large for a 32-bit float, in 2 rows, which stops a study" in said(
        silvan("check", study)
    )
    assert "column 'age' is infinite, or too large for a 32-bit float" in said(silvan("fit", study, ok=False))


@pytest.mark.parametrize("command", ["check", "fit"])
def test_an_excluded_label_is_reported(tmp_path, command):
    study = write_study(tmp_path, more='exclude = ["label"]')
    refused = silvan(command, study, ok=False)
    assert "study.toml:4: exclude names the label 'label', which is the column to predict" in said(refused)


def test_a_file_without_a_column_that_one_site_has_can_be_predicted_there(tmp_path):
    tables = three()
    tables["a"] = tables["a"].with_columns(sodium=pl.int_range(pl.len()) % 5)
    fitted(tmp_path, tables=tables)
    for command in ("predict", "evaluate"):
        own = silvan(command, tmp_path / "run", tmp_path / "1.csv")
        assert "1.csv' lacks 'sodium', like some sites of the study: treated as missing" in said(own)
        assert "lacks 'sodium'" not in said(silvan(command, tmp_path / "run", tmp_path / "0.csv"))
    tables["b"].rename({"age": "Sodium"}).write_csv(tmp_path / "near.csv")
    assert "did you mean 'Sodium'?" in said(silvan("predict", tmp_path / "run", tmp_path / "near.csv", ok=False))
    tables["b"].drop("age").write_csv(tmp_path / "other.csv")
    refused = silvan("predict", tmp_path / "run", tmp_path / "other.csv", ok=False)
    assert "lacks 'age', 'sodium'; add these columns, or pass --fill" in said(refused)


def test_a_study_of_one_site_says_that_nothing_is_federated(tmp_path):
    alone = "there is only one site: nothing is federated, and the model is trained on its rows alone"
    study = write_study(tmp_path, {"a": table(n=120)})
    assert alone in said(silvan("check", study))
    assert alone in said(silvan("fit", study, "--output", tmp_path / "run"))
    assert alone in (tmp_path / "run" / "report.html").read_text()
    study = write_study(tmp_path)
    assert alone not in said(silvan("check", study))
    assert alone not in said(silvan("fit", study, "--fresh"))


def test_warnings_on_the_command_line_are_plain_lines(tmp_path):
    """BOFRF warns if no tree is above its threshold, without the path of a Python file."""
    study = write_study(tmp_path, kind="BOFRF")
    study.write_text(study.read_text().replace("max_depth = 3", "tau = 0.999"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        shown = silvan("fit", study).stderr
    assert "warning: no tree is above tau = 0.999 (the best is at" in " ".join(shown.split())
    assert "UserWarning" not in shown
    assert ".py" not in shown


def test_copies_of_rows_in_a_table_and_at_two_sites_are_asked_about(tmp_path):
    tables = three()
    study = write_study(tmp_path, tables)
    for command in ("check", "fit"):
        clean = said(silvan(command, study))
        assert "repeat" not in clean
        assert "in common" not in clean
    tables["a"] = pl.concat([tables["a"]] * 3)
    tables["b"] = pl.concat([tables["b"], tables["b"][:9]])
    tables["c"] = pl.concat([tables["c"], tables["b"][20:30]])
    study = write_study(tmp_path, tables)
    for command in ("check", "fit --fresh"):
        shown = said(silvan(*command.split(), study))
        assert "the table of a: each row occurs 3 times, equal in all columns" in shown
        assert "the table of b: 9 rows repeat others" in shown
        assert "tables have rows in common, equal in all columns: b and c (10 rows)" in shown
