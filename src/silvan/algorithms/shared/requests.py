"""Trees that somebody else made, read as hostile."""

from collections.abc import Sequence

import numpy as np

from silvan.algorithms.shared.shared_bins import MAX_TREES
from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.federation.message import Blob
from silvan.federation.site import Site
from silvan.forest.files.silvan_file import from_bytes
from silvan.forest.forest import Forest

MAX_NODES = 1 << 19
"""Nodes of one tree that anybody takes from somebody else."""


def forests_of(site: Site, schema: Schema, blobs: Sequence[Blob]) -> list[Forest]:
    """Read the trees that a request refers to; kept, since several rounds need them."""
    key = ("trees", schema.hash, *(blob.hash for blob in blobs))
    if key not in site.cache:
        read = [read_trees(site.blob(blob.hash), schema) for blob in blobs]
        if not 1 <= sum(map(len, read)) <= MAX_TREES:
            raise FormatError(f"the trees must be 1 to {MAX_TREES}")
        site.cache[key] = read
    forests: list[Forest] = site.cache[key]
    return forests


def read_trees(data: bytes, schema: Schema) -> Forest:
    """Read trees that somebody else made, believing nothing."""
    forest = from_bytes(data)
    if forest.schema != schema:
        raise FormatError("trees of another schema than the agreed one")
    if len(forest) > MAX_TREES or np.diff(forest.offsets).max() > MAX_NODES:
        raise FormatError(f"more than {MAX_TREES} trees, or a tree of more than {MAX_NODES} nodes")
    if forest.combine != "mean" or not np.isin(forest.weights, (0.0, 1.0)).all():
        raise FormatError("trees with weights of their own")
    return forest.bare()
