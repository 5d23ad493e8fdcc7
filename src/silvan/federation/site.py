"""A site: a table, a store, and answers.

A reply is a function of the site's table, its store and the request. So a site that was restarted, or is made
anew for every message, answers the same.
"""

import hashlib
import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import narwhals as nw
import numpy as np

from silvan.data.batches import Batched, Whole
from silvan.data.disk_arrays import Folder
from silvan.data.encode import encode_features, encode_label
from silvan.data.holdout import HeldOut, hold_out
from silvan.data.schema import Schema
from silvan.data.table import Frame, read_table
from silvan.errors import FormatError, InputError, RefusedError, RepeatedError, SchemaError
from silvan.federation import wire
from silvan.federation.message import FULL, STALE, Envelope, Missing, Reply, Request, Trouble, Verb, blobs_in
from silvan.federation.part import Part as Part  # known from here
from silvan.federation.part import row_keys, store_parts
from silvan.federation.signed import ForgedError, SignedMessage, Signer
from silvan.federation.store import MemoryStore, Store, digest
from silvan.federation.sums import Cover, Own
from silvan.util.files import has_no_room

log = logging.getLogger("silvan.site")
log.addHandler(logging.NullHandler())  # the library prints nothing; a site's owner decides where this goes

R = TypeVar("R", bound=Request)

_HANDLERS: dict[str, tuple[type[Request], Callable[[Any, Any], Reply]]] = {}

_KEPT = {"scores": 64, "part of a sum": 1, "answer": 1}  # of everything else two are enough for one study

_BATCH = 1 << 27
"""Bytes of a table that are read at a time, at most: more would not be faster."""

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
    With ``memory``, a number of bytes, the table is read in batches and its rows lie in nameless files in ``folder``.
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
        memory: int | None = None,
        folder: Folder = None,
    ) -> None:
        self.name, self.source, self.label, self.exclude = name, source, label, exclude
        self.forest, self.memory, self.folder = forest, memory, folder
        self.test, self.split_seed, self.n_jobs = test, split_seed, n_jobs
        self.sampling_key = np.zeros(2, np.uint64) if sampling_key is None else sampling_key
        self.store: Store = MemoryStore() if store is None else store
        self.outbox, self.cover, self.signer = outbox, cover, signer
        self.cache = Cache()
        self.last_error: Exception | None = None
        self.watcher: Callable[[str, int, int], None] | None = None  # told what is done, how much, and of how much

    # -- the table

    @cached_property
    def table(self) -> Whole | Batched:
        """The table, without the columns that are not features: in memory, or read in batches."""
        if self.memory is None:
            return Whole(read_table(self.source, self.label), self.exclude)
        return Batched(self.source, self.label, min(self.memory // 8, _BATCH), self.folder, self.exclude)

    @cached_property
    def frame(self) -> Frame:
        """The table in memory, however large."""
        return self.table.frame if isinstance(self.table, Whole) else nw.concat(list(self.table.batches()))

    @property
    def excluded(self) -> list[str]:
        """Which of ``exclude`` the table has, if it was read."""
        return self.table.excluded if "table" in vars(self) else []

    def fingerprint(self) -> str:
        """Name the table by its content: for the coordinator's own journal, in one process only."""
        names, dtypes = self.table.names, self.table.dtypes
        columns = [(hashlib.sha256(f"{name}\0{dtypes[name]}\0".encode()), hashlib.sha256()) for name in names]
        for batch in self.table.batches():
            for name, (values, gaps) in zip(names, columns, strict=True):
                series = batch[name]
                gaps.update(series.is_null().to_numpy().astype(np.bool_).tobytes())
                plain = series.dtype.is_float() or series.dtype.is_integer()
                numbers = series.fill_null(0).to_numpy() if plain else None
                if numbers is not None and numbers.dtype != object:
                    values.update(numbers.tobytes())
                else:
                    values.update(msgspec.json.Encoder().encode_lines(series.cast(nw.String).to_list()))
        return digest(b"".join(values.digest() + gaps.digest() for values, gaps in columns))

    @cached_property
    def _held_out(self) -> HeldOut:
        """Which rows are kept for judging."""
        seed = [self.split_seed, int(digest(self.name.encode())[:12], 16)]
        return hold_out(self.table, self.label, self.test, seed, self.folder)

    def part(self, schema: Schema, test: bool = False) -> Part:
        """Give the training rows, or those kept for judging, encoded by a schema."""
        key = ("part", schema.hash, test)
        if key not in self.cache:
            if self.memory is not None:
                assert isinstance(self.table, Batched)  # noqa: S101
                parts = store_parts(self.table, schema, self._held_out, self.name, self.memory, self.folder)
                self.cache["part", schema.hash, False], self.cache["part", schema.hash, True] = parts
                return parts[test]
            everything = ("encoded", schema.hash)
            if everything not in self.cache:
                self.cache[everything] = (
                    encode_features(self.frame, schema, fill_absent=True),
                    encode_label(self.frame, schema),
                )
            X, y = self.cache[everything]
            rows = np.flatnonzero(self._held_out.among(0, len(X)) == test)
            self.cache[key] = Part(X[rows], y[rows], row_keys(self.name, len(rows)))
        part: Part = self.cache[key]
        return part

    def absent(self, schema: Schema) -> np.ndarray:
        """Say which of a schema's features the table lacks as whole columns: bool (features,)."""
        present = set(self.table.names)
        return np.array([name not in present for name in schema.names], np.bool_)

    @property
    def n_train(self) -> int:
        """Rows to learn from."""
        return len(self.table) - self._held_out.kept

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
            "memory",
            "folder",
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
        signed = SignedMessage("", "", "", "", 0, b"", b"")
        try:
            signed = wire.decode(data, SignedMessage)
            self.signer.check(signed, verb, self.store)
            answer = self._receive(signed.body, verb, signed.study)
        except Exception as error:
            self.last_error = error
            log.exception("%s: could not take a message", self.name)
            answer = _answer_to(signed.body, self.name, _trouble(error))
            if isinstance(error, ForgedError):  # or whoever forges could have the site end a study
                return self.signer.answer(signed.study, b"", answer)
        return self.signer.answer(signed.study, signed.nonce, answer)

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
    if has_no_room(error):
        return Trouble(FULL, "the site's disk is full; it answers when there is room")
    if isinstance(error, RefusedError):
        return Trouble("refused", str(error))
    for kind, (code, text) in _TEXTS.items():
        if isinstance(error, kind):
            return Trouble(code, text)
    return Trouble("internal", "the site failed; its own log says why")
