"""Messages between coordinator and sites: frozen, typed structs that declare what they disclose.

A request says by its ``verb`` who will see the answers: ``ask`` shows every site's reply to the coordinator,
``total`` only their sum. A site refuses a request that comes by the other verb. Between machines a message
travels in an ``Envelope`` that says which question it belongs to.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_args

import msgspec
import numpy as np

from silvan.federation.store import digest
from silvan.util.readable import count_of

Verb = Literal["ask", "total"]

PartitionsWay = Literal["add up", "site"]
"""How a site answers whose rows are partitions on several machines: see ``Request``."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a site answers."""


R = TypeVar("R", bound=Reply)

PROOF, NO_PROOF = "proof", np.zeros(0, np.int64)


class SummedReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """A site's part of a sum, or the sum: integer arrays, and a proof if the sites share a key (``proven_sums.py``)."""

    proof: np.ndarray = NO_PROOF


S = TypeVar("S", bound=SummedReply)


class SignedReply(Reply, frozen=True, kw_only=True):
    """A signed reply with an object that other sites will use: trees, stumps."""

    signature: bytes = b""

    def work(self) -> bytes:
        """Return the signed content, as sent on to other sites."""
        raise NotImplementedError


class ProtocolPosition(NamedTuple):
    """The position of a request in a sequence.

    Each repeats, by digests, all that was decided before it, and the next adds to that. Questions that nothing was
    decided before, and nothing comes after, are asked once.
    """

    name: str
    decided: tuple[str, ...] = ()
    anywhere: bool = False  # whether a site may be asked for the first time when something was decided already


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator's request. It contains everything needed to reply, except blobs."""

    verb: ClassVar[Verb]
    reply: ClassVar[type[Reply]]
    of_rows: ClassVar[bool] = True  # False: the answer is the same whatever the site's table holds
    # of rows in partitions on several machines: the answers of partitions add up, or the site itself answers, from what
    # it is told of them; None: it does not answer, since all rows would have to be in one place
    partitions: ClassVar[PartitionsWay | None] = None
    narrow: ClassVar[bool] = False  # whether the check of replies takes counters as they were sent: see ``wire``
    once: ClassVar[bool] = False  # whether it may be asked once only, as every sum; unless ``course`` says otherwise
    some_sites: ClassVar[bool] = False  # whether an honest study may sum it over some of its sites: a cluster
    after_close: ClassVar[bool] = False  # whether it may be asked in a study whose sums were verified
    verified: ClassVar[bool] = True  # whether it follows from the study, by which it is verified

    def __init_subclass__(cls) -> None:
        """Take the type of replies from the brackets of ``Ask`` or ``Total``."""
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            for reply in get_args(base):
                cls.reply = reply

    @classmethod
    def kind(cls) -> str:
        """Name of the message on the wire."""
        return cls.__name__

    def describe(self, reply: Any = None) -> str:
        """Describe the request, or the reply, in plain words; the ledger shows this to the site's owner."""
        asked = (self.__doc__ or self.kind()).split("\n")[0].rstrip(".")
        return f"{asked[0].lower()}{asked[1:]}" + ("" if reply is None else f" ({shapes(reply)})")

    # -- what a site holds a coordinator to, see privacy/request_sequence.py

    def position(self) -> ProtocolPosition | None:
        """Return the request's position in the protocol; None if it may be repeated at any time."""
        return ProtocolPosition(self.kind()) if self.verb == "total" or self.once else None

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace for later requests, given those of earlier ones; None if the request does not fit them.

        ``further``: the question adds to what was decided, or is the first; otherwise it stands beside the others.
        """
        return b"" if further else None

    def alike(self) -> bytes | None:
        """Return the part of a request that must be equal at all sites of a sum; None for everything."""
        return None

    def statistic(self, asked: str) -> str:
        """Name the sum, identically at all of its sites; ``asked`` is the digest of the request."""
        alike = self.alike()
        return asked if alike is None else digest(self.kind().encode() + b"\0" + alike)


class Ask(Request, Generic[R], frozen=True, kw_only=True):
    """A request whose replies, of the type in brackets, the coordinator sees one by one."""

    verb: ClassVar[Verb] = "ask"


class Total(Request, Generic[S], frozen=True, kw_only=True):
    """A request of whose replies, of the type in brackets, the coordinator sees only the sum."""

    verb: ClassVar[Verb] = "total"


class Blob(msgspec.Struct, frozen=True):
    """Stands in a request for something large that travels once: a model, a table of cut points."""

    hash: str


class Owner(msgspec.Struct, frozen=True):
    """The site that made a blob's content, the task of the study, and the site's signature."""

    site: str
    task: str
    signature: bytes


class SumStep(msgspec.Struct, frozen=True):
    """The state of a secure sum: the protocol, and the data it needs to continue."""

    sums: str
    body: bytes


class Envelope(msgspec.Struct, frozen=True, dict=True):
    """One message in transit: its study and request, its sender, its content."""

    study: str
    question: str  # digest of the question; a reply repeats it
    sender: str
    kind: str  # a request's or reply's name, or one of the two below
    body: bytes
    blobs: dict[str, bytes] = {}
    over: list[str] = []  # the sites in a sum
    step: SumStep | None = None  # of a sum that hides its parts; the body is what the part answers
    task: str = ""  # what of the study it is for: a model, a judgement; empty: what comes before
    round: int = 0
    whole: str = ""  # the question, where this is one wave of it
    owners: dict[str, list[Owner]] = {}  # of blobs that the body refers to, by hash: two sites may make the same

    @property
    def among(self) -> int:
        """How many sites are in the sum."""
        return len(self.over)

    @cached_property
    def asked(self) -> str:
        """Digest of the request, whatever it is sent for: all steps of a sum repeat it."""
        return request_digest(self.kind, self.body)


def request_digest(kind: str, body: bytes) -> str:
    """Name a request by its kind and its bytes."""
    return digest(kind.encode() + b"\0" + body)


STALE = "stale"
"""Code of trouble with a message that came before, or after a newer one: the coordinator sends it anew."""

FULL = "full"
"""Code of trouble with a site's disk: the coordinator asks again until there is room."""


UNAVAILABLE = "the database of the site's table does not answer now"

LATER = "later"
"""Code of trouble with the database of a site's table: the coordinator asks again, as for a full disk."""


class Trouble(msgspec.Struct, frozen=True):
    """A site could not answer: a code and a fixed text, never a value from its data."""

    code: str
    text: str


OWNER_HINT = {"schema": "where", "records": "which", "input": "why", "internal": "why"}
"""What only a site's owner learns of a trouble, by its code: between machines, ``silvan site status`` shows it."""


class Missing(msgspec.Struct, frozen=True):
    """A site lacks blobs that a request refers to and asks to be sent them."""

    hashes: list[str]


_ELEMENTS = {"i": "whole numbers", "u": "whole numbers", "f": "numbers", "b": "truth values"}


def shapes(reply: msgspec.Struct) -> str:
    """Describe the contents and size of a reply, without any of its values."""
    said = []
    for name in reply.__struct_fields__:
        value, words = getattr(reply, name), name.replace("_", " ")
        if name == PROOF and not len(value):
            continue
        if isinstance(value, np.ndarray):
            size = " x ".join(f"{n:,}" for n in value.shape) or "1"
            said.append(f"{words}: {size} {_ELEMENTS.get(value.dtype.kind, 'elements')}")
        elif isinstance(value, bytes | memoryview):
            said.append(f"{words}: {count_of(len(value), 'byte')}")
        elif isinstance(value, list | tuple | dict):
            said.append(f"{words}: {len(value):,}")
        elif value is not None:
            said.append(words)
    return ", ".join(said) or "nothing but that it is done"


def blobs_in(request: Request) -> list[str]:
    """List the hashes of the blobs that a request refers to."""
    return list(_hashes_in(request))


def _hashes_in(value: Any) -> Iterator[str]:
    parts: Iterable[Any] = ()
    if isinstance(value, Blob):
        yield value.hash
    elif isinstance(value, list | tuple):
        parts = value
    elif isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, msgspec.Struct):
        parts = msgspec.structs.astuple(value)
    for part in parts:
        yield from _hashes_in(part)
