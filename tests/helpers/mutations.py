"""Random changes to messages: bits, bytes, lengths, stretches, pieces of other messages, single fields."""

import random
import struct
import warnings
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from silvan.federation import wire

_LENGTHS = [0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 64) - 1]
_NUMBERS = [0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 0.5, float("nan"), float("inf"), -1e308]


class Mutator:
    """Changes messages, the same way for the same seed."""

    def __init__(self, seed: int, pool: list[bytes]) -> None:
        self.random, self.pool = random.Random(seed), pool  # noqa: S311

    def __call__(self, data: bytes) -> bytes:
        """Changes a message, one to four times."""
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            data = self.random.choice(
                (
                    self.flip,
                    self.byte,
                    self.length,
                    self.cut,
                    self.repeat,
                    self.splice,
                    self.field,
                    self.field,
                    self.field,
                )
            )(data)
        return data

    def place(self, data: bytes) -> int:
        return self.random.randrange(len(data)) if data else 0

    def flip(self, data: bytes) -> bytes:
        i = self.place(data)
        return data[:i] + bytes([data[i] ^ (1 << self.random.randrange(8))]) + data[i + 1 :] if data else b"\0"

    def byte(self, data: bytes) -> bytes:
        i = self.place(data)
        return (
            data[:i]
            + bytes([self.random.choice((0, 0x7F, 0x80, 0xC1, 0xFF, self.random.randrange(256)))])
            + data[i + 1 :]
        )

    def length(self, data: bytes) -> bytes:
        """Writes a large or a small number over some bytes, as a length might be."""
        i, code = self.place(data), self.random.choice((">H", ">I", "<I", "<Q", ">Q"))
        number = self.random.choice(_LENGTHS) & ((1 << (8 * struct.calcsize(code))) - 1)
        return data[:i] + struct.pack(code, number) + data[i + struct.calcsize(code) :]

    def cut(self, data: bytes) -> bytes:
        i, j = sorted((self.place(data), self.place(data)))
        return data[:i] + data[j:] if self.random.random() < 0.5 else data[:j]

    def repeat(self, data: bytes) -> bytes:
        i, j = sorted((self.place(data), self.place(data)))
        return data[:j] + data[i : min(j, i + 4096)] * self.random.choice((1, 2, 16)) + data[j:]

    def splice(self, data: bytes) -> bytes:
        other = self.random.choice(self.pool)
        i, j = self.place(data), self.place(other)
        return data[:i] + other[j : j + self.random.choice((1, 8, 64, 1024))] + data[i:]

    def field(self, data: bytes) -> bytes:
        """Changes one thing inside, if the message can be parsed; its parts may be messages, too."""
        try:
            inside = msgspec.msgpack.decode(data, ext_hook=lambda code, d: wire.unpack_array(d))
        except (ValueError, msgspec.DecodeError):
            return self.flip(data)
        with suppress(TypeError, OverflowError, ValueError):
            return wire._ENCODER.encode(self.changed(inside))
        return data

    def changed(self, value: Any) -> Any:
        """Returns another value, or the same with something else inside."""
        pick = self.random
        if isinstance(value, dict) and value:
            name = pick.choice(list(value))
            return {**value, name: self.changed(value[name])} if pick.random() < 0.95 else {name: value[name]}
        if isinstance(value, list) and value and pick.random() < 0.8:
            i = pick.randrange(len(value))
            return [*value[:i], self.changed(value[i]), *value[i + 1 :]]
        if isinstance(value, bytes):
            return self.field(value) if value[:1] >= b"\x80" and pick.random() < 0.7 else self.flip(value)
        if isinstance(value, np.ndarray):
            return self.array(value)
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float):
            numbers = [number for number in _NUMBERS if isinstance(number, type(value)) or pick.random() < 0.1]
            return pick.choice([*numbers, value + 1, value - 1, -value])
        if isinstance(value, str) and pick.random() < 0.7:
            return pick.choice([value[:-1], value + " ", value[::-1], value.upper(), value * 2, "", "site 0", "\x00"])
        return pick.choice([None, "", "text", b"", [], {}, 0, *_NUMBERS[:3], [value, value]])

    def array(self, value: np.ndarray) -> np.ndarray:
        pick, changed = self.random, value.copy()
        if value.size and pick.random() < 0.6:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                extremes = [0, 1, -1, 2**31 - 1, 2**62] if value.dtype.kind in "iub" else [0.0, np.nan, np.inf, -1e30]
                changed.reshape(-1)[pick.randrange(value.size)] = np.array(pick.choice(extremes)).astype(value.dtype)
            return changed
        return pick.choice(
            [
                value[:0],
                value[:-1],
                value[None] if value.ndim < 4 else value,
                value.reshape(-1),
                np.concatenate([value, value]),
            ]
            if value.ndim
            else [np.zeros(3, value.dtype)]
        )
