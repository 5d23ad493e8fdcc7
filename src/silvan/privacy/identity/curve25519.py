"""Points of Curve25519, by which ids are hidden: ids are hashed to the curve, points multiplied by a secret.

X25519 of ``cryptography`` multiplies. A point is its u-coordinate, 32 bytes, and two secrets can be applied in either
order. Any 32 bytes are a point of the curve or of its twist, and remain so under multiplication, which would reveal
one bit of every ID: so IDs are hashed only to points of the curve. Secrets are multiples of 8 (RFC 7748), so products
are in the subgroup of prime order, and a point of small order becomes zero and is refused.
"""

import hmac
from collections.abc import Iterable, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from silvan.errors import FormatError
from silvan.privacy.paillier.modular import Modulus, from_montgomery, make_modulus, power, to_montgomery, to_words

POINT = 32
"""Bytes of a point."""

PRIME, _A = 2**255 - 19, 486662
_BATCH = 8192
_SHARED_OUT = 512
"""With fewer numbers, one thread is faster than starting several."""


def hash_to_points(key: bytes, texts: Sequence[bytes], threads: int = 1) -> list[bytes]:
    """Hash texts to points of the curve: HMAC-SHA-256 with a counter, until the digest is a point.

    Half of all numbers are points, so two attempts suffice on average.
    """
    points = [b""] * len(texts)
    waiting = [(i, 0) for i in range(len(texts))]
    modulus = make_modulus(PRIME)
    while waiting:
        batch = waiting[-_BATCH:]
        del waiting[-_BATCH:]
        drawn = [
            int.from_bytes(hmac.digest(key, tries.to_bytes(2, "little") + texts[i], "sha256"), "little") % 2**255
            for i, tries in batch
        ]
        on_curve = _on_curve(drawn, modulus, threads if len(batch) >= _SHARED_OUT else 1)
        for (i, tries), u, there in zip(batch, drawn, on_curve, strict=True):
            if there:
                points[i] = u.to_bytes(POINT, "little")
            else:
                waiting.append((i, tries + 1))
    return points


def _on_curve(numbers: list[int], modulus: Modulus, threads: int) -> list[bool]:
    """Return for each u whether u^3 + A u^2 + u is a nonzero square, by Euler's criterion."""
    squares = to_montgomery(to_words([u * (u * (u + _A) + 1) % PRIME for u in numbers], 4), modulus, threads)
    symbols = from_montgomery(power(squares, (PRIME - 1) // 2, modulus, threads), modulus, threads)
    there: list[bool] = (symbols == np.array([1, 0, 0, 0], np.uint64)).all(axis=1).tolist()
    return there


def multiply_points(secret: bytes, points: Iterable[bytes]) -> list[bytes]:
    """Multiply points by a secret of 32 bytes; raise ``FormatError`` for one of small order."""
    key, read = X25519PrivateKey.from_private_bytes(secret), X25519PublicKey.from_public_bytes
    try:
        return [key.exchange(read(point)) for point in points]
    except ValueError:
        raise FormatError("a point is none that hides an id") from None


def cut_points(data: bytes, size: int = POINT) -> list[bytes]:
    """Split joined points of equal length."""
    if not data or len(data) % size:
        raise FormatError("what should be points is of another length")
    return [data[i : i + size] for i in range(0, len(data), size)]
