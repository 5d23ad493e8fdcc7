"""Sites with given parts of a sum, arrays to sum, and a coordinator that carries a ring by hand."""

from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import numpy as np
from helpers.federating import federation_of
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from silvan.federation import wire
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Envelope, SummedReply, SumStep, Total, Trouble
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.federation.transport import InProcess
from silvan.privacy.aggregation.ring import Hop, Passed, Ready, RingPart, RingSums, Running, SumMember
from silvan.privacy.aggregation.words import WORD
from silvan.privacy.identity.seal import pair_key, public_key, secret_key, unseal

NAMES = ["a", "b", "c", "d", "e", "f"]

DTYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">i4", ">u8"]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


class Numbers(SummedReply, frozen=True, kw_only=True):
    """Some integers."""

    x: np.ndarray
    y: np.ndarray


class Number(Total[Numbers], frozen=True, kw_only=True):
    """The integers of a site."""

    which: int = 0
    apart: bool = False  # whether sites may get different requests

    def alike(self):
        return b"any" if self.apart else None


@contextmanager
def numbers_are_asked():
    """Makes sites reply to the request above with the integers given as a table."""
    calls = []

    @answers(Number)
    def number(site, request):
        calls.append(site.name)
        return site.source[request.which]

    try:
        yield calls
    finally:
        del HANDLERS["Number"]


@st.composite
def fields(draw, n):
    """A field of this many parts of one type and shape, small enough to be added."""
    dtype, shape = np.dtype(draw(st.sampled_from(DTYPES))), draw(SHAPES)
    most = int(np.iinfo(dtype).max) // n
    values = st.integers(-most if dtype.kind == "i" else 0, most)
    return [draw(arrays.arrays(dtype, shape, elements=values)) for _ in range(n)]


def same(a, b):
    return all(
        getattr(a, f).dtype == getattr(b, f).dtype and np.array_equal(getattr(a, f), getattr(b, f)) for f in "xy"
    )


def of(*values, y=(), dtype=np.int32):
    return Numbers(x=np.array(values, dtype), y=np.array(y, np.int64))


def members(parts, secure_sum=True, **settings):
    """A site for each part; a part may have several arrays, for several requests."""
    secure_sum = RingPart() if secure_sum is True else secure_sum
    parts = [part if isinstance(part, list) else [part] for part in parts]
    return {
        name: Site(name, part, secure_sum=secure_sum or None, **settings)
        for name, part in zip(NAMES, parts, strict=False)
    }


def ring_of(parts, kind=InProcess, **settings):
    return federation_of(members(parts), RingSums(), kind, **settings)


@dataclass
class Coordinator:
    """Sends single steps, honestly or not."""

    sites: dict[str, Site]
    sum: str = "sum 1"
    study: str = "study"
    keys: dict[str, bytes] = field(default_factory=dict)

    def ring(self, *names):
        return [SumMember(n, self.keys.get(n) or public_key(self.sites[n].store)) for n in names or self.sites]

    def step(self, site, sealed=b"", *, ring=None, which=0, over=None, hop=None, verb="total", **envelope):
        ring = self.ring() if ring is None else ring
        hop = Hop(self.sum, ring, sealed) if hop is None else hop
        over = [member.site for member in ring] if over is None else over
        fields = {"step": SumStep("ring", wire.encode(hop)), "over": over, **envelope}
        sent = Envelope(self.study, "q", "", "Number", wire.encode(Number(which=which)), **fields)
        answer = wire.decode(self.sites[site].receive(wire.encode(sent), verb), Envelope)
        kinds = {kind.__name__: kind for kind in (Ready, Passed, Numbers, Trouble)}
        return wire.decode(answer.body, kinds[answer.kind])

    def carry(self, until=None, **settings):
        """Carries the sum round, up to what a site passes on, or to the end."""
        ring = settings.setdefault("ring", self.ring())
        sealed = b""
        for member in ring:
            reply = self.step(member.site, sealed, **settings)
            if not isinstance(reply, Passed) or member.site == until:
                return reply
            sealed = reply.sealed
        return self.step(ring[0].site, sealed, **settings)


def overheard(coordinator, receiver, sealed, reader=None, which=0):
    """The content of a box for a site, which the site and the sender can read."""
    ring = coordinator.ring()
    place = [member.site for member in ring].index(receiver)
    pair = ring[place - 1], ring[place]
    other = pair[1] if reader == pair[0].site else pair[0]
    statistic = digest(b"Number\0" + wire.encode(Number(which=which)))
    named = Hop(coordinator.sum, ring).name(coordinator.study, statistic)
    about = msgspec.json.encode([named, *(m.site for m in pair)])
    key = pair_key(secret_key(coordinator.sites[reader or receiver].store), other.key, about)
    running = wire.decode(unseal(key, sealed), Running)
    return running.layout, np.frombuffer(running.counters, WORD)
