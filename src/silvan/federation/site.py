"""A site: answers messages from its table and its store.

A reply is a function of the site's table, its store and the request. So a site gives the same reply after a restart,
or if it is rebuilt for every message.
"""

import hmac
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeVar

import msgspec

from silvan.data.bins.column_summary import Sizes
from silvan.errors import (
    DamagedError,
    FormatError,
    InputError,
    RefusedError,
    RepeatedError,
    SchemaError,
    UnavailableError,
    reject,
)
from silvan.federation import wire
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import (
    FULL,
    LATER,
    STALE,
    UNAVAILABLE,
    Envelope,
    Missing,
    Owner,
    Reply,
    Request,
    SignedReply,
    SummedReply,
    Trouble,
    Verb,
    blobs_in,
)
from silvan.federation.proven_sums import SumName, prove
from silvan.federation.signed import ForgedError, SignedMessage, Signer, is_owned
from silvan.federation.site_table import SiteSettings, SiteTable
from silvan.federation.store import CacheKey, MemoryStore, Store, digest, shared_key_name
from silvan.util.files import has_no_room

log = logging.getLogger("silvan.site")
log.addHandler(logging.NullHandler())  # the library prints nothing; the site's owner decides where logs go

R = TypeVar("R", bound=Request)

_NOTHING = Envelope("", "", "", "", b"")


_TEXTS = {
    SchemaError: ("schema", "the site's table does not fit the study"),
    DamagedError: ("records", "a file of the site's own records is damaged"),
    FormatError: ("format", "the site could not read what it was sent"),
    InputError: ("input", "the site cannot answer this on its table"),
}


class Outbox:
    """The gate that every reply passes on its way out; this base class lets everything pass."""

    def admit(self, site: "Site", request: Request, envelope: Envelope) -> None:
        """Raise ``RefusedError`` to refuse a request before anything is computed."""

    def note(
        self, site: "Site", envelope: Envelope, request: Request | None, reply: msgspec.Struct, body: bytes
    ) -> None:
        """Record what is about to leave, errors included; nothing leaves if this raises."""


def answers(request: type[R]) -> Callable[[Callable[["Site", R], Reply]], Callable[["Site", R], Reply]]:
    """Register the function that answers a type of request; ``KINDS`` lists those of this package."""

    def register(function: Callable[["Site", R], Reply]) -> Callable[["Site", R], Reply]:
        HANDLERS.register(request, function)
        return function

    return register


class Site(SiteTable):
    """One organisation's side of a federation: its table, its store and its replies.

    Every reply passes the ``outbox``, if there is one. With a ``secure_sum`` its parts of sums leave in no other form.
    With a ``signer`` it accepts and sends signed messages only. Its ``keys``, by default the signer's, sign its trees
    and verify those of other sites. Single settings may be passed as keywords.
    """

    def __init__(
        self,
        name: str,
        source: Any,
        settings: SiteSettings | None = None,
        *,
        store: Store | None = None,
        outbox: Outbox | None = None,
        secure_sum: "SecureSum | None" = None,
        signer: Signer | None = None,
        keys: Signer | None = None,
        **single: Any,
    ) -> None:
        super().__init__(name, source, replace(settings or SiteSettings(), **single))
        self.store: Store = MemoryStore() if store is None else store
        self.outbox, self.secure_sum, self.signer, self._keys = outbox, secure_sum, signer, keys
        self._now = threading.local()  # a late thread may still work on an earlier message
        self.last_error: Exception | None = None
        self.watcher: Callable[[str, int, int], None] | None = (
            None  # called with the current work, how much is done, and of how much
        )

    def rebuilt(self, settings: SiteSettings | None = None, **changed: Any) -> Self:
        """Recreate the site from what survives a restart (settings, table, store), or with replacements."""
        made_with = {name: getattr(self, name) for name in ("store", "outbox", "secure_sum", "signer")}
        made_with |= {"keys": self._keys, **self.own_settings(), **changed}
        return type(self)(self.name, self.source, settings or self.settings, **made_with)

    def own_settings(self) -> dict[str, Any]:
        """Return the additional arguments of a special kind of site."""
        return {}

    def sizes_apart(self) -> dict[str, Sizes]:
        """Return the sizes of numeric columns that are computed on a cluster."""
        return {}

    def check_kind(self, kind: type[Request]) -> None:
        """Refuse a type of request that this type of site never answers."""

    def work(self, handler: Callable[[Any, Any], Reply], request: Request) -> Reply:
        """Compute a reply; nothing leaves yet."""
        return handler(self, request)

    def blob(self, hash_: str) -> bytes:
        """Return a blob that a request refers to."""
        data = self.store.get(f"blob {hash_}")
        if data is None:
            raise KeyError(hash_)
        return data

    @property
    def keys(self) -> Signer | None:
        """The key that the site signs with, and the public keys of all sites."""
        return self.signer or self._keys

    @property
    def study(self) -> str:
        """The study of the current message."""
        return self._envelope.study

    @property
    def task(self) -> str:
        """The task within the study of the current message."""
        return self._envelope.task

    @property
    def message(self) -> SignedMessage | None:
        """The current signed message; None if messages are not signed."""
        message: SignedMessage | None = getattr(self._now, "message", None)
        return message

    @property
    def asked(self) -> str:
        """The digest of the current request."""
        return self._envelope.asked

    @property
    def key_name(self) -> str:
        """The key, in the site's store, of the key that the sites of the study share."""
        return shared_key_name(self.study)

    @property
    def proof_key(self) -> bytes | None:
        """The key by which sites prove their parts of sums in a study; None if they share no key, or sign nothing."""
        key = None if self.signer is None else self.store.get(self.key_name)
        return None if key is None else hmac.digest(key, f"proofs of {self.study}".encode(), "sha256")

    def proved(self, reply: Reply) -> Reply:
        """Return the part of a sum that is being answered with its proof, if there is a key for that."""
        key, now = self.proof_key, self._envelope
        if key is None or not isinstance(reply, SummedReply):
            return reply
        return prove(key, SumName(now.study, now.task, now.over), now.asked, self.name, reply)

    def owners(self, hash_: str) -> list[Owner]:
        """Return the sites that signed a blob's content in this study."""
        kept = self.store.get(_owner_key(self._envelope.study, hash_))
        return [] if kept is None else msgspec.msgpack.decode(kept, type=list[Owner])

    @property
    def _envelope(self) -> Envelope:
        envelope: Envelope = getattr(self._now, "envelope", _NOTHING)
        return envelope

    # -- messages

    def receive(self, data: bytes, verb: Verb) -> bytes:
        """Answer one message; never raise, and never mention data in an error."""
        if self.signer is None:
            return self._receive(data, verb)
        signed = SignedMessage("", "", "", "", 0, b"", b"")
        try:
            signed = wire.decode(data, SignedMessage)
            self.signer.check(signed, verb, self.store)
            self._now.message = signed
            answer = self._receive(signed.body, verb, signed.study)
        except Exception as error:
            self.last_error = error
            log.exception("%s: could not take a message", self.name)
            answer = _answer_to(signed.body, self.name, _trouble(error))
            if isinstance(error, ForgedError):  # or a forger could make the site end a study
                return self.signer.answer(signed.study, b"", answer)
        return self.signer.answer(signed.study, signed.nonce, answer)

    def _receive(self, data: bytes, verb: Verb, study: str | None = None) -> bytes:
        """Answer an envelope; refuse one that was signed for another study."""
        envelope, request, self.last_error = _NOTHING, None, None
        try:
            envelope = self._now.envelope = wire.decode(data, Envelope)
            if study is not None and envelope.study != study:
                raise RefusedError("the message was signed for another study")
            if envelope.kind not in HANDLERS:
                raise RefusedError("the site does not know this message; versions may differ")
            kind, handler = HANDLERS[envelope.kind]
            request = self._read(envelope, kind)
            lacking = self._take_blobs(request, envelope)
            reply = Missing(lacking) if lacking else self._answer(request, envelope, handler, verb)
            return self._leave(envelope, request, reply)
        except Exception as error:  # whatever it is, it must not leave the site
            self.last_error = error
            log.exception("%s: could not answer", self.name)
            return self._fail(envelope, request, _trouble(error))

    def _read(self, envelope: Envelope, kind: type[Request]) -> Request:
        """Read a request; the request of a sum in steps is cached, because all steps repeat it."""
        if envelope.step is None:
            return wire.decode(envelope.body, kind)
        return self.cache.once(
            CacheKey[Request]("request", envelope.asked, most=1), lambda: wire.decode(envelope.body, kind)
        )

    def _leave(self, envelope: Envelope, request: Request | None, reply: msgspec.Struct) -> bytes:
        """Record a reply, and put it into an envelope."""
        body = wire.encode(reply)
        if self.outbox is not None:
            self.outbox.note(self, envelope, request, reply, body)
        return _envelope_of(envelope, self.name, reply, body)

    def _fail(self, envelope: Envelope, request: Request | None, trouble: Trouble) -> bytes:
        """Return a reply that names the error and no data; record it in the ledger if possible."""
        try:
            return self._leave(envelope, request, trouble)
        except Exception:
            log.exception("%s: could not note what went wrong", self.name)
            return _envelope_of(envelope, self.name, trouble, wire.encode(trouble))

    def _take_blobs(self, request: Request, envelope: Envelope) -> list[str]:
        """Store the blobs of a request, and no others, with their makers; list those that are still missing."""
        wanted, sent = list(dict.fromkeys(blobs_in(request))), envelope.blobs
        for hash_ in wanted:
            if hash_ in sent:
                reject(digest(sent[hash_]) != hash_, "a blob does not match its hash")
                self.store.put(f"blob {hash_}", sent[hash_])
            self._note_owners(hash_, envelope)
        return [h for h in wanted if self.store.get(f"blob {h}") is None]

    def _note_owners(self, hash_: str, envelope: Envelope) -> None:
        """Record the makers of a blob, if their signatures are valid."""
        owners = self.owners(hash_)
        new = [owner for owner in envelope.owners.get(hash_, []) if owner not in owners]
        if not new or self.keys is None:
            return
        if not all(is_owned(self.keys.roster, owner, envelope.study, hash_) for owner in new):
            raise RefusedError("what another site made was changed on its way, or is not of this study")
        self.store.put(_owner_key(envelope.study, hash_), msgspec.msgpack.encode([*owners, *new]))

    def _answer(self, request: Request, envelope: Envelope, handler: Callable[[Any, Any], Reply], verb: Verb) -> Reply:
        if request.verb != verb:
            raise RefusedError("the site does not answer this message in the clear")
        secure_sum = self.secure_sum if verb == "total" else None
        if (None if envelope.step is None else envelope.step.sums) != (None if secure_sum is None else secure_sum.name):
            way = "as it is" if secure_sum is None else f"hidden, in {secure_sum.name!r} sums"
            raise RefusedError(f"the site's answer leaves it only {way}")
        if self.signer is not None and not set(envelope.over) <= set(self.signer.roster.sites):
            raise RefusedError("the sum is over sites that are not on the site's roster")
        if self.outbox is not None:
            self.outbox.admit(self, request, envelope)
        rest = msgspec.structs.replace(envelope, body=b"", blobs={}, owners={}, round=0)
        # the request may be repeated if it or its reply took too long
        key = CacheKey[Reply]("answer", digest(wire.encode(rest)), envelope.asked, most=1)
        return self.cache.once(key, lambda: self._work_out(request, envelope, handler, secure_sum))

    def _work_out(
        self, request: Request, envelope: Envelope, handler: Callable[[Any, Any], Reply], secure_sum: "SecureSum | None"
    ) -> Reply:
        if secure_sum is not None:
            return secure_sum.answer(self, envelope, Own(self, request, handler, envelope.asked))
        reply = self.proved(self.work(handler, request))
        if isinstance(reply, SignedReply) and self.keys is not None:
            signature = self.keys.sign_work(envelope.study, envelope.task, digest(reply.work()))
            reply = msgspec.structs.replace(reply, signature=signature)
        return reply


def _owner_key(study: str, hash_: str) -> str:
    return f"owner {digest(study.encode())} {hash_}"


def _answer_to(data: bytes, site: str, trouble: Trouble) -> bytes:
    """Return a reply about a message that could not be read, so that its sender knows which one it was."""
    try:
        asked = wire.decode(data, Envelope)
    except FormatError:
        asked = _NOTHING
    return _envelope_of(asked, site, trouble, wire.encode(trouble))


def _envelope_of(asked: Envelope, site: str, reply: msgspec.Struct, body: bytes) -> bytes:
    return wire.encode(Envelope(asked.study, asked.question, site, type(reply).__name__, body))


def _trouble(error: Exception) -> Trouble:
    if isinstance(error, RepeatedError):
        return Trouble(STALE, str(error))
    if has_no_room(error):
        return Trouble(FULL, "the site's disk is full; it answers when there is room")
    if isinstance(error, UnavailableError):
        return Trouble(LATER, UNAVAILABLE)
    if isinstance(error, RefusedError):
        return Trouble("refused", str(error))
    for kind, (code, text) in _TEXTS.items():
        if isinstance(error, kind):
            return Trouble(code, text)
    return Trouble("internal", "the site failed")


# -- secure sums


@dataclass(frozen=True)
class Own:
    """A site's part of a sum; once prepared, it is kept until the sum's last message."""

    site: Site
    request: Request
    handler: Callable[[Any, Any], Reply]
    hash: str  # of the request

    @property
    def statistic(self) -> str:
        """The name of the sum, equal at all of its sites, so that a request to one site alone adds up with nothing."""
        return self.request.statistic(self.hash)

    def prepare(self) -> Reply:
        """Compute the part; nothing leaves yet."""
        return self.site.cache.once(self._key, lambda: self.site.work(self.handler, self.request))

    def forget(self) -> None:
        """Drop the prepared part: the sum now covers other sites."""
        self.site.cache.pop(self._key, None)

    def release(self) -> Reply:
        """Return the part with its proof, to be hidden."""
        known = self.site.cache.get(self._key)
        return self.site.proved(self.site.work(self.handler, self.request) if known is None else known)

    @property
    def _key(self) -> CacheKey[Reply]:
        return CacheKey[Reply]("part of a sum", self.hash, most=1)


class SecureSum(Protocol):
    """A protocol that hides a site's part of a sum. Without one, the part leaves unprotected."""

    name: str

    def answer(self, site: Site, envelope: Envelope, own: Own) -> Reply:
        """Perform the step that an envelope asks for."""

    def withstands(self, n: int) -> int:
        """Return how many of the n sites of a sum may collude with the coordinator without learning a part."""
