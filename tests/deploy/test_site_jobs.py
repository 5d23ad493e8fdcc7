"""A site's side of a job, without FLARE's processes: who answers, when, and what the coordinator is told."""

from importlib.metadata import version

import polars as pl
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from helpers.flare_jobs import job_folders
from helpers.joining import make_hub, serving, write_table

from silvan.deploy.explain import approve_study
from silvan.deploy.jobs.site_job import SiteExecutor
from silvan.deploy.member import Member
from silvan.deploy.study_table import remember_table
from silvan.errors import FederationError, SiteError
from silvan.federate.options import make_sums
from silvan.federation.agreement.describe import Describe
from silvan.federation.federation import Federation
from silvan.federation.keys import COORDINATOR
from silvan.federation.signed import Signer
from silvan.federation.transports.flare import FlareTransport
from silvan.privacy.gate.site_folder import APPROVALS
from silvan.study.remote_study import parse_remote_study

SITES = ["north", "south"]


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A federation of which north's owner must approve studies."""
    folder = tmp_path_factory.mktemp("joined")
    hub = make_hub(folder)
    with serving(hub):
        tables = {site: write_table(folder, f"{site}.csv") for site in SITES}
        members = [
            Member.join(folder / site, hub.invite(site), tables[site], None, {"approve": site == "north"})
            for site in SITES
        ]
        for member in members:
            member.pin_roster()
    return hub, dict(zip(SITES, members, strict=True))


class Wires:
    """Carries messages as a job's controller does, to sites in this process."""

    def __init__(self, members, study, sites=SITES):
        executors = {site: SiteExecutor(study.text, sites, {}, version("silvan")) for site in members}
        self.servers = {
            site: made.make_server(job_folders(members[site].path / "kit")) for site, made in executors.items()
        }

    def carry(self, site, data, wait):
        return self.servers[site].take(data)

    def pause(self, seconds):
        pass


def federate(joined, study, quorum=None, patience=0.0, sites=SITES):
    hub, members = joined
    transport = FlareTransport(Wires({site: members[site] for site in SITES}, study, sites), SITES, {})
    signer = Signer(COORDINATOR, hub.key, hub.roster())
    sums, _ = make_sums("trusted")
    given = {"quorum": quorum, "patience": patience, "timeout": 10.0}
    return Federation(transport, SITES, sums, study=study.id, signer=signer, **given)


@pytest.fixture
def study(request):
    return parse_remote_study(f'name = "{request.node.name}"\nsampling = "published"\n[learner]\n')


def test_an_owner_who_declines(joined, study):
    """The coordinator reads the owner's words; with a quorum the study goes on; an approval takes it back."""
    north = joined[1]["north"]
    fed = federate(joined, study)
    with pytest.raises(SiteError, match="its owner has not approved the study yet"):
        fed.ask(Describe())
    north.decline(study, "not before the ethics board meets")
    said = "site 'north': its owner declined the study: not before the ethics board meets"
    with pytest.raises(SiteError, match=said):
        federate(joined, study).ask(Describe())
    fed = federate(joined, study, quorum=1)
    assert list(fed.ask(Describe())) == ["south"]
    assert fed.lost == {"north": said}
    approve_study(north, study)
    assert list(federate(joined, study).ask(Describe())) == SITES


def test_a_table_that_changes_while_a_study_waits(joined, study):
    """What counts are the rows that were there when the owner approved; the job that waited reads them then."""
    north = joined[1]["north"]
    fed = federate(joined, study)
    with pytest.raises(SiteError, match="has not approved"):
        fed.ask(Describe())
    path = north.settings["table"]
    pl.DataFrame({"age": [1, 2, 3], "label": [0, 1, 1]}).write_csv(path)
    approve_study(north, study)
    remember_table(north, study)
    again = federate(joined, study)
    pl.DataFrame({"age": [1, 2, 4], "label": [0, 1, 1]}).write_csv(path)
    with pytest.raises(FederationError, match="its table has changed since its owner approved the study"):
        again.ask(Describe())
    pl.DataFrame({"age": [1, 2, 3], "label": [0, 1, 1]}).write_csv(path)
    assert list(federate(joined, study).ask(Describe())) == SITES


def test_a_study_over_sites_whose_keys_were_not_accepted(joined, study):
    with pytest.raises(FederationError, match="it does not have the keys of west; its owner compares and accepts"):
        federate(joined, study, sites=[*SITES, "west"]).ask(Describe())


def test_approvals_that_cannot_be_read(joined, study):
    """The site takes no part and says no more; its own log does."""
    path = joined[1]["north"].path / APPROVALS
    before = path.read_bytes() if path.exists() else b"[]"
    path.write_text("nonsense")
    try:
        with pytest.raises(FederationError, match="takes no part: it cannot take part; its own log says why"):
            federate(joined, study).ask(Describe())
    finally:
        path.write_bytes(before)
