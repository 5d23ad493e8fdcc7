"""What is not written: noise in logs, stack traces for callers that leave, FLARE's lines in a user's terminal."""

import errno
import logging
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from helpers.joining import make_hub, serving, write_table
from helpers.runs import silvan
from nvflare.fuel.f3.drivers.driver_params import DriverParams

from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.service.one_port import Gatekeeper, OnePort
from silvan.deploy.service.process import port_in_use
from silvan.federation.flare import TOPIC


@pytest.mark.parametrize(("topic", "logged"), [(TOPIC, False), ("another", True)])
def test_messages_before_a_site_is_ready_are_not_logged(caplog, topic, logged):
    """Each job would have ten such lines; they are sent again."""
    with caplog.at_level(logging.INFO):
        logging.getLogger("nvflare.private.aux_runner.AuxRunner").error("received unknown aux message topic %s", topic)
    assert bool(caplog.records) == logged


def test_flare_prints_nothing_into_a_terminal():
    """Commands set up no logging, and Python would print warnings and errors of libraries."""
    code = "import logging, silvan.federation.flare; logging.getLogger('nvflare.fuel.x').error('no connection')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == done.stderr == ""


@pytest.fixture
def port(tmp_path):
    """The coordinator's port, as FLARE's server listens on it."""
    hub = make_hub(tmp_path, ["north"])
    startup = hub.path / "server" / "startup"
    params = {
        DriverParams.HOST.value: "127.0.0.1",
        DriverParams.PORT.value: "0",
        DriverParams.SECURE.value: True,
        DriverParams.CA_CERT.value: str(startup / "rootCA.pem"),
        DriverParams.SERVER_CERT.value: str(startup / "server.crt"),
        DriverParams.SERVER_KEY.value: str(startup / "server.key"),
    }
    server = OnePort(SimpleNamespace(), SimpleNamespace(params=params), Gatekeeper(hub))
    server.daemon_threads = False  # so that closing it waits for all callers
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    for one in (server, server.joining):
        one.server_close()


CALLERS = {
    "who only looks": b"",
    "of another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "that leaves in its first message": b"\x16\x03\x01\x02\x00\x01",
    "of a broken handshake": b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
}


@pytest.mark.parametrize("case", CALLERS)
def test_no_stack_trace_for_a_caller(case, port, caplog, capfd):
    number = port.server_address[1]
    with caplog.at_level(logging.INFO):
        if CALLERS[case]:
            with socket.create_connection(("127.0.0.1", number)) as caller:
                caller.sendall(CALLERS[case])
        else:
            assert port_in_use("localhost", number)
        port.shutdown()
        port.server_close()  # waits for all callers
    assert [record for record in caplog.records if record.exc_info or record.levelno > logging.INFO] == []
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


def test_the_status_of_a_site_on_a_full_disk(tmp_path, monkeypatch):
    """SQLite's files cannot even be opened there, and the owner reads why."""
    hub = make_hub(tmp_path, ["north"])
    with serving(hub):
        member = JoinedSite.join(tmp_path / "north", hub.invite("north"), write_table(tmp_path), None, {})

    def no_room(*given):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(JoinedSite, "budget", no_room)
    shown = " ".join(silvan("site", "status", member.path).output.split())
    assert "disk is full" in shown
    assert "answers nothing until there is room" in shown
