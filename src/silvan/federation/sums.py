"""Sums that sites' replies go into. Here the plainest; those that hide their parts are in ``privacy``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from silvan.errors import FederationError, SiteError
from silvan.federation.federation import Federation
from silvan.federation.journal import Entry
from silvan.federation.message import Envelope, Reply, Request
from silvan.federation.question import Asked
from silvan.federation.store import digest


class TrustedSums:
    """A trusted third party adds and sees each part; in one process it is the coordinator's own process."""

    name = "trusted"
    least = 1

    def total(self, federation: Federation, question: Asked) -> tuple[Reply, dict[str, Entry]]:
        """Add the replies up as they come."""
        total: Reply | None = None
        traffic = {}
        for site, part, entry in federation.exchange(question):
            total = part if total is None else add(total, part, site)
            traffic[site] = entry._replace(body=b"")
        if total is None:
            raise FederationError(f"no site answered {question.kind.__name__}")
        return total, traffic


def add(total: Reply, part: Reply, site: str) -> Reply:
    """Add two replies, field by field: all fields of replies to ``total`` are integer arrays."""
    fields = {}
    for name in total.__struct_fields__:
        a, b = getattr(total, name), getattr(part, name)
        if not isinstance(a, np.ndarray) or a.dtype.kind not in "iu":
            raise FederationError(f"{type(total).__name__}.{name} cannot be summed: it is not an integer array")
        if a.shape != b.shape or a.dtype != b.dtype:
            raise SiteError(site, f"answered with {name} of another shape than the others")
        if a.size:
            high, low = int(a.max()) + int(b.max()), int(a.min()) + int(b.min())
            if high > np.iinfo(a.dtype).max or low < np.iinfo(a.dtype).min:
                raise SiteError(site, f"answered with {name} too large to be added to the others'")
        fields[name] = np.add(a, b, out=a)
    return msgspec.structs.replace(total, **fields)


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
