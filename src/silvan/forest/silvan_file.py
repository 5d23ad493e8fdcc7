"""Reading and writing ``.silvan`` files: safetensors with JSON metadata, described in docs/format.md.

A digest over the whole content is stored beside the forest's own hash, so a file with a single changed bit is refused.
The digest protects against damage and clumsy edits, not against forgery, which needs signatures. A file may be
malicious, so its content is checked as if there were no digest.
"""

from typing import Any, TypeVar

import numpy as np

from silvan.data.schema import Schema
from silvan.errors import FormatError
from silvan.forest.arrays import ARRAYS, EXTRA_ARRAYS, ForestArrays
from silvan.forest.tensors import read_tensors, write_tensors

F = TypeVar("F", bound=ForestArrays)  # the class of forest to make, which checks its arrays

FORMAT = "silvan forest"
VERSION = 1

_OPTIONAL = {**EXTRA_ARRAYS, "gain": np.float64}


def to_bytes(forest: ForestArrays) -> bytes:
    """Return the content of a forest's file."""
    named = ((name, getattr(forest, name)) for name in (*ARRAYS, *_OPTIONAL))
    arrays = {name: array for name, array in named if array is not None}
    words = {"schema": forest.schema.to_json(), "combine": forest.combine, "hash": forest.hash}
    return write_tensors(FORMAT, VERSION, words, arrays)


def from_bytes(data: bytes, make: type[F]) -> F:
    """Read the content of a file and check all of it."""
    words, arrays = read_tensors(data, FORMAT, VERSION, ("schema", "combine", "hash"), ARRAYS, _OPTIONAL)
    combine: Any = words["combine"]  # any text; checked together with the arrays
    forest = make(Schema.from_json(words["schema"]), **arrays, combine=combine)
    if forest.hash != words["hash"]:
        raise FormatError("its trees do not match its hash")
    return forest
