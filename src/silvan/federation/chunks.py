"""Messages in chunks: large messages are cut, sent piece by piece, and reassembled.

Every chunk is acknowledged. The site replies after the last chunk; a long reply is fetched piece by piece. A piece is
as large as the link carries in about a second, so that every acknowledgement is also a sign of life and nothing waits
long behind it. A chunk that is not acknowledged is sent again. A site holds one message at a time; if it was restarted
in between, it reports the earlier pieces as missing, and the message is sent again.
"""

import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from silvan.errors import FormatError, RefusedError, reject
from silvan.federation import wire
from silvan.federation.message import Verb
from silvan.federation.outgoing import DeclinedError, LaterError, UnreachedError, WaitingError
from silvan.federation.store import digest

LEAST, FIRST, MOST = 1 << 15, 1 << 18, 1 << 23
"""Bytes per piece: minimum, initial and maximum."""

_SECONDS = 1.0
"""Target duration of sending a piece."""

_PATIENCE = 15.0
"""Seconds that a fetch waits while the site computes its reply; then the site says that it is still working."""

PING = ""
"""The id of a chunk that only checks whether the site is there."""


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a message to a site or, with ``fetch``, a request for up to ``most`` bytes of the reply."""

    id: str
    at: int  # offset of the piece in the message or reply
    total: int = 0  # bytes of the message
    verb: Verb = "ask"
    data: bytes = b""
    most: int = FIRST
    fetch: bool = False


class ChunkReply(msgspec.Struct, frozen=True):
    """The response to a chunk: a piece of the reply, or a state."""

    what: Literal["kept", "answer", "working", "lacking", "waiting", "later", "refused", "declined"]
    total: int = 0  # bytes of the reply
    data: bytes = b""
    text: str = ""  # the reason, except for replies
    seconds: float = 0.0  # time spent at the site


Carry = Callable[[bytes], bytes]
"""Carries bytes to a site and returns its response; raises ``UnreachedError`` if that is not possible now."""


class PieceSize:
    """The chunk size for a link: the bytes that it carries in about one second."""

    def __init__(self, first: int = FIRST, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes, self._clock = first, clock

    def carry(self, carry: Carry, chunk: Chunk) -> ChunkReply:
        """Carry a chunk, and adapt the size to the time it took, without the site's work."""
        begun = self._clock()
        try:
            reply = wire.decode(carry(wire.encode(chunk)), ChunkReply)
        except UnreachedError:
            self.bytes = max(self.bytes // 2, LEAST)
            raise
        seconds = self._clock() - begun - reply.seconds
        if max(len(chunk.data), len(reply.data)) * 2 >= self.bytes:  # a small piece says nothing about the link
            change = min(max(_SECONDS / max(seconds, 1e-3), 0.25), 4.0)
            self.bytes = int(min(max(self.bytes * change, LEAST), MOST))
        return reply


def send_in_chunks(
    carry: Carry, data: bytes, verb: Verb, size: PieceSize | None = None, give_up: Callable[[], bool] = lambda: True
) -> tuple[bytes, float]:
    """Send a message to a site; return its reply, and the computing time in seconds that the site reports.

    A chunk whose reply did not come is sent again unless ``give_up`` returns true: then ``UnreachedError`` is raised.
    """
    size, name, at, worked = PieceSize() if size is None else size, digest(data), 0, 0.0

    def bring(chunk: Chunk) -> ChunkReply:
        """Carry a chunk; if it is the last and there was no response, ask for the reply: it may have arrived."""
        nonlocal worked
        is_last = not chunk.fetch and chunk.at + len(chunk.data) == chunk.total
        now = chunk
        while True:
            try:
                reply = size.carry(carry, now)
            except UnreachedError:
                if give_up():
                    raise
                now = Chunk(chunk.id, 0, most=size.bytes, fetch=True) if is_last else chunk
                continue
            worked += reply.seconds
            if reply.what == "lacking" and now is not chunk:
                now = chunk
            elif reply.what != "working":
                return reply
            elif give_up():
                raise UnreachedError("it has not answered yet")

    while True:
        piece = data[at : at + size.bytes]
        reply = bring(Chunk(name, at, len(data), verb, piece, size.bytes))
        at += len(piece)
        if reply.what != "kept" or at >= len(data):
            break
    reject(not 0 <= reply.total <= wire.MAX_MESSAGE, "a reply cannot have so many bytes")
    answer, total = bytearray(_piece(reply)), reply.total
    while len(answer) < total:
        piece = _piece(bring(Chunk(name, len(answer), most=size.bytes, fetch=True)))
        reject(not piece, "a piece of an answer is empty")
        answer += piece
    return bytes(answer[:total]), worked


def ping(carry: Carry) -> None:
    """Check whether a site is there; raise ``UnreachedError`` if not."""
    wire.decode(carry(wire.encode(Chunk(PING, 0))), ChunkReply)


_HELD: dict[str, type[Exception]] = {
    "waiting": WaitingError,
    "later": LaterError,
    "refused": RefusedError,
    "declined": DeclinedError,
}


def _piece(reply: ChunkReply) -> bytes:
    if reply.what in _HELD:
        raise _HELD[reply.what]("".join(c for c in reply.text if c.isprintable())[:200])
    if reply.what != "answer":
        raise UnreachedError("the site was restarted while a message came in")
    return reply.data


class ChunkServer:
    """Receives chunks at a site and serves replies, one message after the other.

    Parameters
    ----------
    receive
        Answers a message with a given verb.
    ready
        Returns a response that says why the site does not reply yet, or at all; None if it does.
    patience
        Seconds that a fetch waits while the site computes its reply.
    """

    def __init__(
        self,
        receive: Callable[[bytes, Verb], bytes],
        ready: Callable[[], ChunkReply | None] = lambda: None,
        patience: float = _PATIENCE,
    ) -> None:
        self._receive, self._ready, self._patience = receive, ready, patience
        self._lock = threading.Lock()
        self._coming: tuple[str, bytearray] = ("", bytearray())
        self._leaving: tuple[str, bytes] = ("", b"")

    def take(self, data: bytes) -> bytes:
        """Receive a chunk and return the response; raise ``FormatError`` for anything else."""
        chunk = wire.decode(data, Chunk)
        if chunk.id == PING:  # immediately, even if the site is busy
            return wire.encode(ChunkReply("kept"))
        if chunk.at < 0 or (not chunk.fetch and chunk.at + len(chunk.data) > chunk.total):
            raise FormatError("a chunk is outside of its message")
        if chunk.total > wire.MAX_MESSAGE or not 1 <= chunk.most <= MOST:
            raise FormatError("a chunk is of too large a message, or wants too much")
        begun, reply = time.monotonic(), ChunkReply("working")
        if self._lock.acquire(timeout=self._patience):
            try:
                reply = self._fetch(chunk) if chunk.fetch else self._take(chunk)
            finally:
                self._lock.release()
        return wire.encode(msgspec.structs.replace(reply, seconds=time.monotonic() - begun))

    def _take(self, chunk: Chunk) -> ChunkReply:
        held = self._ready()
        if held is not None:
            return held
        if chunk.id == self._leaving[0] and chunk.at + len(chunk.data) == chunk.total:
            return self._fetch(Chunk(chunk.id, 0, most=chunk.most))  # the last chunk came again
        name, come = self._coming
        if name != chunk.id or chunk.at == 0:
            self._coming = name, come = chunk.id, bytearray()
        if chunk.at > len(come):
            return ChunkReply("lacking")
        del come[chunk.at :]  # drop a repeated piece
        come += chunk.data
        if len(come) < chunk.total:
            return ChunkReply("kept")
        self._coming = "", bytearray()
        self._leaving = chunk.id, self._receive(bytes(come), chunk.verb)
        return self._fetch(Chunk(chunk.id, 0, most=chunk.most))

    def _fetch(self, wish: Chunk) -> ChunkReply:
        name, answer = self._leaving
        if wish.id != name or wish.at > len(answer):
            return ChunkReply("lacking")
        return ChunkReply("answer", len(answer), answer[wish.at : wish.at + wish.most])
