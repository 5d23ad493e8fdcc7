"""Real sites: three processes with mutual TLS on loopback, killed and started again, one of them with a database.

A federation is made once for all tests here; a study takes some ten seconds, most of which FLARE needs to start a job.
"""

import os
import socket
import ssl
import subprocess
import sys
import threading
import time

import msgspec
import polars as pl
import pytest

pytest.importorskip("nvflare", reason="NOTICE: nvflare is not installed (silvan[flare]); real sites are not tested")

from helpers import postgres
from helpers.studies import table

import silvan as sv
from silvan.data.sources.query import Query
from silvan.deploy import flare_kit, one_machine
from silvan.deploy.certificates import Authority, make_key, make_request, pem
from silvan.deploy.explain import explain
from silvan.deploy.job_progress import PROGRESS, Progress
from silvan.deploy.member import Member
from silvan.deploy.process import Background, client_arguments
from silvan.deploy.services import process_of, processes_of, start_hub, start_site, stop_all
from silvan.federation.journal import Journal
from silvan.study.remote_study import parse_remote_study
from silvan.study.run_folder import JOURNAL, Run

PATIENCE = 300.0
"""Seconds after which a study that is tested here is lost."""

SITES = ("north", "south", "west")
LEARNERS = {
    "forest": ("HistogramForest", {"n_estimators": 10, "max_depth": 5}),
    "bofrf": ("BOFRF", {"n_estimators": 8, "max_depth": 4}),
    "long": ("HistogramForest", {"n_estimators": 300, "max_depth": 12, "min_samples_leaf": 2}),
}


def study(learner, more="", test=0.25):
    kind, parameters = LEARNERS[learner]
    lines = "\n".join(f"{key} = {value}" for key, value in parameters.items())
    return parse_remote_study(
        f'name = "{learner}"\nsampling = "published"\ntest = {test}\n{more}\n[learner]\nkind = "{kind}"\n{lines}\n'
    )


@pytest.fixture(scope="module")
def server():
    """PostgreSQL where it is installed; None elsewhere."""
    if postgres.programs() is None:
        yield None
        return
    with postgres.start() as made:
        yield made


@pytest.fixture(scope="module")
def federation(tmp_path_factory, server):
    """A coordinator and three sites; west's table is in a database if there is one."""
    folder = tmp_path_factory.mktemp("federation")
    everything = table("binary", n=900)
    sources = {}
    for i, site in enumerate(SITES):
        path = folder / f"{site}.parquet"
        everything[i::3].write_parquet(path)
        sources[site] = str(path)
    hub, members = one_machine.make_local(folder, sources)
    try:
        yield hub, dict(zip(SITES, members, strict=True)), sources
    finally:
        stop_all([*map(process_of, members), *processes_of(hub)])


def in_process(sources, learner, **settings):
    kind, parameters = LEARNERS[learner]
    fed = sv.federate_rows(sources, test=0.25, **settings)
    return getattr(sv, kind)(**parameters).fit(fed)


def hash_of(run):
    return next(model.hash for model in run.read().models if not model.site)


@pytest.mark.parametrize(("learner", "sums"), [("forest", "trusted"), ("bofrf", "masked")])
def test_same_forest_as_in_one_process(federation, running, learner, sums):
    _, members, sources = federation
    run = running(study(learner, f'sums = "{sums}"')).done()
    record = run.read()
    assert hash_of(run) == in_process(sources, learner, sums=sums).forest_.hash
    assert record.status == "done"
    assert {row.site for row in record.evaluation} == {*SITES, "all"}
    assert sv.Forest.load(run.file("model.silvan")).hash == hash_of(run)
    for member in members.values():  # what left is in each site's own ledger
        assert any(line.study == study(learner, f'sums = "{sums}"').id for line in member.folder.ledger.lines())


def test_a_site_with_a_foreign_certificate_is_refused(federation, tmp_path):
    """Signed by somebody else for the same name, it never gets to register."""
    hub, members, _ = federation
    impostor = tmp_path / "impostor"

    content = hub.read()
    flare_kit.write_site(impostor, "east", "localhost", content.port)
    startup = impostor / "startup"
    foreign = Authority.create(tmp_path / "foreign", content.name)
    (startup / "client.crt").write_bytes(foreign.sign(make_request(make_key(startup / "client.key"), "east"), "east"))
    (startup / "rootCA.pem").write_bytes(pem(hub.authority.certificate))
    genuine = members["north"].path / "kit" / "startup"
    assert shakes_hands(content.port, genuine)
    assert not shakes_hands(content.port, startup)
    process = Background(tmp_path, "impostor")
    process.start(client_arguments(impostor, "east"), impostor)
    try:
        time.sleep(6)  # the others were there within less
        assert process.pid is not None
        asked = [sys.executable, "-m", "silvan.cli.main", "study", "status", "--in", hub.path]
        shown = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        assert "north   2" in shown
        assert "east" not in shown
    finally:
        process.stop()


def shakes_hands(port, startup):
    """Whether the server goes on with somebody who shows a certificate, or ends the connection."""
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    with socket.create_connection(("localhost", port), timeout=10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secured:
                secured.settimeout(1.0)
                return secured.recv(1) != b""
        except TimeoutError:
            return True  # it waits for what we have to say
        except OSError:
            return False


class Command:
    """``silvan study run`` in a process of its own, and what it says."""

    def __init__(self, hub, folder, plan):
        self.plan, self.hub = plan, hub
        path = folder / f"{plan.folder}.toml"
        path.write_text(plan.text)
        self.folder = hub.path / "runs" / plan.folder
        self.arguments = [sys.executable, "-m", "silvan.cli.main", "study", "run", path, "--in", hub.path]
        self.said = []
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=lambda: self.said.extend(self.process.stdout))
        self._reader.start()
        self._watchdog = threading.Timer(PATIENCE, self.process.kill)  # it would wait for a dead server for ever
        self._watchdog.daemon = True
        self._watchdog.start()

    def until(self, text):
        """Wait until it has said something."""
        return self._wait(lambda: any(text in line for line in self.said))

    def until_round(self, n):
        """Wait until training has come to a round."""

        def there():
            try:
                progress = msgspec.json.decode((self.folder / PROGRESS).read_bytes(), type=Progress)
            except OSError:
                return False
            return progress.stage == "training" and progress.round >= n

        return self._wait(there)

    def _wait(self, there):
        while not there():
            assert self.process.poll() is None, "".join(self.said)
            time.sleep(0.02)
        return self

    def kill(self):
        self.process.kill()
        self._end()

    def done(self):
        """Wait for the end, and give the run."""
        self._end()
        assert self.process.returncode == 0, "".join(self.said)
        return Run(self.folder)

    def failed(self):
        """Wait for the end, and give what it said."""
        self._end()
        assert self.process.returncode != 0
        return " ".join("".join(self.said).split())

    def _end(self):
        self.process.wait()
        self._watchdog.cancel()
        self._reader.join()
        self.process.stdout.close()

    @property
    def jobs(self):
        return sum("handed in" in line for line in self.said)


@pytest.fixture
def running(federation, tmp_path):
    if processes_of(federation[0])[0].pid is None:  # an earlier test failed to start it again
        start_hub(federation[0])
    return lambda plan: Command(federation[0], tmp_path, plan)


@pytest.fixture(scope="module")
def undisturbed(federation):
    return in_process(federation[2], "long").forest_.hash


def test_a_site_that_is_killed(federation, undisturbed, running):
    """SIGKILL to all its processes in the middle of training; started again, it goes on and nothing is different."""
    _, members, _ = federation
    command = running(study("long")).until_round(2)
    process_of(members["south"]).kill()
    start_site(members["south"])
    assert hash_of(command.done()) == undisturbed
    assert command.jobs > 1  # FLARE gave up, and was asked again


def test_a_coordinator_that_is_killed(federation, undisturbed, running):
    """SIGKILL to the server and to whoever waits for it; both start again and go on from the journal."""
    hub, _, _ = federation
    plan = study("long", "# again")
    command = running(plan).until_round(2)
    command.kill()
    for process in processes_of(hub):
        process.kill()
    start_hub(hub)
    kept = len(Journal(command.folder / JOURNAL))
    assert kept > 0
    command.start()
    run = command.done()
    assert hash_of(run) == undisturbed
    before = run.read()
    assert running(plan).done().read() == before  # done already: nothing is asked again


def test_a_table_in_a_database(federation, server, running):
    """One site's rows come from PostgreSQL, its password from the environment."""
    if server is None:
        pytest.skip("NOTICE: no PostgreSQL server is installed; a site with a database is not tested")
    _, members, sources = federation
    frame = pl.read_parquet(sources["west"])
    columns = ", ".join(
        f'"{name}" {"double precision" if kind == pl.Float64 else "bigint" if kind.is_integer() else "text"}'
        for name, kind in frame.schema.items()
    )
    rows = ", ".join("(" + ", ".join("NULL" if v is None else repr(v) for v in row) + ")" for row in frame.iter_rows())
    insert = f"INSERT INTO visits VALUES {rows}"  # noqa: S608  our own rows
    server.run(f"CREATE TABLE visits ({columns})", insert, "GRANT SELECT ON visits TO reader")
    west = members["west"]
    settings = (west.path / "site.toml").read_text()
    changed = settings.replace(f'table = "{sources["west"]}"', f'table = "{server.url()}"\nquery = "visits"')
    assert changed != settings
    (west.path / "site.toml").write_text(changed)
    process_of(west).stop()
    os.environ["SILVAN_DATABASE_PASSWORD"] = server.password
    try:
        start_site(Member(west.path))
        run = running(study("forest", "# from a database")).done()
        again = {**sources, "west": Query(server.url(), "visits")}
        assert hash_of(run) == in_process(again, "forest").forest_.hash
    finally:
        del os.environ["SILVAN_DATABASE_PASSWORD"]
        process_of(west).stop()
        (west.path / "site.toml").write_text(settings)
        start_site(Member(west.path))
    for path in [*west.path.rglob("*.txt"), *west.path.rglob("*.log"), *west.path.rglob("*.json*")]:
        assert server.password not in path.read_text(errors="replace"), path


def test_a_site_whose_owner_must_approve(federation, running):
    """The study waits, is shown in plain words, and goes on when the owner agrees."""
    _, members, _ = federation
    north = members["north"]
    settings = (north.path / "site.toml").read_text()
    (north.path / "site.toml").write_text(settings.rstrip() + "\napprove = true\n")
    plan = study("forest", "random_state = 1")
    try:
        command = running(plan).until("has not approved")
        replies = explain(Member(north.path), plan)
        assert replies.approved is None
        assert {kind.name for kind in replies.leaves} >= {"Describe", "GrowLevel"}
        assert not any(line.study == plan.id for line in north.folder.ledger.lines())
        Member(north.path).gate().approve(plan.id)
        assert command.done().read().status == "done"
    finally:
        (north.path / "site.toml").write_text(settings)


def test_a_site_that_stays_away(federation, running):
    """With a quorum the study goes on without it; without one it says who is missing."""
    _, members, sources = federation
    process_of(members["south"]).stop()
    try:
        said = running(study("forest", "timeout = 8\nrandom_state = 2")).failed()
        assert "site south was not there for 8 s" in said
        run = running(study("forest", "timeout = 8\nquorum = 2\nrandom_state = 2")).done()
    finally:
        start_site(members["south"])
    fewer = {site: source for site, source in sources.items() if site != "south"}
    kind, parameters = LEARNERS["forest"]
    expected = getattr(sv, kind)(**parameters, random_state=2).fit(sv.federate_rows(fewer, test=0.25, random_state=2))
    assert hash_of(run) == expected.forest_.hash
    assert "south" not in {row.site for row in run.read().evaluation}
