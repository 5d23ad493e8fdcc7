"""Building blocks of masked sums: streams, words shared by several counters, and who shares masks with whom."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB
from helpers.examples import examples
from helpers.summing import DTYPES, SHAPES, Numbers, of
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from silvan.errors import RefusedError
from silvan.federation.message import SummedReply
from silvan.privacy.aggregation.counters import (
    MASK_PIECE,
    MASK_TASK,
    flatten,
    key_stream,
    mask,
    offsets,
    unflatten,
)
from silvan.privacy.aggregation.neighbours import SECURITY, disconnection_bound, enough_neighbours, neighbours
from silvan.privacy.aggregation.words import STEPS, Widths, pack, unpack

# -- streams


@pytest.mark.parametrize("n", [0, 1, 7, MASK_PIECE, MASK_PIECE + 1, MASK_TASK, 2 * MASK_TASK + MASK_PIECE + 3])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("wide", [True, False])
def test_masks_equal_the_ciphers_stream(n, threads, wide, monkeypatch):
    """However the words are divided and whatever the processor supports, the stream is the same."""
    monkeypatch.setattr("silvan.privacy.aggregation.counters.gcm_is_faster", lambda: wide)
    plus, minus = [bytes([i]) * 32 for i in (1, 2)], [bytes([i]) * 32 for i in (3, 4, 5)]
    words = np.arange(n, dtype="<u8")
    mask(words, plus, minus, threads)
    expected = np.arange(n, dtype="<u8")
    for seed in plus:
        expected += stream(seed, n)
    for seed in minus:
        expected -= stream(seed, n)
    assert np.array_equal(words, expected)
    mask(words, minus, plus, threads)
    assert np.array_equal(words, np.arange(n))


def stream(seed, n):
    """The words of a seed's stream, block by block from the standard."""
    task, block = np.divmod(np.arange(-(-n // 2)), MASK_TASK // 2)
    numbers = np.zeros((len(task), 4), ">u4")
    numbers[:, 2], numbers[:, 3] = task, 2 + block
    return np.frombuffer(blocks(seed, numbers.tobytes()), "<u8")[:n]


def blocks(key, data):
    """Encrypts every block of the data by itself."""
    return Cipher(AES256(key), ECB()).encryptor().update(data)  # noqa: S305


def test_masks_by_aes_are_as_published():
    """A block is that of FIPS 197, C.3, and the stream is the blocks 2, 3, ... as in NIST SP 800-38D, 7.1."""
    key = bytes(range(32))
    published = blocks(key, bytes.fromhex("00112233445566778899aabbccddeeff"))
    assert published.hex() == "8ea2b7ca516745bfeafc49904b496089"
    words = np.zeros(4, "<u8")
    mask(words, [key], [])
    assert words.tobytes() == blocks(key, (2).to_bytes(16, "big") + (3).to_bytes(16, "big"))
    assert AESGCM(key).encrypt(bytes(12), bytes(32), None)[:32] == words.tobytes()


def test_the_stream_does_not_depend_on_the_implementation():
    assert key_stream(b"s" * 32, 4001) == offsets(b"s" * 32, 501).tobytes()[:4001]


# -- words shared by several counters


def naive_pack(counters, width):
    """Adds counters as integers of any size, and cuts to 64 bits at the end."""
    lanes = 64 // width
    n = -(-len(counters) // lanes)
    words = [0] * n
    for i, counter in enumerate(counters.tolist()):
        words[i % n] += counter << (width * (i // n))
    return [word % 2**64 for word in words]


INTEGERS = st.sampled_from(DTYPES).flatmap(lambda d: arrays.arrays(np.dtype(d), st.integers(0, 40)))


@given(INTEGERS, st.integers(1, 64))
@examples(100)
def test_packing_is_plain_addition(counters, width):
    """Also for numbers that do not fit or are negative: a word depends on its counters by addition alone."""
    assert pack(counters, Widths.alike(len(counters), width)).tolist() == naive_pack(counters, width)


def test_packing_over_many_pieces():
    counters = np.random.default_rng(0).integers(0, 2**16, 20_001, np.int32)
    assert pack(counters, Widths.alike(20_001, 21)).tolist() == naive_pack(counters, 21)


@st.composite
def blocks_of(draw):
    """Blocks of rows, and the number of bits per counter in each, by column."""
    lengths = draw(st.lists(st.integers(0, 30), max_size=5))
    bits = arrays.arrays(np.uint8, (len(lengths), draw(st.integers(1, 4))), elements=st.integers(1, 64))
    return Widths(np.array(lengths, np.int64), draw(bits))


@given(blocks_of(), st.sampled_from(["i4", "i8", "u2"]), st.data())
@examples(100)
def test_packing_by_block_is_packing_each_of_them(widths, dtype, data):
    """Every block and column separately, for any numbers: so words depend on counters by addition alone."""
    shape = int(widths.lengths.sum()), widths.bits.shape[1]
    counters, expected, row = data.draw(arrays.arrays(np.dtype(dtype), shape)), [], 0
    for length, bits in zip(widths.lengths, widths.bits.tolist(), strict=True):
        for c, width in enumerate(bits):
            expected += naive_pack(counters[row : row + length, c], width)
        row += length
    assert widths.fit(shape)
    assert pack(counters, widths).tolist() == expected
    assert len(expected) == widths.words()


class Table(SummedReply, frozen=True, kw_only=True):
    """One array of integers."""

    x: np.ndarray


@given(blocks_of(), st.integers(1, 4), st.sampled_from(["i4", "i8"]), st.data())
@examples(100)
def test_sums_by_block_are_read_or_refused(bounds, n, dtype, data):
    """Parts whose sums respect the bound are accepted; a larger one is refused."""
    most = (2 ** bounds.bits.astype(object) - 1).clip(0, np.iinfo(dtype).max).astype(np.int64)
    by_row = np.repeat(most, bounds.lengths, axis=0)
    part = (by_row * data.draw(st.floats(0, 1)) // n).astype(np.int64).clip(0, by_row // n).astype(dtype)
    widths = Widths.holding(bounds.lengths, most)
    assert np.isin(widths.bits, STEPS).all()
    layout, words = flatten(Table(x=part), n, widths)
    assert layout.words(widths) == len(words)
    got = unflatten(layout, words * np.uint64(n), Table, widths, most).x
    assert got.dtype == part.dtype
    assert np.array_equal(got, n * part)
    if part.size and int(part.max()) * n > 0:
        with pytest.raises(RefusedError, match="too large when all are added"):
            unflatten(layout, words * np.uint64(n), Table, widths, np.full_like(most, int(part.max()) * n - 1))


def test_sums_below_zero_take_whole_words():
    widths = Widths.holding(np.array([2, 1]), np.array([[300, 2**63 - 1], [5, 2**63 - 1]]))
    assert widths.bits.tolist() == [[10, 64], [8, 64]]
    part = np.array([[100, -(2**60)], [0, 17], [2, -1]])
    layout, words = flatten(Table(x=part), 3, widths)
    assert len(words) == 1 + 2 + 1 + 1
    assert np.array_equal(unflatten(layout, words * np.uint64(3), Table, widths).x, 3 * part)
    with pytest.raises(RefusedError, match="too large to be added"):
        flatten(Table(x=part * 4), 3, widths)


@pytest.mark.parametrize(
    "widths",
    [
        Widths(np.array([3]), np.array([[8, 8]], np.uint8)),
        Widths(np.array([2]), np.array([[8]], np.uint8)),
        Widths(np.array([3, -1]), np.array([[8, 8], [8, 8]], np.uint8)),
        Widths(np.array([2]), np.array([[8, 0]], np.uint8)),
        Widths(np.array([2]), np.array([[8, 65]], np.uint8)),
        Widths(np.array([2]), np.array([8, 8], np.uint8)),
        Widths(np.array([2], np.int32), np.array([[8, 8]], np.uint8)),
        Widths(np.array([2]), np.array([[8, 8]])),
        Widths(np.array([1, 1]), np.array([[8, 8]], np.uint8)),
    ],
)
def test_widths_of_another_array(widths):
    with pytest.raises(RefusedError, match="Table has another shape than its widths"):
        flatten(Table(x=np.zeros((2, 2), np.int32)), 3, widths)


@st.composite
def small(draw, n):
    """A field of this many parts whose sums are below a bound."""
    bits = draw(st.integers(1, 60))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    most = min(2**bits - 1, int(np.iinfo(dtype).max)) // n
    shape = draw(SHAPES)
    return bits, [draw(arrays.arrays(dtype, shape, elements=st.integers(0, most))) for _ in range(n)]


@given(st.integers(1, 5).flatmap(small))
@examples(60)
def test_sums_of_words_are_words_of_sums(given_):
    bits, parts = given_
    width = 64 // (64 // bits)
    flat = [flatten(Numbers(x=part, y=of(1).y), len(parts), width) for part in parts]
    total = sum(words.astype(object) for _, words in flat)
    layout, words = flat[0][0], np.array([word % 2**64 for word in total], "<u8")
    assert len(words) == layout.words(width) <= layout.words()
    got = unflatten(layout, words, Numbers, width).x
    assert got.dtype == parts[0].dtype.newbyteorder("<")
    assert np.array_equal(got.astype(object), sum(part.astype(object) for part in parts))


def test_a_sum_of_words_too_large_for_its_type():
    layout, words = flatten(of(100, dtype=np.int8), 3, 21)
    with pytest.raises(RefusedError, match="too large when all are added"):
        unflatten(layout, words * np.uint64(3), Numbers, 21)


def test_reading_words():
    counters, widths = np.random.default_rng(0).integers(0, 2**12, 10_007, np.int32), Widths.alike(10_007, 12)
    assert np.array_equal(unpack(pack(counters, widths), widths, np.dtype(np.int32))[:, 0], counters)


# -- who shares a mask with whom


KEYS = [bytes([i]) * 32 for i in range(20)]


def pieces(near, gone):
    """The number of connected groups of the remaining sites."""
    left = set(range(len(near))) - set(gone)
    n = 0
    while left:
        todo, n = [left.pop()], n + 1
        while todo:
            found = left & set(near[todo.pop()])
            left -= found
            todo += found
    return n


@pytest.mark.parametrize(("n", "k"), [(3, 2), (4, 2), (7, 4), (10, 4), (10, 6), (12, 2), (11, 10), (5, 8)])
def test_neighbours_are_mutual(n, k):
    near = neighbours("study", tuple(KEYS[:n]), k)
    for i, others in enumerate(near):
        assert len(others) == min(k, n - 1) == len(set(others) - {i})
        assert all(i in near[j] for j in others)


@pytest.mark.parametrize(("n", "k"), [(7, 2), (7, 4), (9, 6), (10, 4), (10, 6)])
def test_losses_below_the_number_of_neighbours_keep_the_circle_connected(n, k):
    """Whichever sites they are; with one more the circle can fall apart."""
    near = neighbours("study", tuple(KEYS[:n]), k)
    for gone in combinations(range(n), k - 1):
        assert pieces(near, gone) == 1
    if k < n - 3:
        assert max(pieces(near, gone) for gone in combinations(range(n), k)) == 2


@pytest.mark.parametrize(("n", "k"), [(8, 2), (9, 4), (10, 4), (12, 4), (12, 6)])
def test_the_bound_is_an_upper_bound(n, k):
    """Over all ways to lose sites, the circle falls apart at most as often as claimed."""
    near = neighbours("study", tuple(KEYS[:n]), k)
    for m in range(n - 1):
        apart = sum(pieces(near, gone) > 1 for gone in combinations(range(n), m))
        assert apart / comb(n, m) <= disconnection_bound(n, m, k)


def test_the_number_of_neighbours_suffices():
    for n in range(3, 256):
        k = enough_neighbours(n)
        assert k == n - 1 if n <= 50 else k < n - 1
        assert disconnection_bound(n, 2 * (n // 3), k) <= 2.0**-SECURITY
        assert k == n - 1 or k == 2 or disconnection_bound(n, 2 * (n // 3), k - 2) > 2.0**-SECURITY
    assert SECURITY - 80 >= 40  # a coordinator may try 2^80 names of a study, which change the neighbours
    assert enough_neighbours(100) == 68
    assert enough_neighbours(255) == 140


def test_places_depend_on_the_study_and_on_all_keys():
    circles = [
        neighbours(study, tuple(keys), 4) for study, keys in (("a", KEYS), ("b", KEYS), ("a", [*KEYS[:-1], b"k" * 32]))
    ]
    assert circles[0] != circles[1]
    assert circles[0] != circles[2]
