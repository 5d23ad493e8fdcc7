"""What ring and masked sums share: the members of a sum with their keys, and a check of the result."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from silvan.errors import FederationError, FormatError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.journal import Entry
from silvan.federation.members import OVERALL
from silvan.federation.message import Reply
from silvan.federation.outgoing import Asked
from silvan.federation.site import Site
from silvan.federation.store import CacheKey
from silvan.privacy.identity.seal import public_key

MIN_SITES = 3
"""Minimum number of sites in a sum: with two, each could subtract its part and learn the other's."""


class SumMember(msgspec.Struct, frozen=True):
    """A site in a sum, and the key that others seal with for it."""

    site: str
    key: bytes


class Ready(Reply, frozen=True, kw_only=True):
    """A site can take part in a sum; its public key."""

    key: bytes


def place_of(
    site: Site, members: Sequence[SumMember], among: int, roster: Mapping[str, bytes] | None, what: str
) -> int:
    """Check the members of a sum, at a site, and return the site's own position among them."""
    mine = SumMember(site.name, site.cache.once(CacheKey[bytes]("own key"), lambda: public_key(site.store)))
    if not len(members) == among >= MIN_SITES:
        raise RefusedError(f"a {what} needs at least {MIN_SITES} sites, and all that the sum is over")
    if len({m.site for m in members}) < among or len({m.key for m in members}) < among or mine not in members:
        raise RefusedError(f"the {what} does not have every site once, this one with its own key")
    if roster is not None and any(roster.get(m.site) != m.key for m in members):
        raise RefusedError(f"the {what} has a key that is not the one known here")
    return members.index(mine)


def traffic(total: Reply, question: Asked, sites: Iterable[str]) -> dict[str, Entry]:
    """Return the traffic of the sites in a sum, as entries without a body."""
    kind = type(total).__name__
    return {site: Entry(kind, b"", question.sent[site], question.received[site]) for site in sites}


def losses(federation: Federation) -> str:
    """Return why sites were lost, to be added to an error."""
    return "".join(f"; {text}" for text in federation.lost.values())


def check_ready(site: str, reply: Reply) -> None:
    """Check the key that a site sends."""
    if isinstance(reply, Ready) and len(reply.key) != 32:
        raise FormatError("its key is not a key")


def check_sum(total: Reply, question: Asked, what: str) -> None:
    """Check the sum in place of single replies; the site with a wrong part remains unknown."""
    if question.check is not None:
        try:
            question.check(OVERALL, total)
        except FormatError as error:
            raise FederationError(
                f"the sites' sum for {question.kind.__name__} is unusable: {error}; "
                f"a {what} does not show whose part is at fault"
            ) from None
