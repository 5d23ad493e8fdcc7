"""Small errors that an export could make; a parity check that misses one is useless."""

from dataclasses import replace

import numpy as np

from silvan.forest.forest import Forest


def deepest(forest: Forest, wanted: np.ndarray) -> int:
    """The deepest of some nodes: random rows would hardly find an error there."""
    nodes = np.flatnonzero(wanted)
    return int(nodes[np.argmax(forest.depth[nodes])])


def threshold_up(forest: Forest) -> Forest:
    """One threshold is the next larger number."""
    at = deepest(forest, (forest.feature >= 0) & (forest.threshold != 0))
    threshold = forest.threshold.copy()
    threshold[at] = np.nextafter(threshold[at], np.float32(1e38))
    return replace(forest, threshold=threshold)


def threshold_down(forest: Forest) -> Forest:
    """One threshold is the next smaller number, as if "less than" replaced "at most"."""
    at = deepest(forest, (forest.feature >= 0) & (forest.threshold != 0))
    threshold = forest.threshold.copy()
    threshold[at] = np.nextafter(threshold[at], np.float32(-1e38))
    return replace(forest, threshold=threshold)


def all_missing_right(forest: Forest) -> Forest:
    """Missing directions are lost."""
    sets = forest.sets.copy()
    sets[:, 0] &= ~np.uint64(1)
    return replace(forest, missing_left=np.zeros_like(forest.missing_left), sets=sets)


def codes_off_by_one(forest: Forest) -> Forest:
    """Codes are read as bins: each category is mistaken for the previous one."""
    keep, drop = np.uint64(1), np.uint64(2)
    sets = forest.sets.copy()
    sets[:, 0] = (sets[:, 0] & keep) | ((sets[:, 0] & ~keep & ~drop) >> keep)
    return replace(forest, sets=sets)


def leaves_turned(forest: Forest) -> Forest:
    """The leaves of one tree are in another order."""
    value = forest.value.copy()
    n = int((forest.feature[: forest.offsets[1]] < 0).sum())
    value[:n] = value[:n][::-1]
    return replace(forest, value=value)


def weights_lost(forest: Forest) -> Forest:
    """All trees have the same weight."""
    return replace(forest, weights=np.ones(len(forest)))


FAULTS = [threshold_up, threshold_down, all_missing_right, codes_off_by_one, leaves_turned, weights_lost]
