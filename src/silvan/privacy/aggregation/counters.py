"""Replies as vectors of counters modulo 2^64, and back; pseudorandom masks that hide such vectors.

Modulo 2^64 a uniform random offset hides a counter completely, and negative numbers add up correctly. Every part is
small enough that its sum cannot overflow. If sums are known to be small, several counters share a word: see
``words.py``.
"""

from collections.abc import Sequence
from functools import cache
from math import prod

import msgspec
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES256, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM
from llvmlite.binding import get_host_cpu_features

from silvan.errors import RefusedError
from silvan.federation.message import PROOF, Reply
from silvan.privacy.aggregation.words import BITS, WORD, Widths, pack, unpack
from silvan.util.threads import thread_map

MASK_TASK = 1 << 18  # words per thread task; with AES each task has its own nonce
MASK_PIECE = 1 << 14  # words that stay in the processor's cache while all masks are added
_ZEROS = memoryview(bytes(MASK_PIECE * WORD.itemsize))

_WIDE = ("vaes", "vpclmulqdq", "avx512f", "avx512dq", "avx512bw", "avx512vl")


class PartLayout(msgspec.Struct, frozen=True):
    """The layout of counters: a kind of reply, and the element type and shape of each of its fields."""

    kind: str
    fields: list[tuple[str, str, list[int]]]

    def words(self, widths: Widths | int = BITS) -> int:
        """Return the number of words; raise ``RefusedError`` if the widths belong to another array."""
        return sum(self.widths(name, shape, widths).words() for name, _, shape in self.fields)

    def widths(self, name: str, shape: Sequence[int], widths: Widths | int) -> Widths:
        """Return the widths of a field's counters: given for the only one beside the proof, or one for all."""
        widths = BITS if name == PROOF else widths
        if isinstance(widths, int):
            return Widths.alike(prod(shape), widths)
        if len(self.fields) != 2 or not widths.fit(tuple(shape)):
            raise RefusedError(f"{self.kind} has another shape than its widths")
        return widths


def flatten(reply: Reply, n_sites: int, widths: Widths | int = BITS) -> tuple[PartLayout, np.ndarray]:
    """Write a site's part of a sum over ``n_sites`` sites as words, with given bits per counter.

    Counters that share a word are not checked: a word is a sum of them in any case. A coordinator that claims too small
    a bound on sums reads nonsense, and a refusal would reveal how large counters are.
    """
    kind, fields, arrays = type(reply).__name__, [], []
    for name in reply.__struct_fields__:
        array = getattr(reply, name)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iu":
            raise RefusedError(f"{kind}.{name} cannot be summed: it is not an integer array")
        fields.append((name, array.dtype.newbyteorder("<").str, list(array.shape)))
        arrays.append(array)
    layout = PartLayout(kind, fields)
    words = []
    for array, (name, _, shape) in zip(arrays, fields, strict=True):
        here = layout.widths(name, shape, widths)
        whole = array.reshape(-1, here.bits.shape[1])[:, (here.bits == BITS).any(axis=0)]  # shorter ones share words
        if array.dtype.itemsize == WORD.itemsize and whole.size:  # and numbers of fewer bits cannot wrap round
            most = int(np.iinfo(array.dtype).max) // n_sites
            if int(whole.max()) > most or int(whole.min()) < -most:
                raise RefusedError(f"{kind}.{name} is too large to be added to the others'")
        if array.size:
            words.append(pack(array, here))
    return layout, words[0] if len(words) == 1 else np.concatenate([np.zeros(0, WORD), *words])


def unflatten(
    layout: PartLayout,
    words: np.ndarray,
    kind: type[Reply],
    widths: Widths | int = BITS,
    most: np.ndarray | None = None,
) -> Reply:
    """Read a sum of words as a reply, with the element types of its parts; ``most`` bounds counters as widths do."""
    fields, start = {}, 0
    for name, code, shape in layout.fields:
        here = layout.widths(name, shape, widths)
        stop = start + here.words()
        array = unpack(words[start:stop], here, np.dtype(code), None if name == PROOF else most)
        if array is None:
            raise RefusedError(f"{layout.kind}.{name} is too large when all are added")
        fields[name], start = array.reshape(shape), stop
    return kind(**fields)


def mask(words: np.ndarray, plus: Sequence[bytes], minus: Sequence[bytes], threads: int = 1) -> None:
    """Add the key streams of some seeds to words and subtract those of others, in place; a seed serves one sum."""

    def mask_task(start: int) -> None:
        here = words[start : start + MASK_TASK]
        streams: list[tuple[np.ufunc, CipherContext]] = [(np.add, _stream(seed, start)) for seed in plus]
        streams += [(np.subtract, _stream(seed, start)) for seed in minus]
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
    return Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(n))


def offsets(seed: bytes, n: int) -> np.ndarray:
    """Return n offsets, uniform modulo 2^64, from a seed of 32 random bytes; a seed serves one sum."""
    return np.frombuffer(key_stream(seed, n * WORD.itemsize), WORD)


def _stream(seed: bytes, word: int) -> CipherContext:
    """Start the mask of a seed at the first word of a thread's task."""
    nonce = (word // MASK_TASK).to_bytes(12, "big")
    # the key stream of GCM is that of counter mode from 2 on, and no tag is needed for what is never sent
    mode = GCM(nonce) if gcm_is_faster() else CTR(nonce + (2).to_bytes(4, "big"))
    return Cipher(AES256(seed), mode).encryptor()


@cache
def gcm_is_faster() -> bool:
    """Whether OpenSSL has wider instructions for GCM here than for counter mode, which is faster everywhere else."""
    here = get_host_cpu_features()
    return all(here.get(feature, False) for feature in _WIDE)
