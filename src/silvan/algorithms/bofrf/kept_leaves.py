"""Leaves that a site notes while it scores trees, and needs again when it chooses among ensembles of them.

They stay in the site's memory until it has chosen, and are found again by the trees and the rows that they are of. If
they are not there, as after a restart, rows go down the trees once more; the answer is the same.
"""

from collections.abc import Sequence

import numpy as np

from silvan.data.schema import Schema
from silvan.federation.cache import CacheKey
from silvan.federation.message import Blob
from silvan.federation.site import Site
from silvan.federation.store import digest
from silvan.forest.forest import Forest
from silvan.forest.noted_leaves import Noted, bytes_noted, make_noted

_MOST_ROWS = 1 << 13
"""Rows that a site chooses on: more would tell apart only what hardly differs, and every tree is asked about each."""

_MOST_BYTES = 1 << 24  # memory for leaves; those of more trees are not noted
_SHARE = 8  # part of the memory of a site whose owner limits it, one in so many, that leaves may take


def choosing_rows(n: int) -> np.ndarray:
    """Return which of ``n`` rows a site chooses on: all, or of very many, evenly spread ones."""
    return np.arange(n) if n <= _MOST_ROWS else np.linspace(0, n - 1, _MOST_ROWS).astype(np.int64)


def note_leaves(site: Site, forest: Forest, n: int) -> Noted | None:
    """Return memory for the leaves of the rows to choose on, of ``n`` to learn from; None if they take too much."""
    rows = choosing_rows(n)
    size, room = bytes_noted(forest, len(rows)), _MOST_BYTES
    if site.memory is not None:
        room = min(room, site.memory // _SHARE)
    return None if size is None or size > room or not n else make_noted(forest, rows)


def keep_leaves(site: Site, schema: Schema, blobs: Sequence[Blob], X: np.ndarray, leaves: np.ndarray) -> None:
    """Keep the leaves of rows until the site has chosen."""
    site.cache[_key(schema, blobs, X)] = leaves


def kept_leaves(site: Site, schema: Schema, blobs: Sequence[Blob], X: np.ndarray) -> np.ndarray | None:
    """Return the leaves of rows; None if these trees were not scored on these rows. None are kept any longer."""
    kept = {key: site.cache.pop(key) for key in list(site.cache) if key[0] == "leaves"}
    return kept.get(_key(schema, blobs, X))


def _key(schema: Schema, blobs: Sequence[Blob], X: np.ndarray) -> CacheKey[np.ndarray]:
    return CacheKey[np.ndarray](
        "leaves", schema.hash, digest(np.ascontiguousarray(X).tobytes()), *(blob.hash for blob in blobs), most=1
    )
