"""Discrete Laplace noise on counts, with the epsilon that it guarantees.

If one site's noise must suffice by itself, it is opendp's discrete Laplace. If only a sum over sites is visible, each
site adds a share (``sampler.py``), and the sum of all shares is exactly one discrete Laplace number.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from silvan.errors import InputError, RefusedError
from silvan.privacy.noise.sampler import MAX_SCALE, noise_shares

MAX_EPSILON = 1000.0
"""Maximum epsilon of a request: beyond it there is practically no privacy."""


@dataclass(frozen=True)
class Noise:
    """Discrete Laplace noise that makes integers private.

    Parameters
    ----------
    sensitivity
        The total change of the integers that one row can cause.
    epsilon
        The privacy guarantee for a row.
    sharers
        The number of sites whose shares make up the noise; 1: this site adds all of it.
    """

    sensitivity: int
    epsilon: float | Fraction
    sharers: int = 1

    def __post_init__(self) -> None:
        """Check the parameters."""
        if self.sensitivity < 1 or self.sharers < 1:
            raise InputError("sensitivity and sharers must be at least 1")
        check_epsilon(self.epsilon)
        if self.scale > MAX_SCALE:
            raise InputError.about(
                "epsilon", f"{float(self.epsilon):g} is too small for a sensitivity of {self.sensitivity}"
            )

    @property
    def scale(self) -> Fraction:
        """Scale b of the noise: P(z) is proportional to exp(-|z| / b)."""
        return Fraction(self.sensitivity) / Fraction(self.epsilon)

    @property
    def alpha(self) -> float:
        """Quotient of neighbouring probabilities; what Eq. 6 of the histogram paper calls epsilon."""
        return math.exp(-1.0 / float(self.scale))

    @property
    def variance(self) -> float:
        """Variance of the noise on one integer, when all shares are added."""
        return 2.0 * self.alpha / (1.0 - self.alpha) ** 2

    def add(self, counts: np.ndarray) -> np.ndarray:
        """Return integers with noise added, or with this site's share of it."""
        exact = np.ascontiguousarray(counts, np.int64)
        if self.sharers == 1:
            return _laplace(exact.reshape(-1), self).reshape(exact.shape)
        return exact + noise_shares(exact.size, self.scale, self.sharers).reshape(exact.shape)


def check_epsilon(epsilon: Any) -> None:
    """Check that epsilon is a number above 0 and at most ``MAX_EPSILON``."""
    right = isinstance(epsilon, int | float | np.number | Fraction) and not isinstance(epsilon, bool)
    if not (right and 0.0 < epsilon <= MAX_EPSILON):
        raise InputError.wrong("epsilon", f"a number above 0 and at most {MAX_EPSILON:g}", epsilon)


def load_opendp() -> Any:
    """Return opendp, which is slow to import and an extra; raise ``RefusedError`` if it is not installed."""
    try:
        import opendp.prelude as dp
    except ImportError:
        raise RefusedError("the site cannot add noise: it lacks opendp (pip install 'silvan[dp]')") from None
    dp.enable_features("contrib")
    return dp


def _laplace(counts: np.ndarray, noise: Noise) -> np.ndarray:
    if not counts.size:
        return counts
    dp = load_opendp()
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l1_distance(T="i64")
    scale = float(noise.scale)
    mechanism = dp.m.make_laplace(*space, scale)
    while Fraction(mechanism.map(noise.sensitivity)) > noise.epsilon:  # the scale was rounded down
        scale = math.nextafter(scale, math.inf)
        mechanism = dp.m.make_laplace(*space, scale)
    return np.array(mechanism(counts), np.int64)
