"""Logistic regression on counts, for calibration curves."""

import numpy as np

_STEPS, _STEEPEST = 100, 500.0


def fit_logistic(
    columns: np.ndarray,
    total: np.ndarray,
    positives: np.ndarray,
    offset: np.ndarray | float = 0.0,
    *,
    centre: np.ndarray | None = None,
    penalty: np.ndarray | None = None,
) -> np.ndarray:
    """Return the coefficients by Newton's method; NaN where they would grow without bound.

    ``columns`` is (coefficients, groups); ``total`` and ``positives`` are the rows of each group. With a ``penalty``,
    one per coefficient, the coefficients are pulled towards a ``centre``.
    """
    centre = np.zeros(len(columns)) if centre is None else centre
    penalty = np.zeros(len(columns)) if penalty is None else penalty
    at = centre.astype(np.float64)

    def deviance(at: np.ndarray) -> float:
        z = offset + at @ columns
        return float((total * np.logaddexp(0.0, z) - positives * z).sum() + (penalty * (at - centre) ** 2).sum() / 2.0)

    here = deviance(at)
    for _ in range(_STEPS):
        share = 1.0 / (1.0 + np.exp(-np.clip(offset + at @ columns, -50.0, 50.0)))
        slope = columns @ (positives - total * share) - penalty * (at - centre)
        curve = (columns * (total * share * (1.0 - share))) @ columns.T + np.diag(penalty)
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
