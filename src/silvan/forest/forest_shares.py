"""A forest in shares: the structure at the coordinator, the details of each split only with the party that made it.

The structure contains the party that splits each node and the values of the leaves; a party's share contains the
column and threshold of each of its nodes, and which leaves lie to the left and to the right. Leaves are
numbered from left to right, tree after tree, so those below a node have consecutive numbers. Nodes are ordered as in a
``Forest``. With all shares the forest can be assembled; the splits of a missing share are unknown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.forest.arrays import left_children
from silvan.forest.category_set import SET_WORDS, is_category_split
from silvan.forest.forest import Forest
from silvan.forest.importance import gain_shares, mean_shares
from silvan.forest.model_in_shares import VERSION, ModelInShares, require
from silvan.forest.tensors import read_tensors, write_tensors
from silvan.util.kernels import njit

STRUCTURE, SHARE = "silvan structure", "silvan share"

STRUCTURE_ARRAYS = {
    "offsets": np.int64,  # (trees + 1,) where each tree's nodes begin
    "owner": np.int32,  # (nodes,) which party splits the node, -1 for a leaf
    "gain": np.float64,  # (nodes,) the gain of the split
    "weights": np.float64,  # (trees,)
    "value": np.float64,  # (leaves, outputs), in the order of the nodes; empty if the label holder keeps it
}

SHARE_ARRAYS = {
    "node": np.int64,  # in the order of their first leaf, parents first
    "feature": np.int32,  # index among the party's columns
    "threshold": np.float32,
    "missing_left": np.bool_,
    "words": np.uint64,  # (nodes, 4), the left set of a split by category
    "first": np.int64,  # the leaves below the node: first to middle on the left, middle to last on the right
    "middle": np.int64,
    "last": np.int64,
    "value": np.float64,  # (leaves, outputs), from left to right; empty unless the party keeps them secret
}


@dataclass(frozen=True)
class Structure(ModelInShares):
    """The coordinator's part: the party of each split, and the values of the leaves unless these are secret."""

    file_format: ClassVar[str] = STRUCTURE
    arrays: ClassVar[Mapping[str, Any]] = STRUCTURE_ARRAYS

    offsets: np.ndarray
    owner: np.ndarray
    gain: np.ndarray
    weights: np.ndarray
    value: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_leaves(self) -> int:
        """Number of leaves over all trees."""
        return int((self.owner < 0).sum())

    @cached_property
    def left(self) -> np.ndarray:
        """Each node's left child; -1 for a leaf."""
        return left_children(self.owner >= 0, self.offsets)

    @cached_property
    def spans(self) -> tuple[np.ndarray, np.ndarray]:
        """The leaves below each node, numbered from left to right: the first, and one past the last."""
        return _spans(self.left, self.offsets)

    @cached_property
    def leaves(self) -> np.ndarray:
        """The nodes of the leaves, from left to right, tree after tree."""
        leaves = np.flatnonzero(self.owner < 0)
        return leaves[np.argsort(self.spans[0][leaves])]

    @cached_property
    def leaf_row(self) -> np.ndarray:
        """The row of ``value`` for each leaf, by its number from left to right."""
        leaves = np.flatnonzero(self.owner < 0)
        rows = np.empty(len(leaves), np.int64)
        rows[self.spans[0][leaves]] = np.arange(len(leaves))
        return rows

    @cached_property
    def tree_bounds(self) -> np.ndarray:
        """The first leaf of each tree, and the end of the last tree's."""
        return np.append(self.spans[0][self.offsets[:-1]], self.n_leaves)

    def check_share(self, share: "Share", party: str) -> None:
        """Raise ``FormatError`` unless a share belongs to this party and model."""
        own = np.flatnonzero(self.owner == self.parties.index(party))
        kept = party == self.label_holder and not len(self.value)
        if (
            (share.model, share.party, share.n_leaves) != (self.model, party, self.n_leaves)
            or not np.array_equal(np.sort(share.node), own)
            or not self.has_columns(party, share.schema)
            or share.value.shape[0] != (self.n_leaves if kept else 0)
            or (kept and share.value.shape[1] != self.value.shape[1])
        ):
            raise FormatError(f"not the share of party {party!r} in this model")

    def check(self) -> None:
        """Raise an error if this is not a valid structure."""
        super().check()
        n, offsets = len(self.owner), self.offsets
        require(offsets.ndim == self.owner.ndim == 1 and len(offsets) >= 2, "its trees")
        require(offsets[0] == 0 and offsets[-1] == n and bool((np.diff(offsets) > 0).all()), "its trees")
        require(self.owner.min() >= -1 and self.owner.max() < len(self.parties), "its nodes")
        inner = np.add.reduceat(self.owner >= 0, offsets[:-1])
        require(bool((np.diff(offsets) == 2 * inner + 1).all()), "its nodes")
        # the children of the k-th inner node are at 2k + 1 and 2k + 2, and must come after it
        require(bool((self.left[self.left >= 0] > np.flatnonzero(self.left >= 0)).all()), "its nodes")
        require(self.gain.shape == (n,) and bool(np.isfinite(self.gain).all()), "its gains")
        require(self.weights.shape == (len(self),) and bool(np.isin(self.weights, (0.0, 1.0)).all()), "its weights")
        rows = (self.n_leaves, 0)
        require(self.value.ndim == 2 and self.value.shape[0] in rows, "its values")
        require(self.value.shape[1] == max(self.schema.n_classes, 1), "its values")
        require(bool(np.isfinite(self.value).all()), "its values")


@dataclass(frozen=True)
class Share:
    """A party's part: the details of its own splits."""

    model: str
    party: str
    schema: Schema  # of its columns
    n_leaves: int
    node: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    words: np.ndarray
    first: np.ndarray
    middle: np.ndarray
    last: np.ndarray
    value: np.ndarray

    def __len__(self) -> int:
        return len(self.node)

    @cached_property
    def categorical(self) -> np.ndarray:
        """Which splits are categorical."""
        return is_category_split(self.schema, self.feature)

    def to_bytes(self) -> bytes:
        """Return the content of the share's file."""
        words = {
            "model": self.model,
            "party": self.party,
            "schema": self.schema.to_json(),
            "n_leaves": str(self.n_leaves),
        }
        return write_tensors(SHARE, VERSION, words, {name: getattr(self, name) for name in SHARE_ARRAYS})

    @classmethod
    def from_bytes(cls, data: bytes) -> "Share":
        """Read a share and check all of it."""
        words, arrays = read_tensors(data, SHARE, VERSION, ("model", "party", "schema", "n_leaves"), SHARE_ARRAYS)
        text = words["n_leaves"]
        require(text.isascii() and text.isdigit() and len(text) < 12, "its leaves")
        share = cls(words["model"], words["party"], Schema.from_json(words["schema"]), int(text), **arrays)
        share.check()
        return share

    def check(self) -> None:
        """Raise ``FormatError`` for an invalid share, since kernels trust their arguments."""
        n = len(self.node)
        shapes = {"words": (n, SET_WORDS)}
        for name in SHARE_ARRAYS.keys() - {"value"}:
            require(getattr(self, name).shape == shapes.get(name, (n,)), f"its array {name!r}")
        require(self.n_leaves >= 1, "its leaves")
        require(self.value.ndim == 2 and len(self.value) in (0, self.n_leaves), "its values")
        require(bool(np.isfinite(self.value).all()), "its values")
        if not n:
            return
        require(self.feature.min() >= 0 and self.feature.max() < len(self.schema.features), "its columns")
        require(bool(np.isfinite(self.threshold).all()), "its thresholds")
        first, middle, last = self.first, self.middle, self.last
        require(first.min() >= 0 and last.max() <= self.n_leaves, "its leaves")
        require(bool(((first < middle) & (middle < last)).all()), "its leaves")
        require(bool((np.diff(first) >= 0).all()), "the order of its nodes")
        require(len(np.unique(self.node)) == n and self.node.min() >= 0, "its nodes")


def put_together(structure: Structure, shares: Mapping[str, Share]) -> Forest:
    """Return the forest assembled from the shares of all parties."""
    n = len(structure.owner)
    feature, threshold = np.full(n, -1, np.int32), np.zeros(n, np.float32)
    missing_left, words = np.zeros(n, np.bool_), np.zeros((n, SET_WORDS), np.uint64)
    begin = 0
    for party, width in zip(structure.parties, structure.columns, strict=True):
        share = shares[party]
        structure.check_share(share, party)
        feature[share.node] = share.feature + begin
        threshold[share.node] = np.where(share.categorical, 0, share.threshold)
        missing_left[share.node], words[share.node] = share.missing_left, share.words
        begin += width
    value = structure.value
    if not len(value):
        value = shares[structure.label_holder].value[structure.spans[0][structure.owner < 0]]
    tree = np.repeat(np.arange(len(structure)), np.diff(structure.offsets))
    inner = feature >= 0
    schema = structure.named_schema({party: share.schema for party, share in shares.items()})
    n_features = len(schema.features)
    gains = gain_shares(tree[inner], feature[inner], structure.gain[inner], len(structure), n_features)
    return Forest(
        schema=schema,
        offsets=structure.offsets,
        feature=feature,
        threshold=threshold,
        missing_left=missing_left,
        sets=words[is_category_split(schema, feature)],
        value=value,
        weights=structure.weights,
        gain=mean_shares(gains),
    )


@njit(nogil=True, cache=True)
def _spans(left: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the leaves below each node, numbered from left to right: the first, and one past the last."""
    n = left.shape[0]
    size, first = np.ones(n, np.int64), np.zeros(n, np.int64)
    for node in range(n - 1, -1, -1):
        if left[node] >= 0:
            size[node] = size[left[node]] + size[left[node] + 1]
    at = 0
    for tree in range(offsets.shape[0] - 1):
        first[offsets[tree]] = at
        at += size[offsets[tree]]
    for node in range(n):
        if left[node] >= 0:
            first[left[node]] = first[node]
            first[left[node] + 1] = first[node] + size[left[node]]
    return first, first + size
