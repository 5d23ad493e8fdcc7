"""The coordinator's journal: every reply that arrived, so that an interrupted study goes on where it stopped.

A request is identified by a digest of everything that determines its reply. The coordinator's decisions follow from
the replies alone, so replaying the journal leads to the same state, and only missing replies are requested again. For a
``total`` only the sum is kept. Leaving a site out is recorded too: a resumed study goes on without it.
"""

import hashlib
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from silvan.errors import FormatError
from silvan.federation.store import LASTING, MemoryStore
from silvan.tree.grow import RULES
from silvan.util.sqlite_file import open_database

_APPLICATION = 0x53494C56  # how SQLite files say whose they are: "SILV"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS study (name TEXT PRIMARY KEY, rules INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS reply (
    question TEXT NOT NULL,
    site TEXT NOT NULL,
    kind TEXT NOT NULL,
    body BLOB NOT NULL,
    sent INTEGER NOT NULL,
    received INTEGER NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (question, site)
);
CREATE TABLE IF NOT EXISTS memory (
    site TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (site, key)
);
"""

SUM = ""
"""The site of a sum's entry; an entry with a site's name and no body counts its traffic."""

LOST = "lost"
"""Kind of an entry that records why a site was left out from here on."""


class Entry(NamedTuple):
    """A stored reply, with the bytes sent and received from the site's view."""

    kind: str
    body: bytes
    sent: int
    received: int

    def digest(self, question: str, site: str) -> str:
        """Return a checksum of the entry: SQLite does not notice a changed byte."""
        head = repr((question, site, self.kind, self.sent, self.received)).encode()
        return hashlib.sha256(head + b"\0" + self.body).hexdigest()


class Journal:
    """Replies on disk (SQLite). Without a path nothing is kept.

    A ``lasting`` journal survives its study, for verification.
    """

    def __init__(self, path: str | Path | None = None, *, lasting: bool = False) -> None:
        self.path, self.lasting = path, lasting
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        if path is None:
            return
        try:
            self._db = open_database(path, "the journal", _APPLICATION, _SCHEMA)
        except sqlite3.DatabaseError as error:
            raise self._unusable(error) from None

    def belongs_to(self, study: str) -> None:
        """Tie the journal to a study; refuse the journal of another study, unless that one has no replies."""
        if not self._read("SELECT 1 FROM reply LIMIT 1"):
            self._write("DELETE FROM study WHERE name != ? OR rules != ?", [(study, RULES)])
        self._write("INSERT INTO study SELECT ?, ? WHERE NOT EXISTS (SELECT * FROM study)", [(study, RULES)])
        for name, rules in self._read("SELECT name, rules FROM study"):
            if rules != RULES:
                raise FormatError(
                    f"{self.path}: the study was begun by another version of silvan, which grows other trees; let that "
                    "version end it, or start afresh"
                )
            if name != study:
                raise FormatError(
                    f"{self.path}: the journal belongs to another study (tables, parameters, sites or the version "
                    "of silvan differ); name another file to start afresh"
                )

    def find(self, question: str) -> dict[str, Entry]:
        """Return the stored replies to a request, by site."""
        entries = {}
        query = "SELECT site, digest, kind, body, sent, received FROM reply WHERE question = ?"
        for site, digest, *rest in self._read(query, question):
            entries[site] = Entry(*rest)
            if not isinstance(entries[site].body, bytes) or entries[site].digest(question, site) != digest:
                raise FormatError(f"{self.path}: the journal is damaged; name another file to start afresh")
        return entries

    def of_kind(self, kind: str) -> dict[str, list[bytes]]:
        """Return the replies of a kind by site, to any request."""
        found: dict[str, list[bytes]] = {}
        for site, body in self._read("SELECT site, body FROM reply WHERE kind = ? AND body != x''", kind):
            found.setdefault(site, []).append(bytes(body))
        return found

    def keep(self, question: str, entries: dict[str, Entry]) -> None:
        """Store replies, all or none of them; stored replies stay unchanged."""
        if self._db is not None:
            rows = [(question, site, *entry, entry.digest(question, site)) for site, entry in entries.items()]
            self._write("INSERT INTO reply VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (question, site) DO NOTHING", rows)

    def store(self, site: str) -> MemoryStore:
        """Return a store for a site of this process.

        The journal also keeps the protocol sequence that the site enforces, or a resumed study would look as if it
        began in the middle; the site's keys, which sign its trees and open what was sealed for it; and a party's shares
        of models, which it would not be asked to keep again.
        """
        return _JournaledStore(self, site)

    def remember(self, site: str, values: dict[str, bytes]) -> None:
        """Store the state of a site in this process, completely or not at all."""
        rows = [(site, key, value) for key, value in values.items()]
        self._write("INSERT OR REPLACE INTO memory VALUES (?, ?, ?)", rows)

    def remembered(self, site: str) -> dict[str, bytes]:
        """Return the stored state of a site in this process."""
        return dict(self._read("SELECT key, value FROM memory WHERE site = ?", site))

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()

    def remove(self) -> None:
        """Close the file and remove it, unless it is ``lasting``."""
        self.close()
        if self.lasting:
            return
        for ending in ("", "-wal", "-shm") if self.path is not None else ():
            Path(f"{self.path}{ending}").unlink(missing_ok=True)

    def _read(self, query: str, *given: str) -> list[Any]:
        with self._using() as db:
            return [] if db is None else db.execute(query, given).fetchall()

    def _write(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """Write rows, all or none of them."""
        with self._using() as db:
            if db is not None and rows:
                with db:
                    db.execute("BEGIN")
                    db.executemany(statement, rows)

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection | None]:
        with self._lock:
            try:
                yield self._db
            except sqlite3.DatabaseError as error:
                raise self._unusable(error) from None

    def _unusable(self, error: sqlite3.DatabaseError) -> FormatError:
        return FormatError(f"{self.path}: cannot be used as a journal ({error})")


class _JournaledStore(MemoryStore):
    """A store in memory, part of which is also in a journal's file."""

    def __init__(self, journal: Journal, site: str) -> None:
        super().__init__()
        self._journal, self._site = journal, site
        super().put_all(journal.remembered(site))

    def put_all(self, values: dict[str, bytes]) -> None:
        """Keep several values."""
        lasting = {key: value for key, value in values.items() if key.startswith(LASTING) and self.get(key) != value}
        super().put_all(values)
        self._journal.remember(self._site, lasting)
