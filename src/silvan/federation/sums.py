"""Trusted sums, whose parts the coordinator sees. Secure aggregation is in ``privacy/aggregation``."""

from dataclasses import replace

import msgspec
import numpy as np

from silvan.errors import FederationError, SiteError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.journal import Entry
from silvan.federation.message import Reply
from silvan.federation.outgoing import Asked


class TrustedSums:
    """A trusted third party adds the parts and sees each one; in one process this is the coordinator."""

    name = "trusted"
    least = 1

    def must_stay(self, n: int) -> int:
        """Return 1: a sum covers the sites that are left."""
        return 1

    def total(self, federation: Federation, question: Asked) -> tuple[Reply, dict[str, Entry]]:
        """Add up the replies as they arrive."""
        total: Reply | None = None
        traffic: dict[str, Entry] = {}
        for site, part, entry in federation.exchange(replace(question, narrow=question.kind.narrow)):
            total = _widen(part) if total is None else add(total, part, site, list(traffic))
            traffic[site] = entry._replace(body=b"")
        if total is None:
            raise FederationError(f"no site answered {question.kind.__name__}")
        return total, traffic


def _widen(reply: Reply) -> Reply:
    """Return a reply whose narrowed counters have their original element type again."""
    fields = {name: getattr(reply, name) for name in reply.__struct_fields__}
    arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
    wide = {name: value.astype(wire.element_type(value), copy=False) for name, value in arrays.items()}
    return msgspec.structs.replace(reply, **wide)


def add(total: Reply, part: Reply, site: str, before: list[str]) -> Reply:
    """Add a site's reply to the total, field by field: replies to ``total`` have integer arrays only."""
    fields = {}
    for name in total.__struct_fields__:
        a, b = getattr(total, name), getattr(part, name)
        if not isinstance(a, np.ndarray) or a.dtype.kind not in "iu":
            raise FederationError(f"{type(total).__name__}.{name} cannot be summed: it is not an integer array")
        if a.shape != b.shape or a.dtype != wire.element_type(b):
            raise SiteError(site, f"answered with {name} of another shape than the others")
        if a.size:
            high, low, limits = int(b.max()), int(b.min()), np.iinfo(a.dtype)
            if int(a.max()) + high > limits.max or (low < 0 and int(a.min()) + low < limits.min):
                others = ", ".join(map(repr, before))  # any of which may be the wrong one
                raise SiteError(site, f"answered with {name} too large to be added to the others' ({others})")
        fields[name] = np.add(a, b, out=a)
    return msgspec.structs.replace(total, **fields)
