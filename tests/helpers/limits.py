"""Sites with limits that no owner sets: those that a study's text or the way of running it decides."""

from dataclasses import replace

import silvan as sv


def in_groups_of(n: int, **policy) -> sv.Policy:
    """A policy of a site where so many rows share a score in metrics; between machines it is five."""
    return type("PolicyInGroups", (sv.Policy,), {"score_groups": n})(**policy)


def limited(federation, **terms):
    """Set terms of the study at all sites, and return the federation."""
    for site in federation.local_sites.values():
        site.outbox.terms = replace(site.outbox.terms, **terms)
    return federation
