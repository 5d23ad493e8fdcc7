"""Federations with masked sums, and a coordinator that performs their steps by hand, honestly or not."""

from dataclasses import dataclass, field

import msgspec
import numpy as np
from helpers.federating import federation_of
from helpers.summing import Number, Numbers, members

from silvan.federation import wire
from silvan.federation.message import Envelope, SumStep, Trouble
from silvan.federation.site import Site
from silvan.federation.store import digest
from silvan.federation.transport import InProcess
from silvan.privacy.aggregation import shamir
from silvan.privacy.aggregation.counters import mask
from silvan.privacy.aggregation.masked_coordinator import MaskedSums
from silvan.privacy.aggregation.masked_site import (
    SEED,
    Confirmed,
    Hidden,
    MaskedPart,
    Opened,
    SumAtSite,
    Turn,
    mask_key,
)
from silvan.privacy.aggregation.sum_members import Ready, SumMember
from silvan.privacy.identity.seal import public_key

REPLIES = {kind.__name__: kind for kind in (Ready, Hidden, Confirmed, Opened, Trouble, Numbers)}


def masked_sites(parts, secure_sum=None, **settings):
    return members(parts, secure_sum=secure_sum or MaskedPart(), **settings)


def masked_of(parts, kind=InProcess, neighbours=None, **settings):
    sites = masked_sites(parts, MaskedPart(neighbours=neighbours))
    return federation_of(sites, MaskedSums(neighbours), kind, **settings)


def read(reply):
    """A reply without its envelope."""
    answer = wire.decode(reply, Envelope)
    return wire.decode(answer.body, REPLIES[answer.kind])


@dataclass
class Coordinator:
    """Sends single steps; the replies so far are available."""

    sites: dict[str, Site]
    sum: str = "sum 1"
    study: str = "study"
    width: int = 64
    neighbours: int | None = None
    keys: dict[str, bytes] = field(default_factory=dict)
    hidden: dict[str, Hidden] = field(default_factory=dict)
    codes: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def turn(self, what, names=(), **changes):
        listed = [SumMember(n, self.keys.get(n) or public_key(self.sites[n].store)) for n in names or self.sites]
        near = len(listed) - 1 if self.neighbours is None else self.neighbours
        turn = Turn(what=what, sum=self.sum, members=listed, neighbours=near, width=self.width)
        return msgspec.structs.replace(turn, **changes)

    def send(self, site, turn, *, which=0, over=None, verb="total", **envelope):
        if over is None:
            over = turn.survivors or [member.site for member in turn.members]
        fields = {"step": SumStep("masked", wire.encode(turn)), "over": over, **envelope}
        named = fields.pop("question", "q")
        sent = Envelope(self.study, named, "", "Number", wire.encode(Number(which=which)), **fields)
        return read(self.sites[site].receive(wire.encode(sent), verb))

    def hide(self, *sites, names=(), which=0, **changes):
        """Makes sites mask their parts, all of them by default."""
        for site in sites or self.sites:
            reply = self.send(site, self.turn("hide", names, **changes), which=which)
            if not isinstance(reply, Hidden):
                return reply
            self.hidden[site] = reply
        return reply

    def confirm(self, *sites, survivors=None, **changes):
        """Sends sites the list of parts in the sum: by default, of all masked ones."""
        survivors = list(self.hidden) if survivors is None else survivors
        for site in sites or survivors:
            reply = self.send(site, self.turn("confirm", survivors=survivors, **changes))
            if not isinstance(reply, Confirmed):
                return reply
            self.codes[site] = reply.codes
        return reply

    def opening(self, site, survivors=None, **changes):
        """The step that opens the sum, with the boxes of the others for the site."""
        survivors = list(self.hidden) if survivors is None else survivors
        others = [name for name in survivors if name != site]
        given = {
            "survivors": survivors,
            "codes": {n: self.codes[n][site] for n in others if site in self.codes.get(n, {})},
            "boxes": {n: self.hidden[n].boxes[site] for n in others if site in self.boxes_of(n)},
        }
        return self.turn("open", **{**given, **changes})

    def boxes_of(self, site):
        return self.hidden[site].boxes if site in self.hidden else {}

    def open(self, site, survivors=None, **changes):
        return self.send(site, self.opening(site, survivors, **changes))


def words(hidden):
    return np.frombuffer(hidden.words, np.uint64)


def recovered(opened, turn, survivors):
    """What a coordinator reconstructs from enough shares: keys of self-masks by site, and of masks with lost sites."""
    names = [member.site for member in turn.members]
    places = [names.index(name) for name in opened]
    near = turn.neighbour_places("study")
    own, shared = {}, {}
    for site in survivors:
        shares = np.stack([np.frombuffer(reply.shares[site], np.uint8) for reply in opened.values()])
        seeds = keys_of(turn, shamir.join(places, shares))
        own[site] = seeds[0]
        lost = [names[i] for i in near[names.index(site)] if names[i] not in survivors]
        shared |= {(site, other): seed for other, seed in zip(lost, seeds[1:], strict=True)}
    return own, shared


def keys_of(turn, joined):
    """Keys of masks, from their seeds."""
    return [mask_key(turn.about("study"), seed.tobytes())[0] for seed in joined.reshape(-1, SEED)]


def without(hidden, plus, minus=()):
    """A masked part after some masks are removed."""
    left = words(hidden).copy()
    mask(left, minus, plus)
    return left


def here_at(coordinator, site):
    """The sum as one of its sites takes part in it."""
    turn = coordinator.turn("hide")
    place = [member.site for member in turn.members].index(site)
    statistic = digest(b"Number\0" + wire.encode(Number()))
    return SumAtSite(coordinator.sites[site], turn, coordinator.study, statistic, place)


def mask_of(coordinator, site, other):
    """The key of the mask that two sites share, as one of them tells it to others."""
    at = here_at(coordinator, site)
    return mask_key(at.about, at.pairs[at.names.index(other)].mask)[0]
