"""Distances and clusters of sites: compared with the thesis's tables and an independent clustering; bad input."""

import math

import numpy as np
import pytest
from helpers.shelter import CLUSTERS, EUCLIDEAN, MANHATTAN, VECTORS
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

import silvan as sv
from silvan.algorithms.bofrf.clusters import METRICS, chance_distances, distances
from silvan.errors import InputError


@pytest.mark.parametrize(("metric", "table"), [("manhattan", MANHATTAN), ("euclidean", EUCLIDEAN)])
def test_distances_of_the_thesis(metric, table):
    assert np.abs(sv.site_distances(VECTORS, metric) - table).max() <= 0.045


@pytest.mark.parametrize(("metric", "first"), CLUSTERS)
def test_clusters_of_the_thesis(metric, first):
    assert sv.cluster_sites(VECTORS, k=2, metric=metric, first=first) == CLUSTERS[metric, first]


def test_three_clusters_by_the_rule():
    """Germany's cluster of Table 7.12 loses the site farthest from it, Czechia; Table 7.13 has different clusters."""
    found = sv.cluster_sites(VECTORS, k=3, metric="euclidean", first="DE")
    assert found == {"DE": ["DE", "FI", "IT", "NL"], "EN": ["EN", "FR", "IL"], "CZ": ["CZ"]}


@pytest.mark.parametrize(
    ("metric", "p", "named", "more"),
    [
        ("manhattan", 3.0, "cityblock", {}),
        ("euclidean", 3.0, "euclidean", {}),
        ("minkowski", 3.0, "minkowski", {"p": 3}),
        ("minkowski", 1.5, "minkowski", {"p": 1.5}),
    ],
)
def test_distances_equal_scipys(metric, p, named, more):
    table = np.random.default_rng(0).random((7, 5))
    vectors = dict(zip("abcdefg", table, strict=True))
    assert np.allclose(sv.site_distances(vectors, metric, p), cdist(table, table, named, **more), atol=1e-12)


def naive_clusters(vectors, k, metric, first):
    """Farthest-first clustering, written literally with sets and loops."""
    apart = dict(zip(vectors, sv.site_distances(vectors, metric), strict=True))
    place = {name: i for i, name in enumerate(vectors)}
    centroids = [first]

    def own(name):
        return min(sorted(centroids, key=place.get), key=lambda c: round(apart[name][place[c]], 9))

    while len(centroids) < k:
        others = [name for name in vectors if name not in centroids]
        centroids.append(max(others, key=lambda name: round(apart[name][place[own(name)]], 9)))
    found = {c: [] for c in centroids}
    for name in vectors:
        found[name if name in found else own(name)].append(name)
    return found


@given(st.data())
def test_clusters_equal_the_naive_version(data):
    n, size = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 4))
    # few distinct values, so that ties and equal sites are common
    figures = st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0]), min_size=size, max_size=size)
    vectors = {f"site {i}": data.draw(figures) for i in range(n)}
    k, metric = data.draw(st.integers(1, n)), data.draw(st.sampled_from(METRICS))
    first = data.draw(st.sampled_from(list(vectors)))
    found = sv.cluster_sites(vectors, k=k, metric=metric, first=first)
    assert found == naive_clusters(vectors, k, metric, first)
    assert next(iter(found)) == first
    assert sorted(name for members in found.values() for name in members) == sorted(vectors)
    assert all(centroid in members for centroid, members in found.items())


def test_ties_go_to_the_first_site():
    line = {"middle": [0.5], "right": [1.0], "left": [0.0]}
    assert sv.cluster_sites(line, k=2, first="middle") == {"middle": ["middle", "left"], "right": ["right"]}
    assert sv.cluster_sites(line, k=2, first="left") == {"left": ["left"], "right": ["middle", "right"]}


def test_identical_sites_can_still_be_clustered():
    same = {"a": [0.5], "b": [0.5], "c": [0.5]}
    assert sv.cluster_sites(same, k=3, first="c") == {"c": ["c"], "a": ["a"], "b": ["b"]}


def test_the_seed_chooses_the_first_centroid():
    drawn = [next(iter(sv.cluster_sites(VECTORS, random_state=seed))) for seed in range(40)]
    assert drawn == [next(iter(sv.cluster_sites(VECTORS, random_state=seed))) for seed in range(40)]
    assert len(set(drawn)) > 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"k": 0}, "k must be"),
        ({"k": 9}, "from 1 to the 8 sites, got 9"),
        ({"k": 2.0}, "k must be"),
        ({"k": True}, "k must be"),
        ({"metric": "hamming"}, "metric must be one of 'manhattan'"),
        ({"metric": None}, "metric must be"),
        ({"first": "PL"}, "first must be one of the sites"),
        ({"random_state": -1}, "random_state must be"),
        ({"p": 0.5}, "p must be"),
        ({"p": math.nan}, "p must be"),
        ({"vectors": {}}, "at least one site"),
        ({"vectors": [[1.0]]}, "dict of figures by site"),
        ({"vectors": {"a": [1.0, 2.0], "b": [1.0]}}, "'a': 2, 'b': 1"),
        ({"vectors": {"a": [1.0], "b": [math.nan]}}, "vector of 'b' has NaN"),
        ({"vectors": {"a": [1.0], "b": [math.inf]}}, "vector of 'b' has NaN or infinite"),
        ({"vectors": {"a": [1.0], "b": ["x"]}}, "vector of 'b' must be a list of numbers"),
        ({"vectors": {"a": [1.0], "b": 3.0}}, "vector of 'b' must be"),
        ({"vectors": {"a": [[1.0], [1.0, 2.0]], "b": [1.0]}}, "vector of 'a' must be"),
        ({"vectors": {"a": [], "b": []}}, "vector of 'a' must be"),
        ({"vectors": {"a": [1e308], "b": [-1e308]}}, "too far apart"),
    ],
)
def test_invalid_clusterings_are_refused(change, said):
    with pytest.raises(InputError, match=said):
        sv.cluster_sites(**{"vectors": VECTORS, "k": 2, **change})


# -- sites that lack a feature


def test_a_missing_feature_is_compensated_by_the_others():
    nan = math.nan
    table = np.array([[0.1, 0.2, 0.7, 0.3], [0.4, 0.9, 0.1, 0.5], [0.2, nan, nan, 0.9]])
    apart = distances(table, "manhattan", feature=[0, 1, 1, 2])
    assert apart[0, 1] == pytest.approx(0.3 + 0.7 + 0.6 + 0.2)
    assert apart[0, 2] == apart[2, 0] == pytest.approx((0.1 + 0.6) * 3 / 2)  # two of three features, not of four values
    assert distances(table, "euclidean", feature=[0, 1, 1, 2])[0, 2] == pytest.approx(math.sqrt(0.37 * 3 / 2))


def test_a_feature_missing_everywhere_changes_nothing():
    table = np.random.default_rng(1).random((4, 3))
    wider = np.column_stack([table, np.full(4, math.nan)])
    for metric in METRICS:
        assert np.allclose(distances(wider, metric), distances(table, metric))


def test_sites_without_common_features_have_no_distance():
    nan = math.nan
    apart = distances(np.array([[1.0, nan], [nan, 1.0], [0.5, 0.5]]), "manhattan")
    assert np.isnan(apart[0, 1])
    assert apart[0, 2] == 1.0


# -- chance


@pytest.mark.parametrize("metric", METRICS)
def test_distances_by_chance_are_as_predicted(metric):
    """Sites that sample the same population are, on average, as far apart as predicted."""
    rng, share, n = np.random.default_rng(0), np.linspace(0.1, 0.9, 12), np.array([150, 400])
    found, expected = [], []
    for _ in range(400):
        table = rng.binomial(n[:, None], share) / n[:, None]
        found.append(distances(table, metric)[0, 1])
        expected.append(chance_distances(table, n, metric)[0, 1])
    assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.06)
