"""Access to the stores of sites."""

from silvan.federation.site import Site


def kept_by(site: Site) -> dict[str, bytes]:
    """The content of a site's store in memory; removing an entry makes the site forget it."""
    return site.store._values
