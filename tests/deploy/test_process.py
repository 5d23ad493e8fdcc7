"""Processes in the background and in the foreground: a folder identifies each, and there is only one per folder."""

import subprocess
import sys
import time

import pytest

from silvan.deploy.service.process import Background
from silvan.errors import InputError
from silvan.util.pid_file import is_running

SLEEP = ["-c", "import time; time.sleep(600)"]


def wait_for(there):
    end = time.monotonic() + 60
    while not there():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def background(tmp_path):
    made = Background(tmp_path, "site")
    yield made
    made.kill()


def in_foreground(folder):
    """Starts another process that becomes the folder's."""
    code = (
        f"from pathlib import Path; from silvan.deploy.service.process import Background; "
        f"Background(Path({str(folder)!r}), 'site').become({SLEEP!r}, Path({str(folder)!r}))"
    )
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)


def test_a_foreground_process_is_found_and_can_be_stopped(tmp_path, background):
    with in_foreground(tmp_path) as process:
        wait_for(lambda: background.pid == process.pid)
        process.poll()
        assert background.stop()
        process.wait(10)
    assert background.pid is None


@pytest.mark.parametrize("first", ["background", "foreground"])
@pytest.mark.parametrize("second", ["background", "foreground"])
def test_a_second_process_is_refused_with_a_message(tmp_path, background, first, second):
    running = None
    if first == "background":
        background.start(SLEEP, tmp_path)
    else:
        running = in_foreground(tmp_path)
        wait_for(lambda: background.pid == running.pid)
    pid = background.pid
    if second == "background":
        with pytest.raises(InputError, match=rf"site is running already \(process {pid}\)"):
            Background(tmp_path, "site").start(SLEEP, tmp_path)
    else:
        with in_foreground(tmp_path) as other:
            assert "running already" in other.communicate(timeout=60)[1]
            assert other.returncode
    assert "tried to start a second site and was refused" in background.log.read_text()
    assert background.pid == pid
    if running is not None:
        running.kill()
        running.communicate()


def test_a_process_that_ended_by_itself_is_reaped(tmp_path, background):
    """Otherwise it stays in the process list as long as its parent runs."""
    pid = background.start(["-c", "pass"], tmp_path)
    wait_for(lambda: background.pid is None)
    assert is_running(pid)  # ended, and still listed
    assert not background.stop()
    assert not is_running(pid)
