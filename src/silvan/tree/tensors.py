"""Arrays and a few words in one file: safetensors with JSON metadata, in one form, with a digest over all of it."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save as safetensors_bytes

from silvan.errors import FormatError, VersionError

_NAMES = {
    "BOOL": np.bool_,
    "I32": np.int32,
    "I64": np.int64,
    "U64": np.uint64,
    "F32": np.float32,
    "F64": np.float64,
}
"""What safetensors calls the element types that we use."""


class _Header(msgspec.Struct):
    """What of a safetensors header is ours: everything else in it describes arrays."""

    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


def write_tensors(format_: str, version: int, words: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Write arrays and words; the same ones always give the same bytes."""
    metadata = {"format": format_, "version": str(version), **words}
    metadata["digest"] = _digest(metadata, arrays)
    data = safetensors_bytes(dict(arrays), metadata)
    size = int.from_bytes(data[:8], "little")
    header = msgspec.json.encode(msgspec.json.decode(data[8 : 8 + size]), order="sorted")
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def read_tensors(
    data: bytes, format_: str, version: int, words: tuple[str, ...], types: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Read what ``write_tensors`` wrote: exactly these arrays, of these types."""
    try:
        tensors = dict(deserialize(data))  # type: ignore[no-untyped-call]
        size = int.from_bytes(data[:8], "little")
        metadata = msgspec.json.decode(data[8 : 8 + size], type=_Header).metadata
    except (SafetensorError, msgspec.DecodeError, UnicodeDecodeError, ValueError, TypeError) as error:
        raise FormatError(f"damaged, or not a {format_} ({type(error).__name__})") from None
    if metadata.get("format") != format_:
        raise FormatError(f"not a {format_}; it does not say format {format_!r}")
    if metadata.get("version") != str(version):
        text = metadata.get("version", "")
        if text.isascii() and text.isdigit() and len(text) < 9 and int(text) > version:
            raise VersionError(f"written in version {text}, this silvan reads up to {version}; upgrade silvan")
        raise FormatError("its version is none that ever was")
    lacking = [word for word in (*words, "digest") if word not in metadata]
    if lacking:
        raise FormatError(f"the metadata lacks {lacking[0]!r}")
    if tensors.keys() != types.keys():
        raise FormatError("an array is missing, or one too many")
    arrays = {}
    for name, dtype in types.items():
        if _NAMES.get(tensors[name]["dtype"]) is not dtype:
            raise FormatError(f"array {name!r} is of another type")
        stored = np.dtype(dtype).newbyteorder("<")
        array = np.frombuffer(tensors[name]["data"], stored).reshape(tensors[name]["shape"])
        arrays[name] = array.astype(dtype)
    if _digest(metadata, arrays) != metadata["digest"]:
        raise FormatError("its content does not match its digest: it was damaged or changed")
    return metadata, arrays


def _digest(metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for key in sorted(set(metadata) - {"digest"}):
        digest.update(f"{key}\0{metadata[key]}\0".encode())
    for name in sorted(arrays):
        array = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
