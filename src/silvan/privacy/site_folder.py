"""A site's folder: its key, its ledger, and the studies that its owner approved."""

import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import msgspec

from silvan.errors import DamagedError, InputError, RefusedError
from silvan.federation.keys import Key, read_public
from silvan.federation.message import Request
from silvan.privacy.ledger import LEDGER, Ledger, clean
from silvan.util.files import UNREADABLE, file_name, write_whole
from silvan.util.folder_lock import lock_folder

KEY, PUBLIC = "site.key", "site.pub"

EVERYTHING = "*"
"""In a list of kinds of messages: all that the policy allows."""

APPROVALS = "approvals.json"
"""The name of the file in a site's folder."""


class Approval(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One approved study, and what may leave in it.

    Parameters
    ----------
    study
        The study's name in the coordinator's messages; between machines it ends with the SHA-256 of its text.
    messages
        The allowed kinds of messages; "*" stands for all that the policy allows.
    tasks
        Maximum number of models and evaluations; None: as many as the policy allows.
    sites
        The sites allowed in sums with this one; None: any.
    losses
        Maximum number of lost sites; None: as many as the policy allows.
    at, by
        When it was approved, and who did it.
    """

    study: str
    messages: list[str]
    tasks: int | None = None
    sites: list[str] | None = None
    losses: int | None = None
    at: str = ""
    by: str = ""


class Approvals:
    """The studies that a site's owner approved: in memory, or in a file that is read again for every request."""

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._known: dict[str, Approval] = {}
        self._lock = threading.Lock()

    def approve(self, approval: Approval) -> Approval:
        """Approve a study; replaces an earlier approval of it."""
        if not approval.study.strip():
            raise InputError.about("study", "must be the study's name, got an empty text")
        if not approval.messages:
            raise InputError.about("messages", f"must name the kinds that may be answered, or {EVERYTHING!r} for all")
        if approval.tasks is not None and approval.tasks < 1:
            raise InputError.wrong("tasks", "at least 1, or None", approval.tasks)
        if approval.losses is not None and approval.losses < 0:
            raise InputError.wrong("losses", "at least 0, or None", approval.losses)
        made = msgspec.structs.replace(approval, at=datetime.now(UTC).isoformat(timespec="seconds"))
        with self._changing():
            self._write({**self._read(), made.study: made})
        return made

    def withdraw(self, study: str) -> None:
        """Withdraw the approval of a study: from now on it gets no replies."""
        with self._changing():
            known = self._read()
            if study not in known:
                raise InputError(f"study {study!r} is not approved, so there is nothing to withdraw")
            del known[study]
            self._write(known)

    def listed(self) -> list[Approval]:
        """Return all approvals, the oldest first."""
        with self._lock:
            return sorted(self._read().values(), key=lambda approval: approval.at)

    def find(self, study: str) -> Approval | None:
        """Return the approval of a study, if there is one."""
        with self._lock:
            return self._read().get(study)

    def check(self, study: str, kind: type[Request], over: Iterable[str]) -> Approval:
        """Raise an error if the owner did not approve a kind of request, in sums over some sites; return the approval.

        Requests that reveal nothing about rows are allowed in every approved study.
        """
        approval = self.find(study)
        if approval is None:
            raise RefusedError("the site's owner has not approved this study; nothing is answered before that")
        if kind.of_rows and kind.kind() not in approval.messages and EVERYTHING not in approval.messages:
            raise RefusedError(f"the site's owner approved this study without {kind.kind()}")
        if approval.sites is not None and not set(over) <= set(approval.sites):
            raise RefusedError("the site's owner approved this study with other sites")
        return approval

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Keep other threads and processes from changing the file."""
        with self._lock, nullcontext() if self.path is None else lock_folder(self.path.parent, wait=math.inf):
            yield

    def _read(self) -> dict[str, Approval]:
        if self.path is None or not self.path.exists():
            return dict(self._known)
        try:
            listed = msgspec.json.decode(self.path.read_bytes(), type=list[Approval])
        except UNREADABLE:
            raise DamagedError(f"{self.path}: not a list of approvals") from None
        return {one.study: one for one in listed}

    def _write(self, known: dict[str, Approval]) -> None:
        if self.path is None:
            self._known = known
        else:
            write_whole(self.path, msgspec.json.format(msgspec.json.encode(list(known.values()))) + b"\n")


class SiteFolder:
    """A site's folder: its key, ledger and approvals, in files that its owner can read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @cached_property
    def key(self) -> Key:
        """The site's key, created at first use."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = Key.at(self.path / KEY)
        if not (self.path / PUBLIC).exists():
            write_whole(self.path / PUBLIC, f"{key.public.hex()}\n".encode())
        return key

    @cached_property
    def ledger(self) -> Ledger:
        """The site's ledger, open for writing."""
        return Ledger(self.path, self.key)

    def note_decision(self, site: str, study: str, what: str, by: str) -> None:
        """Write somebody's decision to the ledger."""
        blank = dict.fromkeys(("task", "kind", "question", "asked", "answer"), "")
        said = {"study": clean(study), "what": clean(what), "how": f"by {clean(by)}", "by": clean(by)}
        self.ledger.write(**blank, **said, site=site, round=0, bytes=0, outcome="decided")

    @cached_property
    def approvals(self) -> Approvals:
        """The studies that the owner approved."""
        return Approvals(self.path / APPROVALS)

    def public(self) -> bytes:
        """Read the site's public key."""
        if not (self.path / PUBLIC).is_file():
            raise InputError(f"{self.path / PUBLIC}: there is no public key; pass the one that the site is known by")
        return read_public((self.path / PUBLIC).read_text())


def folder_at(path: str | Path) -> SiteFolder:
    """Find a site's folder by its path, or by that of its ledger."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: there is no such folder; give that of a site, or its {LEDGER}")
    return SiteFolder(path.parent if path.is_file() else path)


def make_folders(path: str | Path | None, sites: Iterable[str]) -> dict[str, SiteFolder]:
    """Make a folder for each site inside one; return none if there is no path."""
    return {} if path is None else {site: SiteFolder(Path(path) / file_name(site)) for site in sites}
