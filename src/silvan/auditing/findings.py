"""Findings of attacks: a value with its interval, the value of chance, and a verdict by the site's limit."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import binomtest

from silvan.algorithms.evaluation.score_quality import placements
from silvan.errors import InputError
from silvan.study.toml_lines import read_toml, suggest

Verdict = Literal["held", "close", "exceeded", "not run"]
"""``held``: the whole interval is below the limit. ``close``: only the value is below it."""

_Z = 1.959964  # of a 95% CI


@dataclass(frozen=True)
class Finding:
    """The result of one attack on one release."""

    attack: str  # its name in limits
    title: str
    has: str  # what the attacker has
    measure: str  # what the value measures
    value: float | None = None  # None if the attack could not run
    low: float | None = None
    high: float | None = None
    chance: float = 0.0  # the value for an attacker who has nothing
    n: int = 0  # rows, leaves or thresholds behind the value
    undefended: float | None = None  # the value for a release of the same rows without any defence
    limit: float = 0.0  # the largest acceptable value
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """The value compared with the limit."""
        if self.value is None:
            return "not run"
        if self.value > self.limit:
            return "exceeded"
        return "close" if self.high is not None and self.high > self.limit else "held"

    def with_result(self, measured: tuple[float, float, float], n: int, note: str = "") -> "Finding":
        """Return the finding with a value and its interval."""
        value, low, high = map(float, measured)
        return replace(self, value=value, low=low, high=high, n=n, note=note)

    def not_run(self, why: str) -> "Finding":
        """Return the finding with the reason why the attack did not run."""
        return replace(self, note=why)

    def with_cells(self, ours: np.ndarray, others: np.ndarray) -> "Finding":
        """Return the finding with the share of each member's cells rebuilt by the attacker and by guesses."""
        note = f"{ours.mean():.0%} of cells; {others.mean():.0%} by guesses from the population"
        return self.with_result(gained(ours, others), len(ours), note)

    def with_undefended(self, undefended: "Finding | None") -> "Finding":
        """Return the finding with the value of the undefended release for comparison."""
        return replace(self, undefended=None if undefended is None else undefended.value)


def auc(members: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """Return the share of pairs in which the member is higher, ties half, and a 95% CI (DeLong et al. 1988)."""
    scores = np.concatenate([members, others])
    by_member, by_other = placements(scores, np.arange(len(scores)) < len(members))
    value = float(by_member.mean())
    error = math.sqrt(_variance(by_member) + _variance(by_other))
    return value, max(0.0, value - _Z * error), min(1.0, value + _Z * error)


def share(hits: int, n: int) -> tuple[float, float, float]:
    """Return a share and its 95% CI (Wilson)."""
    interval = binomtest(hits, n).proportion_ci(method="wilson")
    return hits / n, min(hits / n, interval.low), max(hits / n, interval.high)


def mean_gap(ours: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """Return the difference of two means and its 95% CI."""
    gap = float(ours.mean() - others.mean())
    error = math.sqrt(_variance(ours) + _variance(others))
    return gap, gap - _Z * error, gap + _Z * error


def gained(ours: np.ndarray, others: np.ndarray, *, paired: bool = True) -> tuple[float, float, float]:
    """Return the share of what guesses miss that an attacker gets right, with its 95% CI, from values by row.

    ``paired`` means that both are of the same rows, in order.
    """
    missed = max(1.0 - float(others.mean()), 1e-9 if paired else 1.0 / len(others))
    gap, low, high = mean_gap(ours - others, np.zeros(1)) if paired else mean_gap(ours, others)
    return gap / missed, low / missed, min(1.0, high / missed)


def cells_found(right: np.ndarray) -> np.ndarray:
    """Match guessed rows one-to-one with members, and return the share of correct cells of each member.

    ``right`` is bool (guesses, members, cells).
    """
    cells = right.mean(axis=2)
    guess, member = linear_sum_assignment(-cells)
    found = np.zeros(cells.shape[1])
    found[member] = cells[guess, member]
    return found


def _variance(values: np.ndarray) -> float:
    """Return the variance of a mean."""
    return float(values.var(ddof=1)) / len(values) if len(values) > 1 else 0.0


_REBUILT = "cells rebuilt, of those that guesses miss"
_LARGER = "larger leaves, as min_samples_leaf = 10 in [learner], or epsilon"

# fmt: off
_TABLE = (
    # name, title, what the attacker has, metric,
    # chance, limit, what to set in a study file
    ("membership", "Membership, by confidence", "predictions of the forest; a person's row and label",
     "AUC, members against others", 0.5, 0.60, _LARGER),
    ("support", "Membership, by leaf support", "the trees; a person's row and label",
     "AUC, members against others", 0.5, 0.60, _LARGER),
    ("attribute", "Attribute guess from leaves", "the trees; all of a person but one attribute",
     "right more often for members than for others", 0.0, 0.10, _LARGER),
    ("lonely", "Single-record leaves", "the trees", "leaves with a single row",
     0.0, 0.0, "min_samples_leaf in [learner] or min_leaf in [policy], 2 or more"),
    ("thresholds", "Exact-value thresholds", "the trees; all rows but one",
     "thresholds that reveal one row's value, beyond coincidence", 0.0, 0.10, ""),
    ("leaf_labels", "Labels by least squares", "the trees; all columns of the training rows, no label",
     "labels recovered, of those that guesses miss",
     0.0, 0.25, "fewer trees of larger leaves, as n_estimators = 20 and min_samples_leaf = 50, or epsilon"),
    ("ranges", "Rows from boxes", "the trees; how many rows there are", _REBUILT, 0.0, 0.25, _LARGER),
    ("reconstruction", "Rows from counts", "the trees; how many rows there are; yes/no columns",
     _REBUILT, 0.0, 0.25, _LARGER),
    ("assignment", "Patient-site assignment", "all that reaches the one who adds up; a patient's row",
     "patients whose site is identified, beyond guesses",
     0.0, 0.0, 'sums = "masked" before the first section, for three sites or more'),
    ("differencing", "Two sums that differ by one site", "the coordinator's role; no part of a sum",
     "counts of one site that are recovered", 0.0, 0.0, ""),
    ("labels", "Labels from partitions", "row partitions that a party receives; no label",
     "rows assigned to the right class, mean of both classes",
     0.5, 0.75, "min_samples_leaf = 20 or more in [learner]"),
    ("backdoor", "Backdoored trees", "one site, which sends anything it likes",
     "rows turned by a trigger, beyond those it turns anyway", 0.0, 0.10, "refit_leaves = true in [learner]"),
)
# fmt: on

ATTACKS = {row[0]: Finding(*row[:4], chance=row[4], limit=row[5]) for row in _TABLE}
"""Each attack before it runs; docs/audit.md defines the metrics and justifies the limits."""

DEFAULTS = {name: one.limit for name, one in ATTACKS.items()}

HELPS = {row[0]: row[6] for row in _TABLE if row[6]}
"""What to set in a study file against an attack."""


def what_helps(attacks: Sequence[str]) -> list[str]:
    """Return what to set in a study file: a line for each remedy with its attacks."""
    remedies: dict[str, list[str]] = {}
    for name in attacks:
        remedies.setdefault(HELPS.get(name, "see docs/audit.md"), []).append(name)
    return [f"{', '.join(names)}: {remedy}" for remedy, names in remedies.items()]


def make_limits(given: Mapping[str, Any] | None = None) -> dict[str, float]:
    """Return the default limits, overridden by those of a site."""
    limits = dict(DEFAULTS)
    for name, value in (given or {}).items():
        if name not in DEFAULTS:
            raise InputError(f"there is no attack {name!r} to set a limit for; {suggest(str(name), DEFAULTS)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
            raise InputError(f"the limit of {name} must be a number from 0 to 1, got {value!r}")
        limits[name] = float(value)
    return limits


def read_limits(path: Path) -> dict[str, float]:
    """Read the section ``[limits]`` of a TOML file."""
    _, data = read_toml(path)
    if set(data) - {"limits"} or not isinstance(data.get("limits", {}), dict):
        raise InputError(f"{path}: it must hold one section, [limits], with a number for each attack that it names")
    try:
        return make_limits(data.get("limits", {}))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
