"""Naive versions in NumPy of the kernels that grow trees."""

import numpy as np

from silvan.data.bins.bins import HistogramBins
from silvan.tree.split import Splits


def fill_naive(
    codes: np.ndarray,
    target: np.ndarray,
    rows: np.ndarray,
    feature: int,
    bins: HistogramBins,
    offset: int,
    n_stats: int,
) -> np.ndarray:
    """A naive ``fill`` for one feature, for tests to compare with."""
    vectors = target if target.ndim == 2 else np.eye(n_stats, dtype=np.int64)[target]
    hist, together = np.zeros((bins.n_bins[feature], n_stats), np.int64), 2 ** int(bins.shift[feature])
    np.add.at(hist, (codes[rows, feature].astype(np.int64) + offset % together) // together, vectors[rows])
    return hist


def partition_naive(
    codes: np.ndarray, rows: np.ndarray, splits: Splits, node: int, categorical: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A naive ``partition`` for one node with NumPy masks, for tests to compare with."""
    left = _goes_left_naive(codes, rows, splits, node, categorical)
    return rows[left], rows[~left]


def _goes_left_naive(
    codes: np.ndarray, rows: np.ndarray, splits: Splits, node: int, categorical: np.ndarray
) -> np.ndarray:
    f = splits.feature[node]
    bins = codes[rows, f].astype(np.int64)
    if categorical[f]:
        members = [b for b in range(256) if int(splits.words[node][b >> 6]) >> (b & 63) & 1]
        return np.isin(bins, members)
    return np.where(bins == 0, splits.missing_left[node], bins <= splits.bin[node])


def pack_sides_naive(codes: np.ndarray, rows: np.ndarray, splits: Splits, node: int, categorical: np.ndarray) -> bytes:
    """A naive ``pack_sides`` for one node, for tests to compare with."""
    left = _goes_left_naive(codes, rows, splits, node, categorical)
    return np.packbits(left, bitorder="little").tobytes()


def route_naive(rows: np.ndarray, bits: bytes) -> tuple[np.ndarray, np.ndarray]:
    """A naive ``route`` for one node with NumPy masks, for tests to compare with."""
    left = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(rows), bitorder="little").astype(np.bool_)
    return rows[left], rows[~left]
