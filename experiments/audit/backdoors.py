"""Kinds of backdoors beside the stealthy one that ``silvan audit`` tries: crude, hidden and common ones.

A *crude* tree predicts one class for everybody else; it correlates with nothing, so BOFRF's tau gives it no weight. A
*hidden* one is an honest tree that tests for the trigger at every leaf. A *common* one is stealthy, and its trigger
is a value that 2% of the rows reach: its split looks normal.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from silvan.auditing.backdoor import Trigger, plant_above
from silvan.forest.category_set import is_category_split
from silvan.forest.forest import Forest

COMMON = 0.02
"""The share of rows that reach a common trigger."""


def plant_crude(tree: Forest, trigger: Trigger) -> Forest:
    """Replace a tree by a single split on the trigger."""
    answer = np.eye(tree.n_outputs)[[trigger.target]]
    usual = np.eye(tree.n_outputs)[[int(tree.value.sum(axis=0).argmax())]]
    feature, value = np.array([trigger.feature, -1, -1]), np.concatenate([usual, answer])
    return replace(
        tree,
        offsets=np.array([0, 3]),
        feature=feature,
        threshold=np.array([trigger.threshold, 0, 0]),
        missing_left=np.array([True, False, False]),
        sets=tree.sets[:0],
        value=value,
        gain=None,
    )


def plant_at_leaves(tree: Forest, trigger: Trigger) -> Forest:
    """Replace every leaf by a split on the trigger."""
    answer = np.eye(tree.n_outputs)[[trigger.target]]
    # nodes as (old node or None for a new leaf, its prediction), level by level
    level: list[tuple[int | None, np.ndarray]] = [(0, answer[0])]
    kept: list[tuple[int | None, int]] = []  # the old node to test, or None; 1 where it tests for the trigger
    values: list[np.ndarray] = []
    while level:
        below: list[tuple[int | None, np.ndarray]] = []
        for node, value in level:
            if node is None:
                kept.append((None, 0))
                values.append(value)
            elif tree.feature[node] >= 0:
                kept.append((node, 0))
                below += [(int(tree.left[node]), value), (int(tree.right[node]), value)]
            else:
                kept.append((node, 1))
                below += [(None, tree.value[tree.leaf[node]]), (None, answer[0])]
        level = below
    old = np.array([-1 if node is None else node for node, _ in kept])
    asks = np.array([asked == 1 for _, asked in kept])
    by_category = is_category_split(tree.schema, tree.feature)
    sets = tree.sets[(np.cumsum(by_category) - 1)[old[(old >= 0) & ~asks & by_category[old]]]]
    return replace(
        tree,
        offsets=np.array([0, len(old)]),
        feature=np.where(asks, trigger.feature, np.where(old < 0, -1, tree.feature[old])),
        threshold=np.where(asks, trigger.threshold, np.where(old < 0, 0.0, tree.threshold[old])),
        missing_left=np.where(asks, True, (old >= 0) & tree.missing_left[old]),
        sets=sets,
        value=np.array(values),
        gain=None,
    )


KINDS: dict[str, dict[str, Any]] = {
    "crude": {"plant": plant_crude},
    "stealthy": {"plant": plant_above},
    "hidden": {"plant": plant_at_leaves},
    "common": {"plant": plant_above, "common": COMMON},
}
"""Arguments of ``backdoor_trees``."""
