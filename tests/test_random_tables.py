"""Forests of rows or columns in several places equal those of the joined table, on deliberately awkward tables.

Constant columns, repeated columns, few values, missing cells, categories, tiny sites and parties, sites with a single
class, labels that one column decides or none does; few features per node, so that nodes sample several times; votes and
means; all ways of summing. Forests from adaptive bins equal their naive version, merged forests equal the sites' own
joined together.

    SILVAN_TABLES=1000 python -m pytest tests/test_random_tables.py

tries more of them; a failure names its seed, and ``SILVAN_TABLE_FIRST`` starts from it.
"""

import os
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from helpers.naive_adaptive import assert_same, grow_naive

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels
from silvan.forest.forest import join_forests
from silvan.tree.fit import Settings
from silvan.tree.sampling import make_key

FIRST = int(os.environ.get("SILVAN_TABLE_FIRST", "0"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SILVAN_TABLES", "16")))


def column(rng, n, others):
    """One column of some awkward kind."""
    kind = rng.integers(0, 7)
    if kind == 0:
        return np.full(n, 3.0)
    if kind == 1 and others:
        return others[rng.integers(len(others))]
    if kind == 2:
        return rng.integers(0, 2, n).astype(np.float64)
    if kind == 3:
        return rng.choice(["a", "b", "c", "d"][: rng.integers(1, 5)], n).tolist()
    values = rng.integers(0, 5, n) / 2 if kind == 4 else rng.normal(size=n)
    if kind == 5:
        values[rng.random(n) < 0.4] = np.nan
    return values


def table(rng):
    """A table of 20 to 150 rows, sometimes four times as many, with more values than cut points; an id, a label."""
    n = int(rng.integers(20, 150)) * (4 if rng.random() < 0.15 else 1)
    barren = rng.random() < 0.4  # one column that varies, which nodes sample late
    columns = []
    for _ in range(rng.integers(2, 8)):
        columns.append(np.full(n, 1.0) if barren else column(rng, n, columns))
    columns.insert(rng.integers(len(columns)), rng.normal(size=n))  # otherwise there might be no column in common
    decisive = columns[rng.integers(len(columns))]
    codes = np.unique(decisive, return_inverse=True)[1] if rng.random() < 0.7 else rng.integers(0, 4, n)
    task = rng.choice(["binary", "several", "number"])
    label = {"binary": codes > np.median(codes), "several": codes % 3, "number": codes + 0.25}[task]
    label = np.where(label, "yes", "no") if task == "binary" else label
    named = {f"c{i}": pl.Series(values, strict=False) for i, values in enumerate(columns)}
    frame = pl.DataFrame({"id": rng.permutation(n), **named, "label": label})
    return frame.with_columns(pl.col(pl.Float64).fill_nan(None))


def settings(rng, frame):
    """Parameters that make nodes sample again, end early, or go deep."""
    several = frame["label"].dtype != pl.Float64
    parameters = {
        "n_estimators": int(rng.integers(1, 5)),
        "max_depth": int(rng.integers(1, 9)),
        "max_features": [1, 2, None, "sqrt"][rng.integers(4)],
        "min_samples_leaf": int(rng.choice([2, 3, 8])),
        "max_bins": int(rng.choice([3, 16, 64, 100])),
        "bootstrap": bool(rng.random() < 0.7),
        "feature_sampling": ["node", "tree"][rng.integers(2)],
        "class_weight": "balanced" if several and rng.random() < 0.3 else None,
        "random_state": int(rng.integers(100)),
        "vote": "hard" if several and rng.random() < 0.3 else "soft",
    }
    shares = [None, None, 0.5, 0.9] if parameters["bootstrap"] else [None]
    return parameters | {"max_samples": shares[parameters["random_state"] % len(shares)]}


def monotonic(seed, frame, names):
    """The allowed directions of predictions for some numeric columns, where there is an order."""
    rng = np.random.default_rng([seed, 1])
    if frame["label"].n_unique() > 2 and frame["label"].dtype != pl.Float64:
        return {}
    numbers = [name for name in names if frame[name].dtype.is_numeric()]
    return {"monotonic_cst": {name: int(rng.integers(-1, 2)) for name in numbers if rng.random() < 0.7}}


def drawn(seed):
    rng = np.random.default_rng(seed)
    frame = table(rng)
    return rng, frame, settings(rng, frame)


def task_of(frame):
    return "regression" if frame["label"].dtype == pl.Float64 else "classification"


def with_persons(rng, frame):
    """The rows as those of persons with one to six each, whose labels need not agree."""
    each = rng.integers(1, 7, len(frame))
    who = np.repeat(np.arange(len(frame)), each)[: len(frame)]
    return frame.with_columns(person=pl.Series([f"p{i}" for i in rng.permutation(who)]))


def federated(rng, frame, **given):
    """The rows at one to four sites, some of which may have a single row, or a single class."""
    if rng.random() < 0.3:
        frame = frame.sort("label")
    cuts = np.sort(rng.integers(1, len(frame), rng.integers(0, 4)))
    bounds = [0, *np.unique(cuts).tolist(), len(frame)]
    parts = {f"site {i}": frame[a:b] for i, (a, b) in enumerate(pairwise(bounds))}
    return sv.federate_rows(parts, task=task_of(frame), n_jobs=1, cold=bool(rng.random() < 0.3), **given)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore")
def test_rows(seed):
    rng, frame, parameters = drawn(seed)
    sums = ["trusted", "trusted", "ring", "masked"][rng.integers(4)]
    fed = federated(rng, frame.drop("id"))
    if sums != "trusted" and len(fed.sites) > 2:
        fed = sv.federate_rows({name: fed.site(name).source for name in fed.sites}, task=task_of(frame), sums=sums)
    parameters |= monotonic(seed, frame, fed.schema.names)
    pooled = sv.PooledForest(**parameters).fit(fed).forest_
    assert sv.HistogramForest(**parameters).fit(fed).forest_.hash == pooled.hash


def with_times(rng, frame):
    """The rows with a time, some of them equal and some zero, and whether the event happened; one at least has it."""
    times = rng.choice([rng.exponential(50, len(frame)), rng.integers(0, 9, len(frame))])
    events = rng.random(len(frame)) < rng.choice([0.05, 0.6, 1.0])
    events[rng.integers(len(frame))] = True
    return frame.drop("label").with_columns(time=pl.Series(times), event=pl.Series(events))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore")
def test_survival(seed):
    rng, frame, parameters = drawn(seed)
    frame = with_times(rng, frame.drop("id"))
    group = {"group": "person"} if rng.random() < 0.3 else {}
    frame = with_persons(rng, frame) if group else frame
    sums = ["trusted", "trusted", "ring", "masked"][rng.integers(4)]
    site = pl.Series(rng.choice(["a", "b", "c"][: rng.integers(1, 4)], len(frame)))
    frame = frame.with_columns(site=site)
    sums = sums if site.n_unique() > 2 else "trusted"
    fed = sv.federate_rows(frame, site="site", time="time", event="event", sums=sums, n_jobs=1, **group)
    parameters |= {"class_weight": None, "vote": "soft", "time_bins": int(rng.choice([2, 5, 64]))}
    pooled = sv.PooledForest(**parameters).fit(fed).forest_
    assert sv.HistogramForest(**parameters).fit(fed).forest_.hash == pooled.hash


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore")
def test_rows_of_persons(seed):
    """If a person's rows are at several sites, each site counts another person, because it cannot know better."""
    rng, frame, parameters = drawn(seed)
    frame = with_persons(rng, frame.drop("id"))
    sums = ["trusted", "trusted", "ring", "masked"][rng.integers(4)]
    fed = federated(rng, frame, group="person", test=[0.0, 0.3][rng.integers(2)])
    if sums != "trusted" and len(fed.sites) > 2:
        sources = {name: fed.site(name).source for name in fed.sites}
        fed = sv.federate_rows(sources, task=task_of(frame), sums=sums, group="person")
    assert "person" not in fed.schema.names
    parameters |= monotonic(seed, frame, fed.schema.names)
    pooled = sv.PooledForest(**parameters).fit(fed).forest_
    assert sv.HistogramForest(**parameters).fit(fed).forest_.hash == pooled.hash


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore")
def test_rows_of_sites_that_lack_columns(seed):
    """A column absent at a site gives, node for node, the same forest as one missing in all rows there."""
    rng, frame, parameters = drawn(seed)
    fed = federated(rng, frame.drop("id"))
    sources = {name: fed.site(name).source for name in fed.sites}
    names = [name for name in frame.columns if name not in ("id", "label")]
    kept = rng.choice(names)  # there must be a column that all have
    lacking = {site: [n for n in names if n != kept and rng.random() < 0.3] for site in list(sources)[1:]}
    tables = {site: table.drop(lacking.get(site, [])) for site, table in sources.items()}
    empty = {
        site: table.with_columns(pl.lit(None, table.schema[name]).alias(name) for name in lacking.get(site, []))
        for site, table in sources.items()
    }
    sums = ["trusted", "masked", "ring"][seed % 3] if len(sources) > 2 else "trusted"
    absent = sv.federate_rows(tables, task=task_of(frame), sums=sums, n_jobs=1)
    schema = sv.federate_rows(empty, task=task_of(frame), n_jobs=1).schema
    assert {*absent.schema.names} == {*schema.names}
    pooled = sv.federate_rows({"pooled": pl.concat(empty.values())}, schema=absent.schema, n_jobs=1)
    forest = sv.HistogramForest(**parameters).fit(absent).forest_
    other = sv.federate_rows(empty, schema=absent.schema, n_jobs=1)
    assert forest.hash == sv.PooledForest(**parameters).fit(other).forest_.hash
    if not parameters["bootstrap"]:  # which rows are in a tree depends on their site
        assert forest.hash == sv.HistogramForest(**parameters).fit(pooled).forest_.hash


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore")
def test_merged(seed):
    rng, frame, parameters = drawn(seed)
    fed = federated(rng, frame.drop("id"))
    parameters |= monotonic(seed, frame, fed.schema.names)
    alone = dict(parameters)
    if parameters.get("class_weight") == "balanced":  # over all sites' rows
        y = np.concatenate([fed.site(name).part(fed.schema).y for name in fed.sites])
        counts = np.bincount(y.astype(int), minlength=fed.schema.n_classes)
        weights = np.where(counts > 0, counts.sum() / (len(counts) * np.maximum(counts, 1)), 1.0)
        alone["class_weight"] = dict(zip(fed.schema.label.classes, weights.tolist(), strict=True))
    own = sv.LocalForest(**alone).fit(fed).forests_
    together = {**parameters, "n_estimators": parameters["n_estimators"] * len(own)}
    assert sv.MergedForest(**together).fit(fed).forest_.hash == join_forests(list(own.values())).hash


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore")
def test_adaptive(seed):
    rng, frame, parameters = drawn(seed)
    codes = frame["label"].rank("dense").to_numpy() % 2 if rng.random() < 0.7 else rng.integers(0, 2, len(frame))
    frame = frame.select("^c.*$").with_columns(label=codes.astype(int))
    frame = frame.with_columns(label=pl.Series([0, 1, *codes.astype(int)[2:]]))
    weight = [1.0, 2.5] if rng.random() < 0.3 else None
    parameters |= {"max_bins": int(rng.choice([2, 3, 8])), "class_weight": weight}
    fed = federated(rng, frame, policy=sv.Policy(messages=("*", "AdaptiveLevel")))
    given = {**parameters, "class_weight": None if weight is None else dict(enumerate(weight))}
    forest = sv.HistogramForest(bins="adaptive", **given).fit(fed).forest_
    parts = [fed.site(name).part(fed.schema) for name in fed.sites]
    sites = [(part.X, part.y, part.row_keys) for part in parts]
    settings = Settings(**{name: value for name, value in parameters.items() if name != "random_state"})
    key = make_key(parameters["random_state"], "features")
    roots = grow_naive(sites, fed.schema, settings, fed.site(fed.sites[0]).sampling_key, key)
    whole_weights = settings.measure(fed.schema, np.full(2, len(frame))).class_weight
    assert_same(forest, roots, sites, whole_weights)


@pytest.mark.parametrize("labels", ["encoded", "encrypted"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore")
def test_columns(seed, labels, monkeypatch):
    monkeypatch.setattr(encrypted_labels, "TESTING", True)
    rng, frame, parameters = drawn(seed)
    names = [name for name in frame.columns if name.startswith("c")]
    owner = rng.integers(0, rng.integers(1, 4), len(names))
    holder = int(rng.integers(0, owner.max() + 1))
    parties = {
        f"party {k}": frame.select(
            "id", *(n for n, o in zip(names, owner, strict=True) if o == k), *(["label"] if k == holder else [])
        )
        for k in range(owner.max() + 1)
    }
    fed = sv.federate_columns(parties, id="id", label="label", task=task_of(frame), match="keyed", n_jobs=1)
    parameters |= monotonic(seed, frame, fed.schema.names)
    pooled = sv.PooledForest(**parameters).fit(fed).forest_
    model = sv.VerticalForest(labels=labels, key_bits=256, **parameters).fit(fed)
    assert model.forest_.hash == pooled.hash
