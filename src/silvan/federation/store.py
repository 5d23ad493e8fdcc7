"""What a site keeps: a durable store for secrets, blobs and noisy replies, and a cache in memory.

The store survives restarts. The cache makes a reply faster, never different.
"""

import hashlib
import sqlite3
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from silvan.errors import DamagedError
from silvan.util.files import has_no_room, no_room
from silvan.util.sqlite_file import open_database

SEQUENCE = "conduct"
"""Prefix of keys for the protocol sequence that a site enforces."""

SHARE = "share "
"""Prefix of keys for a party's shares of models."""

SIGNING = "signing key"
"""Key of the signing key of a site without a folder, in this process."""

LASTING = (SEQUENCE, SHARE, SIGNING, "secret", "shared key", "paillier key", "named ")
"""Prefixes of values that a site cannot receive or sample again, and of the protocol sequence that it enforces."""


class Store(ABC):
    """A small durable map."""

    @abstractmethod
    def get(self, key: str) -> bytes | None:
        """Return a stored value, or None."""

    @abstractmethod
    def put_all(self, values: dict[str, bytes]) -> None:
        """Store several values, all or none."""

    def settles(self, key: str, value: bytes) -> bool:
        """Keep a value for good; return False if another was kept under the key before."""
        known = self.get(key)
        if known is None:
            self.put(key, value)
        return known in (None, value)

    def put(self, key: str, value: bytes) -> None:
        """Store a value permanently."""
        self.put_all({key: value})


class MemoryStore(Store):
    """A store that lives as long as the process.

    If there are too many blobs, the oldest are dropped: a site that lacks one asks for it.
    """

    def __init__(self, room: int = 1 << 28) -> None:
        self._values: dict[str, bytes] = {}
        self._blobs: dict[str, int] = {}  # sizes, oldest first
        self._room = room

    def get(self, key: str) -> bytes | None:
        """Return a stored value, or None."""
        return self._values.get(key)

    def put_all(self, values: dict[str, bytes]) -> None:
        """Store several values."""
        for key, value in values.items():
            if key.startswith("blob "):
                self._blobs.pop(key, None)
                while self._blobs and sum(self._blobs.values()) + len(value) > self._room:
                    oldest = next(iter(self._blobs))
                    del self._blobs[oldest], self._values[oldest]
                self._blobs[key] = len(value)
            self._values[key] = value


def shared_key_name(study: str) -> str:
    """Return the store's key for the secret that the sites of a study share."""
    return f"shared key of study {study}"


def digest(data: bytes) -> str:
    """Name bytes by their SHA-256."""
    return hashlib.sha256(data).hexdigest()


_APPLICATION = 0x53494C53  # the application id in the SQLite file: "SILS"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS kept (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    value BLOB NOT NULL
);
"""


class FileStore(Store):
    """A store that survives the process; only its owner may read it.

    If there are too many blobs, the oldest are dropped: a site that lacks one asks for it.
    """

    def __init__(self, path: str | Path, room: int = 1 << 30) -> None:
        self.path, self._room = Path(path), room
        self._lock = threading.Lock()
        try:
            self._db = open_database(path, "the store", _APPLICATION, _SCHEMA, timeout=60.0)
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from None

    def get(self, key: str) -> bytes | None:
        """Return a stored value, or None."""
        with self._using() as db:
            row = db.execute("SELECT value FROM kept WHERE key = ?", (key,)).fetchone()
        return None if row is None else bytes(row[0])

    def put_all(self, values: dict[str, bytes]) -> None:
        """Store several values, all or none."""
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


T = TypeVar("T")


class CacheKey(tuple[Hashable, ...], Generic[T]):
    """The key of a cached value of type T: a kind, and everything the value was computed from.

    Only the ``most`` recent values of a kind are kept: two are enough for one study.
    """

    most: int

    def __new__(cls, kind: str, *made_from: Hashable, most: int = 2) -> Self:  # noqa: D102
        key = super().__new__(cls, (kind, *made_from))
        key.most = most
        return key


class Cache(dict[CacheKey[Any], Any]):
    """Cached values by key."""

    def __setitem__(self, key: CacheKey[T], value: T) -> None:
        super().__setitem__(key, value)
        alike = [other for other in list(self) if other[0] == key[0]]  # a copy: another thread may be writing
        for old in alike[: -key.most]:
            self.pop(old, None)

    def once(self, key: CacheKey[T], make: Callable[[], T], fits: Callable[[T], bool] | None = None) -> T:
        """Return the value of a key; create it if it is missing or does not fit."""
        value: T = self.get(key, _ABSENT)
        if value is _ABSENT or not (fits is None or fits(value)):
            value = self[key] = make()
        return value


_ABSENT: Any = object()
