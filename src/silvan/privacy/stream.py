"""Masks: seeds of 32 bytes, stretched by ChaCha20 and added to words modulo 2^64, as fast as the cipher runs."""

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from silvan.privacy.vector import WORD
from silvan.threads import thread_map

_TASK = 1 << 18  # words that a thread takes at a time
_PIECE = 1 << 14  # words that stay in the processor's cache while all masks are added
_ZEROS = memoryview(bytes(_PIECE * WORD.itemsize))
_BLOCK = 64  # bytes of the cipher's block; a stream can be entered at any


def mask(words: np.ndarray, plus: Sequence[bytes], minus: Sequence[bytes], threads: int = 1) -> None:
    """Add what some seeds stretch to, and take off what others do, in place; a seed is used for one sum."""

    def some(start: int) -> None:
        here = words[start : start + _TASK]
        streams: list[tuple[np.ufunc, CipherContext]] = [(np.add, _stream(seed, start)) for seed in plus]
        streams += [(np.subtract, _stream(seed, start)) for seed in minus]
        buffer = np.empty(_PIECE, WORD)
        for at in range(0, len(here), _PIECE):
            piece = here[at : at + _PIECE]
            drawn = buffer[: len(piece)]
            zeros, target = _ZEROS[: piece.nbytes], drawn.view(np.uint8).data
            for apply, stream in streams:
                stream.update_into(zeros, target)
                apply(piece, drawn, out=piece)

    thread_map(some, range(0, len(words), _TASK), threads)


def stretch(seed: bytes, n: int) -> bytes:
    """Give so many bytes of a seed's stream."""
    return Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(n))


def _stream(seed: bytes, word: int) -> CipherContext:
    """Enter a seed's stream at a word."""
    counter = word * WORD.itemsize // _BLOCK
    return Cipher(ChaCha20(seed, counter.to_bytes(8, "little") + bytes(8)), mode=None).encryptor()
