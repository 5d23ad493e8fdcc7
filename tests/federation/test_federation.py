"""The coordinator's two verbs: failing sites and quorum, records, events."""

import numpy as np
import pytest
from helpers.studies import Recorded, assert_books, disturbed, federate, from_reply, parts, table

import silvan as sv
from silvan.algorithms.shared_bins import GridCounts
from silvan.errors import FederationError, InputError, RefusedError, SiteError
from silvan.federation import wire
from silvan.federation.describe import CategoryCounts, CountRows, Size
from silvan.federation.message import Envelope
from silvan.federation.outgoing import Asked
from silvan.federation.sums import TrustedSums, add

TABLES = parts(table(n=90), 3)
AGREED = 9  # replies of the agreement: three kinds, three sites


def fit(fed):
    return sv.HistogramForest(n_estimators=3, max_depth=3).fit(fed).forest_


def whole():
    return fit(federate(TABLES)).hash


# -- silence


def silent(*names):
    return disturbed(from_reply(AGREED, lambda site, data: [] if site in names else [(site, data)]))


@pytest.mark.parametrize(
    ("sites", "quorum", "error", "said"),
    [
        (("site 1", "site 2"), None, SiteError, ("site 'site 1': did not answer CountGrid",)),
        (
            ("site 0", "site 1"),
            2,
            FederationError,
            ("1 of 3 sites is left at CountGrid, the quorum is 2", "'site 0': did not answer", "'site 1': did not"),
        ),
        (tuple(TABLES), 1, FederationError, ("0 of 3 sites are left",)),
    ],
)
def test_a_study_ends_when_too_few_sites_reply(sites, quorum, error, said):
    with pytest.raises(error) as caught:
        fit(federate(TABLES, silent(*sites), quorum=quorum))
    assert all(words in str(caught.value) for words in said)


def test_an_engine_that_reports_a_failure():
    broken = disturbed(from_reply(AGREED, lambda site, data: [(site, ConnectionError("cut"))]))
    with pytest.raises(ConnectionError, match="cut"):
        fit(federate(TABLES, broken))
    fed = federate(
        TABLES, disturbed(from_reply(AGREED + 2, lambda site, data: [(site, ConnectionError("cut"))])), quorum=1
    )
    with pytest.raises(FederationError, match="cut"):
        fit(fed)


def test_a_refusal_ends_the_study_with_or_without_a_quorum():
    policy = sv.Policy(messages=["Describe", "CountCategories", "NameCategories"])
    for quorum in (None, 1):
        with pytest.raises(RefusedError, match="site 'site 0' refused CountGrid: the site's policy does not allow"):
            fit(federate(TABLES, policy=policy, quorum=quorum))


def test_sums_over_too_few_sites_are_refused():
    policy = sv.Policy(min_sites=3)
    assert fit(federate(TABLES, policy=policy)).hash == whole()
    with pytest.raises(RefusedError, match="at least 3 sites"):
        federate(parts(table(), 2), policy=policy)


# -- books


def test_every_byte_is_counted():
    fed = federate(TABLES, Recorded, test=0.2)
    assert_books(fed)
    model = sv.HistogramForest(n_estimators=3, max_depth=3).fit(fed)
    before = fed.bytes
    assert_books(fed)
    model.evaluate(fed)
    sv.MergedForest(n_estimators=3).fit(fed)
    assert_books(fed)
    assert fed.bytes != before
    assert all(model.bytes_[site]["sent"] > 0 < model.bytes_[site]["received"] for site in fed.sites)


def test_message_kinds_are_counted_separately():
    fed = federate(TABLES, Recorded)
    fit(fed)
    for (site, way, kind), n in fed.traffic.items():
        requests = {
            wire.decode(d, Envelope).question
            for _, w, d in fed.transport.record
            if kind == wire.decode(d, Envelope).kind
        }
        moved = [
            len(d)
            for s, w, d in fed.transport.record
            if (s, w) == (site, way) and wire.decode(d, Envelope).question in requests
        ]
        assert sum(moved) == n > 0


def test_rounds_and_agreement_are_counted_separately():
    fed = federate(TABLES)
    assert (fed.rounds, fed.agreement_rounds) == (0, 3)
    fit(fed)
    assert fed.rounds == fed.exchanges - 3 == 2 + 3


def test_events():
    fed = federate(TABLES)
    seen = []
    fed.watch(seen.append)
    fit(fed)
    kinds = ["CountGrid", "CountFine", "GrowLevel", "GrowLevel", "GrowLevel"]
    for what in ("question", "answer"):
        replies = [(e.kind, e.round, e.site) for e in seen if e.what == what]
        assert replies == [(kind, i + 1, site) for i, kind in enumerate(kinds) for site in fed.sites]
    assert all(e.seconds >= 0 for e in seen)


# -- asking


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"quorum": 0}, "quorum must be between 1 and 3, got 0"),
        ({"quorum": 4}, "quorum must be between 1 and 3, got 4"),
        ({"timeout": 0}, "timeout must be above 0"),
        ({"timeout": float("nan")}, "timeout must be above 0"),
    ],
)
def test_invalid_federation_settings(settings, text):
    with pytest.raises(InputError, match=text):
        federate(TABLES, **settings)


def test_invalid_requests():
    fed = federate(TABLES)
    with pytest.raises(InputError, match="no site 'mars'"):
        fed.ask(CountRows(), to=["mars"])
    with pytest.raises(FederationError, match="for 'ask', not for 'total'"):
        fed.total(CountRows())
    with pytest.raises(FederationError, match="no site left"):
        fed.ask(CountRows(), to=[])
    assert list(fed.ask(CountRows(), to=["site 2", "site 0"])) == ["site 0", "site 2"]


def test_only_integer_arrays_are_added():
    def counts(*values, dtype=np.int32):
        return CategoryCounts(counts=np.array(values, dtype), proof=np.zeros(0, np.int64))

    assert add(counts(1, 2), counts(3, 4), "a", ["b"]).counts.tolist() == [4, 6]
    for other in (counts(1), counts(1, 2, dtype=np.int64)):
        with pytest.raises(SiteError, match=r"site 'a'.*another shape"):
            add(counts(1, 2), other, "a", ["b"])
    for wrong in (Size(rows=3), counts(1.5, dtype=np.float64)):
        with pytest.raises(FederationError, match="cannot be summed"):
            add(wrong, wrong, "a", ["b"])


def test_counters_are_added_as_they_were_sent():
    """Into a wide sum, up to its capacity; only counters of its type."""

    def sent(*values, dtype=np.int32):
        return wire.decode(wire.encode(GridCounts(cells=np.array(values, dtype), label=none)), GridCounts, narrow=True)

    none = np.zeros(0, np.int64)
    total = GridCounts(cells=np.array([300, 2**31 - 256], np.int32), label=none)
    total = add(total, sent(255, 0), "a", ["b"])
    total = add(total, sent(1, 255), "a", ["b"])
    assert total.cells.dtype == np.int32
    assert total.cells.tolist() == [556, 2**31 - 1]
    with pytest.raises(SiteError, match="too large to be added"):
        add(total, sent(0, 1), "a", ["b"])
    for other in (sent(1, 2, dtype=np.uint8), sent(1, 2, dtype=np.int64), sent(1, 2, dtype=np.uint32)):
        with pytest.raises(SiteError, match="another shape"):
            add(total, other, "a", ["b"])


def test_a_sum_of_nothing():
    with pytest.raises(FederationError, match="no site answered CountRows"):
        TrustedSums().total(federate(TABLES), Asked("q", CountRows, {}))


@pytest.mark.parametrize(("sums", "n", "needed"), [("masked", 3, 3), ("masked", 9, 6), ("ring", 5, 3)])
def test_a_quorum_too_small_for_any_sum(sums, n, needed):
    tables = parts(table(n=20 * n), n)
    with pytest.raises(InputError, match=f"quorum must be at least {needed}: {sums} sums over {n} sites"):
        sv.federate_rows(tables, sums=sums, quorum=needed - 1)
    assert sv.federate_rows(tables, sums=sums, quorum=needed).quorum == needed
