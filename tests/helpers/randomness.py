"""Where randomness of tests comes from: a seed of each test, or the operating system in ``make explore``.

The library draws what must be secret from ``os.urandom`` and ``secrets.token_bytes``; both are replaced here. The noise
that a site adds by itself is opendp's, which takes no seed, so silvan's own sampler of the same distribution is used
instead, except in tests with the mark ``system_randomness``. Keys made by OpenSSL are seeded in ``seeded_keys`` alone:
elsewhere nothing that is tested depends on them, and fixtures that draw the same bytes must not have the same keys.
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
    """Replace the functions that the library calls; to be done before the library is imported."""
    os.urandom = _draw
    secrets.token_bytes = _draw
    uuid.uuid4 = lambda: uuid.UUID(bytes=_from_system(16), version=4)  # numba names files so, where it must compile


@contextmanager
def seeded_keys() -> Iterator[None]:
    """Make keys of the bytes that all else is drawn from."""
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
    """Draw from this seed from now on; None: from the operating system."""
    global _seeded
    _seeded = None if seed is None else random.Random(seed)  # noqa: S311
    _replace_noise()


@cache
def _replace_noise() -> None:
    """Have sites that add noise by themselves draw it where all other noise comes from."""
    from silvan.privacy.noise.laplace import Noise
    from silvan.privacy.noise.sampler import noise_shares

    def seeded(noise: Noise, counts: np.ndarray) -> np.ndarray:
        if _seeded is None:
            return by_opendp(noise, counts)
        exact = np.ascontiguousarray(counts, np.int64)
        return exact + noise_shares(exact.size, noise.scale, noise.sharers).reshape(exact.shape)

    by_opendp, Noise.add = Noise.add, seeded
