"""A site's rules about what leaves it, its rows, and how much it remembers."""

import numpy as np
import polars as pl
import pytest
from helpers.asking import frame, schema_blob, send, site, trouble

import silvan as sv
from silvan.algorithms.horizontal.merged_forest import GrowTrees
from silvan.algorithms.shared_bins import CountGrid
from silvan.data.schema import Label, Schema
from silvan.errors import InputError
from silvan.federation.describe import CountRows, Describe
from silvan.federation.message import Trouble
from silvan.federation.site import Site
from silvan.federation.store import Cache, CacheKey, MemoryStore
from silvan.privacy.gate import Gate
from silvan.privacy.policy import Policy
from silvan.tree.fit import Settings

# -- the outbox


def test_a_policy_names_the_allowed_messages():
    here = site(outbox=Gate(Policy(messages=["CountRows"])))
    assert send(here, CountRows()).kind == "Size"
    replies = trouble(send(here, Describe()))
    assert replies == Trouble("refused", "the site's policy does not allow Describe")


def test_small_leaves_are_refused():
    named, data = schema_blob()
    request = GrowTrees(
        schema=named, settings=Settings(min_samples_leaf=4), n_trees=2, feature_key=np.zeros(2, np.uint64)
    )
    assert send(site(outbox=Gate(Policy(min_leaf=4))), request, blobs=[data]).kind == "Trees"
    assert trouble(send(site(outbox=Gate(Policy(min_leaf=5))), request, blobs=[data])).code == "refused"


def test_sums_over_few_sites_are_refused(monkeypatch):
    monkeypatch.setattr("silvan.privacy.gate.check_columns", lambda *_: None)  # see test_held_columns.py
    named, data = schema_blob()
    here = site(outbox=Gate(Policy(min_sites=3)))
    assert send(here, CountGrid(schema=named), blobs=[data], over=["here", "b", "c"]).kind == "GridCounts"
    assert trouble(send(here, CountGrid(schema=named), blobs=[data])).code == "refused"
    again = site(outbox=Gate(Policy(min_sites=3)))  # which has not summed this over other sites before
    assert trouble(send(again, CountGrid(schema=named), blobs=[data], over=["here", "b"])).code == "refused"
    assert send(here, CountRows(), over=["here"]).kind == "Size"  # not a sum


@pytest.mark.parametrize(
    "wrong",
    [{"messages": "Describe"}, {"min_leaf": 0}, {"min_sites": 0}, {"epsilon": 0.0}, {"min_test": 0}, {"losses": -1}],
)
def test_invalid_policies(wrong):
    with pytest.raises(InputError):
        Policy(**wrong)


# -- rows


def test_the_test_set_is_stratified_and_fixed():
    table = pl.DataFrame({"x": range(1000), "label": ["a"] * 900 + ["b"] * 90 + ["c"] * 10})
    here = site(table, test=0.2)
    schema = Schema.of(["x"], Label("label", ("a", "b", "c")))
    train, test = here.part(schema), here.part(schema, test=True)
    assert np.bincount(test.y).tolist() == [180, 18, 2]
    assert sorted(np.concatenate([train.X[:, 0], test.X[:, 0]]).tolist()) == list(range(1000))
    assert np.array_equal(here.rebuilt().part(schema, test=True).X, test.X)
    assert not np.array_equal(Site("there", table, test=0.2).part(schema, test=True).X, test.X)


def test_small_classes_share_the_rounding_remainder():
    table = pl.DataFrame({"x": range(60), "label": [str(i // 3) for i in range(60)]})
    assert site(table, test=0.2).n_train == 48


@pytest.mark.parametrize(("n", "test"), [(1, 0.9), (2, 0.99), (1, 0.5), (3, 0.2)])
def test_training_rows_always_remain(n, test):
    table = pl.DataFrame({"x": range(n), "label": ["a"] * n})
    assert 1 <= site(table, test=test).n_train <= n


def test_row_keys_distinguish_sites_and_positions():
    schema = Schema.of(["age"], Label("label", ("no", "yes")))
    keys = [Site(name, frame()).part(schema).row_keys for name in ("a", "b", "ab")]
    assert len(np.unique(np.concatenate(keys))) == 120
    assert np.array_equal(Site("a", frame()[:10]).part(schema).row_keys, keys[0][:10])


# -- memory


def test_the_cache_keeps_a_few_of_each_kind():
    cache = Cache()
    for i in range(200):
        cache[CacheKey("growing", i)] = i
        cache[CacheKey("scores", i, most=64)] = i
    assert [key for key in cache if key[0] == "growing"] == [("growing", 198), ("growing", 199)]
    assert sum(key[0] == "scores" for key in cache) == 64


def test_the_cache_computes_an_entry_once_while_it_fits():
    cache, made = Cache(), []
    for _ in range(2):
        assert cache.once(CacheKey[int]("growing", 1), lambda: made.append(1) or 5) == 5
        assert cache.once(CacheKey[int]("growing", 1), lambda: made.append(1) or 5, lambda known: known == 5) == 5
    assert len(made) == 1
    assert cache.once(CacheKey[int]("growing", 1), lambda: 6, lambda known: known != 5) == 6
    assert cache.once(CacheKey[int]("growing", 1), lambda: 7) == 6


def test_the_oldest_blobs_are_dropped():
    store = MemoryStore(room=10)
    store.put("secret", b"x" * 100)
    for i in range(5):
        store.put(f"blob {i}", b"four")
    assert [store.get(f"blob {i}") for i in range(5)] == [None, None, None, b"four", b"four"]
    store.put("blob 3", b"four")  # the latest again
    store.put("blob 5", b"four")
    assert store.get("blob 3") == b"four"
    assert store.get("blob 4") is None
    store.put("blob 6", b"more than there is room for")
    assert store.get("blob 6") is not None
    assert store.get("secret") == b"x" * 100


def test_a_long_study_does_not_fill_a_site():
    fed = sv.federate_rows({"a": frame(), "b": frame()}, n_jobs=1, test=0.2)
    for seed in range(6):
        model = sv.HistogramForest(n_estimators=seed + 1, max_depth=2, random_state=seed).fit(fed)
        model.evaluate(fed)
    kinds = [key[0] for key in fed.site("a").cache]
    assert kinds.count("growing") < 6
    assert max(map(kinds.count, kinds)) <= 64
