"""Some thousand mutated messages; ``python tests/fuzz_wire.py --n 1000000`` runs more."""

from importlib.util import find_spec

import pytest
from helpers import randomness
from helpers.fuzz_wire import CrashError, Fuzzer, repeatable
from helpers.studies import Recorded, federate, parts, table

import silvan as sv
from silvan.federation import signed
from silvan.federation.handlers import HANDLERS
from silvan.federation.message import Envelope


@pytest.fixture(scope="module")
def fuzzer():
    return Fuzzer(seed=1)


def test_every_kind_is_mutated(fuzzer):
    """Without those of extras that are not installed."""
    kinds = {kind for kind, (_, handler) in HANDLERS.items() if handler.__module__.startswith("silvan.")}
    if find_spec("gmpy2") is None:
        kinds -= {"EncryptLabels", "SumLabels", "DecideNodes", "SplitChosen", "KeepChosen"}
    assert kinds - set(fuzzer.messages) == set()


def test_mutated_messages(fuzzer):
    fuzzer.start(1)
    fuzzer.run(3000)
    for _ in range(1500):  # a reader takes one in forty
        fuzzer.to_reader()
    seen = fuzzer.seen
    for what in (
        "site: refused",
        "site: format",
        "coordinator: refused",
        "coordinator: forgery ignored",
        "reader: read",
    ):
        assert seen[what] > 20, what


def test_the_messages_are_the_same_in_every_run():
    """Keys, nonces, noise and times come from seeds, so findings can be repeated."""

    def messages():
        randomness.begin("the same")
        with repeatable():
            fed = federate(parts(table(n=30), 3), Recorded, sums="masked", signed=True)
            sv.HistogramForest(1, max_depth=1).fit(fed)
        return fed.transport.record

    assert messages() == messages()


def test_a_forgery_would_be_noticed(fuzzer, monkeypatch):
    """Shows that the test above can fail: without checking signatures it does."""
    monkeypatch.setattr(signed, "is_signed", lambda *_: True)
    monkeypatch.setattr(signed.hmac, "compare_digest", lambda *_: True)
    with pytest.raises(CrashError, match="took a forged"):
        fuzzer.run(5000)


def test_exceptions_would_be_noticed(fuzzer, monkeypatch):
    monkeypatch.setattr("silvan.federation.site._trouble", lambda error: Envelope("", "", "", "", b""))
    with pytest.raises(Exception):  # noqa: B017, PT011
        fuzzer.run(3000)
