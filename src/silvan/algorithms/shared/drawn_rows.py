"""Which of a site's rows its trees draw, by the site's sampling key."""

import numpy as np

from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.tree.draw import rows_of_trees

_FEW = 64
"""With fewer rows it can happen that no tree draws any."""


def draws_rows(site: Site, part: Part, bootstrap: bool, n_trees: int) -> bool:
    """Return whether trees draw rows: not where none of them would draw any, or there would be no forest."""
    few = bootstrap and len(part) < _FEW
    return bootstrap and not (few and not rows_of_trees(site.sampling_key, part.row_keys, 0, n_trees, True).any())


def drawn_by_place(site: Site, part: Part, bootstrap: bool, n_own: int, n_places: int) -> np.ndarray:
    """Return the rows that trees draw at a site by their place among their owner's: bool (places, rows).

    The first tree of another site draws the rows that the first of the ``n_own`` trees of this site drew, and so on.
    """
    drawing = draws_rows(site, part, bootstrap, n_own or n_places)
    return rows_of_trees(site.sampling_key, part.row_keys, 0, n_places, drawing)
