"""What version 0.1.0 wrote is read by this one: models, journals, ledgers, budgets, runs, folders of machines.

The files, and how they were made, are described in tests/data/version_0_1_0/README.md.
"""

import csv
import json
import shutil
import sqlite3
import sys
from contextlib import closing
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import polars as pl
import pytest

import silvan as sv
from silvan.deploy.fingerprint import fingerprint
from silvan.deploy.hub import Hub, roster_fingerprint
from silvan.deploy.member import Member
from silvan.federation.journal import Journal
from silvan.federation.keys import Roster

OLD = Path(__file__).parent / "data" / "version_0_1_0"
EXPECTED = json.loads((OLD / "expected.json").read_text())
SINCE = 5e-4  # figures of a site have three digits since
SMALL = {"n_estimators": 3, "max_depth": 3}


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of all files, to stand in."""
    folder = tmp_path / "old"
    shutil.copytree(OLD, folder)
    for path in [*folder.rglob("*.key"), *folder.rglob("store.sqlite")]:
        path.chmod(0o600)  # which git does not keep
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def silvan(monkeypatch, capsys):
    """The command, in this process: what it says on standard output, in one line."""
    (command,) = entry_points(group="console_scripts", name="silvan")
    main = command.load()
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: object) -> str:
        monkeypatch.setattr(sys, "argv", ["silvan", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        said = capsys.readouterr()
        assert not left.value.code, said.err
        return " ".join(said.out.split())

    return run


def sites(*names):
    return {name: f"tables/{name}.csv" for name in names}


def public_schema():
    features = [
        sv.Feature("age", bounds=(0, 100)),
        sv.Feature("dose", bounds=(1, 5)),
        sv.Feature("sex", "categorical", categories=("f", "m")),
        sv.Feature("ward", "categorical", categories=("a", "b", "c"), other=True),
    ]
    return sv.Schema.of(features, sv.Label("label", ("no", "yes")))


# -- models


@pytest.mark.parametrize("name", ["classifier", "regressor", "bofrf", "adaboost", "private"])
def test_a_model_file(old, name):
    expected = EXPECTED["models"][name]
    forest = sv.Forest.load(f"models/{name}.silvan")
    assert forest.hash == expected["hash"]
    assert (forest.combine, len(forest)) == (expected["combine"], expected["trees"])
    assert forest.weights.tolist() == expected["weights"]
    predictions = forest.predict(pl.read_csv("tables/north.csv")).tolist()[:20]
    assert predictions == (pytest.approx(expected["predictions"]) if name == "regressor" else expected["predictions"])
    forest.save("again.silvan")
    assert sv.Forest.load("again.silvan") == forest
    if name != "private":  # its schema has bounds that were given, and written, as whole numbers
        assert Path("again.silvan").read_bytes() == Path(f"models/{name}.silvan").read_bytes()


def test_a_model_file_in_the_shell(old, silvan):
    said = silvan("predict", "models/classifier.silvan", "tables/north.csv").split()
    assert [line.split(",")[1] for line in said[1:21]] == EXPECTED["models"]["classifier"]["predictions"]


@pytest.mark.parametrize("name", ["vertical", "linear"])
def test_a_model_in_shares(old, name):
    expected = EXPECTED["models"][name]
    model = (sv.VerticalForest if name == "vertical" else sv.VerticalLinear).load(f"models/{name}")
    if name == "vertical":
        assert model.forest_.hash == expected["hash"]
    else:
        assert model.coefficients()["coefficient"].to_list() == expected["coefficients"]
    fed = sv.federate_columns(sites("bank", "shop"), id="person", label="label", test=0.2)
    assert model.predict(fed)["prediction"].to_list()[:20] == expected["predictions"]
    model.save("again")
    for path in Path("models", name).iterdir():
        assert Path("again", path.name).read_bytes() == path.read_bytes()


# -- journals


def study(sums):
    """The studies that were interrupted, from their journals on; also how many answers were still needed."""
    settings = {"schema": public_schema()} if sums == "masked" else {"exclude": ["cost"]}
    tables, journal = sites("north", "east", "south"), f"journals/{sums}.sqlite"
    fed = sv.federate_rows(tables, test=0.3, sums=sums, journal=journal, **settings)
    events = []
    fed.watch(events.append)
    try:
        learners = [sv.BOFRF(n_estimators=2, max_depth=3, personal=True)]
        if sums == "trusted":
            learners.insert(0, sv.HistogramForest(n_estimators=2, max_depth=3))
        models = [learner.fit(fed) for learner in learners]
        figures = models[0].evaluate(fed)["auc"].to_list()
        return [model.forest_.hash for model in models], figures, sum(event.what == "answer" for event in events)
    finally:
        fed.close()


@pytest.mark.parametrize("sums", ["trusted", "masked"])
def test_an_interrupted_study_is_not_mixed_with_other_trees(old, sums):
    """Trees grow by other rules since: half a study by the old ones and half by the new would be neither."""
    before = Path(f"journals/{sums}.sqlite").read_bytes()
    with pytest.raises(sv.FormatError, match="begun by another version of silvan, which grows other trees"):
        study(sums)
    Path(f"journals/{sums}.sqlite").write_bytes(before)
    Path(f"journals/{sums}.sqlite").rename("journals/kept.sqlite")
    hashes, _, answers = study(sums)
    assert answers > 0
    again = study(sums)
    assert (again[0], again[2]) == (hashes, 0)


@pytest.mark.parametrize("sums", ["trusted", "masked"])
def test_a_coordinator_does_not_go_on_with_a_study_of_0_1_0(old, sums):
    """Between machines the name of a study has the version in it; the reason is said all the same."""
    with pytest.raises(sv.FormatError, match="begun by another version of silvan, which grows other trees; let that"):
        Journal(f"journals/{sums}.sqlite").belongs_to(f"study 0.1.0 {['north']}")


# -- what sites keep


@pytest.mark.parametrize("site", ["north", "south"])
def test_a_ledger(old, silvan, site):
    expected = EXPECTED["sites"]
    lines, last = expected["lines"][site], expected["digests"][site]
    said = silvan("site", "ledger", f"sites/{site}", "--verify")
    assert f"The ledger is whole: {len(lines)} lines" in said
    assert f"Digest of the last line: {last}" in said
    kept = silvan("site", "ledger", f"sites/{site}/ledger.jsonl")
    assert f"Study: {expected['study']}" in kept
    assert f"{len(lines)} lines: {len(lines) - 1} answered, 1 refused" in kept
    assert expected["study"] in silvan("site", "approve", f"sites/{site}")


def test_a_ledger_goes_on(old, silvan):
    """In the study that was approved, with the keys that were made then."""
    expected = EXPECTED["sites"]
    fed = sv.federate_rows(
        sites("north", "south"), exclude=["cost"], policy=sv.Policy(approve=True), ledgers="sites", signed=True
    )
    sv.MergedForest(**SMALL).fit(fed)
    for site in fed.sites:
        before, lines = expected["lines"][site], fed.site(site).outbox.ledger.lines()
        assert [line.describe() for line in lines[: len(before)]] == before
        assert len(lines) > len(before)
        said = silvan("site", "ledger", f"sites/{site}", "--noted", expected["digests"][site])
        assert f"The ledger is whole: {len(lines)} lines" in said


def test_a_budget(old):
    """What was told once is told again with the same noise, at no cost; what is spent stays spent."""
    spent = EXPECTED["budgets"]["spent"]
    fed = sv.federate_rows(
        sites("north", "south"), schema=public_schema(), policy=sv.Policy(epsilon=3.0), budgets="budgets"
    )
    model = sv.HistogramForest(epsilon=2.0, n_rows=100).fit(fed)
    assert model.forest_.hash == EXPECTED["budgets"]["hash"]
    for site in fed.sites:
        with closing(sqlite3.connect(f"budgets/{site}.sqlite")) as db:
            (charged,) = db.execute("SELECT SUM(epsilon) FROM charge").fetchone()
        assert charged == pytest.approx(spent[site])
    with pytest.raises(sv.RefusedError, match=r"budget is used up: of epsilon 3, 2\.3 is spent"):
        sv.HistogramForest(epsilon=1.5, n_rows=100).fit(fed)  # its first question costs 0.3, and is the last


# -- runs


def test_a_run(old, silvan):
    expected = EXPECTED["study"]
    assert silvan("predict", "study/run", "tables/east.csv") == " ".join(expected["predictions"].split())
    assert sv.Forest.load("study/run/model.silvan").hash == expected["hash"]
    silvan("evaluate", "study/run", "--output", "again.csv")
    files = Path("again.csv"), Path("study/run/evaluation.csv")
    again, before = (list(csv.reader(path.read_text().splitlines())) for path in files)
    assert len(again) == len(before)
    shown = [again[0].index(name) for name in before[0]]  # there are more columns now
    again = [[line[i] for i in shown] for line in again]
    for line, then in zip(again, before, strict=True):
        if line[1] == "federated":  # the others are grown anew, by the rules of today
            cells = [0, 1, 2, 3, 4, 5]
            assert [number(line[i]) for i in cells] == pytest.approx([number(then[i]) for i in cells], abs=SINCE)
    silvan("report", "study/run")
    assert "two clinics" in Path("study/run/report.html").read_text()


def number(text):
    try:
        return float(text)
    except ValueError:
        return text


def test_a_study_fitted_again(old, silvan):
    """By the rules of today; the old run is put aside."""
    silvan("fit", "study/study.toml", "--fresh")
    new = json.loads(Path("study/run/run.json").read_text())["models"][0]["hash"]
    assert new == sv.Forest.load("study/run/model.silvan").hash != EXPECTED["study"]["hash"]
    assert sv.Forest.load("study/run/earlier-1/model.silvan").hash == EXPECTED["study"]["hash"]


# -- machines


def with_words_of_now(shown):
    """All keys together were eight words, and are sixteen; those of a site were of its own keys alone."""
    words = roster_fingerprint(Roster.load("machines/north/roster.json"))
    shown = shown.replace(" ".join(words.split()[:8]), words)
    hub = Hub("machines/heart")
    for site, entry in hub.read().sites.items():
        shown = shown.replace(fingerprint(bytes.fromhex(entry.key + entry.seal)), hub.fingerprints()[site])
    return shown


def test_a_site_that_has_joined(old, silvan):
    """Keys, roster, budget and approvals, as its owner sees them; nobody is asked over a network."""
    expected = EXPECTED["machines"]
    [study] = Member("machines/north").studies()
    assert study.id.startswith(expected["fingerprint"])
    shown = with_words_of_now(expected["status"]["north"])
    # what was approved by 48 bits of its text must be approved again
    shown = shown.replace(f"{expected['fingerprint']}': approved", f"{study.id}': waits for your approval")
    assert silvan("site", "status", "machines/north") == " ".join(shown.split())
    said = silvan("site", "approve", "machines/north")
    assert f"{study.id}: waits for your approval" in said
    assert study.digest in silvan("site", "approve", "machines/north", study.digest[:12])
    assert "Learns to predict 'label' by MergedForest" in said
    assert "trees of the site's own" in silvan("site", "ledger", "machines/north")
    assert "The ledger is whole" in silvan("site", "ledger", "machines/north", "--verify")


def test_a_coordinators_folder(old, silvan):
    expected = EXPECTED["machines"]
    said = silvan("study", "status", "--in", "machines/heart").replace("─", "").split()
    assert said == with_words_of_now(expected["status"]["coordinator"]).replace("─", "").split()
    run = Path("machines/heart/runs", expected["run"])
    assert sv.Forest.load(run / "model.silvan").hash == expected["hash"]
    assert silvan("predict", run, "tables/east.csv").startswith("row,prediction,probability_no,probability_yes 1,")
    silvan("report", run)
    silvan("study", "invite", "north", "--in", "machines/heart")
    assert json.loads(Path("machines/heart/north.invite").read_text())["federation"] == "heart"


def test_jobs_that_old_folders_allow(old, silvan):
    """FLARE runs no classes but those that a folder names, so jobs must go on naming the same."""
    pytest.importorskip("nvflare", reason="nvflare is not installed; to test real sites: pip install '.[flare]'")
    folders = ("machines/heart/server", "machines/north/kit", "new/server")
    silvan("study", "init", "new", "--site", "north")
    allowed = [json.loads(Path(folder, "local/resources.json").read_text())["class_allow_list"] for folder in folders]
    assert allowed[0] == allowed[1] == allowed[2]
    jobs = import_module(allowed[0][0].rstrip("."))
    assert jobs.Coordinator.__module__ == jobs.SiteExecutor.__module__ == jobs.__name__
