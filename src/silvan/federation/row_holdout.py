"""Sample test rows independently of each other, as noisy replies require.

If rows were sampled by class and position, adding or removing one row would move others between training and test set,
and no bound on the effect of one row would hold. Instead a keyed hash of a row's cells, as the schema reads them, and
of the number of equal rows before it decides. Adding or removing a row then affects only that row, because equal rows
are interchangeable. The share of test rows is right on average only.
"""

import hashlib
from collections.abc import Iterable

import numpy as np

from silvan.data.disk_arrays import Folder, scratch
from silvan.data.groups import Groups
from silvan.data.holdout import Fold, HeldOut
from silvan.federation.part import Block

_PIECE = 1 << 16
"""Rows processed together."""

_SORTED = 1 << 21
"""Approximate number of rows sorted at a time."""

_WORDS = 3
"""Words in a row's digest: two identify the row, and one samples the first of equal rows."""


def hold_out_singly(
    blocks: Iterable[Block], n: int, share: float, key: bytes, fold: Fold | None = None, folder: Folder = None
) -> HeldOut:
    """Sample the test rows: each with a probability, or those of one fold. A folder, if given, stores the digests."""
    held = HeldOut(n)
    if share <= 0.0 or n == 0:
        return held
    words = (np.empty(n * _WORDS, np.uint64) if folder is None else scratch(folder, n * _WORDS, np.uint64)).reshape(
        n, _WORDS
    )
    start = 0
    for X, y in blocks:
        for first in range(0, len(X), _PIECE):
            some = _digests(X[first : first + _PIECE], y[first : first + _PIECE], key)
            words[start : start + len(some)] = some
            start += len(some)
    groups = -(-n // _SORTED)  # equal rows are in the same group
    for group in range(groups):
        pieces = (words[first : first + _PIECE, 0] % np.uint64(groups) == group for first in range(0, n, _PIECE))
        rows = np.concatenate([i * _PIECE + np.flatnonzero(piece) for i, piece in enumerate(pieces)])
        held.add(rows[_chosen(_places(words[rows], key), share, fold)])
    return held


def hold_out_persons(groups: Groups, share: float, key: bytes, fold: Fold | None = None) -> HeldOut:
    """Sample test persons independently, each with all rows: with a probability, or those of one fold."""
    held = HeldOut(len(groups.person))
    if share > 0.0:
        first = np.flatnonzero(groups.first)
        persons = (person.tobytes() for person in groups.keys["person"][first])
        words = b"".join(hashlib.blake2b(person, key=key, digest_size=8).digest() for person in persons)
        held.add(first[_chosen(np.frombuffer(words, "<u8") / 2.0**64, share, fold)])
    return held.with_persons(groups)


def _chosen(place: np.ndarray, share: float, fold: Fold | None) -> np.ndarray:
    """Return which of some numbers in [0, 1) are held out: those below the share, or in the fold's interval."""
    return place < share if fold is None else np.minimum(place * fold.of, fold.of - 1) // 1 == fold.number


def _digests(X: np.ndarray, y: np.ndarray, key: bytes) -> np.ndarray:
    """Return a keyed digest of every row: uint64 (rows, words)."""
    X = np.where(np.isnan(X), np.float32(np.nan), X).astype(np.float32)  # one bit pattern for missing cells
    cells = [np.ascontiguousarray(X).view(np.uint8), np.ascontiguousarray(y).reshape(len(y), 1).view(np.uint8)]
    data = memoryview(np.concatenate(cells, axis=1).tobytes())
    width = len(data) // max(len(X), 1)
    each = (data[i : i + width] for i in range(0, len(data), max(width, 1)))
    made = b"".join(hashlib.blake2b(row, key=key, digest_size=8 * _WORDS).digest() for row in each)
    return np.frombuffer(made, "<u8").reshape(-1, _WORDS)


def _places(words: np.ndarray, key: bytes) -> np.ndarray:
    """Return a number in [0, 1) for every row, from its digest and the number of equal rows before it."""
    order = np.lexsort((words[:, 1], words[:, 0]))  # rows that are equal stay in their order
    near = words[order, :2]
    begins = np.r_[True, (near[1:] != near[:-1]).any(axis=1)][: len(order)]
    count = np.arange(len(order))
    before = np.empty(len(order), np.int64)
    before[order] = count - np.maximum.accumulate(np.where(begins, count, 0))
    drawn = words[:, 2].copy()
    for row in np.flatnonzero(before):
        again = words[row].tobytes() + int(before[row]).to_bytes(8, "little")
        drawn[row] = int.from_bytes(hashlib.blake2b(again, key=key, digest_size=8).digest(), "little")
    return drawn / 2.0**64
