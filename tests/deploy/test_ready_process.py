"""A waiting process takes over a job; if there is none, or it has ended, a new one is started."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_launcher_spec import JobReturnCode

from silvan.deploy.jobs import tiny_studies
from silvan.deploy.jobs.launchers import READY_PROCESS, ServerLauncher, SiteLauncher
from silvan.deploy.membership.startup_kit import process_file
from silvan.util.pid_file import read_pid

STUDY = {"job_id": "one"}


class _Context:
    """What a launcher needs of FLARE's context: the place of the job's own code, and no arguments."""

    def __init__(self, folder: Path) -> None:
        self.workspace = SimpleNamespace(
            get_app_custom_dir=lambda job: str(folder / "custom"), get_run_dir=lambda job: str(folder / job)
        )

    def get_prop(self, name: str) -> Any:
        return self.workspace if name == FLContextKey.WORKSPACE_OBJECT else None


class _Launcher(SiteLauncher):
    """Starts FLARE's program for a site's job, which prints its help and ends."""

    def get_command(self, job_meta: dict[str, Any], fl_ctx: Any) -> str:
        return f"python -m {self.program} --help"


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv(READY_PROCESS, raising=False)
    launcher = _Launcher()
    yield launcher
    launcher.handle_event(EventType.SYSTEM_END, None)


def test_prepared_studies_run() -> None:
    tiny_studies.run(at_site=False)


def test_a_waiting_site_loads_nothing_for_coordinators() -> None:
    """Learners and scikit-learn, with their imports, would take 90 MB at every site."""
    load = "silvan.deploy.jobs.ready_process.load('nvflare.private.fed.app.client.worker_process')"
    unwanted = ["sklearn", "pandas", "scipy.linalg", "silvan.learners.base"]
    names = [*unwanted, "silvan.tree.grow", "silvan.deploy.jobs.tiny_studies"]
    loaded = f"print([m for m in {names} if m in sys.modules])"
    code = f"import sys, silvan.deploy.jobs.ready_process; {load}; {loaded}"
    waiting, no_job = os.pipe()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, stdin=waiting)
    os.close(waiting)
    os.close(no_job)
    assert done.stdout.strip().endswith(str(names[len(unwanted) :]))


def test_a_job_goes_to_the_process_that_waits(
    launcher: _Launcher, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    launcher.handle_event(EventType.SYSTEM_START, None)
    waiting = launcher._waiting
    launcher.prepare()
    assert launcher._waiting is waiting  # one at a time
    handle = launcher.launch_job(STUDY, _Context(tmp_path))
    assert handle.adapter.process is waiting
    handle.wait()
    assert handle.poll() == JobReturnCode.SUCCESS
    assert "--job_id" in capfd.readouterr().out  # it became FLARE's program, with the job's arguments


def test_an_ended_process_gets_no_job(launcher: _Launcher, tmp_path: Path) -> None:
    launcher.prepare()
    waiting = launcher._waiting
    assert waiting is not None
    waiting.kill()
    waiting.wait()
    handle = launcher.launch_job(STUDY, _Context(tmp_path))
    assert handle.adapter.process is not waiting
    handle.wait()
    assert handle.poll() == JobReturnCode.SUCCESS


@pytest.mark.parametrize("ready", [True, False])
def test_the_server_notes_the_process_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: bool) -> None:
    """Without this a supervisor takes a process that is slow to start for gone."""

    class Launcher(ServerLauncher):
        def get_command(self, job_meta: dict[str, Any], fl_ctx: Any) -> str:
            return f"{sys.executable} -m {self.program} --help"

    if ready:
        monkeypatch.delenv(READY_PROCESS, raising=False)
    launcher = Launcher()
    launcher.prepare()
    (tmp_path / "one").mkdir()
    handle = launcher.launch_job(STUDY, _Context(tmp_path))
    try:
        noted = process_file(tmp_path / "one")
        assert noted.read_text().split()[0] == str(handle.adapter.pid)
        handle.wait()
        assert read_pid(noted) is None
    finally:
        launcher.handle_event(EventType.SYSTEM_END, None)


def test_a_job_with_custom_code_gets_a_new_process(launcher: _Launcher, tmp_path: Path) -> None:
    launcher.prepare()
    (tmp_path / "custom").mkdir()
    handle = launcher.launch_job(STUDY, _Context(tmp_path))
    assert handle.adapter.process is not launcher._waiting
    handle.wait()
    assert launcher._waiting is not None  # and still waits


def test_a_process_that_waits_ends_with_its_launcher(launcher: _Launcher) -> None:
    launcher.prepare()
    waiting = launcher._waiting
    assert waiting is not None
    assert waiting.stdin is not None
    waiting.stdin.close()  # as when the launcher's process is gone
    end = time.monotonic() + 60
    while waiting.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert waiting.poll() == 0


def test_no_process_waits_if_the_setting_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(READY_PROCESS, "off")
    launcher = _Launcher()
    launcher.handle_event(EventType.SYSTEM_START, None)
    assert launcher._waiting is None
