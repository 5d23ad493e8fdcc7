"""A question to sites: what was asked of whom, how answers are read and checked, and when to try again.

A reply is taken if it answers the question that is open, for the first time, and is what was asked for. One
that belongs to another question, or comes a second time, changes nothing. A site whose reply cannot be read or
does not fit the question, or that does not answer at all, has failed.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from silvan.errors import FederationError, FormatError, InputError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.message import (
    FULL,
    OWNER_TOLD,
    STALE,
    Envelope,
    Missing,
    Reply,
    Request,
    Step,
    Trouble,
    Verb,
    blobs_in,
)
from silvan.federation.store import digest


@dataclass(frozen=True)
class Event:
    """Something worth showing: a question sent, an answer in, a site lost, or how far a site in this process is."""

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


_MOST_MISSING, _MOST_STALE, _AT_ONCE = 3, 20, 3


class UnreachedError(Exception):
    """A message may not have arrived, or its answer is not there yet: it is sent again. The text says why."""


class WaitingError(UnreachedError):
    """A site is there and answers once its owner has done something, which may take days: no timeout counts that."""


class DeclinedError(Exception):
    """A site's owner has decided not to take part; the text is the owner's."""


class StaleError(UnreachedError):
    """A site says that it has had a message before, or a newer one: copies came by other ways."""


class Tries:
    """How often messages of one question are sent again before their sites are given up.

    What did not arrive is sent again until the ``timeout``. A site that says that it lacks what it was sent, or that a
    message is stale, is believed a few times only. One that waits for its owner may take as long as it likes, or
    ``patience`` seconds.
    """

    def __init__(self, timeout: float | None, patience: float | None = None) -> None:
        self._timeout, self._patience, self._pauses = timeout, patience, 0
        self._waited: dict[str, float] = {}  # until when each site waited for its owner
        self._missing, self._stale = Counter[str](), Counter[str]()

    def over(
        self, kind: str, again: list[str], unreached: Mapping[str, UnreachedError], seconds: float
    ) -> dict[str, Exception]:
        """Return the sites that are given up, and why."""
        self._missing.update(again)
        self._stale.update(site for site, error in unreached.items() if isinstance(error, StaleError))
        self._waited |= {site: seconds for site, error in unreached.items() if isinstance(error, WaitingError)}
        failed: dict[str, Exception] = {}
        for site in again:
            if self._missing[site] >= _MOST_MISSING:
                failed[site] = SiteError(site, f"{kind}: keeps asking for data it was sent")
        for site, error in unreached.items():
            if isinstance(error, StaleError) and self._stale[site] >= _MOST_STALE:
                failed[site] = SiteError(site, f"{kind}: keeps calling messages stale: {error}")
            elif isinstance(error, WaitingError):
                if self._patience is not None and seconds >= self._patience:
                    failed[site] = SiteError(
                        site,
                        f"{error}, after {self._patience / 86400:.3g} {'day' if self._patience == 86400 else 'days'}",
                    )
            elif self._timeout is not None and seconds - self._waited.get(site, 0.0) >= self._timeout:
                failed[site] = SiteError(site, f"did not answer {kind} within {self._timeout:g} s: {error}")
        return failed

    def waits(self, unreached: Mapping[str, UnreachedError]) -> float:
        """Return the seconds to wait before the next time: more each time, up to two; none at first where all is stale.

        What stays stale was sent by a coordinator whose clock went back when it was restarted: that takes time.
        """
        if all(isinstance(error, StaleError) and self._stale[site] <= _AT_ONCE for site, error in unreached.items()):
            return 0.0
        self._pauses += 1
        return float(min(0.05 * 2**self._pauses, 2.0))


def requests_by_site(
    request: Question, verb: Verb, to: Iterable[str] | None, sites: Sequence[str], lost: Container[str]
) -> dict[str, Request]:
    """Return what each site is asked, in the order of ``sites``, without those that were lost.

    Raise ``InputError`` for a site that there is not, ``FederationError`` for requests that cannot be one question.
    """
    wanted = list(request) if isinstance(request, dict) else (sites if to is None else list(to))
    unknown = [s for s in wanted if s not in sites]
    if unknown:
        raise InputError(f"there is no site {unknown[0]!r}; the sites are {', '.join(sites)}")
    asked = [s for s in sites if s in wanted and s not in lost]
    requests = {s: request[s] if isinstance(request, dict) else request for s in asked}
    if not requests:
        raise FederationError("there is no site left to ask")
    kinds = {type(r) for r in requests.values()}
    if len(kinds) > 1:
        raise FederationError("a question to several sites must be of one kind")
    kind = kinds.pop()
    if kind.verb != verb:
        raise FederationError(f"{kind.__name__} is for {kind.verb!r}, not for {verb!r}")
    return requests


class Written(NamedTuple):
    """A request as bytes, and the hashes of the blobs that it refers to."""

    request: Request
    body: bytes
    blobs: list[str]


@dataclass(frozen=True)
class Asked:
    """A question as it was put: its name and kind, what each site is asked, what answers must be like.

    A sum that hides its parts is one question in several waves: each has a ``step`` and its own kind of
    ``answer``, may be to some of the sites only, and adds to the same books. No number in a sum is above ``most`` or
    below zero, if that is known beforehand.
    """

    name: str
    kind: type[Request]
    requests: dict[str, Request]
    check: Check | None = None
    over: Sequence[str] | None = None  # sites in the sum; None: those asked
    step: Step | Mapping[str, Step] | None = None  # for all sites, or by site
    answer: type[Reply] | None = None  # None: the kind's own
    most: int | Bounds | None = None
    narrow: bool = False  # whether counters are read as they were sent: see ``wire``
    sent: Counter[str] = field(default_factory=Counter)  # bytes so far by site, from its view
    received: Counter[str] = field(default_factory=Counter)
    _written: dict[int, "Written"] = field(default_factory=dict)  # by identity: most questions are one for all sites

    @cached_property
    def wave(self) -> str:
        """Name what is sent now: an answer to an earlier wave is none to this one."""
        if self.step is None:
            return self.name
        steps = [self.step] if isinstance(self.step, Step) else self.step.values()
        return digest(f"{self.name} ".encode() + b"".join(step.body for step in steps))

    def written(self, site: str) -> "Written":
        """Return what a site is asked as it is sent: written once for all waves and all sites that are asked alike."""
        request = self.requests[site]
        if id(request) not in self._written:
            self._written[id(request)] = Written(request, wire.encode(request), blobs_in(request))
        return self._written[id(request)]

    def step_of(self, site: str) -> Step | None:
        """Return a site's step."""
        return self.step[site] if isinstance(self.step, Mapping) else self.step

    def read(self, site: str, data: bytes | Exception) -> tuple[Reply, bytes] | Missing | Exception | None:
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
        if trouble.code == "refused":
            return RefusedError(f"site {site!r} refused {kind}: {text}", site=site, reason=text)
        return SiteError(site, f"{kind}: {text}", code=trouble.code, owner_told=OWNER_TOLD.get(trouble.code, ""))
