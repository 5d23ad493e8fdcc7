"""Metrics from counts: ranking, confusion, calibration, and errors of numbers.

Ranking metrics need, for each score from high to low, how many positives and negatives have it; everything
else needs a confusion matrix. With one entry for each distinct score the result is exact; with scores on a grid it
is what can be computed from counts that sites may add up. The positive class of two is the second.
"""

import numpy as np

CLASSIFICATION = ("auc", "pr_auc", "accuracy", "f1", "mcc", "calibration")
REGRESSION = ("rmse", "r2")

GRID = 1024
"""Cells of the grid of scores."""

BANDS = 10
"""Bands of probability for calibration."""

THRESHOLD_RULES = ("youden", "f1")
"""What a threshold may be the best of: sensitivity + specificity, or F1."""

CERTAIN = 0.5 / GRID
"""Scores nearer to 0 or 1 than this count as this near where logarithms are taken: half a cell of the grid."""

Z = 1.959964
"""Standard deviations on both sides of the mean within which 95 % of a normal distribution lie."""


def count_scores(proba: np.ndarray, y: np.ndarray, exact: bool) -> list[np.ndarray]:
    """Count rows by score for each class against the rest: arrays (2, scores), high scores first.

    Row 0 counts the others, row 1 the class itself. Two classes need only the second.
    """
    n_classes = proba.shape[1]
    wanted = [1] if n_classes == 2 else range(n_classes)
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
    """Count rows by true class (rows) and decided class (columns): the most probable one, or ``votes`` if given."""
    n = proba.shape[1]
    if votes is None:
        votes = proba.argmax(axis=1) if len(proba) else np.zeros(0, np.int64)
    return np.bincount(y.astype(np.int64) * n + votes, minlength=n * n).reshape(n, n)


def calibration_sums(proba: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Add up, by band of the winning probability: rows, rows that were right, probability in millionths."""
    top, votes = proba.max(axis=1, initial=0.0), proba.argmax(axis=1) if len(proba) else np.zeros(0, np.int64)
    band = np.minimum((top * BANDS).astype(np.int64), BANDS - 1)
    sums = np.zeros((BANDS, 3), np.int64)
    np.add.at(sums, band, np.stack([np.ones(len(y)), votes == y, np.rint(top * 1e6)], axis=1).astype(np.int64))
    return sums


def from_counts(scores: list[np.ndarray], matrix: np.ndarray, bands: np.ndarray) -> dict[str, float]:
    """Compute all classification metrics; what is undefined is NaN."""
    n = matrix.sum()
    return {
        "auc": float(np.mean([roc_auc(*t) for t in scores])),
        "pr_auc": float(np.mean([average_precision(*t) for t in scores])),
        "accuracy": float(np.trace(matrix) / n) if n else np.nan,
        "f1": f1(matrix),
        "mcc": mcc(matrix),
        "calibration": float(np.abs(bands[:, 1] - bands[:, 2] / 1e6).sum() / n) if n else np.nan,
    }


def roc_auc(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Return the area under the ROC curve; a tie counts half. NaN with one class only."""
    n, p = int(negatives.sum()), int(positives.sum())
    if n == 0 or p == 0:
        return np.nan
    above = np.cumsum(positives) - positives  # positives with a higher score
    return float((negatives * (above + 0.5 * positives)).sum() / (n * p))


def roc_auc_interval(negatives: np.ndarray, positives: np.ndarray) -> tuple[float, float]:
    """Return DeLong's 95 % interval of the AUC from counts by score, high scores first.

    NaN with fewer than two rows of a class, and where the estimated variance is zero: rows that agree prove nothing.
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


def f1(matrix: np.ndarray) -> float:
    """Return F1 of the second of two classes, or the mean over the classes that occur or are voted for."""
    size = matrix.sum(axis=0) + matrix.sum(axis=1)
    here = size > 0 if len(matrix) != 2 else np.array([False, size[1] > 0])
    return float((2 * np.diag(matrix)[here] / size[here]).mean()) if here.any() else np.nan


def mcc(matrix: np.ndarray) -> float:
    """Return the Matthews correlation, for more than two classes Gorodkin's R_K.

    NaN if the rows are all of one class; 0 if all votes are for one.
    """
    matrix = matrix.astype(np.float64)
    n, right = matrix.sum(), np.trace(matrix)
    true, voted = matrix.sum(axis=1), matrix.sum(axis=0)
    spread_true, spread_voted = n * n - (true * true).sum(), n * n - (voted * voted).sum()
    if spread_true <= 0:
        return np.nan
    return float((right * n - (true * voted).sum()) / np.sqrt(spread_voted * spread_true)) if spread_voted > 0 else 0.0


def brier(proba: np.ndarray, y: np.ndarray) -> float:
    """Return the Brier score of several classes: the mean over rows of squared errors, summed over classes."""
    return float(np.mean(((proba - (y[:, None] == np.arange(proba.shape[1]))) ** 2).sum(axis=1))) if len(y) else np.nan


def log_loss(proba: np.ndarray, y: np.ndarray) -> float:
    """Return the mean of minus the logarithm of the true class's probability, which counts as ``CERTAIN`` at least."""
    shares = np.clip(proba[np.arange(len(y)), y.astype(np.int64)], CERTAIN, 1.0 - CERTAIN)
    return float(-np.log(shares).mean()) if len(y) else np.nan


def losses_from_counts(score: np.ndarray, negatives: np.ndarray, positives: np.ndarray) -> tuple[float, float]:
    """Return the Brier score of two classes, the mean squared error of the second one's score, and the log loss."""
    n, near = negatives.sum() + positives.sum(), np.clip(score, CERTAIN, 1.0 - CERTAIN)
    if not n:
        return np.nan, np.nan
    square = (negatives * score**2 + positives * (1.0 - score) ** 2).sum() / n
    return float(square), float(-(negatives * np.log1p(-near) + positives * np.log(near)).sum() / n)


def calibration_line(score: np.ndarray, negatives: np.ndarray, positives: np.ndarray) -> tuple[float, float]:
    """Return calibration in the large and calibration slope, from counts by score.

    Both are of a logistic regression of the class on the log-odds of the score: the constant where the slope is held at
    1, and the slope. 0 and 1 are right; a slope below 1 says that scores are too extreme. NaN where rows are all of one
    class, or scores tell the classes apart without an error, so that the slope has no end.
    """
    odds = np.log(np.clip(score, CERTAIN, 1.0 - CERTAIN))
    odds -= np.log1p(-np.clip(score, CERTAIN, 1.0 - CERTAIN))
    total = negatives + positives
    if not negatives.sum() or not positives.sum():
        return np.nan, np.nan
    constant = _logistic(np.ones((1, len(odds))), odds, total, positives)
    line = _logistic(np.stack([np.ones(len(odds)), odds]), np.zeros(len(odds)), total, positives)
    return float(constant[0]), float(line[1])


_STEPS, _STEEPEST = 100, 500.0


def _logistic(columns: np.ndarray, offset: np.ndarray, total: np.ndarray, positives: np.ndarray) -> np.ndarray:
    """Return the coefficients of a logistic regression on counts, by Newton's steps; NaN where there is no end."""
    at = np.zeros(len(columns))

    def deviance(at: np.ndarray) -> float:
        z = offset + at @ columns
        return float((total * np.logaddexp(0.0, z) - positives * z).sum())

    here = deviance(at)
    for _ in range(_STEPS):
        share = 1.0 / (1.0 + np.exp(-np.clip(offset + at @ columns, -50.0, 50.0)))
        slope = columns @ (positives - total * share)
        curve = (columns * (total * share * (1.0 - share))) @ columns.T
        if np.linalg.cond(curve) > 1e12:
            break
        step = np.linalg.solve(curve, slope)
        while (there := deviance(at + step)) > here and np.abs(step).max() > 1e-12:
            step /= 2.0
        at, here = at + step, there
        if np.abs(step).max() < 1e-10:
            return at
        if np.abs(at).max() > _STEEPEST:
            break
    return np.full(len(columns), np.nan)


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


def best_threshold(score: np.ndarray, negatives: np.ndarray, positives: np.ndarray, rule: str = "youden") -> float:
    """Return the threshold that does best by "youden" (sensitivity + specificity) or "f1", from counts by score.

    It lies half-way between two scores, at three decimals; of equals it is the one nearest to a half. NaN with one
    class only.
    """
    levels, cell = np.unique(score, return_inverse=True)
    neg, pos = np.bincount(cell, negatives), np.bincount(cell, positives)
    if not neg.sum() or not pos.sum():
        return np.nan
    true, false = (np.cumsum(counts[::-1])[::-1] for counts in (pos, neg))  # of scores of at least each level
    youden, f1_score = true / pos.sum() - false / neg.sum(), 2.0 * true / (true + false + pos.sum())
    merit = youden if rule == "youden" else f1_score
    lower = np.concatenate([[0.0], levels[:-1]])
    places = np.round((lower + levels) / 2.0, 3)
    # rounding must not carry a threshold beyond its level
    places = np.where((places > lower) & (places <= levels), places, levels)
    best = merit > merit.max() - 1e-12
    return float(min(places[best], key=lambda t: (abs(t - 0.5), t)))


def classification(proba: np.ndarray, y: np.ndarray, votes: np.ndarray | None = None) -> dict[str, float]:
    """Compute all classification metrics exactly from rows; ``votes`` are the classes decided on, if given.

    A model that does not answer (NaN) has no figures.
    """
    if np.isnan(proba).any():
        return dict.fromkeys(CLASSIFICATION, np.nan)
    return from_counts(count_scores(proba, y, exact=True), confusion(proba, y, votes), calibration_sums(proba, y))


def regression(predicted: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Compute all regression metrics exactly from rows."""
    return from_moments(moments(predicted, y))


def moments(predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the sums that RMSE and R2 need: rows, squared error, mean of y, squared distance of y from its mean.

    Sums of squares of y itself would leave nothing of the spread of large numbers. Of a model that does not answer
    (NaN) they are of no rows.
    """
    if np.isnan(predicted).any():
        return np.zeros(4)
    mean = float(y.mean()) if len(y) else 0.0
    return np.array([len(y), ((predicted - y) ** 2).sum(), mean, ((y - mean) ** 2).sum()], np.float64)


def from_moments(parts: np.ndarray) -> dict[str, float]:
    """Compute RMSE and R2 from the moments of rows, or of several sets of rows: (sets, moments)."""
    n, error, mean, spread = np.atleast_2d(parts).T
    if n.sum() == 0:
        return dict.fromkeys(REGRESSION, np.nan)
    overall = (n * mean).sum() / n.sum()
    all_spread = spread.sum() + (n * (mean - overall) ** 2).sum()
    with np.errstate(over="ignore"):  # labels that hardly differ: minus infinity
        r2 = float(1.0 - error.sum() / all_spread) if all_spread > 0 else np.nan
    return {"rmse": float(np.sqrt(error.sum() / n.sum())), "r2": r2}
