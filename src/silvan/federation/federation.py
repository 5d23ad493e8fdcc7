"""The coordinator's two verbs, and the books it keeps.

``ask`` shows every site's reply; ``total`` only the sum. An engine is a subclass that can deliver messages; how a sum
is kept secret is an object it is given. Algorithms see neither.
"""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec
import numpy as np

from silvan.data.schema import Schema
from silvan.errors import FederationError, InputError, RefusedError, SiteError, WireError
from silvan.federation import wire
from silvan.federation.journal import SUM, Entry, Journal
from silvan.federation.message import Blob, Envelope, Missing, Reply, Request, Trouble, Verb, blobs_in
from silvan.federation.store import digest


@dataclass(frozen=True)
class Event:
    """Something worth showing: a question sent, an answer in, a site lost."""

    what: str  # "question", "answer", "lost"
    kind: str  # of message
    round: int
    site: str = ""
    seconds: float = 0.0


Question = Request | dict[str, Any]
"""One request for all sites, or requests by site."""


@dataclass(frozen=True)
class Asked:
    """A question as it was put: its name, its kind, and the request each site gets."""

    name: str
    kind: type[Request]
    requests: dict[str, Request]


class Sums(Protocol):
    """How replies to a ``total`` become their sum."""

    name: str

    def total(self, federation: "Federation", question: Asked) -> tuple[Reply, dict[str, Entry]]:
        """Give the sum over the sites, and each site's traffic as entries without a body."""


class Federation(ABC):
    """Several sites and one coordinator.

    ``quorum`` is how many sites must answer for a study to go on (all, if None); a site that fails or stalls beyond
    ``timeout`` seconds is left out of the rest of the study if the quorum allows, and is an error otherwise.
    """

    schema: Schema

    def __init__(
        self,
        sites: Iterable[str],
        sums: Sums,
        *,
        study: str = "study",
        journal: Journal | None = None,
        quorum: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self.sites = list(sites)
        if not self.sites:
            raise InputError("a federation needs at least one site")
        if quorum is not None and not 1 <= quorum <= len(self.sites):
            raise InputError(f"quorum must be between 1 and {len(self.sites)}, got {quorum}")
        self.sums, self.study, self.quorum, self.timeout = sums, study, quorum, timeout
        self.journal = Journal() if journal is None else journal
        self.lost: dict[str, str] = {}
        self.rounds = self.exchanges = self.agreement_rounds = 0
        self.traffic: Counter[tuple[str, str, str]] = Counter()  # (site, "sent" or "received", kind) -> bytes
        self._watchers: list[Callable[[Event], None]] = []
        self._blobs: dict[str, bytes] = {}
        self._has: dict[str, set[str]] = {site: set() for site in self.sites}
        self._asked = 0
        self._apart = False

    # -- the two verbs

    def ask(self, request: Question, to: Iterable[str] | None = None) -> dict[str, Any]:
        """Put a question to sites and see every reply, in the order of the sites.

        A question is one request for all, or a dict of them by site, all of one kind.
        """
        question = self._question(request, "ask", to)
        known = self.journal.find(question.name)
        left = {site: r for site, r in question.requests.items() if site not in known}
        for site, entry in self.exchange(replace(question, requests=left)):
            known[site] = entry
            self.journal.keep(question.name, {site: entry})
        replies = {}
        for site in question.requests:
            if site in known:
                self._count(site, question, known[site])
                replies[site] = wire.decode(known[site].body, question.kind.reply)
        return replies

    def total(self, request: Question, over: Iterable[str] | None = None) -> Any:
        """Put a question to sites and see only the sum of their replies."""
        question = self._question(request, "total", over)
        known = self.journal.find(question.name)
        if SUM not in known:
            reply, traffic = self.sums.total(self, question)
            known = {**traffic, SUM: Entry(type(reply).__name__, wire.encode(reply), 0, 0)}
            self.journal.keep(question.name, known)
        else:
            reply = wire.decode(known[SUM].body, question.kind.reply)
        for site, entry in known.items():
            if site != SUM:
                self._count(site, question, entry)
        return reply

    def blob(self, data: bytes) -> Blob:
        """Let requests refer to something large, so that it travels once to each site."""
        name = digest(data)
        self._blobs[name] = data
        return Blob(name)

    # -- what engines and sums use

    @abstractmethod
    def deliver(self, messages: dict[str, bytes], verb: Verb) -> Iterator[tuple[str, bytes | Exception]]:
        """Send each site its message; yield replies as they come, or what went wrong."""

    def exchange(self, question: Asked) -> Iterator[tuple[str, Entry]]:
        """Send a question and yield checked replies, sending blobs that turn out to be missing."""
        kind = question.kind.__name__
        bodies = {site: wire.encode(request) for site, request in question.requests.items()}
        wanted = {site: blobs_in(request) for site, request in question.requests.items()}
        spent: Counter[str] = Counter()
        pending = list(question.requests)
        for attempt in range(3):
            if not pending:
                return
            self.exchanges += 1
            messages = {}
            for site in pending:
                send = [h for h in wanted[site] if attempt or h not in self._has[site]]
                blobs = {h: self._blobs[h] for h in send}
                messages[site] = wire.encode(Envelope(self.study, question.name, "", kind, bodies[site], blobs))
                self._has[site].update(send)
                spent[site] += len(messages[site])
                self._tell(Event("question", kind, self.rounds, site))
            start, again, failed = time.monotonic(), [], {}
            waiting = set(pending)
            for site, data in self.deliver(messages, question.kind.verb):
                if site not in waiting:
                    continue  # a second answer to the same question changes nothing
                outcome = self._open(site, data, question) if isinstance(data, bytes) else data
                if outcome is None:
                    continue  # an answer to another question
                waiting.discard(site)
                if isinstance(outcome, Missing):
                    wanted[site] = [h for h in outcome.hashes if h in self._blobs]
                    again.append(site)
                elif isinstance(outcome, Exception):
                    failed[site] = outcome
                else:
                    self._tell(Event("answer", kind, self.rounds, site, time.monotonic() - start))
                    yield site, Entry(outcome.kind, outcome.body, len(data), spent[site])
            for site in waiting:
                failed[site] = SiteError(site, f"did not answer {kind}")
            self._lose(failed, kind)
            pending = again
        self._lose({site: SiteError(site, "keeps asking for data it was sent") for site in pending}, kind)

    def _open(self, site: str, data: bytes, question: Asked) -> Envelope | Missing | Exception | None:
        """Read a site's answer; None if it answers another question."""
        kind = question.kind.__name__
        try:
            envelope = wire.decode(data, Envelope)
            if envelope.question != question.name or envelope.sender != site:
                return None
            if envelope.kind == Missing.__name__:
                return wire.decode(envelope.body, Missing)
            if envelope.kind == Trouble.__name__:
                trouble = wire.decode(envelope.body, Trouble)
                if trouble.code == "refused":
                    return RefusedError(f"site {site!r} refused {kind}: {trouble.text}")
                return SiteError(site, f"{kind}: {trouble.text}")
            if envelope.kind != question.kind.reply.__name__:
                return SiteError(site, f"answered {kind} with another kind of message")
        except WireError as error:
            return SiteError(site, f"answered {kind} with something unreadable: {error}")
        return envelope

    def explain(self, error: Exception) -> Exception:
        """Add what an engine knows about a failure."""
        return error

    # -- books

    @property
    def active(self) -> list[str]:
        """The sites that are still in the study."""
        return [site for site in self.sites if site not in self.lost]

    @property
    def bytes(self) -> dict[str, dict[str, int]]:
        """Bytes since the federation was made, from each site's view."""
        view = {site: {"sent": 0, "received": 0} for site in self.sites}
        for (site, direction, _), n in self.traffic.items():
            view[site][direction] += n
        return view

    @contextmanager
    def counted_apart(self) -> Iterator[None]:
        """Count rounds as agreement, not as training."""
        before, self._apart = self._apart, True
        try:
            yield
        finally:
            self._apart = before

    def watch(self, watcher: Callable[[Event], None]) -> None:
        """Have a function told of every event; the library itself prints nothing."""
        self._watchers.append(watcher)

    def _tell(self, event: Event) -> None:
        for watcher in self._watchers:
            watcher(event)

    def _question(self, request: Question, verb: Verb, to: Iterable[str] | None) -> Asked:
        """Number a question and name it by all that determines its answers."""
        wanted = list(request) if isinstance(request, dict) else (self.sites if to is None else list(to))
        unknown = [s for s in wanted if s not in self.sites]
        if unknown:
            raise InputError(f"there is no site {unknown[0]!r}; the sites are {', '.join(self.sites)}")
        sites = [s for s in self.sites if s in wanted and s not in self.lost]
        requests = {s: request[s] if isinstance(request, dict) else request for s in sites}
        if not requests:
            raise FederationError("there is no site left to ask")
        kinds = {type(r) for r in requests.values()}
        if len(kinds) > 1:
            raise FederationError("a question to several sites must be of one kind")
        kind = kinds.pop()
        if kind.verb != verb:
            raise FederationError(f"{kind.__name__} is for {kind.verb!r}, not for {verb!r}")
        self._asked += 1
        if self._apart:
            self.agreement_rounds += 1
        else:
            self.rounds += 1
        text = [f"{self.study} {self._asked} {kind.__name__}".encode()]
        text += [s.encode() + b" " + wire.encode(r) for s, r in requests.items()] if isinstance(request, dict) else [
            " ".join(sites).encode(),
            wire.encode(request),
        ]
        return Asked(digest(b"\n".join(text)), kind, requests)

    def _count(self, site: str, question: Asked, entry: Entry) -> None:
        self.traffic[site, "sent", question.kind.__name__] += entry.sent
        self.traffic[site, "received", question.kind.__name__] += entry.received

    def _lose(self, failed: dict[str, Exception], kind: str) -> None:
        for site, error in failed.items():
            if self.quorum is None or isinstance(error, RefusedError):
                raise self.explain(error)
            self.lost[site] = str(error)
            self._tell(Event("lost", kind, self.rounds, site))
        self._require_quorum(kind)

    def _require_quorum(self, kind: str) -> None:
        if self.quorum is not None and len(self.active) < self.quorum:
            reasons = "; ".join(self.lost.values())
            raise FederationError(
                f"{len(self.active)} of {len(self.sites)} sites are left at {kind}, the quorum is "
                f"{self.quorum}: {reasons}"
            )


class TrustedSums:
    """A trusted third party adds: it sees each part. In one process that party is the coordinator's own process."""

    name = "trusted"

    def total(self, federation: Federation, question: Asked) -> tuple[Reply, dict[str, Entry]]:
        """Add the replies up as they come."""
        total: Reply | None = None
        traffic = {}
        for site, entry in federation.exchange(question):
            part = wire.decode(entry.body, question.kind.reply)
            total = part if total is None else add(total, part, site)
            traffic[site] = entry._replace(body=b"")
        if total is None:
            raise FederationError(f"no site answered {question.kind.__name__}")
        return total, traffic


def add(total: Reply, part: Reply, site: str) -> Reply:
    """Add two replies, field by field; all fields of replies to ``total`` are integer arrays of agreed shape."""
    fields = {}
    for name in total.__struct_fields__:
        a, b = getattr(total, name), getattr(part, name)
        if not isinstance(a, np.ndarray) or a.dtype.kind not in "iu":
            raise FederationError(f"{type(total).__name__}.{name} cannot be summed: it is not an integer array")
        if a.shape != b.shape or a.dtype != b.dtype:
            raise SiteError(site, f"answered with {name} of another shape than the others")
        fields[name] = np.add(a, b, out=a) if a.flags.writeable else a + b
    return msgspec.structs.replace(total, **fields)
