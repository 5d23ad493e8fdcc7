"""Bytes on the wire: msgpack structs, with arrays as a type of their own.

An array travels as a small header and its little-endian elements; there is a short list of element types. Two steps
make it smaller, and both are undone on arrival: integers are narrowed to as few bytes as possible, and arrays of mostly
zeros are deflated. Headers are checked against the actual bytes and a cap before anything is allocated. Code that only
reads a message's counters can use them as sent, without a wider copy.
"""

import struct
import zlib
from collections.abc import Mapping
from math import prod
from typing import Any, TypeVar

import msgspec
import numpy as np

from silvan.errors import WireError

MAX_MESSAGE = 1 << 30
"""Maximum size of a message, and of its arrays when unpacked, in bytes."""

_ARRAY = 1  # the one msgpack extension in use
_DTYPES = tuple(
    np.dtype(code) for code in ("|b1", "|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8")
)
_NUMBER = {dtype: i for i, dtype in enumerate(_DTYPES)}
_HEADER = struct.Struct("<BBBB")  # element type, element type as sent, deflated or not, dimensions
_MAX_DIMENSIONS = 4
_SPARSE = 8  # deflate if fewer than one element in this many is not zero
_MEANT = "meant"  # the metadata entry with the original element type of a narrowed array

T = TypeVar("T", bound=msgspec.Struct)


def encode(message: msgspec.Struct) -> bytes:
    """Write a message."""
    return _ENCODER.encode(message)


def decode(data: bytes, kind: type[T], *, narrow: bool = False) -> T:
    """Read a message of a given type; raise ``WireError`` for anything else. See ``unpack_array`` for ``narrow``."""
    if len(data) > MAX_MESSAGE:
        raise WireError(f"a message of {len(data)} bytes is over the limit of {MAX_MESSAGE}")
    try:
        return msgspec.msgpack.decode(data, type=kind, ext_hook=_Unpacker(narrow).read)
    except WireError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError, RecursionError):
        # the text of the error may quote the data: name only the expected type
        raise WireError(f"not what {kind.__name__} should be, or cut short") from None


def _write_extension(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return msgspec.msgpack.Ext(_ARRAY, pack_array(value))
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a message cannot hold values of type {type(value).__name__}")


class _Unpacker:
    """Reads the arrays of one message, which share one limit on their size."""

    def __init__(self, narrow: bool) -> None:
        self.room, self.narrow = MAX_MESSAGE, narrow

    def read(self, code: int, data: memoryview) -> np.ndarray:
        if code != _ARRAY:
            raise WireError(f"unknown extension {code}")
        array = unpack_array(data, self.room, narrow=self.narrow)
        self.room -= array.size * element_type(array).itemsize
        return array


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_write_extension)


def pack_array(array: np.ndarray) -> bytes:
    """Write an array: header, shape, elements."""
    dtype = array.dtype.newbyteorder("<")
    if dtype not in _NUMBER:
        raise TypeError(f"an array of {array.dtype} cannot be sent")
    if array.ndim > _MAX_DIMENSIONS:
        raise TypeError(f"an array of {array.ndim} dimensions cannot be sent")
    array = np.asarray(array, dtype, order="C")
    sent = array.astype(_narrow(array), copy=False)
    data: Any = sent.reshape(-1).view(np.uint8).data if sent.size else b""
    deflate = int(sent.size >= 256 and np.count_nonzero(sent) * _SPARSE < sent.size)
    if deflate:
        data = zlib.compress(data, 1)
    shape = struct.pack(f"<{array.ndim}Q", *array.shape)
    return b"".join((_HEADER.pack(_NUMBER[dtype], _NUMBER[sent.dtype], deflate, array.ndim), shape, data))


def _narrow(array: np.ndarray) -> np.dtype:
    """Choose the shortest element type that holds all values."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize == 1 or array.size == 0:
        return array.dtype
    low, high = int(array.min()), int(array.max())
    narrow = np.min_scalar_type(high if low >= 0 else min(low, -1 - high)).newbyteorder("<")
    return narrow if narrow.itemsize < array.dtype.itemsize else array.dtype


def element_type(array: np.ndarray) -> np.dtype:
    """Return the original element type of an array, also if it was read narrowed."""
    metadata: Mapping[str, Any] = array.dtype.metadata or {}
    meant: np.dtype = metadata.get(_MEANT, array.dtype)
    return meant


def unpack_array(data: bytes | memoryview, room: int = MAX_MESSAGE, *, narrow: bool = False) -> np.ndarray:
    """Read an array of at most ``room`` bytes, trusting nothing.

    With ``narrow``, unsigned integers that were sent in fewer bytes stay narrow and read-only; ``element_type`` returns
    their original type.
    """
    data = memoryview(data)
    if len(data) < _HEADER.size:
        raise WireError("an array is cut short")
    kind, sent_kind, deflated, dimensions = _HEADER.unpack(data[: _HEADER.size])
    if kind >= len(_DTYPES) or sent_kind >= len(_DTYPES) or deflated > 1 or dimensions > _MAX_DIMENSIONS:
        raise WireError("an array has an unknown header")
    start = _HEADER.size + 8 * dimensions
    if len(data) < start:
        raise WireError("an array is cut short")
    shape = struct.unpack(f"<{dimensions}Q", data[_HEADER.size : start])
    dtype, sent = _DTYPES[kind], _DTYPES[sent_kind]
    if sent != dtype and (sent.kind not in "iu" or dtype.kind not in "iu" or sent.itemsize >= dtype.itemsize):
        raise WireError("an array has an unknown header")
    # an empty array may still claim a large dimension, for which later code would allocate memory
    if prod(max(n, 1) for n in shape) * dtype.itemsize > room:
        raise WireError("an array is over the limit")
    size = prod(shape)
    body = _inflate(data[start:], size * sent.itemsize) if deflated else data[start:]
    if len(body) != size * sent.itemsize:
        raise WireError("an array does not match its shape")
    array = np.frombuffer(body, sent)
    if sent.kind == "b" and size and array.view(np.uint8).max() > 1:
        raise WireError("a truth value is neither 0 nor 1")
    if narrow and sent.kind == "u" and sent != dtype:
        array = array.view(np.dtype(sent, metadata={_MEANT: dtype}))
        array = array if array.flags.aligned else array.copy()
        array.flags.writeable = False
        return array.reshape(shape)
    return array.astype(dtype).reshape(shape)


def _inflate(data: memoryview, size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(data, size + 1)
    except zlib.error:
        raise WireError("an array cannot be inflated") from None
    if len(body) != size or not stream.eof or stream.unused_data:
        raise WireError("an array does not match its shape")
    return body
