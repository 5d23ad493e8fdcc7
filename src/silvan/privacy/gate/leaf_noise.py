"""Protection of leaf values of trees that leave a site: rounding, noise, or both, as its policy says.

Exact shares reveal how many rows a leaf has: 0.142857 is one of seven. Rounded to two digits they fit many sizes. Noise
hides small differences as well. It is drawn from a secret of the site and the tree itself, so that a tree which is
asked for again has the same noise and nothing is gained by asking often. Neither is differential privacy: the splits
are as they were.
"""

import hmac
import os
from dataclasses import replace
from itertools import pairwise

import msgspec
import numpy as np

from silvan.federation.message import Reply
from silvan.federation.site import Site
from silvan.forest.forest import Forest

_KEPT_AS = "leaf noise"


def blur(site: Site, reply: Reply, digits: int | None, noise: float) -> Reply:
    """Round and add noise to the leaf values of trees in a reply; one without trees stays as it is."""
    data = getattr(reply, "forest", None)
    if not isinstance(data, bytes) or (digits is None and not noise):
        return reply
    forest = Forest.from_bytes(data)
    value = forest.value
    if noise:
        value = noised(forest, noise, _secret(site))
    if digits is not None:
        value = rounded(value, digits, forest.classes is not None)
    return msgspec.structs.replace(reply, forest=replace(forest, value=value).to_bytes())


def rounded(value: np.ndarray, digits: int, shares: bool) -> np.ndarray:
    """Round shares to digits after the point, such that they still add up to 1; numbers to significant digits."""
    if not shares:
        return np.array([[float(f"{x:.{digits}g}") for x in row] for row in value])
    parts = 10**digits
    exact = value * parts
    whole = np.floor(exact + 1e-9)
    lacking = np.rint(exact.sum(axis=1) - whole.sum(axis=1)).astype(np.int64)
    rank = np.argsort(np.argsort(whole - exact, axis=1, kind="stable"), axis=1, kind="stable")
    result: np.ndarray = (whole + (rank < lacking[:, None])) / parts
    return result


def noised(forest: Forest, scale: float, secret: bytes) -> np.ndarray:
    """Add Laplace noise to shares and scale them to add up to 1; to numbers, in units of how far all leaves spread."""
    value = forest.value.copy()
    shares = forest.classes is not None
    unit = 1.0 if shares else float(value.std())
    leaves = np.concatenate([[0], np.cumsum(np.add.reduceat(forest.feature < 0, forest.offsets[:-1]))])
    for tree, (first, stop) in enumerate(pairwise(leaves)):
        nodes = slice(*forest.offsets[tree : tree + 2])
        named = (forest.feature[nodes], forest.threshold[nodes], forest.missing_left[nodes], forest.value[first:stop])
        seed = hmac.digest(secret, b"".join(array.tobytes() for array in named), "sha256")
        draw = np.random.default_rng(np.frombuffer(seed, np.uint32))
        value[first:stop] += draw.laplace(scale=scale * unit, size=value[first:stop].shape)
    if shares:
        value = value.clip(0.0, 1.0)
        total = value.sum(axis=1, keepdims=True)
        value = np.where(total > 0, value / np.where(total > 0, total, 1.0), 1.0 / value.shape[1])
    return value


def _secret(site: Site) -> bytes:
    """Return the site's secret, drawn when it is first needed."""
    kept = site.store.get(_KEPT_AS)
    if kept is None:
        kept = os.urandom(32)
        site.store.put(_KEPT_AS, kept)
    return kept
