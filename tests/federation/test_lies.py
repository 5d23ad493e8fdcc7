"""One side lies in one field of one message: the other keeps running and says so, or replies to what it received."""

from functools import partial

import numpy as np
import pytest
from helpers.lies import answers_to_lies, caught_lies, first_replies, replies_in
from helpers.studies import Recorded, federate, parts, table

import silvan as sv
import silvan.federate.by_rows
import silvan.learners
from silvan.errors import SiteError
from silvan.federation import wire
from silvan.federation.describe import BUCKETS, CategoryCounts, NameCategories, buckets

TABLES = {task: parts(table(task, n=40), 2) for task in ("binary", "number")}
TIMES = {
    site: frame.drop("label").with_columns(days=np.arange(1.0, len(frame) + 1), died=np.arange(len(frame)) % 3 > 0)
    for site, frame in TABLES["number"].items()
}


def study(kind, task="binary"):
    if task == "times":
        fed = sv.federate_rows(TIMES, time="days", event="died", exclude=["noise"], n_jobs=1, transport=kind)
        return sv.HistogramForest(n_estimators=2, max_depth=2).fit(fed)
    fed = federate(TABLES[task], kind, test=0.3)
    model = sv.HistogramForest(n_estimators=2, max_depth=2).fit(fed)
    sv.MergedForest(n_estimators=2, max_depth=2).fit(fed)
    return model.evaluate(fed)


# lies about messages of other algorithms are tested beside those algorithms
ALGORITHMS = (
    f"silvan.algorithms.{name}"
    for name in ("evaluation.evaluate", "horizontal.histogram_forest", "horizontal.merged_forest", "shared_bins")
)
KINDS = [kind for kind in replies_in("silvan.federation.describe", *ALGORITHMS) if kind != "Size"]
CASES = [(kind, "times" if kind == "LeafTimes" else "binary") for kind in KINDS] + [
    (kind, "number") for kind in ("SiteMetrics", "GridCounts", "Histograms")
]


@pytest.mark.parametrize(("kind", "task"), CASES)
@pytest.mark.filterwarnings("ignore:.*are the units the same", "ignore:.* absent at", "ignore:no test row is of")
def test_a_lie(kind, task):
    caught = caught_lies(partial(study, task=task), kind)
    assert len(caught) > 3
    assert {error.site for error in caught if isinstance(error, SiteError)} == {"site 1"}


def test_every_kind_is_tested_with_lies():
    replies = set(first_replies(study)) | set(first_replies(partial(study, task="times")))
    assert replies == set(KINDS)


@pytest.mark.parametrize("task", TABLES)
def test_a_coordinator_that_lies(task):
    """Kernels trust their arrays, so a site must not; it replies, or says that it cannot."""
    fed = federate(TABLES[task], Recorded, test=0.3)
    settings = {"n_estimators": 2, "max_depth": 3}
    sv.MergedForest(**settings).fit(fed)
    sv.HistogramForest(**settings).fit(fed).evaluate(fed)
    codes = answers_to_lies(fed, fed.transport.record)
    assert codes.count("format") > 500
    assert "internal" not in codes
    # a coordinator that calls every hash common still learns no rare number of the site
    words = {str(number) for frame in TABLES[task].values() for number in frame["noise"]}
    counts = np.zeros((1, 2 * BUCKETS), np.int32)
    counts[0, [bucket for word in words for bucket in buckets(word)]] = 10
    total = fed.blob(wire.encode(CategoryCounts(counts=counts)))
    with fed.working_on("names"):
        told = fed.ask(NameCategories(names=["noise"], counts=total, sites=fed.active))
    assert [reply.names for reply in told.values()] == [[[]]] * len(told)
