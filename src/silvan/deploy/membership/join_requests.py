"""A site's requests for a certificate, to join and to renew: its keys, their purpose, and proofs of possession.

A request is signed with the site's key, over the coordinator's key and root certificate as the site has them from its
invitation. So a request made for an attacker in the middle is invalid at the true coordinator. The sealing key cannot
sign: its proof is a digest under a secret that it shares with a key of the coordinator. The key for TLS signs the
request for its certificate, which the site's key signs, too.
"""

import hmac
import time

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256

from silvan.deploy.membership.certificates import read_certificate
from silvan.deploy.membership.fingerprint import fingerprint
from silvan.errors import FormatError, InputError
from silvan.federation.keys import Key, is_signed, read_public
from silvan.federation.store import Store, digest
from silvan.privacy.identity.seal import derive, secret_key, shared_secret

MAX_CLOCK_DIFFERENCE = 120.0
"""Seconds by which clocks may differ when a site joins or renews; later, messages are refused from 300 on."""


class Trusted(msgspec.Struct, frozen=True):
    """The coordinator by its key and the federation by its root certificate (PEM): what a site trusts."""

    coordinator: bytes
    root: str

    @property
    def root_digest(self) -> bytes:
        """The digest of the root certificate."""
        return read_certificate(self.root.encode()).fingerprint(SHA256())

    def words(self, site: str, key: bytes, seal: bytes) -> str:
        """Return the words that a site and the coordinator compare: of both sides' keys, and of the root."""
        return fingerprint(b"joined\0" + msgspec.msgpack.encode([self.coordinator, self.root_digest, site, key, seal]))

    def statement(self, what: str, *parts: str | float) -> bytes:
        """Return the bytes to sign for a message to or from this coordinator."""
        return b"silvan " + msgspec.msgpack.encode([what, self.coordinator, self.root_digest, *parts])


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a site sends to join; keys are hexadecimal."""

    site: str
    secret: str  # of the invitation
    request: str  # for a certificate, PEM
    key: str = ""
    seal: str = ""
    versions: dict[str, str] = {}
    signature: str = ""  # by the site's key
    seal_proof: str = ""  # by its key for sealing

    @classmethod
    def make(cls, bare: "JoinRequest", trusted: Trusted, key: Key, store: Store, proof_key: str) -> "JoinRequest":
        """Add a site's keys to a request, with proofs; ``proof_key`` is the coordinator's, for the sealing key."""
        sealing = secret_key(store)
        seal = sealing.public_key().public_bytes_raw().hex()
        bare = msgspec.structs.replace(bare, key=key.public.hex(), seal=seal)
        statement = bare.statement(trusted)
        proof = _seal_proof(sealing, read_public(proof_key), statement)
        return msgspec.structs.replace(bare, signature=key.sign(statement).hex(), seal_proof=proof)

    def statement(self, trusted: Trusted) -> bytes:
        """Return the bytes that are signed."""
        secret, request = digest(self.secret.encode()), digest(self.request.encode())
        return trusted.statement("join", self.site, secret, self.key, self.seal, request)

    def check(self, trusted: Trusted, coordinator: Key) -> None:
        """Raise an error unless the site has the named keys, and made the request for this coordinator."""
        statement, key, seal = self.statement(trusted), read_public(self.key), read_public(self.seal)
        right = _seal_proof(_proof_secret(coordinator), seal, statement)
        signed = is_signed(key, _bytes(self.signature), statement)
        if not signed or not hmac.compare_digest(right.encode(), self.seal_proof.encode()):
            raise InputError(_NOT_MADE_FOR_US)


class RenewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a site sends for a new certificate, for the key for TLS that it has or for another."""

    site: str
    request: str
    at: float  # seconds since 1970
    signature: str = ""

    @classmethod
    def make(cls, trusted: Trusted, key: Key, site: str, request: str) -> "RenewRequest":
        """Make a request."""
        bare = cls(site=site, request=request, at=time.time())
        return msgspec.structs.replace(bare, signature=key.sign(bare.statement(trusted)).hex())

    def statement(self, trusted: Trusted) -> bytes:
        """Return the bytes that are signed."""
        return trusted.statement("renew", self.site, digest(self.request.encode()), self.at)

    def check(self, trusted: Trusted, key: bytes) -> None:
        """Raise an error unless the site with this key made the request for this coordinator, now."""
        if not is_signed(key, _bytes(self.signature), self.statement(trusted)):
            raise InputError(_NOT_MADE_FOR_US)
        if not abs(time.time() - self.at) <= MAX_CLOCK_DIFFERENCE:
            raise InputError("the request was signed at another time; does this machine's clock go right?")


_NOT_MADE_FOR_US = (
    "the request is not signed with the keys that it names, or was made for another coordinator: somebody is in "
    "between; speak to the coordinator's owner"
)


class Granted(msgspec.Struct, frozen=True):
    """A certificate (PEM), and the coordinator's signature over it and this request."""

    certificate: str
    signature: str = ""

    @classmethod
    def make(cls, coordinator: Key, statement: bytes, certificate: bytes) -> "Granted":
        """Sign a certificate as the reply to a request."""
        signature = coordinator.sign(_answer(statement, certificate))
        return cls(certificate.decode(), signature.hex())

    def check(self, trusted: Trusted, statement: bytes) -> x509.Certificate:
        """Return the certificate; raise an error unless the coordinator issued it for this request."""
        certificate = self.certificate.encode()
        if not is_signed(trusted.coordinator, _bytes(self.signature), _answer(statement, certificate)):
            raise InputError("who answers has not the coordinator's key of the invitation; speak to its owner")
        return read_certificate(certificate)


def proof_key(coordinator: Key) -> str:
    """Return the public key by which sites prove that they have their sealing key."""
    return _proof_secret(coordinator).public_key().public_bytes_raw().hex()


def _proof_secret(coordinator: Key) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(coordinator.derive(b"proof of sealing keys"))


def _seal_proof(own: X25519PrivateKey, other: bytes, statement: bytes) -> str:
    shared = derive(shared_secret(own, other), b"proof of a sealing key")
    return hmac.digest(shared, statement, "sha256").hex()


def _answer(statement: bytes, certificate: bytes) -> bytes:
    return b"silvan granted\0" + msgspec.msgpack.encode([statement, certificate])


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise FormatError("a signature is written in hexadecimal digits") from None
