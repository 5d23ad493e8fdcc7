"""Predictions and metrics from a run."""

import csv
import io
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from helpers.runs import fitted, silvan
from helpers.studies import parts, table

import silvan as sv


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("predict")
    fitted(path)
    return path


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_predictions_equal_the_forests(folder):
    result = silvan("predict", folder / "run", folder / "0.csv")
    rows = read(result.stdout)
    forest = sv.Forest.load(folder / "run" / "model.silvan")
    frame = pl.read_csv(folder / "0.csv")
    assert [row["prediction"] for row in rows] == forest.predict(frame).tolist()
    shares = [float(row["probability_yes"]) for row in rows]
    assert shares == pytest.approx(forest.predict_proba(frame)[:, 1].tolist(), abs=1e-5)
    assert [row["row"] for row in rows] == [str(i) for i in range(1, len(frame) + 1)]


def test_a_file_and_a_run_predict_alike_and_need_no_label(folder, tmp_path):
    pl.read_csv(folder / "0.csv").drop("label").write_csv(tmp_path / "bare.csv")
    silvan("predict", folder / "run" / "model.silvan", tmp_path / "bare.csv", "--output", tmp_path / "out.csv")
    silvan("predict", folder / "run", tmp_path / "bare.csv", "-o", tmp_path / "again.csv", "--site", "east")
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "again.csv").read_bytes()


@pytest.mark.parametrize(("output", "said"), [("nowhere/out.csv", "nowhere: no such file"), (".", ": is a directory")])
def test_an_unwritable_output(folder, output, said):
    result = silvan("predict", folder / "run", folder / "0.csv", "--output", folder / output, ok=False)
    assert said in result.stderr


def test_categories_with_other_codes_are_reported(tmp_path):
    schema = sv.Schema.of(
        ["age", sv.Feature("sex", "categorical", categories=("f", "m"))], sv.Label("label", ("no", "yes"))
    )
    frame = pl.DataFrame({"age": range(40), "sex": ["f", "m"] * 20, "label": ["no", "no", "yes", "yes"] * 10})
    sv.HistogramForest(2).fit(sv.federate_rows({"a": frame}, schema=schema)).forest_.save(tmp_path / "m.silvan")
    frame.write_csv(tmp_path / "t.csv")
    frame.with_columns(pl.col("sex").str.to_uppercase()).write_csv(tmp_path / "other.csv")
    for command in ("predict", "evaluate"):
        assert "check " not in silvan(command, tmp_path / "m.silvan", tmp_path / "t.csv").stderr
        said = " ".join(silvan(command, tmp_path / "m.silvan", tmp_path / "other.csv").stderr.split())
        assert "check sex: 40 of 40 rows have categories unknown to the forest, treated as missing" in said
        assert "it knows 'f', 'm'" in said


def test_absent_columns_count_as_missing_on_request(folder, tmp_path):
    frame = pl.read_csv(folder / "0.csv")
    frame.drop("age").write_csv(tmp_path / "narrow.csv")
    frame.with_columns(pl.lit(None, pl.Float64).alias("age")).write_csv(tmp_path / "empty.csv")
    filled = silvan("predict", folder / "run", tmp_path / "narrow.csv", "--fill").stdout
    assert filled == silvan("predict", folder / "run", tmp_path / "empty.csv").stdout


def test_cells_are_read_by_the_schema_and_no_output_is_a_formula(tmp_path):
    ward = sv.Feature("ward", "categorical", categories=("01", "1", "x"))
    schema = sv.Schema.of(["age", ward], sv.Label("label", classes=("=1+1", "-5", "@x")))
    rows = [(0, "01", "=1+1"), (1, "1", "-5"), (2, "x", "@x")] * 10
    frame = pl.DataFrame(rows, ["age", "ward", "label"], orient="row").drop("age").with_columns(age=pl.lit(1.0))
    fed = sv.federate_rows({"a": frame, "b": frame}, schema=schema)
    forest = sv.HistogramForest(5, bootstrap=False, max_features=None).fit(fed).forest_
    forest.save(tmp_path / "model.silvan")
    # without the text this would be a column of integers, and "01" the ward "1"
    (tmp_path / "new.csv").write_text("age,ward\n1,01\n1,1\n")
    rows = read(silvan("predict", tmp_path / "model.silvan", tmp_path / "new.csv").stdout)
    assert [row["prediction"] for row in rows] == ["'=1+1", "-5"]
    (tmp_path / "new.csv").write_text("age,ward\n1,x\nmany,x\n")
    refused = silvan("predict", tmp_path / "model.silvan", tmp_path / "new.csv", ok=False).stderr
    assert "column 'age' holds text" in refused
    assert "(row 2)" in refused
    assert "many" not in refused


def test_the_class_is_what_the_trees_vote_for_and_some_may_abstain(folder, tmp_path):
    forest = sv.Forest.load(folder / "run" / "model.silvan")
    split_on_age = forest.uses[:, forest.schema.names.index("age")]
    assert 0 < split_on_age.sum() < len(forest)
    lean = np.where(np.arange(len(forest)) % 2, 3.0, 1.0)
    forest = replace(forest, combine="vote", weights=lean)
    forest.save(tmp_path / "voting.silvan")
    frame = pl.read_csv(folder / "0.csv").drop("age")
    frame.write_csv(tmp_path / "narrow.csv")
    result = silvan("predict", tmp_path / "voting.silvan", tmp_path / "narrow.csv")
    rows = read(result.stdout)
    assert [row["prediction"] for row in rows] == forest.predict(frame).tolist()
    shares = [float(row["probability_yes"]) for row in rows]
    assert shares == pytest.approx(forest.predict_proba(frame)[:, 1].tolist(), abs=1e-5)
    assert f"{split_on_age.sum()} of {len(forest)} trees abstained: the table lacks 'age'" in result.stderr
    # counted as missing on request: no tree abstains
    filled = silvan("predict", tmp_path / "voting.silvan", tmp_path / "narrow.csv", "--fill")
    empty = frame.with_columns(pl.lit(None, pl.Float64).alias("age"))
    assert [row["prediction"] for row in read(filled.stdout)] == forest.predict(empty).tolist()
    assert "abstained" not in filled.stderr
    (tmp_path / "strange.csv").write_text("a,b\n1,2\n")
    strange = silvan("predict", tmp_path / "voting.silvan", tmp_path / "strange.csv", ok=False)
    assert "is it the right table?" in strange.stderr


def test_stages_predict_too(folder, tmp_path):
    forest = sv.Forest.load(folder / "run" / "model.silvan")
    n = len(forest)
    forest = replace(forest, combine="stages", group=np.arange(n) // 3, say=np.arange(1.0, 1 + -(-n // 3)))
    forest.save(tmp_path / "stages.silvan")
    rows = read(silvan("predict", tmp_path / "stages.silvan", folder / "0.csv").stdout)
    assert [row["prediction"] for row in rows] == forest.predict(pl.read_csv(folder / "0.csv")).tolist()


def test_a_number(tmp_path):
    fitted(tmp_path, tables=parts(table("number", n=100), 2))
    rows = read(silvan("predict", tmp_path / "run", tmp_path / "1.csv").stdout)
    forest = sv.Forest.load(tmp_path / "run" / "model.silvan")
    predicted = forest.predict(pl.read_csv(tmp_path / "1.csv"))
    assert [float(row["prediction"]) for row in rows] == predicted.tolist()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "none.csv"], "there is no file"),
        (["none.silvan", "0.csv"], "there is no model"),
        (["0.csv", "0.csv"], "not a silvan forest"),
        (["run", "narrow.csv"], "lacks 'age'; add these columns, or pass --fill"),
        (["run", "strange.csv", "--fill"], "is it the right table?"),
        (["run", "0.csv", "--site", "west"], "there is no site 'west'; the sites are north, east, south"),
        (["run/model.silvan", "0.csv", "--site", "north"], "--site is for a run folder"),
    ],
)
def test_invalid_tables_for_prediction(folder, words, said):
    pl.read_csv(folder / "0.csv").drop("age").write_csv(folder / "narrow.csv")
    (folder / "strange.csv").write_text("a,b\n1,2\n")
    paths = [folder / word if "." in word or word == "run" else word for word in words]
    result = silvan("predict", *paths, ok=False)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_model_of_another_run(folder, tmp_path):
    fitted(tmp_path)
    other = sv.ForestClassifier(n_estimators=2).fit(pl.DataFrame({"age": [1.0, 2.0] * 9}), ["a", "b"] * 9)
    other.forest_.save(tmp_path / "run" / "model.silvan")
    assert "was changed" in silvan("predict", tmp_path / "run", folder / "0.csv", ok=False).stderr


def test_evaluate_at_the_sites_again(folder, tmp_path):
    before = (folder / "run" / "run.json").read_bytes()
    result = silvan("evaluate", folder / "run", "--output", tmp_path / "figures.csv")
    assert (tmp_path / "figures.csv").read_text() == (folder / "run" / "evaluation.csv").read_text()
    assert (folder / "run" / "run.json").read_bytes() == before
    assert "site mean" in result.stdout


def test_evaluate_on_a_table(folder, tmp_path):
    silvan("evaluate", folder / "run", folder / "0.csv", "--output", tmp_path / "figures.csv")
    rows = read((tmp_path / "figures.csv").read_text())
    assert {row["model"] for row in rows} == {"local", "federated", "pooled"}
    silvan("evaluate", folder / "run" / "model.silvan", folder / "0.csv", "-o", tmp_path / "one.csv")
    [alone] = read((tmp_path / "one.csv").read_text())
    assert alone["auc"] == next(row["auc"] for row in rows if row["model"] == "federated")


def test_evaluate_never_uses_possible_training_rows(tmp_path):
    fitted(tmp_path)
    other = table(n=40, seed=5)
    other.write_csv(tmp_path / "other.csv")
    (tmp_path / "2.csv").unlink()
    refused = silvan("evaluate", tmp_path / "run", ok=False)
    assert refused.exit_code == 1
    assert "missing or have changed" in refused.stderr
    result = silvan("evaluate", tmp_path / "run", tmp_path / "other.csv")
    assert "federated" in result.stdout
    assert "40 rows" in result.stdout


def test_evaluate_a_file_needs_a_table(folder):
    result = silvan("evaluate", folder / "run" / "model.silvan", ok=False)
    assert "name a table" in result.stderr
