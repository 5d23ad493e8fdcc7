"""Predictions of forests row by row and tree by tree: the reference for the kernels."""

import numpy as np

from silvan.forest.category_set import is_category_split
from silvan.forest.forest import Forest


def goes_left(forest: Forest, node: int, x: np.ndarray) -> bool:
    """Whether one row goes left at one inner node."""
    f = forest.feature[node]
    if np.isnan(x[f]):
        return bool(forest.missing_left[node])
    if not forest.schema.features[f].categorical:
        return bool(x[f] <= forest.threshold[node])
    words = forest.sets[is_category_split(forest.schema, forest.feature[:node]).sum()]
    code = int(x[f]) + 1
    return bool(int(words[code >> 6]) >> (code & 63) & 1)


def leaves(forest: Forest, X: np.ndarray) -> np.ndarray:
    """The leaf of each row in each tree: (trees, rows), positions in ``value``."""
    out = np.zeros((len(forest), len(X)), int)
    for t in range(len(forest)):
        for i, x in enumerate(X):
            node = int(forest.offsets[t])
            while forest.feature[node] >= 0:
                node = int(forest.left[node] if goes_left(forest, node, x) else forest.right[node])
            out[t, i] = forest.leaf[node]
    return out


def abstains(forest: Forest, absent: np.ndarray | None) -> list[bool]:
    lacking = set() if absent is None else set(np.flatnonzero(absent).tolist())
    trees = zip(forest.offsets[:-1], forest.offsets[1:], strict=True)
    return [bool(lacking & set(forest.feature[begin:end].tolist())) for begin, end in trees]


def first_best(numbers: list[float]) -> int:
    """The position of the largest, the first of equal ones."""
    return max(range(len(numbers)), key=lambda k: (numbers[k], -k))


def vote_answers(forest: Forest, X: np.ndarray, absent=None, seen=None, weights=None):
    """Mean leaf values and weights of votes over the trees that take part: NaN and zero where none does."""
    where, silent = leaves(forest, X), abstains(forest, absent)
    weights = forest.weights if weights is None else weights
    seen = np.zeros(where.shape, bool) if seen is None else seen
    means = np.full((len(X), forest.n_outputs), np.nan)
    votes = np.zeros((len(X), forest.schema.n_classes))
    for i in range(len(X)):
        total, weight = np.zeros(forest.n_outputs), 0.0
        for t in range(len(forest)):
            if silent[t] or seen[t, i]:
                continue
            value = forest.value[where[t, i]]
            total += weights[t] * value
            weight += weights[t]
            if forest.classes is not None:
                votes[i, first_best(value.tolist())] += weights[t]
        if weight > 0:
            means[i] = total / weight
    return means, votes


def stage_answers(forest: Forest, X: np.ndarray) -> np.ndarray:
    where = leaves(forest, X)
    out = np.zeros((len(X), forest.n_outputs))
    for i in range(len(X)):
        for stage, say in enumerate(forest.say):
            votes = [0.0] * forest.n_outputs
            for t in np.flatnonzero(forest.group == stage):
                votes[first_best(forest.value[where[t, i]].tolist())] += forest.weights[t]
            winners = [k for k, vote in enumerate(votes) if vote == max(votes)]
            for k in winners:
                out[i, k] += say / len(winners)
    return out / sum(forest.say)


def confusions(forest: Forest, X: np.ndarray, y: np.ndarray, absent=None) -> np.ndarray:
    where, silent = leaves(forest, X), abstains(forest, absent)
    out = np.zeros((len(forest), forest.n_outputs, forest.n_outputs), int)
    for t in range(len(forest)):
        for i in range(len(X) if not silent[t] else 0):
            out[t, y[i], first_best(forest.value[where[t, i]].tolist())] += 1
    return out


def errors(forest: Forest, X: np.ndarray, y: np.ndarray, scale: float, cap: int, absent=None) -> np.ndarray:
    where, silent = leaves(forest, X), abstains(forest, absent)
    out = np.zeros((len(forest), 2), int)
    for t in range(len(forest)):
        for i in range(len(X) if not silent[t] else 0):
            gap = float(y[i]) - float(forest.value[where[t, i], 0])
            out[t] += (1, min(round(min(gap * gap * scale, 2.0**60)), cap))
    return out
