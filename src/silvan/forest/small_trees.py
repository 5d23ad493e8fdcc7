"""Take rows down small trees as bit masks: one bit a row, thousands of rows at a time.

First the rows above each cut of the trees are marked. A node then splits its rows by an operation or two on words of 64
rows. A mask costs the same at the top of a tree and far down, where it has few rows, so this is for trees of up to
about a thousand splits, and for numeric splits. If all leaves below a node vote alike, its rows go no further, unless
leaves are to be recorded.
"""

from typing import NamedTuple

import numpy as np

from silvan.forest.tree_cuts import Cuts, RankedRows, find_cuts, mark_rows, rank_rows
from silvan.forest.walk import Nodes, U
from silvan.util.kernels import njit
from silvan.util.threads import thread_map

MOST_SPLITS = 1 << 10  # for larger trees ``flow`` is faster
MOST_CUTS = 1 << 13  # different cuts in a batch of trees: their marks for ``WORDS`` words take eight megabytes
_FEW_TREES = 32  # with fewer trees threads do not pay off: marking the rows takes longer than passing them down
WORDS = 128  # length of a mask: a longer one makes nodes cheaper, and the marks larger
MOST_TURNS = 16  # for the leaves of deeper trees ``flow`` is used
_MOST_ROWS = 1 << 16  # rows whose order by each column is in memory at a time


class SortedRows(NamedTuple):
    """Rows sorted by class; with ``leaves``, the leaf of each is recorded, by its number in the tree."""

    X: np.ndarray
    ends: np.ndarray  # (classes,) where each class ends
    columns: np.ndarray  # (rows,) each row's column of leaves
    leaves: np.ndarray  # uint16 (trees, rows), or without columns


def are_small(nodes: Nodes) -> np.ndarray:
    """Return which trees are small enough for masks and have only numeric splits."""
    by_category = np.logical_or.reduceat(nodes.kind >= 0, nodes.offsets[:-1])
    splits = np.add.reduceat(nodes.leaf < 0, nodes.offsets[:-1], dtype=np.int64)
    return (splits <= MOST_SPLITS) & ~by_category


@njit(nogil=True, cache=True)
def add_verdicts(nodes: Nodes, vote: np.ndarray, verdict: np.ndarray) -> None:
    """Write the common vote of all leaves below each node, -1 if they differ."""
    for node in range(len(verdict) - 1, -1, -1):  # children come after parents
        if nodes.leaf[node] >= 0:
            verdict[node] = vote[nodes.leaf[node]]
        else:
            left, right = verdict[nodes.left[node]], verdict[nodes.left[node] + 1]
            verdict[node] = left if left == right else -1


def count_by_masks(
    rows: list[SortedRows], trees: np.ndarray, nodes: Nodes, vote: np.ndarray, out: np.ndarray, threads: int
) -> None:
    """Count rows by class and by the vote of their leaf, for small trees."""
    verdict = np.empty(len(nodes.leaf), np.int64)
    add_verdicts(nodes, vote, verdict)
    noting = any(some.leaves.shape[1] for some in rows)
    chosen = np.zeros(len(nodes.offsets) - 1, np.bool_)
    chosen[trees] = True
    asked = (nodes.leaf < 0 if noting else verdict < 0) & np.repeat(chosen, np.diff(nodes.offsets))
    cuts = find_cuts(nodes, asked)
    number, most_trees = np.empty(len(trees), np.int64), max(_FEW_TREES, -(-len(trees) // threads))
    _share_out(trees, nodes.offsets, asked, cuts.cut, len(cuts.threshold), most_trees, MOST_CUTS, number)
    batches = [_Batch.of(trees[number == k], nodes, asked, cuts) for k in range(number[-1] + 1)]
    for some in rows:
        for first in range(0, len(some.X), _MOST_ROWS):
            _count_some(some, first, cuts, batches, nodes, vote, verdict, out, threads)


def _count_some(
    rows: SortedRows,
    first: int,
    cuts: Cuts,
    batches: "list[_Batch]",
    nodes: Nodes,
    vote: np.ndarray,
    verdict: np.ndarray,
    out: np.ndarray,
    threads: int,
) -> None:
    """Count the piece of rows that begins at ``first``."""
    piece = slice(first, first + _MOST_ROWS)
    X, columns = rows.X[piece], rows.columns[piece]
    ends, length = np.clip(rows.ends - first, 0, len(X)), _even_length(len(X))
    ranked = rank_rows(X, cuts, length, threads)

    def count(batch: _Batch) -> None:
        _count(ranked, cuts.starts, length, ends, columns, rows.leaves, batch, nodes, vote, verdict, out)

    thread_map(count, batches, threads)


def _even_length(n: int) -> int:
    """Return how many rows are processed together, so that all blocks have about the same length."""
    words = -(-n // 64)
    return -(-words // max(1, -(-words // WORDS))) * 64


class _Batch(NamedTuple):
    """Trees with few distinct cuts, and the positions of the marks of these cuts."""

    trees: np.ndarray
    listed: np.ndarray  # the cuts
    missing_right: np.ndarray  # (cuts,)
    start: int  # the first node
    place: np.ndarray  # (nodes,) the index of each split's cut in the batch

    @classmethod
    def of(cls, trees: np.ndarray, nodes: Nodes, asked: np.ndarray, cuts: Cuts) -> "_Batch":
        """List the cuts of some trees."""
        start, stop = nodes.offsets[trees[0]], nodes.offsets[trees[-1] + 1]
        splits = np.flatnonzero(asked[start:stop])
        cut, used = cuts.cut[start:stop][splits], np.zeros(len(cuts.threshold), np.bool_)
        used[cut] = True
        place = np.zeros(stop - start, np.int32)
        place[splits] = (np.cumsum(used, dtype=np.int32) - 1)[cut]
        return cls(trees, np.flatnonzero(used), cuts.missing_right[used], int(start), place)


@njit(nogil=True, cache=True)
def _share_out(
    trees: np.ndarray,
    offsets: np.ndarray,
    asked: np.ndarray,
    cut: np.ndarray,
    n_cuts: int,
    most_trees: int,
    most_cuts: int,
    number: np.ndarray,
) -> None:
    """Write the batch of every tree: a limited number of trees and different cuts, but at least one tree."""
    last = np.full(n_cuts, -1)  # the last batch with this cut
    batch, size, begun = 0, 0, 0
    for i in range(len(trees)):
        for again in range(2):
            fresh = 0
            for node in range(offsets[trees[i]], offsets[trees[i] + 1]):
                if asked[node] and last[cut[node]] != batch:
                    last[cut[node]] = batch
                    fresh += 1
            if again or i == begun or (size + fresh <= most_cuts and i - begun < most_trees):
                break
            batch, size, begun = batch + 1, 0, i
        size += fresh
        number[i] = batch


@njit(nogil=True, cache=True)
def _count(
    ranked: RankedRows,
    starts: np.ndarray,
    length: int,
    ends: np.ndarray,
    columns: np.ndarray,
    leaves: np.ndarray,
    batch: _Batch,
    nodes: Nodes,
    vote: np.ndarray,
    verdict: np.ndarray,
    out: np.ndarray,
) -> None:
    """Pass rows down the trees of a batch and count them, block by block."""
    n_words, deepest, largest = length >> 6, 0, 0
    for t in batch.trees:
        deepest = max(deepest, nodes.depth[t])
        largest = max(largest, nodes.offsets[t + 1] - nodes.offsets[t])
    marks = np.empty((len(batch.listed), n_words), np.uint64)
    masks, stack = np.empty((deepest + 1, n_words), np.uint64), np.empty((deepest + 1, 3), np.int64)
    voted, turns = np.empty((len(ends), n_words), np.uint64), np.empty((MOST_TURNS, n_words), np.uint64)
    path, number = np.empty(largest, np.int64), np.empty(1 << MOST_TURNS, np.uint16)
    for first in range(0, len(columns), length):
        n = min(length, len(columns) - first)
        mark_rows(ranked, first, n, first // length, starts, batch.listed, batch.missing_right, marks)
        for t in batch.trees:
            root, depth = nodes.offsets[t], nodes.depth[t]
            voted[:] = U(0)
            for w in range(n_words):
                masks[0, w] = voted[0, w] = _ones(n - 64 * w)
            if leaves.shape[1] == 0:
                _descend(root, nodes, batch.start, batch.place, marks, verdict, masks, stack, voted)
            else:
                turns[:depth] = U(0)
                _descend_to_leaves(root, nodes, batch.start, batch.place, marks, vote, masks, stack, voted, turns)
                _number_paths(root, nodes.offsets[t + 1], nodes, path, number)
                _write_numbers(turns[:depth], number, columns[first : first + n], leaves[t])
            _add_votes(voted, first, n, ends, out[t])


@njit(nogil=True, cache=True)
def _add_votes(voted: np.ndarray, first: int, n: int, ends: np.ndarray, out: np.ndarray) -> None:
    """Count the rows of each class that voted for each; rows without another vote voted for the first."""
    for k in range(1, len(ends)):
        for w in range(voted.shape[1]):
            voted[0, w] &= ~voted[k, w]
    for k in range(len(ends)):
        begin = 0
        for label in range(len(ends)):
            end = min(max(ends[label] - first, 0), n)
            out[label, k] += _count_bits(voted[k], begin, end)
            begin = end


# -- the descent: a node splits its rows by an operation or two on words of 64 rows


@njit(nogil=True, cache=True)
def _descend(
    root: int,
    nodes: Nodes,
    start: int,
    place: np.ndarray,
    marks: np.ndarray,
    verdict: np.ndarray,
    masks: np.ndarray,
    stack: np.ndarray,
    voted: np.ndarray,
) -> None:
    """Take the rows of the first mask down a tree, and add them to the mask of their leaf's vote, unless that is 0.

    Left children reuse their parent's mask, and so do right children whose sibling needs none; otherwise right children
    get the next mask and go first. ``place`` has the positions of the splits' marks, from node ``start`` on.
    """
    if verdict[root] >= 0:
        if verdict[root] > 0:
            _add_mask(voted[verdict[root]], masks[0])
        return
    top = 0
    stack[0, 0], stack[0, 1] = root, 0
    while top >= 0:
        node, level = stack[top, 0], stack[top, 1]
        top -= 1
        mask, above, child = masks[level], marks[place[node - start]], np.int64(nodes.left[node])
        left, right = verdict[child], verdict[child + 1]
        if left > 0:
            _add_without(voted[left], mask, above)
        if right > 0:
            _add_both(voted[right], mask, above)
        if left < 0 and right < 0:
            any_left, any_right = _split(mask, above, masks[level + 1])
            if any_left:
                top += 1
                stack[top, 0], stack[top, 1] = child, level
            if any_right:
                top += 1
                stack[top, 0], stack[top, 1] = child + 1, level + 1
        elif (left < 0 and _keep_without(mask, above)) or (right < 0 and _keep_both(mask, above)):
            top += 1
            stack[top, 0], stack[top, 1] = child if left < 0 else child + 1, level


@njit(nogil=True, cache=True)
def _descend_to_leaves(
    root: int,
    nodes: Nodes,
    start: int,
    place: np.ndarray,
    marks: np.ndarray,
    vote: np.ndarray,
    masks: np.ndarray,
    stack: np.ndarray,
    voted: np.ndarray,
    turns: np.ndarray,
) -> None:
    """Like ``_descend``, but down to the leaves; also adds the rows that turn right to the mask of their depth."""
    top = 0
    stack[0, 0], stack[0, 1], stack[0, 2] = root, 0, 0
    while top >= 0:
        node, level, depth = stack[top, 0], stack[top, 1], stack[top, 2]
        top -= 1
        mask, leaf = masks[level], nodes.leaf[node]
        if leaf >= 0:
            if vote[leaf] > 0:
                _add_mask(voted[vote[leaf]], mask)
            continue
        child, right = np.int64(nodes.left[node]), masks[level + 1]
        any_left, any_right = _split(mask, marks[place[node - start]], right)
        if any_left:
            top += 1
            stack[top, 0], stack[top, 1], stack[top, 2] = child, level, depth + 1
        if any_right:
            _add_mask(turns[depth], right)
            top += 1
            stack[top, 0], stack[top, 1], stack[top, 2] = child + 1, level + 1, depth + 1


@njit(nogil=True, cache=True)
def _number_paths(root: int, end: int, nodes: Nodes, path: np.ndarray, number: np.ndarray) -> None:
    """Map the turns on the path to each leaf (a bit per depth, set for right) to the number of the leaf."""
    path[0], count = 0, 0
    for node in range(root, end):
        if nodes.leaf[node] >= 0:
            number[path[node - root] & 0xFFFF] = count
            count += 1
        else:
            child = nodes.left[node] - root
            depth = path[node - root] >> 16
            path[child] = path[node - root] + (1 << 16)
            path[child + 1] = path[child] | (1 << depth)


@njit(nogil=True, cache=True)
def _write_numbers(turns: np.ndarray, number: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Write the number of each row's leaf, given its turns, to the row's column of ``out``."""
    path = np.empty(64, np.uint16)
    for w in range(turns.shape[1]):
        path[:] = 0
        for depth in range(len(turns)):
            word = turns[depth, w]
            for i in range(64):
                path[i] |= np.uint16(((word >> U(i)) & U(1)) << U(depth))
        for i in range(min(64, len(columns) - 64 * w)):
            out[columns[64 * w + i]] = number[path[i]]


@njit(nogil=True, cache=True)
def _add_mask(target: np.ndarray, mask: np.ndarray) -> None:
    for w in range(len(mask)):
        target[w] |= mask[w]


@njit(nogil=True, cache=True)
def _add_both(target: np.ndarray, mask: np.ndarray, above: np.ndarray) -> None:
    for w in range(len(mask)):
        target[w] |= mask[w] & above[w]


@njit(nogil=True, cache=True)
def _add_without(target: np.ndarray, mask: np.ndarray, above: np.ndarray) -> None:
    for w in range(len(mask)):
        target[w] |= mask[w] & ~above[w]


@njit(nogil=True, cache=True)
def _keep_both(mask: np.ndarray, above: np.ndarray) -> bool:
    """Keep the rows above a cut in a mask; return whether there are any."""
    some = U(0)
    for w in range(len(mask)):
        mask[w] &= above[w]
        some |= mask[w]
    return some != U(0)


@njit(nogil=True, cache=True)
def _keep_without(mask: np.ndarray, above: np.ndarray) -> bool:
    """Keep the rows not above a cut in a mask; return whether there are any."""
    some = U(0)
    for w in range(len(mask)):
        mask[w] &= ~above[w]
        some |= mask[w]
    return some != U(0)


@njit(nogil=True, cache=True)
def _split(mask: np.ndarray, above: np.ndarray, right: np.ndarray) -> tuple[bool, bool]:
    """Move the rows above a cut to a second mask; return whether any stay, and whether any move."""
    any_left = any_right = U(0)
    for w in range(len(mask)):
        x = mask[w] & above[w]
        y = mask[w] ^ x
        right[w], mask[w] = x, y
        any_right |= x
        any_left |= y
    return any_left != U(0), any_right != U(0)


@njit(nogil=True, cache=True)
def _ones(n: int) -> np.uint64:
    """Return a word with the first ``n`` bits set."""
    if n >= 64:
        return ~U(0)
    return (U(1) << U(max(n, 0))) - U(1)


@njit(nogil=True, cache=True)
def _count_bits(words: np.ndarray, begin: int, end: int) -> np.int64:
    """Count the set bits from ``begin`` to ``end``."""
    total = U(0)
    for w in range(begin >> 6, (end + 63) >> 6):
        x = words[w] & _ones(end - 64 * w) & ~_ones(begin - 64 * w)
        # sums of 2, 4 and 8 neighbouring bits, then of all eight bytes
        x -= (x >> U(1)) & U(0x5555555555555555)
        x = (x & U(0x3333333333333333)) + ((x >> U(2)) & U(0x3333333333333333))
        x = (x + (x >> U(4))) & U(0x0F0F0F0F0F0F0F0F)
        total += (x * U(0x0101010101010101)) >> U(56)
    return np.int64(total)
