"""Our database files: created once, opened again, and never mistaken for another program's."""

import os
import sqlite3
import threading

import pytest

from silvan.errors import InputError
from silvan.util.sqlite_file import open_database

MARK, TABLES = 12345, "CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY)"


def test_written_data_survive_reopening(tmp_path):
    db = open_database(tmp_path / "file", "the file", MARK, TABLES)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    writer = threading.Thread(target=lambda: db.execute("INSERT INTO kept VALUES ('a')"))  # any thread may
    writer.start()
    writer.join()
    db.close()
    db = open_database(tmp_path / "file", "the file", MARK, TABLES)
    assert db.execute("SELECT key FROM kept").fetchall() == [("a",)]
    db.close()


def test_a_database_may_be_in_memory():
    db = open_database(None, "the file", MARK, TABLES)
    assert db.execute("SELECT COUNT(*) FROM kept").fetchone() == (0,)
    db.close()


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(InputError, match=r"the journal '.*' cannot be opened; is there such a folder\?"):
        open_database(tmp_path / "none" / "file", "the journal", MARK, TABLES)


@pytest.mark.parametrize("mark", [0, MARK + 1])
def test_a_foreign_database_is_left_alone(tmp_path, mark):
    other = sqlite3.connect(tmp_path / "file")
    other.execute("CREATE TABLE theirs (x)")
    other.execute(f"PRAGMA application_id={mark}")
    other.commit()
    other.close()
    before = (tmp_path / "file").read_bytes()
    with pytest.raises(sqlite3.DatabaseError, match="something else"):
        open_database(tmp_path / "file", "the file", MARK, TABLES)
    assert (tmp_path / "file").read_bytes() == before


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"something else entirely " * 100)
    with pytest.raises(sqlite3.DatabaseError):
        open_database(tmp_path / "file", "the file", MARK, TABLES)


def test_only_its_owner_may_read_it(tmp_path):
    """Created with closed permissions whatever the umask, and closed if they were open."""
    path, mask = tmp_path / "file", os.umask(0)
    try:
        db = open_database(path, "the file", MARK, TABLES)
        db.execute("INSERT INTO kept VALUES ('a')")
        files = [path, tmp_path / "file-wal", tmp_path / "file-shm"]
        assert [file.stat().st_mode & 0o777 for file in files] == [0o600] * 3
        db.close()
        path.chmod(0o644)
        open_database(path, "the file", MARK, TABLES).close()
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(mask)


def test_the_rights_of_another_programs_database_are_left_alone(tmp_path):
    other = sqlite3.connect(tmp_path / "file")
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    (tmp_path / "file").chmod(0o644)
    with pytest.raises(sqlite3.DatabaseError):
        open_database(tmp_path / "file", "the file", MARK, TABLES)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("address", [None, ":memory:"])
def test_a_database_in_memory_makes_no_file(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    open_database(address, "the thing", 1, "CREATE TABLE IF NOT EXISTS t (x)").close()
    assert list(tmp_path.iterdir()) == []
