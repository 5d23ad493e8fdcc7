"""Lies in one field of one message: values of the same type on the wire, and of others."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import msgspec
import numpy as np
from helpers.studies import disturbed

from silvan.errors import SilvanError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Envelope
from silvan.federation.outgoing import Asked
from silvan.federation.transport import InProcess

Study = Callable[[type[InProcess]], object]


def opened(data: bytes) -> tuple[Envelope, dict[str, Any]]:
    envelope = wire.decode(data, Envelope)
    return envelope, msgspec.msgpack.decode(envelope.body, ext_hook=lambda code, d: wire.unpack_array(d))


def lies_about(value: Any) -> Iterator[Any]:
    """Values of the same type on the wire, and of others."""
    if isinstance(value, np.ndarray):
        yield from (value[:0], value[:-1], value[None] if value.ndim < 4 else value[0], value.reshape(-1))
        yield np.zeros((), value.dtype)
        yield from (np.zeros((0,) * value.ndim, value.dtype), np.concatenate([value, value]), value[::-1] * 3)
        with np.errstate(invalid="ignore"):
            others = value.astype(np.float32), value.astype(np.int8), value != 0
        yield from others
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


def replies_in(*modules: str) -> list[str]:
    """Kinds of replies to the messages of some modules; every module must have some."""
    found = {(handler.__module__, kind.reply.__name__) for kind, handler in HANDLERS.values()}
    assert set(modules) <= {module for module, _ in found}
    return sorted({reply for module, reply in found if module in modules})


def first_replies(study: Study) -> dict[str, dict[str, Any]]:
    """The first reply of each kind in a study, opened."""
    return {kind: inside for kind, (inside, _, _) in _first_answers(study, None).items()}


Answered = tuple[dict[str, Any], Asked, Envelope]


def _first_answers(study: Study, site: str | None) -> dict[str, Answered]:
    """The first reply of each kind, of one site or any: opened, with its request."""
    seen: dict[str, Answered] = {}
    requests: list[Asked] = []
    exchange = Federation.exchange

    def noted(self: Federation, question: Asked) -> Any:
        requests.append(question)
        return exchange(self, question)

    class Listening(InProcess):
        def deliver(
            self, messages: dict[str, bytes], verb: str, timeout: float | None
        ) -> Iterator[tuple[str, bytes | Exception]]:
            for name, data in super().deliver(messages, verb, timeout):
                if site in (None, name):
                    envelope, inside = opened(data)
                    seen.setdefault(envelope.kind, (inside, requests[-1], envelope))
                yield name, data

    with mock.patch.object(Federation, "exchange", noted):
        study(Listening)
    return seen


def caught_lies(study: Study, kind: str, liar: str = "site 1") -> list[SilvanError]:
    """Makes a site lie in every field of a kind of reply; returns the errors. Any other exception passes through.

    A lie that is refused when it is read ends a study immediately, so a whole study is run only for those that pass.
    """
    caught: list[SilvanError] = []
    reply, question, envelope = _first_answers(study, liar)[kind]
    for name, value in reply.items():
        for lie in lies_about(value):
            changed = wire.encode(msgspec.structs.replace(envelope, body=wire.encode({**reply, name: lie})))
            outcome = question.read(liar, changed)
            if isinstance(outcome, SilvanError):
                caught.append(outcome)
                continue

            def twist(site: str, data: bytes, name: str = name, lie: Any = lie) -> list[tuple[str, bytes]]:
                envelope, inside = opened(data)
                if site == liar and envelope.kind == kind:
                    body = wire.encode({**inside, name: lie})
                    data = wire.encode(msgspec.structs.replace(envelope, body=body))
                return [(site, data)]

            try:
                study(disturbed(twist))
            except SilvanError as error:
                caught.append(error)
    return caught


def answers_to_lies(federation: Federation, record: list[tuple[str, str, bytes]], site: str = "site 1") -> list[str]:
    """Lies to a site in every field of all its requests; returns its replies: kinds, or error codes."""
    member, answers = federation.site(site), []
    member.outbox = None  # it allows no variants; what kernels rely on is checked anyway
    for data in [data for name, way, data in record if name == site and way == "received"]:
        envelope, inside = opened(data)
        verb = HANDLERS[envelope.kind][0].verb
        truth = member.receive(data, verb)
        for name, value in inside.items():
            for lie in lies_about(value):
                body = wire.encode({**inside, name: lie})
                bad = wire.encode(msgspec.structs.replace(envelope, body=body))
                answer = wire.decode(member.receive(bad, verb), Envelope)
                answers.append(opened(wire.encode(answer))[1]["code"] if answer.kind == "Trouble" else answer.kind)
        assert member.receive(data, verb) == truth  # nothing of a lie stays
    return answers
