"""The quality of a model's scores, and confidence intervals for the gain of one model over another on the same rows.

For two classes the interval is DeLong's for the difference of two AUCs that share their rows, by midranks in
O(n log n). For more classes, and for numbers, it is a bootstrap of the difference, stratified by
class.

The fewer rows an interval has, the more it discloses about a single one, so there is none for few rows. There is also
none if the estimated variance of a difference is zero, unless the models score every row the same: that these rows
agree does not make the difference certain.

Sites choose between models by ``ScoreQuality``: the error of a difference follows from each training row's influence.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from silvan.algorithms.keyed_rows import draw_times
from silvan.forest.curves import risks
from silvan.metrics import Z, enough_rows
from silvan.survival_metrics import concordance_influence
from silvan.util.kernels import njit
from silvan.util.threads import thread_count, thread_map

FEWEST_NUMBERS = 20  # minimum number of test rows for an interval in regression
SHARE = (0.025, 0.975)

_NOTHING = 1e-20  # a variance below this is due to rounding
RESAMPLES, _FEWEST_RESAMPLES, ROWS_DRAWN = 1000, 200, 20_000_000
"""Number of resamples; fewer, but at least the second, if the total number of rows would exceed the third."""


def intervals(
    answers: list[np.ndarray], against: int, y: np.ndarray, n_classes: int, key: np.ndarray, n_jobs: int | None = None
) -> np.ndarray:
    """Return the 95% CI of each model's gain over one of them: (models, 2), NaN if undefined.

    A gain is a difference of AUCs (macro), or by how much the RMSE is smaller. ``answers`` are each model's scores.
    """
    found, two = np.full((len(answers), 2), np.nan), n_classes == 2
    others = [i for i, answer in enumerate(answers) if i != against and not np.isnan(answer).any()]
    if n_classes > 2:  # the AUC is over the classes with rows, and so are intervals of its gain
        present, y = np.unique(y, return_inverse=True)
        answers, n_classes = [answer[:, present] for answer in answers], max(len(present), 1)
    enough = (
        len(y) >= FEWEST_NUMBERS
        if not n_classes
        else n_classes > 1 and enough_rows(np.bincount(y, minlength=n_classes))
    )
    if against < 0 or not others or np.isnan(answers[against]).any() or not enough:
        return found
    base = answers[against]
    differ = [i for i in others if not np.array_equal(answers[i], base)]
    found[[i for i in others if i not in differ]] = 0.0
    if two:
        for i in differ:
            found[i] = delong(answers[i][:, 1], base[:, 1], y == 1)
    elif differ:
        drawn = resampled_metrics([answers[i] for i in (against, *differ)], y, n_classes, key, n_jobs)
        gains = drawn[:, 1:] - drawn[:, :1] if n_classes else drawn[:, :1] - drawn[:, 1:]
        found[differ] = np.quantile(gains, SHARE, axis=0).T
    return found


# -- two classes
def delong(scores: np.ndarray, base: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """Return the 95% CI of the AUC of ``scores`` minus that of ``base`` on the same rows."""
    above, below = (
        np.subtract(*pair) for pair in zip(placements(scores, positive), placements(base, positive), strict=True)
    )
    variance = above.var(ddof=1) / len(above) + below.var(ddof=1) / len(below)
    if variance < _NOTHING:
        return np.nan, np.nan
    gain, reach = float(above.mean()), Z * float(np.sqrt(variance))
    return max(gain - reach, -1.0), min(gain + reach, 1.0)


def placements(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of negatives below each positive, and of positives above each negative; ties count half."""
    ranks = midranks(scores)
    p, n = int(positive.sum()), int((~positive).sum())
    return (ranks[positive] - midranks(scores[positive])) / n, 1.0 - (
        ranks[~positive] - midranks(scores[~positive])
    ) / p


def midranks(values: np.ndarray) -> np.ndarray:
    """Rank values from 1; equal ones share the mean of their ranks."""
    _, cell, times = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(times)
    return (last - 0.5 * (times - 1))[cell]


# -- more classes, and numbers
def resampled_metrics(
    answers: list[np.ndarray], y: np.ndarray, n_classes: int, key: np.ndarray, n_jobs: int | None
) -> np.ndarray:
    """Return every model's AUC or RMSE on every resample: (resamples, models)."""
    n = min(RESAMPLES, max(_FEWEST_RESAMPLES, ROWS_DRAWN // len(y)))
    if n_classes:
        rising = np.array([a.argsort(axis=0, kind="stable").T for a in answers], np.uint32)
        ranked = np.array([np.take_along_axis(a.T, o, axis=1) for a, o in zip(answers, rising, strict=True)])
        ends = np.ones(ranked.shape, np.bool_)
        ends[..., :-1] = ranked[..., :-1] != ranked[..., 1:]
        positive = y[rising] == np.arange(n_classes)[:, None]
        sizes = np.bincount(y, minlength=n_classes)
        starts, members = np.concatenate([[0], np.cumsum(sizes)]), np.argsort(y, kind="stable")
    else:
        errors = np.array([(a[:, 0] - y) ** 2 for a in answers])
        starts, members = np.array([0, len(y)]), np.arange(len(y))
    out = np.empty((n, len(answers)))

    def some(numbers: np.ndarray) -> None:
        if n_classes:
            resample_auc(
                key, int(numbers[0]), starts, members, rising, positive, ends, out[numbers[0] : numbers[-1] + 1]
            )
        else:
            resample_rmse(key, int(numbers[0]), starts, members, errors, out[numbers[0] : numbers[-1] + 1])

    threads = thread_count(n_jobs)
    thread_map(some, np.array_split(np.arange(n), 4 * threads if threads > 1 else 1), threads)
    return out


@njit(nogil=True, cache=True)
def resample_rmse(
    key: np.ndarray, first: int, starts: np.ndarray, members: np.ndarray, errors: np.ndarray, out: np.ndarray
) -> None:
    """Fill ``out`` (resamples, models) from the squared errors (models, rows)."""
    n = errors.shape[1]
    times = np.empty(n, np.int32)
    for b in range(out.shape[0]):
        draw_times(key, first + b, starts, members, times)
        for m in range(errors.shape[0]):
            total = 0.0
            for i in range(n):
                total += times[i] * errors[m, i]
            out[b, m] = np.sqrt(total / n)


@njit(nogil=True, cache=True)
def resample_auc(
    key: np.ndarray,
    first: int,
    starts: np.ndarray,
    members: np.ndarray,
    rising: np.ndarray,
    positive: np.ndarray,
    ends: np.ndarray,
    out: np.ndarray,
) -> None:
    """Fill ``out`` (resamples, models) with the mean over classes of each against the rest.

    ``rising`` (models, classes, rows) lists rows by rising score; ``positive`` says which of them are of the class,
    ``ends`` where the next has another score.
    """
    n, n_classes = rising.shape[2], rising.shape[1]
    times = np.empty(n, np.int32)
    for b in range(out.shape[0]):
        draw_times(key, first + b, starts, members, times)
        for m in range(rising.shape[0]):
            mean = 0.0
            for c in range(n_classes):
                twice, below, positives, negatives = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
                for i in range(n):
                    drawn = np.int64(times[rising[m, c, i]])
                    of_class = drawn * positive[m, c, i]
                    positives += of_class
                    negatives += drawn - of_class
                    if ends[m, c, i]:
                        twice += positives * (2 * below + negatives)
                        below += negatives
                        positives, negatives = np.int64(0), np.int64(0)
                size = float(starts[c + 1] - starts[c])
                mean += 0.5 * twice / (size * (n - size))
            out[b, m] = mean / n_classes


MetricName = Literal["auc", "accuracy", "rmse", "c_index", ""]


@dataclass(frozen=True)
class ScoreQuality:
    """The quality of scores: a metric, a merit to maximise, and the influence of each row on the merit."""

    metric: MetricName
    value: float
    merit: float
    influence: np.ndarray

    def lead(self, other: "ScoreQuality") -> tuple[float, float]:
        """Return the improvement and its standard error, on the same rows."""
        n, gap = len(self.influence), self.influence - other.influence
        error = float(np.sqrt((gap * gap).sum() * n / (n - 1))) if n > 1 else np.inf
        return self.merit - other.merit, error

    def beats(self, other: "ScoreQuality", errors: float) -> bool:
        """Return whether it is better by more than this many standard errors of the difference."""
        gain, error = self.lead(other)
        return gain > errors * error


def score_quality(answer: np.ndarray, y: np.ndarray, n_classes: int, by_pairs: bool = False) -> ScoreQuality:
    """Evaluate scores by AUC, averaged over the classes that have one, or by accuracy; numbers by squared error.

    Without classes several scores are a curve, and times are signed: they are evaluated by the C-index.
    With ``by_pairs``, an AUC of several classes counts by the pairs of rows that it compares, and not as much as any
    other: that of a class with few rows is mostly luck.
    """
    n = len(y)
    if not n_classes and answer.shape[1] > 1:
        index, influence = concordance_influence(y, risks(answer))
        return ScoreQuality("c_index", index, index, influence)
    if not n_classes:
        square = (answer[:, 0] - y) ** 2
        return ScoreQuality("rmse", float(np.sqrt(square.mean())), -float(square.mean()), (square.mean() - square) / n)
    parts, pairs = [], []
    for c in [1] if n_classes == 2 else range(n_classes):
        here = y == c
        if 0 < here.sum() < n:
            parts.append(_auc_influence(answer[:, c], here))
            pairs.append(float(here.sum()) * float((~here).sum()))
    if parts:
        weights = pairs if by_pairs else None
        auc = float(np.average([one for one, _ in parts], weights=weights))
        return ScoreQuality("auc", auc, auc, np.average([influence for _, influence in parts], axis=0, weights=weights))
    right = (answer.argmax(axis=1) == y).astype(np.float64)
    return ScoreQuality("accuracy", float(right.mean()), float(right.mean()), (right - right.mean()) / n)


def _auc_influence(score: np.ndarray, here: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the AUC and each row's contribution to it: the components of DeLong's variance."""
    placement = np.empty(len(score))
    placement[here], placement[~here] = placements(score, here)
    auc = float(placement[here].mean())
    return auc, (placement - auc) / np.where(here, here.sum(), (~here).sum())
