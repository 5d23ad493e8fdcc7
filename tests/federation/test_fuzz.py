"""Some thousand mutated messages; ``python tests/fuzz_wire.py --n 1000000`` throws more."""

from importlib.util import find_spec

import pytest
from helpers.fuzz_wire import CrashError, Fuzzer

from silvan.federation import signed
from silvan.federation.message import Envelope
from silvan.federation.site import HANDLERS


@pytest.fixture(scope="module")
def fuzzer():
    return Fuzzer(seed=1)


def test_every_kind_is_thrown(fuzzer):
    """But those of extras that are not installed."""
    kinds = {kind for kind, (_, handler) in HANDLERS.items() if handler.__module__.startswith("silvan.")}
    if find_spec("gmpy2") is None:
        kinds -= {"EncryptLabels", "SumLabels", "DecideNodes", "SplitChosen", "KeepChosen", "LookUp"}
    assert kinds - set(fuzzer.messages) == set()


def test_mutated_messages(fuzzer):
    fuzzer.run(3000)
    seen = fuzzer.seen
    for what in (
        "site: refused",
        "site: format",
        "coordinator: refused",
        "coordinator: forgery ignored",
        "reader: read",
    ):
        assert seen[what] > 0, what  # a reader takes about one in 500 mutated files


def test_a_forgery_would_be_noticed(fuzzer, monkeypatch):
    """The test above, tested: without a look at signatures it fails."""
    monkeypatch.setattr(signed, "is_signed", lambda *_: True)
    monkeypatch.setattr(signed.hmac, "compare_digest", lambda *_: True)
    with pytest.raises(CrashError, match="took a forged"):
        fuzzer.run(5000)


def test_something_that_raises_would_be_noticed(fuzzer, monkeypatch):
    monkeypatch.setattr("silvan.federation.site._trouble", lambda error: Envelope("", "", "", "", b""))
    with pytest.raises(Exception):  # noqa: B017, PT011
        fuzzer.run(3000)
