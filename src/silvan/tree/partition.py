"""Apply splits: sort the rows of a node into left, then right, by their bins or by packed bits.

Bits are for those who do not have the column that splits a node. A node's bits are in the order of its rows, the
first in the lowest bit of a byte; every node starts a new byte, and the bits after its last row are zero. For all who
hold the same rows in the same order, each bit refers to the same row.
"""

import numpy as np

from silvan.forest.category_set import in_set
from silvan.tree.node_rows import NodeRows, split_evenly
from silvan.tree.split import Splits
from silvan.util.kernels import njit
from silvan.util.threads import thread_map

U = np.uint64  # unsigned indices need no check for negative values in inner loops


@njit(nogil=True, cache=True)
def partition(
    codes: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    splits: Splits,
    categorical: np.ndarray,
    which: np.ndarray,
    spare: np.ndarray,
) -> np.ndarray:
    """Sort the rows of the nodes ``which`` and return the starts of their right sides.

    The order of rows within a side is kept, so memory access stays ascending at every level.
    """
    middles = np.empty(which.shape[0], np.int64)
    for k in range(which.shape[0]):
        node = which[k]
        f, start, stop = splits.feature[node], starts[node], stops[node]
        n_left, n_right = start, 0
        if categorical[f]:
            words = splits.words[node]
            for i in range(start, stop):
                row = order[i]
                if in_set(words, codes[row, f]):
                    order[n_left] = row
                    n_left += 1
                else:
                    spare[n_right] = row
                    n_right += 1
        else:
            # a missing value has bin 0; shifting it to the top sends it right
            last = splits.bin[node]
            missing = 0 if splits.missing_left[node] else 256
            for i in range(start, stop):
                row = order[i]
                code = np.int64(codes[row, f])
                goes_left = (code + (missing if code == 0 else 0)) <= last
                order[n_left] = row
                spare[n_right] = row
                n_left += goes_left
                n_right += not goes_left
        middles[k] = n_left
        for i in range(n_right):
            order[n_left + i] = spare[i]
    return middles


def byte_starts(sizes: np.ndarray) -> np.ndarray:
    """Return where the bits of nodes with these numbers of rows begin, and where the last ones end."""
    return np.concatenate([[0], np.cumsum((sizes + 7) >> 3)]).astype(np.int64)


def pack_sides(rows: NodeRows, nodes: np.ndarray, splits: Splits, threads: int = 1) -> np.ndarray:
    """Return which rows of each node a split sends left, as packed bits."""
    starts, stops = rows.starts[nodes], rows.stops[nodes]
    begin = byte_starts(stops - starts)
    bits = np.zeros(begin[-1], np.uint8)
    table = rows.table

    def some(here: slice) -> None:
        part = Splits(*(column[here] for column in splits))
        _pack_sides(table.codes, rows.order, starts[here], stops[here], part, table.bins.categorical, begin[here], bits)

    thread_map(some, split_evenly(stops - starts, threads), threads)
    return bits


@njit(nogil=True, cache=True)
def _pack_sides(
    codes: np.ndarray,
    order: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    splits: Splits,
    categorical: np.ndarray,
    begin: np.ndarray,
    bits: np.ndarray,
) -> None:
    flat, width = codes.ravel(), U(codes.shape[1])
    side = np.zeros(256, np.uint8)  # of every bin
    for node in range(starts.shape[0]):
        f, at, start, stop = U(splits.feature[node]), begin[node], starts[node], stops[node]
        for b in range(256):
            if categorical[f]:
                side[b] = in_set(splits.words[node], b)
            else:
                side[b] = splits.missing_left[node] if b == 0 else b <= splits.bin[node]
        whole = start + ((stop - start) & ~7)
        for first in range(start, whole, 8):
            byte = np.uint8(0)
            for k in range(8):
                byte |= side[flat[U(order[first + k]) * width + f]] << np.uint8(k)
            bits[at] = byte
            at += 1
        if whole < stop:
            byte = np.uint8(0)
            for k in range(stop - whole):
                byte |= side[flat[U(order[whole + k]) * width + f]] << np.uint8(k)
            bits[at] = byte


def route(rows: NodeRows, nodes: np.ndarray, needed: np.ndarray, bits: np.ndarray, threads: int = 1) -> None:
    """Move the nodes' rows to their children, which get the next numbers, by bits.

    Only ``needed`` nodes have bits; the rows of others stay.
    """
    starts, stops = rows.starts[nodes], rows.stops[nodes]
    middles = starts.copy()
    which = np.flatnonzero(needed)
    sizes = (stops - starts)[which]
    begin = byte_starts(sizes)

    def some(here: slice) -> None:
        spare = np.empty(int(sizes[here].max(initial=0)) + 1, np.uint32)
        middles[which[here]] = _route(rows.order, starts[which[here]], stops[which[here]], begin[here], bits, spare)

    thread_map(some, split_evenly(sizes, threads), threads)
    rows.add(nodes, middles)


@njit(nogil=True, cache=True)
def _route(
    order: np.ndarray, starts: np.ndarray, stops: np.ndarray, begin: np.ndarray, bits: np.ndarray, spare: np.ndarray
) -> np.ndarray:
    """Sort each node's rows into left, then right, keeping their order; return where the right sides begin."""
    middles = np.empty(starts.shape[0], np.int64)
    for node in range(starts.shape[0]):
        n_left, n_right, at = U(starts[node]), U(0), begin[node]
        for first in range(starts[node], stops[node], 8):
            byte = U(bits[at])
            at += 1
            for i in range(first, min(first + 8, stops[node])):
                row, left = order[i], byte & U(1)
                byte >>= U(1)
                order[n_left] = row
                spare[n_right] = row
                n_left += left
                n_right += U(1) - left
        middles[node] = n_left
        for i in range(n_right):
            order[n_left + U(i)] = spare[i]
    return middles


def count_sides(bits: np.ndarray, sizes: np.ndarray) -> np.ndarray | None:
    """Count the rows that go left at each node; None unless there are as many bits as rows."""
    if not is_bit_per_row(bits, sizes):
        return None
    return np.diff(np.append(0, np.cumsum(np.bitwise_count(bits), dtype=np.int64))[byte_starts(sizes)])


def is_bit_per_row(bits: np.ndarray, sizes: np.ndarray) -> bool:
    """Whether packed bits fit nodes with these numbers of rows, and are zero after the last row of each."""
    begin, rest = byte_starts(sizes), sizes & 7
    if bits.shape != (begin[-1],):
        return False
    cut = np.flatnonzero(rest)
    return not (bits[begin[cut + 1] - 1] >> rest[cut]).any()


@njit(nogil=True, cache=True)
def spread(source: np.ndarray, lengths: np.ndarray, begin: np.ndarray, out: np.ndarray) -> None:
    """Copy consecutive runs in ``source`` to their positions in ``out``."""
    at = 0
    for k in range(lengths.shape[0]):
        out[begin[k] : begin[k] + lengths[k]] = source[at : at + lengths[k]]
        at += lengths[k]
