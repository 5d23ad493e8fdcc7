"""Some hundred studies with a lying coordinator; ``tests/helpers/fuzz_lies.py`` runs more."""

from dataclasses import replace

import pytest
from helpers import fuzz_lies
from helpers.fuzz_lies import Lies
from helpers.fuzz_wire import CrashError

from silvan.federation.handlers import HANDLERS
from silvan.federation.site import Outbox
from silvan.privacy.aggregation import masked_site
from silvan.privacy.gate import Gate
from silvan.privacy.noise.laplace import Noise


@pytest.fixture(scope="module")
def lies():
    return Lies(seed=1, signed=(False,))


def test_a_coordinator_that_lies(lies):
    lies.start(1)
    seen = lies.run(300).seen
    for what in ("answered", "refused", "format", "counts compared"):
        assert seen[what] > 3, what


def only(lies, *kinds):
    return {kind: lies.by_kind[kind] for kind in kinds}


@pytest.mark.parametrize(
    ("kinds", "fault", "said"),
    [
        (("CountTables", "NoisyLevel"), (Noise, "sensitivity"), "costs"),
        (("AdaptiveLevel",), (fuzz_lies, "SHOWS_VALUES"), "holds the planted number"),
        (("GrowTrees",), (Gate, "check_leaves"), "shows a leaf of"),
        (("CountByScore", "CountGrid"), (Gate, "_check_sequence"), "two forms|summed over|not over every site once"),
        (("CountGrid",), (Gate, "note"), "not in the ledger"),
    ],
)
def test_faults_would_be_noticed(lies, kinds, fault, said, monkeypatch):
    """Shows that the test above can fail: sites with one rule fewer are detected."""
    owner, name = fault
    if owner is Noise:
        compared = fuzz_lies.Lies._compare

        def halved(self, one, counts, two, envelope):
            counts = [(replace(n, sensitivity=max(1, n.sensitivity // 2)), a * 3) for n, a in counts]
            self.noised = [(replace(n, sensitivity=max(1, n.sensitivity // 2)), b * 3) for n, b in self.noised]
            compared(self, one, counts, two, envelope)

        monkeypatch.setattr(fuzz_lies.Lies, "_compare", halved)
    elif owner is fuzz_lies:
        monkeypatch.setattr(fuzz_lies, name, set())
    else:
        monkeypatch.setattr(owner, name, getattr(Outbox, name, lambda *_, **__: NoQuestion()))
    monkeypatch.setattr(lies, "by_kind", only(lies, *kinds))
    lies.start(1)
    with pytest.raises(CrashError, match=said):
        lies.run(2000)


def test_false_rosters_would_be_noticed(lies, monkeypatch):
    """A site that accepts any members of a sum, with any keys."""

    def careless(site, members, *_):
        return next((i for i, member in enumerate(members) if member.site == site.name), 0)

    monkeypatch.setattr(masked_site, "place_of", careless)
    monkeypatch.setattr(masked_site, "_pin", lambda *_: None)
    masked = [i for i in lies.by_kind["CountGrid"] if lies.points[i].envelope.step is not None]
    masked = [i for i in masked if lies.points[i].envelope.step.sums == "masked"]
    monkeypatch.setattr(lies, "by_kind", {"CountGrid": masked})
    lies.start(1)
    with pytest.raises(CrashError, match=r"a key of its own once|not on the roster|over others than its members"):
        lies.run(5000)


class NoQuestion:
    """A request that nobody checks."""

    def __init__(self):
        self.changes = {}

    def still_valid(self):
        return True


def test_every_kind_is_lied_about(lies):
    kinds = {kind for kind, (_, handler) in HANDLERS.items() if handler.__module__.startswith("silvan.")}
    extra = "silvan.algorithms.vertical.encrypted_labels"
    lacking = {kind for kind in kinds - set(lies.by_kind) if HANDLERS[kind][1].__module__ != extra}
    assert (
        lacking <= {"CloseStudy", "CompareLedgers", "DealKey", "TakeKey", "KeepResults"} | lacking_with_gmpy()
    )  # need signatures


def lacking_with_gmpy():
    """Kinds of an extra that is not installed."""
    try:
        import gmpy2  # noqa: F401
    except ImportError:
        return {"SumLabels", "DecideNodes", "SplitChosen", "KeepChosen"}
    return set()
