"""Other sites' records of a ledger reveal a copied or restored folder."""

import shutil

import msgspec
import pytest
from helpers.runs import silvan
from helpers.studies import federate, parts, table

from silvan.errors import RefusedError
from silvan.federation.describe import CountRows
from silvan.privacy.file_marks import BEHIND, FileMarks
from silvan.privacy.ledger import Head, Ledger
from silvan.privacy.ledger_heads import compare_ledgers, merged
from silvan.privacy.noise.budget import Budget
from silvan.privacy.site_folder import SiteFolder

TABLES = parts(table(n=60), 3)
FIRST = next(iter(TABLES))


@pytest.fixture
def open_study(tmp_path):
    """Opens a study over sites with folders; each is another study of the same sites."""
    opened = []

    def make():
        opened.append(federate(TABLES, signed=True, ledgers=str(tmp_path / "sites"), test=0.2))
        return opened[-1]

    yield make
    for fed in opened:
        fed.close()


@pytest.fixture
def known(open_study, tmp_path):
    """What the coordinator knows after a study; the first site's folder was copied before it."""
    shutil.copytree(tmp_path / "sites" / FIRST, tmp_path / "copy")
    fed = open_study()
    fed.ask(CountRows())
    return compare_ledgers(fed, {})


def put_copy_in_place(folder):
    shutil.rmtree(folder / "sites" / FIRST)
    shutil.copytree(folder / "copy", folder / "sites" / FIRST)


@pytest.fixture(autouse=True)
def begun(open_study):
    """Sites that have replied before the copy is made."""
    open_study().ask(CountRows())


def test_continued_ledgers_are_accepted(open_study, known):
    again = compare_ledgers(open_study(), known)
    assert set(again) == set(TABLES)
    assert all(again[site].lines > known[site].lines > 0 for site in TABLES)


def test_a_copy_behind_the_coordinators_record_stops_itself(open_study, known, tmp_path):
    put_copy_in_place(tmp_path)
    fed = open_study()
    with pytest.raises(RefusedError, match=rf"{FIRST}.*its ledger lacks what others know of it, up to line"):
        compare_ledgers(fed, known)
    with pytest.raises(RefusedError, match="its ledger lacks what others know of it"):
        fed.ask(CountRows())
    with pytest.raises(Exception, match="is not in it: the folder is a copy"):
        federate(TABLES, signed=True, ledgers=str(tmp_path / "sites"), test=0.2).ask(CountRows())


def test_another_sites_record_reveals_a_copy(open_study, known, tmp_path):
    """A coordinator that was restored as well knows nothing."""
    put_copy_in_place(tmp_path)
    fed = open_study()
    other = list(TABLES)[1]
    fed.site(other).store.put(f"ledger head of {FIRST}", msgspec.msgpack.encode(known[FIRST]))
    with pytest.raises(RefusedError, match="its ledger lacks what others know of it"):
        compare_ledgers(fed, {})


def test_only_the_accepted_lines_are_given_up(open_study, known, tmp_path):
    put_copy_in_place(tmp_path)
    with pytest.raises(RefusedError):
        compare_ledgers(open_study(), known)
    site = tmp_path / "sites" / FIRST
    shown = silvan("site", "restored", site, ok=False).output
    assert "the folder is a copy, or was put back" in " ".join(shown.split())
    silvan("site", "restored", site, "--accept")
    assert not (site / BEHIND).exists()
    restored = SiteFolder(site).ledger.lines()[-1]
    assert (restored.outcome, restored.behind) == ("restored", known[FIRST].lines)
    compare_ledgers(open_study(), known)
    longer = Head(known[FIRST].lines + 50, "0" * 64)
    signed = Head(longer.lines, longer.hash, SiteFolder(site).key.sign(longer.signed_bytes()).hex())
    with pytest.raises(RefusedError):
        compare_ledgers(open_study(), {**known, FIRST: signed})


def test_a_head_without_the_sites_signature_has_no_effect(open_study, known):
    forged = msgspec.structs.replace(known[FIRST], hash="0" * 64)
    found = compare_ledgers(open_study(), {**known, FIRST: forged})
    assert found[FIRST].lines > 0
    roster = open_study().roster
    assert merged({}, {FIRST: forged, "stranger": known[FIRST]}, roster) == {}


def test_a_ledger_holds_what_it_was(tmp_path):
    folder = SiteFolder(tmp_path)
    blank = dict.fromkeys(("task", "question", "asked", "answer"), "")
    ledger, heads = folder.ledger, [folder.ledger.signed_head()]
    for i in range(3):
        ledger.write(**blank, site="a", study="s", kind="K", outcome="answered", what=str(i), how="", round=0, bytes=0)
        heads.append(ledger.signed_head())
    assert all(Ledger(tmp_path, folder.key).holds(head) for head in heads)
    assert not ledger.holds(Head(3, heads[2].hash))
    assert not ledger.holds(Head(4, heads[3].hash))
    assert FileMarks(ledger, Budget(), None).faults() == []
