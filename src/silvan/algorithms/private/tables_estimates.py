"""Estimates from noisy counts: smooth histograms, groups of bins, values of cells, calibration.

All of it uses noisy integers and public numbers only, so it costs no epsilon.

Linear algebra, exponentials and logarithms differ in their last digits between processors. Estimates are rounded, so
that a coordinator that resumes on another machine makes the same forest and the same requests: a request that differed
in a last digit would get new noise at a new charge.
"""

from collections.abc import Sequence

import numpy as np

_DIGITS = 6  # decimals of estimates: fewer than all processors agree on, more than are useful under noise


def settled(estimate: np.ndarray) -> np.ndarray:
    """Return an estimate without the digits in which processors differ; -0 becomes 0."""
    return np.round(estimate, _DIGITS) + 0.0


# -- round A: from a noisy histogram to groups of bins
_HEIGHTS = (0.2, 0.6, 2.0, 5.0)
_LENGTHS = (1.0, 3.0, 8.0)
_BY_WIDTH = (0.0, 0.8)
"""Shares of a column's rows assumed to follow the width of bins, which are narrow near the lower bound."""

_SPIKE = 16.0  # prior variance of a separate bin, as a multiple of that of the others


def smooth(counts: np.ndarray, rows: float, variance: float, spikes: int, widths: np.ndarray) -> np.ndarray:
    """Remove noise from a histogram by a Gaussian process; the first ``spikes`` bins are separate.

    The prior: bins have equally many rows, or nearly in proportion to their width, and neighbours are alike. The
    likelihood of the counts chooses between the two, and the strength and range of the similarity. ``widths`` are
    those of the other bins.
    """
    n = len(counts)
    place = np.arange(n - spikes)
    near = np.abs(place[:, None] - place[None, :])
    best, answer = -np.inf, counts.astype(np.float64)
    for part in _BY_WIDTH:
        mean = np.full(n, rows / n)
        mean[spikes:] *= 1.0 - part + part * widths / widths.mean()
        for height in _HEIGHTS:
            for length in _LENGTHS:
                kernel = np.zeros((n, n))
                kernel[spikes:, spikes:] = np.exp(-near / length)
                kernel[range(spikes), range(spikes)] = _SPIKE
                kernel *= (height * rows / n) ** 2
                solved, likelihood = _solve(kernel + variance * np.eye(n), counts - mean)
                if likelihood > best:
                    best, answer = likelihood, mean + kernel @ solved
    return settled(np.maximum(answer, 0.0))


def cut_evenly(mass: np.ndarray, n_groups: int) -> np.ndarray:
    """Return the bins after which to cut so that groups have about equal mass, given heavy bins."""
    cuts = []
    left, groups, here = float(mass.sum()), n_groups, 0.0
    for i in range(len(mass) - 1):
        here += mass[i]
        share = left / groups
        if groups > 1 and here > 0.0 and here + mass[i + 1] / 2 >= share:
            cuts.append(i)
            left, groups, here = left - here, groups - 1, 0.0
    return np.array(cuts, np.int64)


# -- round B: from noisy counts in cells to values
def prior(groups: Sequence[int], pairs: float, alone: float) -> np.ndarray:
    """Return the prior covariance of the values of cells: (cells, cells)."""
    cells = np.indices(tuple(groups)).reshape(len(groups), -1)
    # the number of features in which two cells of a table agree
    shared = (cells[:, :, None] == cells[:, None, :]).sum(axis=0).astype(np.float64)
    return 0.3 * (shared + pairs * shared * (shared - 1.0) / 2.0 + alone * np.eye(len(shared)))


def log_odds(counts: np.ndarray, shares: np.ndarray, kernel: np.ndarray, variance: float) -> np.ndarray:
    """Return the log-odds that each cell adds for each class, shrunk jointly: (cells, classes).

    One Newton step from the class's share in all rows: the residual C - pi n has slope pi (1 - pi) n, and the variance
    that classes have by chance plus that of the noise.
    """
    rows = counts.sum(axis=1)
    used = np.flatnonzero(rows > 1.0)
    values = np.zeros(counts.shape)
    if not len(used):
        return values
    n_classes = counts.shape[1]
    for k in range(1 if n_classes == 2 else 0, n_classes):
        pi = shares[k]
        residual = counts[used, k] - pi * rows[used]
        slope = pi * (1.0 - pi) * rows[used]
        spread = slope + variance * ((1.0 - pi) ** 2 + (n_classes - 1) * pi**2)
        values[:, k] = settled(_posterior(kernel, used, slope, residual, spread))
    if n_classes == 2:
        values[:, 0] = -values[:, 1]
    return values


def _posterior(
    kernel: np.ndarray, used: np.ndarray, slope: np.ndarray, residual: np.ndarray, spread: np.ndarray
) -> np.ndarray:
    """Return the mean of w, if residual = slope w + noise of variance spread, and w has covariance kernel."""
    among = kernel[np.ix_(used, used)]
    matrix = slope[:, None] * among * slope[None, :] + np.diag(spread)
    return kernel[:, used] @ (slope * _solve(matrix, residual)[0])


def _solve(matrix: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, float]:
    """Solve by a covariance matrix; return also the log-likelihood of the right side, up to a constant."""
    from scipy.linalg import cho_factor, cho_solve

    factor = cho_factor(matrix, lower=True)
    solved = cho_solve(factor, right)
    return solved, float(-0.5 * right @ solved - np.log(np.diag(factor[0])).sum())


def class_shares(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Return each class's share in all rows, from every table's counts; tables with few cells count more."""
    weights = np.array([1.0 / len(counts) for counts in tables])
    totals = np.array([counts.sum(axis=0) for counts in tables], np.float64)
    total = np.maximum((weights[:, None] * totals).sum(axis=0) / weights.sum(), 0.5)
    return np.clip(total / total.sum(), 1e-3 / len(total), 1.0 - 1e-3)


def number_values(
    counts: np.ndarray, mean: float, kernel: np.ndarray, row_variance: float, sum_variance: float
) -> np.ndarray:
    """Return what each cell adds to the mean of a number, shrunk jointly.

    The deviations of rows within cells and of cells from each other are chosen by the likelihood of the noisy sums.
    """
    rows, sums = counts[:, 0].astype(np.float64), counts[:, 1].astype(np.float64)
    used = np.flatnonzero(rows > 1.0)
    if not len(used):
        return np.zeros(len(counts))
    n = rows[used]
    residual = sums[used] - mean * n
    best, answer = -np.inf, np.zeros(len(counts))
    for within in _WITHIN:
        for between in _BETWEEN:
            scaled = kernel * (between * within) ** 2
            spread = n * within**2 + sum_variance + (mean**2 + (between * within) ** 2) * row_variance
            matrix = n[:, None] * scaled[np.ix_(used, used)] * n[None, :] + np.diag(spread)
            solved, likelihood = _solve(matrix, residual)
            if likelihood > best:
                best, answer = likelihood, scaled[:, used] @ (n * solved)
    return settled(answer)


_WITHIN = (12.0, 25.0, 50.0)
_BETWEEN = (0.15, 0.4, 1.0)


def posterior_mean(measured: Sequence[tuple[float, float]]) -> float:
    """Return the mean of a number from noisy means and their variances; the prior is the middle of its bounds."""
    weight = 1.0 / _MEAN_DEVIATION**2 + sum(1.0 / variance for _, variance in measured)
    return float(sum(value / variance for value, variance in measured) / weight)


def slope_of(sums: np.ndarray, mean: float, variance: float, unit: float) -> tuple[float, float]:
    """Return the scale factor for the tables' additions, and the resulting shift of the mean.

    ``sums`` are noisy means over rows of score, target, score times target and score squared, in whole numbers up to
    127; a score counts ``unit`` in the target's. Sums of correlated tables are too large: the prior mean is 1/3.
    """
    score = sums[0] / (1.0 + variance / _MEAN_DEVIATION**2)
    across = 127.0 * sums[2] - score * mean
    along = max(127.0 * sums[3] - score**2, 0.0) + 127.0 * np.sqrt(variance)
    noise = 127.0**2 * variance
    likely, width = unit / 3.0, unit / 3.0
    slope = (along * across / noise + likely / width**2) / (along**2 / noise + 1.0 / width**2) / unit
    slope = float(np.clip(slope, 0.0, 2.0))
    return slope, slope * float(score) * unit


_MEAN_DEVIATION = 40.0  # prior deviation of a target's mean from the middle of its bounds, in 127ths of the way to them


# -- round C: from summed log-odds to probabilities
_EDGES = np.array([-2.0, -1.2, -0.7, -0.3, 0.0, 0.3, 0.7, 1.2, 2.0])
SCORE_BINS = len(_EDGES) + 1
_LEAST_SLOPE = 0.05
_MOST_ODDS = 20.0


def score_edges(tables: Sequence[np.ndarray], values: Sequence[np.ndarray], k: int, groupings: int) -> np.ndarray:
    """Return cut points for the summed log-odds of a class, from the noisy tables alone."""
    mean = variance = 0.0
    for counts, value in zip(tables, values, strict=True):
        mass = np.maximum(counts.sum(axis=1), 0.0)
        mass = mass / max(mass.sum(), 1.0)
        middle = mass @ value[:, k]
        mean += middle / groupings
        variance += mass @ (value[:, k] - middle) ** 2 / groupings
    # features are dependent, so sums spread more than independent parts would
    return settled(mean + max(1.5 * np.sqrt(variance), 1e-3) * _EDGES)


def knots_of(edges: np.ndarray) -> np.ndarray:
    """Return a representative score for each bin."""
    inner = (edges[1:] + edges[:-1]) / 2.0
    first, last = edges[1] - edges[0], edges[-1] - edges[-2]
    return np.concatenate([[edges[0] - first / 2.0], inner, [edges[-1] + last / 2.0]])


def calibrate(counts: np.ndarray, knots: np.ndarray, variance: float) -> np.ndarray:
    """Return the log-odds at each knot, from noisy rows (bins, outside or inside the class): rising, not too flat."""
    rows = np.maximum(counts.astype(np.float64), 0.0)
    total = rows.sum(axis=1)
    a, b = _platt(rows, knots)
    line = 1.0 / (1.0 + np.exp(-(a + b * knots)))
    trust = 2.0 * np.sqrt(variance) + 1.0
    share = (rows[:, 1] + trust * line) / (total + trust)
    rising = _isotonic(share, total + trust)
    odds = settled(np.clip(np.log(rising) - np.log1p(-rising), -_MOST_ODDS, _MOST_ODDS))
    for i in range(1, len(odds)):
        odds[i] = max(odds[i], odds[i - 1] + _LEAST_SLOPE * (knots[i] - knots[i - 1]))
    return odds


def _platt(rows: np.ndarray, knots: np.ndarray) -> tuple[float, float]:
    """Fit log-odds = a + b score to counts by Newton steps; b stays positive."""
    total = rows.sum(axis=1) + 1e-9
    inside = float(np.clip(rows[:, 1].sum() / total.sum(), 1e-4, 1 - 1e-4))
    a, b = float(np.log(inside / (1.0 - inside))), 0.5
    for _ in range(25):
        p = 1.0 / (1.0 + np.exp(-np.clip(a + b * knots, -30, 30)))
        residual, curve = rows[:, 1] - total * p, total * p * (1.0 - p)
        # a weak pull towards slope 1/2 keeps the steps finite
        hessian = np.array([[curve.sum(), curve @ knots], [curve @ knots, curve @ knots**2]]) + np.eye(2)
        step = np.linalg.solve(hessian, [residual.sum(), residual @ knots - (b - 0.5)])
        a, b = a + float(np.clip(step[0], -2, 2)), b + float(np.clip(step[1], -1, 1))
    return a, max(b, _LEAST_SLOPE)


def _isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the isotonic regression: decreasing neighbours are pooled until all increase."""
    blocks: list[list[float]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] >= blocks[-1][0]:
            (v1, w1, n1), (v2, w2, n2) = blocks[-2:]
            blocks[-2:] = [[(v1 * w1 + v2 * w2) / (w1 + w2), w1 + w2, n1 + n2]]
    return np.concatenate([np.full(int(n), value) for value, _, n in blocks])
