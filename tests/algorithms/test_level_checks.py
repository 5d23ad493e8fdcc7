"""Nodes that do not exist and impossible histograms are refused before kernels run."""

import numpy as np
import pytest

from silvan.algorithms.level_checks import check_histograms, check_nodes, follow_level, histograms_add_up
from silvan.data.bins.bins import make_bins
from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.tree.objectives import Measure


def changed(array, at, value):
    array = array.copy()
    array[at] = value
    return array


@pytest.mark.parametrize("n_trees", [0, -1, 2**40])
def test_a_request_for_too_many_trees(n_trees):
    """Detected before memory is allocated for so many nodes."""
    none, one = np.zeros(0, np.int32), np.zeros(1, np.int32)
    with pytest.raises(FormatError, match="trees must be 1 to"):
        follow_level("a forest", [], True, n_trees, (none, none), one, np.zeros((1, 1), np.int32))


def test_check_nodes_accepts_requests_of_the_grower():
    nodes = np.array([4, 0, 7], np.int32)
    check_nodes(nodes, np.array([[0, 3], [2, -1], [1, 2]], np.int32), 8, 4)
    with pytest.raises(FormatError, match="does not exist"):
        check_nodes(nodes, np.zeros((3, 1), np.int32), 7, 4)


# -- impossible replies


def test_histograms_of_classes_and_of_numbers():
    """No class has a negative count; sums of numbers may be negative, but their row counts may not."""
    bins = make_bins(Schema.of(["x", "z"]), [np.zeros(0, np.float32)] * 2)
    features = np.array([[0, 1]], np.int32)
    classes, numbers = Measure("gini", 2, 0, (1, 1), 9), Measure("squared_error", 2, 1, (1,), 9, 0.0, 1.0)
    right = np.array([[1, 4], [2, -1], [0, 0], [3, 3]])
    check_histograms(right, features, bins, numbers)
    check_histograms(np.abs(changed(right, (2, 1), 2)).astype(np.int32), features, bins, classes)
    for sums, measure in (
        (right.astype(np.int32), classes),
        (right[:, ::-1], numbers),
        (right.astype(np.int32), numbers),
        (right[:3], numbers),
        (right[:, :1], numbers),
    ):
        with pytest.raises(FormatError, match="its histograms"):
            check_histograms(sums, features, bins, measure)


def test_histograms_add_up():
    n_bins, features = np.array([2, 3], np.int32), np.array([[0, 1], [1, -1]], np.int32)
    right = np.array([[1, 4], [2, 0], [0, 0], [3, 1], [0, 3], [1, 1], [0, 0], [9, 2]], np.int32)
    assert histograms_add_up(right, features, n_bins, 2)
    assert not histograms_add_up(changed(right, (0, 0), 2), features, n_bins, 2)  # the first node's features differ
    assert not histograms_add_up(changed(right, (2, 1), 1), features, n_bins, 2)
    assert histograms_add_up(changed(right, (7, 0), 1), features, n_bins, 2)  # the second node has only one
    below = changed(changed(right, (0, 0), -1), (1, 0), 4)
    assert not histograms_add_up(below, features, n_bins, 2)
    assert histograms_add_up(
        changed(changed(right, (0, 1), -1), (1, 1), 5), features, n_bins, 1
    )  # sums may be negative


@pytest.mark.parametrize("n_stats", [1, 2, 3])
def test_every_statistic_of_every_bin_counts(n_stats):
    """Two statistics are added in a different code path than more of them."""
    n_bins, features = np.array([2, 2], np.int32), np.array([[0, 1], [1, -1]], np.int32)
    right = np.tile(np.array([[0], [5], [5], [0], [4], [9]], np.int32), n_stats)
    assert histograms_add_up(right, features, n_bins, n_stats)
    large = np.where(right == 5, 255, right).astype(np.uint8)
    assert histograms_add_up(changed(large, 0, 255), np.array([[0, -1]], np.int32), n_bins, n_stats)
    assert not histograms_add_up(changed(changed(large, 0, 255), 3, 254), features, n_bins, n_stats)
    for at in np.ndindex(4, n_stats):
        assert not histograms_add_up(changed(right, at, 7), features, n_bins, n_stats), at
    for at in np.ndindex(4, n_stats):
        row, stat = at
        below = changed(changed(right, at, -1), (row ^ 1, stat), 6)
        assert not histograms_add_up(below, features, n_bins, n_stats), at
        assert histograms_add_up(below, features, n_bins, stat), at  # sums, not counts, from here on
