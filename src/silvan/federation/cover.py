"""How a site's part of a sum leaves it when nobody may see it: the site's half of sums that hide their parts.

A sum takes several messages then. Each is the question itself, so that blobs and the site's policy apply to it
as ever, and the step of the sum beside it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from silvan.federation.message import Envelope, Reply, Request
from silvan.federation.store import digest

if TYPE_CHECKING:
    from silvan.federation.site import Site


@dataclass(frozen=True)
class Own:
    """A site's own part of a sum; once it is prepared, it is kept between the messages that the sum takes."""

    site: "Site"
    request: Request
    handler: Callable[[Any, Any], Reply]
    hash: str  # of the request

    @property
    def statistic(self) -> str:
        """Name what is summed, alike at all sites of the sum: what one site is asked alone adds up with nothing."""
        alike = self.request.alike()
        return self.hash if alike is None else digest(self.request.kind().encode() + b"\0" + alike)

    def prepare(self) -> Reply:
        """Work the part out; nothing leaves yet."""
        if self._key not in self.site.cache:
            self.site.cache[self._key] = self.handler(self.site, self.request)
        reply: Reply = self.site.cache[self._key]
        return reply

    def forget(self) -> None:
        """Drop the part that was prepared: it is not the one for the sites that the sum is over by now."""
        self.site.cache.pop(self._key, None)

    def release(self) -> Reply:
        """Give the part as the outbox lets it leave, to be hidden."""
        outbox = self.site.outbox
        reply = self.site.cache[self._key] if self._key in self.site.cache else self.handler(self.site, self.request)
        return reply if outbox is None else outbox.release(self.site, self.request, reply)

    @property
    def _key(self) -> tuple[str, str]:
        return "part of a sum", self.hash


class Cover(Protocol):
    """Hides a site's part of a sum. Without one it leaves as it is, to whoever adds."""

    name: str

    def answer(self, site: "Site", envelope: Envelope, own: Own) -> Reply:
        """Take the step that an envelope asks for."""
