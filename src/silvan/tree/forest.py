"""A forest: flat arrays and a schema, nothing else.

Nodes of a tree stand in level order, siblings side by side. So the k-th inner node of a tree has its children at
places 2k+1 and 2k+2 of that tree, and which nodes are leaves tells the whole structure: there are no child
pointers to get wrong, and one forest has one form.
"""

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.tree import predict
from silvan.tree.split import SET_WORDS

DEPTH_CAP = 4096
"""No tree is deeper; ``max_depth=None`` means this."""

Combine = Literal["mean"]

ARRAYS = {
    "offsets": np.int64,  # (trees + 1,) where each tree's nodes begin
    "feature": np.int32,  # (nodes,) index into the schema, -1 for a leaf
    "threshold": np.float32,  # (nodes,) numeric split: left if x <= threshold
    "missing_left": np.bool_,  # (nodes,) whether missing values go left
    "sets": np.uint64,  # (category splits, 4) bins that go left, in the order of the nodes
    "value": np.float64,  # (leaves, outputs) class probabilities or a number, in the order of the nodes
    "weights": np.float64,  # (trees,)
}
"""The arrays of a forest with their element types; the file format and the hash follow this list."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Decision trees and how they combine.

    Made by learners, ``load`` and ``from_sklearn``; every forest is checked when it is made, so one that exists
    can be used. Equality is equality of ``hash``.
    """

    schema: Schema
    offsets: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    sets: np.ndarray
    value: np.ndarray
    weights: np.ndarray
    combine: Combine = "mean"
    gain: np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Freeze the arrays and check all."""
        for name, dtype in ARRAYS.items():
            array = np.ascontiguousarray(getattr(self, name), dtype=dtype)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        check(self)

    # -- shape

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Forest) and self.hash == other.hash

    def __hash__(self) -> int:
        return int(self.hash[:15], 16)

    def __repr__(self) -> str:
        return f"<Forest of {len(self)} trees, {len(self.feature)} nodes, {self.hash[:12]}>"

    @property
    def n_features(self) -> int:
        """Columns that the forest expects."""
        return len(self.schema.features)

    @property
    def n_outputs(self) -> int:
        """Classes, or 1 for a number."""
        return max(self.schema.n_classes, 1)

    @cached_property
    def classes(self) -> np.ndarray | None:
        """The classes in the order of the probabilities; None for regression."""
        return None if self.schema.label.classes is None else np.array(self.schema.label.classes)

    @cached_property
    def left(self) -> np.ndarray:
        """Each node's left child, counted from the forest's first node; -1 for a leaf."""
        inner = self.feature >= 0
        before = np.concatenate([[0], np.cumsum(inner)])[:-1]
        starts = np.repeat(self.offsets[:-1], np.diff(self.offsets))
        rank = before - before[starts]
        return np.where(inner, starts + 2 * rank + 1, -1)

    @cached_property
    def right(self) -> np.ndarray:
        """Each node's right child, counted from the forest's first node; -1 for a leaf."""
        return np.where(self.left < 0, -1, self.left + 1)

    @cached_property
    def depth(self) -> np.ndarray:
        """Each node's distance from its root."""
        depth = np.zeros(len(self.feature), np.int32)
        inner = np.flatnonzero(self.feature >= 0)
        while len(inner):
            below = np.concatenate([self.left[inner], self.right[inner]])
            depth[below] = np.tile(depth[inner] + 1, 2)
            inner = below[self.feature[below] >= 0]
            inner = inner[depth[inner] <= DEPTH_CAP]
        return depth

    @cached_property
    def leaf(self) -> np.ndarray:
        """Each node's row in ``value``; -1 for an inner node."""
        is_leaf = self.feature < 0
        return np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the trees and of what their columns and classes are called; nothing of where they came from."""
        schema = self.schema
        named = (
            [(f.name, f.kind, f.categories, f.other) for f in schema.features],
            schema.label.classes,
            self.combine,
        )
        digest = hashlib.sha256(msgspec.json.encode(named))
        for name, dtype in ARRAYS.items():
            array = getattr(self, name)
            digest.update(f"{name} {array.shape}".encode())
            digest.update(array.astype(np.dtype(dtype).newbyteorder("<"), copy=False).tobytes())
        return digest.hexdigest()

    # -- use

    def scores(self, X: Any, n_jobs: int | None = None) -> np.ndarray:
        """Give the weighted mean of the leaf values: (rows, outputs)."""
        return predict.scores(self, predict.as_matrix(self.schema, X), n_jobs)

    def predict_proba(self, X: Any, n_jobs: int | None = None) -> np.ndarray:
        """Give class probabilities, columns in the order of ``classes``."""
        if self.classes is None:
            raise InputError("predict_proba is for classification; this forest predicts a number")
        return self.scores(X, n_jobs)

    def predict(self, X: Any, n_jobs: int | None = None) -> np.ndarray:
        """Give the most probable class, or the number."""
        scores = self.scores(X, n_jobs)
        return scores[:, 0] if self.classes is None else self.classes[scores.argmax(axis=1)]

    def importances(self) -> dict[str, float]:
        """Share of each feature in the total decrease of impurity, averaged over trees; they add up to 1."""
        if self.gain is None:
            raise InputError("this forest carries no gains; use permutation importance instead")
        return dict(zip(self.schema.names, map(float, self.gain), strict=True))

    def take(self, trees: Any) -> "Forest":
        """Make a forest of some of the trees."""
        trees = np.arange(len(self))[trees]
        nodes = np.concatenate([np.arange(*self.offsets[t : t + 2]) for t in trees] or [np.empty(0, np.int64)])
        sizes = np.diff(self.offsets)[trees]
        set_of = np.cumsum(is_category_split(self.schema, self.feature)) - 1
        return replace(
            self,
            offsets=np.concatenate([[0], np.cumsum(sizes)]),
            feature=self.feature[nodes],
            threshold=self.threshold[nodes],
            missing_left=self.missing_left[nodes],
            sets=self.sets[set_of[nodes[is_category_split(self.schema, self.feature[nodes])]]],
            value=self.value[self.leaf[nodes[self.feature[nodes] < 0]]],
            weights=self.weights[trees],
            gain=None,
        )

    # -- exchange

    def save(self, path: str | Path) -> None:
        """Write a ``.silvan`` file."""
        from silvan.tree.save import save

        save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> "Forest":
        """Read a ``.silvan`` file; everything in it is checked."""
        from silvan.tree.save import load

        return load(path)


def is_category_split(schema: Schema, feature: np.ndarray) -> np.ndarray:
    """Say which nodes split by category."""
    kinds = np.array([f.categorical for f in schema.features] + [False], np.bool_)
    return kinds[feature]


def check(forest: Forest) -> None:
    """Refuse arrays that are not a forest: the one gate for files, messages and our own code."""
    _check_shapes(forest)
    _check_structure(forest)
    _check_content(forest)


def _require(condition: bool | np.bool_, what: str) -> None:
    if not condition:
        raise FormatError(f"not a forest: {what}")


def _check_shapes(forest: Forest) -> None:
    offsets, n_nodes = forest.offsets, len(forest.feature)
    _require(offsets.ndim == 1 and len(offsets) >= 2, "it has no trees")
    _require(offsets[0] == 0 and offsets[-1] == n_nodes, "offsets do not span the nodes")
    _require((np.diff(offsets) > 0).all(), "offsets must rise, every tree has a node")
    _require(n_nodes < 2**31, "it has more nodes than can be numbered")
    for name in ("feature", "threshold", "missing_left"):
        _require(getattr(forest, name).shape == (n_nodes,), f"{name} has the wrong shape")
    _require(forest.weights.shape == (len(offsets) - 1,), "weights has the wrong shape")
    _require(forest.n_features > 0, "its schema has no features")
    _require((forest.feature >= -1).all() and (forest.feature < forest.n_features).all(), "feature out of range")
    n_leaves = int((forest.feature < 0).sum())
    _require(forest.value.shape == (n_leaves, forest.n_outputs), "value has the wrong shape")
    n_sets = int(is_category_split(forest.schema, forest.feature).sum())
    _require(forest.sets.shape == (n_sets, SET_WORDS), "sets has the wrong shape")
    _require(forest.gain is None or np.shape(forest.gain) == (forest.n_features,), "gain has the wrong shape")
    _require(forest.combine in ("mean",), "combine is unknown")


def _check_structure(forest: Forest) -> None:
    inner = forest.feature >= 0
    per_tree = np.add.reduceat(inner, forest.offsets[:-1])
    _require((np.diff(forest.offsets) == 2 * per_tree + 1).all(), "a tree's nodes and splits do not match")
    nodes = np.flatnonzero(inner)
    _require((forest.left[nodes] > nodes).all(), "a child stands before its parent")
    _require(forest.depth.max(initial=0) <= DEPTH_CAP, f"a tree is deeper than {DEPTH_CAP}")


def _check_content(forest: Forest) -> None:
    by_category = is_category_split(forest.schema, forest.feature)
    plain = by_category | (forest.feature < 0)
    _require(np.isfinite(forest.threshold).all(), "a threshold is not finite")
    _require((forest.threshold[plain] == 0).all(), "a threshold without a numeric split")
    _require(not forest.missing_left[forest.feature < 0].any(), "a direction at a leaf")
    _require(np.isfinite(forest.value).all(), "a leaf value is not finite")
    _require(np.isfinite(forest.weights).all() and (forest.weights >= 0).all(), "a weight is negative or not finite")
    _require(bool(forest.weights.any()), "all weights are zero")
    if forest.classes is not None:
        _require((forest.value >= 0).all() and (forest.value <= 1).all(), "a probability is outside 0 to 1")
    if forest.gain is not None:
        _require(np.isfinite(forest.gain).all() and (np.asarray(forest.gain) >= 0).all(), "a gain is not finite")
    n_codes = np.array([f.n_codes for f in forest.schema.features], np.int64)[forest.feature[by_category]]
    octets = forest.sets.astype("<u8").view(np.uint8).reshape(len(forest.sets), 8 * SET_WORDS)
    bits = np.unpackbits(octets, axis=1, bitorder="little")
    _require(not (bits & (np.arange(64 * SET_WORDS) > n_codes[:, None])).any(), "a set names an unknown category")
    _require((bits[:, 0] == forest.missing_left[by_category]).all(), "a set contradicts the missing direction")
