"""Take rows down small trees as bit masks: one bit a row, thousands of rows at a time.

A cut is a feature and a threshold. First the rows above each cut of all trees are marked. A node then splits its
rows by an operation or two on words of 64 rows. A mask costs the same at the top of a tree and far down, where few rows
are left in it; so this is for trees of up to about a thousand splits, and for splits by number. Where all leaves below
a node vote alike, its rows go no further.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from silvan.forest.walk import MISSING_RIGHT, Nodes, U
from silvan.util.threads import thread_map

MOST_SPLITS = 1 << 10
"""For larger trees ``flow`` is faster."""

MOST_WORDS, LEAST_WORDS = 128, 16
"""Length of a mask: long ones make nodes cheap; with many cuts short ones keep the marks in the cache."""

MARKS = 1 << 22
"""Words for the marks of all cuts together: 32 megabytes."""


class Cuts(NamedTuple):
    """The different cuts of some trees, sorted by column and threshold."""

    features: np.ndarray  # (columns,)
    starts: np.ndarray  # (columns + 1,) where the cuts of each column begin
    threshold: np.ndarray  # (cuts,)
    missing_right: np.ndarray  # (cuts,) whether missing values count as above
    cut: np.ndarray  # (nodes,) the cut of every split


def splits_of(nodes: Nodes) -> np.ndarray:
    """Count the splits of every tree."""
    return np.add.reduceat(nodes.leaf < 0, nodes.offsets[:-1], dtype=np.int64)


def are_small(nodes: Nodes) -> np.ndarray:
    """Return which trees are small enough for masks and have no splits by category."""
    by_category = np.logical_or.reduceat(nodes.kind >= 0, nodes.offsets[:-1])
    return (splits_of(nodes) <= MOST_SPLITS) & ~by_category


@njit(nogil=True, cache=True)
def add_verdicts(nodes: Nodes, vote: np.ndarray, verdict: np.ndarray) -> None:
    """Write the class that all leaves below a node vote for, -1 if they differ."""
    for node in range(len(verdict) - 1, -1, -1):  # children come after parents
        if nodes.leaf[node] >= 0:
            verdict[node] = vote[nodes.leaf[node]]
        else:
            left, right = verdict[nodes.left[node]], verdict[nodes.left[node] + 1]
            verdict[node] = left if left == right else -1


def find_cuts(nodes: Nodes, trees: np.ndarray, verdict: np.ndarray) -> Cuts:
    """List the different cuts of some trees, but for those below which all leaves vote alike."""
    chosen = np.zeros(len(nodes.offsets) - 1, np.bool_)
    chosen[trees] = True
    at = np.flatnonzero(np.repeat(chosen, np.diff(nodes.offsets)) & (verdict < 0))
    bits = nodes.threshold[at].view(np.uint32)
    # thresholds as whole numbers in the same order: of negative ones all bits turn, of others the first
    image = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.uint64)
    features = np.flatnonzero(np.bincount(nodes.feature[at]))
    column = np.searchsorted(features, nodes.feature[at])
    right = nodes.kind[at] == MISSING_RIGHT
    keys, which = np.unique((column.astype(np.uint64) << U(33)) | (image << U(1)) | right, return_inverse=True)
    first = np.zeros(len(keys), np.int64)
    first[which] = at
    cut = np.zeros(len(nodes.leaf), np.int64)
    cut[at] = which
    starts = np.searchsorted(keys >> U(33), np.arange(len(features) + 1, dtype=np.uint64))
    return Cuts(features, starts, nodes.threshold[first], nodes.kind[first] == MISSING_RIGHT, cut)


def count_by_masks(
    X: np.ndarray, ends: np.ndarray, trees: np.ndarray, nodes: Nodes, vote: np.ndarray, out: np.ndarray, threads: int
) -> None:
    """Count rows by class and by the vote of their leaf, for small trees.

    Rows are sorted by class, and ``ends`` has where each class ends.
    """
    number = np.cumsum(splits_of(nodes)[trees]) // (MARKS // LEAST_WORDS)
    verdict = np.empty(len(nodes.leaf), np.int64)
    add_verdicts(nodes, vote, verdict)
    for k in np.unique(number):
        batch = _Batch.of(nodes, trees[number == k], verdict)
        n_rows = 64 * batch.marks.shape[1]
        for first in range(0, len(X), n_rows):
            rows = X[first : first + n_rows]
            _count_rows(rows, np.clip(ends - first, 0, len(rows)), batch, nodes, verdict, out, threads)


class _Batch(NamedTuple):
    """Trees whose cuts are marked together."""

    trees: np.ndarray
    cuts: Cuts
    marks: np.ndarray  # (cuts, words) one bit for each row above a cut

    @classmethod
    def of(cls, nodes: Nodes, trees: np.ndarray, verdict: np.ndarray) -> "_Batch":
        """List the cuts of some trees and allocate their marks."""
        cuts = find_cuts(nodes, trees, verdict)
        n_words = int(np.clip(MARKS // max(len(cuts.threshold), 1), LEAST_WORDS, MOST_WORDS))
        return cls(trees, cuts, np.empty((len(cuts.threshold), n_words), np.uint64))


def _count_rows(
    X: np.ndarray, ends: np.ndarray, batch: _Batch, nodes: Nodes, verdict: np.ndarray, out: np.ndarray, threads: int
) -> None:
    """Count at most as many rows as a mask has bits."""
    trees, cuts, marks = batch
    columns = np.ascontiguousarray(X[:, cuts.features].T)
    parts = min(4 * threads, len(trees))

    def mark(column: int) -> None:
        here = slice(cuts.starts[column], cuts.starts[column + 1])
        _mark(columns[column], cuts.threshold[here], cuts.missing_right[here], marks[here])

    def count(some: np.ndarray) -> None:
        _count(len(X), ends, some, nodes, cuts.cut, marks, verdict, out)

    thread_map(mark, range(len(columns)), threads)
    thread_map(count, [trees[i::parts].copy() for i in range(parts)], threads)


@njit(nogil=True, cache=True)
def _mark(values: np.ndarray, threshold: np.ndarray, missing_right: np.ndarray, marks: np.ndarray) -> None:
    """Mark the rows of one column that are above each of its cuts."""
    missing = np.zeros(marks.shape[1], np.uint64)
    marks[:] = U(0)
    steps = 0
    while (1 << steps) <= len(threshold):
        steps += 1
    ladder = np.full(1 << steps, np.inf, np.float32)
    ladder[: len(threshold)] = threshold
    for i in range(len(values)):
        x, bit = values[i], U(1) << U(i & 63)
        if x != x:
            missing[i >> 6] |= bit
            continue
        # how many cuts are below, by halves; added up rather than chosen, for a branch would be guessed wrong
        below = np.int64(0)
        for step in range(steps - 1, -1, -1):
            below += np.int64(ladder[U(below + (1 << step) - 1)] < x) << step
        if below > 0:
            marks[below - 1, i >> 6] |= bit
    for j in range(len(threshold) - 2, -1, -1):
        for w in range(marks.shape[1]):
            marks[j, w] |= marks[j + 1, w]
    for j in range(len(threshold)):
        if missing_right[j]:
            for w in range(marks.shape[1]):
                marks[j, w] |= missing[w]


@njit(nogil=True, cache=True)
def _count(
    n: int,
    ends: np.ndarray,
    trees: np.ndarray,
    nodes: Nodes,
    cut: np.ndarray,
    marks: np.ndarray,
    verdict: np.ndarray,
    out: np.ndarray,
) -> None:
    """Take ``n`` rows down some trees and count them."""
    n_words, deepest = marks.shape[1], 0
    for t in trees:
        deepest = max(deepest, nodes.depth[t])
    masks = np.zeros((deepest + 1, n_words), np.uint64)
    stack = np.zeros((deepest + 1, 2), np.int64)
    voted = np.zeros((len(ends), n_words), np.uint64)
    for t in trees:
        voted[:] = U(0)
        for w in range(n_words):
            masks[0, w] = voted[0, w] = _ones(n - 64 * w)
        _descend(nodes.offsets[t], nodes, cut, marks, verdict, masks, stack, voted)
        for k in range(1, len(ends)):
            for w in range(n_words):
                voted[0, w] &= ~voted[k, w]
        for k in range(len(ends)):
            begin = 0
            for label in range(len(ends)):
                out[t, label, k] += _count_bits(voted[k], begin, ends[label])
                begin = ends[label]


@njit(nogil=True, cache=True)
def _descend(
    root: int,
    nodes: Nodes,
    cut: np.ndarray,
    marks: np.ndarray,
    verdict: np.ndarray,
    masks: np.ndarray,
    stack: np.ndarray,
    voted: np.ndarray,
) -> None:
    """Take the rows of the first mask down a tree, and add them to the mask of their leaf's vote, unless that is 0.

    Left children take their parent's mask, and so do right ones whose sibling needs none; else these take the next and
    go first.
    """
    if verdict[root] >= 0:
        if verdict[root] > 0:
            _add_mask(voted[verdict[root]], masks[0])
        return
    top = 0
    stack[0, 0], stack[0, 1] = root, 0
    while top >= 0:
        node, level = stack[top]
        top -= 1
        mask, above, child = masks[level], marks[cut[node]], np.int64(nodes.left[node])
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
    """Leave the rows above a cut in a mask; return whether there are any."""
    some = U(0)
    for w in range(len(mask)):
        mask[w] &= above[w]
        some |= mask[w]
    return some != U(0)


@njit(nogil=True, cache=True)
def _keep_without(mask: np.ndarray, above: np.ndarray) -> bool:
    """Leave the rows not above a cut in a mask; return whether there are any."""
    some = U(0)
    for w in range(len(mask)):
        mask[w] &= ~above[w]
        some |= mask[w]
    return some != U(0)


@njit(nogil=True, cache=True)
def _split(mask: np.ndarray, above: np.ndarray, right: np.ndarray) -> tuple[bool, bool]:
    """Move the rows above a cut to a mask of their own; return whether any stay, and whether any go."""
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
    """Count the bits that are set from ``begin`` to ``end``."""
    total = U(0)
    for w in range(begin >> 6, (end + 63) >> 6):
        x = words[w] & _ones(end - 64 * w) & ~_ones(begin - 64 * w)
        # sums of 2, 4 and 8 neighbouring bits, then of all eight bytes
        x -= (x >> U(1)) & U(0x5555555555555555)
        x = (x & U(0x3333333333333333)) + ((x >> U(2)) & U(0x3333333333333333))
        x = (x + (x >> U(4))) & U(0x0F0F0F0F0F0F0F0F)
        total += (x * U(0x0101010101010101)) >> U(56)
    return np.int64(total)
