"""Real sites: three processes with mutual TLS on loopback, killed and restarted, one of them with a database.

All tests share a federation. A study takes some ten seconds, most of which FLARE needs to start four processes, so
several tests look at one study.
"""

import contextlib
import dataclasses
import re
import shutil
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import polars as pl
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from helpers import postgres
from helpers.hasty_sites import hasty_sites
from helpers.studies import table
from typer.testing import CliRunner

import silvan as sv
from silvan.cli.main import app
from silvan.data.readers.query import Query
from silvan.deploy.jobs.job_progress import PROGRESS, StudyProgress
from silvan.deploy.membership import startup_kit
from silvan.deploy.membership.certificates import Authority, make_key, make_request, pem
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.membership.site_files import BUDGET
from silvan.deploy.membership.site_log import last_error
from silvan.deploy.service import start_stop
from silvan.deploy.service.process import Background, client_arguments
from silvan.deploy.service.start_stop import process_of, processes_of, start_coordinator, start_site, stop_all
from silvan.deploy.service.submissions import SUPERVISED, Supervised, pending
from silvan.deploy.service.supervise import Supervisor
from silvan.deploy.studies.explain import approve_study, explain
from silvan.errors import FederationError, SilvanError
from silvan.privacy.ledger import verify
from silvan.privacy.noise.budget import Budget
from silvan.privacy.policy import PolicyBetweenMachines
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import JOURNAL, Run
from silvan.util.acting_user import acting_user

PATIENCE = 900.0
"""Seconds after which something that is waited for here will never come, also on a machine that is very busy."""

SITES, AWAY = ("north", "south", "west"), "east"
"""Sites that take part, and one that has joined and is never there."""

PAIR = ("north", "south")
"""Sites of the studies in which something goes wrong: fewer processes are started sooner."""

LEARNERS = {
    "forest": ("HistogramForest", {"n_estimators": 10, "max_depth": 5}),
    "bofrf": ("BOFRF", {"n_estimators": 8, "max_depth": 4}),
    "auto": ("AutoForest", {"n_estimators": 6, "max_depth": 4}),
    "long": ("HistogramForest", {"n_estimators": 600, "max_depth": 12, "min_samples_leaf": 2}),
}
SUMS = {"forest": "trusted", "bofrf": "masked"}
MORE = {"forest": 'describe = true\n[evaluation]\nimportance = true\ndependence = ["dose"]\nby = ["sex"]\n'}
"""What a study asks for besides."""


def study(learner, more="", sites=SITES):
    kind, parameters = LEARNERS[learner]
    settings = {"name": learner, "sampling": "published", "test": 0.25, "sites": sites}
    first, last = (
        "\n".join(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in given.items())
        for given in (settings, {"kind": kind, **parameters})
    )
    return parse_remote_study(f"{first}\n{more}\n[learner]\n{last}\n")


def in_process(sources, learner, sites=SITES, **settings):
    """The same fit in one process; between machines BOFRF re-estimates leaves by default."""
    kind, parameters = LEARNERS[learner]
    parameters = {**parameters, "refit_leaves": True} if kind == "BOFRF" else parameters
    fed = sv.federate_rows({site: sources[site] for site in sites}, test=0.25, **settings)
    return getattr(sv, kind)(**parameters).fit(fed).forest_.hash


def hash_of(run):
    return next(model.hash for model in run.read().models if not model.site)


def wait_until(there, what):
    """Waits for an event in another process."""
    end = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < end, what
        time.sleep(0.02)


# -- the federation


@pytest.fixture(scope="module")
def server():
    """PostgreSQL where it is installed, with its password in the environment; None elsewhere."""
    if postgres.programs() is None:
        yield None
        return
    with postgres.start() as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SILVAN_DATABASE_PASSWORD", made.password)
        yield made


@pytest.fixture(scope="module")
def federation(tmp_path_factory, server):
    """A coordinator and three sites, west with a table in a database if there is one; and one that stays away."""
    folder = tmp_path_factory.mktemp("federation")
    everything = table("binary", n=900)
    sources = {}
    for i, site in enumerate((*SITES, AWAY)):
        path = folder / f"{site}.parquet"
        everything[i % 3 :: 3].write_parquet(path)
        sources[site] = str(path)
    if server is not None:
        sources["west"] = put_into(server, everything[2::3])
    with hasty_sites():
        hub, members = start_stop.make_local(folder, sources)
    copy = folder / "copy-of-north"
    shutil.copytree(folder / "north", copy)
    (copy / "site.pid").unlink()  # it exists only while the site runs
    try:
        process_of(members[-1]).stop()
        yield hub, dict(zip(SITES, members[:-1], strict=True)), sources
    finally:
        stop_all([Background(copy, "site"), *map(process_of, members), *processes_of(hub)])


def put_into(server, frame):
    """Makes a table in a database; returns its URL."""
    columns = ", ".join(
        f'"{name}" {"double precision" if kind == pl.Float64 else "bigint" if kind.is_integer() else "text"}'
        for name, kind in frame.schema.items()
    )
    rows = ", ".join("(" + ", ".join("NULL" if v is None else repr(v) for v in row) + ")" for row in frame.iter_rows())
    insert = f"INSERT INTO visits VALUES {rows}"  # noqa: S608  our own rows
    server.run(f"CREATE TABLE visits ({columns})", insert, "GRANT SELECT ON visits TO reader")
    return server.url(table="visits")


class Command:
    """``silvan study run`` in its own process, and its output."""

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
        """Waits until it has printed a given text."""
        self._wait(lambda: any(text in line for line in self.said))

    def until_round(self, n):
        """Waits until training has reached a round."""

        def there():
            with contextlib.suppress(OSError):
                progress = msgspec.json.decode((self.folder / PROGRESS).read_bytes(), type=StudyProgress)
                return progress.stage == "training" and progress.round >= n

        self._wait(there)

    def _wait(self, there):
        def ended_or_there():
            assert self.process.poll() is None, "".join(self.said)
            return there()

        wait_until(ended_or_there, "".join(self.said))

    def kill(self):
        self.process.kill()
        self._end()

    def done(self):
        """Waits for the end, and returns the run."""
        self._end()
        assert self.process.returncode == 0, "".join(self.said)
        return Run(self.folder)

    def _end(self):
        self.process.wait()
        self._watchdog.cancel()
        self._reader.join()
        self.process.stdout.close()

    @property
    def jobs(self):
        return sum("handed in" in line for line in self.said)


# -- nothing goes wrong


@dataclasses.dataclass
class Quiet:
    """Undisturbed studies in a federation where north's owner must approve each of them."""

    plans: dict
    runs: dict
    shown: object  # what north's owner saw before approving the forest
    left: bool  # whether anything had left north by then
    approved: object  # what was approved of the forest
    jobs: int  # that the forest took


@contextlib.contextmanager
def with_policy(member, line):
    """Adds a line to the site's policy for jobs that start now."""
    settings = member.path / "site.toml"
    before = settings.read_text()
    settings.write_text(f"{before.rstrip()}\n{line}\n")
    try:
        yield
    finally:
        settings.write_text(before)


def must_approve(member):
    """Makes jobs that start now wait for the site's owner."""
    return with_policy(member, "approve = true")


def approve(member, plan):
    return approve_study(JoinedSite(member.path), plan)


@pytest.fixture(scope="module")
def quiet(federation, tmp_path_factory):
    """Runs a study that waits for north's owner, and another approved one to its end; then approves the first."""
    hub, members, _ = federation
    north, folder = members["north"], tmp_path_factory.mktemp("studies")
    plans = {learner: study(learner, f'sums = "{sums}"\n{MORE.get(learner, "")}') for learner, sums in SUMS.items()}
    with must_approve(north):
        command = Command(hub, folder, plans["forest"])
        command.until("has not approved")
        shown = explain(JoinedSite(north.path), plans["forest"])
        mine = [line for line in north.folder.ledger.lines() if line.study == plans["forest"].unique_name]
        left = any(line.outcome != "decided" for line in mine)
        approve(north, plans["bofrf"])
        other = Supervisor(hub, plans["bofrf"]).run_to_end()
        approved = approve(north, plans["forest"])
        runs = {"forest": command.done(), "bofrf": other}
    return Quiet(plans, runs, shown, left, approved, command.jobs)


@pytest.mark.parametrize("learner", SUMS)
def test_same_forest_as_in_one_process(federation, quiet, learner):
    _, members, sources = federation
    run = quiet.runs[learner]
    record = run.read()
    assert hash_of(run) == in_process(sources, learner, sums=SUMS[learner])
    assert record.status == "done"
    assert {row.site for row in record.evaluation} == {*SITES, "all"}
    assert sv.Forest.load(run.file("model.silvan")).hash == hash_of(run)
    for member in members.values():  # each site's own ledger has what left it
        assert any(line.study == quiet.plans[learner].unique_name for line in member.folder.ledger.lines())


def test_table_one_equals_that_of_one_process(federation, quiet):
    _, _, sources = federation
    here = sv.describe(sv.federate_rows({site: sources[site] for site in SITES}, test=0.25))
    assert quiet.runs["forest"].read().table_one == here


def test_every_site_has_the_model(federation, quiet, tmp_path):
    """Signed by the coordinator, with the site's own metrics."""
    _, members, _ = federation
    for learner, run in quiet.runs.items():
        assert run.read().received == list(SITES)
        for site, member in members.items():
            written = tmp_path / f"{learner} {site}.silvan"
            said = CliRunner().invoke(app, ["site", "model", str(member.path), learner, "-o", str(written)])
            assert said.exit_code == 0, said.output
            assert sv.Forest.load(written).hash in {model.hash for model in run.read().models}
            figures = Run(member.results_folder(quiet.plans[learner])).read().evaluation
            assert {row.site for row in figures} == {site, "all"}


def test_a_site_whose_owner_must_approve(quiet):
    """The study waits, is shown in plain words, and continues when the owner approves."""
    assert {kind.name for kind in quiet.shown.leaves} >= {
        "CompareLedgers",
        "Describe",
        "GrowLevel",
        "EvaluateModels",
        "CountByScore",
    }
    assert quiet.approved.messages == [kind.name for kind in quiet.shown.leaves]
    assert (quiet.approved.tasks, quiet.approved.losses, sorted(quiet.approved.sites)) == (5, 0, sorted(SITES))
    assert not quiet.left
    assert quiet.runs["forest"].read().status == "done"


def test_column_effects_and_subgroups(federation, quiet):
    """As the study asked, from messages that the owner saw."""
    _, members, _ = federation
    record = quiet.runs["forest"].read()
    assert set(record.permutation) == {"age", "dose", "sex", "ward", "noise"}
    assert max(record.permutation.values()) > 0
    (shown,) = record.dependence
    assert (shown.column, len(shown.values) > 2, set(shown.means)) == ("dose", True, {"yes"})
    groups = {(row.site, row.group) for row in record.subgroups}
    assert {site for site, _ in groups} == {*SITES, "all"}
    assert {group for _, group in groups} == {"sex = f", "sex = m"}
    assert {"ShuffleColumns", "SetColumns"} <= set(quiet.approved.messages)
    for member in members.values():
        kinds = {line.kind for line in member.folder.ledger.lines() if line.study == quiet.plans["forest"].unique_name}
        assert {"ShuffleColumns", "SetColumns"} <= kinds
    assert "What the model looks at" in quiet.runs["forest"].file("report.html").read_text()


def test_two_studies_at_once(federation, quiet):
    """While one waited for approval, another ran: each in one job, with one ledger at each site."""
    _, members, _ = federation
    assert quiet.jobs == 1
    for member in members.values():
        lines = member.folder.ledger.lines()
        assert {line.study for line in lines} >= {plan.unique_name for plan in quiet.plans.values()}
        assert {line.outcome for line in lines} == {"answered", "decided"}
        assert verify(member.path, member.folder.public()).faults == []


PRIVATE = """
name = "private"
sums = "masked"
test = 0.25
sites = ["north", "south", "west"]

[schema]
age = { bounds = [0, 100] }
dose = { bounds = [1, 5] }
sex = { categories = ["f", "m"] }
label = { classes = ["no", "yes"] }

[learner]
epsilon = 1.0

[evaluation]
epsilon = 0.5
"""
NOISY = {"CountPeople", "CountColumns", "CountTables", "CountScores", "CountByScoreWithNoise"}
FREE = {"Announce", "CloseStudy", "CompareLedgers", "DealKey", "TakeKey", "KeepResults"}


def test_a_private_study(federation):
    """With budgets at all sites and a secret sampling key: also evaluated, and charged as its accounting says."""
    pytest.importorskip("opendp", reason="opendp is not installed; to test noise: pip install 'silvan[dp]'")
    hub, members, _ = federation
    plan = parse_remote_study(PRIVATE)
    assert plan.secret
    with contextlib.ExitStack() as stack:
        for member in members.values():
            stack.enter_context(with_policy(member, "epsilon = 1.5"))
        record = Supervisor(hub, plan).run_to_end().read()
    (row,) = record.evaluation
    assert (record.status, row.site, row.model, row.epsilon) == ("done", "all", "federated", 0.5)
    assert 0.0 <= row.between["accuracy"][0] <= row.metrics["accuracy"] <= row.between["accuracy"][1] <= 1.0
    for member in members.values():
        lines = [line for line in member.folder.ledger.lines() if line.study == plan.unique_name]
        assert {line.outcome for line in lines} == {"answered"}
        assert NOISY >= {line.kind for line in lines} - FREE >= {"CountPeople", "CountTables", "CountByScoreWithNoise"}
        assert FREE & {line.kind for line in lines} >= {"Announce"}
        assert Budget(path=member.path / BUDGET).spent == pytest.approx(1.5)


def test_a_forest_that_stays_at_its_site(federation, tmp_path):
    """Personal forests from the shared forest and a site's rows: the same as in one process, and nowhere else."""
    hub, members, sources = federation
    run = Supervisor(hub, study("auto", 'sums = "masked"')).run_to_end()
    record = run.read()
    assert record.at_sites
    assert {path.name for path in run.folder.glob("*.silvan")} == {"model.silvan"}
    given = {"test": 0.25, "sums": "masked", "policy": PolicyBetweenMachines()}
    fed = sv.federate_rows({site: sources[site] for site in SITES}, **given)
    here = sv.AutoForest(**LEARNERS["auto"][1]).fit(fed)
    assert hash_of(run) == here.forest_.hash
    for site, member in members.items():
        written = tmp_path / f"{site}.silvan"
        said = CliRunner().invoke(app, ["site", "model", str(member.path), "auto", "-o", str(written)])
        assert said.exit_code == 0, said.output
        assert sv.Forest.load(written) == here.forests_[site]
        assert (here.forests_[site] == here.forest_) == (site not in record.at_sites)
    figures = {row["site"]: row["auc"] for row in here.evaluate(fed).filter(model="federated").iter_rows(named=True)}
    told = {row.site: row.metrics["auc"] for row in record.evaluation if row.model == "federated"}
    assert {site: told[site] for site in SITES} == {site: figures[site] for site in SITES}


def test_a_table_in_a_database(federation, quiet, server):
    """One site's rows come from PostgreSQL, its password from the environment."""
    if server is None:
        pytest.skip(postgres.NONE)
    _, members, sources = federation
    west, query = members["west"], Query(server.url(), "visits")
    assert f'table = "{server.url(table="visits")}"' in (west.path / "site.toml").read_text()
    assert hash_of(quiet.runs["forest"]) == in_process({**sources, "west": query}, "forest")
    for path in [*west.path.rglob("*.txt"), *west.path.rglob("*.log"), *west.path.rglob("*.json*")]:
        assert server.password not in path.read_text(errors="replace"), path


# -- strangers


def test_a_site_with_a_foreign_certificate_is_refused(federation, tmp_path):
    """Signed by somebody else for the same name, it cannot register."""
    hub, members, _ = federation
    impostor = tmp_path / "impostor"

    content = hub.read()
    startup_kit.write_site(impostor, "nowhere", "localhost", content.port)
    startup = impostor / "startup"
    foreign = Authority.create(tmp_path / "foreign", content.name)
    (startup / "client.crt").write_bytes(
        foreign.sign(make_request(make_key(startup / "client.key"), "nowhere"), "nowhere")
    )
    # its own authority first, with which FLARE checks its certificate before it tries to connect
    (startup / "rootCA.pem").write_bytes(pem(foreign.certificate) + pem(hub.authority.certificate))
    genuine = members["north"].path / "kit" / "startup"
    assert shakes_hands(content.port, genuine, 1.0)
    assert not shakes_hands(content.port, startup, PATIENCE)
    process = Background(tmp_path, "impostor")
    process.start(client_arguments(impostor, "nowhere"), impostor)
    try:
        wait_until(lambda: tries(impostor) > 1, "it does not even try")
        assert process.pid is not None
        shown = CliRunner().invoke(app, ["study", "status", "--in", str(hub.path)]).output
        assert re.search(r"north +2", shown)
        assert "nowhere" not in shown
    finally:
        process.stop()


def tries(kit):
    """How often a site tried to connect and was refused, by its log."""
    log = kit / "log.txt"
    return log.read_text().count("is closed") if log.exists() else 0


def shakes_hands(port, startup, wait):
    """Whether the server accepts somebody with a certificate, or closes the connection in time."""
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    with socket.create_connection(("localhost", port), timeout=PATIENCE) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secured:
                secured.settimeout(wait)
                return secured.recv(1) != b""
        except TimeoutError:
            return True  # the server waits for our first message
        except OSError:
            return False


# -- many failures


def test_a_killed_site_and_a_killed_coordinator(federation, tmp_path):
    """SIGKILL in the middle of a study, first to all processes of a site, then to those of the coordinator.

    Restarted processes resume from stored state, with the same result: nobody runs the study again. A site whose table
    has changed meanwhile says so, and continues when the rows are back.
    """
    hub, members, sources = federation
    plan = study("long", sites=PAIR)
    command = Command(hub, tmp_path, plan)
    command.until_round(2)
    with must_approve(members["north"]):  # so that the next job stops here
        process_of(members["south"]).kill()
        start_site(members["south"])
        command.until("has not approved")
        assert command.jobs > 1  # FLARE gave up, and was asked again
        command.kill()
        for process in processes_of(hub):
            process.kill()
        rows = Path(sources["south"])
        before = rows.read_bytes()
        pl.read_parquet(rows)[1:].write_parquet(rows)
        approve(members["north"], plan)
        start_coordinator(hub)  # which resumes the study by itself
        wait_until(lambda: pending(Run(command.folder)) is None, "the study does not end")
        assert re.search(r"'?south'?.* its table has changed since the study began", supervised(command).error)
        with contextlib.closing(sqlite3.connect(command.folder / JOURNAL)) as journal:
            assert journal.execute("SELECT count(*) FROM reply").fetchone() > (0,)
        assert not (command.folder / "model.silvan").exists()
        rows.write_bytes(before)
        command.start()
        run = command.done()
    assert hash_of(run) == in_process(sources, "long", PAIR)
    before = run.read()
    assert Supervisor(hub, plan).run_to_end().read() == before  # already done: nothing is requested again


def supervised(command):
    """What the coordinator's process wrote about a study."""
    return msgspec.json.decode((command.folder / SUPERVISED).read_bytes(), type=Supervised)


def test_a_study_that_an_owner_declines(federation):
    """The user who runs the study reads the reason, and nothing has left."""
    hub, members, _ = federation
    north, plan = JoinedSite(members["north"].path), study("forest", "# declined", PAIR)
    with must_approve(north):
        north.decline(plan, "not before the ethics board meets")
        with pytest.raises(SilvanError, match="its owner declined the study: not before the ethics board meets"):
            Supervisor(hub, plan).run_to_end()
    lines = [line for line in north.folder.ledger.lines() if line.study == plan.unique_name]
    assert [(line.outcome, line.by) for line in lines] == [("decided", acting_user())]


def test_an_absent_site_in_a_real_federation(federation):
    """With a quorum the study continues without it; without one it names the missing site."""
    hub, _, sources = federation
    # the wait is one second here, and an hour where the job's own copy of the study says so
    alone, together = (
        msgspec.structs.replace(study("forest", quorum, (*PAIR, AWAY)), timeout=1.0) for quorum in ("", "quorum = 2")
    )
    with pytest.raises(FederationError, match="site east was not there for 1 s"):
        Supervisor(hub, alone).run_to_end()
    run = Supervisor(hub, together).run_to_end()
    assert hash_of(run) == in_process(sources, "forest", PAIR)
    assert AWAY not in {row.site for row in run.read().evaluation}


# -- a copy of a site's folder, and a removed site


def budget_of(folder):
    return Budget(path=folder / BUDGET).spent


def ended(folder):
    """Why a site's process ended by itself, if it did."""
    return "" if process_of(JoinedSite(folder)).pid else last_error(folder).text


def test_a_copy_of_a_site_spends_no_budget_twice(federation, quiet, tmp_path):
    """A copy in place of the site stops itself; beside the site, both are stopped."""
    hub, members, sources = federation
    north = members["north"]
    copy = north.path.parent / "copy-of-north"  # it was made before the first study
    plan = parse_remote_study(PRIVATE.replace('"private"', '"copied"'))
    process_of(north).stop()
    start_site(JoinedSite(copy))
    refused = pytest.raises(FederationError, match="'north' refused CompareLedgers: its ledger lacks what others know")
    with with_policy(JoinedSite(copy), "epsilon = 1.5"), refused:
        Supervisor(hub, plan).run_to_end()
    assert budget_of(copy) == 0.0
    with pytest.raises(SilvanError, match="silvan site restored"):
        start_site(JoinedSite(copy))
    start_site(north)
    wait_until(lambda: "north" in hub.stopped(), "two processes of one site are not noticed")
    assert "two processes answered for it at the same time" in hub.stopped()["north"]
    for folder in (north.path, copy):
        wait_until(lambda folder=folder: ended(folder), "a process that is stopped goes on")
        assert "delete the copy, and ask the coordinator to let the site in again" in ended(folder)
    with pytest.raises(FederationError, match="site north is stopped: two processes answered for it"):
        Supervisor(hub, plan).run_to_end()
    CliRunner().invoke(app, ["study", "readmit", "north", "--in", str(hub.path)])
    start_site(north)
    assert hash_of(Supervisor(hub, study("forest", "# after the copy", PAIR)).run_to_end()) == in_process(
        sources, "forest", PAIR
    )


def test_a_removed_site_is_disconnected_at_once(federation):
    """Its certificate is valid for years, but the server no longer accepts it; the site's owner reads why."""
    hub, members, _ = federation
    east = JoinedSite(members["north"].path.parent / AWAY)
    port = hub.read().port
    start_site(east)
    wait_until(lambda: re.search(rf"{AWAY}.* yes", status_of(hub)), "it does not connect")
    assert shakes_hands(port, east.startup, 1.0)
    hub.revoke(AWAY)
    wait_until(lambda: ended(east.path), "it goes on")
    assert "the coordinator has taken this site out" in ended(east.path)
    assert not shakes_hands(port, east.startup, PATIENCE)
    hub.add(AWAY)
    assert not shakes_hands(port, east.startup, PATIENCE)
    assert not re.search(rf"{AWAY}.* yes", status_of(hub))


def status_of(hub):
    return CliRunner().invoke(app, ["study", "status", "--in", str(hub.path)]).output
