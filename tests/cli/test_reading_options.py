"""Tables for evaluation or prediction are read like the study's files, or as ``--reading`` says."""

import json
import shutil

import polars as pl
import pytest
from helpers.runs import silvan, write_study
from helpers.studies import table
from helpers.xlsx import write_xlsx

import silvan as sv
from silvan.study.run_folder import Run

READING = """\
[reading]
separator = ";"
decimal = ","
encoding = "latin-1"
missing = ["keine"]
rename = { "größe" = "dose", ergebnis = "label" }
"""
OPTIONS = ("separator=;", "decimal=,", "encoding=latin-1", "missing=keine", "rename.größe=dose")
LABEL = "rename.ergebnis=label"


def german(frame):
    """Writes a table in the format of some of the study's files."""
    frame = frame.rename({"dose": "größe", "label": "ergebnis"}, strict=False)
    texts = [pl.col(c).cast(str).str.replace(".", ",", literal=True).fill_null("keine") for c in frame.columns]
    return frame.select(texts).write_csv(separator=";").encode("latin-1")


def with_gaps(frame):
    gaps = pl.int_range(pl.len()) % 7 == 3
    return frame.with_columns(pl.when(~gaps).then("dose").alias("dose"), pl.when(~gaps).then("sex").alias("sex"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of files in an unusual format, and new rows in both formats."""
    path = tmp_path_factory.mktemp("reading")
    frame = with_gaps(table(n=150))
    study = write_study(path, {"north": frame[:60], "east": frame[60:120]}, more="")
    for i, part in enumerate((frame[:60], frame[60:120])):
        (path / f"{i}.csv").write_bytes(german(part))
    study.write_text(study.read_text() + READING)
    silvan("fit", study, "--output", path / "run")
    new = pl.concat([frame[:20], frame[120:]])
    new.write_csv(path / "plain.csv")
    (path / "german.csv").write_bytes(german(new))
    (path / "bare.csv").write_bytes(german(new.drop("label")))
    new.write_parquet(path / "new.parquet")
    shutil.copytree(path / "run", path / "handed_on")
    (path / "handed_on" / "learnt_rows.private").unlink()
    return path


def plain(*words):
    """Options that say that a table has the plain format."""
    return [w for key in ("separator", "decimal", "encoding", "missing", "rename") for w in ("--reading", f"{key}=")]


def options(*more):
    return [word for option in (*OPTIONS, *more) for word in ("--reading", option)]


def judged(*words):
    result = silvan("evaluate", *words, "--json")
    found = json.loads(result.stdout)
    return found["evaluation"], found["learnt_from"], result.stderr


def test_the_studys_reading_options_apply(folder):
    assert Run(folder / "run").read().study["reading"]["missing"] == ["keine"]
    wanted, learnt, said = judged(folder / "run", folder / "plain.csv", *plain())
    assert said.count("read as the study says") == 0
    found = judged(folder / "run", folder / "german.csv")
    assert found[0] == wanted
    assert 0 < found[1] == learnt <= 20  # rows are recognised in any format
    assert "german.csv is read as the study says of its own files: separator ';', decimal ',', encoding" in found[2]
    assert "rename 'ergebnis' to 'label' and 'größe' to 'dose' (--reading sets it otherwise)" in found[2]


def test_the_same_predictions(folder):
    forest = sv.Forest.load(folder / "run" / "model.silvan")
    frame = pl.read_csv(folder / "plain.csv")
    texts = [
        silvan("predict", folder / "run", folder / "plain.csv", *plain()).stdout,
        silvan("predict", folder / "run", folder / "german.csv").stdout,
        silvan("predict", folder / "run", folder / "bare.csv").stdout,  # the label's new name is not needed
        silvan("predict", folder / "run" / "model.silvan", folder / "bare.csv", *options()).stdout,
        silvan("predict", folder / "run" / "model.silvan", folder / "plain.csv").stdout,
    ]
    assert len(set(texts)) == 1
    assert [line.split(",")[1] for line in texts[0].splitlines()[1:]] == forest.predict(frame).tolist()


def test_text_options_apply_to_text_files_only(folder):
    result = silvan("predict", folder / "run", folder / "new.parquet")
    assert result.stdout == silvan("predict", folder / "run", folder / "german.csv").stdout
    assert "separator" not in result.stderr
    assert "missing 'keine'" in result.stderr
    wrong = silvan("predict", folder / "run", folder / "new.parquet", "--reading", "decimal=,", ok=False).stderr
    assert "decimal is for text files" in wrong


def test_a_model_alone_and_a_folder_handed_on(folder):
    model = folder / "run" / "model.silvan"
    wanted = judged(model, folder / "plain.csv")[0]
    assert judged(model, folder / "german.csv", *options(LABEL))[0] == wanted
    assert judged(folder / "handed_on", folder / "german.csv")[1] is None
    toml = ("decimal = ','", 'missing = "keine"', 'rename = { "größe" = "dose", ergebnis = "label" }', "separator=;")
    words = [word for line in toml for word in ("--reading", line)]
    assert judged(model, folder / "german.csv", *words)[0] == wanted


def test_single_options_override_the_studys(folder, tmp_path):
    text = (folder / "german.csv").read_bytes().decode("latin-1").replace(";", "\t").replace("größe", "hoch")
    (tmp_path / "new.csv").write_text(text)
    words = ["--reading", "separator=tab", "--reading", "encoding=utf-8", "--reading", "rename.hoch=dose"]
    found = judged(folder / "run", tmp_path / "new.csv", *words)
    assert found[0] == judged(folder / "run", folder / "german.csv")[0]
    assert "own files: decimal ',', missing 'keine', rename 'ergebnis' to 'label' (--reading sets" in found[2]


def test_an_audit_uses_the_same_options(folder):
    both = [["--table", folder / name] for name in ("german.csv", "plain.csv")]
    found = [
        silvan("audit", folder / "run", *words, "--json", "-o", folder / "audited", *more, ok=False).stdout
        for words, more in zip(both, ([], plain()), strict=True)
    ]
    assert json.loads(found[0])["reports"] == json.loads(found[1])["reports"]


def test_a_sheet(tmp_path):
    pytest.importorskip("fastexcel")
    frame = table(n=60)
    study = write_study(tmp_path, {"north": frame[:30], "east": frame[30:]})
    silvan("fit", study, "--output", tmp_path / "run")
    write_xlsx(tmp_path / "new.xlsx", {"Notes": [["note"], ["x"]], "Data": [frame.columns, *frame.rows()]})
    result = silvan("predict", tmp_path / "run", tmp_path / "new.xlsx", "--reading", "sheet=Data")
    frame.write_csv(tmp_path / "new.csv")
    assert result.stdout == silvan("predict", tmp_path / "run", tmp_path / "new.csv").stdout


def test_parties(tmp_path):
    frame = table(n=80).with_row_index("id")
    one, two = frame.select("id", "age", "label"), frame.drop("age", "label")
    study = tmp_path / "study.toml"
    study.write_text(
        'label = "label"\nid = "id"\n[parties]\none = "one.csv"\ntwo = "two.csv"\n[reading]\nmissing = ["keine"]\n'
        'decimal = ","\nseparator = ";"\n[learner]\nn_estimators = 2\nmax_depth = 2\n'
    )
    for name, part in (("one", one), ("two", two)):
        part.write_csv(tmp_path / f"plain_{name}.csv")
        texts = [pl.col(c).cast(str).str.replace(".", ",", literal=True) for c in part.columns]
        part.select(texts).write_csv(tmp_path / f"{name}.csv", separator=";", null_value="keine")
    silvan("fit", study, "--output", tmp_path / "run")
    found = silvan("predict", tmp_path / "run", *(f"{n}={tmp_path / n}.csv" for n in ("one", "two")))
    assert "separator ';', decimal ',', missing 'keine'" in found.stderr
    words = [f"{n}={tmp_path}/plain_{n}.csv" for n in ("one", "two")]
    assert found.stdout == silvan("predict", tmp_path / "run", *words, *plain()).stdout


def test_a_column_with_another_name_at_one_party(tmp_path):
    """A renaming belongs to one party, in a study and for new rows; a general one goes to the file with the column."""
    frame = table(n=80).with_row_index("id")
    frame.select("id", "age", "label").write_csv(tmp_path / "one.csv")
    two = frame.drop("age", "label")
    two.rename({"dose": "menge"}).write_csv(tmp_path / "two.csv")
    two.rename({"dose": "hoch"}).write_csv(tmp_path / "high.csv")
    (tmp_path / "study.toml").write_text(
        'label = "label"\nid = "id"\n[parties]\none = "one.csv"\n'
        'two = { table = "two.csv", rename = { menge = "dose" } }\n[learner]\nn_estimators = 2\nmax_depth = 2\n'
    )
    silvan("fit", tmp_path / "study.toml", "--output", tmp_path / "run")
    command = "predict", tmp_path / "run", f"one={tmp_path}/one.csv"
    found = silvan(*command, f"two={tmp_path}/two.csv")
    assert "two.csv is read as the study says of its own files: rename 'menge' to 'dose'" in found.stderr
    for words in ("two:rename.hoch=dose", "rename.hoch=dose"):
        assert silvan(*command, f"two={tmp_path}/high.csv", "--reading", words).stdout == found.stdout
    said = silvan(*command, f"two={tmp_path}/high.csv", "--reading", "rename.niemand=dose", ok=False).stderr
    assert "rename names 'niemand', a column that no party's table has" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["seperator=;"], "--reading: unknown key 'seperator'; did you mean 'separator'?"),
        (["colour=red"], "--reading: unknown key 'colour'; known are separator, decimal, encoding"),
        (["separator=;;"], "--reading: separator must be one character such as ';'"),
        (["decimal=x"], "--reading: decimal must be '.' or ',', got 'x'"),
        (["separator=§"], "--reading: separator must be one character such as ';'"),
        (["encoding=base64"], "--reading: encoding must be one that Python knows"),
        (["encoding=a\0b"], "--reading: encoding must be one that Python knows"),
        (["encoding=utf-16"], "is not utf-16 text; set the right encoding"),
        (["encoding=klingon"], "--reading: encoding must be one that Python knows"),
        (["separator=;", "separator=,"], "--reading names separator twice"),
        (["separator=,"], "--reading: decimal and separator cannot both be ','"),
        (["separator"], "--reading takes KEY=VALUE, as in --reading 'decimal=,'; got 'separator'"),
        (["=;"], "--reading takes KEY=VALUE"),
        (['missing=["keine"'], "--reading: the value of missing is not valid TOML"),
        (["missing=[true]"], "--reading: missing must be texts and numbers, got true"),
        (["missing=keine", "missing.age=-9"], "--reading names missing twice"),
        (["rename=age"], "--reading: rename must map names of columns to the study's names"),
        (["rename.alter=age"], "rename names the column 'alter', which"),
        (["rename.größe=age"], "rename would give several columns of"),
        (["sheet=Data"], "sheet is for Excel files"),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_impossible_options_are_refused(folder, command, words, said):
    asked = [word for option in words for word in ("--reading", option)]
    result = silvan(command, folder / "run", folder / "german.csv", *asked, ok=False)
    assert result.exit_code == 1
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) <= 3


def test_reading_needs_a_table(folder):
    assert "name a table too" in silvan("evaluate", folder / "run", "--reading", "decimal=,", ok=False).stderr
    assert "name them too" in silvan("audit", folder / "run", "--reading", "decimal=,", ok=False).stderr


def test_options_in_a_tampered_run_folder(folder, tmp_path):
    """A run folder from elsewhere is checked like a study file."""
    shutil.copytree(folder / "handed_on", tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    record = json.loads(path.read_text())
    for reading, said in (
        ({"decimal": "x"}, "[reading] of the run's study: decimal must be"),
        ({"rename": {"age": 5}}, "[reading] of the run's study: rename must"),
        ({"rename": "age"}, "[reading] of the run's study: rename must"),
    ):
        path.write_text(json.dumps({**record, "study": {**record["study"], "reading": reading}}))
        assert said in silvan("predict", tmp_path / "run", folder / "plain.csv", ok=False).stderr
    for reading in ([], "x", {"sep": 1}, None):
        path.write_text(json.dumps({**record, "study": {**record["study"], "reading": reading}}))
        silvan("predict", tmp_path / "run", folder / "plain.csv")
