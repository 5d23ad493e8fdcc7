"""Exact sampling of discrete noise: coins of bias exp(-x), shares of discrete Laplace noise, random responses.

Floating-point noise leaks: the set of possible floats depends on what the noise was added to. Here every decision
compares integers, and every random bit comes from the operating system.

A discrete Laplace number of scale b has P(z) proportional to exp(-|z| / b). It is the difference of two geometric
numbers, and a geometric number is the sum of s negative binomial ones of shape 1/s (Polya numbers), each of which
is a compound Poisson number: jumps of size j = 1, 2, ... arrive at rate exp(-j / b) / (s j). So a share of the noise
is a few jumps up and down. Jumps are proposed at the constant rate 1/s for each j-range [2^m, 2^(m+1)) and
kept with probability 2^m / j times exp(-j / b); all ranges from 2^M >= b up share one more such rate.

Jumps beyond 2^(M+12) are left out: together they change a number with probability below exp(-4000).

Kernels read random words one after the other and never depend on their number: a number that ran out of words is
sampled again from the same words and more.
"""

import os
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from silvan.errors import InputError
from silvan.util.kernels import njit

U = np.uint64

MAX_SCALE = 1 << 30
"""Noise of a larger scale is refused: it would drown any table."""

DENOMINATOR = 1 << 16
"""Scales are rounded up to multiples of the inverse of this."""

_FAR = 12
_WORDS_A_NUMBER = 8
_MOST_WORDS = 1 << 20


@njit(nogil=True, cache=True)
def _word(words: np.ndarray, at: np.ndarray) -> np.uint64:
    """Return the next word; beyond the last, a filler whose number is discarded later."""
    i = at[0]
    at[0] = i + 1
    if i < words.shape[0]:
        return words[i]
    x = U(i) * U(0x9E3779B97F4A7C15)
    return x ^ (x >> U(29))


@njit(nogil=True, cache=True)
def draw_below(n: np.uint64, words: np.ndarray, at: np.ndarray) -> np.uint64:
    """Sample an integer below n uniformly, by rejection."""
    if n <= U(0xFFFFFFFF):
        # the upper half of a product is the number; few lower halves need a second look (Lemire 2019)
        product = (_word(words, at) >> U(32)) * n
        if product & U(0xFFFFFFFF) < n:
            least = (U(1 << 32) - n) % n
            while product & U(0xFFFFFFFF) < least:
                product = (_word(words, at) >> U(32)) * n
        return product >> U(32)
    top = U(0xFFFFFFFFFFFFFFFF)
    last = top - (top % n + U(1)) % n
    x = _word(words, at)
    while x > last:
        x = _word(words, at)
    return x % n


@njit(nogil=True, cache=True)
def _coin(a: int, n: int, words: np.ndarray, at: np.ndarray) -> bool:
    """Return True with probability a / n."""
    return bool(draw_below(U(n), words, at) < U(a))


@njit(nogil=True, cache=True)
def _odd_run(a: int, n: int, k: int, words: np.ndarray, at: np.ndarray) -> bool:
    """Toss coins of bias a / (n k), a / (n (k + 1)), ... up to the first failure; return whether its k is odd.

    From k = 1 that is True with probability exp(-a / n), for a <= n; from k = 3 and a = n with 2 exp(-1).
    """
    while _coin(a, n * k, words, at):
        k += 1
    return k & 1 == 1


@njit(nogil=True, cache=True)
def _exp_coin(a: int, n: int, words: np.ndarray, at: np.ndarray) -> bool:
    """Return True with probability exp(-a / n)."""
    while a > n:
        if not _odd_run(1, 1, 1, words, at):
            return False
        a -= n
    return _odd_run(a, n, 1, words, at)


@njit(nogil=True, cache=True)
def _small_poisson(a: int, n: int, words: np.ndarray, at: np.ndarray) -> int:
    """Sample a Poisson number of mean a / n, at most 1/2: proposals from fair coins, accepted by biased ones."""
    while True:
        found = 0
        x = _word(words, at)
        while x == U(0xFFFFFFFFFFFFFFFF):
            found += 64
            x = _word(words, at)
        while x & U(1):
            found += 1
            x >>= U(1)
        kept = True
        for i in range(1, found + 1):
            if not _coin(2 * a, n * i, words, at):
                kept = False
                break
        if kept:
            return found


@njit(nogil=True, cache=True)
def _jump(ranges: int, num: int, den: int, words: np.ndarray, at: np.ndarray) -> int:
    """Propose one jump: its size with a random sign, 0 if rejected. The scale is num / den."""
    m: int = np.int64(draw_below(U(ranges + 1), words, at))  # type: ignore[assignment]
    beyond = 0
    if m == ranges:
        # 2^M >= b, so exp(-j / b) 2^beyond is a probability: this many coins of bias 2/e, and exp of the rest
        beyond = 1
        while _word(words, at) & U(1):
            beyond += 1
            m += 1
        if beyond > _FAR:
            return 0
    x = _word(words, at)
    size: int = (np.int64(1) << m) + np.int64(x >> U(64 - m) if m > 0 else U(0))  # type: ignore[assignment]
    if not _coin(1 << m, size, words, at):
        return 0
    for _ in range(beyond):
        if not _odd_run(1, 1, 3, words, at):
            return 0
    if not _exp_coin(size * den - beyond * num, num, words, at):
        return 0
    return size if x & U(1) else -size


@njit(nogil=True, cache=True)
def _shares(words: np.ndarray, num: int, den: int, sharers: int, ranges: int, out: np.ndarray) -> tuple[int, int]:
    """Fill ``out`` as far as the words suffice; return the counts of finished numbers and used words."""
    # jumps up and down: twice the rate, and a sign each; split into Poisson numbers of mean at most 1/2
    rate, parts = 2 * (ranges + 1), -(-4 * (ranges + 1) // sharers)
    at = np.zeros(1, np.int64)
    begun = 0
    for i in range(out.shape[0]):
        total = 0
        for _ in range(parts):
            for _ in range(_small_poisson(rate, sharers * parts, words, at)):
                total += _jump(ranges, num, den, words, at)
        if at[0] > words.shape[0]:
            return i, begun
        out[i] = total
        begun = at[0]
    return out.shape[0], begun


@njit(nogil=True, cache=True)
def _responses(
    words: np.ndarray, codes: np.ndarray, n_codes: int, num: int, den: int, out: np.ndarray
) -> tuple[int, int]:
    """Sample codes with weight 1 for the true one and exp(-num / den) for every other; return as ``_shares`` does."""
    at = np.zeros(1, np.int64)
    begun = 0
    for i in range(out.shape[0]):
        code = np.int64(draw_below(U(n_codes), words, at))
        while code != codes[i] and at[0] <= words.shape[0] and not _exp_coin(num, den, words, at):
            code = np.int64(draw_below(U(n_codes), words, at))
        if at[0] > words.shape[0]:
            return i, begun
        out[i] = code
        begun = at[0]
    return out.shape[0], begun


def system_words(n: int) -> np.ndarray:
    """Get words from the operating system."""
    return np.frombuffer(os.urandom(8 * n), np.uint64)


Source = Callable[[int], np.ndarray]


def _fill(kernel: Callable[[np.ndarray, slice], tuple[int, int]], size: int, source: Source) -> None:
    """Run a kernel over all numbers, with more random words until all are sampled; no word is discarded."""
    done, words = 0, np.zeros(0, np.uint64)
    while done < size:
        fresh = source(min(_WORDS_A_NUMBER * (size - done) + 64, _MOST_WORDS))
        words = np.concatenate([words, fresh])
        more, used = kernel(words, slice(done, size))
        done, words = done + more, words[used:]


def round_scale_up(scale: Fraction) -> tuple[int, int]:
    """Round a scale up to a quotient that the kernels take."""
    if not 0 < scale <= MAX_SCALE:
        raise InputError(
            f"noise of scale {float(scale):g} is out of range: above 0, at most 2^30; use a larger epsilon"
        )
    return -(-scale.numerator * DENOMINATOR // scale.denominator), DENOMINATOR


def noise_shares(size: int, scale: Fraction, sharers: int, source: Source = system_words) -> np.ndarray:
    """Sample numbers of which ``sharers`` independent ones add up to exactly one of discrete Laplace noise."""
    num, den = round_scale_up(scale)
    if not 1 <= sharers < 1 << 20:
        raise InputError(f"noise is shared by 1 to 2^20 sites, got {sharers}")
    ranges = ranges_below(num, den)
    out = np.zeros(size, np.int64)
    _fill(lambda words, left: _shares(words, num, den, sharers, ranges, out[left]), size, source)
    return out


def ranges_below(num: int, den: int) -> int:
    """Return the smallest M such that 2^M is at least the scale."""
    return max((-(-num // den) - 1).bit_length(), 0)


def random_responses(codes: np.ndarray, n_codes: int, epsilon: Fraction, source: Source = system_words) -> np.ndarray:
    """Replace each code by a random one, the true one exp(epsilon) times as likely as any other."""
    if len(codes) and not 0 <= codes.min() <= codes.max() < n_codes:
        raise InputError.about("codes", f"must be between 0 and {n_codes - 1}")
    # rounded down: slightly more private than requested
    num = epsilon.numerator * DENOMINATOR // epsilon.denominator
    out = np.zeros(len(codes), np.int64)
    wide = codes.astype(np.int64)
    _fill(lambda words, left: _responses(words, wide[left], n_codes, num, DENOMINATOR, out[left]), len(out), source)
    return out
