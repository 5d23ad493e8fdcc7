"""The journal: what it keeps, what it refuses, and that damage is noticed."""

import sqlite3
import threading

import polars as pl
import pytest
from helpers.studies import federate, parts, table

from silvan.errors import FormatError, InputError
from silvan.federation.journal import SUM, Entry, Journal

FIRST = {"a": Entry("Kind", b"body of a", 10, 20), "b": Entry("Kind", b"", 0, 3)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.journal"


def test_stored_entries_are_read_back(path):
    journal = Journal(path)
    assert journal.find("q") == {}
    journal.keep("q", FIRST)
    journal.keep("other", {SUM: Entry("Kind", bytes(range(256)), 0, 0)})
    journal.close()
    again = Journal(path)
    assert again.find("q") == FIRST
    assert again.find("other")[SUM].body == bytes(range(256))
    assert again.find("") == {}
    again.close()


def test_stored_entries_are_final(path):
    journal = Journal(path)
    journal.keep("q", FIRST)
    journal.keep("q", {"a": Entry("Other", b"late", 1, 1), "c": Entry("Kind", b"c", 1, 1)})
    assert journal.find("q") == {**FIRST, "c": Entry("Kind", b"c", 1, 1)}
    journal.close()


def test_all_or_none(path):
    journal = Journal(path)
    with pytest.raises(FormatError):
        journal.keep("q", {"a": FIRST["a"], "b": Entry(None, b"", 0, 0)})
    assert journal.find("q") == {}
    journal.keep("q", FIRST)  # and it continues
    assert journal.find("q") == FIRST
    journal.close()


def test_without_a_path_nothing_is_stored():
    """A federation without a journal must not grow with every reply."""
    journal = Journal()
    journal.keep("q", FIRST)
    journal.belongs_to("anything")
    assert journal.find("q") == {}
    journal.close()


def test_any_thread_may_use_it(path):
    journal = Journal(path)
    errors = []

    def work(name):
        try:
            for i in range(5):
                journal.keep(f"{name} {i}", FIRST)
                assert journal.find(f"{name} {i}") == FIRST
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    journal.close()


# -- other studies


def test_a_journal_belongs_to_one_study(path):
    journal = Journal(path)
    journal.belongs_to("one")
    journal.belongs_to("one")
    journal.keep("q", FIRST)
    with pytest.raises(FormatError, match="belongs to another study"):
        journal.belongs_to("two")
    journal.close()


def test_a_journal_without_replies_is_not_binding(path):
    """A database that was down when the study began: its table is a different one once it is up."""
    journal = Journal(path)
    journal.belongs_to("one")
    journal.close()
    again = Journal(path)
    again.belongs_to("two")
    again.keep("q", FIRST)
    with pytest.raises(FormatError, match="belongs to another study"):
        again.belongs_to("one")
    again.close()


def test_a_journal_of_other_growing_rules_is_refused(path, monkeypatch):
    journal = Journal(path)
    journal.belongs_to("one")
    journal.keep("q", FIRST)
    monkeypatch.setattr("silvan.federation.journal.RULES", 2)
    with pytest.raises(FormatError, match="begun by another version of silvan, which grows other trees"):
        Journal(path).belongs_to("one")


TABLES = parts(table(n=40), 2)


@pytest.mark.parametrize(
    ("tables", "settings"),
    [
        (TABLES, {"random_state": 1}),
        (TABLES, {"test": 0.2}),
        (TABLES, {"label": "sex"}),
        (TABLES, {"exclude": ["noise"]}),
        (dict(reversed(list(TABLES.items()))), {}),
        ({**TABLES, "third": TABLES["site 0"]}, {}),
        ({**TABLES, "site 1": TABLES["site 1"][1:]}, {}),
        ({**TABLES, "site 1": TABLES["site 1"].with_columns(noise=pl.col("noise") + 1e-9)}, {}),
        ({**TABLES, "site 1": TABLES["site 1"].with_columns(sex=pl.col("sex").replace("f", "m"))}, {}),
        ({**TABLES, "site 1": TABLES["site 1"].rename({"noise": "din"})}, {}),
    ],
    ids=["seed", "test", "label", "exclude", "order", "more sites", "fewer rows", "number", "text", "name"],
)
def test_other_tables_or_settings_are_another_study(path, tables, settings):
    federate(TABLES, journal=str(path)).close()
    federate(TABLES, journal=str(path)).close()  # the same goes on
    with pytest.raises(FormatError, match="belongs to another study"):
        federate(tables, journal=str(path), **settings)


# -- files that are not journals, or are damaged


def test_a_missing_folder(tmp_path):
    with pytest.raises(InputError, match="cannot be opened"):
        Journal(tmp_path / "nowhere" / "study.journal")


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 4080])
def test_not_a_database(path, content):
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"study\.journal: cannot be used as a journal"):
        Journal(path)
    assert path.read_bytes() == content


def test_an_unrelated_database(path):
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE patients (name TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(FormatError, match="database of something else"):
        Journal(path)
    assert path.read_bytes() == before


def test_damage_is_noticed(path):
    """Whatever is done to the file, reading returns what was kept, or an error."""
    journal = Journal(path)
    kept = {f"q{i}": {"a": Entry("Kind", bytes([i]) * 700, i, 2 * i)} for i in range(4)}
    for question, entries in kept.items():
        journal.keep(question, entries)
    journal.close()
    whole = path.read_bytes()
    assert len(whole) > 4 * 700  # the log was written back when it was closed
    noticed = 0
    for at in range(100, len(whole), 211):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        noticed += damaged_or_right(path, kept)
    for cut in range(0, len(whole), 3000):
        path.write_bytes(whole[:cut])
        noticed += damaged_or_right(path, kept)
    assert noticed > 20


def damaged_or_right(path, kept):
    journal = None
    try:
        journal = Journal(path)
        for question, entries in kept.items():
            assert journal.find(question) in (entries, {})
    except FormatError:
        return 1
    finally:
        if journal is not None:
            journal.close()
        for leftover in path.parent.glob(f"{path.name}-*"):
            leftover.unlink()
    return 0
