"""What row partitions reveal about labels, measured: much with small leaves, little with large ones."""

from functools import cache

import numpy as np
import polars as pl
import pytest
from helpers.column_studies import ID, Recorded, federate
from helpers.partition_attack import accuracy, certain, drawn_by, groups, last_rounds, likely
from sklearn.metrics import adjusted_rand_score

import silvan as sv
from silvan.learners.in_one_place import joined, row_key_of

N = 300


@cache
def attacked(min_leaf, bootstrap=True, signal=False):
    """Trains on labels that no column predicts (or that some do), and attacks from the party without the label."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 8))
    y = X[:, 0] + X[:, 5] + 0.7 * rng.normal(size=N) > 0 if signal else rng.random(N) < 0.5
    a = pl.DataFrame(X[:, :4], schema=list("abcd")).with_columns(label=y.astype(int), **{ID: np.arange(N)})
    b = pl.DataFrame(X[:, 4:], schema=list("efgh")).with_columns(**{ID: np.arange(N)})
    fed = federate({"holder": a, "curious": b}, Recorded, policy=sv.Policy(min_leaf=1))
    settings = {"n_estimators": 20, "max_depth": 12, "min_samples_leaf": min_leaf, "bootstrap": bootstrap}
    sv.VerticalForest(**settings).fit(fed)
    rounds, ground = last_rounds(fed, "curious")
    found = groups(rounds, drawn_by(fed, "curious", ground))
    truth = joined(fed, fed.columns.training).y
    sure = certain(found, N, ground.settings)
    return adjusted_rand_score(truth, sure), accuracy(likely(found, N), truth == 1), fed


@pytest.mark.parametrize("min_leaf", [1, 2])
def test_small_leaves_reveal_labels(min_leaf):
    """For labels that nothing predicts, partitions alone reveal which rows have equal labels."""
    sure, guessed, _ = attacked(min_leaf)
    assert sure > 0.9
    assert guessed > 0.85


def test_a_minimum_leaf_size_hides_them():
    sure = {leaf: attacked(leaf)[0] for leaf in (1, 5, 20, 40)}
    guessed = {leaf: attacked(leaf)[1] for leaf in (1, 5, 20, 40)}
    assert sure[1] > sure[5] > sure[20] == sure[40] == 0.0  # nothing is certain any more
    assert guessed[1] > max(guessed[leaf] for leaf in (5, 20, 40)) + 0.1
    assert max(guessed[20], guessed[40]) < 0.72


def test_predictable_labels_are_revealed_anyway():
    """A large leaf hides which rows are exceptions, not what the columns reveal about most rows."""
    sure, guessed, _ = attacked(20, signal=True)
    assert sure < 0.1
    assert guessed > 0.75


def test_the_coordinator_does_not_know_the_rows_of_a_tree():
    """It sees partitions too, but of rows sampled with a secret key; without sampling it knows the rows."""
    *_, fed = attacked(2)
    key = row_key_of(fed).tobytes()
    assert not any(key in data or fed.party("curious").key in data for data in fed.transport.data)
    sure, _, _ = attacked(1, bootstrap=False)
    assert sure > 0.95
