"""A site's durable store: secrets, blobs named by their hash, replies that must not be drawn twice.

Everything else a site holds in memory is a cache: it makes an answer faster, never different.
"""

import hashlib
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from silvan.errors import DamagedError
from silvan.util.files import has_no_room, no_room
from silvan.util.sqlite_file import open_database

SEQUENCE = "conduct"
"""How keys begin of what a site holds a coordinator to."""

SHARE = "share "
"""How keys begin of a party's shares of models."""

SIGNING = "signing key"
"""Where a site of this process has its key, if it has no folder."""

PROOF = "proof"
"""How the name of the key begins by which sums are proved."""

LASTING = (SEQUENCE, SHARE, SIGNING, PROOF, "secret", "shared key", "paillier key", "named ")
"""Prefixes of what a site is not told or cannot draw a second time, and of what it holds a coordinator to."""


class Store(ABC):
    """A small durable map; ``MemoryStore`` for tests and federations in one process."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return what was put, or None."""

    @abstractmethod
    def put_all(self, values: dict[str, bytes]) -> None:
        """Keep several values, all or none."""

    def put(self, key: str, value: bytes) -> None:
        """Keep a value for good."""
        self.put_all({key: value})


class MemoryStore(Store):
    """A store that lives as long as the process.

    The oldest blobs make room when there are too many: a site that lacks one asks for it.
    """

    def __init__(self, room: int = 1 << 28) -> None:
        self._values: dict[str, bytes] = {}
        self._blobs: dict[str, int] = {}  # their sizes, the oldest first
        self._room = room

    def get(self, key: str) -> bytes | None:
        """Return what was put, or None."""
        return self._values.get(key)

    def put_all(self, values: dict[str, bytes]) -> None:
        """Keep several values."""
        for key, value in values.items():
            if key.startswith("blob "):
                self._blobs.pop(key, None)
                while self._blobs and sum(self._blobs.values()) + len(value) > self._room:
                    oldest = next(iter(self._blobs))
                    del self._blobs[oldest], self._values[oldest]
                self._blobs[key] = len(value)
            self._values[key] = value


def proof_key_name(study: str) -> str:
    """Return under which name a store has the key by which a study's sums are proved."""
    return f"{PROOF} key of {study}"


def digest(data: bytes) -> str:
    """Name bytes by their SHA-256."""
    return hashlib.sha256(data).hexdigest()


_APPLICATION = 0x53494C53  # how SQLite files say whose they are: "SILS"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    value BLOB NOT NULL
);
"""


class FileStore(Store):
    """A store that outlives the process; only its owner may read it.

    The oldest blobs make room when there are too many: a site that lacks one asks for it.
    """

    def __init__(self, path: str | Path, room: int = 1 << 30) -> None:
        self.path, self._room = Path(path), room
        self._lock = threading.Lock()
        try:
            self._db = open_database(path, "the store", _APPLICATION, _SCHEMA, timeout=60.0)
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from None

    def get(self, key: str) -> bytes | None:
        """Return what was put, or None."""
        with self._using() as db:
            row = db.execute("SELECT value FROM kept WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def put_all(self, values: dict[str, bytes]) -> None:
        """Keep several values, all or none."""
        if not values:
            return
        with self._using() as db, db:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT OR REPLACE INTO kept (key, value) VALUES (?, ?)", list(values.items()))
            if any(key.startswith("blob ") for key in values):
                self._make_room(db)

    def _make_room(self, db: sqlite3.Connection) -> None:
        listed = db.execute("SELECT number, length(value) FROM kept WHERE key LIKE 'blob %' ORDER BY number DESC")
        size = 0
        for i, (number, length) in enumerate(listed.fetchall()):
            size += length
            if i and size > self._room:
                db.execute("DELETE FROM kept WHERE number <= ? AND key LIKE 'blob %'", (number,))
                return

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                yield self._db
            except sqlite3.DatabaseError as error:
                raise self._unusable(error) from None

    def _unusable(self, error: sqlite3.DatabaseError) -> OSError | DamagedError:
        if has_no_room(error):
            return no_room(self.path)
        if isinstance(error, sqlite3.OperationalError):
            return OSError(f"{self.path}: {error}")
        return DamagedError(f"{self.path}: cannot be used as a site's store ({error})")
