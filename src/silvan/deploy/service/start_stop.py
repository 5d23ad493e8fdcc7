"""Starts and stops the processes of a coordinator's folder, of a site's, and of a federation on one machine."""

import secrets
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

from silvan.deploy.jobs.job_folder import remove_old_jobs
from silvan.deploy.membership.certificates import ends_soon
from silvan.deploy.membership.coordinator_folder import CoordinatorFiles, roster_fingerprint
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.membership.site_files import check_table
from silvan.deploy.service.process import Background, client_arguments, require_flare, server_arguments, wait_for_port
from silvan.errors import FederationError, InputError
from silvan.privacy.file_marks import BEHIND, FROM_BACKUP
from silvan.privacy.site_folder import KEY
from silvan.util import watchdog
from silvan.util.files import check_private

SERVER, STUDIES, SITE = "server", "studies", "site"
_START_SECONDS = 60.0
PORT_SECONDS = 10.0
"""Seconds that a process which was killed may take to let go of a port."""


def start_coordinator(hub: CoordinatorFiles) -> list[Background]:
    """Start the coordinator's processes: FLARE's server, and the one that runs studies, unless they run."""
    require_flare()
    for path in hub.private_files():
        check_private(path)
    server, studies = processes_of(hub)
    missing = [process for process in (server, studies) if process.pid is None]
    if not missing:
        raise InputError(f"{hub.path}: it is running already; `silvan study stop` ends it")
    if server in missing:
        _start_server(hub, server)
    if studies in missing:
        studies.start(["-u", "-m", "silvan.deploy.service.studies", str(hub.path)], hub.path)
    return [server, studies]


def _start_server(hub: CoordinatorFiles, server: Background) -> None:
    port = hub.read().port
    if not wait_for_port("localhost", port, PORT_SECONDS, used=False):
        raise InputError(f"port {port} is in use by another program; stop that, or name another port at init")
    remove_old_jobs(hub.path / "server" / "kept" / "jobs")
    hub.renew(*hub.ending())
    server.start(server_arguments(hub.path / "server"), hub.path / "server")
    if not wait_for_port("localhost", port, _START_SECONDS) or server.pid is None:
        line = server.last_log_line()
        server.stop()
        raise FederationError(f"{server.name} did not start: {line or 'see its log'} ({server.log})")


def prepare_site(member: JoinedSite, by: str | None = None) -> list[str]:
    """Check what a site needs to start: its certificate, renewed if it expires soon, its table, everybody's keys.

    Returns notes for the owner. If the policy was changed, the ledger records who started the site with it.
    """
    lines = []
    if ends_soon(member.certificate):
        member.renew()
        end = f"{member.certificate.not_valid_after_utc:%Y-%m-%d}"
        lines.append(f"The certificate was about to end and is renewed, until {end}.")
    check_table(member.source(), memory=member.settings.get("memory"))
    member.note_policy(by)
    roster = member.pin_roster()
    if roster is not None:
        lines.append(f"All keys together in words: {roster_fingerprint(roster)}")
    return lines


def start_site(member: JoinedSite, *, foreground: bool = False) -> Background:
    """Start a site's process, or turn this one into it; raise an error if it cannot run, or a key is not private."""
    require_flare()
    for key in (member.path / KEY, member.startup / "client.key"):
        check_private(key)
    if (member.path / BEHIND).exists():
        raise InputError(
            f"the ledger in {member.path} lacks what others know of it: the folder is a copy, or was put back; see "
            f"what that means by `silvan site restored {member.path}`"
        )
    marker = member.path / FROM_BACKUP
    if marker.exists():
        raise InputError(
            f"{member.path} was put back from the backup of {marker.read_text().strip()}; see what that means, and "
            f"accept it, by `silvan site restored {member.path}`"
        )
    process, kit = process_of(member), member.path / "kit"
    if foreground:
        watchdog.tell(watchdog.READY)  # the new program reports that it is alive, in ``launchers.py``
    (process.become if foreground else process.start)(client_arguments(kit, member.name), kit)
    return process


def processes_of(hub: CoordinatorFiles) -> list[Background]:
    """Return the coordinator's processes: FLARE's server, then the one that runs studies."""
    return [Background(hub.path, SERVER), Background(hub.path, STUDIES)]


def process_of(member: JoinedSite) -> Background:
    """Return a site's process."""
    return Background(member.path, SITE)


def stop_all(processes: list[Background]) -> int:
    """Stop processes; return how many were running."""
    return sum(process.stop() for process in processes)


def wait_for_end(processes: list[Background]) -> None:
    """Wait until one of the processes ends or this process is told to stop, then stop them all."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    watchdog.tell(watchdog.READY)
    watchdog.keep_telling()
    try:
        while all(process.pid is not None for process in processes):
            time.sleep(0.5)
        raise FederationError("a process ended by itself; the logs say why")
    except KeyboardInterrupt:
        pass
    finally:
        stop_all(processes)


# -- all on one machine: the coordinator and every site, each a separate process, with mutual TLS


def free_port() -> int:
    """Return a port that no process uses."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)  # below those that the system assigns to outgoing connections
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def make_local(
    folder: Path, tables: dict[str, str], report: Callable[[str], None] = lambda text: None
) -> tuple[CoordinatorFiles, list[JoinedSite]]:
    """Make a federation on this machine, and start its processes."""
    hub = CoordinatorFiles.create(folder / "coordinator", "local", list(tables), "localhost", free_port())
    return hub, start_local(hub, folder, tables, report)


def start_local(
    hub: CoordinatorFiles, folder: Path, tables: dict[str, str], report: Callable[[str], None] = lambda text: None
) -> list[JoinedSite]:
    """Start a coordinator; make a site join for each table, in a folder of its name, and start it."""
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
