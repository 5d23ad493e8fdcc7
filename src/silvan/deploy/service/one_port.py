"""The coordinator's one port: sites join over it, and studies run over it.

A caller that wants to join says so in its first message of TLS (ALPN); everybody else is a FLARE process and must
show a certificate that the federation accepts *now*: connections of a removed site, or of one with two running
processes, are refused, and closed at once if they are open. FLARE itself accepts any unexpired certificate that the
federation's authority signed, lets two processes of one site displace each other for ever, and handles handshakes one
after the other.
"""

import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from socket import MSG_PEEK, socket
from socketserver import ThreadingTCPServer
from typing import Any

from nvflare.fuel.f3.drivers import tcp_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.net_utils import get_ssl_context
from nvflare.fuel.f3.drivers.socket_conn import SocketConnection

from silvan.deploy.membership.certificates import common_name, key_digest, read_der
from silvan.deploy.membership.coordinator_folder import CERTIFICATES, HUB, CoordinatorFiles
from silvan.deploy.membership.enrol import JOINING, PROCESS, make_server

log = logging.getLogger("silvan.port")

HANDSHAKE_SECONDS = 20.0
"""Seconds that a caller has to say what it wants, and for its handshake."""

_REMEMBERED = 1000

_LOOK = 0.25
"""Seconds between two looks at who is in the federation."""

_HELLO, _CLIENT_HELLO, _ALPN = 22, 1, 16
"""Numbers of TLS: a record with a handshake, the message in it, and the extension that names protocols."""


class Gatekeeper:
    """Decides by the coordinator's folder who may connect, and closes connections of those who may not any more."""

    def __init__(self, hub: CoordinatorFiles) -> None:
        self.hub = hub
        self.forget: Callable[[str], None] = lambda site: None  # makes FLARE forget that a site is there
        self._open: set[WatchedConnection] = set()
        self._processes: dict[str, list[str]] = {}  # processes that came with a key, the last one last
        self._lock = threading.Lock()

    def admitted(self) -> dict[str, str]:
        """Return who may connect: names by the digest of the key in their certificate."""
        own = self.hub.path / CERTIFICATES[1]  # of the process that submits studies
        content = self.hub.read()
        found = {key_digest(own.read_bytes()): ""}
        return found | {one.certificate: name for name, one in content.sites.items() if one.key and not one.stopped}

    def enter(self, connection: "WatchedConnection") -> bool:
        """Record a connection; return whether it may stay.

        A process that returns after another one came with its key was not replaced by it: both are alive.
        """
        with self._lock:
            if connection.key not in self.admitted():
                return False
            self._open.add(connection)
            came = self._processes.setdefault(connection.key, [])
            both_alive = connection.process in came[:-1]
            if connection.process and connection.process not in came[-1:]:
                came.append(connection.process)
                del came[:-_REMEMBERED]
        if both_alive:
            where = sorted({one.peer for one in self._open if one.key == connection.key})
            what = f"two processes answered for it at the same time, at {' and '.join(where)}"
            log.warning("%s is stopped: %s", connection.name_of_site, what)
            self.hub.stop_site(connection.name_of_site, what)
            self.look()
            with self._lock:
                del self._processes[connection.key]
        return not both_alive

    def leave(self, connection: "WatchedConnection") -> None:
        """Record that a connection has ended."""
        with self._lock:
            self._open.discard(connection)

    def look(self) -> None:
        """Close the connections of those who may not connect any more."""
        admitted = self.admitted()
        with self._lock:
            gone = [one for one in self._open if one.key not in admitted]
        for one in gone:
            log.warning("%s may not connect any more: its connection from %s is closed", one.name_of_site, one.peer)
            self.leave(one)
            one.close()
        for site in {one.name_of_site for one in gone}:
            self.forget(site)

    def watch(self) -> None:
        """Check whenever the coordinator's folder has changed, as long as the process runs."""
        known = None
        while True:
            with contextlib.suppress(Exception):
                now = (self.hub.path / HUB).stat().st_mtime_ns
                if now != known:
                    self.look()
                    known = now
            time.sleep(_LOOK)


class WatchedConnection(SocketConnection):
    """A connection of FLARE's: its certificate, and the process that made it."""

    def __init__(self, secured: ssl.SSLSocket, connector: Any, process: str) -> None:
        super().__init__(secured, connector, True)
        certificate = read_der(secured.getpeercert(binary_form=True) or b"")
        self.key, self.name_of_site = key_digest(certificate), common_name(certificate)
        self.peer = str(secured.getpeername()[0])
        self.process = process  # which one of its site; empty for those of jobs


class OnePort(ThreadingTCPServer):
    """Listens on the coordinator's port in place of FLARE's own server."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, driver: Any, connector: Any, gatekeeper: Gatekeeper) -> None:
        self.driver, self.connector, self.gatekeeper = driver, connector, gatekeeper
        self.ssl_context = get_ssl_context(connector.params, ssl_server=True)
        self.joining = make_server(gatekeeper.hub)
        params = connector.params
        host, port = params.get(DriverParams.HOST.value), int(params.get(DriverParams.PORT.value))
        super().__init__((host, port), None)  # type: ignore[arg-type]  # ``finish_request`` handles

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a caller, in a thread of its own."""
        request.settimeout(HANDSHAKE_SECONDS)
        hello = first_message(request)
        if not hello:
            return  # somebody only probed whether the port is open
        said = protocols_of(hello)
        if JOINING in said:
            self.joining.finish_request(request, client_address)
            return
        try:
            secured = self.ssl_context.wrap_socket(request, server_side=True)
        except (OSError, ssl.SSLError) as error:
            log.info("%s was refused: %s", client_address[0], getattr(error, "reason", None) or "no handshake")
            return
        with secured:
            secured.settimeout(None)
            connection = WatchedConnection(
                secured, self.connector, "".join(one for one in said if one.startswith(PROCESS))
            )
            if not self.gatekeeper.enter(connection):
                log.warning("%s from %s was refused: taken out, or stopped", connection.name_of_site, connection.peer)
                return
            try:
                self.driver.add_connection(connection)
                connection.read_loop()
                self.driver.close_connection(connection)
            finally:
                self.gatekeeper.leave(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write an error to the log, in one line."""
        log.info("a caller from %s could not be served", client_address[0], exc_info=log.isEnabledFor(logging.DEBUG))


def first_message(request: socket) -> bytes:
    """Return the first message of a caller, without consuming it; empty if there is none in time."""
    end = time.monotonic() + HANDSHAKE_SECONDS
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            data = request.recv(1 << 14, MSG_PEEK)
            whole = 5 + int.from_bytes(data[3:5], "big") if len(data) >= 5 else 5
            if not data or data[0] != _HELLO or len(data) >= min(whole, 1 << 14):
                return data
            time.sleep(0.01)
    return b""


def protocols_of(hello: bytes) -> list[str]:
    """Return the protocols in the first message of TLS; none for anything else."""
    found: list[str] = []
    with contextlib.suppress(IndexError):
        if hello[0] != _HELLO or hello[5] != _CLIENT_HELLO:
            return found
        at = 5 + 4 + 2 + 32  # record, message, version, random numbers
        at += 1 + hello[at]  # session
        at += 2 + int.from_bytes(hello[at : at + 2], "big")  # ciphers
        at += 1 + hello[at]  # compression
        at += 2
        while at + 4 <= len(hello):
            kind, size = (int.from_bytes(hello[at + i : at + i + 2], "big") for i in (0, 2))
            at += 4
            if kind == _ALPN:
                names = hello[at + 2 : at + size]
                while names:
                    found.append(names[1 : 1 + names[0]].decode("ascii", "replace"))
                    names = names[1 + names[0] :]
            at += size
    return found


def listen_on_one_port(hub: CoordinatorFiles) -> Gatekeeper:
    """Make FLARE's server listen through ``OnePort`` where it would listen with TLS; return the watcher."""
    gatekeeper, flares_own = Gatekeeper(hub), tcp_driver.TcpStreamServer

    def make(driver: Any, connector: Any) -> Any:
        if get_ssl_context(connector.params, ssl_server=True) is None:  # on loopback, for processes of jobs
            return flares_own(driver, connector)
        return OnePort(driver, connector, gatekeeper)

    tcp_driver.TcpStreamServer = make
    threading.Thread(target=gatekeeper.watch, daemon=True, name="silvan-gatekeeper").start()
    return gatekeeper
