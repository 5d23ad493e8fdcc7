"""The ``.silvan`` file: safetensors with JSON metadata, described in docs/format.md.

A digest over all that the file says is kept beside the forest's own hash: a file whose content was changed by
one bit is refused rather than answered from. It guards against damage and clumsy edits; who made a file is a
matter of signatures. A file may be made to harm, so what it says is checked as if there were no digest.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as safetensors_bytes

from silvan.data.schema import Schema
from silvan.errors import FormatError, VersionError
from silvan.files import write_whole
from silvan.tree.forest import ARRAYS, EXTRA_ARRAYS, STAGE_ARRAYS, Forest

FORMAT = "silvan forest"
VERSION = 3
"""The newest version; a file is written in the oldest that can express its forest."""

_TYPES = {
    np.bool_: "BOOL",
    np.int32: "I32",
    np.int64: "I64",
    np.uint64: "U64",
    np.float32: "F32",
    np.float64: "F64",
}
"""What safetensors calls the element types."""


_OLDEST = {"mean": "1", "vote": "2", "stages": "2", "log_odds": "3"}
"""The first version that knows a way of combining trees."""


def save(forest: Forest, path: str | Path) -> None:
    """Write a forest to a file."""
    write_whole(path, to_bytes(forest))


def to_bytes(forest: Forest) -> bytes:
    """Write a forest."""
    named = ((name, getattr(forest, name)) for name in (*ARRAYS, *EXTRA_ARRAYS, "gain"))
    arrays = {name: array for name, array in named if array is not None}
    metadata = {
        "format": FORMAT,
        "version": _OLDEST[forest.combine],
        "schema": forest.schema.to_json(),
        "combine": forest.combine,
        "hash": forest.hash,
    }
    metadata["digest"] = _digest(metadata, arrays)
    return _canonical(safetensors_bytes(arrays, metadata))


def _canonical(data: bytes) -> bytes:
    """Put the header in order: safetensors writes metadata as it comes, and one forest should have one file."""
    size = int.from_bytes(data[:8], "little")
    header = msgspec.json.encode(msgspec.json.decode(data[8 : 8 + size]), order="sorted")
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def load(path: str | Path) -> Forest:
    """Read a file."""
    try:
        return from_bytes(Path(path).read_bytes())
    except FormatError as error:
        raise type(error)(f"{path}: {error}") from None


def from_bytes(data: bytes) -> Forest:
    """Read a forest of any version ever written, checking all of it."""
    try:
        tensors = dict(deserialize(data))  # type: ignore[no-untyped-call]
        size = int.from_bytes(data[:8], "little")
        metadata = msgspec.json.decode(data[8 : 8 + size], type=_Header).metadata
    except (SafetensorError, msgspec.DecodeError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise FormatError(f"damaged, or not a .silvan file ({type(error).__name__})") from None
    return _forest(metadata, _READERS[_version(metadata)](metadata, tensors))


class _Header(msgspec.Struct):
    """What of a safetensors header is ours: everything else in it describes arrays."""

    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


def _version(metadata: dict[str, str]) -> int:
    if metadata.get("format") != FORMAT:
        raise FormatError(f"not a .silvan file; it does not say format {FORMAT!r}")
    text = metadata.get("version", "")
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise FormatError("its version is not a number")
    version = int(text)
    if version > VERSION:
        raise VersionError(
            f"written in version {version} of the format, this silvan reads up to {VERSION}; upgrade silvan"
        )
    if version not in _READERS:
        raise FormatError(f"there is no version {version} of the format")
    return version


def _read_1(metadata: dict[str, str], tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    arrays = _read_arrays(metadata, tensors, {**ARRAYS, "gain": np.float64})
    if metadata["combine"] != "mean":
        raise FormatError(f"version 1 of the format has no combine {metadata['combine'][:40]!r}")
    return arrays


def _read_2(metadata: dict[str, str], tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    arrays = _read_arrays(metadata, tensors, {**ARRAYS, **STAGE_ARRAYS, "gain": np.float64})
    if metadata["combine"] == "log_odds":
        raise FormatError("version 2 of the format has no combine 'log_odds'")
    return arrays


def _read_3(metadata: dict[str, str], tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    return _read_arrays(metadata, tensors, {**ARRAYS, **EXTRA_ARRAYS, "gain": np.float64})


def _read_arrays(metadata: dict[str, str], tensors: dict[str, Any], expected: dict[str, Any]) -> dict[str, np.ndarray]:
    for key in ("schema", "combine", "hash", "digest"):
        if key not in metadata:
            raise FormatError(f"the metadata lacks {key!r}")
    arrays = {}
    for name in sorted(tensors.keys() | ARRAYS.keys()):
        if name not in expected:
            raise FormatError(f"unknown array {name[:40]!r}")
        if name not in tensors or tensors[name]["dtype"] != _TYPES[expected[name]]:
            raise FormatError(f"array {name!r} is missing or of another type")
        stored = np.dtype(expected[name]).newbyteorder("<")
        arrays[name] = np.frombuffer(tensors[name]["data"], stored).reshape(tensors[name]["shape"])
    if _digest(metadata, arrays) != metadata["digest"]:
        raise FormatError("its content does not match its digest: it was damaged or changed")
    return arrays


_READERS: dict[int, Callable[[dict[str, str], dict[str, Any]], dict[str, np.ndarray]]] = {
    1: _read_1,
    2: _read_2,
    3: _read_3,
}


def _forest(metadata: dict[str, str], arrays: dict[str, np.ndarray]) -> Forest:
    combine: Any = metadata["combine"]  # any text; checked with the rest
    forest = Forest(Schema.from_json(metadata["schema"]), **arrays, combine=combine)
    if forest.hash != metadata["hash"]:
        raise FormatError("its trees do not match its hash")
    return forest


def _digest(metadata: dict[str, str], arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for key in sorted(set(metadata) - {"digest"}):
        digest.update(f"{key}\0{metadata[key]}\0".encode())
    for name in sorted(arrays):
        array = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
