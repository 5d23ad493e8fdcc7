"""Messages between coordinator and sites: frozen, typed structs that declare what they disclose.

The ``verb`` of a request says who sees the replies: with ``ask`` the coordinator sees each one, with ``total`` only
their sum. A site refuses a request that arrives by the other verb. Between machines a message travels in an
``Envelope`` that names its request.

Each field of a request declares how it is bound to the study, as in ``n_trees: Fixed[int]``: fixed by the study's text,
agreed by all sites, or derived from sums. A site compares fixed and agreed fields before it touches a row
(``privacy/terms.py``). Derived fields follow from sums that the site does not see: whoever replies checks their shape
and their place in the protocol, and whoever verifies the study checks their values.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from functools import cache, cached_property
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np

from silvan.federation.store import digest
from silvan.util.readable import count_of

T = TypeVar("T")


class Bound(Enum):
    """What determines a field of a request."""

    FIXED = "fixed"
    AGREED = "agreed"
    DERIVED = "derived"
    EACH = "each"  # a struct whose fields each declare their own bound


Fixed = Annotated[T, Bound.FIXED]
Agreed = Annotated[T, Bound.AGREED]
Derived = Annotated[T, Bound.DERIVED]
Each = Annotated[T, Bound.EACH]


@cache
def bounds_of(kind: type[msgspec.Struct]) -> dict[str, Bound | None]:
    """Return what determines each field of a request, or of a struct in one; None if not declared."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, Bound | None] = {}
    for name in kind.__struct_fields__:
        said = [more for more in getattr(hints[name], "__metadata__", ()) if isinstance(more, Bound)]
        found[name] = said[0] if said else None
    return found


Verb = Literal["ask", "total"]

PartitionsWay = Literal["add up", "site"]
"""How a site replies if its rows are partitions on several machines: see ``Request``."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A site's reply."""


R = TypeVar("R", bound=Reply)

PROOF, NO_PROOF = "proof", np.zeros(0, np.int64)


class SummedReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    """A site's part of a sum, or the sum: integer arrays, and a proof if the sites share a key (``proven_sums.py``)."""

    proof: np.ndarray = NO_PROOF


S = TypeVar("S", bound=SummedReply)


class SignedReply(Reply, frozen=True, kw_only=True):
    """A signed reply with an object that other sites will use, such as trees."""

    signature: bytes = b""

    def work(self) -> bytes:
        """Return the signed content, as sent on to other sites."""
        raise NotImplementedError


class ProtocolPosition(NamedTuple):
    """The position of a request in a protocol sequence.

    Each request repeats the digests of all earlier decisions, and the next one adds to them. A request without earlier
    or later decisions is made once.
    """

    name: str
    decided: tuple[str, ...] = ()
    anywhere: bool = False  # whether a site's first request may come after earlier decisions


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the coordinator. It contains everything needed to reply, except blobs."""

    verb: ClassVar[Verb]
    reply: ClassVar[type[Reply]]
    of_rows: ClassVar[bool] = True  # False: the reply does not depend on the site's table
    # if rows are partitions on several machines: the partitions' replies add up, or the site itself replies from their
    # summaries; None: it cannot reply, because all rows would have to be in one place
    partitions: ClassVar[PartitionsWay | None] = None
    narrow: ClassVar[bool] = False  # whether replies are checked with narrowed counters: see ``wire``
    once: ClassVar[bool] = False  # whether it may be made only once, like every sum, unless ``position`` says otherwise
    some_sites: ClassVar[bool] = False  # whether an honest study may sum it over some of its sites, such as a cluster
    after_close: ClassVar[bool] = False  # whether it may follow the verification of a study's sums
    verified: ClassVar[bool] = True  # whether it follows from the study, so that it can be verified

    def __init_subclass__(cls) -> None:
        """Take the reply type from the brackets of ``Ask`` or ``Total``."""
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            for reply in get_args(base):
                cls.reply = reply

    @classmethod
    def kind(cls) -> str:
        """Name of the message on the wire."""
        return cls.__name__

    def describe(self, reply: Any = None) -> str:
        """Describe the request, or the reply, for the ledger that the site's owner reads."""
        asked = (self.__doc__ or self.kind()).split("\n")[0].rstrip(".")
        return f"{asked[0].lower()}{asked[1:]}" + ("" if reply is None else f" ({shapes(reply)})")

    # -- the protocol sequence that a site enforces, see privacy/request_sequence.py

    def position(self) -> ProtocolPosition | None:
        """Return the request's position in the protocol; None if it may be repeated at any time."""
        return ProtocolPosition(self.kind()) if self.verb == "total" or self.once else None

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace for later requests, given the traces of earlier ones; None if the request does not fit them.

        ``further``: the request adds to earlier decisions, or is the first; otherwise it has the same position.
        """
        return b"" if further else None

    def alike(self) -> bytes | None:
        """Return the part of a request that must be equal at all sites of a sum; None: all of it."""
        return None

    def statistic(self, asked: str) -> str:
        """Name the sum, identically at all of its sites; ``asked`` is the digest of the request."""
        alike = self.alike()
        return asked if alike is None else digest(self.kind().encode() + b"\0" + alike)


class Ask(Request, Generic[R], frozen=True, kw_only=True):
    """A request whose replies, of the type in brackets, the coordinator sees one by one."""

    verb: ClassVar[Verb] = "ask"


class Total(Request, Generic[S], frozen=True, kw_only=True):
    """A request with replies of the type in brackets, of which the coordinator sees only the sum."""

    verb: ClassVar[Verb] = "total"


class Blob(msgspec.Struct, frozen=True):
    """A reference to a large object that travels to each site once, such as a model or cut points."""

    hash: str


class Owner(msgspec.Struct, frozen=True):
    """The site that made a blob's content, the task of the study, and the site's signature."""

    site: str
    task: str
    signature: bytes


class SumStep(msgspec.Struct, frozen=True):
    """The state of a secure sum: its protocol, and the data it needs to continue."""

    sums: str
    body: bytes


class Envelope(msgspec.Struct, frozen=True, dict=True):
    """One message in transit: its study and request, its sender, its content."""

    study: str
    question: str  # digest of the request, which a reply repeats
    sender: str
    kind: str  # the name of a request or reply type, or one of the two below
    body: bytes
    blobs: dict[str, bytes] = {}
    over: list[str] = []  # the sites in a sum
    step: SumStep | None = None  # of a secure sum; the body is the request that its parts answer
    task: str = ""  # the part of the study: a model or an evaluation; empty: what comes before
    round: int = 0
    whole: str = ""  # the request, if this is one of its waves
    owners: dict[str, list[Owner]] = {}  # of the body's blobs, by hash: two sites may have made the same one

    @property
    def among(self) -> int:
        """Number of sites in the sum."""
        return len(self.over)

    @cached_property
    def asked(self) -> str:
        """Digest of the request, which all steps of a sum repeat."""
        return request_digest(self.kind, self.body)


def request_digest(kind: str, body: bytes) -> str:
    """Return the digest of a request, from its kind and bytes."""
    return digest(kind.encode() + b"\0" + body)


STALE = "stale"
"""Trouble code for a message that arrived before, or after a newer one: the coordinator sends it again."""

FULL = "full"
"""Trouble code for a full disk: the coordinator retries until there is space."""


UNAVAILABLE = "the database of the site's table does not respond"

LATER = "later"
"""Trouble code for a database that does not respond: the coordinator retries, as for a full disk."""


class Trouble(msgspec.Struct, frozen=True):
    """Why a site could not reply: a code and a fixed text, never a value from its data."""

    code: str
    text: str


OWNER_HINT = {"schema": "where", "records": "which", "input": "why", "internal": "why"}
"""What only the site's owner learns about an error, by code: ``silvan site status`` shows it."""


class Missing(msgspec.Struct, frozen=True):
    """The blobs of a request that a site lacks and asks for."""

    hashes: list[str]


_ELEMENTS = {"i": "whole numbers", "u": "whole numbers", "f": "numbers", "b": "truth values"}


def shapes(reply: msgspec.Struct) -> str:
    """Describe the fields and sizes of a reply, without any values."""
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
