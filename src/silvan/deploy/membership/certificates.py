"""Keys and certificates for mutual TLS between FLARE's processes, signed by the federation's authority.

A key is made on the machine that uses it and never leaves it; only a request to sign it travels.
"""

import hashlib
import ipaddress
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from silvan.errors import FormatError, InputError
from silvan.util.files import check_private

KEY_BITS = 2048
DAYS, ROOT_DAYS = 1095, 3650
_SERVER, _CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
_EARLY = timedelta(minutes=5)  # clocks differ

SOON = timedelta(days=30)
"""How long before its expiry a certificate is renewed, or its owner notified."""


def make_key(path: Path) -> rsa.RSAPrivateKey:
    """Make a key and write it to a new file that only its owner may read."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(pem)
    return key


def load_key(path: Path) -> rsa.RSAPrivateKey:
    """Read a key; raise ``FormatError`` if it is not RSA, and ``InputError`` if others may read it."""
    check_private(path)
    key = _read_key(path.read_bytes())
    if not isinstance(key, rsa.RSAPrivateKey):
        raise FormatError(f"{path}: a key of another kind")
    return key


@lru_cache(maxsize=16)
def _read_key(data: bytes) -> PrivateKeyTypes:
    """Read a key once, because checking that its primes are prime takes long."""
    return serialization.load_pem_private_key(data, password=None)


def make_request(key: rsa.RSAPrivateKey, name: str) -> bytes:
    """Return a request (PEM) for a certificate in a name."""
    request = x509.CertificateSigningRequestBuilder().subject_name(_subject(name, name)).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True)
class Authority:
    """The federation's certificate authority: the key that signs, and the root certificate that everybody has."""

    key: rsa.RSAPrivateKey
    certificate: x509.Certificate

    @classmethod
    def create(cls, folder: Path, name: str, days: int = ROOT_DAYS) -> "Authority":
        """Create an authority in a new folder."""
        folder.mkdir(mode=0o700, parents=True)
        key = make_key(folder / "root.key")
        end = datetime.now(UTC) + timedelta(days=days)
        made = _builder(_subject(name), _subject(name), key.public_key(), end, authority=True)
        certificate = made.sign(key, hashes.SHA256())
        (folder / "root.crt").write_bytes(pem(certificate))
        return cls(key, certificate)

    @classmethod
    def load(cls, folder: Path) -> "Authority":
        """Read an authority from its folder."""
        return cls(load_key(folder / "root.key"), read_certificate((folder / "root.crt").read_bytes()))

    def sign(self, request: bytes, name: str, hosts: tuple[str, ...] = (), role: str = "", days: int = DAYS) -> bytes:
        """Sign a request; the certificate is for ``name``, whatever name the request has.

        With ``hosts`` it is a server's, otherwise a client's, and good for nothing else: a site cannot pass itself off
        as the coordinator.
        """
        try:
            asked = x509.load_pem_x509_csr(request)
        except ValueError:
            raise FormatError("not a request for a certificate") from None
        key = asked.public_key()
        if not asked.is_signature_valid or not isinstance(key, rsa.RSAPublicKey):
            raise FormatError("a request for a certificate that is not signed by its own key")
        end = min(datetime.now(UTC) + timedelta(days=days), self.certificate.not_valid_after_utc)
        certificate = (
            _builder(_subject(name, name, role), self.certificate.subject, key, end, authority=False)
            .add_extension(x509.ExtendedKeyUsage([_SERVER if hosts else _CLIENT]), critical=True)
            .add_extension(x509.SubjectAlternativeName([_host(h) for h in (hosts or (name,))]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return pem(certificate)


def read_certificate(data: bytes) -> x509.Certificate:
    """Read a certificate from PEM; raise ``FormatError`` if it is invalid."""
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError:
        raise FormatError("not a certificate") from None


def read_der(data: bytes) -> x509.Certificate:
    """Read a certificate in the form that TLS uses."""
    return x509.load_der_x509_certificate(data)


def key_digest(made: x509.Certificate | bytes) -> str:
    """Return the digest of the key in a certificate or in a request for one (PEM); renewal does not change it."""
    if isinstance(made, bytes):
        request = b"CERTIFICATE REQUEST" in made
        made = x509.load_pem_x509_csr(made) if request else read_certificate(made)  # type: ignore[assignment]
    assert not isinstance(made, bytes)  # noqa: S101
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(made.public_key().public_bytes(serialization.Encoding.DER, form)).hexdigest()


def check_certificate(certificate: x509.Certificate, root: x509.Certificate, now: datetime | None = None) -> None:
    """Raise ``InputError`` if another authority signed a certificate, or if it is not valid now."""
    now = datetime.now(UTC) if now is None else now
    name = common_name(certificate)
    try:
        certificate.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature):
        raise InputError(f"the certificate of {name!r} is not of this federation; was it made by another?") from None
    for one, what in ((certificate, f"the certificate of {name!r}"), (root, "the federation's own certificate")):
        if now > one.not_valid_after_utc:
            remedy = _RENEWED if one is certificate else _ROOT_ENDS
            raise InputError(f"{what} expired on {one.not_valid_after_utc:%Y-%m-%d}; {remedy}")
        if now < one.not_valid_before_utc:
            raise InputError(f"{what} is not valid yet: this machine's clock is behind; set it")


_RENEWED = "`silvan site renew` has a site's renewed, `silvan study start` those of the coordinator"
_ROOT_ENDS = "make a new federation, and have all sites join it"


def ends_soon(certificate: x509.Certificate) -> bool:
    """Whether a certificate has expired, or will soon."""
    return certificate.not_valid_after_utc - datetime.now(UTC) < SOON


def common_name(certificate: x509.Certificate) -> str:
    """Return the name that a certificate is for."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""


def pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def _subject(name: str, organisation: str = "", role: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if organisation:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation))
    if role:  # where FLARE looks for it
        parts.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role))
    return x509.Name(parts)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: rsa.RSAPublicKey, end: datetime, *, authority: bool
) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=not authority,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _EARLY)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
