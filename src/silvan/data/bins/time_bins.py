"""Time bins of survival forests, chosen from counts of times in coarse cells of the public grid.

A cell is about 3% of a time wide. The cells are counted with and without the event, so the same sum gives the bins,
their rows at risk and their events. No time of a row becomes a bin's end.
"""

import numpy as np

from silvan.data.bins import grid
from silvan.data.bins.grid import Grid
from silvan.data.survival import events_of, times_of
from silvan.errors import InputError

_GRID = Grid.for_columns(1)
N_CODES = 2 * (_GRID.middle + 1)
"""The number of codes of ``time_cells``."""


def time_cells(y: np.ndarray) -> np.ndarray:
    """Return twice the cell of every time, and one more where the event happened."""
    images = grid.images(times_of(y).astype(np.float32))
    return 2 * (grid.coarse_cells(images, _GRID.coarse, _GRID.n_cells) - _GRID.middle) + events_of(y)


def choose_times(counts: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Choose the ends of at most so many time bins, given rows by ``time_cells``; also return their rows.

    Bins, two at least, have about equally many events, and the last one ends at the last cell with an event. The rows
    are int64 (bins + 1, 2), without the event and with it; those after the last end come last.
    """
    by_cell = counts.reshape(-1, 2)
    cells = np.flatnonzero(by_cell[:, 1])
    if not len(cells):  # as at a site without events, whose trees then have nothing to split by
        cells = np.flatnonzero(by_cell[:, 0])[-1:]
    if len(cells) == 1:  # two ends, so that curves are never taken for numbers
        cells = np.array([cells[0] - 1, cells[0]]) if cells[0] else np.array([0, 1])
    if len(cells) > most:
        reached = np.cumsum(by_cell[cells, 1])
        shares = -(-reached[-1] * np.arange(1, most + 1) // most)
        cells = cells[np.unique(np.searchsorted(reached, shares))]
    rows = np.zeros((len(cells) + 1, 2), np.int64)
    np.add.at(rows, np.searchsorted(cells, np.arange(len(by_cell))), by_cell)
    return grid.values(np.minimum(cells.astype(np.int64) << _GRID.coarse, grid.LARGEST)).astype(np.float64), rows


def check_events(counts: np.ndarray) -> None:
    """Raise ``InputError`` if no row has the event, given rows by ``time_cells``."""
    if not counts.reshape(-1, 2)[:, 1].any():
        raise InputError("no row has the event: there is nothing to learn from times that are all censored")


def codes_of(y: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return twice the bin of every time, and one more where the event happened."""
    return 2 * np.searchsorted(times, times_of(y)) + events_of(y)
