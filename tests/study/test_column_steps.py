"""Studies over columns from the command line: fitting, evaluation and prediction."""

import csv
import io
import json
import shutil
from unittest import mock

import numpy as np
import polars as pl
import pytest
from helpers.column_studies import ID, split, wide
from helpers.runs import silvan

import silvan as sv
from silvan.federation.transport import InProcess
from silvan.study.run_folder import Run
from silvan.study.study_file import read_study

SMALL = {"VerticalForest": "n_estimators = 4\nmax_depth = 3", "VerticalLinear": "alpha = 2.0"}
PARAMETERS = {"VerticalForest": {"n_estimators": 4, "max_depth": 3}, "VerticalLinear": {"alpha": 2.0}}
NAMES = ("bank", "shop")


def study(folder, task="binary", kind="VerticalForest", more="", test=0.3):
    for name, frame in zip(NAMES, split(wide(task, n=120), 2).values(), strict=True):
        frame.write_csv(folder / f"{name}.csv")
    path = folder / "study.toml"
    path.write_text(
        f'id = "{ID}"\ntest = {test}\n[parties]\nbank = "bank.csv"\nshop = "shop.csv"\n'
        f'[learner]\nkind = "{kind}"\n{SMALL[kind]}\n{more}'
    )
    return path


def fitted(folder, *args, **settings):
    silvan("fit", study(folder, *args, **settings), "--output", folder / "run")
    return Run(folder / "run").read()


def new_rows(folder, task="binary", n=30):
    """Rows that the model has not seen, as each party's table; with columns that both have and nobody needs."""
    frame = wide(task, n=n, seed=4)
    for name, part in zip(NAMES, split(frame, 2).values(), strict=True):
        part.drop("label", strict=False).with_columns(note=pl.lit("x")).write_csv(folder / f"new {name}.csv")
    frame.write_csv(folder / "joined.csv")
    return frame, [f"{name}={folder / f'new {name}.csv'}" for name in NAMES]


def read(text):
    return list(csv.DictReader(io.StringIO(text)))


RUNS = [
    ("binary", "VerticalForest"),
    ("number", "VerticalForest"),
    ("several", "VerticalLinear"),
    ("number", "VerticalLinear"),
]


@pytest.fixture(scope="module", params=RUNS, ids="-".join)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    return folder, *request.param, fitted(folder, *request.param)


def test_the_run_equals_the_librarys(run):
    folder, _, kind, record = run
    tables = {name: str(folder / f"{name}.csv") for name in NAMES}
    fed = sv.federate_columns(tables, id=ID, label="label", test=0.3)
    model = getattr(sv, kind)(**PARAMETERS[kind]).fit(fed)
    assert (record.by, record.status, record.rounds) == ("columns", "done", model.rounds_)
    assert [(s.name, s.rows, s.test_rows) for s in record.sites] == [
        (n, fed.rows[n], len(fed.columns.test)) for n in NAMES
    ]
    if kind == "VerticalForest":
        assert record.models[0].hash == record.pooled_hash == model.forest_.hash
    figure = next(iter(record.evaluation[0].metrics))
    mine = {(r.site, r.model): (r.metrics[figure], r.gain, r.gain_low, r.use) for r in record.evaluation}
    for row in model.evaluate(fed).to_dicts():
        theirs = (row[figure], row["gain"], row["gain_low"], row["use"])
        assert mine.pop((row["site"], row["model"])) == pytest.approx(theirs)
    assert not mine
    assert {p.name for p in (folder / "run" / "model").iterdir()} >= {"bank.share.silvan", "shop.share.silvan"}
    page = (folder / "run" / "report.html").read_text()
    assert "2 parties" in page
    assert f"{fed.rows['bank']:,} training rows" in page
    assert "No row left its site" not in page


def test_new_rows_are_predicted_by_id(run):
    folder, task, kind, _ = run
    frame, words = new_rows(folder, task)
    predicted = read(silvan("predict", folder / "run", *words).stdout)
    model = getattr(sv, kind).load(folder / "run" / "model")
    by_id = dict(zip(frame[ID].to_list(), model.predict(frame).tolist(), strict=True))
    assert len(predicted) == len(frame)
    for row in predicted:
        expected = by_id[int(row[ID])]
        assert (
            row["prediction"] == expected if task != "number" else float(row["prediction"]) == pytest.approx(expected)
        )
    if task == "binary":
        shares = {i: p for i, (_, p) in zip(frame[ID].to_list(), model.predict_proba(frame).tolist(), strict=True)}
        assert all(float(row["probability_yes"]) == pytest.approx(shares[int(row[ID])], abs=1e-5) for row in predicted)


def test_evaluated_again(run):
    folder, task, _, record = run
    new_rows(folder, task)
    silvan("evaluate", folder / "run", "--output", folder / "again.csv")
    assert (folder / "again.csv").read_bytes() == (folder / "run" / "evaluation.csv").read_bytes()
    assert Run(folder / "run").read() == record
    silvan("evaluate", folder / "run", folder / "joined.csv", "--output", folder / "table.csv")
    rows = read((folder / "table.csv").read_text())
    assert {(r["site"], r["model"]) for r in rows} >= {("bank", "local"), ("shop", "local"), ("all", "federated")}
    # the parties' tables are gone: the model alone is evaluated, as before
    moved = (folder / "bank.csv").rename(folder / "moved.csv")
    silvan("evaluate", folder / "run", folder / "joined.csv", "--output", folder / "alone.csv")
    refused = silvan("evaluate", folder / "run", ok=False)
    moved.rename(folder / "bank.csv")
    [alone] = read((folder / "alone.csv").read_text())
    figure = list(alone)[3]
    beside = next(r for r in rows if (r["site"], r["model"]) == ("all", "federated"))
    assert float(alone[figure]) == pytest.approx(float(beside[figure]))
    assert "missing or have changed" in refused.stderr


@pytest.fixture(scope="module")
def forest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forest")
    fitted(folder)
    new_rows(folder)
    return folder


def test_ids_keep_their_zeros(tmp_path, forest):
    shutil.copytree(forest, tmp_path, dirs_exist_ok=True)
    frame, words = new_rows(tmp_path)
    for word in words:
        path = word.partition("=")[2]
        written = pl.col(ID).cast(pl.String).str.zfill(9 if "bank" in word else 7)
        pl.read_csv(path).with_columns(written).write_csv(path)
    predicted = read(silvan("predict", tmp_path / "run", *words).stdout)
    assert {row[ID] for row in predicted} == {f"{value:09}" for value in frame[ID].to_list()}


def test_check_does_not_compare_parties(forest):
    lines = json.loads(silvan("check", forest / "study.toml", "--json").stdout)["questions"]
    assert not any(ID in line or "rename" in line for line in lines)


@pytest.mark.parametrize("kind", SMALL)
def test_rows_that_a_party_lacks(tmp_path, kind, forest):
    if kind == "VerticalForest":
        shutil.copytree(forest, tmp_path, dirs_exist_ok=True)
    else:
        fitted(tmp_path, kind=kind)
    frame, words = new_rows(tmp_path)
    shop = tmp_path / "new shop.csv"
    pl.read_csv(shop).filter(pl.col(ID).is_in(frame[ID].to_list()[5:])).write_csv(shop)
    assert len(read(silvan("predict", tmp_path / "run", *words).stdout)) == 25
    predicted = read(silvan("predict", tmp_path / "run", *words, "--fill").stdout)
    assert [row["lacking"] for row in predicted].count("shop") == 5
    assert len(predicted) == 30


WRONG = [
    ([], "Missing argument"),
    (["bank={0}"], "name the table of party 'shop' too"),
    (["{0}", "shop={1}"], "name each party's table as PARTY=TABLE, the party one of bank, shop; got"),
    (["bank={0}", "bank={0}", "shop={1}"], "party 'bank' has two tables"),
    (["bank={1}", "shop={0}"], "party 'bank': '"),
    (["bank=none.csv", "shop={1}"], "none.csv"),
    (["bank={0}", "shop={1}", "--site", "bank"], "all parties share one model"),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[said for _, said in WRONG])
def test_tables_of_other_parties(forest, words, said):
    paths = [forest / f"new {name}.csv" for name in NAMES]
    result = silvan("predict", forest / "run", *(word.format(*paths) for word in words), ok=False)
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_commands_for_sites_say_so(forest):
    assert "the audit is for forests of sites" in silvan("audit", forest / "run", ok=False).stderr
    assert "advise compares sites" in silvan("advise", forest / "study.toml", ok=False).stderr
    assert (
        "its model is in shares" in silvan("audit", forest / "run", "--table", forest / "joined.csv", ok=False).stderr
    )


def test_a_party_that_deletes_its_share(tmp_path, forest):
    shutil.copytree(forest, tmp_path, dirs_exist_ok=True)
    _, words = new_rows(tmp_path)
    (tmp_path / "run" / "model" / "shop.share.silvan").unlink()
    refused = silvan("predict", tmp_path / "run", *words, ok=False)
    assert "'shop' refused" in refused.stderr
    assert "no share of this model" in refused.stderr


def test_a_share_of_another_run(tmp_path, forest):
    shutil.copytree(forest, tmp_path / "a")
    (tmp_path / "b").mkdir()
    fitted(tmp_path / "b", more="random_state = 7\n")
    _, words = new_rows(tmp_path)
    for file in (tmp_path / "b" / "run" / "model").iterdir():
        (tmp_path / "a" / "run" / "model" / file.name).write_bytes(file.read_bytes())
    refused = silvan("predict", tmp_path / "a" / "run", *words, ok=False)
    assert "not the model that run.json names" in refused.stderr


@pytest.mark.parametrize("kind", SMALL)
def test_interrupted_then_resumed(tmp_path, kind):
    answer, count = InProcess._answer, [0]

    def stopped(self, *args):
        count[0] += 1
        if count[0] > 9:
            raise KeyboardInterrupt
        return answer(self, *args)

    path = study(tmp_path, kind=kind)
    with mock.patch.object(InProcess, "_answer", stopped):
        assert silvan("fit", path, "--output", tmp_path / "run", ok=False).exit_code == 130
    assert not (tmp_path / "run" / "model").exists()
    silvan("fit", path, "--output", tmp_path / "run")
    silvan("fit", path, "--output", tmp_path / "whole")
    resumed, whole = Run(tmp_path / "run").read(), Run(tmp_path / "whole").read()
    assert resumed.models == whole.models
    assert resumed.evaluation == whole.evaluation
    silvan("fit", path, "--output", tmp_path / "run", "--fresh")
    assert (tmp_path / "run" / "earlier-1" / "model").is_dir()
    assert Run(tmp_path / "run").read().models == whole.models


def test_without_test_rows_nothing_is_evaluated(tmp_path):
    record = fitted(tmp_path, test=0.0)
    assert (record.status, record.evaluation, record.pooled_hash) == ("done", [], None)


def test_unmatched_ids_are_reported_with_their_line(tmp_path):
    path = study(tmp_path)
    bank = pl.read_csv(tmp_path / "bank.csv")
    pl.concat([bank, bank[:3]]).write_csv(tmp_path / "bank.csv")
    refused = silvan("fit", path, ok=False)
    assert refused.exit_code == 1
    assert "'bank'" in refused.stderr
    assert "3" in refused.stderr
    assert not np.any([str(i) in refused.stderr for i in bank[ID].to_list()[:3] if i > 99])


PARTIES = '[parties]\na = "a.csv"'
BAD = [
    (PARTIES, 's.toml:1: name the column that tells rows apart: id = "..."'),
    (f'id = "i"\n{PARTIES}\n[sites]\nb = "a.csv"', "s.toml:4: [sites] hold rows and [parties] columns"),
    ('id = "i"\n[sites]\na = "a.csv"', "s.toml:1: id is for parties"),
    ('match = "psi"\n[sites]\na = "a.csv"', "s.toml:1: match is for parties"),
    (f'id = "i"\nmatch = "guess"\n{PARTIES}', "s.toml:2: match must be 'keyed' or 'psi'"),
    (f'id = ""\n{PARTIES}', "s.toml:1: id must be text"),
    ('id = "i"\n[parties]', "s.toml:2: [parties] must name at least one party"),
    ('id = "i"\n[parties]\na = "none.csv"', "s.toml:3: party 'a': 'none.csv' does not exist"),
    ('id = "i"\n[parties]\nall = "a.csv"', "s.toml:3: a party cannot be called 'all'"),
    (f'id = "i"\nsite = "x"\n{PARTIES}', "s.toml:2: site is for one table of all sites; leave it out beside [parties]"),
    (f'id = "i"\n{PARTIES}\n[learner]\nkind = "BOFRF"', "s.toml:5: BOFRF is not for [parties]"),
    (f'id = "i"\n{PARTIES}\n[learner]\nkind = "VerticalTree"', "did you mean 'VerticalForest'?"),
    (f'id = "i"\n{PARTIES}\n[learner]\nlabels = 3', "s.toml:5: labels must be 'encoded' or 'encrypted', got 3"),
    ('[sites]\na = "a.csv"\n[learner]\nkind = "VerticalForest"', "s.toml:4: VerticalForest is not for [sites]"),
]


@pytest.mark.parametrize(("text", "said"), BAD, ids=[said[:60] for _, said in BAD])
def test_mistakes_in_a_study_are_reported_with_their_line(tmp_path, text, said):
    (tmp_path / "a.csv").write_text("i,x,label\n1,1,no\n2,2,yes\n")
    (tmp_path / "s.toml").write_text(text + "\n")
    with pytest.raises(sv.InputError) as caught:
        read_study(tmp_path / "s.toml")
    assert said in str(caught.value)


def test_parameters_out_of_range_are_reported_with_their_line(tmp_path):
    path = study(tmp_path, kind="VerticalLinear", more="tol = 5.0\n")
    assert "study.toml:9: tol must be a number of at least 1e-08" in silvan("fit", path, ok=False).stderr
    path = study(tmp_path, more='labels = "hidden"\n')
    assert "study.toml:10: labels must be 'encoded' or 'encrypted'" in silvan("fit", path, "--fresh", ok=False).stderr
