"""A look into the stores of sites."""

from silvan.federation.site import Site


def kept_by(site: Site) -> dict[str, bytes]:
    """What a site's store in memory holds; what is taken out of it the site has forgotten."""
    return site.store._values
