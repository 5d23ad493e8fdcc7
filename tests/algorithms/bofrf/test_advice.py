"""Advice before training: which sites are similar, and when clusters are not suggested."""

import numpy as np
import polars as pl
import pytest
from algorithms.bofrf.test_clusters import TOGETHER, unlike
from experiments import tables_by_name
from helpers.studies import federate, parts, table

import silvan as sv
from silvan.algorithms.bofrf.clusters import find_clusters
from silvan.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore:'height' is absent at young 3")  # see the docstring of ``unlike``


@pytest.fixture(scope="module")
def five():
    return federate(unlike())


def test_clear_clusters_are_suggested(five):
    advised = sv.advise(five)
    assert sorted(advised.clusters.values()) == TOGETHER
    assert advised.suggested
    assert advised.k == max(advised.silhouettes, key=advised.silhouettes.get) == 2
    assert set(advised.silhouettes) == {2, 3, 4}


@pytest.mark.parametrize("metric", ["manhattan", "euclidean", "minkowski"])
@pytest.mark.parametrize("k", [None, 2, 3])
def test_the_learner_forms_the_suggested_clusters(five, metric, k):
    advised = sv.advise(five, k=k, metric=metric)
    first = next(iter(advised.clusters))
    assert advised.clusters == find_clusters(five, five.schema, advised.k, metric, first).members


def test_sites_by_distance(five):
    advised = sv.advise(five, metric="euclidean")
    row = advised.distances[advised.sites.index("old 1")]
    assert advised.nearest("old 1") == sorted(
        ((site, d) for site, d in zip(advised.sites, row, strict=True) if site != "old 1"), key=lambda pair: pair[1]
    )
    assert advised.nearest("old 1")[0][0] == "old 2"
    assert np.array_equal(advised.distances, advised.distances.T)
    with pytest.raises(InputError, match="there is no site 'nowhere'"):
        advised.nearest("nowhere")


def test_in_plain_words(five):
    text = str(sv.advise(five, k=2, first="old 2"))
    assert "Manhattan distances" in text
    assert "old 1 is nearest to old 2 (" in text
    assert "Two clusters, as asked for (mean silhouette 0." in text
    assert "- old 1 and old 2, around old 2" in text
    assert "BOFRF(clusters=2, metric='manhattan', first='old 2')" in text
    old = next(line for line in text.split("\n") if line.startswith("old 1 is"))
    assert "it differs most in age (" in old


def test_the_feature_in_which_a_site_differs_most(five):
    advised = sv.advise(five)
    name, here, elsewhere = advised.oddest("young 1")
    at = advised.entries.index(name)
    others = [v[at] for site, v in advised.vectors.items() if site != "young 1"]
    assert (here, elsewhere) == (advised.vectors["young 1"][at], pytest.approx(np.nanmean(others)))
    gaps = [
        abs(advised.vectors["young 1"][i] - np.nanmean([v[i] for s, v in advised.vectors.items() if s != "young 1"]))
        for i in range(len(advised.entries))
    ]
    assert max(gaps) == pytest.approx(abs(here - elsewhere))


def test_as_a_table(five):
    advised = sv.advise(five, k=2, first="old 2")
    frame = advised.frame()
    assert frame["site"].to_list() == five.sites
    assert dict(zip(frame["site"], frame["cluster"], strict=True)) == {
        site: centroid for centroid, members in advised.clusters.items() for site in members
    }
    assert np.array_equal(frame.select(pl.col("^to .*$")).to_numpy(), advised.distances)


def test_no_clusters_for_randomly_assigned_rows():
    """Some division always looks best; it is suggested only if sites are farther apart than chance explains."""
    for seed in range(8):
        fed = federate(parts(table("binary", n=600, seed=seed), 6, seed=seed + 1000))
        advised = sv.advise(fed)
        assert advised.k == 1
        assert "No clusters are suggested" in str(advised)
        assert "BOFRF() trains all sites together." in str(advised)
    assert ", as chance may give)" in str(advised)


def test_equidistant_sites_have_no_clusters():
    rng = np.random.default_rng(0)
    tables = {}
    for i in range(4):
        X = rng.random((300, 4)) < 0.2 + 0.6 * (np.arange(4) == i)
        tables[f"site {i}"] = (X.astype(float), rng.integers(0, 2, 300))
    advised = sv.advise(federate(tables))
    assert advised.k == 1
    assert "no division is clear" in str(advised)
    assert "as chance may give" not in str(advised)


def test_two_sites_and_one():
    tables = unlike()
    advised = sv.advise(federate({name: tables[name] for name in ("old 1", "young 1")}))
    assert (advised.k, advised.silhouettes) == (1, {})
    assert "Two sites are too few" in str(advised)
    assert sv.advise(federate({"a": tables["old 1"], "b": tables["young 1"]}), k=2).k == 2
    with pytest.raises(InputError, match="at least two sites"):
        sv.advise(federate({"alone": tables["old 1"]}))


def test_similar_sites():
    frame = unlike()["old 1"]
    advised = sv.advise(federate({"a": frame, "b": frame, "c": frame}))
    assert advised.k == 1
    assert not advised.distances.any()
    assert advised.oddest("a") is None
    assert "a is nearest to b (0.00, as chance may give)" in str(advised)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"k": 6}, "k must be"),
        ({"k": 0}, "k must be"),
        ({"metric": "far"}, "metric must be"),
        ({"first": "nowhere"}, "first must be"),
    ],
)
def test_invalid_requests_for_advice(five, given, said):
    before = five.rounds
    with pytest.raises(InputError, match=said):
        sv.advise(five, **given)
    assert five.rounds == before


def test_advice_needs_a_federation():
    with pytest.raises(InputError, match="advise takes a federation"):
        sv.advise(unlike())


@pytest.mark.needs("data")
def test_a_hospital_that_records_a_column_differently():
    """One hospital recorded cholesterol as 0."""
    data = tables_by_name.load("heart_disease_4sites")
    fed = federate(data.frame.to_native(), site=data.site, label=data.label)
    advised = sv.advise(fed)
    assert advised.oddest("switzerland")[0] == "chol"
    assert advised.nearest("cleveland")[0][0] == "hungarian"
