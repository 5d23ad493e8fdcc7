"""The ``.silvan`` file: safetensors with JSON metadata, described in docs/format.md.

A digest over everything in the file is kept beside the forest's own hash: a file with one changed byte is refused
rather than answered from. It guards against damage and clumsy edits; who made a file is a matter of signatures.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from silvan.data.schema import Schema
from silvan.errors import FormatError, VersionError
from silvan.files import write_whole
from silvan.tree.forest import ARRAYS, Forest

FORMAT = "silvan forest"
VERSION = 1


def save(forest: Forest, path: str | Path) -> None:
    """Write a forest."""
    arrays = {name: getattr(forest, name) for name in ARRAYS}
    if forest.gain is not None:
        arrays["gain"] = np.ascontiguousarray(forest.gain, np.float64)
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
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            version = _version(path, metadata)
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path}: damaged, or not a .silvan file ({type(error).__name__})") from None
    try:
        return _READERS[version](metadata, arrays)
    except FormatError as error:
        raise type(error)(f"{path}: {error}") from None


def _version(path: Path, metadata: dict[str, str]) -> int:
    if metadata.get("format") != FORMAT:
        raise FormatError(f"{path}: not a .silvan file; it does not say format {FORMAT!r}")
    text = metadata.get("version", "")
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise FormatError(f"{path}: its version is not a number")
    version = int(text)
    if version > VERSION:
        raise VersionError(
            f"{path}: written in version {version} of the format, this silvan reads up to {VERSION}; upgrade silvan"
        )
    if version not in _READERS:
        raise FormatError(f"{path}: there is no version {version} of the format")
    return version


def _read_1(metadata: dict[str, str], arrays: dict[str, np.ndarray]) -> Forest:
    for key in ("schema", "combine", "hash", "digest"):
        if key not in metadata:
            raise FormatError(f"the metadata lacks {key!r}")
    for name, dtype in ARRAYS.items():
        if name not in arrays or arrays[name].dtype != dtype:
            raise FormatError(f"array {name!r} is missing or of another type")
    unknown = set(arrays) - set(ARRAYS) - {"gain"}
    if unknown:
        raise FormatError(f"unknown array {sorted(unknown)[0]!r}")
    gain = arrays.pop("gain", None)
    if gain is not None and gain.dtype != np.float64:
        raise FormatError("array 'gain' is of another type")
    stated = metadata.pop("digest")
    if _digest(metadata, arrays if gain is None else {**arrays, "gain": gain}) != stated:
        raise FormatError("its content does not match its digest: it was damaged or changed")
    forest = Forest(
        Schema.from_json(metadata["schema"]),
        **arrays,
        combine=metadata["combine"],  # type: ignore[arg-type]  # checked with the rest
        gain=gain,
    )
    if forest.hash != metadata["hash"]:
        raise FormatError("its trees do not match its hash")
    return forest


_READERS: dict[int, Callable[[dict[str, str], dict[str, np.ndarray]], Forest]] = {1: _read_1}


def _digest(metadata: dict[str, str], arrays: dict[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for key in sorted(metadata):
        digest.update(f"{key}\0{metadata[key]}\0".encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
