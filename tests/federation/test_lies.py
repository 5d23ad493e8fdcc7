"""One side lies, in one field of one message: the other stays up and says so, or answers what it was asked."""

import msgspec
import numpy as np
import pytest
from studies import Recorded, disturbed, federate, parts, table

import silvan as sv
import silvan.federate
import silvan.learners
from silvan.errors import SilvanError, SiteError
from silvan.federation import wire
from silvan.federation.message import Envelope
from silvan.federation.site import _HANDLERS

TABLES = {task: parts(table(task, n=40), 2) for task in ("binary", "number")}


def study(kind, task="binary"):
    fed = federate(TABLES[task], kind, test=0.3)
    model = sv.HistogramForest(n_estimators=2, max_depth=2).fit(fed)
    sv.MergedForest(n_estimators=2, max_depth=2).fit(fed)
    return model.evaluate(fed)


def opened(data):
    envelope = wire.decode(data, Envelope)
    return envelope, msgspec.msgpack.decode(envelope.body, ext_hook=lambda code, d: wire.unpack_array(d))


def lies_about(value):
    """Values of the same type on the wire, and of others."""
    if isinstance(value, np.ndarray):
        yield from (value[:0], value[:-1], value[None] if value.ndim < 4 else value[0], value.reshape(-1))
        yield np.zeros((), value.dtype)
        yield from (np.zeros((0,) * value.ndim, value.dtype), np.concatenate([value, value]), value[::-1] * 3)
        yield from (value.astype(np.float32), value.astype(np.int8), value != 0)
        if value.dtype.kind == "f":
            yield from (np.full_like(value, np.nan), np.full_like(value, -np.inf), -value)
        elif value.dtype.kind in "iu":
            yield from (~value, value + value.dtype.type(1))
            yield from (np.full_like(value, end) for end in (np.iinfo(value.dtype).min, np.iinfo(value.dtype).max))
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (-1, 0, 2**62, -(2**63))
    elif isinstance(value, bytes):
        yield from (b"", value[:-1], value[:100], value[:200] + b"\0" + value[201:], b"\xff" * 16 + value)
    elif isinstance(value, list):
        yield from ([], value[:-1], value + value, [*value, ""], [[]], [float("nan")])
        yield from ([lie, *value[1:]] for lie in (lies_about(value[0]) if value else ()))
    elif isinstance(value, dict):
        yield from ({**value, name: lie} for name in value for lie in lies_about(value[name]))
    yield from (None, "text", 0.5, {})


def replies(task):
    """The first reply of each kind, opened."""
    seen = {}

    def twist(site, data):
        envelope, inside = opened(data)
        seen.setdefault(envelope.kind, inside)
        return [(site, data)]

    study(disturbed(twist), task)
    return seen


KINDS = sorted(k.reply.__name__ for k, _ in _HANDLERS.values() if k.__name__ not in ("AdaptiveLevel", "CountRows"))
CASES = [(kind, "binary") for kind in KINDS] + [(kind, "number") for kind in ("Figures", "GridCounts", "Histograms")]


@pytest.mark.parametrize(("kind", "task"), CASES)
@pytest.mark.filterwarnings("ignore:.*are the units the same")
def test_a_lie(kind, task):
    truth = replies(task)[kind]
    caught = []
    for name, value in truth.items():
        for lie in lies_about(value):

            def twist(site, data, name=name, lie=lie):
                envelope, inside = opened(data)
                if site == "site 1" and envelope.kind == kind:
                    body = wire._ENCODER.encode({**inside, name: lie})
                    data = wire.encode(msgspec.structs.replace(envelope, body=body))
                return [(site, data)]

            try:
                study(disturbed(twist), task)
            except SilvanError as error:
                caught.append(error)
    assert len(caught) > 3
    assert {error.site for error in caught if isinstance(error, SiteError)} == {"site 1"}


def test_all_kinds_are_lied_about():
    assert set(replies("binary")) == set(KINDS)


@pytest.mark.parametrize("task", TABLES)
def test_a_coordinator_that_lies(task):
    """Kernels trust their arrays, so a site must not; it answers, or says that it cannot."""
    fed = federate(TABLES[task], Recorded, test=0.3)
    settings = {"n_estimators": 2, "max_depth": 3}
    sv.MergedForest(**settings).fit(fed)
    sv.HistogramForest(**settings).fit(fed).evaluate(fed)
    asked = [data for site, way, data in fed.record if site == "site 1" and way == "received"]
    member = fed.site("site 1")
    codes = []
    for data in asked:
        envelope, inside = opened(data)
        truth = member.receive(data, _HANDLERS[envelope.kind][0].verb)
        for name, value in inside.items():
            for lie in lies_about(value):
                body = wire._ENCODER.encode({**inside, name: lie})
                bad = wire.encode(msgspec.structs.replace(envelope, body=body))
                answer = wire.decode(member.receive(bad, _HANDLERS[envelope.kind][0].verb), Envelope)
                codes.append(opened(wire.encode(answer))[1]["code"] if answer.kind == "Trouble" else answer.kind)
        assert member.receive(data, _HANDLERS[envelope.kind][0].verb) == truth  # nothing of a lie stays
    assert codes.count("format") > 500
    assert "internal" not in codes
