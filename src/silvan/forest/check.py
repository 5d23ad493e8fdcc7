"""Checks of a forest's arrays: every forest passes them, whether from a file, a message or our own code.

Prediction trusts its arrays and checks no index, so whatever could make it read out of bounds, loop or answer
nonsense is refused here. Structure needs little checking: nodes have no pointers, a child's position follows from
which nodes are leaves. Every check takes time linear in the size of the arrays, for forged ones too.
"""

import numpy as np

from silvan.errors import FormatError
from silvan.forest.arrays import COMBINES, DEPTH_CAP, ForestArrays
from silvan.forest.category_set import SET_WORDS, is_category_split, known_bins
from silvan.forest.curves import MOST_TIMES, are_hazards

ODDS_CAP = 1e6
"""Maximum magnitude of added leaf values, knots and log-odds; knots differ by at least its inverse."""

CURVE_CAP = 100.0  # bound on intercepts and slopes of calibration curves


def check(forest: ForestArrays) -> None:
    """Raise ``FormatError`` if arrays are not a forest."""
    _check_shapes(forest)
    _check_structure(forest)
    _check_numbers(forest)
    _check_sets(forest)
    _check_stages(forest)
    _check_calibration(forest)
    _check_reliability(forest)
    _check_times(forest)


def _require(condition: bool | np.bool_, what: str) -> None:
    if not condition:
        raise FormatError(f"not a forest: {what}")


def _check_shapes(forest: ForestArrays) -> None:
    offsets, feature, schema = forest.offsets, forest.feature, forest.schema
    _require(offsets.ndim == 1 and len(offsets) >= 2, "it has no trees")
    _require(feature.ndim == 1 and len(feature) < 2**31, "feature must be a list of less than 2^31 nodes")
    _require(offsets[0] == 0 and offsets[-1] == len(feature), "offsets do not span the nodes")
    # compared, not subtracted: differences of forged offsets may overflow and look valid
    _require((offsets[1:] > offsets[:-1]).all(), "offsets must rise, every tree has a node")
    for name in ("threshold", "missing_left"):
        _require(getattr(forest, name).shape == feature.shape, f"{name} has the wrong shape")
    _require(forest.weights.shape == (len(offsets) - 1,), "weights has the wrong shape")
    _require(len(schema.features) > 0, "its schema has no features")
    _require((feature >= -1).all() and (feature < len(schema.features)).all(), "feature out of range")
    n_leaves = int((feature < 0).sum())
    _require(forest.times is None or forest.times.ndim == 1, "times has the wrong shape")
    _require(forest.value.shape == (n_leaves, forest.n_outputs), "value has the wrong shape")
    n_sets = int(is_category_split(schema, feature).sum())
    _require(forest.sets.shape == (n_sets, SET_WORDS), "sets has the wrong shape")
    _require(forest.gain is None or forest.gain.shape == (len(schema.features),), "gain has the wrong shape")
    _require(forest.combine in COMBINES, f"combine {str(forest.combine)[:40]!r} is unknown")


def _check_structure(forest: ForestArrays) -> None:
    inner = forest.feature >= 0
    per_tree = np.add.reduceat(inner, forest.offsets[:-1], dtype=np.int64)
    _require((np.diff(forest.offsets) == 2 * per_tree + 1).all(), "a tree's nodes and splits do not match")
    nodes = np.flatnonzero(inner)
    _require((forest.left[nodes] > nodes).all(), "a child stands before its parent")
    _require(forest.depth.max(initial=0) <= DEPTH_CAP, f"a tree is deeper than {DEPTH_CAP}")


def _check_numbers(forest: ForestArrays) -> None:
    is_leaf = forest.feature < 0
    plain = is_leaf | is_category_split(forest.schema, forest.feature)
    _require(np.isfinite(forest.threshold).all(), "a threshold is not finite")
    _require((forest.threshold[plain] == 0).all(), "a threshold without a numeric split")
    # a byte of 2 counts as true in NumPy but has another hash
    _require((forest.missing_left.view(np.uint8) <= 1).all(), "a direction is neither 0 nor 1")
    _require(not forest.missing_left[is_leaf].any(), "a direction at a leaf")
    _require(np.isfinite(forest.value).all(), "a leaf value is not finite")
    weights = forest.weights
    _require(np.isfinite(weights).all() and (weights >= 0).all(), "a weight is negative or not finite")
    with np.errstate(over="ignore"):
        _require(0 < weights.sum() < np.inf, "the weights add up to zero or infinity")
    if forest.combine == "log_odds":
        _require((np.abs(forest.value) <= ODDS_CAP).all(), f"log-odds beyond {ODDS_CAP:g}")
        _require(weights.sum() <= ODDS_CAP, f"the weights of log-odds add up to more than {ODDS_CAP:g}")
    elif forest.schema.label.classes is not None:
        _require((forest.value >= 0).all() and (forest.value <= 1).all(), "a probability is outside 0 to 1")
    if forest.gain is not None:
        usable = np.isfinite(forest.gain).all() and (forest.gain >= 0).all()
        _require(usable, "a gain is negative or not finite")


def _check_sets(forest: ForestArrays) -> None:
    by_category = is_category_split(forest.schema, forest.feature)
    known = known_bins(forest.schema)[forest.feature[by_category]]
    _require(not (forest.sets & ~known).any(), "a set names an unknown category")
    first_bit = forest.sets[:, 0] & np.uint64(1)
    _require((first_bit == forest.missing_left[by_category]).all(), "a set contradicts the missing direction")


def _check_stages(forest: ForestArrays) -> None:
    group, say = forest.group, forest.say
    if forest.combine != "stages":
        _require(group is None and say is None, "group and say are for trees that combine by stages")
        return
    _require(forest.schema.label.classes is not None, "stages need classes to vote for")
    if group is None or say is None:
        raise FormatError("not a forest: stages need group and say")
    _require(group.shape == (len(forest),), "group has the wrong shape")
    _require(group[0] == 0, "the first stage must be 0")
    begins = group[1:] != group[:-1]
    _require((group[1:][begins] == group[:-1][begins] + np.int64(1)).all(), "stages must count up by one")
    _require(say.shape == (int(group[-1]) + 1,), "say has the wrong shape")
    _require(np.isfinite(say).all() and (say >= 0).all(), "a stage's say is negative or not finite")
    with np.errstate(over="ignore"):
        _require(0 < say.sum() < np.inf, "the weights of the stages add up to zero or infinity")
    starts = np.concatenate([[0], np.flatnonzero(begins) + 1])
    _require((np.maximum.reduceat(forest.weights, starts) > 0).all(), "no tree of a stage has a weight")


def _check_calibration(forest: ForestArrays) -> None:
    knots, odds = forest.knots, forest.odds
    if forest.combine != "log_odds":
        _require(knots is None and odds is None, "knots and odds are for trees that combine log-odds")
        return
    _require(forest.schema.label.classes is not None, "log-odds need classes")
    if knots is None or odds is None:
        raise FormatError("not a forest: log-odds need knots and odds")
    _require(knots.ndim == 2 and len(knots) == forest.n_outputs and knots.shape[1] >= 2, "knots has the wrong shape")
    _require(odds.shape == knots.shape, "odds has the wrong shape")
    for name, array in (("knots", knots), ("odds", odds)):
        # written so that NaN is refused too
        _require((np.abs(array) <= ODDS_CAP).all(), f"{name} are beyond {ODDS_CAP:g} or not a number")
    _require((np.diff(knots, axis=1) >= 1.0 / ODDS_CAP).all(), "knots must rise")
    _require((np.diff(odds, axis=1) >= 0).all(), "odds must not fall")


def _check_times(forest: ForestArrays) -> None:
    times = forest.times
    if times is None:
        return
    _require(forest.schema.label.event is not None and forest.combine in ("mean", "vote"), "times are for survival")
    _require(times.ndim == 1 and 2 <= len(times) <= MOST_TIMES, f"times must be 2 to {MOST_TIMES}")
    _require(np.isfinite(times).all() and (times >= 0).all() and (np.diff(times) > 0).all(), "times must rise from 0")
    _require(are_hazards(forest.value), "a cumulative hazard falls, or rises by above 1")


def _check_reliability(forest: ForestArrays) -> None:
    curve, errors = forest.curve, forest.errors
    means = forest.combine in ("mean", "vote")
    _require(means or (curve is None and errors is None), "a curve and errors are for trees that answer by their mean")
    if curve is not None:
        _require(forest.schema.label.classes is not None, "a curve needs classes")
        _require(curve.shape == (forest.n_outputs, 2), "curve has the wrong shape")
        _require((np.abs(curve) <= CURVE_CAP).all(), f"the curve is beyond {CURVE_CAP:g} or not a number")
        _require((curve[:, 1] > 0).all(), "a curve must rise")
        if forest.n_outputs == 2:  # otherwise the two probabilities would not add up to 1
            _require((curve[0] == curve[1] * (-1.0, 1.0)).all(), "the curves of two classes contradict each other")
    if errors is not None:
        _require(errors.ndim == 2 and len(errors) == 2 and errors.shape[1] >= 2, "errors has the wrong shape")
        _require(np.isfinite(errors).all(), "an error is not finite")
        _require((np.diff(errors, axis=1) >= 0).all(), "errors must not fall")
        _require(errors[1, 0] == 0 and 1 <= errors[1, -1] <= 2**53, "errors are of no rows")
