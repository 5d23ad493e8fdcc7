"""A forest: flat arrays and a schema, nothing else.

Nodes of a tree stand in level order, siblings side by side. So the k-th inner node of a tree, counted from 0,
has its children at places 2k+1 and 2k+2 of that tree, and which nodes are leaves tells the whole structure:
there are no child pointers to get wrong, and one forest has one form.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.forest import predict
from silvan.forest.check import DEPTH_CAP, check, is_category_split
from silvan.forest.predict import given

Combine = Literal["mean", "vote", "stages", "log_odds"]
"""How trees make an answer.

mean    the weighted mean of their leaf values
vote    each tree votes for its leaf's most probable class with its weight; scores are the weighted mean all the
        same. A tree that asks about a column which a table lacks abstains.
stages  the trees of a group vote by weight, the winning class takes the group's say; equal winners share it
log_odds  the weighted sum of their leaf values, a number a class, is bent into log-odds by a calibration table;
        the probabilities that these make are scaled to add up to 1
"""

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

STAGE_ARRAYS = {
    "group": np.int32,  # (trees,) the stage of each tree: from 0, never falling, none left out
    "say": np.float64,  # (stages,)
}
"""More arrays, of forests that combine by stages and of no others."""

CALIBRATION_ARRAYS = {
    "knots": np.float64,  # (classes, points) summed leaf values, rising
    "odds": np.float64,  # (classes, points) log-odds there, never falling; straight lines between and beyond
}
"""More arrays, of forests that combine log-odds and of no others."""

EXTRA_ARRAYS = {**STAGE_ARRAYS, **CALIBRATION_ARRAYS}
"""All arrays that only some ways of combining have."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Decision trees and how they combine.

    Made by learners, ``load`` and ``from_sklearn``; every forest is checked when it is made, so one that
    exists can be used. Equality is equality of ``hash``.
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
    group: np.ndarray | None = field(default=None, repr=False)
    say: np.ndarray | None = field(default=None, repr=False)
    knots: np.ndarray | None = field(default=None, repr=False)
    odds: np.ndarray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Freeze the arrays and check all."""
        for name, dtype in ARRAYS.items():
            object.__setattr__(self, name, _frozen(getattr(self, name), dtype))
        for name, dtype in {"gain": np.float64, **EXTRA_ARRAYS}.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _frozen(getattr(self, name), dtype))
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
        names = self.schema.label.classes
        if names is None:
            return None
        # NumPy would turn 1 to "1" beside a text
        return np.array(names, None if len(set(map(type, names))) == 1 else np.object_)

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
        level = self.offsets[:-1]
        for down in range(1, DEPTH_CAP + 2):
            level = self.left[level[self.feature[level] >= 0]]
            if not len(level):
                break
            level = np.concatenate([level, level + 1])
            depth[level] = down
        return depth

    @cached_property
    def leaf(self) -> np.ndarray:
        """Each node's row in ``value``; -1 for an inner node."""
        is_leaf = self.feature < 0
        return np.where(is_leaf, np.cumsum(is_leaf) - 1, -1)

    @cached_property
    def uses(self) -> np.ndarray:
        """Which features each tree asks about: bool (trees, features)."""
        uses = np.zeros((len(self), self.n_features), np.bool_)
        tree = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        inner = self.feature >= 0
        uses[tree[inner], self.feature[inner]] = True
        uses.setflags(write=False)
        return uses

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the trees and the names of columns and classes; nothing of where they came from."""
        schema = self.schema
        named = (
            [(f.name, f.kind, f.categories, f.other) for f in schema.features],
            schema.label.classes,
            self.combine,
        )
        digest = hashlib.sha256(msgspec.json.encode(named))
        for name, dtype in {**ARRAYS, **EXTRA_ARRAYS}.items():
            array = getattr(self, name)
            if array is None:
                continue
            digest.update(f"{name} {array.shape}".encode())
            digest.update(array.astype(np.dtype(dtype).newbyteorder("<"), copy=False).tobytes())
        return digest.hexdigest()

    # -- use

    def scores(self, X: Any, n_jobs: int | None = None) -> np.ndarray:
        """Give a share a class, or the number: (rows, outputs).

        The weighted mean of the leaf values, each class's share of the stages' say, or what log-odds make. A table
        must have all columns of the schema; if trees vote, those that ask about a column which it lacks abstain.
        """
        rows, absent = predict.as_rows(self, X)
        return predict.scores(self, rows, n_jobs, absent)

    def predict_proba(self, X: Any, n_jobs: int | None = None) -> np.ndarray:
        """Give class probabilities, columns in the order of ``classes``."""
        if self.classes is None:
            raise InputError("predict_proba is for classification; this forest predicts a number")
        return self.scores(X, n_jobs)

    def predict(self, X: Any, n_jobs: int | None = None) -> np.ndarray:
        """Give the class, or the number.

        The class is the one that the trees vote for if ``combine`` is "vote", which need not be the most probable
        one, and that of the highest score if not.
        """
        rows, absent = predict.as_rows(self, X)
        decided = predict.decide(self, rows, n_jobs, absent)
        return decided if self.classes is None else self.classes[decided]

    def importances(self, X: Any = None, y: Any = None, repeats: int = 5, random_state: int = 0) -> dict[str, float]:
        """Say how much each feature matters.

        Without rows: its share in the decrease of impurity, averaged over trees; the shares add up to 1. With rows
        X and y: by how much accuracy (or R2) drops when its column is shuffled.
        """
        if X is not None:
            from silvan.forest.importance import permutation_importances

            return permutation_importances(self, X, y, repeats, random_state)
        if self.gain is None:
            raise InputError("this forest carries no gains; pass rows X and y to learn what matters by shuffling")
        return dict(zip(self.schema.names, map(float, self.gain), strict=True))

    def take(self, trees: Any) -> "Forest":
        """Make a forest of some of the trees; of one that combines by stages, whole stages."""
        trees = np.atleast_1d(np.arange(len(self))[trees])
        group, say = self._stages(trees)
        ranges = [np.arange(*self.offsets[t : t + 2]) for t in trees]
        nodes = np.concatenate(ranges or [np.empty(0, np.int64)])
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
            group=group,
            say=say,
        )

    def _stages(self, trees: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Give the stages that some trees make up, and what each says."""
        if self.combine != "stages":
            return None, None
        group, say = given(self.group), given(self.say)
        sizes, taken, at = np.bincount(group), [], 0
        while at < len(trees):
            stage = int(group[trees[at]])
            begin = int(np.searchsorted(group, stage))
            end = begin + int(sizes[stage])
            if not np.array_equal(trees[at : at + end - begin], np.arange(begin, end)):
                raise InputError(
                    f"the trees of a stage belong together; take all of trees {begin} to {end - 1}, in their "
                    "order, or none of them"
                )
            taken.append(stage)
            at += end - begin
        return np.repeat(np.arange(len(taken)), sizes[taken]), say[taken]

    # -- exchange: the formats are imported when they are used, some need extra packages

    def bare(self) -> "Forest":
        """Give the forest without its gains: what may leave a site."""
        return replace(self, gain=None)

    def save(self, path: str | Path) -> None:
        """Write a ``.silvan`` file."""
        from silvan.forest.files.silvan_file import save

        save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> "Forest":
        """Read a ``.silvan`` file; everything in it is checked."""
        from silvan.forest.files.silvan_file import load

        return load(path)

    @classmethod
    def from_sklearn(cls, model: Any) -> "Forest":
        """Take over a fitted scikit-learn forest or decision tree; predictions stay the same, to the bit."""
        from silvan.forest.files.sklearn_trees import from_sklearn

        return from_sklearn(model)

    def to_sklearn(self) -> Any:
        """Make a fitted ``RandomForestClassifier`` or ``RandomForestRegressor`` that predicts the same."""
        from silvan.forest.files.sklearn_trees import to_sklearn

        return to_sklearn(self)

    def to_onnx(self, path: str | Path) -> None:
        """Write an ONNX model, after checking that onnxruntime answers from it what the forest answers."""
        from silvan.forest.files.onnx_file import to_onnx

        to_onnx(self, path)

    def to_treelite(self) -> Any:
        """Make a ``treelite.Model``, after checking that it answers what the forest answers."""
        from silvan.forest.files.treelite_model import to_treelite

        return to_treelite(self)


def _frozen(array: Any, dtype: Any) -> np.ndarray:
    """Copy, so that nobody can write to what was checked; -0.0 becomes 0.0, for one forest has one hash."""
    own = np.array(array, dtype, order="C")
    if own.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            own += 0
    own.setflags(write=False)
    return own


def join_forests(forests: Sequence[Forest], say: Sequence[float] | None = None) -> Forest:
    """Put the trees of several forests together.

    ``say`` has a factor a forest: for the weights of its trees, or for what its stages say.
    """
    first = forests[0]
    if any(f.schema != first.schema for f in forests):
        raise InputError("forests of different schemas cannot be put together")
    if any(f.combine != first.combine for f in forests):
        ways = ", ".join(sorted({repr(f.combine) for f in forests}))
        raise InputError(f"forests that combine their trees differently ({ways}) cannot be put together")
    if first.combine == "log_odds":
        raise InputError("forests that add log-odds cannot be put together: each has a calibration of its own")
    factors = [1.0] * len(forests) if say is None else say
    starts = np.cumsum([0] + [len(f.feature) for f in forests])
    arrays = {name: np.concatenate([getattr(f, name) for f in forests]) for name in ARRAYS}
    begun = [f.offsets[:-1] + start for f, start in zip(forests, starts, strict=False)]
    arrays["offsets"] = np.concatenate([*begun, starts[-1:]])
    if first.combine == "stages":
        before = np.cumsum([0] + [len(given(f.say)) for f in forests])
        arrays["group"] = np.concatenate([given(f.group) + n for f, n in zip(forests, before, strict=False)])
        arrays["say"] = np.concatenate([given(f.say) * x for f, x in zip(forests, factors, strict=True)])
    else:
        arrays["weights"] = np.concatenate([f.weights * x for f, x in zip(forests, factors, strict=True)])
    gains = [f.gain for f in forests if f.gain is not None]
    gain = np.mean(gains, axis=0) if len(gains) == len(forests) else None
    return Forest(first.schema, **arrays, combine=first.combine, gain=gain)
