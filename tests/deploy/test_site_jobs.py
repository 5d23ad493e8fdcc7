"""A site's side of a job, without FLARE's processes: who replies, when, and what the coordinator learns."""

import json
from importlib.metadata import version

import polars as pl
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from helpers.flare_jobs import job_folders
from helpers.joining import make_hub, serving, write_table
from typer.testing import CliRunner

from silvan.cli.main import app
from silvan.deploy.jobs.site_job import SiteExecutor
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.studies.explain import approve_study
from silvan.deploy.studies.study_table import remember_table
from silvan.errors import FederationError, SiteError
from silvan.federate.options import make_sums
from silvan.federation.describe import Describe
from silvan.federation.federation import Federation
from silvan.federation.flare import FlareTransport
from silvan.federation.keys import COORDINATOR
from silvan.federation.signed import Signer
from silvan.privacy.site_folder import APPROVALS
from silvan.study.parse import parse_remote_study

SITES = ["north", "south"]


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A federation of which north's owner must approve studies."""
    folder = tmp_path_factory.mktemp("joined")
    hub = make_hub(folder)
    with serving(hub):
        tables = {site: write_table(folder, f"{site}.csv") for site in SITES}
        members = [
            JoinedSite.join(folder / site, hub.invite(site), tables[site], None, {"approve": site == "north"})
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
    return Federation(transport, SITES, sums, study=study.unique_name, signer=signer, **given)


@pytest.fixture
def study(request):
    return parse_remote_study(f'name = "{request.node.name}"\nsampling = "published"\n[learner]\n')


def test_an_owner_who_declines(joined, study):
    """The coordinator reads the owner's words; with a quorum the study continues; an approval reverts the refusal."""
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


def test_a_table_changed_during_the_wait(joined, study):
    """The rows at the time of approval count; the waiting job then reads them."""
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


def test_the_owner_learns_why(joined, study):
    """Others learn that a site takes no part; its log and ``site status`` say why, and where the log is."""
    member = JoinedSite(joined[1]["south"].path)
    before = (member.path / "site.toml").read_text()
    (member.path / "site.toml").write_text(before.replace(".csv", ".gone.csv"))
    try:
        with pytest.raises(FederationError, match="it cannot take part; its owner sees why") as told:
            federate(joined, study).ask(Describe())
        assert ".gone" not in str(told.value)
    finally:
        (member.path / "site.toml").write_text(before)
    shown = CliRunner().invoke(app, ["site", "status", str(member.path)]).output
    assert "Last error, at 20" in shown
    assert f"in study {study.unique_name!r}" in " ".join(shown.split())
    assert ".gone.csv" in shown
    assert f"Its own log: {member.path / 'log.txt'}" in shown
    assert ".gone.csv" in (member.path / "log.txt").read_text()
    as_data = json.loads(CliRunner().invoke(app, ["site", "status", str(member.path), "--json"]).stdout)
    assert as_data["last_error"]["study"] == study.unique_name


def test_approvals_that_cannot_be_read(joined, study):
    """The site takes no part and gives no reason; its own log does."""
    path = joined[1]["north"].path / APPROVALS
    before = path.read_bytes() if path.exists() else b"[]"
    path.write_text("nonsense")
    try:
        with pytest.raises(FederationError, match="takes no part: it cannot take part; its owner sees why"):
            federate(joined, study).ask(Describe())
    finally:
        path.write_bytes(before)


def test_site_check_shows_the_owners_table_as_a_study_would_read_it(joined, tmp_path):
    """The file's format is detected or read from site.toml; the study's label, kinds and exclude apply."""
    member = JoinedSite(joined[1]["south"].path)
    before = (member.path / "site.toml").read_text()
    rows = "".join(f"{i % 40 + 20},5;00{i % 7 + 1};{'ja' if i % 3 else 'nein'};P{i};{i % 2}\n" for i in range(60))
    path = tmp_path / "german.csv"
    path.write_bytes(("größe;station;raucher;patient;tot\n" + rows).encode("latin-1"))
    (member.path / "site.toml").write_text(f'table = "{path}"\n[policy]\napprove = false\n')
    try:
        result = CliRunner().invoke(app, ["site", "check", str(member.path), "--label", "tot"])
        assert result.exit_code == 0, result.output
        shown = " ".join(result.output.split())
        assert "The file of south is separated by semicolons, with decimal commas, encoded as Windows-1252." in shown
        assert "leading zeros are lost in 60 rows, since 0012 is read as 12" in shown
        assert "patient at south: every value occurs once" in shown
        text = 'name = "later"\nlabel = "tot"\nexclude = ["patient"]\n[kinds]\nstation = "categorical"\n'
        plan = parse_remote_study(text + '[learner]\nkind = "HistogramForest"\n')
        JoinedSite(member.path).note_study(plan)
        for more in ([], [plan.unique_name], [plan.digest[:12]]):
            result = CliRunner().invoke(app, ["site", "check", str(member.path), *more])
            assert "For the study 'later', which predicts 'tot':" in result.output, result.output
            assert "patient" not in result.output
            assert "leading zeros" not in result.output
        reading = '[reading]\nseparator = ";"\ndecimal = ","\nencoding = "latin-1"\nmissing = ["nein"]\n'
        (member.path / "site.toml").write_text(f'table = "{path}"\n{reading}[policy]\napprove = false\n')
        found = json.loads(CliRunner().invoke(app, ["site", "check", str(member.path), "--json"]).stdout)
        assert found["files"] == {}  # nothing had to be detected
        columns = {column["name"]: column for column in found["columns"]["south"]}
        assert columns["größe"]["kind"] == "numeric"
        assert columns["raucher"]["missing"] == 20
    finally:
        (member.path / "site.toml").write_text(before)
        for file in (member.path / "asked").glob("*"):
            file.unlink()
