"""The status of folders: as text, as JSON, for Prometheus."""

import json
import sqlite3
import threading
import urllib.error
import urllib.request
from contextlib import closing
from http.client import HTTPConnection

import msgspec
import pytest
from helpers.joining import make_hub, serving, write_table
from rich.cells import cell_len
from typer.testing import CliRunner

from silvan.cli.main import app
from silvan.deploy.jobs.job_progress import PROGRESS, StudyProgress
from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.service.status import coordinator_status, make_metrics_server, metrics, site_status
from silvan.errors import InputError
from silvan.study.parse import parse_remote_study


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A coordinator with two sites of which one has joined, and two studies."""
    folder = tmp_path_factory.mktemp("status")
    hub = make_hub(folder)
    with serving(hub):
        member = JoinedSite.join(folder / "north", hub.invite("north"), write_table(folder), None, {"epsilon": 2.0})
    for name, progress in {
        "heart": StudyProgress("1", "training", 7, {"south": 'not "yet"\n'}),
        "lungs": StudyProgress("2", "failed", 3, error="no quorum", final=True),
    }.items():
        (hub.path / "runs" / name).mkdir(parents=True)
        (hub.path / "runs" / name / PROGRESS).write_bytes(msgspec.json.encode(progress))
    (hub.path / "runs" / "torn").mkdir()
    (hub.path / "runs" / "torn" / PROGRESS).write_text("{")
    return hub, member


def figures(text):
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_the_coordinator(folders):
    hub, _ = folders
    found = coordinator_status(hub)
    assert not found.running
    assert found.sites["south"].joined == "not invited"
    assert found.sites["north"].words == hub.fingerprints()["north"]
    assert list(found.studies) == ["heart", "lungs"]
    shown = CliRunner().invoke(app, ["study", "status", "--in", str(hub.path), "--json"])
    assert json.loads(shown.output)["studies"]["heart"]["round"] == 7
    text = CliRunner().invoke(app, ["study", "status", "--in", str(hub.path)]).output
    assert "lungs: no quorum" in text
    assert "not running" in text


def test_a_site(folders):
    _, member = folders
    found = site_status(member)
    assert (found.budget_spent, found.budget_limit, found.process) == (0.0, 2.0, None)
    shown = CliRunner().invoke(app, ["site", "status", str(member.path), "--json"])
    assert json.loads(shown.output)["words"] == member.fingerprint
    text = CliRunner().invoke(app, ["site", "status", str(member.path)]).output
    assert "Privacy budget spent: 0 of 2" in text


def test_studies_at_a_site(folders):
    _, member = folders
    plan = parse_remote_study('name = "heart"\nlabel = "y"\n[learner]\n')
    member.note_study(plan)
    assert site_status(member).studies == {plan.unique_name: "needs no approval"}
    member.decline(plan, "no")
    assert site_status(member).studies == {plan.unique_name: "declined"}
    (member.path / "asked" / f"{plan.digest}.toml").unlink()


def test_metrics_for_prometheus(folders):
    hub, member = folders
    at_hub, at_site = figures(metrics(coordinator_status(hub))), figures(metrics(site_status(member)))
    assert at_hub['silvan_process_up{process="server"}'] == "0"
    assert at_hub['silvan_study_waiting{study="heart"}'] == "1"
    assert at_hub['silvan_study_failed{study="lungs"}'] == "1"
    assert at_site['silvan_budget_limit{site="north"}'] == "2"
    assert all(
        line.startswith(("# HELP silvan_", "# TYPE silvan_", "silvan_"))
        for line in metrics(coordinator_status(hub)).splitlines()
    )


def test_metrics_are_served_on_loopback_only(folders):
    hub, _ = folders
    server = make_metrics_server(0, lambda: metrics(coordinator_status(CoordinatorFiles(hub.path))))
    address, port = server.server_address
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        assert address == "127.0.0.1"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert "silvan_study_round" in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/runs")
        with closing(HTTPConnection("127.0.0.1", port)) as asked:  # by a web page whose name was made to point here
            asked.request("GET", "/metrics", headers={"Host": f"a.example:{port}"})
            assert asked.getresponse().status == 421
        with pytest.raises(InputError, match=f"port {port} cannot be used"):
            make_metrics_server(port, str)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_coordinator_reaches_its_own_server_without_its_public_address(tmp_path):
    """Behind a router the public name may be unreachable from inside."""
    hub = make_hub(tmp_path, ("north",), host="hub.example.org")
    admin = json.loads((hub.path / "admin" / "startup" / "fed_admin.json").read_text())["admin"]
    assert (admin["host"], admin["server_identity"]) == ("localhost", "hub.example.org")


LONG = "university-hospital-of-the-northern-lands"


@pytest.fixture(scope="module")
def long_names(tmp_path_factory):
    """A coordinator's folder and a site's, with a long name, an approved study and a waiting one."""
    folder = tmp_path_factory.mktemp("widths")
    hub = make_hub(folder, (LONG, "south"))
    with serving(hub):
        sites = [
            JoinedSite.join(folder / name, hub.invite(name), write_table(folder), None, {"approve": True})
            for name in (LONG, "south")
        ]
        sites[0].pin_roster()
    waiting = StudyProgress("1", "training", 7, {LONG: "its owner has not approved the study yet"})
    (hub.path / "runs" / "heart").mkdir(parents=True)
    (hub.path / "runs" / "heart" / PROGRESS).write_bytes(msgspec.json.encode(waiting))
    for name in ("heart", "lungs"):
        sites[0].note_study(parse_remote_study(f'name = "{name}"\nlabel = "label"\n[learner]\n'))
    shown = CliRunner().invoke(app, ["site", "approve", str(sites[0].path), "heart"])
    assert shown.exit_code == 0, shown.output
    return hub, sites[0]


def shown_at(width, *words):
    """Runs a command in a terminal of given width: nothing is cut off or wider, except what is there to be copied."""
    shown = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": str(width)})
    assert shown.exit_code == 0, shown.output
    assert "…" not in shown.output
    for line in shown.output.splitlines():
        assert cell_len(line) <= width or "/" in line or " " not in line.strip(), line
    return "".join(shown.output.split())


@pytest.mark.parametrize("width", [120, 80, 60, 40])
def test_status_and_approvals_are_complete_at_any_terminal_width(long_names, width):
    hub, member = long_names
    at_hub = shown_at(width, "study", "status", hub.path)
    words = [site.words for site in coordinator_status(hub).sites.values()]
    assert all(word in at_hub for of_site in words for word in of_site.split())
    assert "(itsownerhasnotapprovedthestudyyet)" in at_hub
    at_site, asked = shown_at(width, "site", "status", member.path), shown_at(width, "site", "approve", member.path)
    assert LONG in at_site
    for study, state in site_status(member).studies.items():
        assert f"{study!r}:{state}".replace(" ", "") in at_site
        assert study.replace(" ", "") in asked
    assert "waitsforyourapproval" in at_site
    assert "'lungs" in at_site


def test_a_site_with_a_full_disk_still_shows_its_status(folders, monkeypatch):
    """Opening a SQLite file takes disk space: without any, keys and budget are unknown, and the rest is shown."""
    _, member = folders

    def full(*_):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr("silvan.util.sqlite_file._prepare", full)
    shown = CliRunner().invoke(app, ["site", "status", str(member.path)])
    assert shown.exit_code == 0
    assert "north of" in shown.output
    assert "The disk is full" in shown.output
    assert "Privacy budget" not in shown.output
    assert "silvan_budget_spent" not in metrics(site_status(JoinedSite(member.path)))
