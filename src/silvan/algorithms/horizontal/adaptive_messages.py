"""Messages of forests from adaptive bins, and what a site holds a coordinator to between them."""

from typing import Any, ClassVar

import msgspec
import numpy as np

from silvan.algorithms.level_rules import follow_level
from silvan.errors import FormatError
from silvan.federation.message import Blob, Course, Reply, Request, Verb
from silvan.federation.store import digest
from silvan.forest.category_set import SET_WORDS
from silvan.tree.draw import RowDraw
from silvan.util.readable import count_of

SPLIT_TYPES = {
    "split_node": (np.int32, ()),
    "split_feature": (np.int32, ()),
    "split_threshold": (np.float32, ()),
    "split_words": (np.uint64, (SET_WORDS,)),
    "split_missing_left": (np.bool_, ()),
}
"""The columns of splits: element types, and the shape of one split's entry."""


class AdaptiveBins(Reply, frozen=True, kw_only=True):
    """Bins of every open node and each of its features, one after the other."""

    sizes: np.ndarray  # bins of each
    means: np.ndarray
    counts: np.ndarray  # (bins, 2): negatives, positives
    missing: np.ndarray  # (histograms, 2): the same of rows without a value; empty for none


class LeafCounts(Reply, frozen=True, kw_only=True):
    """Rows of every leaf by class, in the order of the leaves' numbers."""

    counts: np.ndarray  # (leaves, 2): negatives, positives


class AfterSplits(Request, frozen=True, kw_only=True):
    """A question about the trees that all splits so far make."""

    schema: Blob
    n_trees: int
    bootstrap: RowDraw
    max_bins: int
    # all splits so far, in the order they were made, and how many each round made: none, where all nodes draw again
    round_sizes: np.ndarray
    split_node: np.ndarray
    split_feature: np.ndarray
    split_threshold: np.ndarray
    split_words: np.ndarray
    split_missing_left: np.ndarray
    min_leaf: int = 1  # rows that both sides of a split have at least, for the site's policy to judge

    def course(self) -> Course:
        """Return where the question stands: after all rounds of splits."""
        sizes, columns = self.round_sizes, split_columns(self)
        if sizes.ndim != 1 or sizes.dtype != np.int32 or (sizes < 0).any() or int(sizes.sum()) != len(columns[0]):
            raise FormatError("the splits so far cannot be cut into rounds")
        ends = np.cumsum(sizes)
        rounds = (b"".join(c[end - n : end].tobytes() for c in columns) for end, n in zip(ends, sizes, strict=True))
        return Course("forest", tuple(map(digest, rounds)))

    def follow_splits(
        self, traces: list[bytes], further: bool, nodes: np.ndarray, features: np.ndarray
    ) -> bytes | None:
        """Return a trace if the question is about the same forest, and its new splits are of what was asked before."""
        same = [self.schema.hash, self.n_trees, self.bootstrap, self.max_bins, self.min_leaf]
        splits = self.split_node, self.split_feature
        return follow_level(digest(msgspec.json.encode(same)), traces, further, self.n_trees, splits, nodes, features)


class AdaptiveLevel(AfterSplits, frozen=True, kw_only=True):
    """Mean value, positives and negatives of small groups of rows: a group of one row shows its value."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = AdaptiveBins

    nodes: np.ndarray
    features: np.ndarray

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        each = f"{count_of(self.features.shape[1], 'feature')} x {count_of(len(self.nodes), 'node')}"
        n = "" if reply is None else f"{len(reply.means):,} "
        return f"means and counts of {n}small groups of rows, {each}; a group of one row shows its value"

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the question follows the last level: its nodes are split by features asked about there."""
        return self.follow_splits(traces, further, self.nodes, self.features)


class AdaptiveLeaves(AfterSplits, frozen=True, kw_only=True):
    """Rows by class of every leaf, when all splits are made."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = LeafCounts

    def follow(self, traces: list[bytes], further: bool) -> bytes | None:
        """Return a trace if the question follows the last level; no level follows it, as it is about no open node."""
        if not traces or not further:
            return None
        return self.follow_splits(traces, further, np.zeros(0, np.int32), np.zeros((0, 1), np.int32))


def split_columns(request: AfterSplits) -> tuple[np.ndarray, ...]:
    """Return the splits so far, column by column; raise ``FormatError`` unless these match."""
    columns = tuple(getattr(request, name) for name in SPLIT_TYPES)
    for column, (dtype, shape) in zip(columns, SPLIT_TYPES.values(), strict=True):
        if column.dtype != dtype or column.shape != (len(request.split_node), *shape):
            raise FormatError("the splits so far do not match")
    return columns
