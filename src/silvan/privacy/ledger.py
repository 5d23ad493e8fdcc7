"""The ledger: a signed chain of lines, one for each reply that left a site or was refused, in plain words.

Each line contains the digest of the previous line and is signed with the site's key. The number of lines, and the
digest of the last, are in a second signed file. So anyone with the public key detects a changed byte, a missing line,
a truncated ledger, and a ledger that someone else wrote. A line is on disk before the reply leaves.

A ledger contains no values of rows and no replies, only their descriptions, sizes and digests.

Several processes may write to one ledger, such as one job per study: each locks the folder and reads what the others
wrote before it adds a line.
"""

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from silvan.errors import DamagedError, FormatError, InputError
from silvan.federation.keys import Key, is_signed
from silvan.federation.store import digest
from silvan.util.files import UNREADABLE, keep_private, write_whole
from silvan.util.folder_lock import lock_folder
from silvan.util.readable import count_of, is_or_are, printable

LEDGER, HEAD = "ledger.jsonl", "ledger.head"
"""The names of the files in a site's folder."""

START = digest(b"silvan ledger")
"""The first line's value in place of the digest of a previous one."""

_LONGEST = 300
_ABOUT_LINE, _ABOUT_HEAD = b"silvan ledger line\0", b"silvan ledger head\0"

Outcome = Literal["answered", "refused", "failed", "restored", "decided"]


class Line(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reply that left the site or was refused, or an event or decision at the site."""

    number: int
    at: str
    site: str
    study: str
    task: str
    round: int
    kind: str
    outcome: Outcome
    what: str  # in plain words
    how: str  # who sees it; for a refusal, why
    bytes: int
    question: str  # digests: of the request, and of the reply
    asked: str
    answer: str
    before: str
    kept: int = 0  # the state of the site's other files at that time, see file_marks.py: replies recorded in its store,
    charges: int = 0  # and charges to its privacy budget, with their sum
    spent: float = 0.0
    by: str = ""  # of a decision: the person
    behind: int = 0  # lines of this ledger that others know of, and whose loss the owner accepted

    @property
    def hash(self) -> str:
        """Return the digest of the line, which depends on all lines before."""
        return digest(msgspec.json.encode(self))

    def __repr__(self) -> str:
        return f"<line {self.number}, {self.at}: {self.describe()}; {self.bytes:,} bytes>"

    def describe(self) -> str:
        """Return the line as a sentence."""
        where = f"round {self.round}: " if self.round else ""
        if self.outcome in ("answered", "decided"):
            return f"{where}{self.what}, {self.how}"
        return f"{where}{self.outcome}: {self.what} ({self.how})"


class Signed(msgspec.Struct, frozen=True):
    """A line as it is in the file."""

    line: Line
    signature: str

    def is_by(self, public: bytes) -> bool:
        """Whether the line is signed with the key that belongs to a public one."""
        return is_signed(public, _hex(self.signature), _ABOUT_LINE + self.line.hash.encode())


class Head(msgspec.Struct, frozen=True):
    """The number of lines, and the digest of the last."""

    lines: int
    hash: str
    signature: str = ""

    def signed_bytes(self) -> bytes:
        """Return the bytes that are signed."""
        return _ABOUT_HEAD + f"{self.lines} {self.hash}".encode()


def clean(text: str) -> str:
    """Limit a coordinator's text to one line of printable characters, because it may be malicious."""
    return printable(text[:_LONGEST])


class Ledger:
    """A site's ledger: in memory, or in a folder and signed.

    Parameters
    ----------
    folder
        Where ``ledger.jsonl`` and ``ledger.head`` are; None: lines live as long as this object.
    key
        The site's key, for lines that are kept.
    """

    def __init__(self, folder: str | Path | None = None, key: Key | None = None) -> None:
        if folder is not None and key is None:
            raise InputError("a ledger on disk needs the site's key to sign with")
        self.folder = None if folder is None else Path(folder)
        self._key, self._lock, self._held = key, threading.RLock(), False
        self._lines: list[Line] = []
        self._head, self._size = Head(0, START), 0
        self._behind = False  # whether the head's file lags behind the last line
        if self.folder is not None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with lock_folder(self.folder, wait=math.inf):
                self._open(self.folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other threads and processes from writing meanwhile, after reading what they wrote."""
        with self._lock:
            if self.folder is None or self._key is None or self._held:
                yield
                return
            with lock_folder(self.folder, wait=math.inf):
                self._held = True
                try:
                    self._catch_up(self.folder, self._key)
                    yield
                finally:
                    self._held = False

    def write(self, **fields: object) -> Line:
        """Add a line; it is on disk when this returns."""
        with self.locked():
            made = datetime.now(UTC).isoformat(timespec="seconds")
            line = msgspec.convert(
                {**fields, "number": self._head.lines + 1, "at": made, "before": self._head.hash}, Line
            )
            head = Head(line.number, line.hash)
            if self.folder is None or self._key is None:
                self._lines.append(line)
                self._head = head
            else:
                self._append(self.folder, self._key, line, head)
            return line

    @property
    def owner(self) -> str:
        """The public key that lines are signed with; empty for a ledger in memory."""
        return "" if self._key is None else self._key.public.hex()

    @property
    def position(self) -> tuple[int, str]:
        """The number of lines, and the digest of the last: noted elsewhere, it later proves their content."""
        return self._head.lines, self._head.hash

    def __len__(self) -> int:
        return self._head.lines

    def lines(self, study: str | None = None) -> list[Line]:
        """Return all lines, or those of a study, the oldest first."""
        lines = self._lines if self.folder is None else read_lines(self.folder, study)
        return [line for line in lines if study is None or line.study == clean(study)]

    def signed_head(self) -> Head:
        """Return the number of lines and the digest of the last, signed: others keep it."""
        assert self._key is not None  # noqa: S101
        with self.locked():
            head = Head(*self.position)
            return Head(head.lines, head.hash, self._key.sign(head.signed_bytes()).hex())

    def holds(self, head: Head) -> bool:
        """Whether the ledger once had this head, or the owner has accepted the loss of these lines."""
        with self.locked():
            if head.lines == 0:
                return True
            lines, _ = _split(self.folder) if self.folder is not None else ([], 0)
            if head.lines <= len(lines):
                there = msgspec.json.decode(lines[head.lines - 1], type=Signed).line
                if there.hash == head.hash:
                    return True
            accepted = (msgspec.json.decode(line, type=Signed).line.behind for line in lines if b'"behind"' in line)
            return head.lines <= max(accepted, default=0)

    def _append(self, folder: Path, key: Key, line: Line, head: Head) -> None:
        data = msgspec.json.encode(Signed(line, key.sign(_ABOUT_LINE + line.hash.encode()).hex())) + b"\n"
        with (folder / LEDGER).open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._behind = True
        self._size, self._head = self._size + len(data), head
        self._write_head(folder, key)

    def _catch_up(self, folder: Path, key: Key) -> None:
        """Read lines that others wrote, and finish or undo interrupted writes.

        A line is incomplete if the disk was full, or its process stopped.
        """
        path = folder / LEDGER
        size = path.stat().st_size if path.exists() else 0
        if size < self._size:
            raise DamagedError(f"{path}: lines are missing at the end")
        if size > self._size:
            with path.open("rb") as file:
                file.seek(self._size)
                *lines, torn = file.read().split(b"\n")
            for data in lines:
                self._follow(path, key, data)
            if torn:
                os.truncate(
                    path, self._size
                )  # half a line: the site stopped while it wrote it, so nothing left with it
        if self._behind:  # otherwise the next line would be the second one unknown to the head
            head, faults = _read_head(folder, key.public, self._head.lines)
            if faults:
                raise DamagedError(f"{path}: {faults[0]}")
            if (head.lines, head.hash) != self.position:
                self._write_head(folder, key)
            self._behind = False

    def _follow(self, path: Path, key: Key, data: bytes) -> None:
        """Record a line that follows the last known one; raise an error if it is not from this site."""
        try:
            signed = msgspec.json.decode(data, type=Signed)
        except UNREADABLE:
            raise DamagedError(f"{path}: line {self._head.lines + 1} is damaged") from None
        line, (lines, hash_) = signed.line, self.position
        if (line.number, line.before) != (lines + 1, hash_) or not signed.is_by(key.public):
            raise DamagedError(f"{path}: somebody else has written to the ledger")
        self._head, self._behind = Head(line.number, line.hash), True
        self._size += len(data) + 1

    def _write_head(self, folder: Path, key: Key) -> None:
        signature = key.sign(self._head.signed_bytes()).hex()
        write_whole(folder / HEAD, msgspec.json.encode(Head(self._head.lines, self._head.hash, signature)))
        self._behind = False

    def _open(self, folder: Path) -> None:
        """Open a ledger or begin one; raise an error if it was changed."""
        path = folder / LEDGER
        if not path.exists() and not (folder / HEAD).exists():
            path.touch(mode=0o600)
            return
        if path.exists():
            keep_private(path)
        assert self._key is not None  # noqa: S101
        found = verify(folder, self._key.public, all_signatures=False)
        if found.faults:
            raise DamagedError(f"{path}: {found.faults[0]}; look at it with `silvan site ledger {folder} --verify`")
        if found.torn:
            os.truncate(path, path.stat().st_size - found.torn)
        self._size = path.stat().st_size
        self._head, self._behind = Head(found.lines, found.hash), found.behind


class Verified(msgspec.Struct, frozen=True):
    """The result of verifying a ledger on disk."""

    lines: int
    hash: str
    faults: list[str]
    torn: int = 0  # bytes of an incomplete line
    behind: bool = False  # whether there is a line unknown to the head


def read_lines(folder: Path, study: str | None = None) -> list[Line]:
    """Read the lines of a ledger without checking them (see ``verify``); for a ``study``, a superset of its lines."""
    lines, _ = _split(folder)
    named = b"" if study is None else msgspec.json.encode(clean(study))
    read = []
    for number, data in enumerate(lines, 1):
        if named not in data:
            continue
        try:
            read.append(msgspec.json.decode(data, type=Signed).line)
        except UNREADABLE:
            raise FormatError(f"{folder / LEDGER}: line {number} is damaged; look at it with --verify") from None
    return read


def verify(folder: str | Path, public: bytes, known: str | None = None, all_signatures: bool = True) -> Verified:
    """Find all problems of a ledger, using the site's public key.

    ``known`` is the digest of a line noted earlier: it must still be there. The signed head vouches for all
    lines up to it; with ``all_signatures`` their own signatures are checked, too, which shows which line is at fault.
    """
    folder = Path(folder)
    lines, torn = _split(folder)
    head, faults = _read_head(folder, public, len(lines))
    hashes = [START]
    for number, data in enumerate(lines, 1):
        try:
            signed = msgspec.json.decode(data, type=Signed)
        except UNREADABLE:
            faults.append(f"line {number} is damaged")
            hashes.append("")
            continue
        line = signed.line
        if data != msgspec.json.encode(signed):
            faults.append(f"line {number} was written anew")
        elif (all_signatures or number > head.lines) and not signed.is_by(public):
            faults.append(f"line {number} was changed, or signed with another key")
        if hashes[-1] and (line.before != hashes[-1] or line.number != number):
            faults.append(f"before line {number} one is missing, or was moved or changed")
        hashes.append(line.hash)
    if not faults and hashes[head.lines] != head.hash:
        faults.append(f"{HEAD} is not that of these lines")
    if known is not None and known not in hashes[1:]:
        faults.append("the line whose digest was noted is not there")
    return Verified(len(lines), hashes[-1], faults, torn, head.lines < len(lines))


def _read_head(folder: Path, public: bytes, lines: int) -> tuple[Head, list[str]]:
    """Read the head's file, and list problems with it."""
    path, head = folder / HEAD, Head(0, START)
    if not path.exists():
        # one line may exist without it: the site stopped between writing the two files
        return head, [] if lines <= 1 else [f"{HEAD} is missing, so nobody can say whether lines are"]
    data = path.read_bytes()
    try:
        read = msgspec.json.decode(data, type=Head)
    except UNREADABLE:
        return head, [f"{HEAD} is damaged"]
    if data != msgspec.json.encode(read) or not is_signed(public, _hex(read.signature), read.signed_bytes()):
        return head, [f"{HEAD} was changed, or signed with another key"]
    if read.lines > lines:
        return head, [
            f"{(gone := read.lines - lines)} of {count_of(read.lines, 'line')} {is_or_are(gone)} missing at the end"
        ]
    return read, [] if read.lines >= lines - 1 else [f"{HEAD} is not that of these lines"]


def _split(folder: Path) -> tuple[list[bytes], int]:
    """Return the lines of a ledger, and the number of bytes after the last complete one."""
    path = folder / LEDGER
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no ledger") from None
    *lines, rest = data.split(b"\n")
    return lines, len(rest)


def _hex(text: str) -> bytes:
    try:
        data = bytes.fromhex(text)
    except ValueError:
        return b""
    return data if data.hex() == text else b""  # a single way to write it
