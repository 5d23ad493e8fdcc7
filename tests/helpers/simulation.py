"""Simulated sites, network, disks and clocks, under real protocol code.

Everything follows from one seed. Messages and replies get lost, duplicated, delayed and reordered. Sites stop at any
point of a reply or a write, are slow, away, out of disk space, or gone. The coordinator is killed at any message and
any entry of its journal. Time is a number that the world advances.
"""

import errno
import heapq
import logging
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from unittest import mock

from silvan.federation.federation import Federation
from silvan.federation.journal import Journal
from silvan.federation.outgoing import UnreachedError
from silvan.federation.signed import Signer
from silvan.federation.site import Site
from silvan.federation.store import MemoryStore
from silvan.federation.transport import Transport
from silvan.privacy.gate import Gate
from silvan.privacy.ledger import Ledger
from silvan.privacy.noise.budget import Budget

_OF_TABLES = ("part", "encoded", "fingerprint")
"""What sites keep in memory that follows from their tables alone."""

WAIT = 5.0
"""Seconds that an answer is waited for before a message is sent again."""


class Crashed(BaseException):
    """A site's process ends here."""


class Killed(BaseException):
    """The coordinator's process ends here."""


@dataclass
class Weather:
    """How often each fault happens, each time that it could."""

    lost: float = 0.0  # a message or a reply
    copied: float = 0.0
    late: float = 0.0  # in seconds, so that it arrives among others, or after it was given up
    crash: float = 0.0  # of a site: before it handles a message, or before the reply leaves
    torn: float = 0.0  # of a site: just before or after a write, or in the middle of a line
    full: float = 0.0  # a site's disk, for a while
    slow: float = 0.0  # a site, for a while
    killed: float = 0.0  # the coordinator: at a message, a reply, or before or after an entry of its journal

    @classmethod
    def drawn(cls, rng: random.Random) -> "Weather":
        """Samples the frequency of each fault."""
        return cls(**{f.name: rng.choice((0.0, 0.0, 0.02, 0.1, 0.25)) * _OFTEN.get(f.name, 1.0) for f in fields(cls)})


_OFTEN = {"torn": 0.2, "full": 0.4, "slow": 0.4, "killed": 0.3}


class DiskStore(MemoryStore):
    """A store that survives crashes of its site; unfinished writes are lost."""

    def __init__(self, node: "Node") -> None:
        super().__init__()
        self._node = node

    def put_all(self, values: dict[str, bytes]) -> None:
        with self._node.writing():
            super().put_all(values)

    def forget_blobs(self, rng: random.Random) -> None:
        """Frees space, as a store may."""
        for key in [key for key in self._blobs if rng.random() < 0.5]:
            del self._blobs[key], self._values[key]


class DiskBudget(Budget):
    """A budget on its site's disk."""

    node: "Node"

    def _open(self) -> sqlite3.Connection:
        return _Connection(Budget(self.limit)._open(), self.node)  # type: ignore[return-value]


class _Connection:
    def __init__(self, db: sqlite3.Connection, node: "Node") -> None:
        self._db, self._node = db, node

    def execute(self, sql: str, *given: object) -> sqlite3.Cursor:
        if sql.startswith("SELECT"):
            return self._db.execute(sql, *given)
        try:
            with self._node.writing():
                return self._db.execute(sql, *given)
        except OSError:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error from None

    def __enter__(self) -> "_Connection":
        self._db.__enter__()
        return self

    def __exit__(self, *what: object) -> None:
        self._db.__exit__(*what)

    def close(self) -> None:
        self._db.close()


class KilledJournal(Journal):
    """The real journal, with a chance to kill the coordinator at each entry."""

    def __init__(self, world: "World") -> None:
        super().__init__(":memory:")
        self._world = world

    def keep(self, question, entries) -> None:
        self._world.may_kill("before an entry")
        super().keep(question, entries)
        self._world.may_kill("after an entry")


@dataclass
class Node:
    """A simulated machine with a site."""

    world: "World"
    name: str
    site: Site
    folder: Path | None = None  # the folder of its ledger
    clock: float = 0.0  # clock error in seconds
    back: float = 0.0  # when it is back
    full: float = 0.0  # until when its disk is full
    slow: float = 0.0  # until when it is slow
    gone: bool = False

    def __post_init__(self) -> None:
        self.site.store = self.store = DiskStore(self)
        if isinstance(self.site.outbox.budget, DiskBudget):
            self.site.outbox.budget.node, self.site.outbox.budget.path = self, "a disk"
            self.site.outbox = self._gate(self.site.outbox.ledger)
        self._read_table()

    def _gate(self, ledger: Ledger) -> Gate:
        """Recreates the site's gate from what survives a restart; it finds that no file is behind another."""
        gate = self.site.outbox
        return Gate(gate.policy, gate.budget, ledger, gate.approvals, store=self.store)

    def _read_table(self) -> None:
        """Keeps the table in memory as if it had been read, because it does not change and reading is slow."""
        known, cached = self.world.tables.setdefault(self.name, ({}, {}))
        vars(self.site).update(known)
        for key, value in cached.items():
            self.site.cache[key] = value

    def _keep_table(self) -> None:
        known, cached = self.world.tables[self.name]
        known |= {name: value for name, value in vars(self.site).items() if name in ("table", "frame", "held_out")}
        cached |= {key: value for key, value in self.site.cache.items() if key[0] in _OF_TABLES}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Writes something to the disk, or fails."""
        world = self.world
        if world.now < self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if world.chance("torn", f"{self.name} stops before a write"):
            raise Crashed
        yield
        if world.chance("torn", f"{self.name} stops after a write"):
            raise Crashed

    def take(self, data: bytes, verb: str) -> bytes | None:
        """Replies, or does not."""
        world, name = self.world, self.name
        if self.gone or world.now < self.back:
            return None
        if world.chance("full", f"the disk of {name} is full"):
            self.full = world.now + world.rng.uniform(0.5, 30)
        if world.chance("slow", f"{name} is slow"):
            self.slow = world.now + world.rng.uniform(0.5, 60)
        if world.chance("crash", f"{name} stops before it answers"):
            return self.stop()
        world.current = self
        try:
            answer = self.site.receive(data, verb)
        except Crashed:
            return self.stop()
        finally:
            world.current = None
        self._keep_table()
        world.answered(self, data, answer)
        if world.chance("crash", f"{name} stops before its answer leaves"):
            return self.stop()
        return answer

    def stop(self) -> None:
        """Loses all memory, and restarts a little later, when there is disk space."""
        site, gate, rng = self.site, self.site.outbox, self.world.rng
        self.back = self.world.now + rng.choice((0.0, rng.uniform(0, 3), rng.uniform(0, 40)))
        if rng.random() < 0.3:
            self.store.forget_blobs(rng)
        self.back, self.full = max(self.back, self.full), 0.0
        self.site = site.rebuilt()
        before, self.world.current = self.world.current, self
        while True:
            try:
                ledger = gate.ledger if self.folder is None else Ledger(self.folder, gate.ledger._key)
                self.site.outbox = self._gate(ledger)
                break
            except Crashed:  # crashed while starting: it starts once more
                continue
        self.world.current = before
        self._read_table()
        if site.signer is not None:
            self.site.signer = self.world.signer(self.name)


@dataclass
class World:
    """All events outside the coordinator, one after the other."""

    rng: random.Random
    weather: Weather
    signers: dict = field(default_factory=dict)  # functions that make a signer, by name; empty: nothing is signed
    tables: dict = field(default_factory=dict)  # what sites of any world have read
    troubles: int = 40  # the world becomes reliable after this many faults
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.current: Node | None = None
        self.watcher = None
        self.leaves: tuple[str, int] | None = None  # a site that is gone for good after this many messages
        self.coordinator_clock = 0.0
        self.log: list[str] = []
        self.counts: Counter[str] = Counter()
        self._events: list[tuple[float, int, str, str, int, bytes, str]] = []
        self._number = self._order = 0
        self._synced: dict[int, int] = {}

    # -- chance

    def chance(self, what: str, text: str) -> bool:
        """Whether a fault happens now."""
        rate = getattr(self.weather, what)
        if not rate or not self.troubles or self.rng.random() >= rate:
            return False
        self.troubles -= 1
        self.counts[what] += 1
        self.log.append(f"{self.now:9.3f}  {text}")
        return True

    def may_kill(self, where: str) -> None:
        """Ends the coordinator's process, or not."""
        if self.chance("killed", f"the coordinator is killed {where}"):
            raise Killed

    def clears_up(self, all_back: bool = False) -> None:
        """Ends all faults; sites that are gone may stay so."""
        self.troubles = 0
        for node in self.nodes.values():
            node.back = node.full = node.slow = 0.0
            node.gone &= not all_back
        if all_back:
            self.leaves = None

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """Uses this world's disks and random bytes."""
        draw = random.Random(self.rng.random()).randbytes  # noqa: S311  apart: how many are drawn decides nothing
        with (
            mock.patch.object(logging.getLogger("silvan.site"), "disabled", True),
            mock.patch("os.fsync", self._fsync),
            mock.patch("os.urandom", draw),
            mock.patch("secrets.token_bytes", draw),
        ):
            yield

    def _fsync(self, handle: int) -> None:
        """Keeps a file on the disk of the active site: all of it, or part of the new content."""
        if self.current is None:
            return
        file = os.fstat(handle)
        try:
            with self.current.writing():
                self._synced[file.st_ino] = file.st_size
        except OSError:
            self._tear(handle, file)
            raise
        except Crashed:
            if self._synced.get(file.st_ino) != file.st_size:
                self._tear(handle, file)
            raise

    def _tear(self, handle: int, file: os.stat_result) -> None:
        before = min(self._synced.get(file.st_ino, 0), file.st_size)
        os.ftruncate(handle, self.rng.randint(before, file.st_size))

    # -- messages

    def signer(self, name: str) -> Signer:
        """Makes the signer of a party whose process starts."""
        node = self.nodes.get(name)
        return self.signers[name](
            clock=lambda: int((self.now + (self.coordinator_clock if node is None else node.clock)) * 1e9)
        )

    def send(self, what: str, site: str, number: int, data: bytes, verb: str = "") -> None:
        """Puts a message ("message") or a reply ("answer") on its way."""
        copies = 1 + self.chance("copied", f"{what} {number} of {site} is copied")
        copies -= self.chance("lost", f"{what} {number} of {site} is lost")
        for _ in range(copies):
            delay = self.rng.uniform(0.001, 0.05)
            if self.chance("late", f"{what} {number} of {site} is late"):
                delay = self.rng.choice((0.2, WAIT, 20.0, 400.0)) * self.rng.uniform(0.5, 2)
            if what == "answer" and self.now < self.nodes[site].slow:
                delay += self.rng.uniform(0.5, 2) * WAIT
            self._order += 1
            heapq.heappush(self._events, (self.now + delay, self._order, what, site, number, data, verb))

    def number(self) -> int:
        """Numbers a message."""
        self._number += 1
        if self.leaves is not None and self._number > self.leaves[1]:
            self.nodes[self.leaves[0]].gone = True
        return self._number

    def next_answer(self, until: float) -> tuple[str, int, bytes] | None:
        """Runs until a reply arrives at the coordinator, or the time is up."""
        while self._events and self._events[0][0] <= until:
            at, _, what, site, number, data, verb = heapq.heappop(self._events)
            self.now = max(self.now, at)
            if what == "answer":
                return site, number, data
            answer = self.nodes[site].take(data, verb)
            if answer is not None:
                self.send("answer", site, number, answer)
        self.now = max(self.now, until)
        return None

    def wait(self, seconds: float) -> None:
        """Lets time pass; replies that arrive meanwhile are dropped."""
        until = self.now + seconds
        while self.next_answer(until) is not None:
            pass

    def answered(self, node: Node, asked: bytes, answer: bytes) -> None:
        """Passes a reply to its checker."""
        if self.watcher is not None:
            self.watcher(node, asked, answer)


def simulated_federation(world: World, sums, **settings) -> Federation:
    """Makes a federation whose sites are in a simulated world."""
    signer = world.signer("") if world.signers else None
    return Federation(SimulatedTransport(world), world.nodes, sums, signer=signer, **settings)


class SimulatedTransport(Transport):
    """Carries messages through a simulated world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def deliver(
        self, messages: dict[str, bytes], verb: str, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        world, waiting = self.world, {}
        for site, data in messages.items():
            world.may_kill("before it sends")
            waiting[site] = world.number()
            world.send("message", site, waiting[site], data, verb)
        until = world.now + WAIT
        while waiting:
            arrived = world.next_answer(until)
            if arrived is None:
                break
            site, number, data = arrived
            world.may_kill("at an answer")
            yield site, data
            if waiting.get(site) == number:
                del waiting[site]
        for site in waiting:
            yield site, UnreachedError("no answer yet")

    def now(self) -> float:
        return self.world.now

    def pause(self, seconds: float) -> None:
        self.world.wait(seconds)
