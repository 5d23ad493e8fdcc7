"""Codes of values in one byte: how many there are, and how the values between cut points get them.

Code 0 is for missing values. Where a numeric column has more values than a tree has bins, it gets up to four times as
many cut points, of which each tree has some. A value's bin in the histograms of a tree is (code + offset) >> shift, and
the offset differs from tree to tree: a cut between neighbouring codes is in one of four sets, one whose codes are four
apart is in all.
"""

import numpy as np

from silvan.data.schema import MAX_BINS
from silvan.errors import FormatError, InputError

CODES = 256
"""How many codes one byte has."""


def check_max_bins(max_bins: int) -> None:
    """Raise ``InputError`` for a number of bins that one byte cannot hold."""
    if not 2 <= max_bins <= MAX_BINS:
        raise InputError.wrong("max_bins", f"between 2 and {MAX_BINS}", max_bins)


def table_shift(max_bins: int) -> int:
    """Return how many times codes are halved to make bins: four codes a bin if a byte holds them, else two or one."""
    return sum(max_bins << shift <= CODES for shift in (1, 2))


def staggered_bins(max_bins: int) -> int:
    """Return how many value bins the cut points of all trees make together at most."""
    shift = table_shift(max_bins)
    return min(max_bins << shift, CODES) - (1 << shift) if shift else max_bins


def value_codes(n_cuts: int, steps: np.ndarray | None, max_bins: int) -> np.ndarray:
    """Return the codes of the values between cut points; raise ``FormatError`` for steps that cannot be.

    They begin with 1, without gaps, where there are no more than ``max_bins`` or no steps.
    """
    if steps is None or n_cuts < max_bins:
        return np.arange(1, n_cuts + 2).astype(np.uint8)
    shift = table_shift(max_bins)
    codes = (1 << shift) + np.append(0, np.cumsum(steps, dtype=np.int64))
    if steps.shape != (n_cuts,) or not 1 <= steps.min() <= steps.max() <= 1 << shift:
        raise FormatError("the steps between codes are not possible")
    if codes[-1] >= min(max_bins << shift, CODES):
        raise FormatError(f"there are more codes than trees of {max_bins} bins have room for")
    return codes.astype(np.uint8)
