"""Introductions: how parties that FLARE has provisioned learn each other's keys when a study begins.

Each party signs its keys with the key of its FLARE certificate. The coordinator collects and distributes the
introductions; every site checks each against the root certificate in its own startup folder. So the trust is that in
FLARE's provisioning: the holder of the root key can introduce somebody under another's name.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from silvan.deploy.membership.certificates import check_certificate, common_name, load_key, pem, read_certificate
from silvan.errors import FederationError, FormatError, InputError, RefusedError, SilvanError, SiteError
from silvan.federation import wire
from silvan.federation.chunks import ChunkReply, send_in_chunks
from silvan.federation.keys import COORDINATOR, Roster
from silvan.federation.message import Verb
from silvan.federation.outgoing import DeclinedError, UnreachedError, WaitingError
from silvan.study.study import Study
from silvan.util.files import UNREADABLE

log = logging.getLogger("silvan.introductions")

_PREFIX = b"silvan introductions\0"
_PADDING = padding.PSS(padding.MGF1(SHA256()), padding.PSS.MAX_LENGTH)
_PAUSE, _WAIT = 0.25, 30.0


class SignedKeys(msgspec.Struct, frozen=True):
    """A party's name and keys, signed with the key of its FLARE certificate."""

    name: str  # a site's; empty: the coordinator's
    key: bytes
    seal: bytes = b""
    certificate: bytes = b""
    signature: bytes = b""

    def signed_bytes(self, study: Study) -> bytes:
        """Return the bytes that are signed."""
        head = [study.digest, self.name, self.key, self.seal]
        return b"silvan introduction\0" + msgspec.msgpack.encode(head)


class ExchangeKeys(msgspec.Struct, frozen=True):
    """Everybody's introductions, for a site to check; empty when requesting the site's introduction."""

    everybody: list[SignedKeys] = []


class Introduced(msgspec.Struct, frozen=True):
    """A site's own introduction, or why it rejects those of the others."""

    own: SignedKeys | None = None
    refused: str = ""


@dataclass(frozen=True)
class Credentials:
    """A party's certificate by FLARE's provisioning with its key, the root's, and the server's name."""

    key: rsa.RSAPrivateKey
    certificate: x509.Certificate
    root: x509.Certificate
    server: str

    @classmethod
    def read(cls, startup: Path, kind: str) -> "Credentials":
        """Read those of a site ("client") or of the server ("server") from FLARE's startup folder."""
        try:
            own = read_certificate((startup / f"{kind}.crt").read_bytes())
            root = read_certificate((startup / "rootCA.pem").read_bytes())
            server = common_name(own) if kind == "server" else _server_name(startup)
            return cls(load_key(startup / f"{kind}.key"), own, root, server)
        except OSError as error:
            raise InputError(f"{startup}: FLARE's certificates cannot be read: {error.strerror}") from None

    @property
    def name(self) -> str:
        """The name that the certificate is for."""
        return common_name(self.certificate)

    def sign(self, introduction: SignedKeys, study: Study) -> SignedKeys:
        """Sign an introduction for a study."""
        signature = self.key.sign(introduction.signed_bytes(study), _PADDING, SHA256())
        return msgspec.structs.replace(introduction, certificate=pem(self.certificate), signature=signature)

    def check(self, introduction: SignedKeys, study: Study) -> None:
        """Raise ``FederationError`` unless the named party signed the introduction, certified by the root."""
        who = f"site {introduction.name!r}" if introduction.name else "the coordinator"
        try:
            certificate = read_certificate(introduction.certificate)
            check_certificate(certificate, self.root)
            if common_name(certificate) != (introduction.name or self.server):
                raise InputError("the certificate is for another name")
            key = certificate.public_key()
            if not isinstance(key, rsa.RSAPublicKey):
                raise InputError("the certificate has a key that is not RSA")
            key.verify(introduction.signature, introduction.signed_bytes(study), _PADDING, SHA256())
        except InvalidSignature:
            raise FederationError(f"the introduction of {who} is not signed by the key of its certificate") from None
        except (InputError, FormatError) as error:
            raise FederationError(f"the introduction of {who} is refused: {error}") from None


def _server_name(startup: Path) -> str:
    """Return the name that the server's certificate must have, by a site's own startup folder."""
    try:
        listed = msgspec.json.decode((startup / "fed_client.json").read_bytes())
        return str(listed["servers"][0]["identity"])
    except (*UNREADABLE, LookupError, TypeError):
        raise FormatError(f"{startup / 'fed_client.json'}: it does not name the server's identity") from None


def read_roster(study: Study, everybody: Sequence[SignedKeys], credentials: Credentials | None) -> Roster:
    """Return the roster of introductions; raise ``FederationError`` if one is forged, doubled or not of the study.

    Without credentials nobody's name is checked: that is for FLARE's simulator, which has no certificates.
    """
    introduced = {one.name: one for one in everybody}
    if len(introduced) < len(everybody) or COORDINATOR not in introduced:
        raise FederationError("introductions must be of the coordinator and of each site once")
    sites = [name for name in introduced if name != COORDINATOR]
    strangers = sorted(set(sites) - set(study.site_names or ()))
    if strangers:
        raise FederationError(f"site {strangers[0]!r} is introduced, which the study does not name")
    for one in everybody:
        if credentials is not None:
            credentials.check(one, study)
    try:
        keys, seals = ({name: getattr(introduced[name], kind) for name in sites} for kind in ("key", "seal"))
        return Roster(introduced[COORDINATOR].key, keys, seals)
    except InputError as error:
        raise FederationError(f"the introductions do not fit together: {error}") from None


# -- at a site

Receive = Callable[[bytes, Verb], bytes]
"""Replies to a message."""

Ready = Callable[[], ChunkReply | None]
"""Returns a reply that explains why a site is not ready; None if it is."""


Begin = Callable[[Sequence[SignedKeys]], tuple[Receive, Ready]]


class IntroducedSite:
    """Accepts everybody's introductions, and after that the messages of the study.

    ``begin`` returns what answers messages, and when, given the introductions; it raises an error if they are not
    accepted, whose text, as far as it may leave the site, ``plain`` returns.
    """

    def __init__(self, own: SignedKeys, begin: Begin, plain: Callable[[SilvanError], str]) -> None:
        self._own, self._begin, self._plain = own, begin, plain
        self._accepted: list[SignedKeys] = []
        self._begun: tuple[Receive, Ready] | None = None

    def ready(self) -> ChunkReply | None:
        """Return why messages are refused for now; introductions never are."""
        return None if self._begun is None else self._begun[1]()

    def receive(self, data: bytes, verb: Verb) -> bytes:
        """Handle a message, or store introductions."""
        if data.startswith(_PREFIX):
            return wire.encode(self._introduce(wire.decode(data[len(_PREFIX) :], ExchangeKeys)))
        if self._begun is None:
            raise FormatError("a message came before the introductions")
        return self._begun[0](data, verb)

    def _introduce(self, message: ExchangeKeys) -> Introduced:
        try:
            if message.everybody and message.everybody != self._accepted:
                self._begun = self._begin(message.everybody)
                self._accepted = message.everybody
        except SilvanError as error:
            log.error("%s", error)
            return Introduced(self._own, self._plain(error))
        return Introduced(self._own)


# -- at the coordinator


class Carrier(Protocol):
    """Carries bytes to sites: the controller of a job."""

    def carry(self, site: str, data: bytes, wait: float) -> bytes:
        """Bring bytes to a site and return its reply; raise ``UnreachedError`` if the site is not there."""

    def pause(self, seconds: float) -> None:
        """Wait."""

    def takes_part(self, site: str) -> bool:
        """Whether a site takes part in the job."""


def collect(job: Carrier, sites: Sequence[str], timeout: float) -> dict[str, SignedKeys | Exception]:
    """Ask sites to introduce themselves; return each reply, or why there is none."""
    replies = _ask_all(job, sites, ExchangeKeys(), timeout)
    found: dict[str, SignedKeys | Exception] = {}
    for site, reply in replies.items():
        if isinstance(reply, Exception):
            found[site] = reply
        elif reply.own is None or reply.own.name != site:
            found[site] = SiteError(site, "introduces itself by another name")
        else:
            found[site] = reply.own
    return found


def hand_out(job: Carrier, sites: Sequence[str], everybody: Sequence[SignedKeys], timeout: float) -> None:
    """Send sites everybody's introductions; raise an error if one rejects them."""
    for site, reply in _ask_all(job, sites, ExchangeKeys(list(everybody)), timeout).items():
        if isinstance(reply, Exception):
            raise reply
        if reply.refused:
            text = "".join(c for c in reply.refused if c.isprintable())[:200]
            raise RefusedError(f"site {site!r} takes no part: {text}")


def _ask_all(
    job: Carrier, sites: Sequence[str], message: ExchangeKeys, timeout: float
) -> Mapping[str, Introduced | Exception]:
    data, end = _PREFIX + wire.encode(message), time.monotonic() + timeout

    def ask(site: str) -> Introduced | Exception:
        def late() -> bool:
            if time.monotonic() > end:
                return True
            job.pause(_PAUSE)
            return False

        if not job.takes_part(site):
            return SiteError(site, "was not connected when FLARE started the job")
        while True:
            try:
                answer, _ = send_in_chunks(lambda piece: job.carry(site, piece, _WAIT), data, "ask", give_up=late)
                return wire.decode(answer, Introduced)
            except (WaitingError, DeclinedError):  # about the study: introductions are accepted
                return Introduced()
            except UnreachedError as error:
                if late():
                    return SiteError(site, f"did not introduce itself within {timeout:g} s: {error}")
            except RefusedError as error:
                return RefusedError(f"site {site!r} takes no part: {error}")
            except FormatError:
                return SiteError(site, "introduced itself with something unusable")

    with ThreadPoolExecutor(max(len(sites), 1), thread_name_prefix="silvan-introductions") as pool:
        return dict(zip(sites, pool.map(ask, sites), strict=True))
