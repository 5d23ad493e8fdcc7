"""Send a question to sites: messages written, signed and delivered, answers opened, read and checked.

What to do about a site that fails, or that a message did not reach, is the federation's decision: it sends again.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from silvan.errors import SiteError
from silvan.federation import wire
from silvan.federation.keys import Roster
from silvan.federation.message import Blob, Envelope, Missing, Owner, Reply, SignedReply
from silvan.federation.question import Asked
from silvan.federation.signed import Signer, is_owned
from silvan.federation.store import digest
from silvan.federation.transport import Transport


class Blobs:
    """What requests refer to. A blob travels once to each site, unless the site says that it lacks it."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._makers: dict[str, list[Owner]] = {}
        self._sent: defaultdict[str, set[str]] = defaultdict(set)  # hashes by site

    def add(self, data: bytes) -> Blob:
        """Return a reference to something large."""
        name = digest(data)
        self._contents[name] = data
        return Blob(name)

    def add_work(self, data: bytes, maker: Owner) -> Blob:
        """Return a reference to what a site made and signed."""
        blob = self.add(data)
        known = self._makers.setdefault(blob.hash, [])
        if maker not in known:
            known.append(maker)
        return blob

    def content(self, blob: Blob) -> bytes:
        """Return what a blob stands for."""
        return self._contents[blob.hash]

    def makers(self, blob: Blob) -> list[Owner]:
        """Return the sites that made and signed what a blob holds."""
        return self._makers.get(blob.hash, [])

    def makers_by_hash(self, hashes: Iterable[str]) -> dict[str, list[Owner]]:
        """Return the makers of those blobs that sites made."""
        return {name: self._makers[name] for name in hashes if name in self._makers}

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

    def is_owned(self, site: str, reply: Reply) -> bool:
        """Return whether a site's signature of what it made is its own; there is nothing to check in most replies."""
        if self.roster is None or not isinstance(reply, SignedReply):
            return True
        return is_owned(self.roster, Owner(site, self.task, reply.signature), self.study, digest(reply.work()))


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
        data = wire.encode(self._envelope(site))
        if self._sender.signer is not None:
            data = self._sender.signer.send(site, self._sender.study, self._question.kind.verb, data)
        self._question.received[site] += len(data)
        return data

    def _envelope(self, site: str) -> Envelope:
        question, sender, written = self._question, self._sender, self._question.written(site)
        over = list(question.requests if question.over is None else question.over)
        return Envelope(
            study=sender.study,
            question=question.wave,
            sender="",
            kind=question.kind.__name__,
            body=written.body,
            blobs=self._blobs.send(site, self._lacking[site]),
            over=over if question.kind.verb == "total" else [],
            step=question.step_of(site),
            task=sender.task,
            round=sender.round,
            whole="" if question.step is None else question.name,
            owners=self._blobs.makers_by_hash(written.blobs),
        )

    def _read(self, site: str, data: bytes | Exception) -> Outcome | None:
        """Open and read an answer; return None if it is to another question, or not the site's."""
        self._question.sent[site] += len(data) if isinstance(data, bytes) else 0
        opened = self._open(site, data)
        outcome = None if opened is None else self._question.read(site, opened)
        if isinstance(outcome, Missing):
            # whatever the question refers to, and nothing else, however much is asked for
            self._lacking[site] = [] if set(self._needed[site]).isdisjoint(outcome.hashes) else self._needed[site]
        elif isinstance(outcome, tuple) and not self._sender.is_owned(site, outcome[0]):
            return SiteError(site, f"answered {self._question.kind.__name__} with what it did not sign")
        return outcome

    def _open(self, site: str, data: bytes | Exception) -> bytes | Exception | None:
        if self._sender.signer is None or isinstance(data, Exception):
            return data
        return self._sender.signer.read(site, self._sender.study, data)
