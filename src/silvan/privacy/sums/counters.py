"""Replies as vectors of counters modulo 2^64, and back; pseudorandom masks that hide such vectors.

Modulo 2^64 an offset that is drawn uniformly hides a counter wholly, and negative numbers add up as they
should. Every part is small enough for its sum not to wrap round. Where sums are known to be small, several counters
share a word, each some bits above the last: words add up as their counters do.
"""

from collections.abc import Sequence
from math import prod
from typing import Literal

import msgspec
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numba import njit

from silvan.errors import RefusedError
from silvan.federation.message import Reply
from silvan.util.threads import thread_map

WORD = np.dtype("<u8")
BITS = 64
_PACK_PIECE = 1 << 11  # words that stay in the processor's cache while they are filled

MASK_TASK = 1 << 18  # words that a thread takes at a time
MASK_PIECE = 1 << 14  # words that stay in the processor's cache while all masks are added
_ZEROS = memoryview(bytes(MASK_PIECE * WORD.itemsize))

MaskCipher = Literal["ChaCha20", "AES-256-CTR"]
"""By what the seeds of masks are stretched: sums of version 0.1.0, and those of today, which take two thirds of it."""

_BLOCK = {"ChaCha20": 64, "AES-256-CTR": 16}  # bytes of a block; a stream can be entered at any


class Layout(msgspec.Struct, frozen=True):
    """What counters stand for: a kind of reply, and the element type and shape of each of its fields."""

    kind: str
    fields: list[tuple[str, str, list[int]]]

    @property
    def size(self) -> int:
        """How many counters there are."""
        return sum(prod(shape) for _, _, shape in self.fields)

    def words(self, width: int = BITS) -> int:
        """How many words they take, at so many bits a counter."""
        return sum(-(-prod(shape) // (BITS // width)) for _, _, shape in self.fields)


def flatten(reply: Reply, n_sites: int, width: int = BITS) -> tuple[Layout, np.ndarray]:
    """Write a site's part of a sum over ``n_sites`` sites as words, with ``width`` bits for each counter.

    Counters that share a word are not checked: a word is a sum of them whatever they are. A coordinator that
    claims too small a bound on sums reads nonsense, and a refusal would tell it how large counters are.
    """
    kind, fields, words = type(reply).__name__, [], [np.zeros(0, WORD)]
    for name in reply.__struct_fields__:
        array = getattr(reply, name)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
            raise RefusedError(f"{kind}.{name} cannot be summed: it is not an integer array")
        if array.dtype.itemsize == WORD.itemsize and array.size and width == BITS:  # shorter ones cannot wrap round
            most = int(np.iinfo(array.dtype).max) // n_sites
            if int(array.max()) > most or int(array.min()) < -most:
                raise RefusedError(f"{kind}.{name} is too large to be added to the others'")
        fields.append((name, array.dtype.newbyteorder("<").str, list(array.shape)))
        words.append(pack(array.reshape(-1), width))
    return Layout(kind, fields), np.concatenate(words) if len(words) != 2 else words[1]


def pack(counters: np.ndarray, width: int) -> np.ndarray:
    """Pack counters of ``width`` bits into words, as many as fit: lane i of all words is the i-th run."""
    if width == BITS:
        return counters.astype("<i8" if counters.dtype.kind == "i" else WORD).view(WORD)
    words = np.empty(-(-len(counters) // (BITS // width)), np.uint64)
    _fill_words(counters if counters.dtype == np.int32 else counters.astype(np.int64), width, words)
    return words.astype(WORD, copy=False)


@njit(nogil=True, cache=True)
def _fill_words(counters: np.ndarray, width: int, words: np.ndarray) -> None:
    n = len(words)
    for start in range(0, n, _PACK_PIECE):
        stop = min(start + _PACK_PIECE, n)
        words[start:stop] = 0
        for lane in range(BITS // width):
            shift, first = np.uint64(lane * width), lane * n
            some, part = words[start:stop], counters[first + start : first + stop]
            for i in range(len(part)):
                some[i] += np.uint64(np.int64(part[i])) << shift


def unpack(words: np.ndarray, size: int, width: int, dtype: np.dtype = WORD) -> np.ndarray:
    """Read what ``pack`` wrote, or a sum of it; the element type must hold counters of so many bits."""
    counters = np.empty(size, dtype.newbyteorder("="))
    _read_words(words.astype(np.uint64, copy=False), width, counters)
    return counters.astype(dtype, copy=False)


@njit(nogil=True, cache=True)
def _read_words(words: np.ndarray, width: int, counters: np.ndarray) -> None:
    n, low = len(words), (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    for lane in range(BITS // width):
        shift, part = np.uint64(lane * width), counters[lane * n : (lane + 1) * n]
        for i in range(len(part)):
            part[i] = words[i] >> shift & low


def unflatten(layout: Layout, counters: np.ndarray, kind: type[Reply], width: int = BITS) -> Reply:
    """Read a sum of counters as a reply, with the element types of its parts."""
    fields, start = {}, 0
    for name, code, shape in layout.fields:
        dtype, size = np.dtype(code), prod(shape)
        n = -(-size // (BITS // width))
        words = counters[start : start + n]
        start += n
        if width < BITS and (1 << width) - 1 <= np.iinfo(dtype).max:  # no counter can be too large
            fields[name] = unpack(words, size, width, dtype).reshape(shape)
            continue
        signed = dtype.kind == "i" and width == BITS
        wide = (words if width == BITS else unpack(words, size, width)).view("<i8" if signed else WORD)
        if size and not np.iinfo(dtype).min <= int(wide.min()) <= int(wide.max()) <= np.iinfo(dtype).max:
            raise RefusedError(f"{layout.kind}.{name} is too large when all are added")
        fields[name] = wide.astype(dtype).reshape(shape)
    return kind(**fields)


def mask(
    words: np.ndarray,
    plus: Sequence[bytes],
    minus: Sequence[bytes],
    threads: int = 1,
    cipher: MaskCipher = "AES-256-CTR",
) -> None:
    """Add the key streams of some seeds to words and subtract those of others, in place; a seed is for one sum."""

    def mask_task(start: int) -> None:
        here = words[start : start + MASK_TASK]
        streams: list[tuple[np.ufunc, CipherContext]] = [(np.add, _stream(seed, cipher, start)) for seed in plus]
        streams += [(np.subtract, _stream(seed, cipher, start)) for seed in minus]
        buffer = np.empty(MASK_PIECE, WORD)
        for at in range(0, len(here), MASK_PIECE):
            piece = here[at : at + MASK_PIECE]
            drawn = buffer[: len(piece)]
            zeros, target = _ZEROS[: piece.nbytes], drawn.view(np.uint8).data
            for apply, stream in streams:
                stream.update_into(zeros, target)
                apply(piece, drawn, out=piece)

    thread_map(mask_task, range(0, len(words), MASK_TASK), threads)


def key_stream(seed: bytes, n: int) -> bytes:
    """Return the first n bytes of a seed's key stream."""
    return _stream(seed, "ChaCha20").update(bytes(n))


def offsets(seed: bytes, n: int) -> np.ndarray:
    """Return n offsets, uniform modulo 2^64, from a seed of 32 random bytes; a seed is used for one sum."""
    return np.frombuffer(key_stream(seed, n * WORD.itemsize), WORD)


def _stream(seed: bytes, cipher: MaskCipher, word: int = 0) -> CipherContext:
    """Start a seed's key stream at a word."""
    counter = word * WORD.itemsize // _BLOCK[cipher]
    if cipher == "AES-256-CTR":
        return Cipher(AES256(seed), CTR(counter.to_bytes(16, "big"))).encryptor()
    return Cipher(ChaCha20(seed, counter.to_bytes(8, "little") + bytes(8)), mode=None).encryptor()
