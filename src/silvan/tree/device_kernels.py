"""Kernels that run on a graphics card: sample rows, count histograms, sort rows into their nodes.

They handle integers alone, so the order in which thousands of threads add cannot change a result. Splits are chosen
from the counts by the same code as elsewhere.

A row's codes and its target lie side by side, so that one read of 32 bytes brings all there is to know about the row of
a table with up to 30 columns. Rows are sorted by node; a block of threads counts some rows of one node in its fast
shared memory, and adds what it has counted to the histogram once.
"""

from typing import Any

import numpy as np
from numba import cuda as untyped_cuda
from numba import int32, uint32

from silvan.tree.sampling import PLACES, ROWS, TREES_A_HASH, hash_words
from silvan.util.kernels import config, cuda_jit

cuda: Any = untyped_cuda  # its functions are made at run time

THREADS = 8 if config.ENABLE_CUDASIM else 256
"""Threads of a block; the simulator starts a thread of the system for each."""

SORTED = 8 * THREADS
"""Rows that a block sorts, or samples, at a time."""

SHARED_BYTES = 47 << 10
"""Shared memory that a block may use for its histograms; some more is used besides, up to 48 KB."""

MOST_FEATURES = 32
"""Features that a block counts together."""

_EACH = SORTED // THREADS


@cuda_jit()
def pack_rows(codes, target, first, n_features, target_at, rows, row_bytes):
    """Write the codes and the targets of some rows side by side: ``target`` is uint16 (rows, pieces)."""
    i = cuda.grid(1)
    if i < target.shape[0]:
        row, byte = np.int64(i) * n_features, (np.int64(first) + i) * row_bytes
        for f in range(n_features):
            rows[byte + f] = codes[row + f]
        for k in range(target.shape[1]):
            rows[byte + target_at + 2 * k] = np.uint8(target[i, k] & 255)
            rows[byte + target_at + 2 * k + 1] = np.uint8(target[i, k] >> 8)


@cuda_jit(device=True)
def _piece(rows, byte):
    """Return two bytes as a number, the lower one first."""
    return np.uint32(rows[byte]) | (np.uint32(rows[byte + 1]) << np.uint32(8))


@cuda_jit(device=True)
def _sampled(key0, key1, keys, places, sizes, row, group, first, n_trees, limit, salt):
    """Return, as bits, which of the trees that share a hash a row is in."""
    found = 0
    whole = limit >= 65536
    bits = np.uint64(0)
    if not whole:
        message = (np.uint64(ROWS) << np.uint64(56)) | (np.uint64(salt) << np.uint64(32)) | np.uint64(group)
        bits = np.uint64(hash_words(key0, key1, message, keys[row]))
    for place in range(TREES_A_HASH):
        tree = group * TREES_A_HASH + place - first
        if tree < 0 or tree >= n_trees:
            continue
        drawn = whole or ((bits >> np.uint64(16 * place)) & np.uint64(0xFFFF)) < np.uint64(limit)
        if drawn and sizes.shape[0] > 0:
            # of a person's rows, a tree has one
            message = (np.uint64(PLACES) << np.uint64(56)) | np.uint64(1 + first + tree)
            word = np.uint64(hash_words(key0, key1, message, keys[row]))
            chosen = ((word >> np.uint64(32)) * np.uint64(sizes[row])) >> np.uint64(32)
            drawn = chosen == np.uint64(places[row])
        if drawn:
            found |= 1 << place
    return found


@cuda_jit()
def count_sampled(key0, key1, keys, places, sizes, first, n_trees, limit, salt, counts):
    """Count the rows of each tree in each stretch of rows: ``counts`` is int32 (trees, stretches)."""
    n = keys.shape[0]
    group = first // TREES_A_HASH + cuda.blockIdx.y
    sums = cuda.shared.array(TREES_A_HASH, np.int32)
    t = cuda.threadIdx.x
    if t < TREES_A_HASH:
        sums[t] = 0
    cuda.syncthreads()
    n0, n1, n2, n3 = 0, 0, 0, 0
    for k in range(_EACH):
        row = np.int64(cuda.blockIdx.x) * SORTED + k * THREADS + t
        if row < n:
            found = _sampled(key0, key1, keys, places, sizes, row, group, first, n_trees, limit, salt)
            n0 += found & 1
            n1 += (found >> 1) & 1
            n2 += (found >> 2) & 1
            n3 += (found >> 3) & 1
    cuda.atomic.add(sums, 0, n0)
    cuda.atomic.add(sums, 1, n1)
    cuda.atomic.add(sums, 2, n2)
    cuda.atomic.add(sums, 3, n3)
    cuda.syncthreads()
    if t < TREES_A_HASH:
        tree = group * TREES_A_HASH + t - first
        if 0 <= tree < n_trees:
            counts[tree, cuda.blockIdx.x] = sums[t]


@cuda_jit(device=True)
def _scan(sums, t):
    """Replace each thread's number by the sum of those up to it."""
    step = 1
    while step < THREADS:
        cuda.syncthreads()
        more = sums[t - step] if t >= step else 0
        cuda.syncthreads()
        sums[t] += more
        step *= 2
    cuda.syncthreads()


@cuda_jit()
def list_sampled(key0, key1, keys, places, sizes, first, n_trees, limit, salt, starts, order):
    """Write the rows of each tree, ascending; ``starts`` says where those of a stretch begin."""
    n = keys.shape[0]
    group = first // TREES_A_HASH + cuda.blockIdx.y
    t = cuda.threadIdx.x
    flags = cuda.shared.array(SORTED, np.uint8)
    sums = cuda.shared.array(THREADS, np.int32)
    begin = np.int64(cuda.blockIdx.x) * SORTED
    for k in range(_EACH):
        row = begin + k * THREADS + t
        found = 0
        if row < n:
            found = _sampled(key0, key1, keys, places, sizes, row, group, first, n_trees, limit, salt)
        flags[k * THREADS + t] = found
    cuda.syncthreads()
    for place in range(TREES_A_HASH):
        tree = group * TREES_A_HASH + place - first
        mine = 0
        for k in range(_EACH):
            mine += (flags[t * _EACH + k] >> place) & 1
        sums[t] = mine
        _scan(sums, t)
        if 0 <= tree < n_trees:
            at = starts[tree, cuda.blockIdx.x] + sums[t] - mine
            for k in range(_EACH):
                if (flags[t * _EACH + k] >> place) & 1:
                    order[at] = np.uint32(begin + t * _EACH + k)
                    at += 1
        cuda.syncthreads()


@cuda_jit(device=True)
def _node_of(firsts, block):
    """Return the node that a block works for: ``firsts`` are the numbers of their first blocks."""
    low, high = 0, firsts.shape[0] - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if firsts[middle] <= block:
            low = middle
        else:
            high = middle
    return low


@cuda_jit()
def sort_nodes(
    rows, row_bytes, order, other, starts, stops, turned, firsts, features, last, missing, by_category, words, counts
):
    """Send the rows of nodes to their left and right sides, in the other of two lists.

    ``turned`` says in which list a node's rows are. Every block sorts some rows of a node and reserves room on both
    sides in ``counts``, int32 (nodes, 2), which must be zeros.
    """
    t = cuda.threadIdx.x
    held = cuda.shared.array(SORTED, np.uint32)
    sides = cuda.shared.array(SORTED, np.uint8)
    placed = cuda.shared.array(SORTED, np.uint32)
    sums = cuda.shared.array(THREADS, np.int32)
    bases = cuda.shared.array(2, np.int32)
    node = _node_of(firsts, cuda.blockIdx.x)
    first = starts[node] + np.int64(cuda.blockIdx.x - firsts[node]) * SORTED
    n = min(np.int64(SORTED), stops[node] - first)
    f, threshold, raised, categories = features[node], last[node], missing[node], by_category[node]
    for k in range(_EACH):
        i = k * THREADS + t
        left = 0
        if i < n:
            row = other[first + i] if turned[node] else order[first + i]
            code = np.int32(rows[np.int64(row) * row_bytes + f])
            if categories:
                left = np.int32((words[node, code >> 6] >> np.uint64(code & 63)) & np.uint64(1))
            elif code + (raised if code == 0 else 0) <= threshold:
                left = 1
            held[i] = row
        sides[i] = left
    cuda.syncthreads()
    mine = 0
    for k in range(_EACH):
        mine += sides[t * _EACH + k]
    sums[t] = mine
    _scan(sums, t)
    n_left = sums[THREADS - 1]
    if t == 0:
        bases[0] = cuda.atomic.add(counts, (node, 0), n_left)
        bases[1] = cuda.atomic.add(counts, (node, 1), n - n_left)
    to_left = sums[t] - mine
    to_right = n_left + t * _EACH - to_left
    for k in range(_EACH):
        i = t * _EACH + k
        if i < n:
            if sides[i]:
                placed[to_left] = held[i]
                to_left += 1
            else:
                placed[to_right] = held[i]
                to_right += 1
    cuda.syncthreads()
    for k in range(_EACH):
        i = k * THREADS + t
        if i < n:
            at = starts[node] + bases[0] + i if i < n_left else stops[node] - 1 - bases[1] - (i - n_left)
            if turned[node]:
                order[at] = placed[i]
            else:
                other[at] = placed[i]


@cuda_jit()
def count_classes(
    rows, row_bytes, target_at, order, other, starts, stops, turned, firsts, n_rows, features, begin, bases, shift,
    n_classes, at_once, copies, copy_size, hist,
):  # fmt: skip
    """Count the classes of rows by bin: of ``at_once`` features of a node, and ``n_rows`` of its rows, in a block.

    The block has some ``copies`` of its histograms, so that threads seldom wait for each other; without any, rows are
    counted in ``hist`` at once.
    """
    t, size = cuda.threadIdx.x, cuda.blockDim.x
    shared = cuda.shared.array(0, int32)
    node = _node_of(firsts, cuda.blockIdx.x)
    j0 = cuda.blockIdx.y * at_once
    j1 = min(j0 + at_once, features.shape[1])
    while j1 > j0 and features[node, j1 - 1] < 0:
        j1 -= 1
    if j1 <= j0:
        return
    base = bases[node, j0]
    end = bases[node + 1, 0] if j1 == features.shape[1] else bases[node, j1]
    width = np.int32(end - base) * n_classes
    for w in range(t, copies * copy_size, size):
        shared[w] = 0
    cuda.syncthreads()
    start = starts[node] + np.int64(cuda.blockIdx.x - firsts[node]) * n_rows
    stop = min(start + n_rows, stops[node])
    mine = (t % copies) * copy_size if copies else 0
    for i in range(start + t, stop, size):
        byte = np.int64(other[i] if turned[node] else order[i]) * row_bytes
        c = np.int32(_piece(rows, byte + target_at))
        for j in range(j0, j1):
            f = features[node, j]
            bin_ = (begin[node, j] + np.int64(rows[byte + f])) >> np.int64(shift[f])
            if copies:
                cuda.atomic.add(shared, mine + np.int32(bin_ - base) * n_classes + c, 1)
            else:
                cuda.atomic.add(hist, bin_ * n_classes + c, 1)
    cuda.syncthreads()
    if copies:
        for w in range(t, width, size):
            total = 0
            for k in range(copies):
                total += shared[k * copy_size + w]
            if total:
                cuda.atomic.add(hist, base * n_classes + w, total)


@cuda_jit()
def add_sums(
    rows, row_bytes, target_at, order, other, starts, stops, turned, firsts, n_rows, features, begin, bases, shift,
    lows, pieces, at_once, copies, copy_size, hist,
):  # fmt: skip
    """Count rows and add up their targets by bin, as ``count_classes`` counts classes.

    A target's numbers are kept above the lowest of them, in ``lows``, in ``pieces`` of 16 bits each: so many rows of a
    block add up to less than 32 bits, which is what shared memory adds fastest.
    """
    t, size = cuda.threadIdx.x, cuda.blockDim.x
    n_sums = lows.shape[0]
    per_bin = 1 + pieces * n_sums
    shared = cuda.shared.array(0, uint32)
    node = _node_of(firsts, cuda.blockIdx.x)
    j0 = cuda.blockIdx.y * at_once
    j1 = min(j0 + at_once, features.shape[1])
    while j1 > j0 and features[node, j1 - 1] < 0:
        j1 -= 1
    if j1 <= j0:
        return
    base = bases[node, j0]
    end = bases[node + 1, 0] if j1 == features.shape[1] else bases[node, j1]
    for w in range(t, copies * copy_size, size):
        shared[w] = np.uint32(0)
    cuda.syncthreads()
    start = starts[node] + np.int64(cuda.blockIdx.x - firsts[node]) * n_rows
    stop = min(start + n_rows, stops[node])
    mine = (t % copies) * copy_size if copies else 0
    for i in range(start + t, stop, size):
        byte = np.int64(other[i] if turned[node] else order[i]) * row_bytes
        for j in range(j0, j1):
            f = features[node, j]
            bin_ = (begin[node, j] + np.int64(rows[byte + f])) >> np.int64(shift[f])
            at = mine + np.int32(bin_ - base) * per_bin
            if copies:
                cuda.atomic.add(shared, at, np.uint32(1))
                for k in range(pieces * n_sums):
                    piece = _piece(rows, byte + target_at + 2 * k)
                    if piece:
                        cuda.atomic.add(shared, at + 1 + k, piece)
                continue
            cuda.atomic.add(hist, bin_ * (1 + n_sums), np.int64(1))
            for s in range(n_sums):
                value = lows[s]
                for k in range(pieces):
                    value += np.int64(_piece(rows, byte + target_at + 2 * (s * pieces + k))) << np.int64(16 * k)
                cuda.atomic.add(hist, bin_ * (1 + n_sums) + 1 + s, value)
    cuda.syncthreads()
    if copies:
        for b in range(t, np.int32(end - base), size):
            count = np.int64(0)
            for copy in range(copies):
                count += np.int64(shared[copy * copy_size + b * per_bin])
            if count == 0:
                continue
            cuda.atomic.add(hist, (base + b) * (1 + n_sums), count)
            for s in range(n_sums):
                total = count * lows[s]
                for copy in range(copies):
                    for k in range(pieces):
                        at = copy * copy_size + b * per_bin + 1 + s * pieces + k
                        total += np.int64(shared[at]) << np.int64(16 * k)
                cuda.atomic.add(hist, (base + b) * (1 + n_sums) + 1 + s, total)


@cuda_jit()
def gather_nodes(order, other, starts, turned, begin, firsts, out):
    """Copy the rows of nodes, of which each block takes some, one node after the other to ``out``."""
    node = _node_of(firsts, cuda.blockIdx.x)
    first = np.int64(cuda.blockIdx.x - firsts[node]) * SORTED
    n = min(np.int64(SORTED), begin[node + 1] - begin[node] - first)
    for i in range(cuda.threadIdx.x, n, THREADS):
        at = starts[node] + first + i
        out[begin[node] + first + i] = other[at] if turned[node] else order[at]
