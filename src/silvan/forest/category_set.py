"""Sets of category bins as 256 bits: the left side of a split by category.

Bit b of a set stands for bin b of the column, and bit 0 for missing values. A set is four 64-bit words.
"""

from collections.abc import Iterable

import numpy as np

from silvan.data.schema import Schema
from silvan.util.kernels import njit

SET_WORDS = 4  # 64-bit words of a set: one bit for each of the 256 bins that a byte can hold


@njit(nogil=True, cache=True, inline="always")
def in_set(words: np.ndarray, bin_: int) -> bool:
    """Whether a bin is in a set."""
    return (words[bin_ >> 6] >> np.uint64(bin_ & 63)) & np.uint64(1) != 0


def set_bits(sets: np.ndarray) -> np.ndarray:
    """Unpack sets: bool (sets, 256), one column per bin."""
    octets = np.ascontiguousarray(sets, "<u8").view(np.uint8).reshape(len(sets), 8 * SET_WORDS)
    return np.unpackbits(octets, axis=1, bitorder="little").view(np.bool_)


def make_set(bins: Iterable[int]) -> np.ndarray:
    """Return the set of some bins: uint64 (4,)."""
    bits = np.zeros(64 * SET_WORDS, np.bool_)
    bits[list(bins)] = True
    return np.packbits(bits, bitorder="little").view("<u8").astype(np.uint64)


def known_bins(schema: Schema) -> np.ndarray:
    """Return each feature's set of possible bins: uint64 (features, 4), empty for numeric features."""
    n_bins = np.array([f.categorical * (f.n_codes + 1) for f in schema.features], np.int64)
    bits = np.arange(64 * SET_WORDS) < n_bins[:, None]
    words = np.packbits(bits, axis=1, bitorder="little").view("<u8")
    return words.astype(np.uint64, copy=False)


def is_category_split(schema: Schema, feature: np.ndarray) -> np.ndarray:
    """Return which nodes split by category, given each node's feature (-1 for a leaf)."""
    kinds = np.array([f.categorical for f in schema.features] + [False], np.bool_)
    return kinds[feature] if kinds.any() else np.zeros(feature.shape, np.bool_)
