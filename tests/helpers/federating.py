"""A federation of given sites, over the usual transport or another one."""

from typing import Any

from silvan.federation.federation import Federation, Sums
from silvan.federation.site import Site
from silvan.federation.transport import InProcess


def federation_of(
    sites: dict[str, Site], sums: Sums, kind: type[InProcess] = InProcess, *, cold: bool = False, **settings: Any
) -> Federation:
    """Makes a federation of these sites; ``kind`` is the transport's class."""
    return Federation(kind(sites, cold=cold), sites, sums, **settings)
