"""The coordinator's two verbs, ask and total, and its counts of rounds and bytes.

``ask`` discloses every site's reply, ``total`` only their sum. A federation receives a transport and a sum protocol as
objects; whether sites hold rows or columns is part of their agreement. Algorithms see none of this.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from silvan.data.holdout import Split
from silvan.errors import FederationError, InputError, RefusedError
from silvan.federation import wire
from silvan.federation.agreement import Agreement
from silvan.federation.journal import LOST, SUM, Entry, Journal
from silvan.federation.keys import Roster
from silvan.federation.members import OVERALL, Members, check_names
from silvan.federation.message import Blob, Missing, Owner, Reply, Request, SignedReply, Verb
from silvan.federation.outgoing import (
    Asked,
    Blobs,
    Bounds,
    Check,
    Delivery,
    Event,
    LoggedQuestion,
    Question,
    Sender,
    Tries,
    UnreachedError,
)
from silvan.federation.signed import Signer
from silvan.federation.store import digest
from silvan.federation.transport import Transport
from silvan.util.readable import count_of, format_bytes, format_names, html_table, is_or_are


class Sums(Protocol):
    """A protocol that sums the replies to a ``total``."""

    name: str
    least: int  # minimum number of sites in a sum

    def must_stay(self, n: int) -> int:
        """Return how many of n sites must stay until the sum is finished."""

    def total(self, federation: "Federation", question: Asked) -> tuple[Reply, dict[str, Entry]]:
        """Return the sum over the sites, and each site's traffic as entries without a body."""


class Federation(Members):
    """Several sites and one coordinator.

    ``transport`` carries messages to ``sites``, and ``sums`` adds up replies to ``total``. ``quorum`` is the number of
    sites that must stay (None: all). A site that fails or takes more than ``timeout`` seconds is left out of the rest
    of the study if the quorum allows it; otherwise this is an error. A site that refuses always ends the study. A site
    has ``patience`` seconds to wait for its owner's approval (None: unlimited). The ``roster`` holds the keys that
    verify sites' trees; with a signer it is the signer's.
    """

    def __init__(
        self,
        transport: Transport,
        sites: Iterable[str],
        sums: Sums,
        *,
        study: str = "study",
        journal: Journal | None = None,
        quorum: int | None = None,
        timeout: float | None = None,
        patience: float | None = None,
        signer: Signer | None = None,
        roster: Roster | None = None,
    ) -> None:
        self.sites = list(sites)
        check_names(self.sites)
        if quorum is not None and not 1 <= quorum <= len(self.sites):
            raise InputError.wrong("quorum", f"between 1 and {len(self.sites)}", quorum)
        if timeout is not None and not timeout > 0:
            raise InputError.wrong("timeout", "above 0 seconds", timeout)
        if len(self.sites) < sums.least:
            raise InputError.about(
                "sums",
                f"must be 'trusted' for fewer than {sums.least} sites, got {sums.name!r} and {len(self.sites)}: "
                "with two, each learns the other's part by taking its own off the sum",
            )
        self.transport = transport
        transport.progress = self._progress
        self._agreement: Agreement | None = None
        # agrees on first use: owners approve the study before any request
        self.agree_later: Callable[[], Agreement] | None = None
        # makes sums verifiable, before the first one; None: they cannot be verified
        self.before_sums: Callable[[Federation], None] | None = None
        self._sums_begun = False
        self.questions: list[LoggedQuestion] = []  # all requests so far, if sums can be verified
        # makes a federation of the same tables with other test rows
        self.split_later: Callable[[Split], Federation] | None = None
        self.sums, self.study, self.quorum, self.signer = sums, study, quorum, signer
        self.timeout, self._patience = timeout, patience
        self.journal = Journal() if journal is None else journal
        self.lost: dict[str, str] = {}
        self.rounds = self.exchanges = self.agreement_rounds = 0
        self.task, self._tasks = "", 0
        self.traffic: Counter[tuple[str, str, str]] = Counter()  # (site, "sent" or "received", kind) -> bytes
        self._watchers: list[Callable[[Event], None]] = []
        self.roster = roster if signer is None else signer.roster
        self._blobs = Blobs()
        self.key_shared = ""  # the study for which sites share a key that the coordinator does not have
        self._asked = 0
        self._apart = False
        self._joined: int | None = None  # requests so far in a round of several

    def __repr__(self) -> str:
        return (
            f"<Federation of {count_of(len(self.sites), 'site', words=True)}: {format_names(self.sites)}; "
            f"{self.sums.name} sums>"
        )

    def _repr_html_(self) -> str:
        """Return sites, rows and traffic as a table for notebooks, without any request."""
        rows = {} if self._agreement is None else self._agreement.rows
        traffic = self.bytes
        cells = [
            (
                site,
                rows.get(site, ""),
                format_bytes(traffic[site]["sent"]),
                format_bytes(traffic[site]["received"]),
                self.lost.get(site, ""),
            )
            for site in self.sites
        ]
        head = ("site", "training rows", "sent", "received", "left out because")
        title = f"Federation of {count_of(len(self.sites), 'site', words=True)}"
        return html_table(
            head, cells, title, f"{self.sums.name.capitalize()} sums, {count_of(self.rounds, 'round', words=True)}."
        )

    # -- the two verbs

    def ask(self, request: Question, to: Iterable[str] | None = None, check: Check | None = None) -> dict[str, Any]:
        """Send a request and return every site's reply, in the order of the sites.

        Pass one request for all sites, or a dict of requests of one kind by site.
        """
        question = self._question(request, "ask", to, check)
        known = self._recall(question)
        replies = {s: wire.decode(e.body, question.kind.reply) for s, e in known.items() if e.kind != LOST}
        for site, reply in replies.items():
            self._check_recalled(question, site, reply)
        left = {site: r for site, r in question.requests.items() if site not in known}
        for site, reply, entry in self.exchange(replace(question, requests=left)):
            self.journal.keep(question.name, {site: entry})
            self._count(site, question, entry)
            replies[site] = reply
        if not replies:
            raise FederationError(f"no site answered {question.kind.__name__}")
        self._check_all_there()
        return {site: replies[site] for site in question.requests if site in replies}

    def total(
        self,
        request: Question,
        over: Iterable[str] | None = None,
        check: Check | None = None,
        most: int | Bounds | None = None,
    ) -> Any:
        """Send a request and return only the sum of the replies.

        Secure sums take less space if ``most``, an upper bound (or several bounds) on the non-negative numbers in the
        sum, is known.
        """
        if self.before_sums is not None and not self._sums_begun:
            self._sums_begun = True
            self.before_sums(self)
        question = replace(self._question(request, "total", over, check), most=most)
        known = self._recall(question)
        if SUM in known:
            self._log_sum(digest(known[SUM].body))
            total = wire.decode(known[SUM].body, question.kind.reply)
            self._check_recalled(question, OVERALL, total)
            return total
        left = {site: r for site, r in question.requests.items() if site not in known}
        # sites insist on the original members of a sum, also if one was lost and the study has been resumed since
        reply, traffic = self.sums.total(self, replace(question, requests=left, over=list(question.requests)))
        self._check_all_there()
        if self.journal.path is not None or self.verifiable:
            body = wire.encode(reply)
            self._log_sum(digest(body))
            self.journal.keep(question.name, {**traffic, SUM: Entry(type(reply).__name__, body, 0, 0)})
        for site, entry in traffic.items():
            self._count(site, question, entry)
        return reply

    @property
    def verifiable(self) -> bool:
        """Whether sites record their replies, so that the study can be verified."""
        return self.before_sums is not None

    def blob(self, data: bytes) -> Blob:
        """Return a reference to a large object, which travels to each site once."""
        return self._blobs.add(data)

    def work(self, site: str, reply: SignedReply) -> Blob:
        """Return a reference to a site's signed object of the current task, for requests to other sites."""
        return self._blobs.add(reply.work(), Owner(site, self.task, reply.signature))

    def makers(self, blob: Blob) -> list[Owner]:
        """Return the sites that made and signed a blob's content."""
        return self._blobs.makers(blob.hash)

    def content(self, blob: Blob) -> bytes:
        """Return the content of a blob in this federation."""
        return self._blobs.content(blob.hash)

    def split(self, split: Split) -> "Federation":
        """Return a federation of the same tables and the same agreement for one part of a split."""
        if self.split_later is None or self.limited:
            raise InputError.about(
                "repeats",
                "need rows at sites of a federation that can split them anew, in memory: in this process, or "
                "between machines in a study with repeats",
            )
        made = self.split_later(split)
        made._watchers = self._watchers
        return made

    # -- what sums use

    def exchange(self, question: Asked) -> Iterator[tuple[str, Reply, Entry]]:
        """Send a request and yield checked replies; send blobs that turn out to be missing."""
        kind, delivery = question.kind.__name__, Delivery(question, self._sender, self._blobs)
        pending, tries, begun = list(question.requests), Tries(self.timeout, self._patience), self.transport.now()
        while pending:
            self.exchanges += 1
            for site in pending:
                self._notify(Event("question", kind, self.rounds, site))
            troubles: dict[str, Missing | Exception] = {}
            for site, outcome in delivery.send(pending, self.transport, self.timeout):
                if isinstance(outcome, tuple):
                    reply, body = outcome
                    self._notify(Event("answer", kind, self.rounds, site, self.transport.now() - begun))
                    yield site, reply, Entry(type(reply).__name__, body, question.sent[site], question.received[site])
                else:
                    troubles[site] = outcome
            seconds = self.transport.now() - begun
            # an error that a site reported comes before a missing reply: the first error is raised
            ordered = sorted(troubles.items(), key=lambda item: isinstance(item[1], UnreachedError))
            given_up = {site: tries.give_up(site, kind, trouble, seconds) for site, trouble in ordered}
            self._lose({site: error for site, error in given_up.items() if error is not None}, question)
            pending = [site for site in question.requests if site in given_up and given_up[site] is None]
            unreached = {s: troubles[s] for s in pending if isinstance(troubles[s], UnreachedError)}
            for site, trouble in unreached.items():
                self._notify(Event("waiting", str(trouble), self.rounds, site, seconds))
            if unreached:
                self.transport.pause(tries.waits(unreached))

    @property
    def _sender(self) -> Sender:
        number = self.agreement_rounds if self._apart else self.rounds
        return Sender(self.study, self.task, number, self.signer, self.roster)

    # -- counts

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

    def counted_apart(self) -> AbstractContextManager[None]:
        """Count rounds as agreement instead of training."""
        return self._for_now(_apart=True, _joined=None)

    def aside(self) -> AbstractContextManager[None]:
        """Send a request outside the study's sequence: it is not a round, and the numbering stays the same."""
        return self._for_now(_asked=self._asked, rounds=self.rounds, agreement_rounds=self.agreement_rounds)

    def one_round(self) -> AbstractContextManager[None]:
        """Count several requests as one round: they are parts of one large message."""
        return self._for_now(_joined=0)

    def working_on(self, what: str) -> AbstractContextManager[None]:
        """Name the purpose of requests: a model, an evaluation. Sites allow a coordinator one of each at a time."""
        self._tasks += 1
        return self._for_now(task=f"{what} ({self._tasks})")

    @contextmanager
    def _for_now(self, **values: object) -> Iterator[None]:
        """Set attributes, and restore them afterwards."""
        before = {name: getattr(self, name) for name in values}
        vars(self).update(values)
        try:
            yield
        finally:
            vars(self).update(before)

    def watch(self, watcher: Callable[[Event], None]) -> None:
        """Call a function with every event; the library itself prints nothing."""
        if watcher not in self._watchers:
            self._watchers.append(watcher)

    def close(self) -> None:
        """Close the journal's file, and let go of the transport."""
        self.transport.close()
        self.journal.close()

    def _progress(self, site: str, what: str, done: int, total: int) -> None:
        self._notify(Event("progress", what, self.rounds, site, done=done, total=total))

    def _notify(self, event: Event) -> None:
        for watcher in self._watchers:
            watcher(event)

    def _question(self, request: Question, verb: Verb, to: Iterable[str] | None, check: Check | None) -> Asked:
        """Return a request with its number, and a name derived from everything that determines its replies."""
        wanted = list(request) if isinstance(request, dict) else (self.sites if to is None else list(to))
        unknown = [site for site in wanted if site not in self.sites]
        if unknown:
            raise InputError(f"there is no site {unknown[0]!r}; the sites are {', '.join(self.sites)}")
        requests: dict[str, Request] = {
            site: request[site] if isinstance(request, dict) else request for site in self.active if site in wanted
        }
        if not requests:
            raise FederationError("there is no site left to ask")
        kind, *others = {type(one) for one in requests.values()}
        if others:
            raise FederationError("a question to several sites must be of one kind")
        if kind.verb != verb:
            raise FederationError(f"{kind.__name__} is for {kind.verb!r}, not for {verb!r}")
        self._asked += 1
        if self._apart:
            self.agreement_rounds += 1
        elif not self._joined:
            self.rounds += 1
        if self._joined is not None:
            self._joined += 1
        parts = list(requests.values()) if isinstance(request, dict) else [request]
        named = msgspec.json.encode([self.study, self._asked, kind.__name__, list(requests)])
        question = Asked(digest(b"\n".join([named, *map(wire.encode, parts)])), kind, requests, check)
        if self.verifiable:
            asked = {site: question.asked(site) for site in requests}
            self.questions.append(LoggedQuestion(question.name, kind, self.task, self._sender.round, asked))
        return question

    def _check_recalled(self, question: Asked, site: str, reply: Reply) -> None:
        """Check a reply from the journal like one that arrives, if the study is being verified: it may be forged."""
        if self.verifiable and self.signer is None and question.check is not None:
            question.check(site, reply)

    def _log_sum(self, named: str) -> None:
        """Record the digest of the sum that answered the last request."""
        if self.verifiable:
            self.questions[-1].sum = named

    def _recall(self, question: Asked) -> dict[str, Entry]:
        """Return the journal's replies to a request, and count them as if they had just arrived."""
        known = self.journal.find(question.name)
        for site, entry in known.items():
            if entry.kind == LOST:
                self.lost[site] = entry.body.decode()
            if site != SUM:
                self._count(site, question, entry)
        return known

    def _count(self, site: str, question: Asked, entry: Entry) -> None:
        self.traffic[site, "sent", question.kind.__name__] += entry.sent
        self.traffic[site, "received", question.kind.__name__] += entry.received

    def _check_all_there(self) -> None:
        """Raise an error if the journal, or whoever else, says that a site was lost where none may be."""
        if self.lost and self.quorum is None:
            raise FederationError(f"{'; '.join(self.lost.values())}; without a quorum a study needs all of its sites")

    def _lose(self, failed: dict[str, Exception], question: Asked) -> None:
        """Go on without sites if the quorum allows it; the journal records who was left out."""
        kind = question.kind.__name__
        for error in failed.values():
            if self.quorum is None or isinstance(error, RefusedError):
                raise self.transport.explain(error)
        for site, error in failed.items():
            self.lost[site] = str(error)
            self._notify(Event("lost", kind, self.rounds, site))
        if failed and self.quorum is not None and len(self.active) < self.quorum:
            raise FederationError(
                f"{len(self.active)} of {count_of(len(self.sites), 'site')} {is_or_are(len(self.active))} left at "
                f"{kind}, the quorum is "
                f"{self.quorum}: {'; '.join(self.lost.values())}"
            )
        for site in failed:
            entry = Entry(LOST, self.lost[site].encode(), question.sent[site], question.received[site])
            self.journal.keep(question.name, {site: entry})
            self._count(site, question, entry)
