"""Studies inside a federation that FLARE provisioned: its folders, certificates and jobs in one process, without FLARE.

tests/test_flare_native.py runs real processes.
"""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import polars as pl
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test its jobs")

from helpers.flare_jobs import job_folders
from helpers.joining import make_hub, serving, write_table
from helpers.studies import table
from typer.testing import CliRunner

import silvan as sv
from silvan.cli.main import app
from silvan.deploy.jobs.coordinator_job import Coordinator
from silvan.deploy.jobs.job_folder import job_arguments, job_name, write_study_job
from silvan.deploy.jobs.recipe import StudyRecipe
from silvan.deploy.jobs.site_job import SiteExecutor
from silvan.deploy.membership.certificates import Authority, make_key, make_request, pem
from silvan.deploy.membership.flare_folder import FlareSite
from silvan.deploy.membership.introductions import Credentials, SignedKeys, read_roster
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.service.doctor import examine
from silvan.errors import FederationError, FormatError, InputError
from silvan.federation.chunks import send_in_chunks
from silvan.federation.flare import AbortedError
from silvan.federation.keys import Key
from silvan.federation.outgoing import UnreachedError
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import JOURNAL, Run

SITES = ("north", "south", "west")
SERVER = "server.example.org"
STUDY = """
name = "Heart"
sampling = "published"
test = 0.25
sites = ["north", "south", "west"]
{}
[learner]
kind = "HistogramForest"
n_estimators = 3
max_depth = 3
"""


def study(more=""):
    return parse_remote_study(STUDY.format(more))


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory):
    """FLARE's startup folders of a server and three sites, and of another federation with the same names."""
    folder = tmp_path_factory.mktemp("provisioned")
    for name in ("ours", "theirs"):
        authority = Authority.create(folder / f"{name}.authority", name)
        for who in (SERVER, *SITES):
            write_startup(folder / name / who, who, authority)
    return folder


def write_startup(workspace, name, authority):
    kind = "server" if name == SERVER else "client"
    startup = workspace / "startup"
    startup.mkdir(parents=True)
    (workspace / "local").mkdir()
    hosts = (SERVER,) if kind == "server" else ()
    request = make_request(make_key(startup / f"{kind}.key"), name)
    (startup / f"{kind}.crt").write_bytes(authority.sign(request, name, hosts))
    (startup / "rootCA.pem").write_bytes(pem(authority.certificate))
    if kind == "client":
        (startup / "fed_client.json").write_text(json.dumps({"servers": [{"name": "p", "identity": SERVER}]}))


@dataclass
class Federation:
    """FLARE's folders of all parties, and jobs that run in this process."""

    folder: Path
    away: set = field(default_factory=set)
    left: int | None = None  # the job ends after this many messages
    job: str = "job-1"

    def workspace(self, name):
        return self.folder / name

    def folders(self, name):
        return job_folders(self.workspace(name), name, self.job)

    def state(self, name):
        return self.workspace(name) / "silvan"

    def run(self, plan):
        """Runs a job of a study; returns the folder of its results."""
        arguments = job_arguments(plan, plan.site_names)
        here = [site for site in SITES if site not in self.away]
        servers = {site: SiteExecutor(**arguments).make_server(self.folders(site)) for site in here}
        coordinator = Coordinator(**arguments)
        coordinator.takes_part = lambda site: site in servers
        coordinator.carry = lambda site, data, wait: self.carry(servers, site, data)
        coordinator.work(self.folders(SERVER))
        return Run(self.folders(SERVER).results / "silvan")

    def carry(self, servers, site, data):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise AbortedError("the job is ended")
        if site not in servers:
            raise UnreachedError("it is not there")
        return servers[site].take(data)


@pytest.fixture
def federation(provisioned, tmp_path):
    shutil.copytree(provisioned / "ours", tmp_path / "federation")
    made = Federation(tmp_path / "federation")
    everything = table("binary", n=240)
    for i, site in enumerate(SITES):
        everything[i::3].write_parquet(made.workspace(site) / "rows.parquet")
        settings(made, site)
    return made


def settings(federation, site, text='table = "../rows.parquet"\n[policy]\napprove = false\n'):
    (federation.workspace(site) / "local" / "silvan.toml").write_text(text)


def expected(federation, sites=SITES, plan=None):
    plan = plan or study()
    sources = {site: str(federation.workspace(site) / "rows.parquet") for site in sites}
    fed = sv.federate_rows(sources, test=0.25)
    return sv.HistogramForest(**plan.parameters).fit(fed).forest_.hash


def lines(federation, site):
    """Returns how many lines of a site's ledger are about requests; others are about decisions of its owner."""
    path = federation.state(site) / "ledger.jsonl"
    outcomes = [json.loads(line)["line"]["outcome"] for line in path.read_text().splitlines()] if path.exists() else []
    return len([outcome for outcome in outcomes if outcome != "decided"])


# -- whole studies


def test_a_study_gives_the_forest_of_one_process_in_the_results_of_the_job(federation):
    run = federation.run(study())
    assert sv.Forest.load(run.file("model.silvan")).hash == expected(federation)
    assert run.read().status == "done"
    names = {path.name for path in run.folder.iterdir()}
    files = {"model.silvan", "run.json", "report.html", "evaluation.csv", "progress.json", "study.toml", "roster.json"}
    assert names == files
    assert all(lines(federation, site) for site in SITES)


def test_a_resubmitted_job_resumes_and_then_sends_nothing(federation):
    federation.left = 20
    with pytest.raises(AbortedError):
        federation.run(study())
    [kept] = (federation.state(SERVER) / "runs").glob(f"*/{JOURNAL}")
    federation.left, federation.job = None, "job-2"
    run = federation.run(study())
    assert sv.Forest.load(run.file("model.silvan")).hash == expected(federation)
    assert not kept.exists()
    before = [lines(federation, site) for site in SITES]
    federation.left, federation.job = 0, "job-3"
    again = federation.run(study())  # not one message
    assert again.file("model.silvan").read_bytes() == run.file("model.silvan").read_bytes()
    assert [lines(federation, site) for site in SITES] == before


def test_masked_sums_with_a_secret_sampling_key(federation):
    plan = study('sums = "masked"')
    plan = parse_remote_study(plan.text.replace("published", "secret"))
    assert federation.run(plan).read().status == "done"


def test_an_absent_site_in_a_job(federation):
    """With a quorum the study continues without it, even if the lost site was there at the start."""
    federation.away = {"west"}
    with pytest.raises(FederationError, match="site 'west': was not connected when FLARE started the job"):
        federation.run(study())
    run = federation.run(study("quorum = 2"))
    assert sv.Forest.load(run.file("model.silvan")).hash == expected(federation, ("north", "south"))
    federation.away, federation.left = set(), 20
    plan = study("quorum = 2\nrandom_state = 3")
    with pytest.raises(AbortedError):
        federation.run(plan)
    federation.away, federation.left = {"west"}, None
    assert federation.run(plan).read().status == "done"


def test_a_site_whose_owner_must_approve(federation):
    """The command accepts FLARE's folder of the site, or the one that silvan made in it."""
    settings(federation, "north", 'table = "../rows.parquet"\n[policy]\napprove = true\n')
    plan = study("approval_days = 0.000001")
    with pytest.raises(FederationError, match="its owner has not approved the study yet"):
        federation.run(plan)
    assert lines(federation, "north") == 0
    for folder in (federation.workspace("north"), federation.state("north")):
        shown = CliRunner().invoke(app, ["site", "status", str(folder)]).output
        assert f"Study '{plan.unique_name}': waits for your approval" in " ".join(shown.split())
    made = CliRunner().invoke(app, ["site", "approve", str(federation.workspace("north")), "Heart"])
    assert made.exit_code == 0, made.output
    assert federation.run(plan).read().status == "done"


def test_what_a_site_logs_stays_in_its_folder(federation, caplog):
    """FLARE sends the error logs of jobs to the server unless its settings say otherwise."""
    settings(federation, "west", 'table = "/nowhere/of/this/name.csv"\n')
    with pytest.raises(FederationError, match="site 'west' takes no part: it cannot take part; its owner sees why"):
        federation.run(study())
    assert "/nowhere/of/this/name.csv" in (federation.state("west") / "log.txt").read_text()
    for folder in (federation.workspace("west"), federation.state("west")):
        shown = CliRunner().invoke(app, ["site", "status", str(folder)]).output
        assert "/nowhere/of/this/name.csv" in shown
        assert f"Its own log: {federation.state('west') / 'log.txt'}" in shown
    assert "nowhere" not in caplog.text


def test_a_file_in_another_format(federation):
    """A table with reading options in silvan.toml gives the same forest; site check reads it in the same way."""
    plain = federation.run(study()).read().models
    rows = pl.read_parquet(federation.workspace("west") / "rows.parquet")
    written = federation.workspace("west") / "rows.csv"
    first = rows.columns[0]
    otherwise = rows.rename({first: "otherwise"}).write_csv(separator="|", null_value="gone")
    written.write_text(otherwise.replace(".", ","))
    reading = '[reading]\nseparator = "|"\ndecimal = ","\nmissing = ["gone"]\n'
    reading += f'rename = {{ otherwise = "{first}" }}\n'
    settings(federation, "west", f'table = "../rows.csv"\n{reading}[policy]\napprove = false\n')
    shown = CliRunner().invoke(app, ["site", "check", str(federation.workspace("west"))])
    assert shown.exit_code == 0, shown.output
    assert "Missing" in shown.output
    again = federation.run(replace_name(study(), "Heart again")).read().models
    assert [model.hash for model in again] == [model.hash for model in plain]


def replace_name(plan, name):
    return parse_remote_study(plan.text.replace('"Heart"', f'"{name}"'))


def test_a_site_without_settings_takes_no_part(federation):
    (federation.workspace("west") / "local" / "silvan.toml").unlink()
    with pytest.raises(FederationError, match="site 'west' takes no part: its folder is gone or damaged"):
        federation.run(study())


def test_files_in_a_configured_folder(federation, tmp_path):
    settings(federation, "north", f'table = "../rows.parquet"\nfolder = "{tmp_path}/of-{{site}}"\n')
    (federation.workspace(SERVER) / "local" / "silvan.toml").write_text(f'folder = "{tmp_path}/of-server"\n')
    settings(federation, "south", 'table = "../rows.parquet"\nsimulator = 1\n')
    with pytest.raises(FederationError):
        federation.run(study())
    assert (tmp_path / "of-north" / "site.key").exists()
    assert (tmp_path / "of-server" / "coordinator.key").stat().st_mode & 0o077 == 0
    assert not federation.state("north").exists()


# -- introductions


def credentials(folder, name):
    return Credentials.read(folder / name / "startup", "server" if name == SERVER else "client")


def introductions(folder, plan, keys):
    """All introductions: the coordinator's, then those of the sites."""
    made = [SignedKeys("" if name == SERVER else name, *keys[name]) for name in (SERVER, *SITES)]
    return [credentials(folder, one.name or SERVER).sign(one, plan) for one in made]


@pytest.fixture
def keys():
    return {
        name: (Key.generate().public, Key.generate().public if name != SERVER else b"") for name in (SERVER, *SITES)
    }


def test_introductions_give_the_roster(provisioned, keys):
    plan = study()
    everybody = introductions(provisioned / "ours", plan, keys)
    for name in (SERVER, *SITES):
        roster = read_roster(plan, everybody, credentials(provisioned / "ours", name))
        assert roster.coordinator == keys[SERVER][0]
        assert {site: (roster.sites[site], roster.seals[site]) for site in SITES} == {s: keys[s] for s in SITES}


def as_coordinator(own, ours, theirs, plan):
    """South signs an introduction of the coordinator."""
    return [credentials(ours, "south").sign(SignedKeys("", Key.generate().public), plan), *own[1:]]


def as_another(own, ours, theirs, plan):
    """South signs an introduction of north."""
    forged = credentials(ours, "south").sign(SignedKeys("north", *[Key.generate().public] * 2), plan)
    return [own[0], forged, *own[2:]]


def by_another_root(own, ours, theirs, plan):
    """A certificate in north's name, signed by the root of another federation."""
    forged = credentials(theirs, "north").sign(SignedKeys("north", own[1].key, own[1].seal), plan)
    return [own[0], forged, *own[2:]]


def with_another_seal(own, ours, theirs, plan):
    """The coordinator replaces the key that north's secrets are sealed for with its own."""
    return [own[0], msgspec.structs.replace(own[1], seal=Key.generate().public), *own[2:]]


def of_another_study(own, ours, theirs, plan):
    other = msgspec.structs.replace(plan, text=plan.text + "\n")
    return [own[0], credentials(ours, "north").sign(own[1], other), *own[2:]]


def unsigned(own, ours, theirs, plan):
    return [own[0], SignedKeys("north", own[1].key, own[1].seal), *own[2:]]


def twice(own, ours, theirs, plan):
    return [*own, own[1]]


def without_coordinator(own, ours, theirs, plan):
    return own[1:]


def with_the_same_key(own, ours, theirs, plan):
    """West introduces itself with south's key."""
    return [*own[:3], credentials(ours, "west").sign(SignedKeys("west", own[2].key, own[3].seal), plan)]


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (as_coordinator, "of the coordinator is refused: the certificate is for another name"),
        (as_another, "of site 'north' is refused: the certificate is for another name"),
        (by_another_root, "of site 'north' is refused: .* not of this federation"),
        (with_another_seal, "of site 'north' is not signed by the key of its certificate"),
        (of_another_study, "of site 'north' is not signed by the key of its certificate"),
        (unsigned, "of site 'north' is refused: not a certificate"),
        (twice, "of each site once"),
        (without_coordinator, "of the coordinator"),
        (with_the_same_key, "have one key"),
    ],
)
def test_a_forged_introduction_is_refused(provisioned, keys, forge, why):
    plan, ours = study(), provisioned / "ours"
    forged = forge(introductions(ours, plan, keys), ours, provisioned / "theirs", plan)
    with pytest.raises(FederationError, match=why):
        read_roster(plan, forged, credentials(ours, "west"))


def test_a_site_that_the_study_does_not_name_is_refused(provisioned, keys):
    plan = parse_remote_study(study().text.replace(', "west"', ""))
    with pytest.raises(FederationError, match="site 'west' is introduced, which the study does not name"):
        read_roster(plan, introductions(provisioned / "ours", plan, keys), credentials(provisioned / "ours", "north"))


def test_a_site_with_a_foreign_certificate_takes_no_part(federation, provisioned):
    shutil.rmtree(federation.workspace("west") / "startup")
    shutil.copytree(provisioned / "theirs" / "west" / "startup", federation.workspace("west") / "startup")
    with pytest.raises(FederationError, match="the introduction of site 'west' is refused"):
        federation.run(study())
    assert all(lines(federation, site) == 0 for site in SITES)


def test_keys_stay_the_same_during_a_study(federation):
    """A site refuses a coordinator or other sites with new keys; so does the coordinator."""
    federation.left = 20
    with pytest.raises(AbortedError):
        federation.run(study())
    federation.left = None
    coordinator = federation.state(SERVER) / "coordinator.key"
    kept = coordinator.read_bytes()
    coordinator.unlink()
    with pytest.raises(FederationError, match="takes no part: others take part, or with other keys, than when"):
        federation.run(study())
    coordinator.write_bytes(kept)
    coordinator.chmod(0o600)
    shutil.rmtree(federation.state("west"))
    with pytest.raises(FederationError, match="site 'west' has other keys than when the study began"):
        federation.run(study())


def test_no_message_is_answered_before_the_introductions(federation):
    plan = study()
    server = SiteExecutor(**job_arguments(plan, plan.site_names)).make_server(federation.folders("north"))
    with pytest.raises(FormatError, match="before the introductions"):
        send_in_chunks(server.take, b"a message", "ask")


def test_the_simulator_has_no_certificates(federation):
    """Names are not checked there, which only a site's own settings can say."""
    for site in SITES:
        shutil.rmtree(federation.workspace(site) / "startup")
    (federation.workspace(SERVER) / "local" / "silvan.toml").write_text("simulator = true\n")
    with pytest.raises(FederationError, match="site 'north' takes no part"):
        federation.run(study())
    for site in SITES:
        settings(federation, site, 'table = "../../{site}/rows.parquet"\nsimulator = true\n[policy]\napprove = false\n')
    run = federation.run(study())
    assert sv.Forest.load(run.file("model.silvan")).hash == expected(federation)


def test_a_joined_site_never_uses_flares_trust(tmp_path, federation):
    """A job cannot choose how a site knows the others: after silvan's own joining, the keys of joining apply."""
    hub = make_hub(tmp_path, ("north",))
    with serving(hub):
        member = JoinedSite.join(tmp_path / "joined", hub.invite("north"), write_table(tmp_path), None, {})
    kit = member.path / "kit"
    (kit / "local" / "silvan.toml").write_text(f"table = '{tmp_path}/table.csv'\n[policy]\napprove = false\n")
    plan = study()
    SiteExecutor(**job_arguments(plan, plan.site_names)).make_server(job_folders(kit, "north"))
    assert [one.unique_name for one in member.studies()] == [plan.unique_name]
    assert not (kit / "silvan").exists()


# -- jobs and recipes


def test_the_folder_of_a_job(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(study().text)
    made = CliRunner().invoke(app, ["study", "job", str(path), "-o", str(tmp_path / "job")])
    assert made.exit_code == 0, made.output
    assert job_name(study()) in made.output
    meta = json.loads((tmp_path / "job" / "meta.json").read_text())
    assert (meta["name"], meta["min_clients"], meta["mandatory_clients"]) == (job_name(study()), 3, list(SITES))
    config = {
        side: json.loads((tmp_path / f"job/app/config/config_fed_{side}.json").read_text())
        for side in ("server", "client")
    }
    assert config["server"]["workflows"][0]["path"] == "silvan.deploy.jobs.Coordinator"
    assert config["client"]["executors"][0]["executor"]["path"] == "silvan.deploy.jobs.SiteExecutor"
    assert config["client"]["executors"][0]["executor"]["args"]["study"] == study().text
    with pytest.raises(InputError, match="not empty"):
        write_study_job(study(), tmp_path / "job")
    write_study_job(study("quorum = 2"), tmp_path / "quorum")
    meta = json.loads((tmp_path / "quorum" / "meta.json").read_text())
    assert (meta["min_clients"], meta["mandatory_clients"]) == (2, [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("name = 'a'\n", "sites is missing"),
        ("name = 'a'\nsites = ['a', 'b']\nquorum = 3\n", "quorum must be at most"),
        ("name = 'a'\nsites = ['a', 'b']\nsums = 'masked'\n", "masked sums take at least"),
    ],
)
def test_a_study_unsuitable_for_a_job(tmp_path, text, why):
    with pytest.raises(InputError, match=why):
        write_study_job(parse_remote_study(text), tmp_path / "job")


@pytest.mark.parametrize("name", ["Herz & Kreislauf", "ärzte", "--", "_x"])
def test_job_names_are_valid_in_flare(name):
    plan = parse_remote_study(f"name = '{name}'\n")
    assert job_name(plan).endswith(plan.digest[:12])
    assert job_name(plan)[0].isalnum()
    assert job_name(plan).isascii()


def test_a_recipe_makes_the_same_job_and_ships_no_code(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(study().text)
    StudyRecipe(path).export(str(tmp_path / "jobs"))
    job = tmp_path / "jobs" / job_name(study())
    meta = json.loads((job / "meta.json").read_text())
    assert (meta["name"], meta["min_clients"], meta["mandatory_clients"]) == (job_name(study()), 3, list(SITES))
    assert not list(job.rglob("*.py"))
    [server] = job.rglob("config_fed_server.json")
    [workflow] = json.loads(server.read_text())["workflows"]
    assert workflow["path"] == "silvan.deploy.jobs.Coordinator"
    assert workflow["args"]["study"] == study().text
    assert len(list(job.rglob("config_fed_client.json"))) == len(SITES)


def test_a_folder_without_a_site(tmp_path):
    shown = CliRunner().invoke(app, ["site", "status", str(tmp_path)])
    assert "no site here" in shown.output
    with pytest.raises(InputError, match="it names the site's table"):
        FlareSite(tmp_path, "north")


# -- care of FLARE's folders


def examined(folder):
    return {check.what: check for check in examine(folder)}


def test_doctor_knows_flares_folders(federation):
    """The allow list is easily forgotten; keys that others can read and certificates are checked as anywhere."""
    north, server = federation.workspace("north"), federation.workspace(SERVER)
    assert "no resources.json" in examined(north)["allow list"].text
    for folder in (north, server):
        (folder / "local" / "resources.json.default").write_text('{"class_allow_list": ["nvflare."]}')
        found = examined(folder)
        assert found["allow list"].state == "bad"
        assert 'add "silvan.deploy.jobs." to class_allow_list' in found["allow list"].text
        (folder / "local" / "resources.json").write_text('{"class_allow_list": ["nvflare.", "silvan.deploy.jobs."]}')
    assert examined(north)["files"].text == "no study has been here yet"
    federation.run(study())
    for folder in (north, north / "silvan", server):
        assert {check.what for check in examine(folder) if check.state == "bad"} <= {"versions"}
    assert "rows.parquet" in examined(north)["table"].text
    assert "know of the same answers" in examined(north)["files"].text
    for folder, key in ((north, north / "silvan" / "site.key"), (server, server / "silvan" / "coordinator.key")):
        key.chmod(0o644)
        assert f"others on this machine can read {key}" in examined(folder)["permissions"].text
        key.chmod(0o600)
    settings(federation, "north", "table = 3")
    assert examined(north)["table"].state == "bad"
    assert CliRunner().invoke(app, ["doctor", str(north)]).exit_code == 1


def test_flares_folders_are_copied(federation, tmp_path):
    """silvan's files are copied with the settings; a site that continues from the copy asks its owner first."""
    federation.run(study())
    north, server = federation.workspace("north"), federation.workspace(SERVER)
    (north / "pid.fl").write_text(str(os.getppid()))
    refused = CliRunner().invoke(app, ["site", "backup", str(north), str(tmp_path / "no")])
    assert "FLARE's client is running" in " ".join(refused.output.split())
    (north / "pid.fl").unlink()
    assert CliRunner().invoke(app, ["site", "backup", str(north), str(tmp_path / "site")]).exit_code == 0
    assert CliRunner().invoke(app, ["study", "backup", str(tmp_path / "hub"), "--in", str(server)]).exit_code == 0
    assert {path.name for path in (tmp_path / "hub").iterdir()} >= {"coordinator.key", "runs"}
    names = {path.name for path in (tmp_path / "site").iterdir()}
    assert names >= {"silvan.toml", "site.key", "ledger.jsonl", "store.sqlite", "rosters"}
    shutil.rmtree(north / "silvan")
    (tmp_path / "site").replace(north / "silvan")
    assert "backup" in examined(north)["files"].text
    with pytest.raises(FederationError, match="owner"):
        federation.run(study("# again"))
    CliRunner().invoke(app, ["site", "restored", str(north), "--accept"])
    assert examined(north)["files"].state == "good"
    federation.job = "job-2"
    assert federation.run(study("# again")).read().status == "done"
