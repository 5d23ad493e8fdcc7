"""A site's privacy budget over all studies: its noisy replies, their cost, and what is left.

A request is checked against the remaining budget and charged before any row is read; then rows are counted, noise is
sampled, and the noisy reply is stored before it leaves. So whatever fails or is killed at any point, everything that
left has been charged, and a repeated request gets the stored reply at no cost: the same noise reveals nothing new.

Costs are added up as exact fractions; a limit holds to within a billionth, so that ten times 0.1 fits into 1.
"""

import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import msgspec

from silvan.errors import DamagedError, FormatError, RefusedError
from silvan.privacy.noise.laplace import check_epsilon
from silvan.util.files import has_no_room, no_room
from silvan.util.sqlite_file import open_database

_APPLICATION = 0x53494C42  # marks our SQLite files: "SILB"

_SLACK = Fraction(1, 10**9)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS owner (site TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS charge (
    draw TEXT PRIMARY KEY,
    epsilon REAL NOT NULL,
    what TEXT NOT NULL,
    at REAL NOT NULL,
    study TEXT NOT NULL,
    answer BLOB
);
CREATE TABLE IF NOT EXISTS admitted (study TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS settled (draw TEXT PRIMARY KEY, sites TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS ledger (owner TEXT PRIMARY KEY, lines INTEGER NOT NULL, hash TEXT NOT NULL);
"""


class Charge(NamedTuple):
    """One noisy reply: its time, its request, and its cost."""

    at: float
    what: str
    epsilon: float


class StudyShare(NamedTuple):
    """A study, and the maximum that it may cost of the budget; None: as much as is left."""

    name: str = ""
    most: float | None = None


WITHOUT_SHARE = StudyShare()


class Budget:
    """A site's limit on epsilon, what was charged against it, and the noisy answers that were sent.

    Parameters
    ----------
    limit
        Epsilon for all requests ever; None for no limit, with charges recorded anyway.
    path
        A file (SQLite) that outlives studies and processes; None: charges live as long as this object.
    site
        The owner of the budget; a file of another site is refused.
    """

    def __init__(self, limit: float | None = None, path: str | Path | None = None, site: str | None = None) -> None:
        if limit is not None:
            check_epsilon(limit)
        self.limit, self.path, self.site = limit, path, site
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None

    @property
    def spent(self) -> float:
        """Epsilon charged so far."""
        with self._using() as db:
            return float(_spent(db))

    @property
    def left(self) -> float | None:
        """Epsilon that may still be charged; None without a limit."""
        if self.limit is None:
            return None
        with self._using() as db:
            return float(max(Fraction(self.limit) - _spent(db), Fraction(0)))

    def check(self, draw: str, epsilon: float, study: StudyShare = WITHOUT_SHARE) -> None:
        """Raise an error if a sample costs more than is left, unless it was charged before."""
        with self._using() as db:
            if not _known(db, draw):
                check_epsilon(epsilon)
                self._check_affordable(db, epsilon, study)

    def admit(self, announced: str, epsilon: float, study: StudyShare = WITHOUT_SHARE) -> None:
        """Raise an error if a study costs more than is left, unless it was admitted before: what it paid is kept."""
        with self._using() as db, db:
            db.execute("BEGIN IMMEDIATE")
            if db.execute("SELECT 1 FROM admitted WHERE study = ?", (announced,)).fetchone() is None:
                self._check_affordable(db, epsilon, study, "all that is about to be asked costs")
                db.execute("INSERT INTO admitted VALUES (?)", (announced,))

    def charge(self, draw: str, epsilon: float, what: str, study: StudyShare = WITHOUT_SHARE) -> None:
        """Charge for noise permanently before it is sampled; once per name."""
        with self._using() as db, db:
            db.execute("BEGIN IMMEDIATE")  # nobody else may charge between the check and the entry
            if not _known(db, draw):
                check_epsilon(epsilon)
                self._check_affordable(db, epsilon, study)
                _insert(db, draw, float(epsilon), what, study.name)

    # -- what it records of the ledger beside it, and the ledger of it

    def note_ledger(self, owner: str, lines: int, hash_: str) -> None:
        """Record a ledger's position, by its signing key: the number of lines, and the digest of the last."""
        with self._using() as db:
            db.execute("INSERT OR REPLACE INTO ledger VALUES (?, ?, ?)", (owner, lines, hash_))

    def progress(self) -> tuple[int, float]:
        """Return the number of charges, and their sum."""
        with self._using() as db:
            return int(db.execute("SELECT COUNT(*) FROM charge").fetchone()[0]), float(_spent(db))

    def noted(self, owner: str) -> tuple[int, str] | None:
        """Return a ledger's position at the last charge, by its signing key."""
        with self._using() as db:
            row = db.execute("SELECT lines, hash FROM ledger WHERE owner = ?", (owner,)).fetchone()
        return None if row is None else (int(row[0]), str(row[1]))

    def make_up(self, spent: float) -> None:
        """Charge the difference to an amount known to be spent."""
        with self._using() as db, db:
            db.execute("BEGIN IMMEDIATE")
            lacking = float(Fraction(spent) - _spent(db))
            if lacking > 0:
                _insert(db, f"restored {secrets.token_hex(16)}", lacking, "spent before an older file was put back")

    def keep(self, draw: str, answer: bytes) -> bytes:
        """Store a noisy reply before it leaves; return the first stored one."""
        with self._using() as db, db:
            db.execute("BEGIN IMMEDIATE")
            if not _known(db, draw):
                raise RefusedError("the site has not charged for this answer")
            db.execute("UPDATE charge SET answer = ? WHERE draw = ? AND answer IS NULL", (answer, draw))
            row = db.execute("SELECT answer FROM charge WHERE draw = ?", (draw,)).fetchone()
        return bytes(row[0])

    def kept(self, draw: str) -> bytes | None:
        """Return the stored reply, if there is one."""
        with self._using() as db:
            row = db.execute("SELECT answer FROM charge WHERE draw = ?", (draw,)).fetchone()
        return None if row is None or row[0] is None else bytes(row[0])

    def settle(self, draw: str, sites: Sequence[str]) -> None:
        """Record the sites in the sum of a sample of shares; raise an error for another sum of it."""
        listed = msgspec.json.encode(sorted(sites)).decode()
        with self._using() as db, db:
            db.execute("BEGIN IMMEDIATE")
            db.execute("INSERT INTO settled VALUES (?, ?) ON CONFLICT DO NOTHING", (draw, listed))
            known = db.execute("SELECT sites FROM settled WHERE draw = ?", (draw,)).fetchone()[0]
        if known != listed:
            raise RefusedError("the site's share of the noise is in a sum over other sites already")

    def charges(self) -> list[Charge]:
        """List all charges, the oldest first."""
        with self._using() as db:
            rows = db.execute("SELECT at, what, epsilon FROM charge ORDER BY at, draw").fetchall()
        return [Charge(*row) for row in rows]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def _check_affordable(
        self, db: sqlite3.Connection, epsilon: float, study: StudyShare, what: str = "this question costs"
    ) -> None:
        if study.most is not None:
            by_study = _spent(db, study.name)
            if by_study + Fraction(epsilon) > Fraction(study.most) + _SLACK:
                raise RefusedError(
                    f"the study may cost epsilon {study.most:g} by its text, of which {float(by_study):g} is spent, "
                    f"and {what} {epsilon:g}"
                )
        spent = _spent(db)
        if self.limit is not None and spent + Fraction(epsilon) > Fraction(self.limit) + _SLACK:
            raise RefusedError(
                f"the site's privacy budget is used up: of epsilon {self.limit:g}, {float(spent):g} is spent, and "
                f"{what} {epsilon:g}"
            )

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._db is None:
                    self._db = self._open()
                yield self._db
            except sqlite3.DatabaseError as error:
                if has_no_room(error):
                    raise no_room(self.path) from None
                raise DamagedError(f"{self.path}: cannot be used as a privacy budget ({error})") from None

    def _open(self) -> sqlite3.Connection:
        db = open_database(self.path, "the budget", _APPLICATION, _SCHEMA, timeout=60.0)
        try:
            self._check_owner(db)
        except (sqlite3.DatabaseError, FormatError):
            db.close()
            raise
        return db

    def _check_owner(self, db: sqlite3.Connection) -> None:
        """Record the owner of a new file, and raise an error if the file belongs to another site."""
        if self.site is None:
            return
        db.execute("INSERT INTO owner SELECT ? WHERE NOT EXISTS (SELECT * FROM owner)", (self.site,))
        owner = db.execute("SELECT site FROM owner").fetchone()[0]
        if owner != self.site:
            raise FormatError(f"{self.path}: is the privacy budget of another site; every site needs its own")


def _known(db: sqlite3.Connection, draw: str) -> bool:
    return db.execute("SELECT 1 FROM charge WHERE draw = ?", (draw,)).fetchone() is not None


def _insert(db: sqlite3.Connection, draw: str, epsilon: float, what: str, study: str = "") -> None:
    db.execute("INSERT INTO charge VALUES (?, ?, ?, ?, ?, NULL)", (draw, epsilon, what, time.time(), study))


def _spent(db: sqlite3.Connection, study: str | None = None) -> Fraction:
    """Return the charges of one study or of all; a sum in SQLite would round."""
    known = db.execute("SELECT epsilon FROM charge WHERE ?1 IS NULL OR study = ?1", (study,))
    return sum((Fraction(row[0]) for row in known), Fraction(0))
