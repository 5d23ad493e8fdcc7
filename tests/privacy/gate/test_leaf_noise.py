"""Leaf values of trees that leave a site: rounded or noised, the same however often they are asked for."""

from functools import cache

import numpy as np
import pytest
from helpers.studies import Recorded, envelopes, federate, parts, table

import silvan as sv
from silvan.algorithms.horizontal.merged_forest import Trees
from silvan.errors import InputError
from silvan.federation import wire
from silvan.forest.forest import Forest
from silvan.privacy.gate.leaf_noise import rounded


def released(task="several", **policy):
    """The forests that sites send."""
    fed = federate(parts(table(task), 2), Recorded, policy=sv.Policy(**policy))
    sv.MergedForest(n_estimators=6, max_depth=4).fit(fed)
    sent = envelopes(fed, "sent")
    return [Forest.from_bytes(wire.decode(e.body, Trees).forest) for e in sent if e.kind == "Trees"], fed


@cache
def plain_forests(task="several"):
    return released(task)[0]


@pytest.mark.parametrize("task", ["binary", "several"])
def test_shares_are_rounded_and_still_add_up(task):
    blurred, _ = released(task, leaf_digits=2)
    for before, after in zip(plain_forests(task), blurred, strict=True):
        assert np.array_equal(before.threshold, after.threshold)
        assert np.allclose(after.value * 100, np.rint(after.value * 100))
        assert np.allclose(after.value.sum(axis=1), 1)
        assert 0 < np.abs(before.value - after.value).max() <= 0.01 + 1e-9


def test_numbers_are_rounded_to_significant_digits():
    (forest, *_), _ = released("number", leaf_digits=3)
    assert all(float(f"{x:.3g}") == x for x in forest.value[:, 0])
    assert rounded(np.array([[1234.5]]), 2, False) == 1200


def test_noise_is_the_same_when_a_tree_is_asked_for_again():
    (noisy, *_), fed = released(leaf_noise=0.1)
    plain = plain_forests()[0]
    assert 0.01 < np.abs(noisy.value - plain.value).mean() < 0.3
    fed.transport.record.clear()
    sv.MergedForest(n_estimators=4, max_depth=4).fit(fed)  # another question, in which some trees are the same
    sent = envelopes(fed, "sent")
    again = next(Forest.from_bytes(wire.decode(e.body, Trees).forest) for e in sent if e.kind == "Trees")
    assert again == noisy.take(np.arange(len(again)))


def test_no_two_sites_have_the_same_noise():
    (noisy, *_), _ = released(leaf_noise=0.1)
    (other, *_), _ = released(leaf_noise=0.1)  # the same site, after it lost its secret
    assert np.array_equal(noisy.threshold, other.threshold)
    assert not np.array_equal(noisy.value, other.value)


@pytest.mark.parametrize("wrong", [{"leaf_digits": 0}, {"leaf_noise": -1.0}, {"leaf_noise": float("nan")}])
def test_what_cannot_be_meant_is_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        sv.Policy(**wrong)


def test_trees_leave_without_counts_or_gains_and_on_the_grid():
    forests, fed = released(min_leaf=2)
    for forest, name in zip(forests, fed.sites, strict=True):
        assert forest.gain is None
        part = fed.site(name).part(fed.schema)
        for f in range(len(fed.schema.features)):
            if not fed.schema.features[f].categorical:
                cuts = forest.threshold[forest.feature == f]
                cuts = cuts[cuts < np.finfo(np.float32).max]
                column = part.X[:, f]
                assert not np.isin(cuts, column[column != np.rint(column)]).any()
