"""Reading and writing ``.silvan`` files: safetensors with JSON metadata, described in docs/format.md.

A digest over the whole content is kept beside the forest's own hash: a file whose content was changed by one bit
is refused. It guards against damage and clumsy edits, not against forgery: that takes signatures. A file may be
made to harm, so its content is checked as if there were no digest.
"""

from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.forest.arrays import ARRAYS, EXTRA_ARRAYS, ForestArrays
from silvan.forest.tensors import array_of, check_digest, check_version, is_of, pack, unpack
from silvan.util.files import write_whole

F = TypeVar("F", bound=ForestArrays)
"""The class of forest to make, which checks its arrays."""

FORMAT = "silvan forest"
VERSION = 1


def save(forest: ForestArrays, path: str | Path) -> None:
    """Write a forest to a file."""
    write_whole(path, to_bytes(forest))


def to_bytes(forest: ForestArrays) -> bytes:
    """Return the content of a file that holds a forest."""
    named = ((name, getattr(forest, name)) for name in (*ARRAYS, *EXTRA_ARRAYS, "gain"))
    arrays = {name: array for name, array in named if array is not None}
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
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
    """Read the content of a file, checking all of it."""
    metadata, tensors = unpack(data, ".silvan file")
    if metadata.get("format") != FORMAT:
        raise FormatError(f"not a .silvan file; it does not say format {FORMAT!r}")
    check_version(metadata, VERSION)
    arrays = _read_arrays(metadata, tensors)
    combine: Any = metadata["combine"]  # any text; checked with the rest
    forest = make(Schema.from_json(metadata["schema"]), **arrays, combine=combine)
    if forest.hash != metadata["hash"]:
        raise FormatError("its trees do not match its hash")
    return forest


def _read_arrays(metadata: dict[str, str], tensors: dict[str, Any]) -> dict[str, np.ndarray]:
    expected: dict[str, Any] = {**ARRAYS, **EXTRA_ARRAYS, "gain": np.float64}
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
