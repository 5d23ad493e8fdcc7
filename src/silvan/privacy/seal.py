"""Secrets between two sites that a third party carries: a key for each pair, boxes only the other can open.

A site's key pair (X25519) stays with it for good. Two sites derive a key from theirs for each thing they talk
about (HKDF with SHA-256), so that a box cannot be opened as part of anything else. Boxes are ChaCha20-Poly1305.
"""

import hmac

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from silvan.errors import FormatError, RefusedError
from silvan.federation.store import Store
from silvan.privacy.sums.counters import WORD

_SECRET = "secret x25519"  # noqa: S105  where a store has it
_NONCE = 12


def secret_key(store: Store) -> X25519PrivateKey:
    """Give a site's secret key; drawn at first use."""
    data = store.get(_SECRET)
    if data is None:
        data = X25519PrivateKey.generate().private_bytes_raw()
        store.put(_SECRET, data)
    return X25519PrivateKey.from_private_bytes(data)


def public_key(store: Store) -> bytes:
    """Give the key that a site shows to others: 32 bytes."""
    return secret_key(store).public_key().public_bytes_raw()


def pair_key(own: X25519PrivateKey, other: bytes, about: bytes) -> bytes:
    """Agree on a key with another site, for one thing."""
    return derive(agree(own, other), b"pair\0" + about)


def agree(own: X25519PrivateKey, other: bytes) -> bytes:
    """Give what only two sites know, from which their keys derive."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise FormatError("a public key is none") from None


def derive(secret: bytes, about: bytes, length: int = 64) -> bytes:
    """Derive a key from a secret, for one thing."""
    return HKDF(SHA256(), length, salt=None, info=b"silvan " + about).derive(secret)


def seal(key: bytes, data: bytes) -> bytes:
    """Put data in a box.

    The nonce is a keyed digest of the data: the same data give the same bytes again, and no two different ones
    share a nonce, whatever a site is made to say under one key.
    """
    nonce = hmac.digest(key[32:], data, "sha256")[:_NONCE]
    return nonce + ChaCha20Poly1305(key[:32]).encrypt(nonce, data, None)


def unseal(key: bytes, box: bytes) -> bytes:
    """Open a box; refuse one that was changed, or is of another pair or about something else."""
    try:
        return ChaCha20Poly1305(key[:32]).decrypt(box[:_NONCE], box[_NONCE:], None)
    except (InvalidTag, ValueError):
        raise RefusedError("what another site sealed was changed on its way, or belongs elsewhere") from None


def offsets(seed: bytes, n: int) -> np.ndarray:
    """Stretch a seed of 32 random bytes to so many offsets, uniform modulo 2^64; a seed is used for one sum."""
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(n * WORD.itemsize)), WORD)
