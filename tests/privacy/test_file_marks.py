"""Restored older files of a site are detected by what the other files record."""

import shutil

import polars as pl
import pytest
from experiments.attacks.rollback import FILES, ask
from helpers.asking import send, site
from helpers.runs import silvan

import silvan as sv
from silvan.errors import FormatError
from silvan.federation.describe import CountRows
from silvan.federation.store import FileStore
from silvan.privacy.file_marks import FileMarks
from silvan.privacy.gate import Gate
from silvan.privacy.ledger import read_lines
from silvan.privacy.noise.budget import Budget
from silvan.privacy.policy import Policy
from silvan.privacy.site_folder import SiteFolder

STORE, BUDGET = "store.sqlite", "budget.sqlite"


@pytest.fixture
def folder(tmp_path):
    """A site that has spent 1, and a copy of its files from when it had spent a quarter."""
    ask(tmp_path / "north", 0.25)
    shutil.copytree(tmp_path / "north", tmp_path / "copy")
    ask(tmp_path / "north", 0.75)
    return tmp_path / "north"


def put_back(folder, *names):
    for name in names:
        shutil.copy(folder.parent / "copy" / name, folder / name)


def marks(folder):
    return FileMarks(
        SiteFolder(folder).ledger, Budget(3.0, folder / "budget.sqlite"), FileStore(folder / "store.sqlite")
    )


def test_files_of_one_time_are_in_order(folder):
    assert marks(folder).faults() == []
    assert ask(folder, 0.5)
    lines = read_lines(folder)
    assert [(line.kept, line.charges, line.spent) for line in lines] == [(1, 1, 0.25), (2, 2, 1.0), (3, 3, 1.5)]


def test_two_processes_of_one_site(tmp_path):
    """Jobs of two studies reply in turn, and each counts the other's replies."""
    one, two = (
        Gate(Policy(), Budget(3.0, tmp_path / BUDGET), SiteFolder(tmp_path).ledger, store=store)
        for store in (FileStore(tmp_path / STORE), FileStore(tmp_path / STORE))
    )
    sites = [site(outbox=gate, store=gate.marks.store) for gate in (one, two)]
    for i, here in enumerate((*sites, *sites)):
        assert send(here, CountRows(), study=f"study {i % 2}", question=f"question {i}").kind == "Size"
    assert [line.kept for line in read_lines(tmp_path)] == [1, 2, 3, 4]
    assert FileMarks(SiteFolder(tmp_path).ledger, one.budget, two.marks.store).faults() == []


@pytest.mark.parametrize("what", FILES)
def test_a_restored_file_is_detected(folder, what):
    put_back(folder, *FILES[what])
    with pytest.raises(FormatError, match=r"is behind the .*`silvan site restored` accepts these"):
        ask(folder, 0.5)
    assert len(read_lines(folder)) in (1, 2)


def test_restoring_all_files_together_goes_unnoticed(folder):
    """As documented: nothing in the folder reveals it; a digest noted elsewhere does."""
    last = SiteFolder(folder).ledger.position[1]
    put_back(folder, *{name for names in FILES.values() for name in names})
    assert marks(folder).faults() == []
    assert silvan("site", "ledger", folder, "--noted", last, ok=False).exit_code == 1


def test_what_is_spent_stays_spent_when_an_older_budget_is_accepted(folder):
    put_back(folder, "budget.sqlite")
    said = marks(folder).accept("north")
    assert [text for text in said if "behind the ledger: 0.25 of 1 spent" in text]
    assert Budget(3.0, folder / "budget.sqlite").spent == 1.0
    assert marks(folder).faults() == []
    assert read_lines(folder)[-1].outcome == "restored"
    assert ask(folder, 0.5)
    assert not ask(folder, 1.75)  # of epsilon 3, 1.5 is left


@pytest.mark.parametrize("what", FILES)
def test_every_restored_file_can_be_accepted(folder, what):
    put_back(folder, *FILES[what])
    assert marks(folder).accept("north")
    assert marks(folder).faults() == []
    assert marks(folder).accept("north") == []
    assert ask(folder, 0.5)
    assert Budget(3.0, folder / "budget.sqlite").spent == 1.5


def test_a_restored_folder_by_command(folder):
    budget = ("--budget", folder / "budget.sqlite")
    assert "All files are equally recent" in silvan("site", "restored", folder, *budget).output
    put_back(folder, "budget.sqlite")
    shown = silvan("site", "restored", folder, *budget, ok=False)
    assert shown.exit_code == 1
    assert "behind the ledger: 0.25 of 1 spent" in " ".join(shown.output.split())
    assert silvan("site", "restored", folder, *budget, "--accept").exit_code == 0
    assert "All files are equally recent" in silvan("site", "restored", folder, *budget).output
    assert "1 restored" in silvan("site", "ledger", folder).output


def test_a_federation_in_one_process(tmp_path):
    """A budget's file and a ledger's are compared wherever both exist; a store in memory is not."""
    schema = sv.Schema.of([sv.Feature("age", bounds=(0, 100))], sv.Label("label", (0, 1)))
    rows = pl.DataFrame({"age": range(60), "label": [0, 1] * 30})

    def fit(epsilon):
        frames = dict.fromkeys(("north", "south", "west"), rows)
        kept = {"budgets": tmp_path / "budgets", "ledgers": tmp_path / "ledgers"}
        fed = sv.federate_rows(frames, schema=schema, policy=sv.Policy(epsilon=9.0), n_jobs=1, **kept)
        sv.HistogramForest(epsilon=epsilon, n_rows=180).fit(fed)

    fit(1.0)
    fit(2.0)
    (tmp_path / "budgets" / "north.sqlite").unlink()
    with pytest.raises(FormatError, match="the privacy budget is behind the ledger: 0 of 3 spent"):
        fit(1.0)
