"""No cell value is in anything that a site sends: every number in every message is checked."""

import msgspec
import numpy as np
import polars as pl
import pytest
from helpers.studies import Recorded, federate, parts

import silvan as sv
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.forest.forest import Forest

NAMES = ["Zyzzyva", "Abracadabra"]  # too rare to be disclosed


def frame(task, n=300):
    """Two numeric columns unrelated to any grid, and a few outlying rows."""
    rng = np.random.default_rng(0)
    x, z = rng.normal(50, 10, n), rng.lognormal(3, 1, n)
    x[:3], z[3:6] = [86753.0625, -0.001234, 5e-7], [1e7 / 3, 1 / 7, 2e7 / 3]
    ward = rng.choice(["a", "b", "c"], n)
    ward[[5, 50, 250]] = [NAMES[0], NAMES[0], NAMES[1]]
    signal = x / 20 + rng.normal(size=n)
    label = np.where(signal > 2.5, "yes", "no") if task == "binary" else signal * np.pi
    return pl.DataFrame({"x": x, "z": z, "ward": ward, "label": label})


def numbers(value):
    """All numbers in a message, at any depth, including those of forests."""
    if isinstance(value, np.ndarray):
        yield from value.ravel().tolist()
    elif isinstance(value, bytes) and b"silvan forest" in value:
        forest = Forest.from_bytes(value)
        yield from numbers([forest.threshold, forest.value, forest.weights])
    elif isinstance(value, dict):
        yield from numbers(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int | float):
        yield value


def study(task):
    fed = federate(parts(frame(task), 3), Recorded, test=0.3)
    for learner in (sv.HistogramForest, sv.MergedForest):
        model = learner(n_estimators=5, max_depth=5).fit(fed)
        model.evaluate(fed)
    return fed


@pytest.mark.parametrize("task", ["binary", "number"])
def test_no_cell_value_leaves_a_site(task):
    fed = study(task)
    table = frame(task)
    columns = [table["x"], table["z"]] + ([table["label"]] if task == "number" else [])
    values = {v for c in columns for v in c.to_list()}
    values |= {float(np.float32(v)) for v in values}
    replies, kinds = set(), set()
    for _, way, data in fed.transport.record:
        if way == "sent":
            envelope = wire.decode(data, Envelope)
            inside = msgspec.msgpack.decode(envelope.body, ext_hook=lambda code, d: wire.unpack_array(d))
            replies |= set(numbers(inside))
            kinds.add(envelope.kind)
    assert {"Description", "GridCounts", "FineCounts", "Histograms", "Trees", "SiteMetrics"} <= kinds
    assert len(replies) > 100
    assert not replies & values


@pytest.mark.parametrize("task", ["binary", "number"])
def test_rare_names_are_never_sent(task):
    """Not in messages, not in stored files, not in the model."""
    fed = study(task)
    everything = b"".join(data for *_, data in fed.transport.record)
    assert b"ward" in everything
    for name in NAMES:
        assert name.encode() not in everything
        assert name not in fed.schema.to_json()
        assert name not in str(fed.differences)


def test_the_search_finds_planted_values():
    """Shows that the test above can fail."""
    array = np.array([[1.5, 86753.0625]], np.float32)
    assert 86753.0625 in set(numbers({"a": [{"b": array}], "c": 3}))
    assert 3 in set(numbers({"a": [{"b": array}], "c": 3}))


def test_a_journal_stores_no_part_of_a_sum(tmp_path):
    """For a sum, the coordinator's file has the total, not each site's part."""
    fed = federate(parts(frame("binary"), 3), Recorded, journal=str(tmp_path / "journal"))
    sv.HistogramForest(n_estimators=2, max_depth=2).fit(fed)
    fed.close()
    kept = (tmp_path / "journal").read_bytes()
    bodies = [
        (e.kind, e.body) for e in (wire.decode(d, Envelope) for _, way, d in fed.transport.record if way == "sent")
    ]
    assert any(body in kept for kind, body in bodies if kind == "Description")
    assert not any(body in kept for kind, body in bodies if kind in ("GridCounts", "Histograms"))
