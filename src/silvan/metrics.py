"""Metrics from counts: ranking, confusion, calibration, and errors of numbers; and the table of all metrics.

``METRICS`` at the end defines what ``evaluate``, terminal, report and files show: to add a metric, add an entry there.

Ranking metrics need the numbers of positives and negatives at each score, from high to low; all others need a confusion
matrix. With one entry per distinct score, the result is exact; with scores on a grid, it can be computed from counts
that are summed over sites. The schema names the positive one of two classes; its code ``positive`` is 1 by default.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from silvan.util.logistic import fit_logistic

GRID = 1024  # cells of the grid of scores
BANDS = 10  # bands of probability for calibration
THRESHOLD_RULES = ("youden", "f1")  # what a threshold maximises: sensitivity + specificity, or F1
OfConfusion = Literal["mcc", "accuracy", "f1"]
"""Metrics that need only a confusion matrix."""

MCC: OfConfusion = "mcc"  # the only one of them that is 0 for random votes
CERTAIN = 0.5 / GRID
"""Logarithms clip scores at this distance from 0 and 1, which is half a cell of the grid."""

COVERAGE = 0.9
"""The coverage at which intervals and sets are evaluated."""

Z = 1.959964  # 95% of a normal distribution lie within this many standard deviations of the mean


def count_scores(proba: np.ndarray, y: np.ndarray, exact: bool, positive: int = 1) -> list[np.ndarray]:
    """Count rows by score for each class against the rest: arrays (2, scores), high scores first.

    Row 0 counts the other classes, row 1 the class itself. With two classes, there is only a table for the positive
    one.
    """
    n_classes = proba.shape[1]
    wanted = [positive] if n_classes == 2 else range(n_classes)
    tables = []
    for c in wanted:
        if exact:
            levels, cell = np.unique(proba[:, c], return_inverse=True)
            n = len(levels)
        else:
            cell, n = np.minimum((proba[:, c] * GRID).astype(np.int64), GRID - 1), GRID
        counts = np.bincount((y == c) * n + cell, minlength=2 * n).reshape(2, n)
        tables.append(counts[:, ::-1])
    return tables


def grid_scores() -> np.ndarray:
    """Return the middle of each cell of the grid of scores, high scores first."""
    return (np.arange(GRID)[::-1] + 0.5) / GRID


def confusion(proba: np.ndarray, y: np.ndarray, votes: np.ndarray | None = None) -> np.ndarray:
    """Count rows by true class (rows) and predicted class (columns): the most probable one, or ``votes`` if given."""
    n = proba.shape[1]
    if votes is None:
        votes = proba.argmax(axis=1) if len(proba) else np.zeros(0, np.int64)
    return np.bincount(y.astype(np.int64) * n + votes, minlength=n * n).reshape(n, n)


def decided_at(threshold: float, proba: np.ndarray, positive: int = 1) -> np.ndarray:
    """Return the predicted class of two: the positive one if its score is at least the threshold."""
    return np.where(proba[:, positive] >= threshold, positive, 1 - positive)


def calibration_sums(proba: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Add up by band of the highest probability: rows, correct rows, and probability in millionths."""
    top, votes = proba.max(axis=1, initial=0.0), proba.argmax(axis=1) if len(proba) else np.zeros(0, np.int64)
    band = np.minimum((top * BANDS).astype(np.int64), BANDS - 1)
    sums = np.zeros((BANDS, 3), np.int64)
    np.add.at(sums, band, np.stack([np.ones(len(y)), votes == y, np.rint(top * 1e6)], axis=1).astype(np.int64))
    return sums


def from_counts(
    scores: Sequence[np.ndarray], matrix: np.ndarray, bands: np.ndarray, positive: int = 1
) -> dict[str, float]:
    """Compute all main metrics of classes; undefined ones are NaN."""
    evidence = Evidence(scores, matrix, bands, positive=positive)
    return {metric.key: metric.of(evidence) for metric in main_metrics(len(matrix))}


def roc_auc(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Return the area under the ROC curve, counting ties half; NaN with only one class. Counts may be noisy."""
    n, p = float(negatives.sum()), float(positives.sum())
    if n <= 0 or p <= 0:  # noise can make counts negative
        return np.nan
    above = np.cumsum(positives) - positives  # positives with a higher score
    return float((negatives * (above + 0.5 * positives)).sum() / (n * p))


def roc_auc_interval(negatives: np.ndarray, positives: np.ndarray) -> tuple[float, float]:
    """Return DeLong's 95% CI of the AUC from counts by score, high scores first.

    NaN with fewer than two rows of a class, or a zero estimated variance, which proves nothing.
    """
    n, p = int(negatives.sum()), int(positives.sum())
    if n < 2 or p < 2:
        return np.nan, np.nan
    above = (np.cumsum(positives) - 0.5 * positives) / p  # of each negative: the share of positives above
    below = 1.0 - (np.cumsum(negatives) - 0.5 * negatives) / n  # of each positive: the share of negatives below
    auc = float((positives * below).sum() / p)
    variance = (positives * (below - auc) ** 2).sum() / (p - 1) / p + (negatives * (above - auc) ** 2).sum() / (
        n - 1
    ) / n
    if variance < 1e-20:
        return np.nan, np.nan
    reach = Z * float(np.sqrt(variance))
    return max(auc - reach, 0.0), min(auc + reach, 1.0)


def roc_curve(negatives: np.ndarray, positives: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of the ROC curve: false and true positive rate."""
    start = np.zeros(1)
    x = np.concatenate([start, np.cumsum(negatives) / max(negatives.sum(), 1)])
    return x, np.concatenate([start, np.cumsum(positives) / max(positives.sum(), 1)])


def average_precision(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Return the area under the precision-recall curve, as average precision. NaN without positives."""
    p = int(positives.sum())
    if p == 0:
        return np.nan
    true, all_ = np.cumsum(positives), np.cumsum(positives + negatives)
    return float((positives * true / np.maximum(all_, 1)).sum() / p)


def f1(matrix: np.ndarray, positive: int = 1) -> float:
    """Return F1 of the positive one of two classes, or the mean over all classes that occur or are predicted."""
    matrix = np.maximum(matrix, 0)
    size = matrix.sum(axis=0) + matrix.sum(axis=1)
    here = size > 0 if len(matrix) != 2 else (np.arange(2) == positive) & (size > 0)
    return float((2 * np.diag(matrix)[here] / size[here]).mean()) if here.any() else np.nan


def mcc(matrix: np.ndarray) -> float:
    """Return the Matthews correlation; Gorodkin's R_K for more than two classes.

    NaN if all rows have the same class; 0 if all predictions are the same.
    """
    matrix = np.maximum(matrix, 0).astype(np.float64)
    n, right = matrix.sum(), np.trace(matrix)
    true, voted = matrix.sum(axis=1), matrix.sum(axis=0)
    spread_true, spread_voted = n * n - (true * true).sum(), n * n - (voted * voted).sum()
    if spread_true <= 0:
        return np.nan
    return float((right * n - (true * voted).sum()) / np.sqrt(spread_voted * spread_true)) if spread_voted > 0 else 0.0


def brier(proba: np.ndarray, y: np.ndarray) -> float:
    """Return the Brier score of several classes: the mean over rows of the sum of squared errors over classes."""
    return float(np.mean(((proba - (y[:, None] == np.arange(proba.shape[1]))) ** 2).sum(axis=1))) if len(y) else np.nan


def log_loss(proba: np.ndarray, y: np.ndarray) -> float:
    """Return the mean negative logarithm of the true class's probability, clipped at ``CERTAIN``."""
    shares = np.clip(proba[np.arange(len(y)), y.astype(np.int64)], CERTAIN, 1.0 - CERTAIN)
    return float(-np.log(shares).mean()) if len(y) else np.nan


def losses_from_counts(score: np.ndarray, negatives: np.ndarray, positives: np.ndarray) -> tuple[float, float]:
    """Return the Brier score of two classes (mean squared error of the positive class's score) and log loss."""
    n, near = negatives.sum() + positives.sum(), np.clip(score, CERTAIN, 1.0 - CERTAIN)
    if not n:
        return np.nan, np.nan
    square = (negatives * score**2 + positives * (1.0 - score) ** 2).sum() / n
    return float(square), float(-(negatives * np.log1p(-near) + positives * np.log(near)).sum() / n)


def calibration_line(score: np.ndarray, negatives: np.ndarray, positives: np.ndarray) -> tuple[float, float]:
    """Return calibration in the large and calibration slope, from counts by score.

    Both come from a logistic regression of the class on the log-odds of the score: the intercept with the slope fixed
    at 1, and the slope. 0 and 1 are ideal; a slope below 1 means that scores are too extreme. NaN if all rows have the
    same class, or if scores separate the classes perfectly, so that the slope is unbounded.
    """
    odds = np.log(np.clip(score, CERTAIN, 1.0 - CERTAIN))
    odds -= np.log1p(-np.clip(score, CERTAIN, 1.0 - CERTAIN))
    total = negatives + positives
    if not negatives.sum() or not positives.sum():
        return np.nan, np.nan
    constant = fit_logistic(np.ones((1, len(odds))), total, positives, odds)
    line = fit_logistic(np.stack([np.ones(len(odds)), odds]), total, positives)
    return float(constant[0]), float(line[1])


def classification(
    proba: np.ndarray, y: np.ndarray, votes: np.ndarray | None = None, positive: int = 1
) -> dict[str, float]:
    """Compute all main metrics of classes exactly from rows; ``votes`` are the predicted classes, if given.

    If a model does not answer for some row (NaN), all metrics are NaN.
    """
    if np.isnan(proba).any():
        return {metric.key: np.nan for metric in main_metrics(proba.shape[1])}
    counts = count_scores(proba, y, exact=True, positive=positive)
    return from_counts(counts, confusion(proba, y, votes), calibration_sums(proba, y), positive)


def regression(predicted: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Compute all regression metrics exactly from rows."""
    return from_moments(moments(predicted, y))


def moments(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the sums that RMSE and R2 need: rows, squared error, mean of y, squared distance of y from its mean.

    Plain sums of squares of y would lose the spread of large numbers. If a model does not answer for some row (NaN),
    all sums are zero.
    """
    if np.isnan(predicted).any():
        return np.zeros(4)
    mean = float(y.mean()) if len(y) else 0.0
    return np.array([len(y), ((predicted - y) ** 2).sum(), mean, ((y - mean) ** 2).sum()], np.float64)


def from_moments(parts: np.ndarray) -> dict[str, float]:
    """Compute RMSE and R2 from the moments of one or several sets of rows: (sets, moments)."""
    evidence = Evidence(moments=parts)
    return {metric.key: metric.of(evidence) for metric in main_metrics(0)}


def rmse(parts: np.ndarray) -> float:
    """Return the root of the mean squared error from moments."""
    n, error, *_ = np.atleast_2d(parts).T
    return float(np.sqrt(error.sum() / n.sum())) if n.sum() else np.nan


def r2(parts: np.ndarray) -> float:
    """Return the share of explained variance from moments."""
    n, error, mean, spread = np.atleast_2d(parts).T
    if n.sum() == 0:
        return np.nan
    overall = (n * mean).sum() / n.sum()
    all_spread = spread.sum() + (n * (mean - overall) ** 2).sum()
    with np.errstate(over="ignore"):  # minus infinity for labels that hardly differ
        return float(1.0 - error.sum() / all_spread) if all_spread > 0 else np.nan


FEWEST_ROWS, FEWEST_OF_A_CLASS = 10, 5
"""Minimum number of test rows, and of rows of each class, for a confidence interval."""


def enough_rows(by_class: np.ndarray) -> bool:
    """Whether there are enough rows for an interval, given the rows of each class."""
    return int(by_class.sum()) >= FEWEST_ROWS and int(by_class.min()) >= FEWEST_OF_A_CLASS


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else np.nan


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else np.nan


def _mean_of_known(values: list[float]) -> float:
    """Return the mean over the classes with a value; classes without test rows have none."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else np.nan


# -- the table of metrics

Task = Literal["two", "several", "number"]
"""The kind of target: one of two classes, one of several, or a number."""

_CLASSES: tuple[Task, ...] = ("two", "several")


def task_of(n_classes: int) -> Task:
    """Return what is predicted."""
    return "number" if not n_classes else "two" if n_classes == 2 else "several"


@dataclass(frozen=True)
class Evidence:
    """The data for metrics, as far as available: counts that can be summed over sites, and rows where they are.

    ``counts`` are by class, as in ``count_scores``; ``levels`` are the scores of the first. ``at_threshold`` is the
    confusion matrix of decisions at the ``threshold``. ``positive`` is the code of the positive one of two classes.
    ``reach`` is how far intervals go to both sides of a number, or how far from 1 the probability of a class in a set.
    """

    counts: Sequence[np.ndarray] = ()
    confusion: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    bands: np.ndarray = field(default_factory=lambda: np.zeros((BANDS, 3), np.int64))
    levels: np.ndarray = field(default_factory=lambda: np.zeros(0))
    at_threshold: np.ndarray = field(default_factory=lambda: np.zeros((2, 2), np.int64))
    threshold: float = np.nan
    moments: np.ndarray = field(default_factory=lambda: np.zeros(4))
    rows: tuple[np.ndarray, np.ndarray] | None = None  # scores (rows, outputs) and labels
    positive: int = 1
    reach: float = np.nan

    @cached_property
    def inside(self) -> np.ndarray:
        """Whether each class is in a row's set, (rows, classes), or each row's number in its interval, (rows, 1)."""
        if self.rows is None or np.isnan(self.reach):
            return np.zeros((0, 1), np.bool_)
        scores, y = self.rows
        from_truth = 1.0 - scores if scores.shape[1] > 1 else np.abs(scores - y[:, None])
        return np.asarray(from_truth <= self.reach)

    @property
    def covered(self) -> np.ndarray:
        """Whether the truth of each row is in its set or interval."""
        inside = self.inside
        if inside.shape[1] == 1 or self.rows is None:
            return inside[:, 0]
        return np.asarray(np.take_along_axis(inside, self.rows[1].astype(np.int64)[:, None], axis=1)[:, 0])

    @property
    def ranked(self) -> Sequence[np.ndarray]:
        """The counts of classes with both members and other rows; with two classes always the only table."""
        return [table for table in self.counts if len(self.counts) == 1 or (table.sum(axis=1) > 0).all()]

    @cached_property
    def auc_interval(self) -> tuple[float, float]:
        """The interval of the AUC of two classes; NaN with too few rows."""
        enough = len(self.counts) == 1 and enough_rows(self.counts[0].sum(axis=1))
        return roc_auc_interval(*self.counts[0]) if enough else (np.nan, np.nan)

    @cached_property
    def losses(self) -> tuple[float, float]:
        """Brier score and log loss: for two classes from counts, for several from rows."""
        if len(self.counts) == 1:
            return losses_from_counts(self.levels, *self.counts[0])
        return (np.nan, np.nan) if self.rows is None else (brier(*self.rows), log_loss(*self.rows))

    @cached_property
    def calibration(self) -> tuple[float, float]:
        """Calibration in the large, and calibration slope, of two classes."""
        return calibration_line(self.levels, *self.counts[0]) if len(self.counts) == 1 else (np.nan, np.nan)

    def at(self, true: int, decided: int) -> float:
        """Return the number of rows with a true and a decided class at the threshold; 1 is the positive class."""
        table = self.at_threshold if self.positive else self.at_threshold[::-1, ::-1]
        return float(table[true, decided])


@dataclass(frozen=True)
class Metric:
    """A metric: its name, meaning, computation and task.

    Models are compared by the first ``main`` metric of a task; other metrics are details. A metric with ``averages`` is
    averaged over sites if summed counts do not determine it; one with ``noisy`` can be computed from noisy counts.
    Values lie between ``low`` and ``high``. ``in_units`` marks metrics in the units of the predicted number. Metrics
    without a title are ends of intervals. ``short`` is a title for narrow tables.
    """

    key: str
    title: str
    meaning: str
    tasks: tuple[Task, ...]
    of: Callable[[Evidence], float]
    main: bool = False
    higher: bool = True  # whether more is better
    low: float = -np.inf
    high: float = np.inf
    ranks: bool = False  # whether it depends only on the order of rows by score
    in_units: bool = False
    averages: bool = False
    noisy: bool = False
    short: str = ""

    def possible(self, value: float) -> bool:
        """Whether a value is possible for the metric; NaN means undefined."""
        return bool(np.isnan(value) or self.low <= value <= self.high)


METRICS = (
    Metric(
        "auc", "AUC", "area under the ROC curve", _CLASSES,
        lambda e: _mean_of_known([roc_auc(*table) for table in e.counts]),
        main=True, low=0.0, high=1.0, ranks=True, noisy=True,
    ),
    Metric(
        "pr_auc", "PR AUC", "area under the precision-recall curve", _CLASSES,
        lambda e: _mean_of_known([average_precision(*table) for table in e.ranked]),
        main=True, low=0.0, high=1.0, ranks=True,
    ),
    Metric(
        "accuracy", "Accuracy", "share of rows classified correctly", _CLASSES,
        lambda e: _share(np.trace(e.confusion), e.confusion.sum()), main=True, low=0.0, high=1.0, noisy=True,
    ),
    Metric(
        "f1", "F1", "balance of precision and recall", _CLASSES, lambda e: f1(e.confusion, e.positive),
        main=True, low=0.0, high=1.0, noisy=True,
    ),
    Metric(
        "mcc", "MCC", "Matthews correlation", _CLASSES, lambda e: mcc(e.confusion),
        main=True, low=-1.0, high=1.0, noisy=True,
    ),
    Metric(
        "calibration", "Calibration error", "mean gap between probability and outcome", _CLASSES,
        lambda e: _share(np.abs(e.bands[:, 1] - e.bands[:, 2] / 1e6).sum(), e.confusion.sum()),
        main=True, higher=False, low=0.0, high=1.0,
    ),
    Metric(
        "rmse", "RMSE", "root of the mean squared error", ("number",), lambda e: rmse(e.moments),
        main=True, higher=False, low=0.0, in_units=True,
    ),
    Metric(
        "r2", "R²", "share of variance explained", ("number",), lambda e: r2(e.moments), main=True, high=1.0, short="R2"
    ),
    Metric("auc_low", "", "lower end of the AUC's interval", ("two",), lambda e: e.auc_interval[0], low=0.0, high=1.0),
    Metric("auc_high", "", "upper end of the AUC's interval", ("two",), lambda e: e.auc_interval[1], low=0.0, high=1.0),
    Metric(
        "brier", "Brier", "mean squared distance of probability and outcome; less is better", _CLASSES,
        lambda e: e.losses[0], higher=False, low=0.0, averages=True, short="Brier",
    ),
    Metric(
        "log_loss", "Log loss", "mean negative logarithm of the true class's probability; less is better", _CLASSES,
        lambda e: e.losses[1], higher=False, low=0.0, averages=True, short="Log loss",
    ),
    Metric(
        "calibration_intercept", "Intercept", "ideally 0; above 0, scores are too low, below 0 too high", ("two",),
        lambda e: e.calibration[0],
    ),
    Metric(
        "calibration_slope", "Slope", "ideally 1; below 1, scores are too extreme, above 1 too timid", ("two",),
        lambda e: e.calibration[1],
    ),
    Metric(
        "threshold", "Threshold", "the decision threshold, chosen on the site's training rows", ("two",),
        lambda e: e.threshold, short="At",
    ),
    Metric(
        "sensitivity", "Sensitivity", "share of positive rows predicted as positive at the threshold", ("two",),
        lambda e: _share(e.at(1, 1), e.at(1, 1) + e.at(1, 0)), low=0.0, high=1.0, short="Sens.",
    ),
    Metric(
        "specificity", "Specificity", "share of negative rows predicted as negative at the threshold", ("two",),
        lambda e: _share(e.at(0, 0), e.at(0, 0) + e.at(0, 1)), low=0.0, high=1.0, short="Spec.",
    ),
    Metric(
        "precision", "Precision", "share of positive rows among those predicted as positive", ("two",),
        lambda e: _share(e.at(1, 1), e.at(1, 1) + e.at(0, 1)), low=0.0, high=1.0,
    ),
    Metric(
        "mae", "MAE", "mean absolute error; less is better", ("number",),
        lambda e: np.nan if e.rows is None else float(np.abs(e.rows[0][:, 0] - e.rows[1]).mean()),
        higher=False, low=0.0, in_units=True, averages=True, short="MAE",
    ),
    Metric(
        "coverage", "Coverage", f"share of rows in their {COVERAGE:.0%} interval or set of classes",
        (*_CLASSES, "number"), lambda e: _mean(e.covered), low=0.0, high=1.0, averages=True,
    ),
    Metric(
        "set_size", "Set size", f"classes in a {COVERAGE:.0%} set, on average; less is better", _CLASSES,
        lambda e: _mean(e.inside.sum(axis=1)), higher=False, low=0.0, averages=True,
    ),
    Metric(
        "width", "Width", f"width of {COVERAGE:.0%} intervals; less is better", ("number",),
        lambda e: 2.0 * e.reach, higher=False, low=0.0, in_units=True, averages=True,
    ),
)  # fmt: skip
"""All metrics, in the order of the columns of ``evaluate``."""

BY_KEY = {metric.key: metric for metric in METRICS}


def of_confusion(key: OfConfusion, matrix: np.ndarray, positive: int = 1) -> float:
    """Return a metric of a confusion matrix; NaN if undefined."""
    return BY_KEY[key].of(Evidence(confusion=matrix, positive=positive))


def main_metrics(n_classes: int) -> tuple[Metric, ...]:
    """Return the metrics of every evaluation; models are compared by the first."""
    return tuple(metric for metric in METRICS if metric.main and task_of(n_classes) in metric.tasks)


def further_metrics(n_classes: int) -> tuple[Metric, ...]:
    """Return the further metrics, which need as many rows as the site's policy demands."""
    return tuple(metric for metric in METRICS if not metric.main and task_of(n_classes) in metric.tasks)
