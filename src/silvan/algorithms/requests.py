"""Limits on requests, and reading what they refer to: schemas, and trees of other sites.

Trees from outside are untrusted. A site scores only trees that a site of the study signed: anybody who could send
arbitrary trees could single out a row, and read its label from their scores.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from silvan.data.schema import Schema
from silvan.errors import FormatError, RefusedError, reject
from silvan.federation.message import Blob, Reply
from silvan.federation.outgoing import Check
from silvan.federation.site import Site
from silvan.federation.store import CacheKey
from silvan.forest.forest import Forest, join_forests

MAX_TREES = 1 << 16  # maximum number of trees to grow or read at a time: each takes memory for all rows
MAX_NODES = 1 << 19  # maximum number of nodes in another site's tree


def schema_of(site: Site, blob: Blob) -> Schema:
    """Read the schema that a request refers to."""
    return site.cache.once(CacheKey[Schema]("schema", blob.hash), lambda: Schema.from_json(site.blob(blob.hash)))


def forests_of(site: Site, schema: Schema, blobs: Sequence[Blob]) -> list[Forest]:
    """Read the trees that a request refers to, from one site each; cached, because several rounds need them."""
    check_owners(site, blobs)

    def read_all() -> list[Forest]:
        read = [read_trees(site.blob(blob.hash), schema) for blob in blobs]
        reject(not 1 <= sum(map(len, read)) <= MAX_TREES, f"the trees must be 1 to {MAX_TREES}")
        return read

    return site.cache.once(CacheKey[list[Forest]]("trees", schema.hash, *(blob.hash for blob in blobs)), read_all)


def joined_trees(site: Site, schema: Schema, blobs: Sequence[Blob]) -> Forest:
    """Return the trees that a request refers to as one forest; cached, because several rounds need it."""
    forests = forests_of(site, schema, blobs)
    return site.cache.once(
        CacheKey[Forest]("joined trees", schema.hash, *(blob.hash for blob in blobs)), lambda: join_forests(forests)
    )


def check_owners(site: Site, blobs: Sequence[Blob], own: int | None = None) -> None:
    """Raise an error unless different sites signed the objects of a request for this task.

    If ``own`` is given, the site itself must have made the object at that position.
    """
    owners = {blob.hash: {o.site for o in site.owners(blob.hash) if o.task == site.task} for blob in blobs}
    times = Counter(blob.hash for blob in blobs)  # sites may have made equal objects, such as a leaf of one class
    if any(times[hash_] > len(made) for hash_, made in owners.items()):
        raise RefusedError("the site scores only what sites signed for this task, and each once")
    if own is not None and not (0 <= own < len(blobs) and site.name in owners[blobs[own].hash]):
        raise FormatError("the model marked as the site's own is not its own")


def own_trees(site: Site, blobs: Sequence[Blob], forests: Sequence[Forest], owners: Sequence[str]) -> np.ndarray:
    """Return which trees are the site's own; raise an error if trees are not from the named ``owners``."""
    if len(owners) != len(blobs) or len(set(owners)) < len(owners):
        raise FormatError("the sites are not those that the trees are from")
    for owner, blob in zip(owners, blobs, strict=True):
        if not any(made.site == owner and made.task == site.task for made in site.owners(blob.hash)):
            raise RefusedError("the trees are not from the sites that the request names")
    return np.repeat(np.array([owner == site.name for owner in owners]), [len(forest) for forest in forests])


def counts_of(**shapes: tuple[int, ...]) -> Check:
    """Return a check that the named fields of replies are counts of these shapes."""

    def check(site: str, reply: Reply) -> None:
        for name, shape in shapes.items():
            counts = getattr(reply, name)
            if counts.shape != shape or counts.dtype != np.int64 or counts.min(initial=0) < 0:
                raise FormatError(f"its {name} are not the ones requested")

    return check


def check_metrics(metrics: np.ndarray, shape: tuple[int, ...]) -> None:
    """Raise ``FormatError`` unless metrics have a shape, and each is at least 0 or NaN."""
    reject(metrics.shape != shape or metrics.dtype != np.float64, "its metrics are not the ones requested")
    reject(np.isinf(metrics).any() or (metrics < 0).any(), "its metrics are impossible")


def read_trees(data: bytes, schema: Schema) -> Forest:
    """Read trees from another site; raise ``FormatError`` unless they are plain trees of the agreed schema."""
    forest = Forest.from_bytes(data)
    reject(forest.schema != schema, "trees of another schema than the agreed one")
    if len(forest) > MAX_TREES or np.diff(forest.offsets).max() > MAX_NODES:
        raise FormatError(f"more than {MAX_TREES} trees, or a tree of more than {MAX_NODES} nodes")
    reject(forest.combine != "mean" or not np.isin(forest.weights, (0.0, 1.0)).all(), "trees with separate weights")
    return forest.bare()
