"""What workers of a Dask cluster do with a site's rows: they encode partitions, count and score them.

Each function depends on its arguments only. What makes the next reply faster, such as rows sorted into nodes, is cached
beside a partition's encoded rows, and recomputed if it is missing, as on a restarted worker.
"""

import zlib
from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

import msgspec
import numpy as np

from silvan.data.bins.column_summary import Sizes
from silvan.data.schema import Schema
from silvan.data.typed_table import read_frame
from silvan.data.worker_frames import read_frame_of
from silvan.errors import InputError
from silvan.federation import wire
from silvan.federation.handlers import HANDLERS
from silvan.federation.part import Part, encode_rows, row_keys
from silvan.federation.site import Site
from silvan.forest.forest import Forest


class Encoding(msgspec.Struct, frozen=True):
    """How a partition is encoded: its schema, its test rows, and its position."""

    site: str
    schema: str
    strict: bool
    names: list[str]
    casts: dict[str, str]
    place: int  # of the partition among all
    partition: str  # its name
    rows: int
    n_train: int  # training rows in all partitions
    held_out: bytes  # one bit per row
    first: tuple[int, int, int]  # rows before it: all, training rows, test rows


class Encoded:
    """A partition's encoded training and test rows. Dask holds them where they were computed.

    ``mark`` shows whether rows that were encoded again are the same. ``site`` is created from the rows where it is
    needed, and never sent.
    """

    def __init__(self, how: Encoding, rows: tuple[np.ndarray, ...], mark: int) -> None:
        self.how, self.rows, self.mark = how, rows, mark
        self.lock = Lock()

    def __reduce__(self) -> Any:
        return Encoded, (self.how, self.rows, self.mark)

    def __sizeof__(self) -> int:
        return int(sum(array.nbytes for array in self.rows))

    def part(self, test: bool) -> Part:
        """Return the training rows or the test rows."""
        X, y = self.rows[2:] if test else self.rows[:2]
        return Part(X, y, row_keys(self.how.site, len(X), self.how.first[1 + test]))

    def marked(self, value: Any) -> "Marked":
        """Return a value with the mark of its rows."""
        return {self.how.place: self.mark}, value

    @cached_property
    def site(self) -> "PartitionSite":
        """The rows as a site."""
        return PartitionSite(self)


class PartitionSite(Site):
    """The rows of one partition as a site, which replies for them alone."""

    def __init__(self, rows: Encoded) -> None:
        super().__init__(rows.how.site, None)
        self.rows = rows

    def part(self, schema: Schema, test: bool = False, *, strict: bool = True) -> Part:
        """Return the partition's rows."""
        return self.rows.part(test)

    @property
    def n_train(self) -> int:
        """Training rows of the whole site, which decide whether it replies."""
        return self.rows.how.n_train


class PartitionRequest(msgspec.Struct, frozen=True):
    """A request as workers receive it: the message, its blobs, and the key for sampling rows."""

    kind: str
    body: bytes
    blobs: dict[str, bytes]
    sampling_key: np.ndarray
    n_jobs: int


def sizes_in(source: Any, names: list[str], casts: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Return the sizes of a partition's numeric columns, as arrays."""
    found = {name: Sizes() for name in names}
    for name, sizes in found.items():  # one column at a time: rows are read again when they are encoded
        sizes.add(read_frame(read_frame_of(source, [name], casts), "a partition is a data frame")[name])
    return {name: vars(sizes) for name, sizes in found.items()}


def encode_partition(source: Any, data: bytes) -> Encoded:
    """Encode a partition's rows."""
    how = msgspec.msgpack.decode(data, type=Encoding)
    schema = Schema.from_json(how.schema)
    frame = read_frame(read_frame_of(source, how.names, how.casts), "a partition is a data frame")
    if len(frame) != how.rows:
        raise InputError(f"{how.partition} has {len(frame):,} rows now and had {how.rows:,} before")
    X, y = encode_rows(frame, schema, strict=how.strict, first_row=how.first[0] + 1, where=how.partition)
    held = np.unpackbits(np.frombuffer(how.held_out, np.uint8), count=how.rows).astype(np.bool_)
    mark = zlib.crc32(np.ascontiguousarray(y).view(np.uint8).data, zlib.crc32(X.view(np.uint8).data))
    return Encoded(how, (X[~held], y[~held], X[held], y[held]), mark)


Marked = tuple[dict[int, int], Any]
"""A value computed from partitions, with the mark of each partition by its position."""


def answer_question(rows: Encoded, handler: Callable[[Any, Any], Any], asked: Sequence[bytes]) -> Marked:
    """Answer a request for one partition, like a site that has no other rows."""
    question = wire.decode(b"".join(asked), PartitionRequest)
    with rows.lock:
        site = rows.site
        site.sampling_key, site.n_jobs = question.sampling_key, question.n_jobs
        for hash_, blob in question.blobs.items():
            site.store.put(f"blob {hash_}", blob)
        reply = handler(site, wire.decode(question.body, HANDLERS[question.kind][0]))
    return rows.marked(msgspec.structs.asdict(reply))


def add_up(answers: Sequence[Marked]) -> Marked:
    """Add up the replies for several partitions."""
    marks, total = dict(answers[0][0]), dict(answers[0][1])
    for more, answer in answers[1:]:
        marks |= more
        total = {name: total[name] + array for name, array in answer.items()}
    return marks, total


def of_part(rows: Encoded, test: bool, function: Callable[..., Any], *given: Any) -> Marked:
    """Return the result of a function on a partition's training rows, or on its test rows."""
    return rows.marked(function(rows.part(test), *given))


def score_rows(part: Part, model: Sequence[bytes], absent: np.ndarray, n_jobs: int) -> tuple[np.ndarray, np.ndarray]:
    """Score rows by a forest."""
    return part.answers(Forest.from_bytes(b"".join(model)), absent, n_jobs)
