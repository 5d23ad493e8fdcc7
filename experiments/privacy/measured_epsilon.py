"""An empirical lower bound on epsilon, from many noisy replies about two tables that differ in one row.

If a claimed epsilon is right, no outcome is more than exp(epsilon) times as likely for one table as for the other.
The outcome used here is the one that distinguishes the tables best, a likelihood ratio beyond a threshold; the
threshold is chosen on one half of the samples and evaluated on the other, with exact (Clopper-Pearson) bounds on both
probabilities. A bound above the claimed epsilon refutes the claim; one below proves nothing, so the audit also runs
on deliberately wrong accounting.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv

from silvan.data.schema import Schema
from silvan.privacy.noise.noisy_request import Noisy

CONFIDENCE = 0.95
_THRESHOLDS = 60


class Bound(NamedTuple):
    """The claimed epsilon, and a lower bound on the true one, with the requested confidence."""

    claimed: float
    at_least: float

    @property
    def refuted(self) -> bool:
        """Whether the claim is wrong."""
        return self.at_least > self.claimed


def clopper_pearson(hits: int, draws: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Bound a probability from both sides, each with half of the error."""
    error = (1.0 - confidence) / 2.0
    low = 0.0 if hits == 0 else float(betaincinv(hits, draws - hits + 1, error))
    high = 1.0 if hits == draws else float(betaincinv(hits + 1, draws - hits, 1.0 - error))
    return low, high


def lower_bound(with_row: np.ndarray, without: np.ndarray, confidence: float = CONFIDENCE) -> float:
    """Bound epsilon from below, given scores of samples: higher for samples that look like ones with the row."""
    best = 0.0
    # half of the error is for each of the two directions
    each = 1.0 - (1.0 - confidence) / 2.0
    for sign, likely, other in ((1.0, with_row, without), (-1.0, without, with_row)):
        half = len(likely) // 2
        a, b = sign * likely, sign * other
        tried = [(_bound(a[:half], b[:half], at, each), at) for at in _thresholds(a[:half])]
        best = max(best, _bound(a[half:], b[half:], max(tried)[1], each))
    return best


def _thresholds(scores: np.ndarray) -> list[float]:
    return np.unique(np.quantile(scores, np.linspace(0.0, 0.995, _THRESHOLDS), method="lower")).tolist()


def _bound(likely: np.ndarray, other: np.ndarray, threshold: float, confidence: float) -> float:
    low, _ = clopper_pearson(int((likely >= threshold).sum()), len(likely), confidence)
    _, high = clopper_pearson(int((other >= threshold).sum()), len(other), confidence)
    return float(np.log(low / high)) if low > 0.0 else 0.0


def audit_counts(
    request: Noisy,
    schema: Schema,
    with_row: np.ndarray,
    without: np.ndarray,
    draws: int,
    n_sites: int = 1,
    confidence: float = CONFIDENCE,
) -> Bound:
    """Audit the noise of a reply, summed over sites.

    ``with_row`` and ``without`` are exact replies that differ by one row; only the differing counters are used.
    """
    return audit_all([(request, with_row, without)], schema, request.epsilon, draws, n_sites, confidence)


def audit_all(
    asked: Sequence[tuple[Noisy, np.ndarray, np.ndarray]],
    schema: Schema,
    claimed: float,
    draws: int,
    n_sites: int = 1,
    confidence: float = CONFIDENCE,
) -> Bound:
    """Audit several requests together, with all replies visible: the claim covers all of them."""
    scores = [_scores(*one, schema, draws, n_sites) for one in asked]
    with_row, without = (np.sum(part, axis=0) for part in zip(*scores, strict=True))
    return Bound(claimed, lower_bound(with_row, without, confidence))


def _scores(
    request: Noisy, with_row: np.ndarray, without: np.ndarray, schema: Schema, draws: int, n_sites: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sample replies with and without the row, and return for each how much more likely it is with the row."""
    scales = np.array([float(noise.scale) for noise in request.noises(schema)])
    a, b = with_row.reshape(-1, len(scales)), without.reshape(-1, len(scales))
    differ = (a != b).any(axis=1)
    a, b = a[differ], b[differ]

    def draw_and_score(exact: np.ndarray) -> np.ndarray:
        copies = np.broadcast_to(exact, (draws, *exact.shape))
        total = request.add(copies, schema)
        for _ in range(n_sites - 1):
            total = total + request.add(np.zeros_like(copies), schema)
        return _log_ratio(total, a, b, scales)

    return draw_and_score(a), draw_and_score(b)


def _log_ratio(drawn: np.ndarray, with_row: np.ndarray, without: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Return the logarithm of the likelihood ratio of each sample, under discrete Laplace noise."""
    nearer = np.abs(drawn - without) - np.abs(drawn - with_row)
    return (nearer / scales).reshape(len(drawn), -1).sum(axis=1)


def audit_rows(
    disguise: Callable[[int, int], np.ndarray], claimed: float, draws: int, confidence: float = CONFIDENCE
) -> Bound:
    """Audit noise on rows: ``disguise(row, draws)`` scores samples of row 0 or 1, higher if more like row 1."""
    return Bound(claimed, lower_bound(disguise(1, draws), disguise(0, draws), confidence))
