"""Sites with limits that the study's text or the way of running sets, not the owner."""

from dataclasses import replace

import silvan as sv


def in_groups_of(n: int, **policy) -> sv.Policy:
    """A policy of a site with this group size in metrics; between machines it is five."""
    return type("PolicyInGroups", (sv.Policy,), {"score_groups": n})(**policy)


def limited(federation, **terms):
    """Sets terms of the study at all sites, and returns the federation."""
    for site in federation.local_sites.values():
        site.outbox.terms = replace(site.outbox.terms, **terms)
    return federation
