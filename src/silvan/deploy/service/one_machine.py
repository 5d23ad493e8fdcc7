"""A whole federation on one machine: the coordinator and every site, each a process of its own, with mutual TLS."""

import secrets
import socket
from collections.abc import Callable
from pathlib import Path

from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.service.start_stop import start_coordinator, start_site, stop_all


def free_port() -> int:
    """Return the first of two ports in a row that no process uses."""
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
    report: Callable[[str], None] = lambda text: None,
) -> tuple[CoordinatorFiles, list[JoinedSite]]:
    """Make a federation on this machine, and start its processes."""
    hub = CoordinatorFiles.create(folder / "coordinator", "local", list(tables), "localhost", free_port())
    return hub, start_local(hub, folder, tables, report)


def start_local(
    hub: CoordinatorFiles, folder: Path, tables: dict[str, str], report: Callable[[str], None] = lambda text: None
) -> list[JoinedSite]:
    """Start a coordinator; have a site join for each table, in a folder of its name, and start it."""
    started = start_coordinator(hub)
    report(f"the coordinator runs on port {hub.read().port}")
    members = []
    try:
        for site, table in tables.items():
            member = JoinedSite.join(folder / site, hub.invite(site), table, None, {})
            members.append(member)
            report(f"{site} has joined: {member.fingerprint}")
        for member in members:
            member.pin_roster()
            started.append(start_site(member))
    except BaseException:
        stop_all(started)
        raise
    return members
