"""Keyed random sampling of the rows of a tree and the features of a node.

A sample is a hash of (key, purpose, tree, row or node), never the next number of a stream. So it does not
depend on threads, on the order of messages, on where rows are or on how often a process restarted, and anyone
who holds the key can repeat it. The hash is SipHash-2-4, a keyed pseudo-random function: without the key,
the sample looks like coin tosses.
"""

import hashlib
import math
from typing import NamedTuple

import numpy as np

from silvan.errors import FormatError
from silvan.util.kernels import njit
from silvan.util.threads import thread_map

U = np.uint64

RowSampling = bool | float
"""How trees sample rows: True as a bootstrap of all rows, a number as one of that share, False not at all."""

ROWS, FEATURES, FOLDS, RESAMPLES, VALIDATION, TIES, PLACES = 1, 2, 3, 4, 5, 6, 7
"""Purposes of a hash, in the top byte of every hashed message; samples for different purposes are independent."""

DRAW_STEPS = 1 << 16  # possible values of a row's number in the sampling for a tree
TREES_A_HASH = 4  # trees that share the 64 bits of one hash


class SamplingKeys(NamedTuple):
    """The keys of a forest's sampling."""

    rows: np.ndarray
    features: np.ndarray
    ties: np.ndarray | None = None  # None: that of the features


def make_key(seed: int, purpose: str) -> np.ndarray:
    """Derive a 128-bit key from a seed."""
    digest = hashlib.sha256(f"silvan key {purpose} {int(seed)}".encode()).digest()
    return np.frombuffer(digest[:16], "<u8").astype(np.uint64)


def key_of_site(key: np.ndarray, site: str) -> np.ndarray:
    """Derive the key of a site's own trees from the common key, so that sites' trees sample different columns."""
    digest = hashlib.sha256(b"silvan key of a site " + key.astype("<u8").tobytes() + site.encode()).digest()
    return np.frombuffer(digest[:16], "<u8").astype(np.uint64)


_State = tuple[np.uint64, np.uint64, np.uint64, np.uint64]

_LENGTH = U(16) << U(56)


@njit(nogil=True, cache=True, inline="always")
def _begin(key0: np.uint64, key1: np.uint64) -> _State:
    return (
        key0 ^ U(0x736F6D6570736575),
        key1 ^ U(0x646F72616E646F6D),
        key0 ^ U(0x6C7967656E657261),
        key1 ^ U(0x7465646279746573),
    )


@njit(nogil=True, cache=True, inline="always")
def _round(v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64) -> _State:
    v0 += v1
    v1 = ((v1 << U(13)) | (v1 >> U(51))) ^ v0
    v0 = (v0 << U(32)) | (v0 >> U(32))
    v2 += v3
    v3 = ((v3 << U(16)) | (v3 >> U(48))) ^ v2
    v0 += v3
    v3 = ((v3 << U(21)) | (v3 >> U(43))) ^ v0
    v2 += v1
    v1 = ((v1 << U(17)) | (v1 >> U(47))) ^ v2
    v2 = (v2 << U(32)) | (v2 >> U(32))
    return v0, v1, v2, v3


@njit(nogil=True, cache=True, inline="always")
def _open(key0: np.uint64, key1: np.uint64, a: np.uint64) -> _State:
    """Begin the hash of two words, under a key of two, with the first."""
    v0, v1, v2, v3 = _begin(key0, key1)
    v3 ^= a
    for _ in range(2):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ a, v1, v2, v3


@njit(nogil=True, cache=True, inline="always")
def _close(v0: np.uint64, v1: np.uint64, v2: np.uint64, v3: np.uint64, b: np.uint64) -> np.uint64:
    """Return the hash of two words from its beginning and the second, as ``siphash`` does. Nothing branches."""
    v3 ^= b
    for _ in range(2):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= b
    v3 ^= _LENGTH
    for _ in range(2):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= _LENGTH
    v2 ^= U(0xFF)
    for _ in range(4):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return v0 ^ v1 ^ v2 ^ v3


@njit(nogil=True, cache=True, inline="always")
def hash_words(key0: np.uint64, key1: np.uint64, a: np.uint64, b: np.uint64) -> np.uint64:
    """Hash two 64-bit words with SipHash-2-4, under a key of two: on the processor or a graphics card."""
    v0, v1, v2, v3 = _open(key0, key1, a)
    return _close(v0, v1, v2, v3, b)


@njit(nogil=True, cache=True)
def siphash(key: np.ndarray, a: np.uint64, b: np.uint64) -> np.uint64:
    """Hash two 64-bit words."""
    return hash_words(key[0], key[1], U(a), U(b))


@njit(nogil=True, cache=True)
def hash_each(key: np.ndarray, a: np.uint64, words: np.ndarray, out: np.ndarray) -> None:
    """Hash a word with each of some others as ``siphash`` does. Without branches, many are computed at once."""
    v0, v1, v2, v3 = _open(key[0], key[1], a)
    for i in range(words.shape[0]):
        out[i] = _close(v0, v1, v2, v3, words[i])


def rows_of_trees(key: np.ndarray, row_keys: np.ndarray, first: int, n_trees: int, draw: RowSampling) -> np.ndarray:
    """Return which rows are in which trees: bool (tree, row); each row independently and without replacement.

    Where rows have persons (``data/groups.py``), persons are sampled in that way, and a tree has one row of each.
    Each share has an independent sample. If a smaller share were part of a larger one, the sums of two forests
    would differ by only a few rows.
    """
    limit, salt = sampling_limits(draw)
    persons = row_keys if row_keys.dtype.names is None else np.ascontiguousarray(row_keys["person"])
    drawn = _draw(key, persons, first, n_trees, limit, salt)
    if persons is not row_keys:
        for tree in range(n_trees):
            drawn[tree] &= _one_of_each(key, row_keys, 1 + first + tree)
    return drawn


def one_of_each(row_keys: np.ndarray) -> np.ndarray:
    """Return one row of every person, bool (rows,); the choice depends only on the person and the number of rows."""
    return _one_of_each(np.zeros(2, np.uint64), row_keys, 0)


def _one_of_each(key: np.ndarray, row_keys: np.ndarray, number: int) -> np.ndarray:
    words = np.empty(len(row_keys), np.uint64)
    hash_each(key, (U(PLACES) << U(56)) | U(number), np.ascontiguousarray(row_keys["person"]), words)
    chosen = ((words >> U(32)) * row_keys["rows"].astype(np.uint64)) >> U(32)  # evenly spread over the person's rows
    return np.asarray(chosen == row_keys["place"])


def persons_of(row_keys: np.ndarray) -> np.ndarray:
    """Return a key for every person; for rows without persons, each row's key."""
    if row_keys.dtype.names is None:
        return row_keys
    return np.ascontiguousarray(row_keys["person"][row_keys["place"] == 0])


def draw_limit(draw: RowSampling) -> int:
    """Return below which of 2^16 numbers a row's must be for the row to be in a tree.

    A row is in a tree with probability 1 - exp(-f), the expected share of distinct rows in a bootstrap sample of f
    times as many rows as there are; 1 - 1/e for f = 1. Raise ``FormatError`` for an f that there cannot be.
    """
    if not (draw is False or 0.0 < draw <= 1.0):
        raise FormatError("trees draw a share of the rows that there cannot be")
    return max(1, round(DRAW_STEPS * -math.expm1(-float(draw)))) if draw else DRAW_STEPS


def sampling_limits(draw: RowSampling) -> tuple[int, int]:
    """Return the limit of ``draw_limit``, and what the hash of a share other than the usual one is salted with."""
    limit = draw_limit(draw)
    return limit, 0 if limit == draw_limit(True) else limit


@njit(nogil=True, cache=True)
def _draw(key: np.ndarray, row_keys: np.ndarray, first: int, n_trees: int, limit: int, salt: int) -> np.ndarray:
    n = row_keys.shape[0]
    drawn = np.ones((n_trees, n), np.bool_)
    if limit >= DRAW_STEPS:
        return drawn
    last_group = -1
    bits = np.empty(n, np.uint64)
    for t in range(n_trees):
        group, place = divmod(first + t, TREES_A_HASH)
        if group != last_group:
            message = (U(ROWS) << U(56)) | (U(salt) << U(32)) | U(group)
            hash_each(key, message, row_keys, bits)
            last_group = group
        shift = U(16 * place)
        for i in range(n):
            drawn[t, i] = (bits[i] >> shift) & U(0xFFFF) < U(limit)
    return drawn


def list_rows(drawn: np.ndarray, sizes: np.ndarray, threads: int = 1) -> np.ndarray:
    """Return the rows of each tree, tree after tree, ascending; ``sizes`` receives the number of each."""
    sizes[:] = [int(n) for n in thread_map(np.count_nonzero, drawn, threads)]
    order = np.empty(sizes.sum(), np.uint32)
    stops = np.cumsum(sizes)
    starts = stops - sizes

    def write(some: slice) -> None:
        _write_rows(drawn[some], starts[some], stops[some], order)

    each = [slice(tree, tree + 1) for tree in range(len(drawn))]
    thread_map(write, each if threads > 1 else [slice(None)], threads)
    return order


@njit(nogil=True, cache=True)
def _write_rows(drawn: np.ndarray, starts: np.ndarray, stops: np.ndarray, order: np.ndarray) -> None:
    """Write the rows of each tree, ascending, to ``order[start:stop]``, and nothing else."""
    for t in range(drawn.shape[0]):
        at, row = starts[t], 0
        while at < stops[t]:
            order[at] = row  # overwritten unless the row is sampled
            at += drawn[t, row]
            row += 1


@njit(nogil=True, cache=True)
def root_seeds(key: np.ndarray, trees: np.ndarray) -> np.ndarray:
    """Return the seed of feature sampling for each tree's root."""
    seeds = np.empty(trees.shape[0], np.uint64)
    for i in range(trees.shape[0]):
        seeds[i] = siphash(key, U(FEATURES) << U(56), U(trees[i]))
    return seeds


def cut_offsets(trees: np.ndarray) -> np.ndarray:
    """Return the set of cut points of each tree, by its number."""
    return (trees % 4).astype(np.uint8)


class Monotonic(NamedTuple):
    """Which way predictions may go with a feature, and between which values those of a node must be.

    ``signs`` are those of the features of all parties: 1 up, -1 down, 0 either; none: nothing is asked.
    """

    signs: np.ndarray  # int8
    bounds: np.ndarray  # float64 (nodes, 2), in terms of ``gain.leaning``

    def take(self, which: slice | np.ndarray) -> "Monotonic":
        """Return the constraints of some of the nodes."""
        return Monotonic(self.signs, self.bounds[which]) if len(self.signs) else self


FREE = Monotonic(np.zeros(0, np.int8), np.zeros((0, 2)))  # no constraint on predictions


class Ties(NamedTuple):
    """What decides between splits of equal gain: the order of features is drawn for every node, by a keyed hash.

    Splits that are not ``monotonic``, where that is asked for, do not come into it.
    """

    key: np.ndarray
    seeds: np.ndarray  # of the nodes, uint64
    first: int = 0  # the number, among those of all parties, of the first feature here
    monotonic: Monotonic = FREE

    def take(self, which: slice | np.ndarray) -> "Ties":
        """Return the tie-breakers of some of the nodes."""
        return Ties(self.key, self.seeds[which], self.first, self.monotonic.take(which))


@njit(nogil=True, cache=True)
def tie_rank(ties: Ties, node: int, feature: int) -> np.uint64:
    """Return a feature's rank at a node: in a tie, the lowest rank wins."""
    return siphash(ties.key, (U(TIES) << U(56)) | U(ties.first + feature), ties.seeds[node])


@njit(nogil=True, cache=True)
def tie_ranks(ties: Ties, features: np.ndarray) -> np.ndarray:
    """Return the rank of each node's feature, the highest of all where that is -1."""
    ranks = np.empty(features.shape[0], np.uint64)
    for node in range(features.shape[0]):
        ranks[node] = tie_rank(ties, node, features[node]) if features[node] >= 0 else ~U(0)
    return ranks


@njit(nogil=True, cache=True, inline="always")
def mix(x: np.uint64) -> np.uint64:
    """Scramble 64 bits, one to one: the finisher of splitmix64."""
    x = (x ^ (x >> U(30))) * U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U(27))) * U(0x94D049BB133111EB)
    return x ^ (x >> U(31))


@njit(nogil=True, cache=True)
def child_seeds(seeds: np.ndarray) -> np.ndarray:
    """Return the seeds of both children of each node: a node's seed depends on its path alone."""
    out = np.empty((seeds.shape[0], 2), np.uint64)
    for i in range(seeds.shape[0]):
        out[i, 0] = mix(seeds[i] + U(0x9E3779B97F4A7C15))
        out[i, 1] = mix(seeds[i] + U(0x3C6EF372FE94F82A))
    return out


class FeatureOrder(NamedTuple):
    """Memory of one thread for sampling features; ``features`` holds 0, 1, 2, ... in between."""

    features: np.ndarray
    swaps: np.ndarray


def make_feature_order(n_features: int) -> FeatureOrder:
    """Allocate the memory of one thread for sampling features."""
    return FeatureOrder(np.arange(n_features), np.zeros(n_features, np.int64))


@njit(nogil=True, cache=True)
def sample_features(seed: np.uint64, attempt: int, feature_order: FeatureOrder, out: np.ndarray) -> int:
    """Draw a node's features, ascending: the ``attempt``-th part of all features in the node's random order.

    A few swaps at the front of one list, undone at the end, cost less than a list for every node. Returns how
    many were drawn, 0 if all features were sampled before.
    """
    features, swaps = feature_order
    n, size = features.shape[0], out.shape[0]
    start = attempt * size
    stop = min(start + size, n)
    if stop <= start:
        return 0
    state = seed
    for i in range(stop):
        state += U(0x9E3779B97F4A7C15)
        # the upper 32 bits scaled to the remaining features; the bias is below 2^-15 for any allowed number of columns
        j = i + np.int64(((mix(state) >> U(32)) * U(n - i)) >> U(32))
        swaps[i] = j
        features[i], features[j] = features[j], features[i]
    for i in range(start, stop):
        # insertion keeps them ascending: a sample has a single representation
        feature, j = features[i], i - start
        while j > 0 and out[j - 1] > feature:
            out[j] = out[j - 1]
            j -= 1
        out[j] = feature
    for i in range(stop - 1, -1, -1):
        j = swaps[i]
        features[i], features[j] = features[j], features[i]
    return stop - start
