"""Rows that a site splits off its training part to validate on: a share of each class, by a keyed hash."""

import msgspec
import numpy as np

from silvan.algorithms.keyed_rows import hash_rows
from silvan.data.schema import Schema
from silvan.errors import FormatError, RefusedError
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.tree.draw import VALIDATION

SHARES = 4
"""The most different shares by which a site splits rows off: two close ones would single rows out."""

_SHARES = "shares split off"
"""The key under which a site's store keeps the shares."""


def learning_rows(site: Site, schema: Schema, validation: float) -> tuple[Part, Part]:
    """Split a share of the training rows off, by class; return the rows to learn from, and those split off."""
    if not 0.0 <= validation <= 0.5:
        raise FormatError("the share of rows to split off must be between 0 and a half")
    part = site.part(schema)
    held = np.zeros(len(part), np.bool_)
    if validation > 0.0:
        _limit_shares(site, validation)
        drawn = hash_rows(site.sampling_key, part.row_keys, VALIDATION)
        groups = part.y if schema.n_classes else np.zeros(len(part), np.int64)
        carry = 0.5
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            share = validation * len(rows) + carry
            held[rows[np.argsort(drawn[rows], kind="stable")[: int(share)]]] = True
            carry = share - int(share)  # small classes share what rounding leaves
        if held.all():
            held[:] = False
    kept, split_off = (Part(part.X[rows], part.y[rows], part.row_keys[rows]) for rows in (~held, held))
    return kept, split_off


def _limit_shares(site: Site, share: float) -> None:
    """Raise ``RefusedError`` if rows were split off by too many different shares, restarts included."""
    known = msgspec.json.decode(site.store.get(_SHARES) or b"[]", type=list[float])
    if share not in known:
        if len(known) >= SHARES:
            raise RefusedError(
                f"the site splits rows off by at most {SHARES} different shares: set validation to one of them"
            )
        site.store.put(_SHARES, msgspec.json.encode([*known, share]))
