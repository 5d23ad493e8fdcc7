"""Joining over the network: a small HTTPS service on the port of FLARE's server, and the site's side of it.

Callers name its protocol in their first message (``service/one_port.py``). A site trusts it by the root certificate and
the coordinator's key in its invitation; it admits a site by the invitation's secret, once, and by proof that the keys
are the site's own (``join_requests.py``). It renews certificates by the site's key. It discloses only versions, the
time, public keys, and which sites are stopped.
"""

import http.client
import logging
import ssl
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, version
from logging.handlers import RotatingFileHandler
from typing import Any, TypeVar

import msgspec

from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.join_requests import MAX_CLOCK_DIFFERENCE, JoinRequest, RenewRequest, proof_key
from silvan.deploy.membership.site_log import MAX_LOG, OLD_LOGS
from silvan.errors import FederationError, InputError, SilvanError
from silvan.util.files import UNREADABLE

log = logging.getLogger("silvan.enrol")

JOINING = "silvan-join"
"""The protocol name of callers, which distinguishes them from FLARE processes."""

PROCESS = "silvan-process-"
"""The protocol name of a site's process, with a random number: a copy of the site has another."""

_MAX_BODY = 1 << 16
"""Maximum bytes of a request."""


Answer = TypeVar("Answer")


class SiteKeys(msgspec.Struct, frozen=True):
    """A site's public keys, hexadecimal; empty until it has joined."""

    key: str
    seal: str
    stopped: str = ""  # why it may not connect at present


class CoordinatorInfo(msgspec.Struct, frozen=True):
    """The public information of the service: its clock, its versions, and everybody's public keys."""

    time: float
    versions: dict[str, str]
    coordinator: str
    sites: dict[str, SiteKeys]
    proof_key: str

    def check(self, here: dict[str, str]) -> None:
        """Raise ``InputError`` if this machine's clock or versions differ from the coordinator's."""
        check_clock(self.time, "the coordinator")
        check_versions(here, self.versions, "the coordinator")


def versions() -> dict[str, str]:
    """Return the versions that all machines of a federation must share."""
    found = {}
    for name in ("silvan", "nvflare"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def check_versions(here: dict[str, str], there: dict[str, str], who: str) -> None:
    """Raise ``InputError`` if versions differ."""
    for name, ours in here.items():
        if there.get(name) != ours:
            known = [version or "not installed" for version in (ours, there.get(name))]
            remedy = "install the same version on all machines"
            raise InputError(f"{name} is {known[0]} here and {known[1]} at {who}; {remedy}")


def check_clock(now: float, who: str) -> None:
    """Raise ``InputError`` if this machine's clock is far from another's."""
    off = time.time() - now
    if abs(off) > MAX_CLOCK_DIFFERENCE:
        way = "ahead of" if off > 0 else "behind"
        raise InputError(f"this machine's clock is {abs(off) / 60:.0f} minutes {way} that of {who}; set it (NTP)")


class _Handler(BaseHTTPRequestHandler):
    hub: CoordinatorFiles
    timeout = 20
    server_version = "silvan"
    sys_version = ""

    def do_GET(self) -> None:
        """Send versions, the time, and everybody's public keys."""
        if self.path != "/roster":
            self._send(404, {"error": "there is nothing here"})
            return
        key = self.hub.key
        sites = {name: SiteKeys(m.key, m.seal, m.stopped) for name, m in self.hub.read().sites.items()}
        self._send(200, CoordinatorInfo(time.time(), versions(), key.public.hex(), sites, proof_key(key)))

    def do_POST(self) -> None:
        """Admit a site, or renew its certificate."""
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if self.path not in ("/join", "/renew") or not 0 < length <= _MAX_BODY:
                self.rfile.read(min(max(length, 0), 16 * _MAX_BODY))  # unread, the sender would not get the reply
                raise InputError("there is nothing here")
            body = self.rfile.read(length)
            if self.path == "/renew":
                granted = self.hub.renew_site(msgspec.json.decode(body, type=RenewRequest))
            else:
                asked = msgspec.json.decode(body, type=JoinRequest)
                check_versions(versions(), asked.versions, f"site {asked.site!r}")
                granted = self.hub.admit(asked)
            self._send(200, granted)
        except (SilvanError, ValueError, RecursionError) as error:
            text = str(error) if isinstance(error, SilvanError) else "not a request to join"
            self._send(400, {"error": text})
        except OSError:
            log.exception("could not let a site join")
            self._send(500, {"error": "the coordinator failed; its log says why"})

    def _send(self, code: int, content: msgspec.Struct | dict[str, str]) -> None:
        body = msgspec.json.encode(content)
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  as http.server calls it
        """Write requests to the log."""
        log.info("%s %s", self.address_string(), format % args)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    context: ssl.SSLContext

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake in the request's own thread, so that a slow caller delays no other."""
        request.settimeout(20)
        with self.context.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write errors to the log."""
        log.info("a request could not be answered", exc_info=True)


def make_server(hub: CoordinatorFiles) -> ThreadingHTTPServer:
    """Return the service of a federation, for callers passed to it; it does not listen on a port itself."""
    content, startup = hub.read(), hub.path / "server" / "startup"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(startup / "server.crt", startup / "server.key")
    context.set_alpn_protocols([JOINING])
    server = _Server(("localhost", content.port), type("Handler", (_Handler,), {"hub": hub}), bind_and_activate=False)
    server.context = context
    return server


def ask_coordinator(host: str, port: int, root: str) -> CoordinatorInfo:
    """Return the service's public information; raise ``FederationError`` if it does not respond."""
    return call(host, port, root, "/roster", CoordinatorInfo)


def call(
    host: str, port: int, root: str, path: str, answer: type[Answer], content: msgspec.Struct | None = None
) -> Answer:
    """Send a request to the service and return its reply; raise ``FederationError`` if there is none."""
    context = ssl.create_default_context(cadata=root)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols([JOINING])
    where = f"{host}:{port}"
    connection = http.client.HTTPSConnection(host, port, timeout=20, context=context)
    try:
        connection.request(
            "GET" if content is None else "POST", path, None if content is None else msgspec.json.encode(content)
        )
        response = connection.getresponse()
        body = response.read(_MAX_BODY * 16)
        if response.status != 200:
            raise FederationError(f"the coordinator refused: {msgspec.json.decode(body, type=dict[str, str])['error']}")
        return msgspec.json.decode(body, type=answer)
    except ssl.SSLCertVerificationError as error:
        raise FederationError(_not_trusted(where, error)) from None
    except (OSError, http.client.HTTPException, LookupError, *UNREADABLE) as error:
        silent = isinstance(error, TimeoutError)
        reason = getattr(error, "strerror", None) or ("no answer in time" if silent else "not as a coordinator does")
        raise FederationError(
            f"the coordinator at {where} does not answer ({str(reason).lower()}); has it run `silvan study start`, and "
            "may this machine connect there?"
        ) from None
    finally:
        connection.close()


def _not_trusted(where: str, error: ssl.SSLCertVerificationError) -> str:
    if "expired" in error.verify_message:
        return (
            f"the certificate of {where} expired; `silvan study stop` and `start` there renew it; or a clock is wrong"
        )
    if "not yet valid" in error.verify_message:
        return f"the certificate of {where} is not valid yet: this machine's clock is behind; set it"
    return f"{where} is not the coordinator that invited you ({error.verify_message}); ask it for a new invitation"


def write_log(hub: CoordinatorFiles) -> None:
    """Write who joined, who connected and who was refused to a file of the coordinator's folder."""
    file = RotatingFileHandler(hub.path / "enrol.log", maxBytes=MAX_LOG, backupCount=OLD_LOGS)
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for name in ("silvan.enrol", "silvan.port"):
        logger = logging.getLogger(name)
        logger.addHandler(file)
        logger.setLevel(logging.INFO)
        logger.propagate = False
