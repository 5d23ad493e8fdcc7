"""A federation that FLARE itself provisioned: real processes, a job from FLARE's client, downloaded results.

tests/deploy/test_native.py tries failures of such a federation in one process.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from helpers.studies import table
from nvflare.fuel.flare_api.flare_api import new_secure_session
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provision import prepare_project
from nvflare.lighter.provisioner import Provisioner
from typer.testing import CliRunner

import silvan as sv
from silvan.cli.main import app
from silvan.deploy.membership.flare_folder import open_site
from silvan.deploy.service.process import client_arguments, port_in_use, server_arguments
from silvan.deploy.service.start_stop import free_port
from silvan.study.run_folder import Run

PATIENCE = 240.0
"""Seconds after which something that is waited for here will never come, also on a machine that is very busy."""

SITES, SERVER, LEAD = ("north", "south"), "localhost", "lead@example.org"
STUDY = """
name = "heart"
sampling = "published"
test = 0.25
sites = ["north", "south"]

[learner]
kind = "HistogramForest"
n_estimators = 10
max_depth = 5
"""


def wait_for(there, what):
    end = time.monotonic() + PATIENCE
    while not (found := there()):
        assert time.monotonic() < end, what
        time.sleep(0.1)
    return found


def provision(folder):
    """Makes FLARE create the folders of a server, two sites and an admin who submits jobs."""
    port = free_port()
    server = {"name": SERVER, "type": "server", "org": "hub", "fed_learn_port": port, "admin_port": port}
    lead = {"name": LEAD, "type": "admin", "org": "hub", "role": "lead"}
    sites = [{"name": site, "type": "client", "org": site} for site in SITES]
    project = {"api_version": 3, "name": "hospitals", "description": "", "participants": [server, *sites, lead]}
    builders = [
        WorkspaceBuilder(["master_template.yml"]),
        StaticFileBuilder(config_folder="config", scheme="tcp"),
        CertBuilder(),
    ]
    made = Provisioner(str(folder), builders).provision(prepare_project(project))
    return Path(made.get_result_location())


def allow(workspace, kept):
    """Adds the line that docs/flare.md names to FLARE's allow list; keeps the server's jobs in the test's folder."""
    text = (workspace / "local" / "resources.json.default").read_text()
    resources = json.loads(text.replace("/tmp/nvflare", str(kept)))  # noqa: S108  FLARE's own default
    resources["class_allow_list"].append("silvan.deploy.jobs.")
    for component in resources["components"]:
        if component["id"] == "job_scheduler":
            component["args"] |= {"min_schedule_interval": 0.1, "max_schedule_interval": 1.0}
    (workspace / "local" / "resources.json").write_text(json.dumps(resources))
    (workspace / "transfer").mkdir(exist_ok=True)


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory):
    """FLARE's folders, and its processes running in them."""
    folder = tmp_path_factory.mktemp("provisioned")
    made = provision(folder)
    everything = table("binary", n=600)
    for i, site in enumerate(SITES):
        everything[i::2].write_parquet(made / site / "rows.parquet")
        (made / site / "local" / "silvan.toml").write_text('table = "../rows.parquet"\n[policy]\napprove = false\n')
    port = json.loads((made / LEAD / "startup" / "fed_admin.json").read_text())["admin"]["port"]
    modules = {SERVER: "server.server_train", **dict.fromkeys(SITES, "client.client_train")}
    arguments = {SERVER: server_arguments(made / SERVER), **{s: client_arguments(made / s, s) for s in SITES}}
    processes = []
    try:
        for who, given in arguments.items():
            allow(made / who, folder / "kept")
            settings = given[given.index("-m", given.index("-m") + 1) :]  # what follows silvan's own module
            command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{modules[who]}", *settings]
            with (folder / f"{who}.log").open("w") as log:
                process = subprocess.Popen(command, cwd=made / who, stdout=log, stderr=log, start_new_session=True)
            processes.append(process)
            # the server first: FLARE 2.9 keeps an empty signature if sites connect before it has read its certificate
            wait_for(lambda one=process: port_in_use("localhost", port) or one.poll() is not None, "no server")
            assert process.poll() is None, (folder / f"{who}.log").read_text()
        yield made
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def log_in(workspaces):
    try:
        return new_secure_session(LEAD, str(workspaces / LEAD), timeout=10.0)
    except Exception:  # the server is not there yet
        return None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # FLARE's client leaves sockets open
def test_a_job_that_flares_own_client_submits(workspaces, tmp_path):
    """The folder written by ``silvan study job`` runs, and the download has the forest of one process."""
    (tmp_path / "study.toml").write_text(STUDY)
    made = CliRunner().invoke(app, ["study", "job", str(tmp_path / "study.toml"), "-o", str(tmp_path / "job")])
    assert made.exit_code == 0, made.output
    session = wait_for(lambda: log_in(workspaces), "the server does not answer")
    try:
        wait_for(lambda: len(session.get_connected_client_list()) == len(SITES), "the sites do not connect")
        job = session.submit_job(str(tmp_path / "job"))
        wait_for(lambda: session.get_job_status(job).startswith("FINISHED"), "the job does not end")
        assert session.get_job_status(job) == "FINISHED:COMPLETED"
        assert session.get_job_meta(job)["name"].startswith("heart-")
        downloaded = Path(session.download_job_result(job, str(tmp_path / "downloaded")))
    finally:
        session.close()
    run = Run(downloaded / "workspace" / "silvan")
    fed = sv.federate_rows({site: str(workspaces / site / "rows.parquet") for site in SITES}, test=0.25)
    forest = sv.HistogramForest(n_estimators=10, max_depth=5).fit(fed).forest_
    assert run.read().status == "done"
    assert run.forest().hash == forest.hash
    assert {row.site for row in run.read().evaluation} == {*SITES, "all"}
    assert run.file("report.html").exists()
    for site in SITES:
        own = open_site(workspaces / site)
        [study] = own.studies()
        assert any(line.study == study.unique_name for line in own.folder.ledger.lines())
        kept = Run(own.results_folder(study))
        assert kept.forest().hash == forest.hash
        assert {row.site for row in kept.read().evaluation} == {
            site
        }  # with two sites, the total would reveal the other's
