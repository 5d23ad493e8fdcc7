"""The way of rows down a tree as bit masks: a node splits its rows by an operation or two on words of 64."""

import numpy as np

from silvan.forest.walk import Nodes, U
from silvan.util.kernels import njit


@njit(nogil=True, cache=True)
def descend(
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

    Left children take their parent's mask, and so do right ones whose sibling needs none; else these take the next and
    go first. ``place`` has where the marks of each split are, from node ``start`` on.
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
def descend_to_leaves(
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
    """Do what ``descend`` does, down to the leaves, and add the rows that turn right to the mask of their depth."""
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
def number_paths(root: int, end: int, nodes: Nodes, path: np.ndarray, number: np.ndarray) -> None:
    """Write the number of each leaf of a tree for the turns on its path: a bit for each depth, set for right."""
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
def write_numbers(turns: np.ndarray, number: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Write the number of each row's leaf to the row's column of ``out``, by its turns."""
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
def ones(n: int) -> np.uint64:
    """Return a word with the first ``n`` bits set."""
    if n >= 64:
        return ~U(0)
    return (U(1) << U(max(n, 0))) - U(1)


@njit(nogil=True, cache=True)
def count_bits(words: np.ndarray, begin: int, end: int) -> np.int64:
    """Count the bits that are set from ``begin`` to ``end``."""
    total = U(0)
    for w in range(begin >> 6, (end + 63) >> 6):
        x = words[w] & ones(end - 64 * w) & ~ones(begin - 64 * w)
        # sums of 2, 4 and 8 neighbouring bits, then of all eight bytes
        x -= (x >> U(1)) & U(0x5555555555555555)
        x = (x & U(0x3333333333333333)) + ((x >> U(2)) & U(0x3333333333333333))
        x = (x + (x >> U(4))) & U(0x0F0F0F0F0F0F0F0F)
        total += (x * U(0x0101010101010101)) >> U(56)
    return np.int64(total)
