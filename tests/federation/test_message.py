"""Messages: every kind declares what it discloses, and to whom."""

import msgspec
import numpy as np
import pytest

import silvan.federate.by_rows
import silvan.learners  # noqa: F401  all kinds of messages are known now
from silvan.federation import wire
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Blob, Missing, Reply, Request, Trouble, blobs_in

KINDS = [kind for kind, _ in HANDLERS.values()]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def test_all_algorithms_are_covered():
    names = {kind.__name__ for kind in KINDS}
    assert {"Describe", "CountGrid", "CountFine", "GrowLevel", "GrowTrees", "EvaluateModels", "CountByScore"} <= names


@kinds
def test_a_request_declares_who_sees_the_replies(kind):
    assert issubclass(kind, Request)
    assert issubclass(kind.reply, Reply)
    assert kind.verb in ("ask", "total")
    assert kind.kind() == kind.__name__ == next(name for name, (k, _) in HANDLERS.items() if k is kind)


@kinds
def test_messages_are_frozen(kind):
    for struct in (kind, kind.reply):
        assert struct.__struct_config__.frozen
        assert "frozen=True" not in (struct.__doc__ or "")


@kinds
def test_messages_are_typed(kind):
    """No field accepts just anything."""
    for struct in (kind, kind.reply):
        for field in msgspec.structs.fields(struct):
            assert field.type not in (object, dict, list), field.name
            assert not isinstance(field.type, str), field.name


@kinds
def test_only_integer_arrays_are_summed(kind):
    if kind.verb == "total":
        assert all(field.type is np.ndarray for field in msgspec.structs.fields(kind.reply))


@kinds
def test_requests_have_plain_descriptions(kind):
    line = kind.__doc__.split("\n")[0]
    assert line.endswith(".")
    assert "Args" not in line
    if not msgspec.structs.fields(kind):
        assert kind().describe() == line[0].lower() + line[1:-1]


def test_reply_names_are_unique():
    names = [reply.__name__ for reply in {kind.reply for kind in KINDS}]
    assert len(set(names)) == len(names)
    assert not {Missing.__name__, Trouble.__name__} & set(names)


class Nested(msgspec.Struct, frozen=True):
    blob: Blob | None


class Asking(Request, frozen=True, kw_only=True):
    first: Blob
    several: list[Nested]
    named: dict[str, Blob]
    nothing: Blob | None = None
    word: str = "blob"


def test_blobs_are_found_wherever_they_are():
    request = Asking(first=Blob("a"), several=[Nested(Blob("b")), Nested(None)], named={"x": Blob("c"), "y": Blob("a")})
    assert blobs_in(request) == ["a", "b", "c", "a"]
    assert blobs_in(wire.decode(wire.encode(request), Asking)) == ["a", "b", "c", "a"]
