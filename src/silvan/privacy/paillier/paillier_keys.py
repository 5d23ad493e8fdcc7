"""Keys for Paillier encryption: two safe primes, and their product.

p = 2 p' + 1 with p' prime, q likewise. Then the numbers of Jacobi symbol 1 modulo n = p q are a cyclic group of order
2 p' q', and -x^2 generates it for every x but a handful (Damgard, Jurik and Nielsen 2010). Their n-th powers modulo
n^2 are what hides a plaintext.
"""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any

import numpy as np

from silvan.errors import FormatError, InputError
from silvan.privacy.paillier.modular import Modulus, make_modulus
from silvan.util.threads import thread_map

SIZES = (2048, 3072)
"""Bits of n: as hard to break as a symmetric key of 112 and of 128 bits."""

_SIEVE = 1 << 16

Entropy = Callable[[int], bytes]
"""A function that returns a given number of random bytes."""


@dataclass(frozen=True, repr=False)
class PublicKey:
    """The public values for checking, adding and masking ciphertexts."""

    n: int

    def __repr__(self) -> str:
        return f"PublicKey({self.bits} bits, {self.fingerprint.hex()})"

    @property
    def bits(self) -> int:
        """Bits of n; a plaintext has fewer."""
        return self.n.bit_length()

    @property
    def width(self) -> int:
        """Bytes of a ciphertext."""
        return self.bits // 4

    @cached_property
    def fingerprint(self) -> bytes:
        """16 bytes that identify the key."""
        return hashlib.sha256(b"silvan paillier\0" + self.to_bytes()).digest()[:16]

    @cached_property
    def modulus(self) -> Modulus:
        """n^2, prepared for multiplication."""
        return make_modulus(self.n**2)

    def to_bytes(self) -> bytes:
        """Write the key."""
        return self.n.to_bytes(self.bits // 8, "little")

    @classmethod
    def from_bytes(cls, data: bytes, *, testing: bool = False) -> "PublicKey":
        """Read a key; ``testing`` admits insecure sizes."""
        gmpy2 = import_gmpy2()
        _check_size(8 * len(data), testing, FormatError)
        n = int.from_bytes(data, "little")
        if n.bit_length() != 8 * len(data) or n % 2 == 0 or gmpy2.is_prime(n) or gmpy2.is_power(n):
            raise FormatError("a public key is not the product of two odd primes of the same length")
        return cls(n)


@dataclass(frozen=True, repr=False)
class PrivateKey:
    """Two safe primes."""

    p: int
    q: int

    def __repr__(self) -> str:
        return f"PrivateKey({self.public})"

    @cached_property
    def public(self) -> PublicKey:
        """The public key."""
        return PublicKey(self.p * self.q)

    def to_bytes(self) -> bytes:
        """Write the key: keep it secret."""
        width = self.public.bits // 16
        return self.p.to_bytes(width, "little") + self.q.to_bytes(width, "little")

    @classmethod
    def from_bytes(cls, data: bytes, *, testing: bool = False) -> "PrivateKey":
        """Read a key; ``testing`` admits insecure sizes."""
        gmpy2 = import_gmpy2()
        _check_size(8 * len(data), testing, FormatError)
        half = len(data) // 2
        p, q = int.from_bytes(data[:half], "little"), int.from_bytes(data[half:], "little")
        primes = all(gmpy2.is_prime(x) and gmpy2.is_prime(x // 2) for x in (p, q))
        if p == q or (p * q).bit_length() != 8 * len(data) or not primes:
            raise FormatError("a private key is not made of two safe primes")
        return cls(p, q)


def import_gmpy2() -> Any:
    """Import the library of large integers, which is an extra."""
    try:
        return import_module("gmpy2")
    except ImportError:
        raise InputError("encrypted labels need gmpy2; install it by: pip install 'silvan[vertical]'") from None


def generate(bits: int = 2048, *, testing: bool = False) -> PrivateKey:
    """Generate a key: a second or two, about ten for 3072 bits; ``testing`` admits insecure sizes."""
    _check_size(bits, testing, InputError)
    while True:
        p, q = thread_map(_safe_prime, (bits // 2, bits // 2), 2)
        if p != q:
            return PrivateKey(p, q)


def _check_size(bits: int, testing: bool, error: type[Exception]) -> None:
    if bits in SIZES or (testing and bits >= 256 and bits % 128 == 0):
        return
    raise error(f"a key must have {' or '.join(map(str, SIZES))} bits, got {bits}")


@lru_cache(1)
def _small_primes() -> list[tuple[int, int]]:
    """List the primes from 5 on, each with 1/6 modulo it."""
    sieve = np.ones(_SIEVE, np.bool_)
    for i in range(2, int(_SIEVE**0.5) + 1):
        sieve[i * i :: i] = False
    return [(x, pow(6, -1, x)) for x in np.flatnonzero(sieve).tolist() if x >= 5]


def _safe_prime(bits: int) -> int:
    """Draw a prime p whose (p - 1) / 2 is prime as well; its two highest bits are set.

    (p - 1) / 2 must be 5 modulo 6. From a random start, those without small factors in it or in p are tried.
    """
    gmpy2 = import_gmpy2()
    two = [gmpy2.mpz(2)]
    while True:
        start = int.from_bytes(secrets.token_bytes(bits // 8), "little") >> 1 | 3 << (bits - 3)
        start += (5 - start) % 6
        open_ = np.ones(_SIEVE, np.bool_)
        for prime, sixth in _small_primes():
            rest = start % prime
            open_[-rest * sixth % prime :: prime] = False
            open_[(prime // 2 - rest) * sixth % prime :: prime] = False
        for i in np.flatnonzero(open_).tolist():
            half = gmpy2.mpz(start + 6 * i)
            if gmpy2.powmod_base_list(two, half - 1, half)[0] != 1:  # unlike powmod, it lets other threads run
                continue
            if gmpy2.is_prime(2 * half + 1) and gmpy2.is_prime(half) and half.bit_length() == bits - 1:
                return int(2 * half + 1)
