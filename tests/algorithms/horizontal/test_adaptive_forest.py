"""Adaptive bins against a literal twin of the published procedure, and what they refuse."""

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pytest
from hypothesis import given

import silvan as sv
from silvan.algorithms.horizontal.adaptive_forest import merge_down, merge_nearest_naive, summarise, summarise_naive

OPEN = sv.Policy(messages=("*", "AdaptiveLevel"))

values = st.integers(-40, 40).map(lambda i: i / 4) | st.floats(-1e6, 1e6, allow_nan=False, width=32)


def table(n=240, seed=0, missing=False, classes=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4)).round(2)
    X[:, 3] = rng.integers(0, 3, n)
    y = np.digitize(X[:, 0] + 0.5 * X[:, 1] + 0.3 * rng.normal(size=n), np.linspace(-0.5, 0.5, classes - 1))
    if missing:
        X[0, 0] = np.nan
    return pl.DataFrame(X, schema=["a", "b", "c", "d"]).with_columns(
        pl.col("d").cast(pl.Int8).cast(pl.String), label=pl.Series(y), site=pl.Series(rng.integers(0, 3, n).astype(str))
    )


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


def test_it_learns_in_a_round_a_level():
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
    """With a bin a value nothing is merged, so a stump cuts where an exact search does."""
    rng = np.random.default_rng(3)
    X = rng.permutation(60).astype(np.float64).reshape(-1, 1)
    y = (X[:, 0] > 22).astype(int)
    fed = sv.federate_rows({"only": (X, y)}, policy=OPEN)
    forest = sv.HistogramForest(1, max_depth=1, bins="adaptive", max_bins=64, bootstrap=False).fit(fed).forest_
    assert forest.threshold[0] == 22.5
    np.testing.assert_array_equal(forest.predict(X), y)


def test_a_policy_must_name_the_message():
    fed = federation(policy=sv.Policy())
    with pytest.raises(sv.RefusedError, match="policy does not allow AdaptiveLevel"):
        sv.HistogramForest(2, max_depth=2, bins="adaptive").fit(fed)


@pytest.mark.parametrize(
    ("arguments", "parameters", "error", "text"),
    [
        ({"missing": True}, {}, sv.RefusedError, "missing values"),
        ({"classes": 3}, {}, sv.InputError, "two classes"),
        ({}, {"epsilon": 1.0}, sv.InputError, "epsilon"),
        ({}, {"class_weight": "balanced"}, sv.InputError, "balanced"),
        ({}, {"bins": "other"}, sv.InputError, "'shared' or 'adaptive'"),
    ],
)
def test_refused(arguments, parameters, error, text):
    fed = federation(**arguments)
    with pytest.raises(error, match=text):
        sv.HistogramForest(2, max_depth=2, **{"bins": "adaptive", **parameters}).fit(fed)


def test_sums_that_hide_their_parts_are_refused():
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
    ],
)
def test_a_site_that_answers_nonsense_is_named(change, monkeypatch):
    from silvan.federation import site as sites

    kind, honest = sites.HANDLERS["AdaptiveLevel"]

    def lying(site, request):
        reply = honest(site, request)
        return (
            reply
            if site.name != "1"
            else type(reply)(
                **{f: change.get(f, getattr(reply, f)) for f in change | {"sizes": 0, "means": 0, "counts": 0}}
            )
        )

    monkeypatch.setitem(sites.HANDLERS, "AdaptiveLevel", (kind, lying))
    with pytest.raises(sv.SiteError, match="site '1'"):
        sv.HistogramForest(2, max_depth=2, bins="adaptive").fit(federation())


@pytest.mark.parametrize("seed", range(4))
def test_rounds_that_find_no_split(seed):
    """Nodes draw one of six columns, of which one varies: whole rounds pass without a split, and nodes draw again."""
    n = 120
    label = np.random.default_rng(0).integers(0, 2, n)
    frame = pl.DataFrame({**{f"still {i}": np.zeros(n) for i in range(5)}, "perfect": label + 0.5, "label": label})
    fed = sv.federate_rows({"north": frame[::2], "south": frame[1::2]}, policy=OPEN)
    model = sv.HistogramForest(2, bins="adaptive", max_features=1, max_depth=8, random_state=seed).fit(fed)
    assert (model.predict(frame.drop("label")) == label).all()
