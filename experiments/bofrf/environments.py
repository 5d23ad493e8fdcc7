"""The twelve environments of the BOFRF paper and the thesis: sampled with the published counts, for all learners.

The texts give each site's number of rows and positives, not the rows, and say that some sites were weakened on purpose.
So rows are sampled at random with the published counts, anew for each seed.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
from experiments.reproduce.data import load
from experiments.reproduce.paper import Record, Run

import silvan as sv
from silvan.algorithms.bofrf.tune import Search
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.tree.fit import Settings

DATA = {
    "Pima diabetes": "pima",
    "diabetic retinopathy": "diabetic_retinopathy_debrecen",
    "South African heart disease": "saheart",
}
ENVIRONMENTS = pl.read_csv(Path(__file__).with_name("environments.csv"))
TEST = 0.3
FOREST = {"n_estimators": 100, "max_depth": 6}
GRID = {
    "criterion": ["gini", "entropy"],
    "max_depth": [5, 14],
    "min_samples_leaf": [2, 14],
    "max_features": ["sqrt", 0.8],
    "n_estimators": [50, 100, 150],
}
"""Values around those of the thesis (Table A.1); leaves of one row are not allowed there either."""
SEEDS, TUNED_SEEDS = 20, 3


def draw_environment(sites: pl.DataFrame, seed: int) -> dict[str, pl.DataFrame]:
    """Sample every site's rows with the published number of positives and negatives."""
    frame = load(sites["dataset"][0])
    rng = np.random.default_rng([seed, sites["environment"][0]])
    label = frame["label"].to_numpy()
    left = [rng.permutation(np.flatnonzero(label == c)).tolist() for c in (0, 1)]
    needed = (int((sites["rows"] - sites["positives"]).sum()), int(sites["positives"].sum()))
    if any(len(rows) < n for rows, n in zip(left, needed, strict=True)):
        has = " and ".join(f"{len(rows)} of class {c}" for c, rows in enumerate(left))
        raise InputError(f"{sites['dataset'][0]} has {has}; the environment needs {needed[0]} and {needed[1]}")
    tables = {}
    for site in sites.iter_rows(named=True):
        wanted = (site["rows"] - site["positives"], site["positives"])
        rows = [left[c].pop() for c in (0, 1) for _ in range(wanted[c])]
        tables[site["site"]] = frame[sorted(rows)]
    return tables


def in_environment(data: str, environment: str, tuned: int, seed: int) -> Iterator[Record]:
    """Fit all learners in one environment; one row of metrics for each site."""
    sites = ENVIRONMENTS.filter(environment=int(environment[1:]))
    fed = sv.federate_rows(draw_environment(sites, seed), label="label", test=TEST, random_state=seed, n_jobs=1)
    found: dict[str, Record] = {site: {"site": site} for site in sites["site"]}
    if tuned:
        given = {"n_estimators": 100, "tune": Search(kind="grid", grid=GRID, folds=10), "random_state": seed}
        paper = _forests(fed, found, given, personal=False)
        _parameters(len(fed.schema.features), found, paper.settings_)
    else:
        given = {**FOREST, "random_state": seed}
        _forests(fed, found, given, personal=True)
        _boosting(fed, found, seed)
    yield from found.values()


def _figures(fed: Federation, model: sv.BOFRF | sv.BOPPID, found: dict[str, Record], taken: dict[str, str]) -> None:
    """Add the AUC of some of a learner's models to the row of each site."""
    for row in model.evaluate(fed).iter_rows(named=True):
        if row["site"] in found and row["model"] in taken:
            found[row["site"]][taken[row["model"]]] = row["auc"]


def _forests(fed: Federation, found: dict[str, Record], given: Record, personal: bool) -> sv.BOFRF:
    """Add BOFRF chosen on out-of-bag rows and, as in the texts, on test rows."""
    base = sv.BOFRF(**given).fit(fed)
    named = {"local": "local", "global": "global", "federated": "bofrf"} | ({"pooled": "pooled"} if personal else {})
    _figures(fed, base, found, named)
    if personal:
        own_tau = sv.BOFRF(**given, personal=True).fit(fed)
        _figures(fed, own_tau, found, {"federated": "personal"})
        for site, row in found.items():
            row["tau"] = own_tau.taus_[site]
    paper = sv.BOFRF(**given, personal=True, protocol="paper").fit(fed)
    _figures(fed, paper, found, {"own": "own_paper", "global": "global_paper", "federated": "personal_paper"})
    for site, row in found.items():
        # at the agreed tau, the better one on test rows
        row["bofrf_paper"] = max(row.pop("own_paper"), row.pop("global_paper"))
        row["tau_paper"] = paper.taus_[site]
        row["own_trees_paper"] = int(paper.strategies_[site] == "own")
    return paper


def _parameters(columns: int, found: dict[str, Record], chosen: dict[str, Settings]) -> None:
    """Add the parameters that tuning chose, as numbers."""
    for site, row in found.items():
        of = chosen[site]
        features = math.sqrt(columns) if of.max_features == "sqrt" else float(of.max_features) * columns
        row |= {"trees": of.n_estimators, "leaf": of.min_samples_leaf, "features": features, "depth": of.max_depth}
        row["entropy"] = int(of.criterion == "entropy")


def _boosting(fed: Federation, found: dict[str, Record], seed: int) -> None:
    """Add AdaBoost at each site, and the methods built on it; BOPPID's rule of admission has two readings."""
    boppid = sv.BOPPID(random_state=seed).fit(fed)
    _figures(fed, boppid, found, {"local": "local_ada", "federated": "boppid"})
    for name, learner in {
        "boppid_printed": sv.BOPPID(printed=True, random_state=seed),
        "adaboost_pl": sv.AdaBoostPL(random_state=seed),
        "multboost": sv.MultBoost(random_state=seed),
    }.items():
        _figures(fed, learner.fit(fed), found, {"federated": name})


def cases(quick: bool) -> list[Record]:
    """List the environments; in a quick run one of each data set, and the smallest for tuning."""
    names = {name: called for called, name in DATA.items()}
    listed = ENVIRONMENTS.unique("environment", maintain_order=True)
    every = [(f"E{n}", names[name]) for n, name in listed.select("environment", "dataset").iter_rows()]
    some = [pair for pair in every if pair[0] in ("E1", "E4", "E8", "E11")] if quick else every
    small = [pair for pair in every if pair[0] == "E10"] if quick else every
    listed_cases = [(some, 0, 2 if quick else SEEDS), (small, 1, 1 if quick else TUNED_SEEDS)]
    return [
        {"data": data, "environment": e, "tuned": tuned, "seed": s}
        for which, tuned, seeds in listed_cases
        for e, data in which
        for s in range(seeds)
    ]


RUN = Run("environments", cases, in_environment, kept="bofrf", version=2)
