"""Adaptive bins: compared with a literal version of the published procedure; what is refused."""

import hypothesis.strategies as st
import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.examples import examples
from helpers.naive_adaptive import assert_same, counts, grow_naive, merge_nearest_naive, summarise_naive
from helpers.naive_answers import leaves
from hypothesis import given

import silvan as sv
from silvan.algorithms.horizontal import adaptive_forest
from silvan.algorithms.horizontal.adaptive_bins import merge_down, summarise
from silvan.algorithms.horizontal.adaptive_forest import AdaptiveLeaves, AdaptiveLevel
from silvan.federation.handlers import HANDLERS
from silvan.tree.fit import Settings
from silvan.tree.sampling import make_key, rows_of_trees

OPEN = sv.Policy(messages=("*", "AdaptiveLevel"))

values = st.integers(-40, 40).map(lambda i: i / 4) | st.floats(-1e6, 1e6, allow_nan=False, width=32)


def table(n=240, seed=0, missing=False, classes=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).round(2)
    X[:, 3] = rng.integers(0, 3, n)
    y = np.digitize(X[:, 0] + 0.5 * X[:, 1] + 0.3 * rng.normal(size=n), np.linspace(-0.5, 0.5, classes - 1))
    frame = pl.DataFrame(X, schema=["a", "b", "c", "d"]).with_columns(
        pl.col("d").cast(pl.Int8).cast(pl.String), label=pl.Series(y), site=pl.Series(rng.integers(0, 3, n).astype(str))
    )
    if missing:  # mostly where the label is 1, so that their side matters
        lacks = [pl.Series(rng.random(n) < np.where(y == 1, 0.4, 0.1)) for _ in range(2)]
        frame = frame.with_columns(pl.when(~lacks[0]).then("a").alias("a"), pl.when(~lacks[1]).then("d").alias("d"))
    return frame


def federation(**arguments):
    frame = table(**{k: arguments.pop(k) for k in ("n", "seed", "missing", "classes") if k in arguments})
    return sv.federate_rows(frame, site="site", **{"policy": OPEN, **arguments})


@given(st.lists(st.tuples(values, st.integers(0, 1)), min_size=1, max_size=40), st.integers(2, 8))
def test_a_site_summarises_as_published(rows, most):
    X, y = np.array([[v] for v, _ in rows], np.float64), np.array([c for _, c in rows])
    means, counts = np.zeros(most + 1), np.zeros((most + 1, 2), np.int64)
    n = summarise(X, y, np.arange(len(rows)), 0, most, means, counts)
    ours = [(r, int(p), int(q)) for r, (q, p) in zip(means[:n], counts[:n], strict=True)]
    assert ours == summarise_naive(X[:, 0].tolist(), y.tolist(), most)


@given(st.lists(st.tuples(values, st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=30), st.integers(2, 6))
def test_the_coordinator_merges_as_published(bins, most):
    naive = sorted({r: (r, p, n) for r, p, n in bins}.values())
    means = np.array([r for r, _, _ in naive], np.float64)
    counts = np.array([(n, p) for _, p, n in naive], np.int64)
    while len(naive) > most:
        naive = merge_nearest_naive(naive)
    n = merge_down(means, counts, len(means), most)
    assert [(r, int(p), int(q)) for r, (q, p) in zip(means[:n], counts[:n], strict=True)] == naive


def test_one_round_per_level():
    fed = federation(test=0.3)
    model = sv.HistogramForest(20, max_depth=5, bins="adaptive", max_bins=16, max_features=None).fit(fed)
    assert model.rounds_ <= 5 + 3
    figures = model.evaluate(fed).filter(site="all", model="federated")
    assert figures["auc"][0] > 0.85


def test_cold_sites_give_the_same_forest():
    forests = [
        sv.HistogramForest(6, max_depth=4, bins="adaptive", max_bins=8).fit(federation(cold=cold)).forest_
        for cold in (False, True)
    ]
    assert forests[0] == forests[1]


def test_enough_bins_and_one_site_find_the_best_cuts():
    """With one bin per value nothing is merged, so a stump cuts where an exact search does."""
    rng = np.random.default_rng(3)
    X = rng.permutation(60).astype(np.float64).reshape(-1, 1)
    y = (X[:, 0] > 22).astype(int)
    fed = sv.federate_rows({"only": (X, y)}, policy=OPEN)
    forest = sv.HistogramForest(1, max_depth=1, bins="adaptive", max_bins=64, bootstrap=False).fit(fed).forest_
    assert forest.threshold[0] == 22.5
    np.testing.assert_array_equal(forest.predict(X), y)


def test_missing_values_are_split_off_where_they_inform_most():
    """A column present for one class only: a stump separates rows with a value from those without."""
    y = np.arange(80) % 2
    X = np.where(y == 1, np.nan, np.random.default_rng(0).integers(0, 9, 80).astype(float)).reshape(-1, 1)
    fed = sv.federate_rows({"north": (X[:40], y[:40]), "south": (X[40:], y[40:])}, policy=OPEN)
    forest = sv.HistogramForest(1, max_depth=1, bins="adaptive", max_bins=4, bootstrap=False).fit(fed).forest_
    np.testing.assert_array_equal(forest.predict(X), y)
    assert forest.threshold[0] == np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("arguments", "parameters", "error", "text"),
    [
        ({"policy": sv.Policy()}, {}, sv.RefusedError, "policy does not allow AdaptiveLevel"),
        ({"classes": 3}, {}, sv.InputError, "two classes"),
        ({}, {"epsilon": 1.0}, sv.InputError, "epsilon"),
        ({}, {"class_weight": "balanced"}, sv.InputError, "balanced"),
        ({}, {"bins": "other"}, sv.InputError, "'adaptive' or 'shared'"),
    ],
)
def test_refused(arguments, parameters, error, text):
    fed = federation(**arguments)
    with pytest.raises(error, match=text):
        sv.HistogramForest(2, max_depth=2, **{"bins": "adaptive", **parameters}).fit(fed)


def test_masked_and_ring_sums_are_refused():
    class Hiding:
        name = "ring"

    fed = federation()
    fed.sums = Hiding()
    with pytest.raises(sv.InputError, match="ring"):
        sv.HistogramForest(2, max_depth=2, bins="adaptive").fit(fed)


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": np.zeros(3, np.int32)},
        {"sizes": np.zeros((2, 2), np.int32)},
        {"means": np.zeros(1)},
        {"means": np.zeros(1, np.float32)},
        {"counts": np.zeros((1, 3), np.int64)},
        {"counts": np.full((1, 2), -1, np.int64)},
        {"missing": np.zeros((1, 2), np.int64)},
        {"missing": np.zeros((0, 2), np.int32)},
    ],
)
def test_a_site_with_nonsense_replies_is_named(change, monkeypatch):
    kind, honest = HANDLERS["AdaptiveLevel"]

    def lying(site, request):
        reply = honest(site, request)
        return (
            reply
            if site.name != "1"
            else type(reply)(**{f: change.get(f, getattr(reply, f)) for f in ("sizes", "means", "counts", "missing")})
        )

    monkeypatch.setitem(HANDLERS, "AdaptiveLevel", (kind, lying))
    with pytest.raises(sv.SiteError, match="site '1'"):
        sv.HistogramForest(2, max_depth=2, bins="adaptive").fit(federation())


def row_less(counts):
    """Leaves out a row in the last of several bins."""
    last = np.flatnonzero(counts.sum(axis=1) > 1)[-1]
    counts[last, counts[last].argmax()] -= 1


def rows_without_a_place(counts):
    """Moves the rows of a bin to the next: all features keep their rows."""
    counts[1] += counts[0]
    counts[0] = 0


@pytest.mark.parametrize(
    ("change", "complaint"), [(row_less, "different rows"), (rows_without_a_place, "a bin without rows")]
)
def test_features_of_a_node_have_the_same_rows(change, complaint, monkeypatch):
    """Kernels would look for the missing rows beyond the bins, and divide by the rows of an empty bin."""
    kind, honest = HANDLERS["AdaptiveLevel"]

    def lying(site, request):
        reply = honest(site, request)
        if site.name == "1":
            counts = reply.counts.copy()
            change(counts)
            reply = msgspec.structs.replace(reply, counts=counts)
        return reply

    monkeypatch.setitem(HANDLERS, "AdaptiveLevel", (kind, lying))
    with pytest.raises(sv.SiteError, match=f"site '1'.*{complaint}"):
        sv.HistogramForest(2, max_depth=2, bins="adaptive", max_features=None).fit(federation())


@pytest.mark.parametrize("seed", range(4))
def test_rounds_without_a_split(seed):
    """Nodes sample one of six columns, only one of which varies: some rounds find no split, and nodes sample again."""
    n = 120
    label = np.random.default_rng(0).integers(0, 2, n)
    frame = pl.DataFrame({**{f"still {i}": np.zeros(n) for i in range(5)}, "perfect": label + 0.5, "label": label})
    fed = sv.federate_rows({"north": frame[::2], "south": frame[1::2]}, policy=OPEN)
    model = sv.HistogramForest(2, bins="adaptive", max_features=1, max_depth=8, random_state=seed).fit(fed)
    assert (model.predict(frame.drop("label")) == label).all()


def encoded(fed):
    """Every site's training rows as arrays, with the keys by which they are sampled."""
    parts = [fed.site(name).part(fed.schema) for name in fed.sites]
    return [(part.X, part.y, part.row_keys) for part in parts]


@examples(20)
@given(
    seed=st.integers(0, 10_000),
    least=st.sampled_from([1, 2, 7, 20]),
    max_bins=st.sampled_from([2, 3, 8, 64]),
    max_features=st.sampled_from([1, 2, None]),
    bootstrap=st.booleans(),
    missing=st.booleans(),
)
def test_forests_equal_the_literal_version(seed, least, max_bins, max_features, bootstrap, missing):
    """Leaves have at least the minimum number of sampled rows, and their values are shares of these rows."""
    fed = federation(n=90, seed=seed, missing=missing, policy=sv.Policy(messages=OPEN.messages, min_leaf=1))
    given = {
        "n_estimators": 2,
        "max_depth": 5,
        "min_samples_leaf": least,
        "max_bins": max_bins,
        "max_features": max_features,
        "bootstrap": bootstrap,
    }
    forest = sv.HistogramForest(bins="adaptive", **given).fit(fed).forest_
    sites = encoded(fed)
    roots = grow_naive(sites, fed.schema, Settings(**given), fed.site("0").sampling_key, make_key(0, "features"))
    assert_same(forest, roots, sites)
    for root in roots:
        waiting = list(root.children)
        for node in waiting:
            assert sum(counts(sites, node)) >= least
            waiting += node.children


def test_splits_with_too_few_rows_on_a_side_are_undone(monkeypatch):
    """With few bins, a cut is placed where both sides look large enough; the last count finds leaves too small."""
    smallest = []
    honest = adaptive_forest._take_back_small

    def watched(grown, leaves, rows, least):
        smallest.append(rows.sum(axis=1).min())
        return honest(grown, leaves, rows, least)

    monkeypatch.setattr(adaptive_forest, "_take_back_small", watched)
    policy = sv.Policy(messages=OPEN.messages, min_leaf=20)
    fed = federation(n=400, policy=policy)
    forest = sv.HistogramForest(10, bins="adaptive", max_bins=8, min_samples_leaf=20).fit(fed).forest_
    assert smallest[0] < 20
    X = np.concatenate([X for X, _, _ in encoded(fed)])
    keys = np.concatenate([keys for _, _, keys in encoded(fed)])
    drawn = rows_of_trees(fed.site("0").sampling_key, keys, 0, 10, True)
    reached = leaves(forest, X)
    sizes = np.bincount(reached[drawn], minlength=len(forest.value))
    assert sizes.min() >= 20


@pytest.mark.parametrize(
    "change",
    [
        {"split_threshold": np.float32(0.123)},
        {"split_feature": np.int32(2)},
        {"split_node": np.int32(1)},
        {"min_leaf": 1},
        {"bootstrap": False},
    ],
)
def test_leaves_are_counted_for_the_requested_splits_only(change, monkeypatch):
    """A coordinator is refused if it counts the leaves of trees other than those it grew."""
    honest = adaptive_forest.AdaptiveLeaves

    def other(**fields):
        for name, value in change.items():
            if isinstance(fields[name], np.ndarray):
                value = np.concatenate([[value], fields[name][1:]]).astype(fields[name].dtype)
            fields[name] = value
        return honest(**fields)

    monkeypatch.setattr(adaptive_forest, "AdaptiveLeaves", other)
    with pytest.raises(sv.RefusedError, match=r"does not go on from|the study's text"):
        sv.HistogramForest(2, max_depth=2, bins="adaptive", min_samples_leaf=3).fit(federation())


def test_leaves_are_counted_only_after_a_level():
    fed = federation()
    empty = {name: np.zeros((0, *shape), dtype) for name, (dtype, shape) in AdaptiveLeaves.split_types.items()}
    same = {"schema": fed.blob(fed.schema.to_json().encode()), "n_trees": 1, "bootstrap": True, "max_bins": 8}
    none = {**same, **empty, "round_sizes": np.zeros(0, np.int64), "min_leaf": 2}
    with pytest.raises(sv.RefusedError, match="has not answered"):
        fed.total(AdaptiveLeaves(**none))
    roots = {"nodes": np.zeros(1, np.int32), "features": np.zeros((1, 1), np.int32)}
    fed.ask(AdaptiveLevel(**none, **roots))
    with pytest.raises(sv.RefusedError, match="in another form"):
        fed.total(AdaptiveLeaves(**none))
    fed.total(AdaptiveLeaves(**{**none, "round_sizes": np.zeros(1, np.int64)}))
    with pytest.raises(sv.RefusedError, match=r"does not go on from|the study's text"):
        fed.ask(AdaptiveLevel(**{**none, "round_sizes": np.zeros(2, np.int64)}, **roots))
