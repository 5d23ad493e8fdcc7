"""Which of a site's rows its trees draw, by the site's sampling key."""

import numpy as np

from silvan.errors import RefusedError
from silvan.federation.describe import FLOOR
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.tree.draw import DRAW_STEPS, RowDraw, draw_limit, rows_of_trees

_FEW = 64
"""With fewer rows, or as few by the share that trees draw, it can happen that no tree draws any."""

_SMALL = 0.1
"""Sums over a tree's rows tell of single ones where a smaller share of a small table is drawn."""


def possible_draw(site: Site, part: Part, draw: RowDraw, n_trees: int) -> RowDraw:
    """Return how trees draw rows: all of them where none would draw any, or there would be no forest."""
    if not draw or len(part) * draw_limit(draw) >= _FEW * draw_limit(True):
        return draw
    return draw if rows_of_trees(site.sampling_key, part.row_keys, 0, n_trees, draw).any() else False


def check_draw(n_rows: int, draw: RowDraw) -> None:
    """Raise ``RefusedError`` for so small a share of a site's rows that sums over a tree tell of single ones."""
    if draw and draw < _SMALL and n_rows * draw_limit(draw) < FLOOR * DRAW_STEPS:
        raise RefusedError(f"trees draw too few of the site's rows: a share below {_SMALL} must leave {FLOOR} of them")


def drawn_by_place(
    site: Site, part: Part, draw: RowDraw, n_own: int, n_places: int, taken: np.ndarray | None = None
) -> np.ndarray:
    """Return the rows that trees draw at a site by their place among their owner's: bool (places, rows).

    The first tree of another site draws the rows that the first of the ``n_own`` trees of this site drew, and so on.
    Of all rows, or of those that are ``taken``.
    """
    possible = possible_draw(site, part, draw, n_own or n_places)
    keys = part.row_keys if taken is None else part.row_keys[taken]
    return rows_of_trees(site.sampling_key, keys, 0, n_places, possible)
