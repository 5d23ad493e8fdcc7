"""Reading and writing ``.silvan`` files: safetensors with JSON metadata, described in docs/format.md.

A digest over the whole content is kept beside the forest's own hash: a file whose content was changed by one bit
is refused. It guards against damage and clumsy edits, not against forgery: that takes signatures. A file may be
made to harm, so its content is checked as if there were no digest.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from silvan.data.schema import Schema
from silvan.errors import FormatError, VersionError
from silvan.forest.arrays import ARRAYS, EXTRA_ARRAYS, STAGE_ARRAYS, ForestArrays
from silvan.forest.files.tensors import array_of, check_digest, is_of, pack, unpack
from silvan.util.files import write_whole

F = TypeVar("F", bound=ForestArrays)
"""The class of forest to make, which checks its arrays."""

FORMAT = "silvan forest"
VERSION = 3
"""The newest version; a file is written in the oldest that can express its forest."""

_OLDEST = {"mean": "1", "vote": "2", "stages": "2", "log_odds": "3"}
"""The first version that knows a way of combining trees."""


def save(forest: ForestArrays, path: str | Path) -> None:
    """Write a forest to a file."""
    write_whole(path, to_bytes(forest))


def to_bytes(forest: ForestArrays) -> bytes:
    """Return the content of a file that holds a forest."""
    named = ((name, getattr(forest, name)) for name in (*ARRAYS, *EXTRA_ARRAYS, "gain"))
    arrays = {name: array for name, array in named if array is not None}
    metadata = {
        "format": FORMAT,
        "version": _OLDEST[forest.combine],
        "schema": forest.schema.to_json(),
        "combine": forest.combine,
        "hash": forest.hash,
    }
    return pack(metadata, arrays)


def load(path: str | Path, make: type[F]) -> F:
    """Read a file."""
    try:
        return from_bytes(Path(path).read_bytes(), make)
    except FormatError as error:
        raise type(error)(f"{path}: {error}") from None


def from_bytes(data: bytes, make: type[F]) -> F:
    """Read the content of a file of any version ever written, checking all of it."""
    metadata, tensors = unpack(data, ".silvan file")
    arrays = _READERS[_version(metadata)](metadata, tensors)
    combine: Any = metadata["combine"]  # any text; checked with the rest
    forest = make(Schema.from_json(metadata["schema"]), **arrays, combine=combine)
    if forest.hash != metadata["hash"]:
        raise FormatError("its trees do not match its hash")
    return forest


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
        if name not in tensors or not is_of(tensors[name], expected[name]):
            raise FormatError(f"array {name!r} is missing or of another type")
        arrays[name] = array_of(tensors[name], expected[name])
    check_digest(metadata, arrays)
    return arrays


_READERS: dict[int, Callable[[dict[str, str], dict[str, Any]], dict[str, np.ndarray]]] = {
    1: _read_1,
    2: _read_2,
    3: _read_3,
}
