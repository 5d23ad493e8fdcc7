"""A site with other rows in place of its own, for questions that must not see the true ones."""

from typing import Any, cast

from silvan.data.schema import Schema
from silvan.federation.site import Cache, Part, Site


class _StandIn:
    """Answers as the site would if these were its rows; caches apart."""

    def __init__(self, site: Site, part: Part, cache: Cache) -> None:
        self._site, self._part, self.cache = site, part, cache

    def part(self, schema: Schema) -> Part:
        """Give the rows."""
        return self._part

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)


def stand_in(site: Site, name: str, part: Part) -> Site:
    """Let a site answer with other rows; ``name`` tells them from any others."""
    key = ("stand-in", name)
    if key not in site.cache:
        site.cache[key] = Cache()
    return cast("Site", _StandIn(site, part, site.cache[key]))
