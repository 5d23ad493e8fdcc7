"""What is known about a node's rows bounds its histograms, and no sum exceeds the bound."""

import numpy as np
import polars as pl
import pytest

import silvan as sv
from silvan.algorithms.horizontal.histogram_forest import GrowLevel
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.federation.transport import InProcess
from silvan.privacy.aggregation.masked_site import Turn
from silvan.privacy.aggregation.words import STEPS


def sites(label):
    frame = sv.datasets.heart_disease().drop_nulls(label)
    frame = frame.with_columns(pl.col("slope").cast(pl.String), pl.col("age") + 0.5)
    return {str(name): part.drop("hospital") for (name,), part in frame.group_by("hospital", maintain_order=True)}


CASES = [
    ("disease", {}),
    ("disease", {"class_weight": "balanced", "max_features": None}),
    ("disease", {"max_samples": 0.5, "min_samples_leaf": 3}),
    ("cp", {"bootstrap": False}),
    ("age", {}),
    ("age", {"max_features": None, "max_bins": 16}),
]


@pytest.mark.parametrize(("label", "settings"), CASES)
def test_no_sum_is_above_its_bound(label, settings, monkeypatch):
    """Bounds on classes and rows; sums of numeric targets have none. Roots reach their bounds."""
    fed = sv.federate_rows(sites(label), label=label)
    total, reached = fed.total, []

    def watch(request, most=None, **given):
        sums = total(request, most=most, **given)
        if isinstance(request, GrowLevel):
            blocks = np.repeat(most.most, most.lengths, axis=0)
            assert sums.sums.shape == blocks.shape
            assert (sums.sums <= blocks).all()
            reached.append(int((sums.sums == blocks).sum()))
        return sums

    monkeypatch.setattr(fed, "total", watch)
    sv.HistogramForest(4, max_depth=6, random_state=0, **settings).fit(fed)
    assert sum(reached) > 0


def test_sites_learn_the_number_of_bits_and_no_more(monkeypatch):
    """One of a few bit widths for every open node and class; below 256 rows nothing more is disclosed."""
    seen, deliver = [], InProcess.deliver

    def watch(self, messages, verb, timeout):
        for data in messages.values():
            step = wire.decode(data, Envelope).step
            seen.extend([] if step is None else [wire.decode(step.body, Turn).widths])
        return deliver(self, messages, verb, timeout)

    monkeypatch.setattr(InProcess, "deliver", watch)
    given = sites("disease")
    hidden, plain = (sv.federate_rows(given, label="disease", sums=sums) for sums in ("masked", "trusted"))
    forests = [sv.HistogramForest(3, max_depth=4, random_state=0).fit(fed).forest_ for fed in (hidden, plain)]
    assert forests[0].hash == forests[1].hash
    widths = [each for each in seen if each is not None]
    assert widths
    assert all(np.isin(each.bits, STEPS).all() for each in widths)
    assert min(STEPS) == 8
