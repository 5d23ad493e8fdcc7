"""Checks shared by all exports: a copy in another format must predict the same as the forest near every split.

Random rows rarely come near a deep split, so a copy with an error there would pass. So rows are constructed for every
split (for some thousands in a large forest): each feature on the path from the root gets a value that takes the right
turn, and at the split itself there are four variants: exactly the threshold, the next larger number, the next smaller
one, and missing. For a split by category: a category that goes left, one that goes right, a code that does not exist,
and missing. Random rows are added.
"""

from importlib import import_module
from typing import Any

import numpy as np

from silvan.data.schema import MAX_BINS
from silvan.errors import ExportError
from silvan.forest.arrays import ForestArrays
from silvan.forest.category_set import is_category_split, known_bins, set_bits
from silvan.forest.predict import as_matrix, scores

_MOST_SPLITS, _MOST_NUMBERS = 1 << 14, 1 << 22
"""Maximum number of splits to check, and of numbers in their rows: seconds, and tens of megabytes."""

_KINDS = 4
_LARGEST = np.finfo(np.float32).max


def import_extra(name: str) -> Any:
    """Import a package that only exports need; raise ``ExportError`` if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.split(".")[0]
        raise ExportError(
            f"this export needs {package}, which cannot be imported ({error}); install it: pip install 'silvan[export]'"
        ) from None


def check_means(forest: ForestArrays, name: str, *, curves: bool = False) -> None:
    """Raise ``ExportError`` for a forest that does not average its trees, which no other format supports.

    ``curves`` says whether the format supports calibration curves.
    """
    if forest.times is not None:
        raise ExportError(f"leaves of survival forests hold curves, which {name} has no place for; save a .silvan file")
    if forest.combine == "vote":
        raise ExportError(
            f"combine is 'vote': {name} cannot combine a class by votes with probabilities by means, nor let trees "
            "abstain; save a .silvan file, or export dataclasses.replace(forest, combine='mean'), which has the same "
            "probabilities and predicts the most probable class"
        )
    if forest.combine != "mean":
        lacks = "votes within stages" if forest.combine == "stages" else "calibration of summed log-odds"
        raise ExportError(f"combine is {forest.combine!r}: {name} has no {lacks}; save a .silvan file")
    if forest.curve is not None and not curves:
        raise ExportError(
            f"the forest has a calibration curve, which {name} does not support: export plain(), which has the scores "
            "before calibration, or save a .silvan file"
        )


def check_answers(forest: ForestArrays, rows: np.ndarray, answers: np.ndarray, tolerance: float, name: str) -> None:
    """Raise ``ExportError`` if the predictions of a copy differ from the forest's by more than a tolerance."""
    expected = scores(forest, as_matrix(forest.schema, rows))
    if answers.shape != expected.shape:
        raise ExportError(f"the {name} copy returns {answers.shape} numbers, the forest {expected.shape}")
    gap = np.abs(answers - expected).max(axis=1)
    wrong = ~(gap <= tolerance)  # so that NaN counts as wrong
    if wrong.any():
        raise ExportError(
            f"the {name} copy predicts differently for {wrong.sum()} of {len(rows)} test rows, by up to "
            f"{gap[wrong].max():.3g}; nothing was exported. This is a bug in silvan or in the installed version of "
            f"{name}: please report it"
        )


def probing_rows(forest: ForestArrays) -> np.ndarray:
    """Return float32 rows on which a copy must agree; always the same for the same forest."""
    rng = np.random.default_rng(int(forest.hash[:16], 16))
    inner = np.flatnonzero(forest.feature >= 0)
    most = min(_MOST_SPLITS, _MOST_NUMBERS // (_KINDS * forest.n_features) + 64)
    if len(inner) > most:
        inner = np.sort(rng.choice(inner, most, replace=False))
    n_random = min(most + MAX_BINS, 1024)
    rows = _anywhere(forest, n_random + len(inner), rng)
    near = _lead_to(forest, inner, rows[n_random:], rng)
    return np.concatenate([rows[:n_random], near])


def _anywhere(forest: ForestArrays, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return random rows: values near thresholds, categories, codes that do not exist, missing values."""
    rows = rng.standard_normal((n, forest.n_features), np.float32)
    numeric = np.flatnonzero((forest.feature >= 0) & ~is_category_split(forest.schema, forest.feature))
    order = numeric[np.argsort(forest.feature[numeric], kind="stable")]
    for nodes in np.split(order, np.flatnonzero(np.diff(forest.feature[order])) + 1):
        if len(nodes):
            column, thresholds = rows[:, forest.feature[nodes[0]]], forest.threshold[nodes]
            column[:] = _around(thresholds, column, rng)
    for f, feature in enumerate(forest.schema.features):
        if feature.categorical:
            # every code, one below the first and one above the last
            rows[:, f] = rng.permutation(np.arange(n) % (feature.n_codes + 2)) - 1
    rows[rng.random(rows.shape, np.float32) < 0.1] = np.nan
    return rows


def _around(thresholds: np.ndarray, normal: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Choose values at thresholds, next to them and between them."""
    near = rng.choice(thresholds, len(normal))
    with np.errstate(over="ignore"):
        between = np.clip(near + normal * np.ptp(thresholds / 4), -_LARGEST, _LARGEST)
    values = (near, np.nextafter(near, _LARGEST), np.nextafter(near, -_LARGEST), between)
    return np.choose(rng.integers(0, 4, len(normal)), values)


def _lead_to(forest: ForestArrays, nodes: np.ndarray, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Change each row so that it reaches its node, then make the variants that the node must distinguish."""
    categorical = np.flatnonzero([f.categorical for f in forest.schema.features])
    column_of = np.full(forest.n_features, -1)
    column_of[categorical] = np.arange(len(categorical))
    possible = np.tile(known_bins(forest.schema)[categorical], (len(nodes), 1, 1))
    set_of = np.cumsum(is_category_split(forest.schema, forest.feature)) - 1
    for at, parent in _paths_down(forest, nodes):
        row = np.flatnonzero(parent >= 0)
        at, parent = at[row], parent[row]
        f, left = forest.feature[parent], at == forest.left[parent]
        column, threshold = column_of[f], forest.threshold[parent]
        # no number is above the largest, so only missing values go right there
        above = np.where(threshold < _LARGEST, np.nextafter(threshold, _LARGEST), np.nan)
        numeric = column < 0
        rows[row[numeric], f[numeric]] = np.where(left, threshold, above)[numeric]
        words = forest.sets[set_of[parent[~numeric]]]
        words = np.where(left[~numeric, None], words, ~words)
        possible[row[~numeric], column[~numeric]] &= words
    for i, f in enumerate(categorical):
        rows[:, f] = _draw_code(possible[:, i], rng)

    kinds = np.repeat(rows[:, None], _KINDS, axis=1)
    f, threshold = forest.feature[nodes], forest.threshold[nodes]
    each, column = np.arange(len(nodes)), column_of[f]
    kinds[each, 0, f] = threshold
    kinds[each, 1, f] = np.nextafter(threshold, _LARGEST)
    kinds[each, 2, f] = np.nextafter(threshold, -_LARGEST)
    kinds[each, 3, f] = np.nan
    cat = np.flatnonzero(column >= 0)
    f, words, here = f[cat], forest.sets[set_of[nodes[cat]]], possible[cat, column[cat]]
    kinds[cat, 0, f] = _draw_code(here & words, rng)
    kinds[cat, 1, f] = _draw_code(here & ~words, rng)
    kinds[cat, 2, f] = np.array([feature.n_codes for feature in forest.schema.features])[f]
    return kinds.reshape(-1, forest.n_features)


def _paths_down(forest: ForestArrays, nodes: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """List the steps from roots to nodes, for all together: pairs (node, parent), -1 above a root."""
    inner = np.flatnonzero(forest.feature >= 0)
    above = np.full(len(forest.feature) + 1, -1)  # the last entry represents the place above a root
    above[forest.left[inner]] = above[forest.right[inner]] = inner
    steps, at = [], nodes
    while (at >= 0).any():
        steps.append((at, above[at]))
        at = above[at]
    return steps[::-1]


def _draw_code(words: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Choose a code from each set of bins: missing if the set is empty or the bin of missing values is chosen."""
    bits = set_bits(words)
    bin_ = (bits * rng.random(bits.shape)).argmax(axis=1)
    return np.where(bin_ > 0, bin_ - 1, np.nan).astype(np.float32)


def leaf_terms(forest: ForestArrays) -> np.ndarray:
    """Return leaf values whose plain mean over trees is the weighted mean: other formats have no tree weights."""
    weights = forest.weights
    if (weights == weights[0]).all():
        return forest.value
    is_leaf = forest.feature < 0
    per_tree = np.add.reduceat(is_leaf, forest.offsets[:-1], dtype=np.int64)
    return forest.value * np.repeat(weights / weights.mean(), per_tree)[:, None]
