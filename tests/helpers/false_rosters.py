"""Lies about who takes part, in every field that names sites or their keys.

These are the sites of a sum, its members and their keys, the remaining sites, makers of blobs, and partners for shared
keys. A site is left out, repeated, invented, swapped with another or given another key, in all of these fields alike or
only in some of them. Two messages of a study may have different lists.
"""

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import msgspec

from silvan.federation import wire
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Envelope
from silvan.federation.site import Site
from silvan.privacy.aggregation.masked_site import Turn
from silvan.privacy.aggregation.ring import Hop
from silvan.privacy.aggregation.sum_members import MIN_SITES, SumMember

STEPS: dict[str, type[Turn | Hop]] = {"masked": Turn, "ring": Hop}
WAYS = ("without", "twice", "one more", "another", "turned round", "other key", "shared key", "made up", "one alone")
OWN_KEYS = [bytes([i + 1]) * 32 for i in range(8)]
"""Keys of the coordinator's own, as good as any."""


class FalseRosters:
    """Makes false lists from true ones; ``sites`` has all names."""

    def __init__(self, sites: list[str], pick: random.Random) -> None:
        self.sites, self.random = sites, pick

    def lie(self, envelope: Envelope) -> Envelope:
        """Returns a message with another list of sites, or unchanged if it has none."""
        pick = self.random
        known = [name for name in self.sites if name in envelope.over] or self.sites
        self.way, self.victim, self.other = pick.choice(WAYS), pick.choice(known), pick.choice(known)
        self.everywhere = pick.random() < 0.7
        request = self._changed(wire.decode(envelope.body, HANDLERS[envelope.kind][0]))
        change: dict[str, Any] = {"body": wire.encode(request), "over": self._changed(envelope.over)}
        if envelope.step is not None:
            step = self._changed(wire.decode(envelope.step.body, STEPS[envelope.step.sums]))
            change["step"] = msgspec.structs.replace(envelope.step, body=wire.encode(step))
        change["owners"] = {
            hash_: [msgspec.structs.replace(owner, site=self._name(owner.site)) for owner in owners]
            for hash_, owners in envelope.owners.items()
        }
        return msgspec.structs.replace(envelope, **change)

    def _changed(self, value: Any) -> Any:
        """Returns a value with the lie wherever it names sites."""
        if isinstance(value, str):
            return self._name(value)
        if isinstance(value, list | tuple) and value:
            if all(isinstance(item, SumMember) for item in value):
                return type(value)(self._members(list(value))) if self._here() else value
            if all(isinstance(item, str) and item in self.sites for item in value):
                return type(value)(self._names(list(value))) if self._here() else value
            return type(value)(map(self._changed, value))
        if isinstance(value, dict) and value and all(name in self.sites for name in value):
            return self._mapping(value) if self._here() else value
        if isinstance(value, msgspec.Struct):
            fields = {name: self._changed(getattr(value, name)) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **fields)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return value  # settings: they name no sites
        return value

    def _here(self) -> bool:
        return self.everywhere or self.random.random() < 0.5

    def _name(self, name: str) -> str:
        if name != self.victim or self.way not in ("another", "made up") or not self._here():
            return name
        return "nobody"

    def _names(self, names: list[str]) -> list[str]:
        ways: dict[str, Callable[[], list[str]]] = {
            "without": lambda: [name for name in names if name != self.victim],
            "twice": lambda: [*names, self.victim],
            "one more": lambda: [*names, "nobody"],
            "another": lambda: ["nobody" if name == self.victim else name for name in names],
            "turned round": lambda: names[::-1],
            "made up": lambda: [name if name == self.other else f"nobody {i}" for i, name in enumerate(names)],
            "one alone": lambda: [self.victim],
        }
        return ways[self.way]() if self.way in ways else names

    def _members(self, members: list[SumMember]) -> list[SumMember]:
        keys = {member.site: member.key for member in members}
        if self.way == "other key":
            keys[self.victim] = OWN_KEYS[0]
        if self.way == "shared key":
            keys[self.victim] = keys.get(self.other, OWN_KEYS[0])
        named = self._names([member.site for member in members])
        return [SumMember(name, keys.get(name, OWN_KEYS[i % len(OWN_KEYS)])) for i, name in enumerate(named)]

    def _mapping(self, value: dict[str, Any]) -> dict[str, Any]:
        if self.way in ("other key", "shared key") and isinstance(value.get(self.victim), bytes):
            own = value.get(self.other, OWN_KEYS[0]) if self.way == "shared key" else OWN_KEYS[0]
            return {**value, self.victim: own}
        some = next(iter(value.values()))
        return {name: value.get(name, some) for name in self._names(list(value))}


def false_roster(site: Site, envelope: Envelope, makers: Callable[[str], set[str]]) -> str:
    """Describes what is false in the lists of sites of an answered message; empty if nothing is."""
    request = wire.decode(envelope.body, HANDLERS[envelope.kind][0])
    seals = {} if site.signer is None else site.signer.roster.seals
    if request.verb == "total":
        if len(set(envelope.over)) < len(envelope.over) or site.name not in envelope.over:
            return "the sum is not over every site once, this one included"
        if site.signer is not None and not set(envelope.over) <= set(site.signer.roster.sites):
            return "the sum is over sites that are not on the roster"
    if envelope.step is not None:
        step = wire.decode(envelope.step.body, STEPS[envelope.step.sums])
        members = step.members if isinstance(step, Turn) else step.ring
        said = "" if getattr(step, "what", "") == "key" or not members else _false_members(site, members, envelope.over)
        if said:
            return said
    if envelope.kind == "DealKey" and not (
        len(set(request.sites)) == len(request.sites)
        and set(request.sites) <= set(getattr(site, "seals", seals)) - {site.name}
    ):
        return "a key is shared with sites that are not on the roster"
    for owner, blob in zip(getattr(request, "owners", []), getattr(request, "forests", []), strict=False):
        if owner not in makers(blob.hash):
            return "trees are taken for those of a site that did not make them"
    return ""


def _false_members(site: Site, members: list[SumMember], over: list[str]) -> str:
    names, keys = [member.site for member in members], {member.site: member.key for member in members}
    if len(keys) < len(names) or len(set(keys.values())) < len(names) or len(names) < MIN_SITES:
        return "the members are too few, or not every site with a key of its own once"
    if site.name not in keys or not set(over) <= set(keys):
        return "the sum is over others than its members"
    roster = site.secure_sum.roster
    if roster is not None and any(roster.get(name) != key for name, key in keys.items()):
        return "a member has a key that is not on the roster"
    return ""
