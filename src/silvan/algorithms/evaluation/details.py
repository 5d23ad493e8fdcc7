"""Details of a judgement beside its figures of merit: intervals, losses, confusion, and counts by groups of scores.

All of it comes from scores and decisions that are grouped as the site's policy says (``score_groups.py``). A group of
the curves holds at least ``FLOOR`` rows, and more where the policy asks for more rows or more of a class.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.intervals import enough_rows
from silvan.errors import FormatError
from silvan.federation.agreement.describe import FLOOR
from silvan.privacy.gate.gate import Policy

MOST_GROUPS, MOST_OVERALL = 20, 50
"""Most groups of a curve at a site, and over all sites."""

MOST_CLASSES = 12
"""Of more classes there are no confusion counts and no curves."""

OF_TWO = (
    "auc_low",
    "auc_high",
    "brier",
    "log_loss",
    "calibration_intercept",
    "calibration_slope",
    "threshold",
    "sensitivity",
    "specificity",
    "precision",
)
ODDS_AT = np.array([0.01, 0.02, *np.arange(1, 20) / 20])
"""Thresholds of decision curves."""

OF_SEVERAL, OF_NUMBERS = ("brier", "log_loss"), ("mae",)
"""Names of the figures, by what is predicted."""

_DIGITS = 3


class Detail(msgspec.Struct, frozen=True):
    """What is told of one model beside its figures of merit; empty arrays where nothing may be told.

    ``figures`` are in the order of ``names_of``. ``confusion`` counts rows by true and decided class; of two classes
    ``at_threshold`` does so where the second is decided on from the threshold on. ``groups`` are of the second of two
    classes, or of each: mean score, rows of other classes, rows of the class. Of a number: mean prediction, mean of the
    number, rows.
    """

    figures: np.ndarray
    confusion: np.ndarray
    at_threshold: np.ndarray
    groups: list[np.ndarray]

    def by_name(self, n_classes: int) -> dict[str, float]:
        """Return the figures by name; NaN where there are none."""
        names = names_of(n_classes)
        return dict(zip(names, self.figures.tolist() if len(self.figures) else [np.nan] * len(names), strict=True))

    def net_benefit(self) -> list[tuple[float, float, float]]:
        """Return the decision curve of two classes: threshold, net benefit of the model, and of acting on everybody."""
        if len(self.groups) != 1 or not self.at_threshold.size or not len(self.groups[0]):
            return []
        score, negatives, positives = self.groups[0].T
        some, everybody = metrics.net_benefit(score, negatives, positives, ODDS_AT)
        points = zip(ODDS_AT.tolist(), some.tolist(), everybody.tolist(), strict=True)
        return [(at, round(model, 5), round(always, 5)) for at, model, always in points]


class Floors(NamedTuple):
    """Fewest rows in a group, and of a class in it; and whether means of rows with the same number are left out."""

    rows: int = FLOOR
    of_class: int = 1
    numbers_differ: bool = False

    @classmethod
    def of(cls, policy: Policy) -> "Floors":
        """Return what a site's policy asks for."""
        return cls(max(FLOOR, policy.score_groups, policy.min_test), policy.min_class, policy.score_groups > 1)


def names_of(n_classes: int) -> tuple[str, ...]:
    """Return the names of the figures."""
    return OF_NUMBERS if not n_classes else OF_TWO if n_classes == 2 else OF_SEVERAL


def nothing() -> Detail:
    """Return the details of which nothing may be told, or that were not asked for."""
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
) -> Detail:
    """Work the details out from a model's scores of rows, and what it decides; figures have three digits."""
    if not len(y) or np.isnan(scores).any():
        return nothing()
    if not n_classes:
        predicted = scores[:, 0]
        error = float(f"{np.abs(predicted - y).mean():.{_DIGITS}g}")
        none = np.zeros((0, 0), np.int64)
        return Detail(np.array([error]), none, none, [_number_groups(predicted, y, floors)])
    shown = n_classes <= MOST_CLASSES
    confusion = metrics.confusion(scores, y, decided) if shown else np.zeros((0, 0), np.int64)
    groups = [class_groups(scores[:, c], y == c, floors) for c in _curves_of(n_classes)] if shown else []
    if n_classes > 2:
        figures = np.array([metrics.brier(scores, y), metrics.log_loss(scores, y)])
        return Detail(np.round(figures, _DIGITS), confusion, np.zeros((0, 0), np.int64), groups)
    score = scores[:, 1]
    levels, counts = np.unique(score)[::-1], metrics.count_scores(scores, y, exact=True)[0]
    table = metrics.confusion(scores, y, (score >= threshold).astype(np.int64)) * (not np.isnan(threshold))
    return Detail(np.round(_of_two(levels, counts, table, threshold), _DIGITS), confusion, table, groups)


def _of_two(score: np.ndarray, counts: np.ndarray, at_threshold: np.ndarray, threshold: float) -> np.ndarray:
    """Return the figures of two classes from counts by score, high scores first, and by decision at the threshold."""
    negatives, positives = counts
    interval = metrics.roc_auc_interval(negatives, positives) if enough_rows(counts.sum(axis=1)) else (np.nan, np.nan)
    line = metrics.calibration_line(score, negatives, positives)
    (right, false), (missed, found) = at_threshold.astype(np.float64)
    shares = [_share(found, found + missed), _share(right, right + false), _share(found, found + false)]
    return np.array([*interval, *metrics.losses_from_counts(score, negatives, positives), *line, threshold, *shares])


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else np.nan


def _curves_of(n_classes: int) -> Sequence[int]:
    return [1] if n_classes == 2 else range(n_classes)


def class_groups(score: np.ndarray, of_class: np.ndarray, floors: Floors) -> np.ndarray:
    """Count rows in groups of rising score: mean score, rows of other classes, rows of the class."""
    levels, cell = np.unique(score, return_inverse=True)
    counts = np.stack([np.bincount(cell, weights, len(levels)) for weights in (~of_class, of_class)])
    return group_counts(levels, counts, floors, MOST_GROUPS)


def group_counts(levels: np.ndarray, counts: np.ndarray, floors: Floors, most: int) -> np.ndarray:
    """Join levels of rising score, with counts (2, levels), to at most so many groups that keep the floors."""
    least, of_class = max(floors.rows, math.ceil(counts.sum() / most)), floors.of_class if floors.of_class > 1 else 0
    mass, others, own = 0.0, 0.0, 0.0
    groups: list[tuple[float, float, float]] = []
    for level, (more, more_own) in zip(levels.tolist(), counts.T.tolist(), strict=True):
        mass, others, own = mass + level * (more + more_own), others + more, own + more_own
        if others + own >= least and min(others, own) >= of_class:
            groups.append((mass, others, own))
            mass, others, own = 0.0, 0.0, 0.0
    if others + own and (groups or (others + own >= floors.rows and min(others, own) >= of_class)):
        last = groups.pop() if groups else (0.0, 0.0, 0.0)
        groups.append((last[0] + mass, last[1] + others, last[2] + own))
    joined = np.array(groups).reshape(-1, 3)
    joined[:, 0] = np.round(joined[:, 0] / joined[:, 1:].sum(axis=1), _DIGITS)
    return joined


def _number_groups(predicted: np.ndarray, y: np.ndarray, floors: Floors) -> np.ndarray:
    """Average predictions and numbers in groups of rising prediction."""
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
    """Whether more than one of the numbers is another than most: otherwise their mean may tell each of them."""
    _, times = np.unique(numbers, return_counts=True)
    return bool(len(numbers) - times.max(initial=0) > 1)


# -- at the coordinator


def check_detail(detail: Detail, n_classes: int, rows: int) -> None:
    """Raise ``FormatError`` for details that are not possible."""
    sizes = {(0, 0), (n_classes, n_classes)} if n_classes else {(0, 0)}
    fits = detail.figures.shape in ((0,), (len(names_of(n_classes)),)) and detail.figures.dtype == np.float64
    for table in (detail.confusion, detail.at_threshold):
        fits = fits and table.shape in sizes and table.dtype == np.int64
        fits = fits and table.min(initial=0) >= 0 and table.max(initial=0) <= rows and table.sum() <= rows
    fits = fits and len(detail.groups) in (0, 1 if n_classes in (0, 2) else n_classes)
    for group in detail.groups:
        fits = fits and group.ndim == 2 and group.shape[1] == 3 and group.dtype == np.float64
        fits = fits and len(group) <= MOST_GROUPS and bool(np.isfinite(group).all())
        counted = group[:, 1:] if fits and n_classes else group[:, 2:] if fits else np.zeros(0)
        fits = fits and counted.min(initial=0.0) >= 0.0 and counted.max(initial=0.0) <= rows and counted.sum() <= rows
    if not fits or np.isinf(detail.figures).any() or (n_classes and (detail.figures[:4] < 0).any()):
        raise FormatError("its details are not possible")


def detail_over_all(
    n_classes: int, scores: np.ndarray | None, confusion: np.ndarray | None, sites: Sequence[tuple[int, Detail]]
) -> Detail:
    """Return the details over all sites: from summed counts on the grid of scores, if there are any, and from sites'.

    ``sites`` are rows and details of each. At the threshold every site decides by its own.
    """
    told = [(rows, detail) for rows, detail in sites if len(detail.figures)]
    if not n_classes:
        groups = [g for _, detail in told for g in detail.groups]
        joined = np.concatenate(groups) if groups else np.zeros((0, 3))
        none = np.zeros((0, 0), np.int64)
        return Detail(_mean(told, 1), none, none, [joined[np.argsort(joined[:, 0], kind="stable")]])
    if scores is None or not scores.sum():
        shown = [detail.confusion for _, detail in told if detail.confusion.size]
        at = sum((d.at_threshold for _, d in told if d.at_threshold.size), start=np.zeros((2, 2), np.int64))
        figures = _mean(told, len(names_of(n_classes)))
        if n_classes == 2:
            keep = [OF_TWO.index("brier"), OF_TWO.index("log_loss")]
            known = _of_two(np.zeros(0), np.zeros((2, 0)), at, np.nan)
            known[keep] = figures[keep]
            figures = known
        return Detail(figures, sum(shown, start=np.zeros((n_classes, n_classes), np.int64)), at, [])
    levels = metrics.grid_scores()
    shown_counts = scores if n_classes <= MOST_CLASSES else scores[:0]
    groups = [group_counts(levels[::-1], table[:, ::-1], Floors(), MOST_OVERALL) for table in shown_counts]
    table = np.zeros((n_classes, n_classes), np.int64) if confusion is None else confusion
    if n_classes > 2:
        return Detail(_mean(told, len(OF_SEVERAL)), table, np.zeros((0, 0), np.int64), groups)
    at = sum((d.at_threshold for _, d in told if d.at_threshold.size), start=np.zeros((2, 2), np.int64))
    return Detail(_of_two(levels, scores[0], at, np.nan), table, at, groups)


def join_details(details: Sequence[Detail]) -> Detail | None:
    """Join the details of a model on several splits: counts are added, groups of near scores joined; no figures."""
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
    """Join neighbours among groups of rising prediction to at most so many, by their rows."""
    if len(groups) <= MOST_GROUPS:
        return groups
    starts = np.unique(np.arange(MOST_GROUPS) * len(groups) // MOST_GROUPS)
    rows = np.add.reduceat(groups[:, 2], starts)
    means = [np.add.reduceat(groups[:, i] * groups[:, 2], starts) / rows for i in (0, 1)]
    return np.stack([*means, rows], axis=1)


def _mean(told: Sequence[tuple[int, Detail]], width: int) -> np.ndarray:
    """Return the mean of the sites' figures, by their rows, of those that have one."""
    values = np.array([detail.figures for _, detail in told]).reshape(-1, width)
    weight = np.array([rows for rows, _ in told], np.float64)[:, None] * ~np.isnan(values)
    total = weight.sum(axis=0)
    return np.asarray(np.where(total > 0, (weight * np.nan_to_num(values)).sum(axis=0) / np.maximum(total, 1), np.nan))
