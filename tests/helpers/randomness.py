"""The randomness of tests: a seed for each test, or the operating system in ``make explore``.

The library takes secrets from ``os.urandom`` and ``secrets.token_bytes``; both are replaced here. opendp, which adds a
site's own noise, takes no seed, so silvan's sampler of the same distribution replaces it, except in tests with the mark
``system_randomness``. Only ``seeded_keys`` seeds the keys made by OpenSSL: no other test depends on them, and fixtures
with the same random bytes must not have the same keys.
"""

import os
import random
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

_from_system = os.urandom
_seeded: random.Random | None = None


def install() -> None:
    """Replaces the functions that the library calls; to be called before the library is imported."""
    os.urandom = _draw
    secrets.token_bytes = _draw
    uuid.uuid4 = lambda: uuid.UUID(bytes=_from_system(16), version=4)  # numba's name for a file that it must compile


@contextmanager
def seeded_keys() -> Iterator[None]:
    """Makes keys from the seeded random bytes."""
    drawn = classmethod(lambda cls: cls.from_private_bytes(_draw(32)))
    with (
        mock.patch.object(Ed25519PrivateKey, "generate", drawn),
        mock.patch.object(X25519PrivateKey, "generate", drawn),
    ):
        yield


def _draw(n: int | None = None) -> bytes:
    n = 32 if n is None else n
    return _from_system(n) if _seeded is None else _seeded.randbytes(n)


def begin(seed: str | None) -> None:
    """Uses this seed from now on; None: the operating system."""
    global _seeded
    _seeded = None if seed is None else random.Random(seed)  # noqa: S311
    _replace_noise()


@cache
def _replace_noise() -> None:
    """Makes sites take their own noise from the same source as all other noise."""
    from silvan.privacy.noise.laplace import Noise
    from silvan.privacy.noise.sampler import noise_shares

    def seeded(noise: Noise, counts: np.ndarray) -> np.ndarray:
        if _seeded is None:
            return by_opendp(noise, counts)
        exact = np.ascontiguousarray(counts, np.int64)
        return exact + noise_shares(exact.size, noise.scale, noise.sharers).reshape(exact.shape)

    by_opendp, Noise.add = Noise.add, seeded
