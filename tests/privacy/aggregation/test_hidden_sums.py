"""What ring and masked sums have in common: sums and forests equal those of trusted sums, and checks on the way."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import pytest
from helpers.examples import examples
from helpers.federating import federation_of
from helpers.masked import masked_of, masked_sites
from helpers.runs import fitted, silvan, write_study
from helpers.stores import kept_by
from helpers.studies import Late, Recorded, assert_books, disturbed, envelopes, federate, parts, table, twice
from helpers.summing import Number, Numbers, fields, members, numbers_are_asked, of, ring_of, same
from hypothesis import given
from hypothesis import strategies as st

import silvan as sv
from silvan.errors import FederationError, FormatError, InputError, RefusedError
from silvan.federation.members import OVERALL
from silvan.federation.sums import TrustedSums
from silvan.privacy.aggregation.masked_coordinator import MaskedSums
from silvan.privacy.aggregation.ring import RingSums
from silvan.privacy.gate import Gate
from silvan.privacy.policy import Policy

TABLES = parts(table(n=90), 4)


class Way(NamedTuple):
    """A way of summing."""

    name: str
    of: Callable  # a federation of sites with given parts
    sites: Callable
    sums: Callable
    page: str  # what the report says about it


WAYS = (
    Way("ring", ring_of, members, RingSums, "round a ring"),
    Way("masked", masked_of, masked_sites, MaskedSums, "masks that cancel"),
)


@pytest.fixture(params=WAYS, ids=lambda way: way.name)
def way(request):
    return request.param


@pytest.fixture(autouse=True)
def asked():
    with numbers_are_asked() as calls:
        yield calls


# -- the same sums


@pytest.mark.parametrize("by", WAYS, ids=lambda way: way.name)
@given(st.integers(3, 6).flatmap(lambda n: st.tuples(fields(n), fields(n))), st.booleans(), st.data())
@examples(40)
def test_sums_equal_trusted_sums(by, both, cold, data):
    given_parts = [Numbers(x=x, y=y) for x, y in zip(*both, strict=True)]
    more = {"neighbours": data.draw(st.sampled_from([None, 2, 4]))} if by.name == "masked" else {}
    trusted = federation_of(members(given_parts, secure_sum=None), TrustedSums()).total(Number())
    assert same(by.of(given_parts, cold=cold, **more).total(Number()), trusted)


def outcome(task="binary", **given):
    fed = federate(parts(table(task, n=90), 4), Recorded, test=0.25, **given)
    model = sv.HistogramForest(n_estimators=3, max_depth=3).fit(fed)
    figures = repr(model.evaluate(fed).rows())
    return [model.forest_.hash, figures, fed.schema.to_json(), model.rounds_, fed.agreement_rounds], fed


@cache
def trusted_outcome(task="binary"):
    return outcome(task)[0]


@pytest.mark.parametrize(("task", "cold"), [("binary", True), ("binary", False), ("several", False), ("number", True)])
def test_the_same_forest(way, task, cold):
    got, fed = outcome(task, sums=way.name, cold=cold)
    assert got == trusted_outcome(task)
    assert_books(fed)


@pytest.mark.parametrize("kind", [disturbed(twice), Late], ids=["twice", "late"])
def test_harmless_changes_of_replies(way, kind):
    fed = way.of([of(1), of(20), of(300)], kind)
    assert [fed.total(Number()).x.tolist() for _ in range(2)] == [[321], [321]]
    assert not fed.lost


def test_requests_to_single_sites_and_over_some(way):
    fed = way.of([[of(1), of(2)], [of(10), of(20)], [of(100), of(200)], [of(1000), of(2000)]])
    assert fed.total(Number(which=1)).x.tolist() == [2222]
    assert fed.total(Number(), over=["b", "c", "d"]).x.tolist() == [1110]
    by_site = {name: Number(which=i % 2, apart=True) for i, name in enumerate("abcd")}
    assert fed.total(by_site).x.tolist() == [2121]


def test_a_missing_blob_is_sent(way):
    fed = federate(TABLES, Recorded, sums=way.name)
    learner = sv.HistogramForest(n_estimators=3, max_depth=3)
    first = learner.fit(fed).forest_.hash
    for member in fed.local_sites.values():
        for key in [k for k in kept_by(member) if k.startswith("blob")]:
            del kept_by(member)[key]
    assert learner.fit(fed).forest_.hash == first == learner.fit(federate(TABLES)).forest_.hash
    missing = [envelope for envelope in envelopes(fed, "sent") if envelope.kind == "Missing"]
    assert len(missing) == 2 * 4  # the schema, and the bins
    assert_books(fed)


# -- too few


def test_two_sites(way):
    with pytest.raises(InputError, match=f"fewer than 3 sites, got '{way.name}' and 2: with two, each learns"):
        federate(parts(table(n=60), 2), sums=way.name)


# -- what sites check


def test_a_policy_applies_to_summed_requests(way):
    for policy, text in ((Policy(min_sites=4), "at least 4 sites"), (Policy(messages=["Describe"]), "allow Number")):
        sites = way.sites([of(1), of(2), of(3)], outbox=Gate(policy))
        with pytest.raises(RefusedError, match=text):
            federation_of(sites, way.sums()).total(Number())
    sites = way.sites([of(1), of(2), of(3)], outbox=Gate(Policy(messages=["Number"], min_sites=3)))
    assert federation_of(sites, way.sums()).total(Number()).x.tolist() == [6]


# -- what a coordinator can check


def test_the_sum_is_checked_instead_of_its_parts(way):
    checked = []
    way.of([of(1), of(2), of(3)]).total(Number(), check=lambda site, reply: checked.append((site, reply.x.tolist())))
    assert checked == [(OVERALL, [6])]


def test_an_impossible_sum(way):
    def check(site, reply):
        if reply.x.sum() > 5:
            raise FormatError("its rows are more than there are")

    with pytest.raises(FederationError, match=r"sum for Number is unusable: its rows are .* whose part is at fault"):
        way.of([of(1), of(2), of(3)], quorum=3).total(Number(), check=check)


# -- studies that continue


def test_a_finished_study_sends_nothing(way, tmp_path):
    given = {"sums": way.name, "journal": str(tmp_path / "journal")}
    got, fed = outcome(**given)
    fed.close()
    again, resumed = outcome(**given)
    resumed.close()
    assert again == got == trusted_outcome()
    assert resumed.transport.record == []
    assert resumed.traffic == fed.traffic


# -- from a study file


def study_file(folder, sums):
    folder.mkdir()
    record = fitted(folder, more=f'sums = "{sums}"')
    return record, (folder / "run" / "report.html").read_text()


@pytest.fixture(scope="module")
def trusted_study(tmp_path_factory):
    return study_file(tmp_path_factory.mktemp("study") / "trusted", "trusted")


def test_a_study_file(way, tmp_path, trusted_study):
    (hidden, page), (trusted, plain_page) = study_file(tmp_path / way.name, way.name), trusted_study
    assert [hidden.sums, trusted.sums] == [way.name, "trusted"]
    assert hidden.models[0].hash == trusted.models[0].hash == hidden.pooled_hash
    assert hidden.evaluation == trusted.evaluation
    assert [way.page in text for text in (page, plain_page)] == [True, False]


def test_a_study_file_of_two_sites(way, tmp_path):
    path = write_study(tmp_path, parts(table(n=60), 2), more=f'sums = "{way.name}"')
    result = silvan("fit", path, "--output", tmp_path / "run", ok=False)
    assert result.exit_code != 0
    printed = " ".join((result.output + result.stderr).split())
    assert "study.toml:4: sums must be 'trusted' for fewer than 3 sites" in printed
