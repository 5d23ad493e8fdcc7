"""One tree of a forest as an outline in plain words: its conditions and its predictions."""

from datetime import date, timedelta
from typing import Any

import numpy as np

from silvan.data.schema import Feature
from silvan.forest.category_set import is_category_split, set_bits
from silvan.forest.forest import Forest
from silvan.util.readable import format_number

MOST_LEVELS = 3
"""Number of levels of splits shown."""

_MOST_NAMES = 4
"""Maximum number of categories named in a condition."""


def outline(forest: Forest) -> dict[str, Any] | None:
    """Return the shallowest informative tree, as lines; None if single leaves have no meaning of their own."""
    if forest.combine not in ("mean", "vote") or not len(forest):
        return None
    tree = _shallowest(forest)
    if tree is None:
        return None
    start, end = int(forest.offsets[tree]), int(forest.offsets[tree + 1])
    leaves, levels = int((forest.feature[start:end] < 0).sum()), int(forest.depth[start:end].max())
    of = "" if forest.classes is None else str(forest.classes[-1]) if len(forest.classes) == 2 else "most likely"
    lines: list[dict[str, Any]] = []
    _walk(forest, start, 0, "all rows", {}, lines)
    size = {"trees": len(forest), "leaves": leaves, "levels": levels}
    return {"number": tree + 1, **size, "shown": MOST_LEVELS, "of": of, "lines": lines}


def _shallowest(forest: Forest) -> int | None:
    """Return the least deep tree in use with at least two splits, or else with one."""
    starts = forest.offsets[:-1]
    splits = np.add.reduceat(forest.feature >= 0, starts).astype(np.int64)
    levels = np.maximum.reduceat(forest.depth, starts)
    for least in (2, 1):
        fit = np.flatnonzero((splits >= least) & (forest.weights > 0))
        if len(fit):
            return int(min(fit, key=lambda t: (levels[t], -splits[t], t)))
    return None


Reach = dict[int, np.ndarray]
"""For each feature split on above a node: the categories that reach the node, with missing values in bit 0."""


def _walk(forest: Forest, node: int, level: int, text: str, reach: Reach, lines: list[dict[str, Any]]) -> None:
    """Add a node and its descendants, depth first."""
    line: dict[str, Any] = {"level": level, "text": text, "answer": "", "share": None, "cut": 0}
    lines.append(line)
    if forest.feature[node] < 0:
        line |= _answer(forest, forest.value[_places(forest, np.array([node]))[0]])
    elif level == MOST_LEVELS:
        leaves = _leaves_below(forest, node)
        line |= {**_answer(forest, forest.value[_places(forest, leaves)].mean(axis=0)), "cut": len(leaves)}
    else:
        feature, children = int(forest.feature[node]), (int(forest.left[node]), int(forest.right[node]))
        here = reach.get(feature, np.ones(256, np.bool_))
        for child, (condition, bits) in zip(children, _conditions(forest, node, here), strict=True):
            _walk(forest, child, level + 1, condition, {**reach, feature: bits}, lines)


def _leaves_below(forest: Forest, node: int) -> np.ndarray:
    leaves, level = [], np.array([node])
    while len(level):
        inner = forest.feature[level] >= 0
        leaves.append(level[~inner])
        level = np.concatenate([forest.left[level[inner]], forest.right[level[inner]]])
    return np.concatenate(leaves)


def _places(forest: Forest, leaves: np.ndarray) -> np.ndarray:
    """Return the positions of leaves' values, which are stored in the order of nodes."""
    return (np.cumsum(forest.feature < 0) - 1)[leaves]


def _answer(forest: Forest, value: np.ndarray) -> dict[str, Any]:
    """Return the prediction of a leaf value, and its probability."""
    if forest.classes is None:
        return {"answer": format_number(value[0])}
    best = len(value) - 1 if len(value) == 2 else int(value.argmax())
    share = float(min(max(value[best], 0.0), 1.0))
    return {"answer": f"{forest.schema.label.name} = {forest.classes[best]}: {share:.0%}", "share": share}


def _conditions(forest: Forest, node: int, here: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return the conditions for going left and right, each with the categories that remain possible."""
    feature: Feature = forest.schema.features[int(forest.feature[node])]
    by_category = is_category_split(forest.schema, forest.feature)
    if by_category[node]:
        bits = set_bits(forest.sets[[int(by_category[:node].sum())]])[0]
        return [(_categories(feature, side), side) for side in (bits & here, ~bits & here)]
    at, left = _value(feature, float(forest.threshold[node])), bool(forest.missing_left[node])
    sides = []
    for sign, goes in (("≤", left), (">", not left)):
        bits = here.copy()
        bits[0] &= goes
        sides.append((f"{feature.name} {sign} {at}{', or missing' * bool(bits[0])}", bits))
    return sides


def _value(feature: Feature, value: float) -> str:
    """Write a threshold; one of days as a date."""
    if feature.date == "days":
        try:
            return (date(1970, 1, 1) + timedelta(days=int(np.floor(value)))).isoformat()
        except OverflowError:
            pass
    return format_number(value)


def _categories(feature: Feature, bits: np.ndarray) -> str:
    """Name the categories of a side; bit 0 stands for missing values."""
    names = [*(feature.categories or ()), *(["other"] if feature.other else [])]
    here = [name for i, name in enumerate(names, start=1) if bits[i]]
    shown = here if len(here) <= _MOST_NAMES else [*here[: _MOST_NAMES - 1], f"{len(here) - _MOST_NAMES + 1} more"]
    shown += ["missing"] * bool(bits[0])
    return f"{feature.name} is {' or '.join(shown)}" if shown else f"{feature.name} is an unknown category"
