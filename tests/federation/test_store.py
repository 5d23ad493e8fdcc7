"""A site's store in a file."""

import sqlite3
import stat

import pytest

from silvan.errors import FormatError
from silvan.federation.store import FileStore


def test_stored_values_are_read_back(tmp_path):
    path = tmp_path / "store.sqlite"
    store = FileStore(path)
    store.put("a", b"1")
    store.put_all({"a": b"2", "b": bytes(range(256))})
    store.close()
    again = FileStore(path)
    assert again.get("a") == b"2"
    assert again.get("b") == bytes(range(256))
    assert again.get("c") is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again.close()


def test_all_or_none(tmp_path):
    store = FileStore(tmp_path / "store.sqlite")
    store.put("a", b"1")
    with pytest.raises(Exception, match=r"bind|type"):
        store.put_all({"a": b"2", "b": object()})
    assert store.get("a") == b"1"
    assert store.get("b") is None
    store.close()


def test_old_blobs_are_dropped(tmp_path):
    store = FileStore(tmp_path / "store.sqlite", room=100)
    store.put("secret", bytes(200))
    for i in range(5):
        store.put(f"blob {i}", bytes(40))
    assert [i for i in range(5) if store.get(f"blob {i}") is not None] == [3, 4]
    store.put("blob large", bytes(1000))
    assert store.get("blob large") is not None
    assert store.get("secret") is not None
    store.close()


def test_an_unrelated_file(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(FormatError, match="cannot be used as a site's store"):
        FileStore(path)
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(FormatError):
        FileStore(tmp_path / "text")
