"""Keys that identify participants: an Ed25519 pair each, and a roster of the public keys.

A secret key is a file that only its owner may read; a file that others can read is refused. A roster lists the sites
and their keys, as the owners have agreed on them without relying on the coordinator.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from silvan.errors import FormatError, InputError, reject
from silvan.federation.store import SIGNING, Store
from silvan.util.files import check_private, write_whole

KEY_BYTES = 32
COORDINATOR = ""
"""The coordinator's name as a sender."""


class Key:
    """A signing key."""

    def __init__(self, secret: Ed25519PrivateKey) -> None:
        self._secret = secret
        self.public: bytes = secret.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Self:
        """Generate a key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def kept_in(cls, store: Store) -> Self:
        """Return the key in a store, created at first use."""
        data = store.get(SIGNING)
        if data is None:
            data = Ed25519PrivateKey.generate().private_bytes_raw()
            store.put(SIGNING, data)
        return cls(Ed25519PrivateKey.from_private_bytes(data))

    def sign(self, data: bytes) -> bytes:
        """Return the signature of some data: 64 bytes."""
        return self._secret.sign(data)

    def derive(self, purpose: bytes) -> bytes:
        """Derive 32 secret bytes from the key, for a purpose other than signing."""
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"silvan " + purpose).derive(self._secret.private_bytes_raw())

    def save(self, path: str | Path) -> None:
        """Write the key to a new file that only its owner may read."""
        pem = self._secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InputError(f"{path}: there is a key already, and keys are never written over") from None
        with os.fdopen(handle, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a key; refuse one that others may read."""
        try:
            check_private(path)
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such key") from None
        try:
            secret = load_pem_private_key(Path(path).read_bytes(), password=None)
        except (ValueError, TypeError):
            raise FormatError(f"{path}: not a key, or one with a password") from None
        if not isinstance(secret, Ed25519PrivateKey):
            raise FormatError(f"{path}: a key of another kind; silvan signs with Ed25519")
        return cls(secret)

    @classmethod
    def at(cls, path: str | Path) -> Self:
        """Read a key, or create it if it does not exist yet."""
        if not Path(path).exists():
            cls.generate().save(path)
        return cls.load(path)


def is_signed(public: bytes, signature: bytes, data: bytes) -> bool:
    """Check whether a signature is that of a key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


def read_public(text: str) -> bytes:
    """Read a public key from text: 64 hexadecimal digits."""
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    reject(len(key) != KEY_BYTES, "a public key is 64 hexadecimal digits")
    return key


@dataclass(frozen=True)
class Roster:
    """The participants and their public keys.

    Parameters
    ----------
    coordinator
        The coordinator's key.
    sites
        The sites' keys by name.
    seals
        The keys with which sites seal data for each other (``privacy.seal.public_key``), if they are agreed as well.
    """

    coordinator: bytes
    sites: Mapping[str, bytes]
    seals: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse two participants with the same key, because either could sign for the other."""
        if not self.sites:
            raise InputError("a roster needs at least one site")
        for keys in ({COORDINATOR: self.coordinator, **self.sites}, self.seals):
            owner: dict[bytes, str] = {}
            for name, key in keys.items():
                who = f"site {name!r}" if name else "the coordinator"
                if len(key) != KEY_BYTES:
                    raise InputError(f"the key of {who} is not one: it takes {KEY_BYTES} bytes")
                if key in owner:
                    first = f"site {owner[key]!r}" if owner[key] else "the coordinator"
                    raise InputError(f"{first} and {who} have one key; each needs its own")
                owner[key] = name
        unknown = [name for name in self.seals if name not in self.sites]
        if unknown or COORDINATOR in self.sites:
            raise InputError(f"the roster has a key of {(unknown or [COORDINATOR])[0]!r}, which is no site of it")

    def key_of(self, name: str) -> bytes | None:
        """Return a party's key, or None if unknown."""
        return self.coordinator if name == COORDINATOR else self.sites.get(name)

    def save(self, path: str | Path) -> None:
        """Write the roster: JSON, with keys in hexadecimal."""
        sites = {name: key.hex() for name, key in self.sites.items()}
        seals = {name: key.hex() for name, key in self.seals.items()}
        listed = {"coordinator": self.coordinator.hex(), "sites": sites, "seals": seals}
        write_whole(path, msgspec.json.format(msgspec.json.encode(listed)) + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a roster."""
        try:
            listed = msgspec.json.decode(Path(path).read_bytes(), type=_Listed)
            return cls(read_public(listed.coordinator), _keys(listed.sites), _keys(listed.seals))
        except FileNotFoundError:
            raise InputError(f"{path}: there is no such roster") from None
        except (msgspec.DecodeError, UnicodeDecodeError, FormatError, InputError) as error:
            raise FormatError(f"{path}: not a roster: {error}") from None


class _Listed(msgspec.Struct, forbid_unknown_fields=True):
    coordinator: str
    sites: dict[str, str]
    seals: dict[str, str] = {}


def _keys(listed: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: read_public(key) for name, key in listed.items()}
