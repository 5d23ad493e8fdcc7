"""Rules and checks for requests about a level of trees: each must follow from earlier ones, and be consistent.

If a coordinator could request any node, it could invent a tree that isolates one known person in a node. So the first
request is about roots. Each later one repeats all splits; the new splits are of nodes in the previous request, by
features requested there. It is about their children, or about nodes that were not split. Kernels trust their input, so
nodes, features and the histograms in replies are checked as well.
"""

from itertools import pairwise
from typing import Any, ClassVar

import msgspec
import numpy as np

from silvan.algorithms.requests import MAX_TREES
from silvan.data.bins.bins import Bins
from silvan.errors import FormatError, reject
from silvan.federation import wire
from silvan.federation.message import Agreed, Blob, Derived, Fixed, ProtocolPosition, Request
from silvan.federation.store import digest
from silvan.tree.objectives import Measure
from silvan.tree.sampling import RowSampling
from silvan.tree.split import Splits
from silvan.util.kernels import njit


def check_arrays(complaint: str, *expected: tuple[np.ndarray, tuple[int, ...], type[np.generic]]) -> None:
    """Raise ``FormatError`` with a text unless each array has the given shape and element type."""
    reject(any(array.shape != shape or array.dtype != dtype for array, shape, dtype in expected), complaint)


class Level(msgspec.Struct, frozen=True):
    """The record of a request about a level: the open nodes, and the features requested for each."""

    of: str  # the forest, by everything that must not change
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
    """Return the trace of a request about nodes and their features; None if it does not follow the last ones.

    ``splits`` are the nodes and the features of all splits so far.
    """
    columns = (*splits, nodes)
    if any(c.ndim != 1 or c.dtype != np.int32 for c in columns) or features.ndim != 2 or len(features) != len(nodes):
        raise FormatError("the nodes, features and splits do not match")
    reject(not 1 <= n_trees <= MAX_TREES, f"the trees must be 1 to {MAX_TREES}")
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
    """Return whether each node is split at most once, by a feature that the last requests asked for there."""
    known = np.zeros(len(nodes), np.bool_)
    for level in levels:
        order = np.argsort(level.nodes)
        at = np.searchsorted(level.nodes, nodes, sorter=order)
        there = np.flatnonzero(at < len(order))
        rows = order[at[there]]
        same = level.nodes[rows] == nodes[there]
        known[there[same]] |= (level.features[rows[same]] == features[there[same], None]).any(axis=1)
    return bool(known.all()) and len(np.unique(nodes)) == len(nodes)


class AfterSplits(Request, frozen=True, kw_only=True):
    """A request about the trees formed by all splits so far."""

    split_types: ClassVar[dict[str, tuple[type, tuple[int, ...]]]]  # columns of splits: element type, shape of an entry

    schema: Agreed[Blob]
    n_trees: Fixed[int]
    bootstrap: Fixed[RowSampling]
    # all splits so far in order, and the number in each round: zero if all nodes sample features again
    # the k-th split made the nodes n_trees + 2k and the next
    round_sizes: Derived[np.ndarray]
    split_node: Derived[np.ndarray]
    split_feature: Derived[np.ndarray]
    split_missing_left: Derived[np.ndarray]
    split_words: Derived[np.ndarray]
    min_leaf: Fixed[int] = 1  # minimum rows on both sides of a split, which the site's policy checks

    def rounds(self) -> list[list[np.ndarray]]:
        """Cut the splits into rounds, column by column; raise ``FormatError`` unless they match."""
        sizes, columns = self.round_sizes, [getattr(self, name) for name in self.split_types]
        n = len(self.split_node) if self.split_node.ndim else 0
        for column, (dtype, shape) in zip(columns, self.split_types.values(), strict=True):
            reject(column.dtype != dtype or column.shape != (n, *shape), "the splits so far do not match")
        if sizes.ndim != 1 or sizes.dtype != np.int64 or ((sizes < 0) | (sizes > n)).any() or sizes.sum() != n:
            raise FormatError("the splits so far cannot be cut into rounds")
        return [[c[start:stop] for c in columns] for start, stop in pairwise([0, *np.cumsum(sizes).tolist()])]

    def fingerprints(self) -> list[bytes]:
        """Return bytes that identify each round of splits."""
        return [b"".join(column.tobytes() for column in columns) for columns in self.rounds()]

    def position(self) -> ProtocolPosition:
        """Return the position of the request: after all rounds of splits."""
        return ProtocolPosition("forest", tuple(map(digest, self.fingerprints())))

    def forest_name(self) -> str:
        """Return a digest of everything that must be equal at all levels of a forest."""
        changing = {"nodes", "features", "round_sizes", *self.split_types}
        same = {name: getattr(self, name) for name in self.__struct_fields__ if name not in changing}
        return digest(msgspec.json.encode(same, order="sorted"))

    def follow_splits(
        self, traces: list[bytes], further: bool, nodes: np.ndarray, features: np.ndarray
    ) -> bytes | None:
        """Return a trace if the request continues the same forest with splits of requested nodes and features."""
        splits = self.split_node, self.split_feature
        return follow_level(self.forest_name(), traces, further, self.n_trees, splits, nodes, features)

    def check_splits(self, n_features: int) -> None:
        """Raise ``FormatError`` for too many trees, or splits of unknown nodes or by unknown features."""
        reject(not 1 <= self.n_trees <= MAX_TREES, f"the trees must be 1 to {MAX_TREES}")
        self.rounds()
        sizes, node, feature = self.round_sizes, self.split_node, self.split_feature
        there = self.n_trees + 2 * np.repeat(np.cumsum(sizes) - sizes, sizes)  # number of nodes when a split was made
        if (node >= there).any() or not are_different(node, self.n_trees + 2 * len(node)):
            raise FormatError("a split of a node that does not exist, or was split before")
        reject((feature < 0).any() or (feature >= n_features).any(), "a split by a feature that does not exist")


class SplitHistory:
    """The splits so far, which every request repeats."""

    def __init__(self, kind: type[AfterSplits]) -> None:
        self.types = kind.split_types
        self.made: list[list[np.ndarray]] = []  # by round

    def add(self, nodes: np.ndarray, splits: Splits, needed: np.ndarray, threshold: np.ndarray | None = None) -> None:
        """Add a round's splits."""
        columns = {
            "split_node": nodes,
            "split_feature": splits.feature,
            "split_bin": splits.bin,
            "split_threshold": threshold,
            "split_missing_left": splits.missing_left,
            "split_words": splits.words,
        }
        self.made.append([np.asarray(columns[name], dtype) for name, (dtype, _) in self.types.items()])

    def columns(self) -> dict[str, Any]:
        """Return all rounds as the fields of a request."""
        empty: list[np.ndarray] = [np.zeros((0, *shape), dtype) for dtype, shape in self.types.values()]
        joined = [np.concatenate(column) for column in zip(empty, *self.made, strict=True)]
        sizes = np.array([len(nodes) for nodes, *_ in self.made], np.int64)
        return {"round_sizes": sizes, **dict(zip(self.types, joined, strict=True))}


def check_nodes(nodes: np.ndarray, features: np.ndarray, n_nodes: int, n_features: int) -> None:
    """Raise ``FormatError`` for unknown or repeated nodes or features."""
    reject(nodes.ndim != 1 or features.ndim != 2 or len(features) != len(nodes), "features do not match nodes")
    reject(nodes.dtype != np.int32 or features.dtype != np.int32, "nodes or features are of another type")
    reject(not are_different(nodes, n_nodes), "an open node does not exist, or comes twice")
    reject(not 1 <= features.shape[1] <= n_features or features.min(initial=0) < -1, "features do not match nodes")
    reject(features.max(initial=0) >= n_features, "a feature does not exist")
    before, after = features[:, :-1], features[:, 1:]
    if not ((after == -1) | ((before >= 0) & (after > before))).all():
        raise FormatError("features must rise, and those that are lacking come last")


def are_different(nodes: np.ndarray, n_nodes: int) -> bool:
    """Return whether all nodes are below ``n_nodes``, without duplicates."""
    if nodes.min(initial=0) < 0 or nodes.max(initial=0) >= n_nodes:
        return False
    listed = np.zeros(n_nodes, np.bool_)
    listed[nodes] = True
    return np.count_nonzero(listed) == len(nodes)


def check_histograms(sums: np.ndarray, features: np.ndarray, bins: Bins, measure: Measure) -> None:
    """Raise ``FormatError`` for impossible histograms: a site may be wrong."""
    size = int(bins.n_bins[features[features >= 0]].sum())
    if sums.shape != (size, measure.n_stats) or wire.element_type(sums) != measure.count_type:
        raise FormatError("its histograms are of another size than requested")
    if not histograms_add_up(sums, features, bins.n_bins, measure.lead or measure.n_stats):
        raise FormatError("its histograms do not add up")


@njit(nogil=True, cache=True)
def histograms_add_up(sums: np.ndarray, features: np.ndarray, n_bins: np.ndarray, n_counts: int) -> bool:
    """Return whether counts are not negative and all features of a node have the same rows."""
    flat, n = sums.ravel(), sums.shape[1]
    first, here, signs = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    start = 0
    for node in range(features.shape[0]):
        for j in range(features.shape[1]):
            if features[node, j] < 0:
                break
            stop = start + n * n_bins[features[node, j]]
            if n == 2:
                here[0], here[1], signs[0], signs[1] = _add_pairs(flat[start:stop])
            else:
                for s in range(n):
                    here[s], signs[s] = _add_each(flat[start + s : stop : n])
            for s in range(n):
                if j == 0:
                    first[s] = here[s]
                if first[s] != here[s] or (s < n_counts and signs[s] < 0):
                    return False
            start = stop
    return True


@njit(nogil=True, cache=True)
def _add_pairs(flat: np.ndarray) -> tuple[np.int64, np.int64, np.int64, np.int64]:
    """Add up two statistics, the common case: sums, and numbers that are negative if any element is."""
    a, b, a_signs, b_signs = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    for i in range(flat.shape[0] // 2):
        x, y = flat[np.uint64(2 * i)], flat[np.uint64(2 * i + 1)]
        a += x
        b += y
        a_signs |= x
        b_signs |= y
    return a, b, a_signs, b_signs


@njit(nogil=True, cache=True)
def _add_each(stat: np.ndarray) -> tuple[np.int64, np.int64]:
    """Add up one of several statistics: the sum, and a number that is negative if any element is."""
    total, signs = np.int64(0), np.int64(0)
    for x in stat:
        total += x
        signs |= x
    return total, signs
