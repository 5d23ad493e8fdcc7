"""What an attack found: a figure with its interval, what chance gives, and what the site's limit says of it."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

Verdict = Literal["held", "close", "exceeded", "not run"]
"""``held``: below the limit, its whole interval too. ``close``: below, but the interval reaches above it."""


@dataclass(frozen=True)
class Finding:
    """One attack on one release."""

    attack: str  # the name by which limits know it
    title: str
    has: str  # what the attacker has
    measure: str  # what the figure is
    value: float | None = None  # None if the attack could not run
    low: float | None = None
    high: float | None = None
    chance: float | None = None  # what the figure is for an attacker who has nothing
    n: int = 0  # rows, leaves or thresholds behind the figure
    undefended: float | None = None  # the same figure for a release of the same rows without any defence
    limit: float | None = None
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """Compare the figure with the limit."""
        if self.value is None or self.limit is None:
            return "not run"
        if self.value > self.limit:
            return "exceeded"
        return "close" if self.high is not None and self.high > self.limit else "held"

    def told(self, figure: tuple[float, float, float], n: int, note: str = "") -> "Finding":
        """Add a figure with its interval."""
        value, low, high = figure
        return replace(self, value=value, low=low, high=high, n=n, note=note)

    def silent(self, why: str) -> "Finding":
        """Say why the attack did not run."""
        return replace(self, note=why)

    def against(self, undefended: "Finding | None") -> "Finding":
        """Put the figure of the undefended release beside."""
        return replace(self, undefended=None if undefended is None else undefended.value)


def auc(members: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """Give the share of pairs in which the member is higher, ties half, and a 95 % interval (DeLong et al. 1988)."""
    below = np.searchsorted(np.sort(others), members, "left") + np.searchsorted(np.sort(others), members, "right")
    above = np.searchsorted(np.sort(members), others, "left") + np.searchsorted(np.sort(members), others, "right")
    by_member, by_other = below / (2 * len(others)), 1.0 - above / (2 * len(members))
    value = float(by_member.mean())
    error = math.sqrt(_variance(by_member) + _variance(by_other))
    return value, max(0.0, value - _Z * error), min(1.0, value + _Z * error)


def share(hits: int, n: int) -> tuple[float, float, float]:
    """Give a share and its 95 % interval (Wilson)."""
    p = hits / n
    middle, spread = p + _Z**2 / (2 * n), _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n * n))
    scale = 1 + _Z**2 / n
    return p, min(p, max(0.0, (middle - spread) / scale)), max(p, min(1.0, (middle + spread) / scale))


def mean_gap(ours: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """Give the difference of two means and its 95 % interval."""
    gap = float(ours.mean() - others.mean())
    error = math.sqrt(_variance(ours) + _variance(others))
    return gap, gap - _Z * error, gap + _Z * error


def gained(ours: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """Give the share of what guesses miss that an attacker gets, and its 95 % interval; both by row."""
    missed = max(1.0 - float(others.mean()), 1e-9)
    middle, error = float((ours - others).mean()), math.sqrt(_variance(ours - others))
    return middle / missed, (middle - _Z * error) / missed, (middle + _Z * error) / missed


def _variance(values: np.ndarray) -> float:
    """Variance of a mean."""
    return float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0


_Z = 1.959964
