"""Messages in chunks: what is too large to travel at once is cut, carried piece by piece, and put together again.

Every chunk gets a reply. The last chunk of a message is answered; a long answer is fetched piece
by piece. Both ends keep one message at a time, and a site that was restarted in between says that it lacks what came
before: the message is then sent again.
"""

import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.message import Verb
from silvan.federation.question import UnreachedError
from silvan.federation.store import digest

PIECE = 8 << 20
"""Bytes that travel at once."""


PING = ""
"""Names a chunk that only finds out whether the site is there."""


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a message to a site; of no pieces (``count`` 0): a wish for a piece of the answer."""

    id: str
    index: int
    count: int = 0
    verb: Verb = "ask"
    data: bytes = b""


class ChunkReply(msgspec.Struct, frozen=True):
    """What comes back: a piece of the answer, or what to do."""

    what: Literal["kept", "answer", "lacking", "waiting", "refused"]
    count: int = 0
    data: bytes = b""
    text: str = ""  # of waiting and refusals: why
    seconds: float = 0.0  # of an answer: how long the site was at work


Carry = Callable[[bytes], bytes]
"""Brings bytes to a site and those that it gives back; raises ``UnreachedError`` if that cannot be done now."""


def pieces(data: bytes, size: int = PIECE) -> list[bytes]:
    """Cut bytes; of nothing there is one piece."""
    return [data[at : at + size] for at in range(0, len(data), size)] or [b""]


def send_in_chunks(carry: Carry, data: bytes, verb: Verb, size: int = PIECE) -> tuple[bytes, float]:
    """Bring a message to a site; give its answer, and how many seconds the site says that it was at work."""
    name, cut = digest(data), pieces(data, size)
    reply = ChunkReply("lacking")
    for index, piece in enumerate(cut):
        reply = _read_reply(carry(wire.encode(Chunk(name, index, len(cut), verb, piece))))
        if reply.what != ("answer" if index == len(cut) - 1 else "kept"):
            break
    answer = [_piece(reply)]
    if not 1 <= reply.count <= wire.MAX_MESSAGE // size + 1:
        raise FormatError("an answer in so many pieces is none")
    for index in range(1, reply.count):
        answer.append(_piece(_read_reply(carry(wire.encode(Chunk(name, index))))))
    return b"".join(answer), reply.seconds


def ping(carry: Carry) -> None:
    """See whether a site is there; raises ``UnreachedError`` if not."""
    _read_reply(carry(wire.encode(Chunk(PING, 0))))


def _read_reply(data: bytes) -> ChunkReply:
    return wire.decode(data, ChunkReply)


def _piece(reply: ChunkReply) -> bytes:
    text = "".join(c for c in reply.text if c.isprintable())[:200]
    if reply.what == "waiting":
        raise UnreachedError(text)
    if reply.what == "refused":
        raise RefusedError(text)
    if reply.what != "answer":
        raise UnreachedError("the site was restarted while a message came in")
    return reply.data


class ChunkServer:
    """Takes chunks in at a site, and hands out answers; one message after the other.

    Parameters
    ----------
    receive
        Answers a message that came by a verb.
    ready
        Returns a reply that says why the site does not answer yet, or at all; None if it does.
    size
        Bytes of an answer that leave at once.
    """

    def __init__(
        self,
        receive: Callable[[bytes, Verb], bytes],
        ready: Callable[[], ChunkReply | None] = lambda: None,
        size: int = PIECE,
    ) -> None:
        self._receive, self._ready, self._size = receive, ready, size
        self._lock = threading.Lock()
        self._coming: tuple[str, dict[int, bytes]] = ("", {})
        self._leaving: tuple[str, list[bytes]] = ("", [])

    def take(self, data: bytes) -> bytes:
        """Take a chunk and return the reply to it; raise ``FormatError`` for anything else."""
        chunk = wire.decode(data, Chunk)
        if chunk.id == PING:  # answered at once, however busy the site is
            return wire.encode(ChunkReply("kept"))
        with self._lock:
            return wire.encode(self._take(chunk) if chunk.count else self._fetch(chunk))

    def _take(self, chunk: Chunk) -> ChunkReply:
        held = self._ready()
        if held is not None:
            return held
        if not (1 <= chunk.count <= wire.MAX_MESSAGE // self._size + 1 and 0 <= chunk.index < chunk.count):
            raise FormatError("a chunk says that it is of too many, or is not one of them")
        name, come = self._coming
        if name != chunk.id or chunk.index == 0:
            self._coming = name, come = chunk.id, {}
        come[chunk.index] = chunk.data
        if chunk.index < chunk.count - 1:
            return ChunkReply("kept")
        self._coming = "", {}
        if len(come) < chunk.count or sum(map(len, come.values())) > wire.MAX_MESSAGE:
            return ChunkReply("lacking")
        message = b"".join(come[index] for index in range(chunk.count))
        begun = time.monotonic()
        self._leaving = chunk.id, pieces(self._receive(message, chunk.verb), self._size)
        return ChunkReply("answer", len(self._leaving[1]), self._leaving[1][0], seconds=time.monotonic() - begun)

    def _fetch(self, wish: Chunk) -> ChunkReply:
        name, cut = self._leaving
        if wish.id != name or not 0 <= wish.index < len(cut):
            return ChunkReply("lacking")
        return ChunkReply("answer", len(cut), cut[wish.index])
