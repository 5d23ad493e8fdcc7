"""The address of a database server, and connecting to it, with messages that explain failures."""

import getpass
import os
import socket
from collections.abc import Mapping
from ssl import CERT_NONE, SSLContext, create_default_context
from typing import Any, NamedTuple
from urllib.parse import unquote

from silvan.data.readers.query import Query
from silvan.errors import InputError, UnavailableError

_SSL = ("disable", "prefer", "require", "verify-full")


class Address(NamedTuple):
    """A server, a database on it, the user, and the kind of connection."""

    host: str
    port: int
    database: str
    user: str
    ssl: str
    root: str | None
    timeout: float
    driver: str

    @property
    def socket_file(self) -> str:
        """The file of the server's Unix socket, if it has one."""
        return f"{self.host.rstrip('/')}/.s.PGSQL.{self.port}" if self.host.startswith("/") else ""

    def login(self, password: str | None) -> dict[str, Any]:
        """Return host, port, user and password by the drivers' parameter names."""
        return {"host": self.host, "port": self.port, "user": self.user, "password": password}

    def tls(self) -> SSLContext | None:
        """Return the rules for an encrypted connection; None if encryption is not requested."""
        if self.ssl in ("disable", "prefer") or self.socket_file:
            return None
        try:
            context = create_default_context(cafile=self.root)
        except OSError:
            raise InputError.about("sslrootcert", f"{self.root!r} cannot be read; check the path") from None
        if self.ssl == "require":
            context.check_hostname, context.verify_mode = False, CERT_NONE
        return context

    def open(self, server: str) -> socket.socket:
        """Connect to the port; ``server`` is the kind of server expected there, for messages."""
        host, port, timeout = self.host, self.port, self.timeout
        try:
            if not self.socket_file:
                return socket.create_connection((host, port), timeout)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(timeout)
                sock.connect(self.socket_file)
            except OSError:
                sock.close()
                raise
            return sock
        except socket.gaierror:
            raise InputError(f"there is no host {host!r}; check the name in the URL, and the network") from None
        except TimeoutError:
            raise UnavailableError(
                f"{host!r} does not answer within {timeout:g} s; check host, port, firewall"
            ) from None
        except OSError:
            raise UnavailableError(
                f"no {server} server listens at {host!r}, port {port}; check host and port, and that it runs"
            ) from None


def find_address(query: Query, usual_port: int) -> Address:
    """Return the address in a URL; for PostgreSQL, the environment supplies missing parts."""
    parts, settings = query.parts, query.settings()
    postgres = query.scheme == "postgresql"
    given: Mapping[str, str] = os.environ if postgres else {}
    host = settings.get("host") or parts.hostname or given.get("PGHOST") or "localhost"
    near = host.startswith(("/", "127.")) or host in ("localhost", "::1")
    mode = settings.get("sslmode") or given.get("PGSSLMODE") or ("prefer" if near else "verify-full")
    if mode not in _SSL:
        raise InputError.wrong("sslmode", f"one of {', '.join(_SSL)}", mode)
    try:
        port = int(parts.port or given.get("PGPORT") or usual_port)
        timeout = float(settings.get("connect_timeout") or given.get("PGCONNECT_TIMEOUT") or 15)
    except ValueError:
        raise InputError("the port and connect_timeout of a database must be numbers") from None
    user = unquote(parts.username or "") or given.get("PGUSER") or getpass.getuser()
    database = unquote(parts.path.lstrip("/")) or given.get("PGDATABASE") or (user if postgres else "")
    if not database:
        raise InputError(f"the URL must name the database: {parts.scheme}://user@{host}/DATABASE")
    root = settings.get("sslrootcert") or given.get("PGSSLROOTCERT")
    return Address(host, port, database, user, mode, root, timeout, settings.get("driver") or "")
