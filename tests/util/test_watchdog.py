"""A service tells systemd that it is ready and alive."""

import os
import socket

import pytest

from silvan.util import watchdog


@pytest.fixture(params=["path", "abstract"])
def heard(request, tmp_path, monkeypatch):
    """A socket in place of systemd's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        name = str(tmp_path / "notify") if request.param == "path" else f"@silvan-{os.getpid()}"
        line.bind(name.replace("@", "\0"))
        line.settimeout(20.0)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield line


def test_a_service_notifies_systemd(heard):
    watchdog.tell(watchdog.READY)
    assert heard.recv(100) == b"READY=1"


def test_a_service_sends_heartbeats(heard, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    watchdog.keep_telling()
    assert [heard.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [("120000000", None, 60.0), ("120000000", "own", 60.0), ("120000000", "1", None), ("", None, None)],
)
def test_only_the_main_process_notifies_systemd(usec, pid, seconds, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    if pid is not None:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "own" else pid)
    assert watchdog.interval() == seconds


def test_without_systemd_nothing_is_sent(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    watchdog.tell(watchdog.READY)
