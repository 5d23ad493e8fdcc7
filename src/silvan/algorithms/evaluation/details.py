"""Details of an evaluation beside its main metrics: further metrics, confusion, and counts by groups of scores.

Everything comes from scores and decisions that are grouped as the site's policy says (``score_groups.py``). A group of
the curves has at least ``FLOOR`` rows, and more if the policy requires more rows or more of a class.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np

from silvan import metrics
from silvan.errors import FormatError
from silvan.federation.describe import FLOOR
from silvan.privacy.policy import Policy

MOST_GROUPS, MOST_OVERALL = 20, 50  # maximum number of groups of a curve at a site, and over all sites
MOST_CLASSES = 12  # with more classes there are no confusion counts and no curves
ODDS_AT = np.array([0.01, 0.02, *np.arange(1, 20) / 20])  # thresholds of decision curves
_DIGITS = 3


def net_benefit(
    score: np.ndarray, negatives: np.ndarray, positives: np.ndarray, thresholds: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the net benefit of acting on scores of at least a threshold, and of acting on everybody.

    It is the share of true positives less that of false ones, which weigh as the odds of the threshold say.
    """
    n = max(int(negatives.sum() + positives.sum()), 1)
    acted = score >= thresholds[:, None]
    odds = thresholds / (1.0 - thresholds)
    some = ((acted * positives).sum(axis=1) - odds * (acted * negatives).sum(axis=1)) / n
    return some, (positives.sum() - odds * negatives.sum()) / n


class Detail(msgspec.Struct, frozen=True):
    """What a site discloses about one model beside its main metrics; empty arrays if nothing may be disclosed.

    ``metrics`` are in the order of ``further_metrics``. ``confusion`` counts rows by true and decided class; of two
    classes ``at_threshold`` does so at the decision threshold. ``groups`` are of the positive class of two, or of each:
    mean score, rows of other classes, rows of the class. Of a number: mean prediction, mean of the number, rows.
    """

    metrics: np.ndarray
    confusion: np.ndarray
    at_threshold: np.ndarray
    groups: list[np.ndarray]

    def by_name(self, n_classes: int) -> dict[str, float]:
        """Return the metrics by name; NaN for missing ones."""
        names = [metric.key for metric in metrics.further_metrics(n_classes)]
        return dict(zip(names, self.metrics.tolist() if len(self.metrics) else [np.nan] * len(names), strict=True))

    def net_benefit(self) -> list[tuple[float, float, float]]:
        """Return the decision curve of two classes: threshold, net benefit of the model, and of acting on everybody."""
        if len(self.groups) != 1 or not self.at_threshold.size or not len(self.groups[0]):
            return []
        score, negatives, positives = self.groups[0].T
        some, everybody = net_benefit(score, negatives, positives, ODDS_AT)
        points = zip(ODDS_AT.tolist(), some.tolist(), everybody.tolist(), strict=True)
        return [(at, round(model, 5), round(always, 5)) for at, model, always in points]


class Floors(NamedTuple):
    """Minimum number of rows in a group, and whether means of rows with the same number are left out."""

    rows: int = FLOOR
    numbers_differ: bool = False

    @classmethod
    def of(cls, policy: Policy) -> "Floors":
        """Return the requirements of a site's policy."""
        return cls(max(FLOOR, policy.score_groups, policy.min_test), policy.score_groups > 1)


def nothing() -> Detail:
    """Return the details that must not be disclosed or were not requested."""
    none = np.zeros((0, 0), np.int64)
    return Detail(np.zeros(0), none, none, [])


# -- where rows are
def detail_of(
    scores: np.ndarray,
    decided: np.ndarray,
    y: np.ndarray,
    n_classes: int,
    floors: Floors,
    threshold: float = np.nan,
    positive: int = 1,
    reach: float = np.nan,
) -> Detail:
    """Compute the details from a model's scores and decisions; metrics have three digits.

    For grouped rows, none are about intervals of numbers: somebody who chose the intervals would learn how many rows'
    numbers lie in each.
    """
    if not len(y) or np.isnan(scores).any():
        return nothing()
    none = np.zeros((0, 0), np.int64)
    if not n_classes:
        shown = np.nan if floors.numbers_differ else reach
        found = _further(0, metrics.Evidence(rows=(scores, y), reach=shown))
        return Detail(found, none, none, [_number_groups(scores[:, 0], y, floors)])
    shown = n_classes <= MOST_CLASSES
    confusion = metrics.confusion(scores, y, decided) if shown else none
    curves = [positive] if n_classes == 2 else range(n_classes) if shown else []
    groups = [class_groups(scores[:, c], y == c, floors) for c in curves]
    table = none
    evidence = metrics.Evidence(confusion=confusion, rows=(scores, y), positive=positive, reach=reach)
    if n_classes == 2:
        at_threshold = metrics.decided_at(threshold, scores, positive)
        table = metrics.confusion(scores, y, at_threshold) * (not np.isnan(threshold))
        counts = metrics.count_scores(scores, y, exact=True, positive=positive)
        levels = np.unique(scores[:, positive])[::-1]
        evidence = replace(evidence, counts=counts, levels=levels, at_threshold=table, threshold=threshold)
    return Detail(_further(n_classes, evidence), confusion, table, groups)


def _further(n_classes: int, evidence: metrics.Evidence) -> np.ndarray:
    """Return the further metrics: decimals of shares, significant digits of those in units of a number."""
    found = [(metric.of(evidence), metric.in_units) for metric in metrics.further_metrics(n_classes)]
    return np.array([three_digits(x) if in_units else np.round(x, _DIGITS) for x, in_units in found])


def three_digits(x: float) -> float:
    """Return a number with three significant digits, as metrics leave a site."""
    return float(f"{x:.{_DIGITS}g}")


def class_groups(score: np.ndarray, of_class: np.ndarray, floors: Floors) -> np.ndarray:
    """Count rows in groups of increasing score: mean score, rows of other classes, rows of the class."""
    levels, cell = np.unique(score, return_inverse=True)
    counts = np.stack([np.bincount(cell, weights, len(levels)) for weights in (~of_class, of_class)])
    return group_counts(levels, counts, floors, MOST_GROUPS)


def group_counts(levels: np.ndarray, counts: np.ndarray, floors: Floors, most: int) -> np.ndarray:
    """Merge levels of increasing score, with counts (2, levels), to at most this many groups of the minimum size."""
    least = max(floors.rows, math.ceil(counts.sum() / most))
    mass, others, own = 0.0, 0.0, 0.0
    groups: list[tuple[float, float, float]] = []
    for level, (more, more_own) in zip(levels.tolist(), counts.T.tolist(), strict=True):
        mass, others, own = mass + level * (more + more_own), others + more, own + more_own
        if others + own >= least:
            groups.append((mass, others, own))
            mass, others, own = 0.0, 0.0, 0.0
    if others + own and (groups or others + own >= floors.rows):
        last = groups.pop() if groups else (0.0, 0.0, 0.0)
        groups.append((last[0] + mass, last[1] + others, last[2] + own))
    joined = np.array(groups).reshape(-1, 3)
    joined[:, 0] = np.round(joined[:, 0] / joined[:, 1:].sum(axis=1), _DIGITS)
    return joined


def _number_groups(predicted: np.ndarray, y: np.ndarray, floors: Floors) -> np.ndarray:
    """Average predictions and numbers in groups of increasing prediction."""
    least = max(floors.rows, math.ceil(len(y) / MOST_GROUPS))
    if len(y) < floors.rows:
        return np.zeros((0, 3))
    order = np.argsort(predicted, kind="stable")
    starts = np.arange(0, max(len(y) - least + 1, 1), least)
    sizes = np.diff([*starts, len(y)])
    means = [np.add.reduceat(values[order], starts) / sizes for values in (predicted, y)]
    spread = float(y.std())
    digits = _DIGITS - 1 - math.floor(math.log10(spread)) if spread > 0 else _DIGITS
    groups = np.stack([*(np.round(mean, digits) for mean in means), sizes], axis=1)
    return groups[
        [not floors.numbers_differ or numbers_differ(y[order[a : a + n]]) for a, n in zip(starts, sizes, strict=True)]
    ]


def numbers_differ(numbers: np.ndarray) -> bool:
    """Whether at least two numbers differ from the most frequent one; otherwise their mean could reveal all."""
    _, times = np.unique(numbers, return_counts=True)
    return bool(len(numbers) - times.max(initial=0) > 1)


# -- at the coordinator
def check_detail(detail: Detail, n_classes: int, rows: int) -> None:
    """Raise ``FormatError`` for impossible details."""
    sizes = {(0, 0), (n_classes, n_classes)} if n_classes else {(0, 0)}
    known = metrics.further_metrics(n_classes)
    fits = detail.metrics.shape in ((0,), (len(known),)) and detail.metrics.dtype == np.float64
    for table in (detail.confusion, detail.at_threshold):
        fits = fits and table.shape in sizes and table.dtype == np.int64
        fits = fits and table.min(initial=0) >= 0 and table.max(initial=0) <= rows and table.sum() <= rows
    fits = fits and len(detail.groups) in (0, 1 if n_classes in (0, 2) else n_classes)
    for group in detail.groups:
        fits = fits and group.ndim == 2 and group.shape[1] == 3 and group.dtype == np.float64
        fits = fits and len(group) <= MOST_GROUPS and bool(np.isfinite(group).all())
        counted = group[:, 1:] if fits and n_classes else group[:, 2:] if fits else np.zeros(0)
        fits = fits and counted.min(initial=0.0) >= 0.0 and counted.max(initial=0.0) <= rows and counted.sum() <= rows
    fits = fits and not np.isinf(detail.metrics).any()
    if not fits or not all(m.possible(x) for m, x in zip(known, detail.metrics.tolist(), strict=False)):
        raise FormatError("its details are not possible")


def detail_over_all(
    n_classes: int,
    scores: np.ndarray | None,
    confusion: np.ndarray | None,
    sites: Sequence[tuple[int, Detail]],
    positive: int = 1,
) -> Detail:
    """Return the details over all sites: from summed counts on the grid of scores, if there are any, and from sites'.

    ``sites`` are rows and details of each. At the threshold every site uses its own threshold.
    """
    known = [(rows, detail) for rows, detail in sites if len(detail.metrics)]
    none, at = np.zeros((0, 0), np.int64), np.zeros((2, 2), np.int64)
    at = sum((detail.at_threshold for _, detail in known if detail.at_threshold.size), start=at)
    evidence = metrics.Evidence(at_threshold=at, positive=positive)
    if not n_classes:
        groups = [g for _, detail in known for g in detail.groups]
        joined = np.concatenate(groups) if groups else np.zeros((0, 3))
        return Detail(_over_all(0, evidence, known), none, none, [joined[np.argsort(joined[:, 0], kind="stable")]])
    table, empty = none, np.zeros((n_classes, n_classes), np.int64)
    if scores is None or not scores.sum():
        table = sum((detail.confusion for _, detail in known if detail.confusion.size), start=empty)
        return Detail(_over_all(n_classes, evidence, known), table, at, [])
    levels = metrics.grid_scores()
    shown_counts = scores if n_classes <= MOST_CLASSES else scores[:0]
    groups = [group_counts(levels[::-1], counts[:, ::-1], Floors(), MOST_OVERALL) for counts in shown_counts]
    table = empty if confusion is None else confusion
    evidence = replace(evidence, counts=list(scores), levels=levels, confusion=table)
    return Detail(_over_all(n_classes, evidence, known), table, at if n_classes == 2 else none, groups)


def _over_all(n_classes: int, evidence: metrics.Evidence, sites: Sequence[tuple[int, Detail]]) -> np.ndarray:
    """Return the further metrics over all sites: from counts, otherwise as the mean of the sites', weighted by rows."""
    found = []
    for place, metric in enumerate(metrics.further_metrics(n_classes)):
        value = metric.of(evidence)
        each = [(rows, float(detail.metrics[place])) for rows, detail in sites]
        weight = sum(rows for rows, one in each if not np.isnan(one))
        if metric.averages and np.isnan(value) and weight:
            value = sum(rows * one for rows, one in each if not np.isnan(one)) / weight
        found.append(value)
    return np.array(found)


def join_details(details: Sequence[Detail]) -> Detail | None:
    """Merge the details of a model on several splits: counts are added, groups of close scores merged; no metrics."""
    known = [detail for detail in details if detail.groups]
    if not known:
        return None
    confusion, at_threshold = (
        sum((table for table in tables if table.size), start=np.zeros_like(tables[0]))
        for tables in ([d.confusion for d in known], [d.at_threshold for d in known])
    )
    groups = []
    for i in range(len(known[0].groups)):
        joined = np.concatenate([detail.groups[i] for detail in known])
        joined = joined[np.argsort(joined[:, 0], kind="stable")]
        of_classes = confusion.size > 0
        groups.append(
            group_counts(joined[:, 0], joined[:, 1:].T, Floors(), MOST_GROUPS) if of_classes else _join_means(joined)
        )
    return Detail(np.zeros(0), confusion, at_threshold, groups)


def _join_means(groups: np.ndarray) -> np.ndarray:
    """Merge neighbours among groups of increasing prediction to at most this many, weighted by rows."""
    if len(groups) <= MOST_GROUPS:
        return groups
    starts = np.unique(np.arange(MOST_GROUPS) * len(groups) // MOST_GROUPS)
    rows = np.add.reduceat(groups[:, 2], starts)
    means = [np.add.reduceat(groups[:, i] * groups[:, 2], starts) / rows for i in (0, 1)]
    return np.stack([*means, rows], axis=1)
