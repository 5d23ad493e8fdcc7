"""A site's table: read, split into training rows and test rows, and encoded by a schema."""

import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import narwhals as nw
import numpy as np

from silvan.data.batches import Batched, Whole
from silvan.data.cells import holds_objects
from silvan.data.column_types import Kinds
from silvan.data.date_split import DateSplit
from silvan.data.disk_arrays import Folder
from silvan.data.groups import Groups, read_groups
from silvan.data.holdout import Fold, HeldOut, hold_out
from silvan.data.partition_files import is_partitioned
from silvan.data.partitioned_table import Partitioned
from silvan.data.schema import Schema
from silvan.data.typed_table import Frame
from silvan.errors import SchemaError
from silvan.federation.part import (
    TEST,
    TO_SAMPLE,
    TRAIN,
    Block,
    Part,
    Parts,
    encode_rows,
    encoded_columns,
    store_parts,
)
from silvan.federation.row_holdout import hold_out_persons, hold_out_singly
from silvan.federation.store import Cache, CacheKey, digest
from silvan.tree.sampling import make_key
from silvan.util.cell_text import value_text

Naming = Literal["all", "proven"]

_BATCH = 1 << 27
"""Maximum bytes of a table to read at a time: more would not be faster."""


@dataclass(eq=False, repr=False)
class SiteSettings:
    """The settings of a study, and of the site's owner, for the site's table and how it is processed.

    ``test`` is the share of test rows, sampled by class from ``split_seed`` and the site's name; with a ``fold`` the
    test rows are those of the fold. With a ``test_key`` (between machines a secret of the site) and a ``schema``, each
    row is sampled independently, as noisy replies require; without a schema the key shuffles rows into folds.
    ``sampling_key`` decides which rows are in which tree; all sites share it, and the coordinator does not need it.
    ``device`` is where trees grow. ``forest`` is a pretrained forest of the site. ``schema`` is a given one, the only
    one that noisy replies may be about. ``kinds`` says what columns are when the table is described. With ``memory``, a
    number of bytes, the table is read in batches and its rows are stored in unnamed files in ``folder``. With a
    ``date_split`` the test rows are the latest ones, and its column is not a feature. ``results`` is the folder for the
    results of a study, if the site keeps any. ``naming`` decides which classes and categories the site names
    (``describe.py``): "all" is for one process; "proven" means classes that enough of its own rows have, and categories
    that are proven to be common (``proven_sums.py``). With ``published`` sampling the sampling key is not replaced by
    the shared key. ``group`` names the column of persons' ids, which is not a feature: all rows of a person are in one
    part, and a person counts as one row. ``event`` names the column of events if ``label`` names that of times.
    """

    label: str = "label"
    exclude: tuple[str, ...] = ()
    test: float = 0.0
    split_seed: int = 0
    sampling_key: np.ndarray = field(default_factory=lambda: np.zeros(2, np.uint64))
    n_jobs: int | None = None
    device: str = "auto"
    forest: Any = None
    memory: int | None = None
    folder: Folder = None
    schema: Schema | None = None
    fold: Fold | None = None
    kinds: Kinds = field(default_factory=dict)
    naming: Naming = "all"
    published: bool = True
    results: Path | None = None
    test_key: bytes | None = None
    date_split: DateSplit | None = None
    group: str | None = None
    event: str | None = None

    @classmethod
    def of_study(cls, label: str, exclude: Sequence[str], test: float, random_state: int, **own: Any) -> Self:
        """Return the study's settings for all sites, combined with those of one site."""
        key = make_key(random_state, "rows")
        return cls(label, tuple(exclude), test, split_seed=int(random_state), sampling_key=key, **own)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The columns that are not features."""
        more = (self.group, None if self.date_split is None else self.date_split.by)
        return (*self.exclude, *(name for name in more if name is not None and name not in self.exclude))


class SiteTable(SiteSettings):
    """The rows of one organisation. ``source`` is a data frame, a path or (X, y)."""

    in_one_place = True  # whether all rows are available at once, in memory or in files

    def __init__(self, name: str, source: Any, settings: SiteSettings) -> None:
        super().__init__(**vars(settings))
        self.name, self.source = name, source
        self.cache = Cache()

    @property
    def settings(self) -> SiteSettings:
        """The current settings; the sites may have agreed on another sampling key."""
        return SiteSettings(**{setting.name: getattr(self, setting.name) for setting in fields(SiteSettings)})

    @cached_property
    def table(self) -> Batched:
        """The table, without the columns that are not features: in memory, or read in batches."""
        left_out, kinds = self.left_out, self.kinds
        if self.group is not None:
            kinds = {**kinds, self.group: "categorical"}
        if is_partitioned(self.source):
            asked = {"survival": self.event, "group": self.group, "a split by date": self.date_split}
            for what in [what for what, given in asked.items() if given is not None]:
                raise SchemaError(f"{what} needs all rows of a site in one place, not partitions on a Dask cluster")
            return Partitioned(self.source, self.label, _BATCH, self.folder, left_out, kinds)
        if self.memory is None:
            return Whole(self.source, self.label, left_out, kinds)
        room = min(self.memory // 8, _BATCH)
        return Batched(self.source, self.label, room, self.folder, left_out, kinds)

    @property
    def groups(self) -> Groups | None:
        """The persons whom the rows belong to, if the study names a column of their ids."""
        if self.group is None:
            return None
        name, salt = self.group, digest(f"persons of {self.name} {self.split_seed}".encode())[:32]
        return self.cache.once(CacheKey[Groups]("persons"), lambda: read_groups(self.table, name, salt.encode()))

    @cached_property
    def frame(self) -> Frame:
        """The whole table in memory."""
        return _together(self.table.batches())

    def frame_by(self, schema: Schema) -> Frame:
        """Return the table in memory, with each cell read according to a schema."""
        return self.cache.once(
            CacheKey[Frame]("frame", schema.hash), lambda: _together(self.table.batches(schema=schema))
        )

    @property
    def excluded(self) -> list[str]:
        """The columns in ``exclude`` that the table has, if it was read."""
        return self.table.excluded if "table" in vars(self) else []

    def fingerprint(self) -> str:
        """Return a hash of the table's content, for the journal of a federation in one process."""
        names, dtypes = self.table.names, self.table.dtypes
        columns = [(hashlib.sha256(f"{name}\0{dtypes[name]}\0".encode()), hashlib.sha256()) for name in names]
        for batch in self.table.batches():
            for name, (values, gaps) in zip(names, columns, strict=True):
                series = batch[name]
                gaps.update(series.is_null().to_numpy().astype(np.bool_).tobytes())
                plain = series.dtype.is_float() or series.dtype.is_integer()
                numbers = series.fill_null(0).to_numpy() if plain else None
                if numbers is not None and numbers.dtype != object:
                    values.update(numbers.tobytes())
                elif holds_objects(series):
                    values.update(msgspec.json.Encoder().encode_lines(list(map(value_text, series.to_list()))))
                else:
                    values.update(msgspec.json.Encoder().encode_lines(series.cast(nw.String).to_list()))
        persons = b"" if self.groups is None else self.groups.keys.tobytes()
        later = b"" if self.date_split is None else self.held_out.bits.tobytes()
        return digest(b"".join(values.digest() + gaps.digest() for values, gaps in columns) + persons + later)

    @cached_property
    def held_out(self) -> HeldOut:
        """Which rows are held out for evaluation."""
        if self.test >= 1.0:
            return HeldOut(len(self.table), every=True)
        if self.date_split is not None:
            return self.date_split.hold_out(self.table, None if self.groups is None else self.groups.person)
        if self.test_key is not None and self.schema is not None:
            split = repr((self.split_seed, self.name, self.fold and self.fold.shuffle)).encode()
            key = hashlib.blake2b(split, key=self.test_key, digest_size=32).digest()
            if self.groups is not None:
                return hold_out_persons(self.groups, self.test, key, self.fold)
            folder = None if self.memory is None else self.folder or tempfile.gettempdir()
            return hold_out_singly(self._blocks(self.schema), len(self.table), self.test, key, self.fold, folder)
        seed = [self.split_seed, int(digest(self.name.encode())[:12], 16)]
        if self.fold is not None:
            seed.append(1 + self.fold.shuffle)
            if self.test_key is not None:  # between machines nobody else knows which rows are in which fold
                seed.append(int.from_bytes(self.test_key, "big"))
        return hold_out(self.table, self.event or self.label, self.test, seed, self.folder, self.fold, self.groups)

    def _blocks(self, schema: Schema) -> Iterator[Block]:
        """Yield all rows, encoded by a schema; no cell raises an error."""
        if isinstance(self.table, Whole):
            yield self._encoded(schema, strict=False)
            return
        for batch in self.table.batches(encoded_columns(schema, self.table), schema):
            yield encode_rows(batch, schema, strict=False)

    def _encoded(self, schema: Schema, *, strict: bool) -> Block:
        return self.cache.once(
            CacheKey[Block]("encoded", schema.hash, strict),
            lambda: encode_rows(next(self.table.batches(schema=schema)), schema, strict=strict),
        )

    @property
    def samples_singly(self) -> bool:
        """Whether adding or removing a row leaves all others in their part, training or test."""
        if self.date_split is not None:
            return self.date_split.since is not None
        return self.test <= 0.0 or (self.test_key is not None and self.schema is not None)

    def take_table(self, other: "SiteTable") -> None:
        """Share the table of another object for the same site, so that it is read and encoded once."""
        self.table = other.table
        self.cache.update({key: kept for key, kept in other.cache.items() if key[0] in ("encoded", "persons")})

    def part(self, schema: Schema, test: bool = False, *, strict: bool = True) -> Part:
        """Return the training rows, or the test rows, encoded by a schema; with ``group``, one row per person.

        A cell that does not fit the schema is an error. It never is if not ``strict``, as noisy replies require: see
        ``encode_features`` and ``encode_label``.
        """
        return self._part(schema, TEST if test else TRAIN, strict=strict)

    def rows_to_sample(self, schema: Schema) -> Part:
        """Return all rows of the training persons: each tree samples persons and takes one row of each."""
        return self.part(schema) if self.group is None else self._part(schema, TO_SAMPLE, strict=True)

    def _part(self, schema: Schema, which: int, *, strict: bool) -> Part:
        def make() -> Part:
            parts = Parts(self.held_out, self.groups)
            if self.memory is not None:
                where = self.name, self.memory, self.folder
                stored = store_parts(self.table, schema, parts, *where, strict=strict)
                for place, part in enumerate(stored):
                    self.cache[CacheKey[Part]("part", schema.hash, place, strict)] = part
                return stored[which]
            X, y = self._encoded(schema, strict=strict)
            rows = np.flatnonzero(parts.rows(which, 0, len(X)))
            X, y = (X, y) if len(rows) == len(X) else (X[rows], y[rows])
            return Part(X, y, parts.keys(which, self.name))

        return self.cache.once(CacheKey[Part]("part", schema.hash, which, strict), make)

    def absent(self, schema: Schema) -> np.ndarray:
        """Return which of a schema's features are absent from the table: bool (features,)."""
        present = set(self.table.names)
        return np.array([name not in present for name in schema.columns], np.bool_)

    @property
    def n_train(self) -> int:
        """Number of training rows; with ``group``, of training persons."""
        if self.groups is None:
            return len(self.table) - self.held_out.kept
        return int((self.groups.first & ~self.held_out.between(0, len(self.table))).sum())


def _together(batches: Iterator[Frame]) -> Frame:
    frames = list(batches)
    return frames[0] if len(frames) == 1 else nw.concat(frames)
