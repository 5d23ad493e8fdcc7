"""Paillier encryption: anyone with the public key can add up numbers that only the key's owner can read.

A number m below n = p q is encrypted as (1 + m n) y modulo n^2, where y is a random n-th power; a product of
ciphertexts encrypts the sum. Three things are special here (docs/paillier.md explains why they are secure):

- Keys are such (``paillier_keys.py``) that all randomness consists of powers of one number, which come from a table:
one product per byte of the exponent. - The owner of the key encrypts modulo p^2 and q^2 separately, with an exponent
of full length for each: its y is uniform as in the textbook, without an assumption on short exponents. - The adding
party hides which rows went into a sum: the sum is multiplied by a random n-th power (``Masks``). The owner of the key
knows p and q, so this exponent is longer than n, not shorter.

Nothing here runs in constant time: keys are safe from those who see messages, not from those who share the processor.
"""

import math
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from silvan.errors import CipherError, InputError
from silvan.privacy.paillier import modular
from silvan.privacy.paillier.modular import (
    Modulus,
    Powers,
    from_bytes,
    from_montgomery,
    make_modulus,
    to_bytes,
    to_montgomery,
    to_words,
)
from silvan.privacy.paillier.paillier_keys import Entropy, PrivateKey, PublicKey, import_gmpy2
from silvan.util.threads import thread_count

MARGIN = 128
"""Additional bits of random exponents beyond the order of their base: the powers are uniform up to 2^-128."""

_WINDOW, _MASK_WINDOW = 8, 6  # exponent bits per product; tables of 10 and 15 MB (2048 bits)


class Ciphertexts(msgspec.Struct, frozen=True):
    """Encrypted numbers in transit: a fixed number of bytes each, and their key."""

    key: bytes
    data: np.ndarray  # uint8 (numbers, width), lowest byte first

    def __len__(self) -> int:
        return len(self.data)


def encrypt(
    key: PrivateKey,
    plaintexts: Sequence[int],
    n_jobs: int | None = None,
    entropy: Entropy = secrets.token_bytes,
) -> Ciphertexts:
    """Encrypt nonnegative integers of fewer bits than the key."""
    gmpy2, public = import_gmpy2(), key.public
    if any(not 0 <= m < 1 << (public.bits - 1) for m in plaintexts):
        raise InputError(f"a plaintext must be at least 0 and below 2^{public.bits - 1}")
    threads, half = thread_count(n_jobs), public.bits // 2
    x = _draw_below(public.n, entropy)
    shape = (2, len(plaintexts), (half + MARGIN) // 8)
    drawn = np.frombuffer(entropy(math.prod(shape)), np.uint8).reshape(shape).copy()
    # both exponents odd or both even: then they are one exponent modulo the order of the base
    drawn[1, :, 0] ^= (drawn[1, :, 0] ^ drawn[0, :, 0]) & 1
    known = {m: i for i, m in enumerate(dict.fromkeys(plaintexts))}
    which = np.array([known[m] for m in plaintexts], np.int64)

    def modulo(prime: int, drawn: np.ndarray) -> list[Any]:
        modulus = make_modulus(prime**2)
        powers = _powers(gmpy2.powmod(-x * x, public.n, prime**2), half, _WINDOW, modulus, threads)
        exponents = _reduce(drawn, prime - 1, half // 8)
        factors = [(1 + m * public.n) % prime**2 for m in known]
        words = to_words(factors, len(modulus.words))
        hidden = modular.multiply(
            powers.raise_to(exponents, threads), to_montgomery(words, modulus, threads)[which], modulus, threads
        )
        return _to_integers(from_montgomery(hidden, modulus, threads))

    pp, qq = gmpy2.mpz(key.p) ** 2, gmpy2.mpz(key.q) ** 2
    back = gmpy2.invert(pp, qq)
    pairs = zip(modulo(key.p, drawn[0]), modulo(key.q, drawn[1]), strict=True)
    data = b"".join((a + pp * ((b - a) * back % qq)).to_bytes(public.width, "little") for a, b in pairs)
    return Ciphertexts(public.fingerprint, np.frombuffer(data, np.uint8).reshape(-1, public.width))


def decrypt(key: PrivateKey, ciphertexts: Ciphertexts, n_jobs: int | None = None) -> list[int]:
    """Decrypt modulo p and q separately, and combine the results."""
    gmpy2, threads = import_gmpy2(), thread_count(n_jobs)
    check_ciphertexts(key.public, ciphertexts, n_jobs)
    numbers = _to_integers(from_bytes(ciphertexts.data))

    def modulo(prime: int, other: int) -> list[Any]:
        modulus = make_modulus(prime**2)
        words = to_words((c % modulus.number for c in numbers), len(modulus.words))
        powers = modular.power(to_montgomery(words, modulus, threads), prime - 1, modulus, threads)
        # (1 + n)^(prime - 1) is 1 - n modulo prime^2: what the exponent makes of m = 1
        scale = gmpy2.invert(-other, prime)
        return [(x - 1) // prime * scale % prime for x in _to_integers(from_montgomery(powers, modulus, threads))]

    back = gmpy2.invert(key.p, key.q)
    pairs = zip(modulo(key.p, key.q), modulo(key.q, key.p), strict=True)
    return [int(a + key.p * ((b - a) * back % key.q)) for a, b in pairs]


def check_ciphertexts(key: PublicKey, ciphertexts: Ciphertexts, n_jobs: int | None = None) -> np.ndarray:
    """Check that ciphertexts are of this key and in its group, and return them in Montgomery form.

    Each must be below n^2 and share no factor with n. The latter is checked for the product of all: exact, and a
    product is cheaper than a common divisor.
    """
    gmpy2, data = import_gmpy2(), ciphertexts.data
    if ciphertexts.key != key.fingerprint:
        raise CipherError(
            f"ciphertexts are for key {ciphertexts.key[:16].hex()}, not for {key.fingerprint.hex()}; "
            "encrypt and add up with one public key"
        )
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != key.width:
        raise CipherError(f"ciphertexts must be rows of {key.width} bytes, got {data.dtype} of shape {data.shape}")
    words, threads = from_bytes(data), thread_count(n_jobs)
    fits = modular.all_below(words, key.modulus)
    numbers = to_montgomery(words, key.modulus, threads)
    if fits and len(words):
        everything = np.arange(len(words)), np.array([0, len(words)])
        together = modular.products(numbers, *everything, key.modulus, threads)
        fits = gmpy2.gcd(*_to_integers(from_montgomery(together, key.modulus)), key.n) == 1
    if not fits:
        raise CipherError("a ciphertext is out of range: it must be below n^2 and share no factor with n")
    return numbers


class Masks:
    """Fresh encryptions of zero; multiplying sums by them hides how the sums came about.

    To the owner of the key, an unmasked sum reveals its rows, as the product of their randomness. The adding party
    chooses the base. The same ``entropy`` gives the same bytes: make it depend on a secret and on everything in the
    sum, or on nothing.
    """

    def __init__(self, key: PublicKey, n_jobs: int | None = None, entropy: Entropy = secrets.token_bytes) -> None:
        gmpy2 = import_gmpy2()
        self.key = key
        x = _draw_below(key.n, entropy)
        base = gmpy2.powmod(-x * x, key.n, key.n**2)
        self._powers = _powers(base, key.bits + MARGIN, _MASK_WINDOW, key.modulus, thread_count(n_jobs))

    def hide(
        self, numbers: np.ndarray, n_jobs: int | None = None, entropy: Entropy = secrets.token_bytes
    ) -> Ciphertexts:
        """Mask ciphertexts given in Montgomery form."""
        threads = thread_count(n_jobs)
        shape = (len(numbers), self._powers.digits)
        digits = np.frombuffer(entropy(math.prod(shape)), np.uint8).reshape(shape) % (1 << _MASK_WINDOW)
        masks = self._powers.raise_to(digits, threads)
        hidden = modular.multiply(numbers, masks, self.key.modulus, threads)
        return Ciphertexts(self.key.fingerprint, to_bytes(from_montgomery(hidden, self.key.modulus, threads)))


def _powers(base: Any, bits: int, window: int, modulus: Modulus, threads: int) -> Powers:
    """Tabulate the powers of a number for exponents of at least this many bits."""
    squares = [base]
    for _ in range(-(-bits // window) * window - 1):
        squares.append(squares[-1] ** 2 % modulus.number)
    return Powers.of(to_words(squares, len(modulus.words)), window, modulus, threads)


def _to_integers(words: np.ndarray) -> list[Any]:
    gmpy2 = import_gmpy2()
    return [gmpy2.mpz.from_bytes(row.tobytes(), "little") for row in to_bytes(words)]


def _draw_below(n: int, entropy: Entropy) -> int:
    return int.from_bytes(entropy((n.bit_length() + MARGIN) // 8), "little") % n


def _reduce(drawn: np.ndarray, order: int, width: int) -> np.ndarray:
    """Take exponents modulo an order: their bytes, uint8 (exponents, width)."""
    rows = (int.from_bytes(row.tobytes(), "little") % order for row in drawn)
    data = b"".join(x.to_bytes(width, "little") for x in rows)
    return np.frombuffer(data, np.uint8).reshape(len(drawn), width)
