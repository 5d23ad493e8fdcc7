"""A naive version of the kernels in ``sampler.py``: the same words read in the same way, with Python's integers."""

from fractions import Fraction

WORD = 1 << 64
FAR = 12


class Coins:
    def __init__(self, words):
        self.words = iter(int(word) for word in words)

    def below(self, n):
        if n < 1 << 32:
            least = ((1 << 32) - n) % n
            while True:
                product = (next(self.words) >> 32) * n
                if product % (1 << 32) >= least:
                    return product >> 32
        while True:
            word = next(self.words)
            if word < WORD - WORD % n:
                return word % n

    def coin(self, p):
        """Returns True with probability p; do not reduce the fraction, because it decides which words are read."""
        a, n = p
        return self.below(n) < a

    def odd_run(self, a, n, k=1):
        while self.coin((a, n * k)):
            k += 1
        return k % 2 == 1

    def exp_coin(self, a, n):
        while a > n:
            if not self.odd_run(1, 1):
                return False
            a -= n
        return self.odd_run(a, n)

    def small_poisson(self, a, n):
        while True:
            found = 0
            while True:
                word = next(self.words)
                ones = (~word & (WORD - 1) & -(~word & (WORD - 1))).bit_length() - 1 if word != WORD - 1 else 64
                found += ones
                if ones < 64:
                    break
            if all(self.coin((2 * a, n * i)) for i in range(1, found + 1)):
                return found

    def jump(self, ranges, num, den):
        m = self.below(ranges + 1)
        beyond = 0
        if m == ranges:
            beyond = 1
            while next(self.words) & 1:
                beyond += 1
                m += 1
            if beyond > FAR:
                return 0
        word = next(self.words)
        size = (1 << m) + (word >> (64 - m))
        if not self.coin((1 << m, size)):
            return 0
        if not all(self.odd_run(1, 1, 3) for _ in range(beyond)):
            return 0
        if not self.exp_coin(size * den - beyond * num, num):
            return 0
        return size if word & 1 else -size

    def share(self, num, den, sharers):
        ranges = 0
        while (1 << ranges) < Fraction(num, den):
            ranges += 1
        rate = 2 * (ranges + 1)
        parts = -(-2 * rate // sharers)
        return sum(
            self.jump(ranges, num, den) for _ in range(parts) for _ in range(self.small_poisson(rate, sharers * parts))
        )

    def response(self, code, n_codes, num, den):
        while True:
            drawn = self.below(n_codes)
            if drawn == code or self.exp_coin(num, den):
                return drawn
