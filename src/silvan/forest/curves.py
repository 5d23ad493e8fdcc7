"""Curves of survival forests: cumulative hazards at leaves, and what follows from them.

A leaf holds the Nelson-Aalen curve of its training rows, at the times that end the time bins. Its steps are the shares
of the rows at risk that have the event in a bin, so the Kaplan-Meier curve is the product of one minus the steps. A
forest's curves are the means of its trees' curves, of either kind. Between two times curves are straight lines, as if
events were spread evenly over a bin; beyond the last time, after which no training row had the event, they are level.
"""

from collections.abc import Iterator

import numpy as np

from silvan.util.kernels import njit

MOST_TIMES = 255
ROUNDING = 1e-9  # steps of cumulated sums may be so far from what was added


def hazards(counts: np.ndarray) -> np.ndarray:
    """Return cumulative hazards, (leaves, bins), from rows by twice the bin, and one more with the event.

    After the last bin no row has the event. Rows that are censored within a bin count for half of it, as in life
    tables.
    """
    out = np.empty((len(counts), counts.shape[1] // 2))
    _add_hazards(np.ascontiguousarray(counts), out)
    return out


@njit(nogil=True, cache=True)
def _add_hazards(counts: np.ndarray, out: np.ndarray) -> None:
    for leaf in range(counts.shape[0]):
        at_risk = 0
        for code in range(counts.shape[1]):
            at_risk += counts[leaf, code]
        hazard = 0.0
        for k in range(out.shape[1]):
            censored, events = counts[leaf, 2 * k], counts[leaf, 2 * k + 1]
            if events > 0:
                hazard += events / (at_risk - 0.5 * censored)
            at_risk -= censored + events
            out[leaf, k] = hazard


@njit(nogil=True, cache=True)
def are_hazards(value: np.ndarray) -> bool:
    """Return whether every row begins at 0 or above, never falls and never rises by more than 1."""
    for leaf in range(value.shape[0]):
        before = 0.0
        for k in range(value.shape[1]):
            step = value[leaf, k] - before
            if not 0.0 <= step <= 1.0 + ROUNDING:
                return False
            before = value[leaf, k]
    return True


def survival(value: np.ndarray) -> np.ndarray:
    """Return Kaplan-Meier curves from cumulative hazards of single trees."""
    return np.maximum(1.0 - np.diff(value, axis=1, prepend=0.0), 0.0).cumprod(axis=1)


def risks(value: np.ndarray) -> np.ndarray:
    """Return one number for each row by which rows are ranked: the sum of cumulative hazards over all times."""
    return np.asarray(value.sum(axis=1))


def at_times(ends: np.ndarray, values: np.ndarray, times: np.ndarray, start: float) -> np.ndarray:
    """Return curves at other times, (rows, times); they begin with ``start`` at time 0."""
    if ends[0] > 0.0:
        ends, values = np.append(0.0, ends), np.insert(values, 0, start, axis=1)
    right = (
        np.clip(np.searchsorted(ends, times), 1, max(len(ends) - 1, 1)) if len(ends) > 1 else np.zeros(len(times), int)
    )
    left = np.maximum(right - 1, 0)
    width = np.where(right > left, ends[right] - ends[left], 1.0)
    share = np.clip((times - ends[left]) / width, 0.0, 1.0)
    return values[:, left] * (1.0 - share) + values[:, right] * share


def moved(ends: np.ndarray, value: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return cumulative hazards of leaves at other times, such that survival is the same there.

    Steps add up, so a step over several bins is one minus the product of what survives each.
    """
    left = at_times(ends, survival(value), times, 1.0)
    before = np.insert(left[:, :-1], 0, 1.0, axis=1)
    steps = np.where(before > 0, 1.0 - left / np.where(before > 0, before, 1.0), 0.0)
    return np.maximum(steps, 0.0).cumsum(axis=1)


class Curve:
    """One row's curve: ``x`` are its times, ``y`` its values there; called with times it returns its values."""

    def __init__(self, x: np.ndarray, y: np.ndarray, start: float) -> None:
        self.x, self.y, self._start = x, y, start

    @property
    def domain(self) -> tuple[float, float]:
        """The first and last time; later the curve is level."""
        return 0.0, float(self.x[-1])

    def __call__(self, times: float | np.ndarray) -> np.ndarray:
        """Return the values at some times."""
        wanted = np.asarray(times, np.float64)
        found = at_times(self.x, self.y[None], wanted.ravel(), self._start)[0]
        return found.reshape(wanted.shape)

    def __repr__(self) -> str:
        return f"<Curve from {self._start:g} at 0 to {self.y[-1]:.3g} at {self.x[-1]:g}>"


class Curves:
    """The curves of some rows: ``x`` are the times, ``y`` the values (rows, times); a sequence of ``Curve``."""

    def __init__(self, x: np.ndarray, y: np.ndarray, start: float) -> None:
        self.x, self.y, self._start = x, y, start

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> Curve:
        return Curve(self.x, self.y[row], self._start)

    def __iter__(self) -> Iterator[Curve]:
        return (self[row] for row in range(len(self)))

    def __call__(self, times: float | np.ndarray) -> np.ndarray:
        """Return the values of all rows at some times: (rows, times)."""
        return at_times(self.x, self.y, np.atleast_1d(np.asarray(times, np.float64)), self._start)

    def __repr__(self) -> str:
        return f"<Curves of {len(self)} rows at {len(self.x)} times>"
