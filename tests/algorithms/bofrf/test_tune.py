"""Tuning at a site: compared with a plain search; which parameters are allowed, and how progress is reported."""

import logging
from dataclasses import asdict, replace

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.studies import TASKS, federate, parts, table
from sklearn import metrics as sk

import silvan as sv
from silvan.algorithms.bofrf.tune import (
    NAMES,
    Search,
    as_search,
    default_grid,
    list_candidates,
    list_rungs,
    tune_settings,
)
from silvan.algorithms.keyed_rows import folds_of
from silvan.data.bins.bins import find_bins
from silvan.errors import InputError
from silvan.federation import wire
from silvan.federation.describe import FLOOR
from silvan.federation.part import Part
from silvan.tree.fit import Settings, fit_forest
from silvan.tree.sampling import SamplingKeys, make_key

KEY = make_key(0, "features")
SMALL = {"max_depth": [1, 6], "min_samples_leaf": [2, 20], "n_estimators": [3, 12]}


def site_of(task="binary", n=150, **settings):
    fed = federate({"one": table(task, n=n)}, **settings)
    return fed.site("one"), fed.schema


def settings_for(schema, **more):
    return Settings(criterion="gini" if schema.n_classes else "squared_error", **more)


def naive(site, schema, settings, n_folds):
    """Cross-validates one forest with plain parts: one table and one forest per fold, and scikit-learn's metrics."""
    part = site.part(schema)
    groups = part.y if schema.n_classes else np.zeros(len(part), int)
    fold = folds_of(site.sampling_key, part.row_keys, groups, n_folds)
    bins, _ = find_bins(part.X, schema, settings.max_bins, 1, FLOOR)
    features = [
        msgspec.structs.replace(f, edges=None if f.categorical else tuple(map(float, cuts)))
        for f, cuts in zip(schema.features, bins.cuts, strict=True)
    ]
    given = msgspec.structs.replace(schema, features=tuple(features))  # the cut points that all folds share
    figures = []
    for k in range(n_folds):
        seen, held = fold != k, fold == k
        y = part.y[seen]
        target = settings.target(schema, y)
        forest = fit_forest(
            part.X[seen],
            target,
            given,
            settings,
            SamplingKeys(site.sampling_key, KEY),
            row_keys=part.row_keys[seen],
            n_jobs=1,
        ).forest
        scores, y = forest.scores(part.X[held]).round(12), part.y[held]
        if schema.n_classes:
            wanted = [1] if schema.n_classes == 2 else [c for c in range(schema.n_classes) if 0 < (y == c).mean() < 1]
            figures.append(np.mean([sk.roc_auc_score(y == c, scores[:, c]) for c in wanted]))
        else:
            figures.append(sk.root_mean_squared_error(y, scores[:, 0]))
    return np.array(figures)


@pytest.mark.parametrize("task", TASKS)
def test_all_combinations_equal_a_plain_search(task):
    site, schema = site_of(task)
    settings = settings_for(schema)
    chosen, trials = tune_settings(site, schema, settings, Search(kind="grid", grid=SMALL, folds=4), KEY)
    assert len(trials) == 8
    for trial in trials:
        scores = naive(site, schema, trial.settings, 4)
        near = 1e-9 if schema.n_classes else 1e-6  # numbers have another fixed point in each fold
        assert (trial.score, trial.spread) == pytest.approx((scores.mean(), scores.std()), rel=near)
    ordered = sorted((t.score for t in trials), reverse=bool(schema.n_classes))
    assert [t.score for t in trials] == ordered
    assert chosen == trials[0].settings


@pytest.mark.parametrize("task", TASKS)
def test_halving_keeps_the_better_ones(task):
    site, schema = site_of(task)
    grid = {"max_depth": [1, 2, 6], "min_samples_leaf": [2, 10, 20], "n_estimators": [10, 30]}
    settings = settings_for(schema)
    chosen, trials = tune_settings(site, schema, settings, Search(grid=grid, folds=3), KEY)
    everything = tune_settings(site, schema, settings, Search(kind="grid", grid=grid, folds=3), KEY)[1]
    at = {msgspec.json.encode(t.settings): t.score for t in everything}
    last = max(t.rung for t in trials)
    assert last == 1
    finalists = [t for t in trials if t.rung == last]
    assert len(finalists) == 3 * 2, "a third of nine, with both numbers of trees"
    for trial in trials:  # a forest grown in steps equals one grown at once
        assert trial.score == pytest.approx(at[msgspec.json.encode(trial.settings)], rel=1e-9)
    sign = 1 if schema.n_classes else -1
    first_round = [sign * t.score for t in everything if t.settings.n_estimators == 10]
    kept = {sign * t.score for t in finalists if t.settings.n_estimators == 10}
    assert min(kept) >= sorted(first_round)[-3]
    assert chosen == trials[0].settings


def test_rungs():
    assert list_rungs(Search(kind="grid"), 72, 150) == [(150, 72)]
    assert list_rungs(Search(), 72, 150) == [(16, 72), (50, 24), (150, 8)]
    assert list_rungs(Search(factor=2), 5, 100) == [(25, 5), (50, 3), (100, 2)]
    assert list_rungs(Search(), 72, 5) == [(5, 72)], "no fewer than a few trees"
    assert list_rungs(Search(), 1, 150) == [(150, 1)]


def test_tuning_finds_the_better_settings():
    """For noise with one rule of depth two, deep trees with small leaves are worse."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 6))
    y = np.where(rng.random(400) < 0.25, rng.integers(0, 2, 400), (X[:, 0] > 0) ^ (X[:, 1] > 0.5))
    site = federate({"one": (X, y)}).site("one")
    schema = federate({"one": (X, y)}).schema
    grid = {"max_depth": [1, None], "max_features": [1, None], "n_estimators": [20]}
    chosen, _ = tune_settings(site, schema, Settings(), Search(kind="grid", grid=grid, folds=5), KEY)
    assert chosen.max_depth is None, "one split cannot say it"
    assert chosen.max_features is None, "most features are noise"


# -- parameters that may be chosen


def test_the_default_grid_is_that_of_the_thesis():
    assert set(default_grid()) == set(NAMES)
    assert 1 not in default_grid()["min_samples_leaf"]
    schema = site_of()[1]
    wide = msgspec.structs.replace(
        schema, features=tuple(msgspec.structs.replace(schema.features[0], name=f"x{i}") for i in range(30))
    )
    assert len(list_candidates(Settings(), Search(), wide)) == 72


def test_equivalent_forests_are_grown_once():
    schema = site_of()[1]
    grid = {"min_samples_split": [2, 3, 8, 10], "min_samples_leaf": [2, 5], "max_features": ["sqrt", 2]}
    found = list_candidates(Settings(), Search(grid=grid), schema)
    # five features: the root is 2; a node smaller than two leaves is not split
    assert [(c.min_samples_split, c.min_samples_leaf) for c in found] == [(2, 2), (2, 5), (8, 2), (10, 2)]


def test_leaves_are_never_smaller_than_the_learner_allows():
    schema = site_of()[1]
    leaves = {c.min_samples_leaf for c in list_candidates(Settings(min_samples_leaf=4), Search(), schema)}
    assert leaves == {4, 5, 14}
    leaves = {c.min_samples_leaf for c in list_candidates(Settings(min_samples_leaf=1), Search(), schema)}
    assert leaves == {2, 5, 14}
    only = Search(grid={"max_depth": [3]})
    assert {c.min_samples_leaf for c in list_candidates(Settings(min_samples_leaf=1), only, schema)} == {2}


def test_parameters_outside_the_grid_stay():
    site, schema = site_of()
    settings = Settings(n_estimators=7, criterion="entropy", max_bins=16, class_weight="balanced", max_depth=9)
    chosen, trials = tune_settings(site, schema, settings, Search(grid={"min_samples_leaf": [3]}, folds=2), KEY)
    assert chosen == replace(settings, min_samples_leaf=3)
    assert len(trials) == 1


def test_among_equals_the_simplest_wins():
    """Every forest predicts this label: prefer fewer trees, then shallower ones, then larger leaves."""
    frame = pl.DataFrame({"x": [0.0, 1.0] * 40, "label": ["no", "yes"] * 40})
    fed = federate({"one": frame})
    grid = {
        "max_depth": [None, 3, 1],
        "min_samples_leaf": [2, 4],
        "n_estimators": [9, 5],
        "criterion": ["entropy", "gini"],
    }
    for kind in ("grid", "halving"):
        chosen, trials = tune_settings(fed.site("one"), fed.schema, Settings(), Search(kind=kind, grid=grid), KEY)
        assert trials[0].score == 1.0
        assert (chosen.n_estimators, chosen.max_depth, chosen.min_samples_leaf, chosen.criterion) == (5, 1, 4, "gini")


@pytest.mark.parametrize("task", ["binary", "number"])
def test_rows_that_are_left_out_change_nothing(task):
    site, schema = site_of(task, test=0.3)
    part, search = site.part(schema), Search(kind="grid", grid=SMALL, folds=3)
    some = np.arange(0, len(part), 2)
    few = Part(part.X[some], part.y[some], part.row_keys[some])
    settings = settings_for(schema)
    before = tune_settings(site, schema, settings, search, KEY, part=few)
    part.y.setflags(write=True)
    part.y[1::2] = part.y[1::2][::-1].copy()
    site.cache = type(site.cache)({k: v for k, v in site.cache.items() if k[0] != "tuned"})
    assert tune_settings(site, schema, settings, search, KEY, part=few) == before
    assert tune_settings(site, schema, settings, search, KEY)[1] != before[1]


# -- too little data


@pytest.mark.parametrize(
    "frame",
    [
        table(n=19),
        table(n=60).with_columns(pl.lit("no").alias("label")),
        table(n=60).with_columns(pl.Series("label", ["yes"] + ["no"] * 59)),
    ],
    ids=["few rows", "one class", "one row of a class"],
)
def test_settings_stay_if_there_is_too_little_data(frame, caplog):
    fed = federate({"one": frame, "other": table(n=60)})
    settings = Settings(n_estimators=5)
    with caplog.at_level(logging.WARNING, "silvan.site"):
        assert tune_settings(fed.site("one"), fed.schema, settings, Search(), KEY) == (settings, [])
    assert "one: too few rows, or one class only" in caplog.text


def test_fewer_folds_where_a_class_is_rare():
    """Four rows of a class are in four folds; a class with one row is in no training fold and is evaluated in one."""
    frame = table("several", n=80)
    labels = ["low"] * 40 + ["middle"] * 35 + ["high"] * 4 + ["top"]
    fed = federate({"one": frame.with_columns(pl.Series("label", labels))})
    search = Search(kind="grid", grid={"max_depth": [2, 4], "n_estimators": [5]})
    _, trials = tune_settings(fed.site("one"), fed.schema, Settings(), search, KEY)
    assert len(trials) == 2
    assert all(0.0 < t.score < 1.0 for t in trials)


# -- progress messages


def test_results_do_not_depend_on_threads_or_site(tmp_path):
    site, schema = site_of("several")
    search = Search(grid=SMALL, folds=3)
    before = tune_settings(site, schema, Settings(), search, KEY)
    again = site.rebuilt()
    again.n_jobs = 2
    assert tune_settings(again, schema, Settings(), search, KEY) == before
    other = site.rebuilt()
    other.sampling_key = make_key(5, "rows")
    assert tune_settings(other, schema, Settings(), search, KEY)[1] != before[1]


def test_large_tables_are_searched_in_parts(monkeypatch):
    site, schema = site_of()
    search = Search(kind="grid", grid=SMALL, folds=4)
    before = tune_settings(site.rebuilt(), schema, Settings(), search, KEY)
    for at_once in (1, 150 * 9, 150 * 30):  # fewer trees than in one fold; more than one fold's; more than two folds'
        monkeypatch.setattr("silvan.algorithms.bofrf.tune.ROWS_AT_ONCE", at_once)
        assert tune_settings(site.rebuilt(), schema, Settings(), search, KEY) == before


def test_progress_and_log(caplog):
    site, schema = site_of()
    watched = []
    site.watcher = lambda what, done, total: watched.append((what, done, total))
    with caplog.at_level(logging.INFO, "silvan.site"):
        tune_settings(site, schema, Settings(), Search(grid=SMALL, folds=3), KEY)
    what, done, total = zip(*watched, strict=True)
    assert set(what) == {"tuning"}
    assert list(done) == sorted(done)
    assert done[-1] == total[-1] == total[0] > 0
    assert f"one: tuning, {total[0]} of {total[0]} trees" in caplog.text
    site.watcher = lambda *seen: pytest.fail("it is known")
    tune_settings(site, schema, Settings(), Search(grid=SMALL, folds=3), KEY)


def test_listeners_of_a_federation_are_notified():
    fed = federate(parts(table(n=200), 2))
    events = []
    fed.watch(events.append)
    model = sv.BOFRF(n_estimators=5, tune=Search(grid=SMALL, folds=3)).fit(fed)
    progress = [e for e in events if e.what == "progress"]
    assert {e.site for e in progress} == set(fed.sites)
    for site in fed.sites:
        assert [e.done for e in progress if e.site == site][-1] == progress[0].total
    assert {s.n_estimators for s in model.settings_.values()} <= {3, 12}


def test_a_search_survives_the_wire():
    search = Search(kind="grid", grid={"max_features": ["sqrt", 1.0, 3, None]}, folds=5, factor=2)
    back = wire.decode(wire.encode(search), Search)
    assert back == search
    assert [type(v) for v in back.grid["max_features"]] == [str, float, int, type(None)]
    assert asdict(Settings()) == asdict(wire.decode(wire.encode(Settings()), Settings))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "random"}, "'grid' or 'halving', got 'random'"),
        ({"folds": 1}, "folds must be a whole number between 2 and 100, got 1"),
        ({"folds": True}, "folds must be"),
        ({"factor": 1}, "factor must be"),
        ({"grid": {}}, "grid must be a dict"),
        ({"grid": {"depth": [1]}}, "grid names 'depth', which is not tuned; parameters are criterion"),
        ({"grid": {"max_depth": 3}}, "max_depth must be a list of at least one value, got 3"),
        ({"grid": {"max_depth": []}}, "max_depth must be a list"),
        ({"grid": {"max_depth": [0]}}, "max_depth must be a whole number of at least 1, got 0"),
        ({"grid": {"max_depth": [np.int64(3)]}}, "max_depth must hold plain numbers"),
        ({"grid": {"min_samples_leaf": [1, 2]}}, "a leaf of one row shows that row"),
        ({"grid": {"min_samples_leaf": [True]}}, "min_samples_leaf must hold plain"),
        ({"grid": {"criterion": ["squared_error"]}}, "criterion must be 'gini' or 'entropy'"),
        ({"grid": {"max_features": [1.5]}}, "max_features as a share"),
        ({"grid": {"n_estimators": [10**6]}}, "n_estimators must be at most 65536"),
        ({"grid": {"n_estimators": list(range(1, 200)), "max_depth": list(range(1, 100))}}, "over 10,000 combinations"),
    ],
)
def test_an_impossible_search_is_refused(given, said):
    with pytest.raises(InputError, match=said):
        Search(**given)


def test_ways_to_say_tune():
    assert as_search(None) is as_search(False) is None
    assert as_search(True) == Search()
    assert as_search("grid") == Search(kind="grid")
    assert as_search({"max_depth": (1, 2)}) == Search(grid={"max_depth": [1, 2]})
    assert as_search(Search(folds=3)) == Search(folds=3)
    for wrong in ("fast", 3, {"max_depth": 2}):
        with pytest.raises(InputError):
            as_search(wrong)
