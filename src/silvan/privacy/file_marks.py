"""Detects files of a site that were restored to an earlier state, by what its files record about each other.

A site has three records: the ledger of everything that left, the privacy budget, and the store of requests. A line of
the ledger records the number of replies in the store and the spent budget; the store and the budget record the ledger's
position, and the store the spent budget. Recorded states are already on disk, so a site that stops at any point finds
its files consistent. A file that is *behind* another's record was deleted, or restored from a copy, and the site would
reply again. Then it sends no replies until its owner accepts the files, on record.

A backup (``silvan site backup``) is marked as one. Files that are all restored together from another copy look like a
site with fewer replies; other sites remember more of its ledger (``ledger_heads.py``). A ledger without its last line,
about a reply without noise, looks like that of a site that stopped before it wrote the line.
"""

from pathlib import Path

import msgspec

from silvan.errors import DamagedError
from silvan.federation.store import MemoryStore, Store
from silvan.privacy.ledger import START, Head, Ledger, Line
from silvan.privacy.noise.budget import Budget
from silvan.util.files import try_json, write_whole
from silvan.util.readable import count_of

_KEY = "ledger mark"

FROM_BACKUP = "from-backup"
"""A file in every backup, with its time: a folder with it was restored and may have sent later replies."""


BEHIND = "ledger-behind"
"""A file of a site whose ledger lacks lines known to others: their number, and the last one's digest."""


def write_behind(folder: Path, known: Head) -> None:
    """Record that others know of more lines than a ledger has."""
    write_whole(folder / BEHIND, msgspec.json.encode(known))


class _Mark(msgspec.Struct, frozen=True):
    """Recorded with every reply in the store: number of replies, ledger position before it, epsilon spent."""

    kept: int = 0
    lines: int = 0
    hash: str = START
    charges: int = 0
    spent: float = 0.0


class FileMarks:
    """What a site's ledger, privacy budget and store record about each other.

    Only files that belong together are compared: ``store`` is None if it is from another folder, and nothing is
    recorded about a budget or a ledger in memory.
    """

    def __init__(self, ledger: Ledger, budget: Budget, store: Store | None) -> None:
        self.ledger = ledger
        self.budget: Budget | None = None
        self.store: Store | None = None
        if ledger.folder is not None:
            self.store = store
            if budget.path is not None:
                self.budget = budget

    # -- as replies leave

    def before_line(self, store: Store, values: dict[str, bytes], charged: bool, kept: int = 0) -> dict[str, float]:
        """Store the site's record of a reply, with the positions of the other files.

        Return what the reply's line in the ledger records about them. The ledger is locked from here to that line.
        """
        said: dict[str, float] = {}
        if charged and self.budget is not None:
            said["charges"], said["spent"] = self.budget.progress()
        if self.store is None or store is not self.store:
            store.put_all(values)
            return said
        lines, hash_ = self.ledger.position
        last = self._mark
        mark = msgspec.structs.replace(last, kept=max(last.kept, kept) + 1, lines=lines, hash=hash_, **said)
        store.put_all({**values, _KEY: msgspec.msgpack.encode(mark)})
        return {**said, "kept": mark.kept}

    def after_line(self, charged: bool) -> None:
        """Record in the budget the ledger's position with the line of a charged reply."""
        if charged and self.budget is not None:
            self.budget.note_ledger(self.ledger.owner, *self.ledger.position)

    # -- when a site starts

    def check(self) -> None:
        """Raise an error if a file is behind another."""
        faults = self.faults()
        if faults:
            raise DamagedError(
                f"{self.ledger.folder}: {'; '.join(faults)}. Put back the files as they were last; if they are lost, "
                "`silvan site restored` accepts these"
            )

    def faults(self) -> list[str]:
        """List the files that are behind another."""
        if self.budget is None and self.store is None:
            return self._backup_faults()
        with self.ledger.locked():
            lines = self.ledger.lines()
            return [*self._backup_faults(), *self._budget_faults(lines), *self._store_faults(lines)]

    def accept(self, site: str) -> list[str]:
        """Accept the files, with a line in the ledger; return the findings.

        Budget that the ledger shows as spent is charged, so that none is gained.
        """
        with self.ledger.locked():
            faults, lines = self.faults(), self.ledger.lines()
            if not faults:
                return faults
            if self.budget is not None:
                self.budget.make_up(max(self._mark.spent, _last(lines, "charges").spent))
            store = MemoryStore() if self.store is None else self.store
            behind = self._behind()
            lost = 0 if behind is None else behind.lines
            said = self.before_line(store, {}, charged=True, kept=_last(lines, "kept").kept)
            self.ledger.write(
                **dict.fromkeys(("task", "kind", "question", "asked", "answer"), ""),
                **said,
                site=site,
                study="none",
                round=0,
                outcome="restored",
                what="files of an earlier state were put back, and the owner accepted them",
                how="; ".join(faults),
                bytes=0,
                behind=lost,
            )
            self.after_line(charged=True)
            if self.ledger.folder is not None:
                for name in (FROM_BACKUP, BEHIND):
                    (self.ledger.folder / name).unlink(missing_ok=True)
        return faults

    def _backup_faults(self) -> list[str]:
        path, faults = None if self.ledger.folder is None else self.ledger.folder / FROM_BACKUP, []
        if path is not None and path.exists():
            when = path.read_text().strip()
            faults.append(f"the folder was put back from the backup of {when}: what left since is not known")
        behind = self._behind()
        if behind is not None:
            faults.append(
                f"others know of line {behind.lines:,} of the ledger ({behind.hash[:12]}...), "
                "which is not in it: the folder is a copy, or was put back, and what left since is not known"
            )
        return faults

    def _behind(self) -> Head | None:
        """Return what others know about the ledger and it lacks."""
        return None if self.ledger.folder is None else try_json(self.ledger.folder / BEHIND, Head)

    def _budget_faults(self, lines: list[Line]) -> list[str]:
        if self.budget is None:
            return []
        (charges, spent), noted = self.budget.progress(), self.budget.noted(self.ledger.owner)
        known: tuple[tuple[str, Line | _Mark], ...] = (("ledger", _last(lines, "charges")), ("store", self._mark))
        faults = [
            f"the privacy budget is behind the {name}: {spent:g} of {last.spent:g} spent, in {charges:,} of "
            f"{last.charges:,} charges"
            for name, last in known
            if charges < last.charges or spent < last.spent
        ]
        if noted is not None and not _was_at(lines, *noted):
            faults.append(f"the ledger is behind the privacy budget, which knows of {count_of(noted[0], 'line')}")
        return faults

    def _store_faults(self, lines: list[Line]) -> list[str]:
        if self.store is None:
            return []
        kept, mark, faults = _last(lines, "kept").kept, self._mark, []
        if mark.kept < kept:
            faults.append(f"the store is behind the ledger: it knows of {mark.kept:,} of {kept:,} answers")
        if not _was_at(lines, mark.lines, mark.hash):
            faults.append(f"the ledger is behind the store, which knows of {count_of(mark.lines, 'line')}")
        return faults

    @property
    def _mark(self) -> _Mark:
        """The store's record, read again, because another process may have replied."""
        data = None if self.store is None else self.store.get(_KEY)
        return _Mark() if data is None else msgspec.msgpack.decode(data, type=_Mark)


def _last(lines: list[Line], field: str) -> Line | _Mark:
    """Return the last line that records another file's position; a blank mark if there is none."""
    return next((line for line in reversed(lines) if getattr(line, field)), _Mark())


def _was_at(lines: list[Line], n: int, hash_: str) -> bool:
    """Whether a ledger once had this number of lines, the last of them with this digest."""
    return n <= len(lines) and (lines[n - 1].hash if n else START) == hash_
