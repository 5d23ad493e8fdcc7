"""Trees that sample a share of the rows (``max_samples``), for every learner: as on one table."""

import numpy as np
import pytest
from helpers.studies import Recorded, federate, parts, table

import silvan as sv
from silvan.errors import InputError
from silvan.federation import wire
from silvan.federation.message import Envelope

TABLES = parts(table(n=300), 3)
LEARNERS = {
    "histogram": sv.HistogramForest(6, max_depth=4),
    "merged": sv.MergedForest(6, max_depth=4),
    "refitted": sv.MergedForest(6, max_depth=4, refit_leaves=True),
    "bofrf": sv.BOFRF(4, max_depth=4),
    "tuned": sv.BOFRF(10, max_depth=3, tune={"min_samples_leaf": [2, 5]}),
}


def requests(fed):
    """All requests of a federation, without names and times."""
    envelopes = [wire.decode(data, Envelope) for _, way, data in fed.transport.record if way == "received"]
    return [(envelope.kind, envelope.body) for envelope in envelopes]


@pytest.mark.parametrize("name", LEARNERS)
def test_without_it_requests_are_unchanged(name):
    learner, asked = LEARNERS[name], []
    for share in (None, 1.0, 0.4):
        fed = federate(TABLES, Recorded)
        learner.set_params(max_samples=share).fit(fed)
        asked.append(requests(fed))
    assert asked[0] == asked[1] != asked[2]
    learner.set_params(max_samples=None)


@pytest.mark.parametrize("cold", [False, True])
def test_the_forest_equals_that_of_all_rows(cold):
    fed = federate(TABLES, cold=cold, test=0.2)
    model = sv.HistogramForest(6, max_depth=4, max_samples=0.4, threshold="youden").fit(fed)
    pooled = sv.PooledForest(6, max_depth=4, max_samples=0.4).fit(fed)
    assert model.forest_ == pooled.forest_ != sv.PooledForest(6, max_depth=4).fit(fed).forest_
    drawn = model.sampled_rows(fed)
    assert drawn.mean() == pytest.approx(1 - np.exp(-0.4), abs=0.05)
    assert model.evaluate(fed).filter(site="all", model="federated")["auc"].item() > 0.6


def test_a_local_forest_samples_as_in_the_study():
    fed = federate(TABLES)
    own = sv.LocalForest(2, max_depth=4, max_samples=0.4).fit(fed).forests_
    merged = sv.MergedForest(6, max_depth=4, max_samples=0.4).fit(fed)
    assert len(merged.forest_.feature) == sum(len(forest.feature) for forest in own.values())
    assert merged.sampled_rows(fed).sum() == pytest.approx(6 * 100 * (1 - np.exp(-0.4)), rel=0.2)


def test_a_tiny_site_still_grows_trees():
    """If a tree would sample no row, it takes all."""
    tables = {**TABLES, "tiny": TABLES["site 0"][:1]}
    assert len(sv.MergedForest(4, max_samples=0.01).fit(federate(tables)).forest_) == 4


@pytest.mark.parametrize("wrong", [5, 0, 0.0, 1.5, "half", True])
def test_shares_alone(wrong):
    with pytest.raises(InputError, match="max_samples must be a share of the rows, above 0 and at most 1"):
        sv.HistogramForest(max_samples=wrong).fit(federate(TABLES))
    with pytest.raises(InputError, match="max_samples needs bootstrap=True"):
        sv.MergedForest(max_samples=0.5, bootstrap=False).fit(federate(TABLES))
