"""Rules for questions about trees that grow level by level: a site checks that each follows from those before.

A coordinator that may ask about any node could invent a tree that leads one known person to a node of its own. So the
first question is about roots. Each later one repeats the splits so far, and those that are new are of nodes that were
asked about just before, by features that were asked about there. It is about their children, or about nodes that were
not split.
"""

import msgspec
import numpy as np

from silvan.algorithms.requests import MAX_TREES
from silvan.errors import FormatError
from silvan.federation import wire


class Level(msgspec.Struct, frozen=True):
    """The trace of a question about a level: which nodes were open, and what was asked about which of them."""

    of: str  # which forest: all that must not change
    splits: int
    open: np.ndarray
    nodes: np.ndarray
    features: np.ndarray


def follow_level(
    of: str,
    traces: list[bytes],
    further: bool,
    n_trees: int,
    splits: tuple[np.ndarray, np.ndarray],
    nodes: np.ndarray,
    features: np.ndarray,
) -> bytes | None:
    """Return the trace of a question about nodes and their features; None if it does not follow the last ones.

    ``splits`` are the nodes and the features of all splits so far.
    """
    columns = (*splits, nodes)
    if any(c.ndim != 1 or c.dtype != np.int32 for c in columns) or features.ndim != 2 or len(features) != len(nodes):
        raise FormatError("the nodes, features and splits do not match")
    if not 1 <= n_trees <= MAX_TREES:
        raise FormatError(f"the trees must be 1 to {MAX_TREES}")
    n = len(splits[0])
    before = [wire.decode(trace, Level) for trace in traces]
    if any(level.of != of for level in before) or len(splits[1]) != n:
        return None
    if not before:
        allowed = np.arange(n_trees if n == 0 else 0)
    elif not further:
        allowed = np.setdiff1d(before[0].open, np.concatenate([level.nodes for level in before]))
    else:
        made = [column[before[0].splits :] for column in splits]
        if not _were_asked(before, *made):
            return None
        unsplit = np.setdiff1d(np.concatenate([level.nodes for level in before]), made[0])
        allowed = np.concatenate([unsplit, np.arange(n_trees + 2 * before[0].splits, n_trees + 2 * n)])
    if not np.isin(nodes, allowed).all():
        return None
    if before and not further:
        allowed = before[0].open
    return wire.encode(Level(of, n, allowed.astype(np.int32), nodes, features))


def _were_asked(levels: list[Level], nodes: np.ndarray, features: np.ndarray) -> bool:
    """Return whether nodes are split, once each, by features that the last questions asked for at them."""
    known = np.zeros(len(nodes), np.bool_)
    for level in levels:
        order = np.argsort(level.nodes)
        at = np.searchsorted(level.nodes, nodes, sorter=order)
        there = np.flatnonzero(at < len(order))
        rows = order[at[there]]
        same = level.nodes[rows] == nodes[there]
        known[there[same]] |= (level.features[rows[same]] == features[there[same], None]).any(axis=1)
    return bool(known.all()) and len(np.unique(nodes)) == len(nodes)
