"""The arrays of a forest: nodes in level order, leaf values, tree weights and a schema.

The nodes of a tree are in level order, siblings side by side. So the k-th inner node of a tree, counted from 0,
has its children at positions 2k+1 and 2k+2 of that tree, and which nodes are leaves determines the whole structure:
there are no child pointers to get wrong, and a forest has a single representation.

``ForestArrays`` does not check its arrays; ``Forest``, the class that is used, does.
"""

import hashlib
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self, get_args

import msgspec
import numpy as np

from silvan.data.schema import Class, Schema
from silvan.errors import InputError
from silvan.forest.category_set import is_category_split
from silvan.util.readable import count_of

Combine = Literal["mean", "vote", "stages", "log_odds"]
"""How trees are combined.

mean    the weighted mean of leaf values
vote    each tree votes with its weight for the most probable class of its leaf; scores are still the weighted mean. A
        tree that uses an absent column abstains.
stages  the trees of a group vote by weight; the winning class gets the group's say, and tied winners share it
log_odds  a calibration table maps the weighted sums of leaf values, one per class, to log-odds; the resulting
        probabilities are scaled to add up to 1
"""

COMBINES: tuple[Combine, ...] = get_args(Combine)  # ways to combine trees
DEPTH_CAP = 4096  # no tree is deeper; ``max_depth=None`` means this

ARRAYS = {
    "offsets": np.int64,  # (trees + 1,) the start of each tree's nodes
    "feature": np.int32,  # (nodes,) index into the schema, -1 for a leaf
    "threshold": np.float32,  # (nodes,) numeric split: left if x <= threshold
    "missing_left": np.bool_,  # (nodes,) whether missing values go left
    "sets": np.uint64,  # (category splits, 4) bins that go left, in the order of the nodes
    "value": np.float64,  # (leaves, outputs) probabilities, a number or cumulative hazards, in the order of the nodes
    "weights": np.float64,  # (trees,)
}
"""The arrays of a forest with their element types, in the order of the file format and the hash."""

STAGE_ARRAYS = {
    "group": np.int32,  # (trees,) the stage of each tree: starting at 0, never decreasing, without gaps
    "say": np.float64,  # (stages,)
}
"""Additional arrays of forests that combine by stages."""

CALIBRATION_ARRAYS = {
    "knots": np.float64,  # (classes, points) summed leaf values, increasing
    "odds": np.float64,  # (classes, points) log-odds there, never decreasing; linear between and beyond
}
"""Additional arrays of forests that combine log-odds."""

RELIABILITY_ARRAYS = {
    "curve": np.float64,  # (classes, 2) by class: intercept and slope of log-odds, from mean scores to probabilities
    "errors": np.float64,  # (2, points) out-of-bag errors, increasing; the number of rows with at most this error
}
"""Additional arrays of forests that combine by mean or vote: the reliability of their scores."""

SURVIVAL_ARRAYS = {
    "times": np.float64,  # (outputs,) rising: the times that leaves' cumulative hazards are of
}
"""Additional arrays of survival forests, whose leaves contain curves (``curves.py``)."""

EXTRA_ARRAYS = {
    **STAGE_ARRAYS,
    **CALIBRATION_ARRAYS,
    **RELIABILITY_ARRAYS,
    **SURVIVAL_ARRAYS,
}  # arrays that only some forests have


@dataclass(frozen=True, eq=False)
class ForestArrays:
    """Read-only arrays of decision trees, and properties derived from them. Equality is equality of ``hash``."""

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
    group: np.ndarray | None = field(default=None, repr=False)
    say: np.ndarray | None = field(default=None, repr=False)
    knots: np.ndarray | None = field(default=None, repr=False)
    odds: np.ndarray | None = field(default=None, repr=False)
    curve: np.ndarray | None = field(default=None, repr=False)
    errors: np.ndarray | None = field(default=None, repr=False)
    times: np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Make read-only copies of the arrays."""
        for name, dtype in ARRAYS.items():
            object.__setattr__(self, name, _frozen(getattr(self, name), dtype))
        for name, dtype in {"gain": np.float64, **EXTRA_ARRAYS}.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _frozen(getattr(self, name), dtype))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ForestArrays) and self.hash == other.hash

    def __hash__(self) -> int:
        return int(self.hash[:15], 16)

    def __repr__(self) -> str:
        return f"<Forest of {count_of(len(self), 'tree')}, {count_of(len(self.feature), 'node')}, {self.hash[:12]}>"

    @property
    def n_features(self) -> int:
        """Columns that the forest expects."""
        return len(self.schema.features)

    @property
    def n_outputs(self) -> int:
        """Classes, times of curves, or 1 for a number."""
        return max(self.schema.n_classes, 1) if self.times is None else len(self.times)

    @cached_property
    def classes(self) -> np.ndarray | None:
        """The classes in the order of the probabilities; None for regression."""
        return None if self.schema.label.classes is None else class_array(self.schema.label.classes)

    @cached_property
    def left(self) -> np.ndarray:
        """Each node's left child, numbered over the whole forest; -1 for a leaf."""
        return left_children(self.feature >= 0, self.offsets)

    @cached_property
    def right(self) -> np.ndarray:
        """Each node's right child, numbered over the whole forest; -1 for a leaf."""
        return np.where(self.left < 0, -1, self.left + 1)

    @cached_property
    def depth(self) -> np.ndarray:
        """Each node's distance from its root."""
        before = np.concatenate([[0], np.cumsum(self.feature >= 0)])  # splits before each node
        trees, starts, ends = np.arange(len(self)), self.offsets[:-1], self.offsets[:-1] + 1
        levels: list[tuple[np.ndarray, np.ndarray]] = []  # trees with this depth, and the number of their nodes
        while len(trees) and len(levels) < DEPTH_CAP + 2:
            levels.append((trees, ends - starts))
            n_next = 2 * (before[ends] - before[starts])
            deeper = n_next > 0
            trees, starts, ends = trees[deeper], ends[deeper], (ends + n_next)[deeper]
        of_tree, sizes = (np.concatenate(some) for some in zip(*levels, strict=True))
        order = np.argsort(of_tree, kind="stable")
        numbers = np.repeat(np.arange(len(levels), dtype=np.int32), [len(some) for some, _ in levels])
        return np.repeat(numbers[order], sizes[order])

    @cached_property
    def leaf(self) -> np.ndarray:
        """Each node's row in ``value``; -1 for an inner node."""
        is_leaf = self.feature < 0
        return np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)

    @cached_property
    def uses(self) -> np.ndarray:
        """Return which features each tree uses: bool (trees, features)."""
        uses = np.zeros((len(self), self.n_features), np.bool_)
        tree = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        inner = self.feature >= 0
        uses[tree[inner], self.feature[inner]] = True
        uses.setflags(write=False)
        return uses

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the trees and of the names of columns and classes; independent of their origin."""
        schema = self.schema
        named = ([(f.name, f.kind, f.categories, f.other) for f in schema.features], schema.label.classes, self.combine)
        digest = hashlib.sha256(msgspec.json.encode(named))
        for name, dtype in {**ARRAYS, **EXTRA_ARRAYS}.items():
            array = getattr(self, name)
            if array is None:
                continue
            digest.update(f"{name} {array.shape}".encode())
            digest.update(array.astype(np.dtype(dtype).newbyteorder("<"), copy=False).tobytes())
        return digest.hexdigest()

    def take(self, trees: Any) -> Self:
        """Return a forest of some of the trees; whole stages, if it combines by stages."""
        trees = np.atleast_1d(np.arange(len(self))[trees])
        group, say = self._stages(trees)
        nodes = np.concatenate([np.arange(*self.offsets[t : t + 2]) for t in trees] or [np.empty(0, np.int64)])
        sizes, inner = np.diff(self.offsets)[trees], self.feature[nodes] >= 0
        return self.take_nodes(nodes, sizes, inner, weights=self.weights[trees], group=group, say=say)

    def take_nodes(self, nodes: np.ndarray, sizes: np.ndarray, inner: np.ndarray, **others: Any) -> Self:
        """Return trees made of some of the nodes, tree by tree and level by level; ``inner`` marks the splits.

        ``sizes`` are the numbers of nodes of the trees; ``others`` are arrays that are not by node.
        """
        by_category = is_category_split(self.schema, self.feature)
        set_of = np.cumsum(by_category) - 1
        return replace(
            self,
            offsets=np.concatenate([[0], np.cumsum(sizes)]),
            feature=np.where(inner, self.feature[nodes], -1),
            threshold=np.where(inner, self.threshold[nodes], 0.0),
            missing_left=inner & self.missing_left[nodes],
            sets=self.sets[set_of[nodes[inner & by_category[nodes]]]],
            value=self.value[np.maximum(self.leaf[nodes[~inner]], 0)],
            gain=None,
            **others,
        )

    def bare(self) -> Self:
        """Return the forest without gains, which must not leave a site."""
        return self if self.gain is None else replace(self, gain=None)

    def plain(self) -> Self:
        """Return the forest without calibration curve and errors: only the trees, and how they combine."""
        return self if self.curve is None and self.errors is None else replace(self, curve=None, errors=None)

    @property
    def decides_by_votes(self) -> bool:
        """Whether votes decide the class; with a calibration curve the most probable class wins."""
        return self.combine == "vote" and self.curve is None and self.schema.label.classes is not None

    def _stages(self, trees: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return the stages of some trees and the weight of each stage; None unless trees combine by stages."""
        if self.combine != "stages":
            return None, None
        group, say = not_none(self.group), not_none(self.say)
        sizes, taken, at = np.bincount(group), [], 0
        while at < len(trees):
            stage = int(group[trees[at]])
            begin = int(np.searchsorted(group, stage))
            end = begin + int(sizes[stage])
            if not np.array_equal(trees[at : at + end - begin], np.arange(begin, end)):
                raise InputError(
                    f"the trees of a stage belong together; take all of trees {begin} to {end - 1}, in order, or none "
                    "of them"
                )
            taken.append(stage)
            at += end - begin
        return np.repeat(np.arange(len(taken)), sizes[taken]), say[taken]


def class_array(names: tuple[Class, ...]) -> np.ndarray:
    """Return names of classes as an array; NumPy alone would convert 1 to "1" next to a text."""
    return np.array(names, None if len(set(map(type, names))) == 1 else np.object_)


def left_children(inner: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return each node's left child, numbered over all trees; -1 for a leaf.

    ``inner`` marks the splits, ``offsets`` are the starts of the trees' nodes.
    """
    before = np.cumsum(inner) - inner  # splits before each node
    roots = offsets[:-1]
    return np.where(inner, 2 * before + np.repeat(roots + 1 - 2 * before[roots], np.diff(offsets)), -1)


def not_none(array: np.ndarray | None) -> np.ndarray:
    """Return an array that a checked forest has, because its way of combining trees needs it."""
    if array is None:
        raise TypeError("the way in which this forest combines its trees needs more arrays")
    return array


def _frozen(array: Any, dtype: Any) -> np.ndarray:
    """Return a read-only copy, so that checked arrays never change; -0.0 becomes 0.0, so that the hash is unique.

    Arrays that another forest has frozen are shared.
    """
    if _is_frozen(array, dtype):
        shared: np.ndarray = array
        return shared
    copy = np.array(array, dtype, order="C")
    if copy.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            copy += 0
    copy.setflags(write=False)
    return copy


def _is_frozen(array: Any, dtype: Any) -> bool:
    """Whether an array is read-only, owns its data, and equals what a copy would be."""
    if type(array) is not np.ndarray or array.dtype != dtype or array.flags.writeable or array.base is not None:
        return False
    return array.flags.c_contiguous and not (array.dtype.kind == "f" and (np.signbit(array) & (array == 0)).any())
