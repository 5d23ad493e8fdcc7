"""Keyed hashes of a model's training rows, so that it is not evaluated on them by mistake.

They are in a separate file with their key, for the owner only: anybody with the file and a complete row can find out
whether the row was used for training. So the file is never passed on with a run, and private studies have none.
"""

import hashlib
import secrets
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from silvan.data.encode import encode_features, encode_label
from silvan.data.schema import Schema
from silvan.data.table import read_table
from silvan.errors import FormatError
from silvan.federation.federation import Federation
from silvan.study.run_folder import LEARNT
from silvan.util.files import write_whole

_KEY, _HASH = 16, 8


class LearntRows(msgspec.Struct, frozen=True):
    """The contents of the file: the schema for reading rows, the key, and sorted hashes."""

    schema: str
    key: bytes
    hashes: bytes
    format: str = "silvan learned rows"


def keep_learnt_rows(federation: Federation, folder: Path) -> None:
    """Write the hashes of all training rows, if all tables are in this process."""
    key, schema = secrets.token_bytes(_KEY), federation.schema
    parts = (site.rows_to_sample(schema) for site in federation.local_sites.values())
    found = [_hashes(some.X, some.y, key) for part in parts for some in part.pieces()]  # some of the rows at a time
    hashes = np.unique(np.concatenate([np.zeros(0, np.uint64), *found]))
    write_whole(folder / LEARNT, msgspec.msgpack.encode(LearntRows(schema.hash, key, hashes.tobytes())), private=True)


def count_learnt_rows(folder: Path, schema: Schema, table: Any) -> tuple[int, int] | None:
    """Return how many rows of a table are training rows, and its number of rows; None if unknown."""
    path = folder / LEARNT
    if not path.is_file():
        return None
    try:
        kept = msgspec.msgpack.decode(path.read_bytes(), type=LearntRows)
        hashes = np.frombuffer(kept.hashes, np.uint64)
    except (msgspec.DecodeError, ValueError):
        raise FormatError(f"{path}: damaged; remove it, and training rows are no longer recognised") from None
    frame = read_table(table, schema.label.name, schema)
    if kept.schema != schema.hash or any(name not in frame.columns for name in schema.columns):
        return None
    X, y = encode_features(frame, schema), encode_label(frame, schema)
    mine = _hashes(X, y, kept.key)
    return int(np.isin(mine, hashes).sum()), len(mine)


def _hashes(X: Any, y: Any, key: bytes) -> np.ndarray:
    """Return a keyed hash of each row: its cells as the schema reads them, and its label."""
    cells = np.asarray(X, np.float32) + np.float32(0.0)  # no negative zero
    cells[np.isnan(cells)] = np.float32("nan")
    label = np.asarray(y, np.float64).reshape(len(cells), 1) + 0.0
    rows = np.concatenate([np.ascontiguousarray(cells).view(np.uint8), label.view(np.uint8)], axis=1)
    data, width, empty = memoryview(rows.tobytes()), rows.shape[1], hashlib.blake2b(key=key, digest_size=_HASH)
    made = []
    for start in range(0, len(data), width):
        hasher = empty.copy()
        hasher.update(data[start : start + width])
        made.append(hasher.digest())
    return np.frombuffer(b"".join(made), np.uint64)
