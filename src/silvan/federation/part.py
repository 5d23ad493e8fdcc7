"""Some of a site's rows, encoded: in memory, or in files and seen a piece at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from silvan.data.batches import Batched, Whole
from silvan.data.bins.bins import Bins
from silvan.data.disk_arrays import Folder, Stored
from silvan.data.encode import encode_features, encode_label
from silvan.data.groups import Groups
from silvan.data.holdout import HeldOut
from silvan.data.schema import Schema
from silvan.data.typed_table import Frame
from silvan.errors import InputError
from silvan.federation.store import digest
from silvan.forest.forest import Forest
from silvan.forest.predict import scores_if_any
from silvan.tree.sampling import one_of_each

_PIECE = 1 << 17
"""Maximum rows in a piece: every tree reads their bins, which should fit into the cache."""


Block = tuple[np.ndarray, np.ndarray]
"""Encoded rows: features and labels."""


def encode_rows(frame: Frame, schema: Schema, *, strict: bool, first_row: int = 1, where: str = "") -> Block:
    """Encode features and labels; errors name the row, and ``where`` the rows are."""
    try:
        X = encode_features(frame, schema, fill_absent=True, strict=strict, first_row=first_row)
        return X, encode_label(frame, schema, strict=strict, first_row=first_row)
    except InputError as error:
        if not where:
            raise
        raise type(error)(f"in {where}: {error}") from None


def encoded_columns(schema: Schema, table: Whole | Batched) -> list[str]:
    """Return the columns of a table that are encoded by a schema."""
    return [name for name in dict.fromkeys((*schema.columns, *schema.label.columns)) if name in table.names]


@dataclass(frozen=True)
class Part:
    """Some of a site's rows, encoded."""

    X: np.ndarray
    y: np.ndarray
    row_keys: np.ndarray

    def __len__(self) -> int:
        return len(self.X)

    @property
    def of_persons(self) -> bool:
        """Whether rows are keyed by persons, who may have several rows."""
        return self.row_keys.dtype.names is not None

    @staticmethod
    def joined(parts: Sequence["Part"]) -> "Part":
        """Return the rows of several parts as one."""
        X, y, keys = zip(*((part.X, part.y, part.row_keys) for part in parts), strict=True)
        return Part(np.concatenate(X), np.concatenate(y), np.concatenate(keys))

    def some(self, rows: np.ndarray) -> "Part":
        """Return some of the rows."""
        return Part(self.X[rows], self.y[rows], self.row_keys[rows])

    def one_of_each(self) -> "Part":
        """Return one row of every person."""
        if not self.of_persons:
            return self
        rows = self.some(one_of_each(self.row_keys))
        return replace(rows, row_keys=np.ascontiguousarray(rows.row_keys["person"]))

    def pieces(self) -> "Iterator[Part]":
        """Yield the rows in pieces that fit into memory; here there is one piece."""
        yield self

    def answers(self, forest: Forest, absent: np.ndarray, n_jobs: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and decisions of a forest for all rows; scores are NaN if every tree needs an absent column."""
        pieces = [scores_if_any(forest, piece.X, absent, n_jobs) for piece in self.pieces()]
        if not pieces:
            return np.zeros((0, forest.n_outputs)), np.zeros(0, np.int64)
        scores, decided = zip(*pieces, strict=True)
        return (scores[0], decided[0]) if len(pieces) == 1 else (np.concatenate(scores), np.concatenate(decided))

    def take(self, places: np.ndarray) -> np.ndarray:
        """Return the features of some rows, ascending."""
        return np.ascontiguousarray(self.X[places])

    def columns(self, columns: Sequence[int]) -> np.ndarray:
        """Return some features of all rows."""
        return self.X[:, list(columns)]


class StoredPart(Part):
    """Rows in files. Reading all rows at once maps the whole file; ``pieces`` never does."""

    def __init__(
        self, site: str, X: Stored, y: Stored, memory: int, folder: Folder, given: np.ndarray | None = None
    ) -> None:
        known = {"site": site, "files": (X, y), "memory": memory, "folder": folder, "given": given}
        for name, value in known.items():
            object.__setattr__(self, name, value)

    site: str
    files: tuple[Stored, Stored]
    memory: int
    folder: Folder
    given: np.ndarray | None  # the keys of persons' rows; other keys follow from row positions

    @property
    def X(self) -> np.ndarray:  # noqa: N802
        """All features."""
        return self.files[0].window()

    @property
    def y(self) -> np.ndarray:
        """All labels."""
        return self.files[1].window()

    @property
    def row_keys(self) -> np.ndarray:
        """All keys."""
        return self.keys(0, len(self))

    @property
    def of_persons(self) -> bool:
        """Whether rows are keyed by persons, without loading the keys of all rows."""
        return self.given is not None and self.given.dtype.names is not None

    def __len__(self) -> int:
        return len(self.files[0])

    def stretches(self, row_bytes: int) -> Iterator[tuple[int, int]]:
        """Cut the rows into stretches that each take a small part of the memory."""
        rows = min(_PIECE, max(1, self.memory // (8 * row_bytes)))
        for start in range(0, len(self), rows):
            yield start, min(start + rows, len(self))

    def pieces(self) -> Iterator[Part]:
        """Yield the rows in pieces that fit into memory."""
        X, y = self.files
        for start, stop in self.stretches(X.row_bytes + 32):
            yield Part(X.window(start, stop), y.window(start, stop), self.keys(start, stop))

    def keys(self, start: int, stop: int) -> np.ndarray:
        """Return the keys of consecutive rows."""
        return row_keys(self.site, stop - start, start) if self.given is None else self.given[start:stop]

    def binned(self, bins: Bins, threads: int) -> Stored:
        """Put all values into bins, in a file."""
        X, _ = self.files
        codes = Stored(self.folder, np.uint8, X.width)
        for piece in self.pieces():
            codes.append(bins.apply(piece.X, threads))
        return codes


def store_parts(
    table: Batched,
    schema: Schema,
    parts: "Parts",
    site: str,
    memory: int,
    folder: Folder,
    *,
    strict: bool,
) -> list[StoredPart]:
    """Encode a table batch by batch and distribute the rows over its parts."""
    kind = np.int32 if schema.n_classes else np.float64
    files = [(Stored(folder, np.float32, len(schema.features)), Stored(folder, kind)) for _ in parts.distinct]
    start = 0
    for batch in table.batches(encoded_columns(schema, table), schema):
        stop = start + len(batch)
        where = f"rows {start + 1:,} to {stop:,}"
        X, y = encode_rows(batch, schema, strict=strict, first_row=start + 1, where=where)
        for which, (some_X, some_y) in zip(parts.distinct, files, strict=True):
            rows = parts.rows(which, start, stop)
            some_X.append(X[rows])
            some_y.append(y[rows])
        start = stop
    keys = [None if parts.groups is None else parts.keys(which, site) for which in parts.distinct]
    return [StoredPart(site, *pair, memory, folder, given) for pair, given in zip(files, keys, strict=True)]


TRAIN, TEST, TO_SAMPLE = range(3)
"""Parts of a site's rows: training rows, test rows, and the rows that trees sample from."""


@dataclass(frozen=True)
class Parts:
    """Which of a table's rows are in which part. Of a person with several rows, the training or test part has one.

    Trees sample from all rows of the persons in the training part.
    """

    held: HeldOut
    groups: Groups | None = None

    @property
    def distinct(self) -> tuple[int, ...]:
        """The parts that are distinct."""
        return (TRAIN, TEST) if self.groups is None else (TRAIN, TEST, TO_SAMPLE)

    def rows(self, which: int, start: int, stop: int) -> np.ndarray:
        """Return which of the rows in [start, stop) are in a part: bool."""
        rows = self.held.between(start, stop) == (which == TEST)
        if self.groups is not None and which != TO_SAMPLE:
            rows &= one_of_each(self.groups.keys[start:stop])
        return rows

    def keys(self, which: int, site: str) -> np.ndarray:
        """Return the keys of a part's rows; if it has one row per person, the keys of the persons."""
        rows = self.rows(which, 0, self.held.rows)
        if self.groups is None:
            return row_keys(site, int(rows.sum()))
        keys = self.groups.keys[rows]
        return keys if which == TO_SAMPLE else np.ascontiguousarray(keys["person"])


def row_keys(site: str, n: int, first: int = 0) -> np.ndarray:
    """Return the keys of training rows, from the site and their positions."""
    start = np.uint64(int(digest(f"rows of {site}".encode())[:16], 16))
    with np.errstate(over="ignore"):
        return start + np.arange(first, first + n, dtype=np.uint64)
