"""A site: a table, a store, and answers.

A reply is a function of the site's table, its store and the request. So a site that was restarted, or is made
anew for every message, answers the same.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import narwhals as nw
import numpy as np

from silvan.data.encode import encode_features, encode_label, label_column
from silvan.data.schema import Schema
from silvan.data.table import Frame, read_table
from silvan.errors import FormatError, InputError, RefusedError, RepeatedError, SchemaError
from silvan.federation import wire
from silvan.federation.cover import Cover, Own
from silvan.federation.message import STALE, Envelope, Missing, Reply, Request, Trouble, Verb, blobs_in
from silvan.federation.signed import Letter, Signer
from silvan.federation.store import MemoryStore, Store, digest

log = logging.getLogger("silvan.site")
log.addHandler(logging.NullHandler())  # the library prints nothing; a site's owner decides where this goes

R = TypeVar("R", bound=Request)

_HANDLERS: dict[str, tuple[type[Request], Callable[[Any, Any], Reply]]] = {}

_KEPT = {"scores": 64, "part of a sum": 1, "answer": 1}  # of everything else two are enough for one study

_TEXTS = {
    SchemaError: ("schema", "the site's table does not fit the agreed schema; its own log says where"),
    FormatError: ("format", "the site could not read what it was sent"),
    InputError: ("input", "the site cannot answer this on its table; its own log says why"),
}


class Outbox:
    """The gate that every reply passes on its way out; this one lets everything pass."""

    def admit(self, site: "Site", request: Request, envelope: Envelope) -> None:
        """Refuse a request before anything is computed, by raising ``RefusedError``."""

    def release(self, site: "Site", request: Request, reply: Reply) -> Reply:
        """Let a reply leave, changed if need be, or raise ``RefusedError``."""
        return reply

    def note(
        self, site: "Site", envelope: Envelope, request: Request | None, reply: msgspec.Struct, body: bytes
    ) -> None:
        """Write down what is about to leave, trouble included; nothing leaves if this raises."""


@dataclass(frozen=True)
class Part:
    """Some of a site's rows, encoded."""

    X: np.ndarray
    y: np.ndarray
    row_keys: np.ndarray

    def __len__(self) -> int:
        return len(self.X)


class Cache(dict[Any, Any]):
    """What makes answers faster. A key begins with a word for what it holds; only the latest of it stay."""

    def __setitem__(self, key: tuple[Any, ...], value: Any) -> None:
        super().__setitem__(key, value)
        alike = [k for k in self if k[0] == key[0]]
        for old in alike[: -_KEPT.get(key[0], 2)]:
            del self[old]


def answers(request: type[R]) -> Callable[[Callable[["Site", R], Reply]], Callable[["Site", R], Reply]]:
    """Register the function that answers a kind of request at a site."""

    def register(function: Callable[["Site", R], Reply]) -> Callable[["Site", R], Reply]:
        _HANDLERS[request.kind()] = (request, function)
        return function

    return register


class Site:
    """One organisation's side of a federation.

    ``source`` is a data frame, a path or (X, y). ``test`` is the share of rows kept for judging, drawn by
    class and by ``split_seed`` and the site's name. ``sampling_key`` decides which rows are in which tree;
    all sites have the same one, and the coordinator does not need it. ``forest`` is one that the site brings.
    With a ``cover`` its part of a sum leaves no other way. With a ``signer`` it takes and gives signed messages only.
    """

    def __init__(
        self,
        name: str,
        source: Any,
        *,
        label: str = "label",
        exclude: tuple[str, ...] = (),
        test: float = 0.0,
        split_seed: int = 0,
        sampling_key: np.ndarray | None = None,
        store: Store | None = None,
        outbox: Outbox | None = None,
        cover: Cover | None = None,
        signer: Signer | None = None,
        n_jobs: int | None = None,
        forest: Any = None,
    ) -> None:
        self.name, self.source, self.label, self.exclude = name, source, label, exclude
        self.forest = forest
        self.test, self.split_seed, self.n_jobs = test, split_seed, n_jobs
        self.sampling_key = np.zeros(2, np.uint64) if sampling_key is None else sampling_key
        self.store: Store = MemoryStore() if store is None else store
        self.outbox, self.cover, self.signer = outbox, cover, signer
        self.cache = Cache()
        self.last_error: Exception | None = None
        self.watcher: Callable[[str, int, int], None] | None = None  # told what is done, how much, and of how much
        self.excluded: list[str] = []  # which of ``exclude`` the table has

    # -- the table

    @cached_property
    def frame(self) -> Frame:
        """The table, without the columns that are not features."""
        frame = read_table(self.source, self.label)
        self.excluded = [c for c in self.exclude if c in frame.columns]
        return frame.drop(*self.excluded)

    def fingerprint(self) -> str:
        """Name the table by its content: for the coordinator's own journal, in one process only."""
        content = hashlib.sha256()
        for name in self.frame.columns:
            series = self.frame[name]
            content.update(f"{name}\0{series.dtype}\0".encode())
            words = not (series.dtype.is_numeric() and not series.null_count())
            values: Any = series.cast(nw.String).to_list() if words else None
            content.update(msgspec.json.encode(values) if words else series.to_numpy().tobytes())
        return content.hexdigest()

    @cached_property
    def _held_out(self) -> np.ndarray:
        """Which rows are kept for judging."""
        n = len(self.frame)
        held = np.zeros(n, np.bool_)
        if self.test <= 0.0:
            return held
        label = label_column(self.frame, self.label)
        _, groups = np.unique(label.to_numpy().astype(str), return_inverse=True)
        if groups.max(initial=0) + 1 > max(2, n // 5):
            groups = np.zeros(n, np.int64)  # a number: no classes to draw by
        rng = np.random.default_rng([self.split_seed, int(digest(self.name.encode())[:12], 16)])
        carry = 0.5
        for group in range(groups.max(initial=0) + 1):
            rows = rng.permutation(np.flatnonzero(groups == group))
            share = self.test * len(rows) + carry
            held[rows[: int(share)]] = True
            carry = share - int(share)  # small classes share what rounding leaves
        return held & ~held.all()  # there must be something to learn from

    def part(self, schema: Schema, test: bool = False) -> Part:
        """Give the training rows, or those kept for judging, encoded by a schema."""
        key = ("part", schema.hash, test)
        if key not in self.cache:
            everything = ("encoded", schema.hash)
            if everything not in self.cache:
                self.cache[everything] = (
                    encode_features(self.frame, schema, fill_absent=True),
                    encode_label(self.frame, schema),
                )
            X, y = self.cache[everything]
            rows = np.flatnonzero(self._held_out == test)
            self.cache[key] = Part(X[rows], y[rows], row_keys(self.name, len(rows)))
        part: Part = self.cache[key]
        return part

    def absent(self, schema: Schema) -> np.ndarray:
        """Say which of a schema's features the table lacks as whole columns: bool (features,)."""
        present = set(self.frame.columns)
        return np.array([name not in present for name in schema.names], np.bool_)

    @property
    def n_train(self) -> int:
        """Rows to learn from."""
        return int((~self._held_out).sum())

    def rebuilt(self) -> "Site":
        """Make the site anew from what outlives a restart: its settings, its table and its store."""
        names = (
            "label",
            "exclude",
            "test",
            "split_seed",
            "sampling_key",
            "store",
            "outbox",
            "cover",
            "signer",
            "n_jobs",
        )
        return Site(self.name, self.source, forest=self.forest, **{name: getattr(self, name) for name in names})

    def blob(self, hash_: str) -> bytes:
        """Give a blob that a request refers to."""
        data = self.store.get(f"blob {hash_}")
        if data is None:
            raise KeyError(hash_)
        return data

    # -- messages

    def receive(self, data: bytes, verb: Verb) -> bytes:
        """Answer one message; never raises, and says nothing of the data when something goes wrong."""
        if self.signer is None:
            return self._receive(data, verb)
        letter = Letter("", "", "", "", 0, b"", b"")
        try:
            letter = wire.decode(data, Letter)
            self.signer.check(letter, verb, self.store)
            answer = self._receive(letter.body, verb, letter.study)
        except Exception as error:
            self.last_error = error
            log.exception("%s: could not take a message", self.name)
            answer = _answer_to(letter.body, self.name, _trouble(error))
        return self.signer.answer(letter.study, letter.nonce, answer)

    def _receive(self, data: bytes, verb: Verb, study: str | None = None) -> bytes:
        """Answer an envelope; one that was signed for another study is refused."""
        envelope, request, self.last_error = Envelope("", "", "", "", b""), None, None
        try:
            envelope = wire.decode(data, Envelope)
            if study is not None and envelope.study != study:
                raise RefusedError("the message was signed for another study")
            if envelope.kind not in _HANDLERS:
                raise RefusedError("the site does not know this message; versions may differ")
            kind, handler = _HANDLERS[envelope.kind]
            request = wire.decode(envelope.body, kind)
            lacking = self._take_blobs(request, envelope.blobs)
            reply = Missing(lacking) if lacking else self._answer(request, envelope, handler, verb)
            return self._leave(envelope, request, reply)
        except Exception as error:  # whatever it is, it must not cross the border
            self.last_error = error
            log.exception("%s: could not answer", self.name)
            return self._fail(envelope, request, _trouble(error))

    def _leave(self, envelope: Envelope, request: Request | None, reply: msgspec.Struct) -> bytes:
        """Note a reply, and put it into an envelope."""
        body = wire.encode(reply)
        if self.outbox is not None:
            self.outbox.note(self, envelope, request, reply, body)
        return wire.encode(Envelope(envelope.study, envelope.question, self.name, type(reply).__name__, body))

    def _fail(self, envelope: Envelope, request: Request | None, trouble: Trouble) -> bytes:
        """Tell of trouble, noted if that can be: it says nothing of the data."""
        try:
            return self._leave(envelope, request, trouble)
        except Exception:
            log.exception("%s: could not note what went wrong", self.name)
            answer = Envelope(envelope.study, envelope.question, self.name, Trouble.__name__, wire.encode(trouble))
            return wire.encode(answer)

    def _take_blobs(self, request: Request, sent: dict[str, bytes]) -> list[str]:
        """Keep the blobs that a request refers to, and no others; list those still lacking."""
        wanted = list(dict.fromkeys(blobs_in(request)))
        for hash_ in wanted:
            if hash_ in sent:
                if digest(sent[hash_]) != hash_:
                    raise FormatError("a blob does not match its hash")
                self.store.put(f"blob {hash_}", sent[hash_])
        return [h for h in wanted if self.store.get(f"blob {h}") is None]

    def _answer(self, request: Request, envelope: Envelope, handler: Callable[[Any, Any], Reply], verb: Verb) -> Reply:
        if request.verb != verb:
            raise RefusedError("the site does not answer this message in the clear")
        cover = self.cover if verb == "total" else None
        if (None if envelope.step is None else envelope.step.sums) != (None if cover is None else cover.name):
            way = "as it is" if cover is None else f"hidden, in {cover.name!r} sums"
            raise RefusedError(f"the site's answer leaves it only {way}")
        if self.signer is not None and not set(envelope.over) <= set(self.signer.roster.sites):
            raise RefusedError("the sum is over sites that are not on the site's roster")
        if self.outbox is not None:
            self.outbox.admit(self, request, envelope)
        asked = digest(wire.encode(msgspec.structs.replace(envelope, blobs={}, round=0)))
        key = ("answer", asked)
        if key not in self.cache:  # the question may come again, if it or its answer took too long
            self.cache[key] = self._work_out(request, envelope, handler, cover)
        reply: Reply = self.cache[key]
        return reply

    def _work_out(
        self, request: Request, envelope: Envelope, handler: Callable[[Any, Any], Reply], cover: Cover | None
    ) -> Reply:
        if cover is not None:
            named = digest(envelope.kind.encode() + b"\0" + envelope.body)
            return cover.answer(self, envelope, Own(self, request, handler, named))
        reply = handler(self, request)
        return reply if self.outbox is None else self.outbox.release(self, request, reply)


def _answer_to(data: bytes, site: str, trouble: Trouble) -> bytes:
    """Tell of trouble with a message that was not taken, so that whoever sent it knows which."""
    try:
        asked = wire.decode(data, Envelope)
    except FormatError:
        asked = Envelope("", "", "", "", b"")
    return wire.encode(Envelope(asked.study, asked.question, site, Trouble.__name__, wire.encode(trouble)))


def _trouble(error: Exception) -> Trouble:
    if isinstance(error, RepeatedError):
        return Trouble(STALE, str(error))
    if isinstance(error, RefusedError):
        return Trouble("refused", str(error))
    for kind, (code, text) in _TEXTS.items():
        if isinstance(error, kind):
            return Trouble(code, text)
    return Trouble("internal", "the site failed; its own log says why")


def row_keys(site: str, n: int) -> np.ndarray:
    """Key every training row by its site and place."""
    start = np.uint64(int(digest(f"rows of {site}".encode())[:16], 16))
    with np.errstate(over="ignore"):
        return start + np.arange(n, dtype=np.uint64)
