"""What the ways of summing that hide parts have in common: who takes part, by which key, and a check of the outcome."""

from collections.abc import Mapping, Sequence

import msgspec

from silvan.errors import FederationError, FormatError, RefusedError
from silvan.federation.federation import OVERALL
from silvan.federation.message import Reply
from silvan.federation.question import Asked
from silvan.federation.site import Site
from silvan.privacy.seal import public_key

LEAST = 3
"""Fewest sites in a sum: of two, each takes its own part off the sum and has the other's."""


class Member(msgspec.Struct, frozen=True):
    """A site in a sum, and the key that others seal with for it."""

    site: str
    key: bytes


class Ready(Reply, frozen=True, kw_only=True):
    """A site can take part in a sum; its public key."""

    key: bytes


def place_of(site: Site, members: Sequence[Member], among: int, roster: Mapping[str, bytes] | None, what: str) -> int:
    """Confirm who takes part, at a site, and find its own place among them."""
    mine = Member(site.name, public_key(site.store))
    if not len(members) == among >= LEAST:
        raise RefusedError(f"a {what} needs at least {LEAST} sites, and all that the sum is over")
    if len({m.site for m in members}) < among or len({m.key for m in members}) < among or mine not in members:
        raise RefusedError(f"the {what} does not have every site once, this one with its own key")
    if roster is not None and any(roster.get(m.site) != m.key for m in members):
        raise RefusedError(f"the {what} has a key that is not the one known here")
    return members.index(mine)


def check_ready(site: str, reply: Reply) -> None:
    """Check what a site says is its key."""
    if isinstance(reply, Ready) and len(reply.key) != 32:
        raise FormatError("its key is not a key")


def check_sum(total: Reply, question: Asked, what: str) -> None:
    """Check the sum as its parts would have been; whose part is at fault cannot be told."""
    if question.check is not None:
        try:
            question.check(OVERALL, total)
        except FormatError as error:
            raise FederationError(
                f"the sites' sum for {question.kind.__name__} is unusable: {error}; "
                f"a {what} does not show whose part is at fault"
            ) from None
