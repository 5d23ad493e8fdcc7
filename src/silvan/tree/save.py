"""The ``.silvan`` file: safetensors with JSON metadata, described in docs/format.md.

A digest over all that the file says is kept beside the forest's own hash: a file whose content was changed by
one bit is refused rather than answered from. It guards against damage and clumsy edits; who made a file is a
matter of signatures. A file may be made to harm, so what it says is checked as if there were no digest.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from silvan.data.schema import Schema
from silvan.errors import FormatError, VersionError
from silvan.files import write_whole
from silvan.tree.forest import ARRAYS, Forest

FORMAT = "silvan forest"
VERSION = 1

_TYPES = {
    np.bool_: "BOOL",
    np.int32: "I32",
    np.int64: "I64",
    np.uint64: "U64",
    np.float32: "F32",
    np.float64: "F64",
}
"""What safetensors calls the element types."""


def save(forest: Forest, path: str | Path) -> None:
    """Write a forest."""
    arrays = {name: getattr(forest, name) for name in ARRAYS}
    if forest.gain is not None:
        arrays["gain"] = forest.gain
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "schema": forest.schema.to_json(),
        "combine": forest.combine,
        "hash": forest.hash,
    }
    metadata["digest"] = _digest(metadata, arrays)
    write_whole(path, to_bytes(arrays, metadata))


def load(path: str | Path) -> Forest:
    """Read a forest of any version ever written, checking all of it."""
    path = Path(path)
    with path.open("rb"):
        pass  # a file that is not there or not ours to read is not a damaged one
    try:
        return _forest(*_content(path))
    except FormatError as error:
        raise type(error)(f"{path}: {error}") from None


def _content(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            return metadata, _READERS[_version(metadata)](metadata, file)
    except FormatError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise FormatError(f"damaged, or not a .silvan file ({type(error).__name__})") from None


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


def _read_1(metadata: dict[str, str], file: Any) -> dict[str, np.ndarray]:
    for key in ("schema", "combine", "hash", "digest"):
        if key not in metadata:
            raise FormatError(f"the metadata lacks {key!r}")
    names = set(file.keys())
    expected = {**ARRAYS, "gain": np.float64}
    for name in sorted(names | set(ARRAYS)):
        if name not in expected:
            raise FormatError(f"unknown array {name[:40]!r}")
        # compared before anything is read: safetensors fails in many ways on types that NumPy lacks
        if name not in names or file.get_slice(name).get_dtype() != _TYPES[expected[name]]:
            raise FormatError(f"array {name!r} is missing or of another type")
    arrays = {name: file.get_tensor(name) for name in sorted(names)}
    if _digest(metadata, arrays) != metadata["digest"]:
        raise FormatError("its content does not match its digest: it was damaged or changed")
    return arrays


_READERS: dict[int, Callable[[dict[str, str], Any], dict[str, np.ndarray]]] = {1: _read_1}


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
