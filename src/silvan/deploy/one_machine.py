"""A whole federation on one machine: the coordinator and every site, each a process of its own, with mutual TLS."""

import secrets
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from silvan.deploy.hub import Hub
from silvan.deploy.member import Member
from silvan.deploy.process import (
    Background,
    client_arguments,
    need_flare,
    server_arguments,
    wait_for_port,
    wait_until_free,
)
from silvan.errors import FederationError, InputError

SERVER, ENROL, SITE = "server", "enrol", "site"
_PATIENCE = 60.0
_LEAVING = 10.0
"""Seconds that a process which was killed may take to let go of a port."""


def start_hub(hub: Hub) -> list[Background]:
    """Start the coordinator's processes: FLARE's server, and the service by which sites join."""
    need_flare()
    content = hub.read()
    server, enrol = Background(hub.path, SERVER), Background(hub.path, ENROL)
    for process in (server, enrol):
        if process.pid is not None:
            raise InputError(f"{hub.path}: it is running already; `silvan study stop` ends it")
    for port in (content.port, content.port + 1):
        if not wait_until_free("localhost", port, _LEAVING):
            raise InputError(f"port {port} is in use by another program; stop that, or name another port at init")
    enrol.start(["-u", "-m", "silvan.deploy.enrol", str(hub.path)], hub.path)
    server.start(server_arguments(hub.path / "server"), hub.path / "server")
    for process, port in ((enrol, content.port + 1), (server, content.port)):
        if not wait_for_port("localhost", port, _PATIENCE) or process.pid is None:
            said = process.last_words()
            stop_all([server, enrol])
            raise FederationError(f"{process.name} did not start: {said or 'see its log'} ({process.log})")
    return [server, enrol]


def start_site(member: Member) -> Background:
    """Start a site's process."""
    need_flare()
    process = Background(member.path, SITE)
    process.start(client_arguments(member.path / "kit", member.name), member.path / "kit")
    return process


def processes_of(hub: Hub) -> list[Background]:
    """Give the coordinator's processes."""
    return [Background(hub.path, SERVER), Background(hub.path, ENROL)]


def process_of(member: Member) -> Background:
    """Give a site's process."""
    return Background(member.path, SITE)


def stop_all(processes: list[Background]) -> int:
    """End processes; say how many there were."""
    return sum(process.stop() for process in processes)


def stay(processes: list[Background]) -> None:
    """Wait until one of the processes ends or somebody stops us, then end them all."""

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    try:
        while all(process.pid is not None for process in processes):
            time.sleep(0.5)
        raise FederationError("a process ended by itself; the logs say why")
    except KeyboardInterrupt:
        pass
    finally:
        stop_all(processes)


def free_port() -> int:
    """Find two ports in a row that nobody uses."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)  # below those that the system gives to whoever connects
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
        return port


def make_local(
    folder: Path,
    tables: dict[str, str],
    port: int | None = None,
    name: str = "local",
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Hub, list[Member]]:
    """Make a federation on this machine, and start all of it."""
    hub = Hub.create(folder / "coordinator", name, list(tables), "localhost", port or free_port())
    started = start_hub(hub)
    say(f"the coordinator runs on port {hub.read().port}")
    members = []
    try:
        for site, table in tables.items():
            member = Member.join(folder / site, hub.invite(site), table, None, {})
            members.append(member)
            say(f"{site} has joined: {member.words}")
        for member in members:
            member.pin_roster()
            started.append(start_site(member))
    except BaseException:
        stop_all(started)
        raise
    return hub, members
