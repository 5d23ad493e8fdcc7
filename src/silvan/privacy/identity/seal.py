"""Encryption between two sites through a third party: a key for each pair, and sealed boxes.

A site's key pair (X25519) is permanent. Two sites derive a key from theirs for each purpose (HKDF with
SHA-256), so that a box made for one purpose cannot be opened for another. Boxes are ChaCha20-Poly1305.
"""

import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from silvan.errors import FormatError, RefusedError
from silvan.federation.store import Store

_SECRET = "secret x25519"  # noqa: S105  where a store has it
_NONCE = 12


def secret_key(store: Store) -> X25519PrivateKey:
    """Return a site's secret key, created at first use."""
    data = store.get(_SECRET)
    if data is None:
        data = X25519PrivateKey.generate().private_bytes_raw()
        store.put(_SECRET, data)
    return X25519PrivateKey.from_private_bytes(data)


def public_key(store: Store) -> bytes:
    """Return the public key of a site: 32 bytes."""
    return secret_key(store).public_key().public_bytes_raw()


def pair_key(own: X25519PrivateKey, other: bytes, purpose: bytes) -> bytes:
    """Derive the key that two sites share for one purpose."""
    return derive(shared_secret(own, other), b"pair\0" + purpose)


def shared_secret(own: X25519PrivateKey, other: bytes) -> bytes:
    """Return the Diffie-Hellman secret of two sites, from which their keys are derived."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise FormatError("a public key is invalid") from None


def derive(secret: bytes, purpose: bytes, length: int = 64) -> bytes:
    """Derive a key from a secret, for one purpose."""
    return HKDF(SHA256(), length, salt=None, info=b"silvan " + purpose).derive(secret)


def seal(key: bytes, data: bytes) -> bytes:
    """Encrypt and authenticate data.

    The nonce is a keyed digest of the data: the same data give the same bytes again, and no two different ones
    share a nonce, whatever a site is made to encrypt under one key.
    """
    nonce = hmac.digest(key[32:], data, "sha256")[:_NONCE]
    return nonce + ChaCha20Poly1305(key[:32]).encrypt(nonce, data, None)


LABEL_HOLDER = "the label holder"
"""The name of the sealing party if only the label holder can have sealed it."""


def unseal(key: bytes, box: bytes, by: str = "another site") -> bytes:
    """Decrypt a box; raise an error that names the sealing site if the box was changed or belongs elsewhere."""
    try:
        return ChaCha20Poly1305(key[:32]).decrypt(box[:_NONCE], box[_NONCE:], None)
    except (InvalidTag, ValueError):
        raise RefusedError(f"what {by} sealed was changed on its way, or belongs elsewhere") from None
