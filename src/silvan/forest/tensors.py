"""Files of arrays and some text: safetensors with JSON metadata in a fixed order, and a digest of everything."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as safetensors_bytes

from silvan.errors import FormatError, VersionError

_TYPES = {np.bool_: "BOOL", np.int32: "I32", np.int64: "I64", np.uint64: "U64", np.float32: "F32", np.float64: "F64"}
"""The names of the element types in safetensors."""


class _Header(msgspec.Struct):
    """Our part of a safetensors header; the rest describes arrays."""

    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


def content_digest(metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the digest of everything except the digest itself."""
    digest = hashlib.sha256()
    for key in sorted(set(metadata) - {"digest"}):
        digest.update(f"{key}\0{metadata[key]}\0".encode())
    for name in sorted(arrays):
        array = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _check_version(metadata: Mapping[str, str], version: int) -> None:
    """Raise ``VersionError`` if a file has another version of its format, ``FormatError`` if it has none."""
    text = metadata.get("version", "")
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise FormatError("its version is not a number")
    if text != str(version):
        raise VersionError(
            f"written in version {text} of the format, this silvan reads {version}; use the silvan that wrote it"
        )


def write_tensors(format_: str, version: int, words: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return arrays and texts, with a digest, as bytes; equal content gives equal bytes."""
    metadata = {"format": format_, "version": str(version), **words}
    data = safetensors_bytes(dict(arrays), {**metadata, "digest": content_digest(metadata, arrays)})
    size = int.from_bytes(data[:8], "little")
    # safetensors writes metadata in the given order
    header = msgspec.json.encode(msgspec.json.decode(data[8 : 8 + size]), order="sorted")
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def read_tensors(
    data: bytes,
    format_: str,
    version: int,
    words: tuple[str, ...],
    types: Mapping[str, Any],
    optional: Mapping[str, Any] | None = None,
) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Read the output of ``write_tensors``: exactly these arrays with these types, and possibly optional ones."""
    try:
        tensors = dict(deserialize(data))  # type: ignore[no-untyped-call]
        size = int.from_bytes(data[:8], "little")
        metadata = msgspec.json.decode(data[8 : 8 + size], type=_Header).metadata
    except (SafetensorError, msgspec.DecodeError, UnicodeDecodeError, ValueError, TypeError):
        raise FormatError(f"damaged, or not a {format_}") from None
    if metadata.get("format") != format_:
        raise FormatError(f"not a {format_}; it does not say format {format_!r}")
    _check_version(metadata, version)
    lacking = [word for word in (*words, "digest") if word not in metadata]
    if lacking:
        raise FormatError(f"the metadata lacks {lacking[0]!r}")
    expected, arrays = {**types, **(optional or {})}, {}
    for name in sorted(tensors.keys() | types.keys()):
        if name not in expected:
            raise FormatError(f"unknown array {name[:40]!r}")
        if name not in tensors or tensors[name]["dtype"] != _TYPES[expected[name]]:
            raise FormatError(f"array {name!r} is missing or of another type")
        stored = np.frombuffer(tensors[name]["data"], np.dtype(expected[name]).newbyteorder("<"))
        arrays[name] = stored.reshape(tensors[name]["shape"]).astype(expected[name])
    if content_digest(metadata, arrays) != metadata["digest"]:
        raise FormatError("its content does not match its digest: it was damaged or changed")
    return metadata, arrays
