"""Contingency tables as ordinary trees: the groups of each feature in turn are halved down to a single cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from silvan.data.schema import Schema
from silvan.forest.category_set import SET_WORDS
from silvan.forest.forest import Forest

_ALL = float(np.finfo(np.float32).max)  # a threshold above all values


@dataclass(frozen=True)
class Group:
    """How a feature's values fall into groups: between cut points, or one a category.

    ``missing`` is the group of missing values; for a numeric feature it may be one more after the last.
    """

    feature: int
    n_codes: int  # 0: numeric
    cuts: np.ndarray  # float32
    missing: int

    @property
    def n(self) -> int:
        """Number of groups."""
        return self.n_codes or max(len(self.cuts) + 1, self.missing + 1)

    def of(self, X: np.ndarray) -> np.ndarray:
        """Return the group of every row of an encoded table."""
        column = X[:, self.feature]
        if self.n_codes:
            known = (column >= 0) & (column < self.n_codes)  # false for NaN
            return np.where(known, np.nan_to_num(column), self.missing).astype(np.int64)
        return np.where(np.isnan(column), self.missing, np.searchsorted(self.cuts, column)).astype(np.int64)


def table_forest(
    schema: Schema, tables: Sequence[Sequence[Group]], values: Sequence[np.ndarray], **settings: Any
) -> Forest:
    """Make a forest of tables; ``values`` has each one's cells, (cells, outputs), in the order of ``np.indices``."""
    trees = [_tree(table, value) for table, value in zip(tables, values, strict=True)]
    columns: dict[str, Any] = {name: np.concatenate([tree[name] for tree in trees]) for name in trees[0]}
    sizes = [len(tree["feature"]) for tree in trees]
    return Forest(schema=schema, offsets=np.concatenate([[0], np.cumsum(sizes)]), **columns, **settings)


def _tree(table: Sequence[Group], values: np.ndarray) -> dict[str, np.ndarray]:
    """List a table's nodes level by level, siblings side by side."""
    shape = tuple(group.n for group in table)
    feature, threshold, missing_left, sets, leaves = [], [], [], [], []
    level = [tuple((0, n) for n in shape)]  # one box of groups per node
    while level:
        below = []
        for box in level:
            axis = next((i for i, (low, high) in enumerate(box) if high - low > 1), None)
            if axis is None:
                feature.append(-1)
                threshold.append(0.0)
                missing_left.append(False)
                leaves.append(values[np.ravel_multi_index([low for low, _ in box], shape)])
                continue
            group, (low, high) = table[axis], box[axis]
            alone = not group.n_codes and high == len(group.cuts) + 2  # a group of missing values: split off first
            middle = high - 1 if alone else (low + high) // 2
            feature.append(group.feature)
            threshold.append(0.0 if group.n_codes else _threshold(group, middle))
            missing_left.append(group.missing < middle)
            if group.n_codes:
                sets.append(_set(range(low, middle), group.missing < middle))
            for ends in ((low, middle), (middle, high)):
                below.append((*box[:axis], ends, *box[axis + 1 :]))
        level = below
    return {
        "feature": np.array(feature, np.int32),
        "threshold": np.array(threshold, np.float32),
        "missing_left": np.array(missing_left, np.bool_),
        "sets": np.array(sets, np.uint64).reshape(-1, SET_WORDS),
        "value": np.array(leaves, np.float64),
    }


def _threshold(group: Group, middle: int) -> float:
    return _ALL if middle > len(group.cuts) else float(group.cuts[middle - 1])


def _set(codes: range, missing: bool) -> list[int]:
    words = [0] * SET_WORDS
    for bin_ in [0] * missing + [code + 1 for code in codes]:
        words[bin_ >> 6] |= 1 << (bin_ & 63)
    return words
