"""A coordinator's folder as pages: the state of studies, and what may be started, without any other machine."""

import msgspec
import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from helpers.browsing import act, open_page
from helpers.joining import make_hub

from silvan.deploy.jobs.job_progress import PROGRESS, StudyProgress
from silvan.deploy.service.submissions import CANCELLED
from silvan.study.run_folder import Record, Run, SiteRows
from silvan.util.folder_lock import lock_folder
from silvan.web.coordinator_pages import CoordinatorFolder

STUDY = 'name = "heart"\nlabel = "y"\n[learner]\nkind = "HistogramForest"\n'


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    made = make_hub(tmp_path_factory.mktemp("pages"), [f"site-{i}" for i in range(200)])
    (made.path / "heart.toml").write_text(STUDY)
    (made.path / "wrong.toml").write_text(STUDY.replace("Histogram", "<b>"))
    runs = {
        "waits": StudyProgress("1", "training", 7, waiting={"site-3": "its owner has not approved the study yet"}),
        "lost": StudyProgress("2", "failed", 3, error="no <i>quorum</i>", final=True),
        "over": StudyProgress("3", "training", 2),
        "taken-back": StudyProgress("4", "training", 2),
    }
    for name, progress in runs.items():
        run = Run(made.path / "runs" / name)
        run.write(Record(name=name, sites=[SiteRows("site-3", 10)]))
        run.file(PROGRESS).write_bytes(msgspec.json.encode(progress))
        run.file("study.toml").write_text(STUDY)
    (made.path / "runs" / "taken-back" / CANCELLED).touch()
    (made.path / "runs" / "torn").mkdir()
    (made.path / "runs" / "torn" / "run.json").write_text("{")
    return made


@pytest.fixture
def page(hub, monkeypatch):
    monkeypatch.setattr("silvan.web.run_view._RECENT", 0.0)
    return open_page(CoordinatorFolder(hub.path))


def state_of(client, name):
    text = client.get(f"/studies/{name}").text
    return text.split('<span class="state is-')[1].split('"')[0], text


def test_the_state_of_studies(hub, page):
    client, _ = page
    with lock_folder(hub.path / "runs" / "waits"):  # as its job does
        state, text = state_of(client, "waits")
    assert state == "running"
    assert "its owner has not approved the study yet" in text
    assert "Cancel" in text
    assert state_of(client, "lost")[0] == "failed"
    assert "no &lt;i&gt;quorum&lt;/i&gt;" in state_of(client, "lost")[1]
    assert "Run again" in state_of(client, "lost")[1]
    assert state_of(client, "over")[0] == "stopped"
    assert state_of(client, "taken-back")[0] == "cancelled"
    assert state_of(client, "torn")[0] == "unreadable"


def test_all_in_one_page(hub, page):
    client, _ = page
    text = client.get("/").text
    assert "not running" in text
    assert text.count('id="run-') == 5
    assert "has an error" in text
    assert "&lt;b&gt;Forest" in text
    assert client.get("/sites").text.count('id="site-') == 200


def test_studies_that_cannot_be_started(hub, page):
    client, access = page
    assert "has not joined yet" in act(client, access, "run", file="heart.toml")
    assert "no such study file" in act(client, access, "run", file="../hub/heart.toml")
    assert "no such study file" in act(client, access, "run", file="hub.json")
    assert "there is no learner" in act(client, access, "run", file="wrong.toml")
    assert "Nothing to cancel" in act(client, access, "cancel", run="over")
    assert "Nothing was running" in act(client, access, "stop")
    (hub.path / "coordinator.key").chmod(0o644)
    assert "others on this machine can read" in act(client, access, "start")
    (hub.path / "coordinator.key").chmod(0o600)
    assert not list((hub.path / "runs").glob("heart-*"))


def test_keys_are_never_sent(hub, page):
    client, _ = page
    for path in ("coordinator.key", "authority/root.key", "hub.json", "runs/over/run.json", "studies/over/study.toml"):
        assert client.get(f"/{path}").status_code == 404
