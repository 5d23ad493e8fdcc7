"""A table partitioned over the workers of a Dask cluster, read in batches when the site itself needs rows.

The site's process reads rows to infer column types and to sample test rows. Workers compute counts and scores where the
partitions are (``federation/partitioned_site.py``).
"""

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from silvan.data.batches import Batched
from silvan.data.dask_cluster import Cluster
from silvan.data.partition_files import Partitions
from silvan.data.stored_table import StoredTable, typed_frames
from silvan.data.typed_table import check_names
from silvan.data.worker_frames import Looked, look_at, read_slice
from silvan.errors import SchemaError

if TYPE_CHECKING:
    import polars as pl

_TOGETHER = ({"whole numbers", "numbers"}, "numbers"), ({"dates", "times"}, "times")
"""Kinds that a column may have in different partitions, and their common kind."""


class Partitioned(Batched):
    """A partitioned table: ``sources`` are the partitions with rows, ``sizes`` their numbers of rows.

    ``casts`` maps columns with several types to their common type.
    """

    cluster: Cluster
    sources: list[Any]
    numbers: list[int]  # of the partitions, from 1
    sizes: np.ndarray
    casts: dict[str, str]
    of_numbers: list[str]  # columns with numbers in all partitions

    def _open(self, source: Any, label: str) -> StoredTable:
        """Inspect all partitions and all text cells."""
        if isinstance(source, Partitions):
            paths = [str(path) for path in source.paths()]
            self.cluster, sources = Cluster(source.cluster), list[Any](paths)
        else:
            self.cluster = Cluster(None)
            sources = self.cluster.hold(source)
        looked: list[Looked] = self.cluster.collect([self.cluster.submit(look_at, one) for one in sources])
        full = [place for place, one in enumerate(looked) if one.rows]
        self.numbers, self.sources = [place + 1 for place in full], [sources[place] for place in full]
        self.sizes = np.array([looked[place].rows for place in full], np.int64)
        columns = list(looked[0].columns) if looked else []
        check_names(columns, "the table")
        kinds = self._kinds([looked[place] for place in full], columns)
        self.of_numbers = [name for name, kind in kinds.items() if kind in ("whole numbers", "numbers")]
        texts = [name for name, kind in kinds.items() if kind == "text"]
        return typed_frames("the table", columns, texts, int(self.sizes.sum()), self._frames, self.kinds, self.room)

    def name_of(self, place: int) -> str:
        """Return the name of a partition for messages."""
        source = self.sources[place]
        return f"partition {self.numbers[place]}" + (f" ({source!r})" if isinstance(source, str) else "")

    def _kinds(self, looked: list[Looked], columns: list[str]) -> dict[str, str]:
        """Return the kind of each column over all partitions; raise ``SchemaError`` if partitions conflict."""
        self.casts, kinds = {}, {}
        for place, one in enumerate(looked):
            differing = sorted(set(columns) ^ set(one.columns))
            if differing:
                way = "lacks" if differing[0] in columns else "alone has"
                raise SchemaError(
                    f"the partitions have different columns: {self.name_of(place)} {way} {differing[0]!r}; make them "
                    "equal"
                )
        for name in columns:
            places = {one.columns[name]: place for place, one in reversed(list(enumerate(looked)))}
            found = places.keys() - {""}
            together = [kind for some, kind in _TOGETHER if found <= some]
            if len(found) > 1 and not together:
                how = " and ".join(f"{kind} in {self.name_of(place)}" for kind, place in places.items() if kind)
                raise SchemaError(f"column {name!r} holds {how}; use one type in all partitions")
            kinds[name] = together[0] if len(found) > 1 else next(iter(found), "")
            if len(places) > 1:
                self.casts[name] = kinds[name]
        return kinds

    def _frames(self, names: Sequence[str], rows: int) -> "Iterator[pl.DataFrame]":
        """Yield some columns of all partitions, at most ``rows`` rows at a time."""
        import polars as pl

        slices = (
            (source, list(names), self.casts, start, min(start + rows, size))
            for source, size in zip(self.sources, self.sizes.tolist(), strict=True)
            for start in range(0, size, rows)
        )
        for packed in self.cluster.in_turn(read_slice, slices):
            yield pl.read_ipc(io.BytesIO(packed))
