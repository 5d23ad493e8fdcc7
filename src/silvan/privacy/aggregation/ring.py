"""Ring sums: passed from site to site, the thesis's secure sum (section 4.3) with an offset for every counter.

The first site hides its part by adding random offsets modulo 2^64 (Eq. 4.1), every other adds its own to what
its neighbour passes on, and the first subtracts its offsets from what comes back. The thesis's Eq. 4.2 has one offset
for all counts of a matrix, which shows their differences: here every counter has its own, fresh for each sum.
What goes from site to site is sealed, so the coordinator carries it unread. A sum takes one wave of messages in
which all sites prepare their parts and send their public keys, then one per site, then one for the sum.

Anyone who controls both neighbours of a site learns its part: see docs/sums.md.
"""

import secrets
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import numpy as np

from silvan.errors import FederationError, FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.journal import SUM, Entry
from silvan.federation.message import Envelope, Reply, SumStep
from silvan.federation.outgoing import Asked
from silvan.federation.site import Own, Site
from silvan.federation.store import digest
from silvan.privacy.aggregation.counters import PartLayout, flatten, offsets, unflatten
from silvan.privacy.aggregation.sum_members import (
    MIN_SITES,
    Ready,
    SumMember,
    check_ready,
    check_sum,
    losses,
    place_of,
    traffic,
)
from silvan.privacy.aggregation.words import WORD
from silvan.privacy.identity.seal import pair_key, public_key, seal, secret_key, unseal
from silvan.privacy.noise.noisy_request import Noisy

# -- messages


class Hop(msgspec.Struct, frozen=True):
    """One step: without a ring get ready; else start, add to what is sealed, or, first again, end."""

    sum: str = ""
    ring: list[SumMember] = []
    sealed: bytes = b""

    def name(self, study: str, statistic: str) -> str:
        """Identify the sum by everything that defines it, so that a box from one sum does not open in another."""
        ring = [(member.site, member.key.hex()) for member in self.ring]
        return digest(msgspec.json.encode([study, self.sum, ring, statistic]))


class Passed(Reply, frozen=True, kw_only=True):
    """A running sum, sealed for the next site."""

    sealed: bytes


class Running(msgspec.Struct, frozen=True):
    """A running sum as the next site sees it: masked by the first site's offsets."""

    layout: PartLayout
    counters: bytes


class Pad(msgspec.Struct, frozen=True):
    """What the first site keeps of a sum: the seed of its offsets, and what they were used for."""

    seed: bytes
    layout: PartLayout
    part: str


# -- at a site


class RingPart:
    """The cover of a site whose parts of sums leave it only in a ring.

    ``roster`` has the public keys that the site's owner knows to be the others'. Without one the site takes the
    keys that the coordinator hands out, and a coordinator that hands out its own could read what it carries.
    """

    name = "ring"

    def __init__(self, roster: Mapping[str, bytes] | None = None) -> None:
        self.roster = roster

    def withstands(self, n: int) -> int:
        """Return how many sites may collude: one, as both neighbours of a site see its part."""
        return 1

    def answer(self, site: Site, envelope: Envelope, own: Own) -> Reply:
        """Perform one step of a ring sum."""
        hop = wire.decode(b"" if envelope.step is None else envelope.step.body, Hop)
        if not hop.ring:
            own.prepare()
            return Ready(key=public_key(site.store))
        place = place_of(site, hop.ring, envelope.among, self.roster, "ring")
        names = [member.site for member in hop.ring]
        if names != sorted(names):  # the first site ends a sum, and must not change from sum to sum
            raise RefusedError("a ring goes round in the order of its sites' names")
        name = hop.name(envelope.study, own.statistic)
        kept = f"pad {digest(f'{name} {own.hash}'.encode())}"

        def received() -> Running:
            return wire.decode(unseal(_key_of_link(site, hop, name, place, -1), hop.sealed), Running)

        if place == 0 and hop.sealed:
            total = _finish(site, kept, received(), digest(hop.sealed), own)
            _check_finished_once(site, envelope, own)
            return total
        if isinstance(own.request, Noisy) and own.request.sharers > 1:
            own.forget()  # shares of noise are sampled for the sites of the ring, and some may have been lost since
        layout, counters = flatten(own.release(), len(hop.ring))
        if place == 0:
            counters = counters + offsets(_pad(site, kept, layout, counters).seed, len(counters))
        else:
            counters = counters + _read_counters(received(), layout)
        running = wire.encode(Running(layout, counters.tobytes()))
        return Passed(sealed=seal(_key_of_link(site, hop, name, place, 1), running))


def _key_of_link(site: Site, hop: Hop, sum_: str, place: int, step: int) -> bytes:
    """Return the key by which running sums are sealed from the site before to this one, or from this to the next."""
    ring = hop.ring
    here, other = ring[place], ring[(place + step) % len(ring)]
    sender, receiver = (here, other) if step > 0 else (other, here)
    purpose = msgspec.json.encode([sum_, sender.site, receiver.site])
    return pair_key(secret_key(site.store), other.key, purpose)


def _read_counters(running: Running, layout: PartLayout) -> np.ndarray:
    """Read the counters of a running sum, and check that it has the shape of the site's own part."""
    words, left = divmod(len(running.counters), WORD.itemsize)
    if running.layout != layout or left or words != layout.words():
        raise RefusedError("the sum so far is of another shape than the site's part")
    return np.frombuffer(running.counters, WORD)


def _pad(site: Site, kept: str, layout: PartLayout, counters: np.ndarray) -> Pad:
    """Return the offsets of a sum: sampled once, used for one part, the same for a repeated request."""
    part = digest(counters.tobytes())
    known = site.store.get(kept)
    if known is None:
        pad = Pad(secrets.token_bytes(32), layout, part)
        site.store.put(kept, wire.encode(pad))
        return pad
    pad = wire.decode(known, Pad)
    if (pad.layout, pad.part) != (layout, part):
        raise RefusedError("the site's part is another than when the sum was started")
    return pad


def _check_finished_once(site: Site, envelope: Envelope, own: Own) -> None:
    """Check that sums of one statistic are over one set of sites: a difference would reveal other sites' parts."""
    once = f"ended {digest(msgspec.json.encode([envelope.study, own.statistic]))}"
    if not site.store.settles(once, msgspec.json.encode(sorted(envelope.over))):
        raise RefusedError("the site has ended a sum of the same over other sites")


def _finish(site: Site, kept: str, running: Running, box: str, own: Own) -> Reply:
    """Subtract the offsets and return the sum; once, so that no two sums differ by one site's part."""
    known = site.store.get(kept)
    if known is None:
        raise RefusedError("the site did not start this sum")
    pad = wire.decode(known, Pad)
    counters = _read_counters(running, pad.layout)
    if not site.store.settles(f"{kept} ended", box.encode()):
        raise RefusedError("the site has ended this sum, with another outcome")
    return unflatten(pad.layout, counters - offsets(pad.seed, len(counters)), own.request.reply)


# -- at the coordinator


class RingSums:
    """The way of summing that passes a sum round the ring of its sites, in the order of their names.

    If the quorum allows it, a site lost on the way is left out and the ring starts again: with other sites it is
    another sum, with other offsets.
    """

    name = "ring"
    least = MIN_SITES

    def must_stay(self, n: int) -> int:
        """Return the minimum number of sites in a ring."""
        return MIN_SITES

    def total(self, federation: Federation, question: Asked) -> tuple[Reply, dict[str, Entry]]:
        """Pass the sum round, and return it."""
        _check_size(federation, question, list(question.requests))
        ring, total = self._resume(federation, question)
        if total is None:
            ring = self._gather(federation, question)
        while total is None:
            ring = [member for member in ring if member.site not in federation.lost]
            _check_size(federation, question, [member.site for member in ring])
            total = self._carry(federation, question, ring)
        check_sum(total, question, self.name)
        return total, traffic(total, question, [member.site for member in ring])

    def _resume(self, federation: Federation, question: Asked) -> tuple[list[SumMember], Reply | None]:
        """Finish a sum that had already passed all sites when the coordinator stopped.

        The first site may have sent the sum and sends no other, not even one without a site that was lost meanwhile.
        """
        known = federation.journal.find(_journal_key(question, list(question.requests))).get(SUM)
        if known is None:
            return [], None
        hop = wire.decode(known.body, Hop)
        try:
            return hop.ring, self._send(federation, question, hop, hop.ring[0].site, question.kind.reply)
        except RefusedError:  # a site in the coordinator's process has forgotten the sum, and may start again
            return [], None

    def _gather(self, federation: Federation, question: Asked) -> list[SumMember]:
        """Ask all sites at once to prepare their parts, and for their keys."""
        wave = replace(self._wave(question, Hop(), Ready), over=list(question.requests))
        keys = {site: reply.key for site, reply, _ in federation.exchange(wave) if isinstance(reply, Ready)}
        return [SumMember(site, keys[site]) for site in sorted(question.requests) if site in keys]

    def _carry(self, federation: Federation, question: Asked, ring: list[SumMember]) -> Reply | None:
        """Go round once, and back to the first for the sum; return None if a site was lost on the way."""
        sealed = b""
        for i, member in enumerate([*ring, ring[0]]):
            hop, last = Hop(question.name, ring, sealed), i == len(ring)
            if last:
                entry = Entry(Hop.__name__, wire.encode(hop), 0, 0)
                federation.journal.keep(_journal_key(question, [member.site for member in ring]), {SUM: entry})
            reply = self._send(federation, question, hop, member.site, question.kind.reply if last else Passed)
            if not isinstance(reply, Passed):
                return reply
            sealed = reply.sealed
        return None

    def _send(self, federation: Federation, question: Asked, hop: Hop, site: str, answer: type[Reply]) -> Reply | None:
        """Send a site its step; return its reply, or None if it was lost."""
        wave = self._wave(question, hop, answer)
        to, over = {site: question.requests[site]}, [member.site for member in hop.ring]
        replies = [reply for _, reply, _ in federation.exchange(replace(wave, requests=to, over=over))]
        return replies[0] if replies else None

    def _wave(self, question: Asked, hop: Hop, answer: type[Reply]) -> Asked:
        return replace(question, step=SumStep(self.name, wire.encode(hop)), answer=answer, check=_check_step)


def _journal_key(question: Asked, sites: list[str]) -> str:
    """Return the journal's name for a sum that has gone round."""
    return digest(msgspec.json.encode(["ring", question.name, sorted(sites)]))


def _check_step(site: str, reply: Reply) -> None:
    check_ready(site, reply)
    if isinstance(reply, Passed) and not reply.sealed:
        raise FormatError("it passed nothing on")


def _check_size(federation: Federation, question: Asked, sites: list[str]) -> None:
    if len(sites) < MIN_SITES:
        raise FederationError(
            f"{question.kind.__name__} cannot be summed in a ring of {' and '.join(sites) or 'no site'}: with fewer "
            f"than {MIN_SITES}, each learns the other's part by taking its own off the sum{losses(federation)}"
        )
