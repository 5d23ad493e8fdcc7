"""Parties on separate machines: three processes that hold columns of the same people, with mutual TLS.

Tests that need no processes are in deploy/test_parties.py.
"""

import json
import os
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from helpers import parties
from helpers.column_studies import ID
from helpers.parties import HOLDER, PARTIES, in_process, load_with_shares, read_predictions, set_up, study
from helpers.pausing_job import GO_ON, PARTY, PAUSED, PausingCoordinator
from typer.testing import CliRunner

from silvan.algorithms.vertical import encrypted_labels
from silvan.cli.main import app
from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.service import start_stop
from silvan.deploy.service.start_stop import process_of, processes_of, start_site, stop_all
from silvan.deploy.service.supervise import Supervisor
from silvan.deploy.studies.explain import approve_study
from silvan.deploy.studies.new_rows import next_prediction
from silvan.privacy.site_folder import Approval
from silvan.study.run_folder import Run

PATIENCE = 900.0
"""Seconds after which something that is waited for here will never come, also on a machine that is very busy."""


class PausingSupervisor(Supervisor):
    """Submits a job that waits before a request."""

    coordinator = f"{PausingCoordinator.__module__}.{PausingCoordinator.__qualname__}"


def allow_pausing(hub):
    """Allows the class that pauses, only in the server's folder of these tests."""
    path = hub.path / "server" / "local" / "resources.json"
    content = json.loads(path.read_text())
    content["class_allow_list"].append(PausingSupervisor.coordinator)
    path.write_text(json.dumps(content))


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A coordinator and three parties; the label holder's owner approves every study."""
    folder = tmp_path_factory.mktemp("parties")
    paths = parties.write_tables(folder / "tables", parties.tables())
    new = parties.write_tables(folder / "new", parties.tables(n=40, seed=9, label=False))
    hub = CoordinatorFiles.create(folder / "coordinator", "local", list(paths), "localhost", start_stop.free_port())
    allow_pausing(hub)
    with pytest.MonkeyPatch.context() as patch:
        here = str(Path(__file__).parent)  # where the server finds the class
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])))
        made = start_stop.start_local(hub, folder, paths)
    members = dict(zip(PARTIES, made, strict=True))
    try:
        for party, member in members.items():
            set_up(member, paths[party], new[party], "approve = true" if party == HOLDER else "")
        yield hub, members
    finally:
        stop_all([*map(process_of, made), *processes_of(hub)])


def approve(members, plan):
    approve_study(JoinedSite(members[HOLDER].path), plan)


def test_a_forest_of_columns_whose_party_is_killed_and_its_predictions(federation, tmp_path):
    """Encoded labels: a party is killed in training and returns, and the forest equals that of one process."""
    hub, members = federation
    plan = study("encoded", n_estimators=10, max_depth=5)
    approve(members, plan)
    said = []

    def kill_at_the_question():
        end = time.monotonic() + PATIENCE
        while not (hub.path / PAUSED).exists() and time.monotonic() < end:
            time.sleep(0.02)
        process_of(members[PARTY]).kill()
        start_site(members[PARTY])
        (hub.path / GO_ON).touch()

    killing = threading.Thread(target=kill_at_the_question)
    killing.start()
    run = PausingSupervisor(hub, plan, said.append).run_to_end()
    killing.join()
    assert (hub.path / PAUSED).exists()
    assert said.count("handed in") > 1
    model, _ = in_process(parties.tables(), plan)
    assert load_with_shares(run, plan, members).forest_.hash == model.forest_.hash
    assert [row.model for row in run.read().evaluation] == ["federated"]
    assert run.read().received == list(PARTIES)
    kept = {party: Run(member.results_folder(plan)).read() for party, member in members.items()}
    assert {party for party, record in kept.items() if record.evaluation} == {HOLDER}

    path = tmp_path / "encoded.toml"
    path.write_text(plan.text)
    approve(members, next_prediction(hub, plan))
    shown = CliRunner().invoke(app, ["study", "predict", str(path), "--in", str(hub.path)])
    assert shown.exit_code == 0, shown.output
    expected = model.predict(in_process(parties.tables(n=40, seed=9, label=False)))
    kept = read_predictions(members[HOLDER])
    assert {person: line["prediction"] for person, line in kept.items()} == dict(
        expected.select(ID, "prediction").rows()
    )
    assert f"{len(kept)} rows predicted. The predictions are at {HOLDER}: predictions/encoded-" in shown.output


def test_encrypted_labels(federation, monkeypatch):
    pytest.importorskip("gmpy2", reason="gmpy2 is not installed: pip install 'silvan[vertical]'")
    hub, members = federation
    settings = {"labels": "encrypted", "n_estimators": 2, "max_depth": 2}
    plan = study("encrypted", **settings)
    members[HOLDER].folder.approvals.approve(Approval(study=plan.unique_name, messages=["*"]))
    run = Supervisor(hub, plan).run_to_end()
    monkeypatch.setattr(encrypted_labels, "TESTING", True)  # a short key for the run to compare with
    model, _ = in_process(parties.tables(), study("encrypted", **settings, key_bits=256))
    assert load_with_shares(run, plan, members).forest_.hash == model.forest_.hash
