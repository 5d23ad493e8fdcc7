"""A request to sites: its content and recipients, delivery, reading of replies, and when to retry.

A reply is taken if it answers the question that is open, for the first time, and is what was asked for. One
that belongs to another question, or comes a second time, changes nothing. A site whose reply cannot be read or
does not fit the question, or that does not answer at all, has failed.
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
"""Told a site and its reply, raises ``FormatError`` if that cannot be the answer to what was asked.

Of a sum whose parts nobody sees it is told the sum, and ``OVERALL`` in place of a site.
"""


class Bounds(NamedTuple):
    """What no number in a sum is above, by block of rows and by column of the only array of its replies.

    None is below zero, but where the bound is the largest number of 64 bits: that says nothing.
    """

    lengths: np.ndarray  # int64, rows of each block
    most: np.ndarray  # int64 (blocks, columns)


_MOST_MISSING, _MOST_STALE, _AT_ONCE, _MOST_LATER = 3, 20, 3, 3


class UnreachedError(Exception):
    """The message may be lost or its reply is not there yet, so it is sent again. The text says why."""


class WaitingError(UnreachedError):
    """A site is there and answers once its owner has done something, which may take days: no timeout counts that."""


class DeclinedError(Exception):
    """A site's owner has decided not to take part; the text is the owner's."""


class StaleError(UnreachedError):
    """A site reports that it has already received this message, or a newer one: copies took other routes."""


class LaterError(UnreachedError):
    """A site is there, but the source of its table does not respond now."""


class Tries:
    """How often messages of one question are sent again before their sites are given up.

    What did not arrive is sent again until the ``timeout``. A site that says that it lacks what it was sent, or that a
    message is stale, is believed a few times only. One that waits for its owner may take as long as it likes, or
    ``patience`` seconds.
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
            return SiteError(site, f"{kind}: keeps calling messages stale: {trouble}")
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
        """Return the seconds to wait before the next time: more each time, up to two; none at first where all is stale.

        What stays stale was sent by a coordinator whose clock went back when it was restarted: that takes time.
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

    A sum that hides its parts is one question in several waves: each has a ``step`` and its own kind of
    ``answer``, may be to some of the sites only, and adds to the same books. No number in a sum is above ``most`` or
    below zero, if that is known beforehand.
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
    # by identity: most questions are one for all sites
    _written: dict[int, WrittenRequest] = field(default_factory=dict)

    @cached_property
    def wave(self) -> str:
        """Name the current wave; replies must belong to it."""
        if self.step is None:
            return self.name
        steps = [self.step] if isinstance(self.step, SumStep) else self.step.values()
        return digest(f"{self.name} ".encode() + b"".join(step.body for step in steps))

    def written(self, site: str) -> WrittenRequest:
        """Return the encoded request of a site, written once for all waves and all sites with the same request."""
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
        """Read an answer: the reply and its bytes, or what went wrong; None if it is to another question."""
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
        except (ArithmeticError, LookupError, TypeError, ValueError):  # a check that did not expect such an answer
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
    """A question as a study is verified by it: the digests of its requests and, of a ``total``, of the sum."""

    name: str
    kind: type[Request]
    task: str
    round: int
    asked: dict[str, str]  # by site
    sum: str = ""


class Blobs:
    """Objects that requests refer to. A blob is sent once to each site, unless the site reports that it lacks it."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._makers: defaultdict[str, list[Owner]] = defaultdict(list)
        self._sent: defaultdict[str, set[str]] = defaultdict(set)  # hashes by site

    def add(self, data: bytes, maker: Owner | None = None) -> Blob:
        """Return a reference to a large object, or to one that a site made and signed."""
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
        """Return the blobs that a site was not sent yet."""
        return [name for name in hashes if name not in self._sent[site]]

    def send(self, site: str, hashes: Iterable[str]) -> dict[str, bytes]:
        """Return blobs for a message to a site, which counts as having them from now on."""
        contents = {name: self._contents[name] for name in hashes}
        self._sent[site].update(contents)
        return contents


Outcome = tuple[Reply, bytes] | Missing | Exception
"""What came of a message: a reply and its bytes, the blobs that the site lacks, or what went wrong."""


@dataclass(frozen=True)
class Sender:
    """The coordinator as all messages of a question name it: its study, task and round, and the keys that it uses."""

    study: str
    task: str
    round: int
    signer: Signer | None
    roster: Roster | None


class Delivery:
    """One question on its way to sites, which may be sent it several times."""

    def __init__(self, question: Asked, sender: Sender, blobs: Blobs) -> None:
        self._question, self._sender, self._blobs = question, sender, blobs
        self._needed = {site: question.written(site).blobs for site in question.requests}
        self._lacking = {site: blobs.not_sent(site, needed) for site, needed in self._needed.items()}

    def send(self, sites: Iterable[str], transport: Transport, timeout: float | None) -> Iterator[tuple[str, Outcome]]:
        """Send sites the question and yield what came of it, once for each: those that did not answer come last."""
        kind = self._question.kind
        messages = {site: self._write(site) for site in sites}
        waiting = dict.fromkeys(messages)
        for site, data in transport.deliver(messages, kind.verb, timeout):
            if site not in waiting:
                continue  # a second answer to the same question changes nothing
            outcome = self._read(site, data)
            if outcome is None:
                continue  # an answer to another question, or not the site's
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
        """Open and read an answer; return None if it is to another question, or not the site's."""
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
            # whatever the question refers to, and nothing else, however much is asked for
            self._lacking[site] = [] if set(self._needed[site]).isdisjoint(outcome.hashes) else self._needed[site]
        elif isinstance(outcome, tuple) and sender.roster is not None and isinstance(outcome[0], SignedReply):
            made = outcome[0]
            if not is_owned(sender.roster, Owner(site, sender.task, made.signature), sender.study, digest(made.work())):
                return SiteError(site, f"answered {self._question.kind.__name__} with what it did not sign")
        return outcome
