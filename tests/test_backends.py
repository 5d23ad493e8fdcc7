"""Every learner gives the same forest wherever its sites run and however their replies arrive."""

from functools import cache

import pytest
from helpers.studies import Reversed, Shuffled, federate, parts, table

import silvan as sv

BACKENDS = {
    "warm": lambda tables, **given: federate(tables, **given),
    "cold": lambda tables, **given: federate(tables, cold=True, **given),
    "reversed": lambda tables, **given: federate(tables, Reversed, **given),
    "shuffled": lambda tables, **given: federate(tables, Shuffled, **given),
    "in time": lambda tables, **given: federate(tables, timeout=60, **given),
}
ALLOWED = (
    "Describe",
    "CountCategories",
    "NameCategories",
    "AdaptiveLevel",
    "AdaptiveLeaves",
    "EvaluateModels",
    "CountByScore",
)
LEARNERS = {
    "histogram": lambda: sv.HistogramForest(n_estimators=5, max_depth=4),
    "histogram, all rows": lambda: sv.HistogramForest(n_estimators=3, max_depth=4, bootstrap=False),
    "histogram, adaptive bins": lambda: sv.HistogramForest(n_estimators=3, max_depth=3, bins="adaptive"),
    "merged": lambda: sv.MergedForest(n_estimators=7, max_depth=4),
    "merged, trees by rows": lambda: sv.MergedForest(n_estimators=7, max_depth=4, weights="trees"),
    "merged, votes by rows": lambda: sv.MergedForest(n_estimators=7, max_depth=4, weights="votes"),
    "bofrf": lambda: sv.BOFRF(n_estimators=3, max_depth=4),
    "bofrf, rows split off": lambda: sv.BOFRF(n_estimators=3, max_depth=4, validation=0.2),
    "bofrf, personal": lambda: sv.BOFRF(n_estimators=3, max_depth=4, tau=0.3, personal=True),
    "bofrf, clustered": lambda: sv.BOFRF(n_estimators=3, max_depth=4, clusters=2),
    "pooled": lambda: sv.PooledForest(n_estimators=4, max_depth=4),
    "local": lambda: sv.LocalForest(n_estimators=4, max_depth=4),
}


def tables_and_settings(learner, task):
    frame = table(task)
    if learner == "histogram, adaptive bins":  # its message allowed
        return parts(frame, 3), {"policy": sv.Policy(messages=ALLOWED)}
    return parts(frame, 3), {}


@cache
def outcome(backend, learner, task):
    """Everything that must not depend on the backend."""
    tables, settings = tables_and_settings(learner, task)
    fed = BACKENDS[backend](tables, test=0.25, **settings)
    model = LEARNERS[learner]().fit(fed)
    figures = model.evaluate(fed).rows()
    return {
        "schema": fed.schema.to_json(),
        "forest": None if model.forest_ is None else model.forest_.hash,
        "forests": {site: forest.hash for site, forest in model.forests_.items()},
        "rounds": model.rounds_,
        "bytes": model.bytes_,
        "figures": repr(figures),  # as text: NaN is equal to itself
    }


CASES = [
    *((backend, learner, "binary") for backend in ("cold", "shuffled") for learner in LEARNERS),
    *((backend, name, "number") for backend in ("cold", "shuffled") for name in ("histogram", "merged", "bofrf")),
    # replies in any order include reversed ones, and the waiting code knows no learner
    *((backend, name, "binary") for backend in ("reversed", "in time") for name in ("histogram", "merged", "bofrf")),
]


@pytest.mark.parametrize(("backend", "learner", "task"), CASES)
def test_same_outcome(backend, learner, task):
    assert outcome(backend, learner, task) == outcome("warm", learner, task)


def test_a_cold_site_remembers_nothing():
    """Shows that the test above can fail: a cold site is a new object for every message; only its store survives."""
    fed = federate(parts(table(), 2), cold=True)
    before = fed.site("site 0")
    sv.HistogramForest(n_estimators=2, max_depth=2).fit(fed)
    after = fed.site("site 0")
    assert after is not before
    assert after.store is before.store
    assert "frame" not in vars(before.rebuilt())


def test_learners_are_distinguished():
    hashes = {repr(outcome("warm", name, "binary")["forests"]) for name in LEARNERS}
    assert len(hashes) == len(LEARNERS)
