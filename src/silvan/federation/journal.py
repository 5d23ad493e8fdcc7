"""The coordinator's journal: every reply that arrived, so that an interrupted study goes on where it stopped.

A question is known by a digest of all that determines its answer. What a coordinator decides follows from the replies
alone, so replaying the journal leads to the same state, and only what is missing is asked again. Of a ``total`` only
the sum is kept.
"""

import sqlite3
from pathlib import Path
from typing import NamedTuple

from silvan.errors import FormatError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS study (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS reply (
    question TEXT NOT NULL,
    site TEXT NOT NULL,
    kind TEXT NOT NULL,
    body BLOB NOT NULL,
    sent INTEGER NOT NULL,
    received INTEGER NOT NULL,
    PRIMARY KEY (question, site)
);
"""

SUM = ""
"""Stands for the site in the entry of a sum; an entry with a site's name and no body counts its traffic."""


class Entry(NamedTuple):
    """One reply as it was kept, with the bytes it took there and back, from the site's view."""

    kind: str
    body: bytes
    sent: int
    received: int


class Journal:
    """Replies on disk (SQLite), or in memory if no path is given."""

    def __init__(self, path: str | Path | None = None) -> None:
        self._db = sqlite3.connect(":memory:" if path is None else str(path), isolation_level=None)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError:
            raise FormatError(f"{path}: not a journal of silvan") from None

    def belongs_to(self, study: str) -> None:
        """Tie the journal to a study; refuse one of another."""
        row = self._db.execute("SELECT name FROM study").fetchone()
        if row is None:
            self._db.execute("INSERT INTO study VALUES (?)", (study,))
        elif row[0] != study:
            raise FormatError(
                "the journal belongs to another study (data, parameters or sites differ); name another file to start "
                "afresh"
            )

    def find(self, question: str) -> dict[str, Entry]:
        """Give what is known of a question, by site."""
        rows = self._db.execute(
            "SELECT site, kind, body, sent, received FROM reply WHERE question = ?", (question,)
        )
        return {site: Entry(*rest) for site, *rest in rows}

    def keep(self, question: str, entries: dict[str, Entry]) -> None:
        """Keep replies, all or none of them."""
        with self._db:
            self._db.execute("BEGIN")
            self._db.executemany(
                "INSERT OR IGNORE INTO reply VALUES (?, ?, ?, ?, ?, ?)",
                [(question, site, *entry) for site, entry in entries.items()],
            )

    def __len__(self) -> int:
        return int(self._db.execute("SELECT COUNT(*) FROM reply").fetchone()[0])

    def close(self) -> None:
        """Close the file."""
        self._db.close()
