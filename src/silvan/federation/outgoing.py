"""A request to sites: its content and recipients, delivery, reading of replies, and when to retry.

The first valid reply to the open request is accepted. A reply to another request, or a second one, is ignored. A site
has failed if its reply cannot be read, does not fit the request, or never comes.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from silvan.errors import FormatError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.keys import Roster
from silvan.federation.message import (
    FULL,
    LATER,
    OWNER_HINT,
    STALE,
    Blob,
    Envelope,
    Missing,
    Owner,
    Reply,
    Request,
    SignedReply,
    SumStep,
    Trouble,
    blobs_in,
    request_digest,
)
from silvan.federation.signed import Signer, is_owned
from silvan.federation.store import digest
from silvan.federation.transport import Transport


@dataclass(frozen=True)
class Event:
    """An event to show: a request sent, a reply received, a site lost, or the progress of a site in this process."""

    what: str  # "question", "answer", "waiting", "lost", "progress"
    kind: str  # of message; of progress: what is being done; of waiting: for what
    round: int
    site: str = ""
    seconds: float = 0.0
    done: int = 0  # of ``total``, for progress
    total: int = 0


Question = Request | dict[str, Any]
"""One request for all sites, or requests by site."""

Check = Callable[[str, Any], object]
"""Validates a site's reply; raises ``FormatError`` if it does not fit the request.

For a secure sum it receives the sum, with ``OVERALL`` in place of a site.
"""


class Bounds(NamedTuple):
    """Upper bounds on the numbers in a sum, by block of rows and by column of the replies' only array.

    Numbers are not negative, except where the bound is the largest 64-bit integer, which bounds nothing.
    """

    lengths: np.ndarray  # int64, rows of each block
    most: np.ndarray  # int64 (blocks, columns)


_MOST_MISSING, _MOST_STALE, _AT_ONCE, _MOST_LATER = 3, 20, 3, 3


class UnreachedError(Exception):
    """The message may be lost, or its reply has not arrived, so it is sent again. The text says why."""


class WaitingError(UnreachedError):
    """The site waits for its owner to act, which may take days; no timeout applies."""


class DeclinedError(Exception):
    """A site's owner has decided not to take part; the text is the owner's."""


class StaleError(UnreachedError):
    """The site has already received this message or a newer one: a copy took another route."""


class LaterError(UnreachedError):
    """The site responds, but its data source does not at the moment."""


class Tries:
    """How often the messages of one request are sent again before their sites are given up.

    Lost messages are sent again until the ``timeout``. A site may report missing data or a stale message only a few
    times. A site that waits for its owner has ``patience`` seconds, or unlimited time.
    """

    def __init__(self, timeout: float | None, patience: float | None = None) -> None:
        self._timeout, self._patience, self._pauses = timeout, patience, 0
        self._waited: dict[str, float] = {}  # until when each site waited for its owner
        self._seen = Counter[tuple[str, type]]()  # how often each site gave each kind of trouble

    def give_up(self, site: str, kind: str, trouble: Exception | Missing, seconds: float) -> Exception | None:
        """Return why a site is given up; None to ask it again."""
        self._seen[site, type(trouble)] += 1
        times = self._seen[site, type(trouble)]
        if isinstance(trouble, Missing):
            return SiteError(site, f"{kind}: keeps asking for data it was sent") if times >= _MOST_MISSING else None
        if not isinstance(trouble, UnreachedError):
            return trouble
        if isinstance(trouble, StaleError) and times >= _MOST_STALE:
            return SiteError(site, f"refused {kind} {times} times: {trouble}")
        if isinstance(trouble, LaterError) and self._timeout is None and times >= _MOST_LATER:
            return SiteError(site, f"{kind}: {trouble}", code=LATER, owner_hint="why")
        if isinstance(trouble, WaitingError):
            self._waited[site] = seconds
            if self._patience is None or seconds < self._patience:
                return None
            days = "day" if self._patience == 86400 else "days"
            return SiteError(site, f"{trouble}, after {self._patience / 86400:.3g} {days}")
        if self._timeout is None or seconds - self._waited.get(site, 0.0) < self._timeout:
            return None
        return SiteError(site, f"did not answer {kind} within {self._timeout:g} s: {trouble}")

    def waits(self, unreached: Mapping[str, Missing | Exception]) -> float:
        """Return the seconds to wait before a retry: longer each time, up to two; at first none if all are stale.

        Messages stay stale for a while if the coordinator's clock was set back during a restart.
        """
        if all(
            isinstance(error, StaleError) and self._seen[site, StaleError] <= _AT_ONCE
            for site, error in unreached.items()
        ):
            return 0.0
        self._pauses += 1
        return float(min(0.05 * 2**self._pauses, 2.0))


class WrittenRequest(NamedTuple):
    """A request as bytes, and the hashes of the blobs that it refers to."""

    request: Request
    body: bytes
    blobs: list[str]


@dataclass(frozen=True)
class Asked:
    """A request as sent: its name and kind, its content for each site, and the check of replies.

    A secure sum is one request in several waves. Each wave has a ``step`` and its own type of ``answer``, may go to
    some of the sites only, and adds to the same counters. If known in advance, ``most`` is an upper bound on the
    numbers in a sum, none of which is negative.
    """

    name: str
    kind: type[Request]
    requests: dict[str, Request]
    check: Check | None = None
    over: Sequence[str] | None = None  # sites in the sum; None: those asked
    step: SumStep | Mapping[str, SumStep] | None = None  # for all sites, or by site
    answer: type[Reply] | None = None  # None: the kind's own
    most: int | Bounds | None = None
    narrow: bool = False  # whether counters are read as they were sent: see ``wire``
    sent: Counter[str] = field(default_factory=Counter)  # bytes so far by site, from its view
    received: Counter[str] = field(default_factory=Counter)
    # by identity: most requests are one for all sites
    _written: dict[int, WrittenRequest] = field(default_factory=dict)

    @cached_property
    def wave(self) -> str:
        """The name of the current wave; replies must belong to it."""
        if self.step is None:
            return self.name
        steps = [self.step] if isinstance(self.step, SumStep) else self.step.values()
        return digest(f"{self.name} ".encode() + b"".join(step.body for step in steps))

    def written(self, site: str) -> WrittenRequest:
        """Return a site's encoded request, which is encoded once for all waves and all sites that share it."""
        request = self.requests[site]
        if id(request) not in self._written:
            self._written[id(request)] = WrittenRequest(request, wire.encode(request), blobs_in(request))
        return self._written[id(request)]

    def asked(self, site: str) -> str:
        """Return the digest of a site's request, which identifies it there (``Envelope.asked``)."""
        return request_digest(self.kind.__name__, self.written(site).body)

    def step_of(self, site: str) -> SumStep | None:
        """Return a site's step."""
        return self.step[site] if isinstance(self.step, Mapping) else self.step

    def read(self, site: str, data: bytes | Exception) -> "Outcome | None":
        """Read a reply: return it with its bytes, or the error; None if it belongs to another request."""
        kind, expected = self.kind.__name__, self.answer or self.kind.reply
        if isinstance(data, Exception):
            return SiteError(site, f"did not answer {kind} {data}") if isinstance(data, TimeoutError) else data
        try:
            envelope = wire.decode(data, Envelope)
            if envelope.question != self.wave or envelope.sender != site:
                return None
            if envelope.kind == Missing.__name__:
                return wire.decode(envelope.body, Missing)
            if envelope.kind == Trouble.__name__:
                return self._trouble(site, wire.decode(envelope.body, Trouble))
            if envelope.kind != expected.__name__:
                return SiteError(site, f"answered {kind} with another kind of message")
            reply = wire.decode(envelope.body, expected, narrow=self.narrow)
            if self.check is not None:
                self.check(site, reply)
        except FormatError as error:
            return SiteError(site, f"answered {kind} with something unusable: {error}")
        except (ArithmeticError, LookupError, TypeError, ValueError):  # a check that did not expect such a reply
            return SiteError(site, f"answered {kind} with something unusable")
        return reply, envelope.body

    def _trouble(self, site: str, trouble: Trouble) -> Exception:
        kind = self.kind.__name__
        text = "".join(c for c in trouble.text if c.isprintable())[:200]  # it may be made to harm a terminal
        if trouble.code == STALE:
            return StaleError(text)
        if trouble.code == FULL:
            return UnreachedError(text)
        if trouble.code == LATER:
            return LaterError(text)
        if trouble.code == "refused":
            return RefusedError(f"site {site!r} refused {kind}: {text}", site=site, reason=text)
        return SiteError(site, f"{kind}: {text}", code=trouble.code, owner_hint=OWNER_HINT.get(trouble.code, ""))


@dataclass
class LoggedQuestion:
    """A request in the log for verification: digests of each site's request and, for a ``total``, of the sum."""

    name: str
    kind: type[Request]
    task: str
    round: int
    asked: dict[str, str]  # by site
    sum: str = ""


class Blobs:
    """Objects that requests refer to. Each is sent to a site once, unless the site reports that it lacks it."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._makers: defaultdict[str, list[Owner]] = defaultdict(list)
        self._sent: defaultdict[str, set[str]] = defaultdict(set)  # hashes by site

    def add(self, data: bytes, maker: Owner | None = None) -> Blob:
        """Return a reference to a large object, or to an object that a site made and signed."""
        blob = Blob(digest(data))
        self._contents[blob.hash] = data
        if maker is not None and maker not in self.makers(blob.hash):
            self._makers[blob.hash].append(maker)
        return blob

    def content(self, hash_: str) -> bytes:
        """Return the content of a blob."""
        return self._contents[hash_]

    def makers(self, hash_: str) -> list[Owner]:
        """Return the sites that made and signed a blob's content."""
        return self._makers[hash_]

    def not_sent(self, site: str, hashes: Iterable[str]) -> list[str]:
        """Return the blobs that a site has not been sent yet."""
        return [name for name in hashes if name not in self._sent[site]]

    def send(self, site: str, hashes: Iterable[str]) -> dict[str, bytes]:
        """Return blobs for a message to a site, and record that the site has them."""
        contents = {name: self._contents[name] for name in hashes}
        self._sent[site].update(contents)
        return contents


Outcome = tuple[Reply, bytes] | Missing | Exception
"""The outcome of a message: a reply and its bytes, the blobs that the site lacks, or an error."""


@dataclass(frozen=True)
class Sender:
    """The coordinator's part of every message of a request: study, task, round, and the keys it uses."""

    study: str
    task: str
    round: int
    signer: Signer | None
    roster: Roster | None


class Delivery:
    """The delivery of one request to sites, which may take several attempts."""

    def __init__(self, question: Asked, sender: Sender, blobs: Blobs) -> None:
        self._question, self._sender, self._blobs = question, sender, blobs
        self._needed = {site: question.written(site).blobs for site in question.requests}
        self._lacking = {site: blobs.not_sent(site, needed) for site, needed in self._needed.items()}

    def send(self, sites: Iterable[str], transport: Transport, timeout: float | None) -> Iterator[tuple[str, Outcome]]:
        """Send the request to sites and yield one outcome per site; sites that did not reply come last."""
        kind = self._question.kind
        messages = {site: self._write(site) for site in sites}
        waiting = dict.fromkeys(messages)
        for site, data in transport.deliver(messages, kind.verb, timeout):
            if site not in waiting:
                continue  # a second reply to the same request is ignored
            outcome = self._read(site, data)
            if outcome is None:
                continue  # a reply to another request, or from another site
            del waiting[site]
            yield site, outcome
        for site in waiting:
            yield site, SiteError(site, f"did not answer {kind.__name__}")

    def _write(self, site: str) -> bytes:
        question, sender, written = self._question, self._sender, self._question.written(site)
        verb = question.kind.verb
        over = list(question.requests if question.over is None else question.over)
        envelope = Envelope(
            study=sender.study,
            question=question.wave,
            sender="",
            kind=question.kind.__name__,
            body=written.body,
            blobs=self._blobs.send(site, self._lacking[site]),
            over=over if verb == "total" else [],
            step=question.step_of(site),
            task=sender.task,
            round=sender.round,
            whole="" if question.step is None else question.name,
            owners={name: makers for name in written.blobs if (makers := self._blobs.makers(name))},
        )
        data = wire.encode(envelope)
        if sender.signer is not None:
            data = sender.signer.send(site, sender.study, verb, data)
        question.received[site] += len(data)
        return data

    def _read(self, site: str, data: bytes | Exception) -> Outcome | None:
        """Open and read a reply; return None if it belongs to another request or site."""
        sender, opened = self._sender, data
        if isinstance(data, bytes):
            self._question.sent[site] += len(data)
            if sender.signer is not None:
                signed = sender.signer.read(site, sender.study, data)
                if signed is None:
                    return None
                opened = signed
        outcome = self._question.read(site, opened)
        if isinstance(outcome, Missing):
            # only what the request refers to, whatever the site asks for
            self._lacking[site] = [] if set(self._needed[site]).isdisjoint(outcome.hashes) else self._needed[site]
        elif isinstance(outcome, tuple) and sender.roster is not None and isinstance(outcome[0], SignedReply):
            made = outcome[0]
            if not is_owned(sender.roster, Owner(site, sender.task, made.signature), sender.study, digest(made.work())):
                return SiteError(site, f"answered {self._question.kind.__name__} with what it did not sign")
        return outcome
