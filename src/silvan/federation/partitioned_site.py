"""A site whose rows are partitions on the workers of a Dask cluster.

Replies that are sums over rows are computed where the partitions are, then added up; models score rows there as well.
The site itself adds, evaluates and describes. To its gate, its ledger and the coordinator it is one site.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np

from silvan.data.bins.column_summary import Sizes
from silvan.data.dask_cluster import Cluster
from silvan.data.partition_files import is_partitioned
from silvan.data.partitioned_table import Partitioned
from silvan.data.schema import Schema
from silvan.errors import InputError, RefusedError
from silvan.federation import wire
from silvan.federation.message import Reply, Request, blobs_in
from silvan.federation.part import Part, encoded_columns, row_keys
from silvan.federation.partition_worker import (
    Encoding,
    Marked,
    PartitionRequest,
    add_up,
    answer_question,
    encode_partition,
    of_part,
    score_rows,
    sizes_in,
)
from silvan.federation.site import Site
from silvan.federation.store import CacheKey
from silvan.forest.forest import Forest

IN_PARTITIONS = (
    "the site's rows are partitions on a Dask cluster: use them for HistogramForest (bins='shared', no epsilon) and "
    "to evaluate models; everything else needs all rows in one place"
)
_TOGETHER = 8
"""Number of replies that one worker adds up."""


class Spread:
    """All encoded partitions of a site: their futures on the cluster and their names.

    ``sizes`` are the numbers of training rows and test rows.
    """

    def __init__(self, cluster: Cluster, futures: list[Any], names: list[str], sizes: np.ndarray) -> None:
        self.cluster, self.futures, self.names, self.sizes = cluster, futures, names, sizes
        self.n_jobs = max(1, cluster.threads // len(futures))
        self._marks: dict[int, int] = {}

    def total(self, handler: Callable[[Any, Any], Any], asked: bytes) -> dict[str, np.ndarray]:
        """Send a request to every partition, and add up the replies."""
        message = self.cluster.send(asked)
        answers = [self.cluster.submit(answer_question, rows, handler, message) for rows in self.futures]
        while len(answers) > _TOGETHER:
            groups = [answers[i : i + _TOGETHER] for i in range(0, len(answers), _TOGETHER)]
            answers = [self.cluster.submit(add_up, group) for group in groups]
        total: dict[str, np.ndarray] = self.same_rows(add_up(self.cluster.collect(answers)))
        return total

    def each(
        self, function: Callable[..., Marked], *given: Any, among: Sequence[Sequence[Any]] | None = None
    ) -> Iterator[Any]:
        """Yield the result of a function for the rows of every partition; ``among`` has further arguments for each."""
        more = [()] * len(self.futures) if among is None else among
        asked = ((rows, *given, *own) for rows, own in zip(self.futures, more, strict=True))
        for answer in self.cluster.in_turn(function, asked):
            yield self.same_rows(answer)

    def same_rows(self, answer: Marked) -> Any:
        """Return a result; raise ``InputError`` if its rows differ from those of earlier results."""
        marks, value = answer
        for place, mark in marks.items():
            if self._marks.setdefault(place, mark) != mark:
                raise InputError(
                    f"{self.names[place]} was computed again after a worker was lost, and has other rows now; "
                    "write the table to Parquet files, and use these"
                )
        return value


class SpreadPart(Part):
    """Training or test rows on a cluster. Reading all of their features at once is refused."""

    def __init__(self, site: str, spread: Spread, test: bool) -> None:
        for name, value in {"site": site, "spread": spread, "test": test}.items():
            object.__setattr__(self, name, value)

    site: str
    spread: Spread
    test: bool

    @property
    def X(self) -> np.ndarray:  # noqa: N802
        """All features, which are refused."""
        raise RefusedError(IN_PARTITIONS)

    @property
    def y(self) -> np.ndarray:
        """All labels."""
        return np.concatenate(list(self._each(attrgetter("y"))))

    @property
    def row_keys(self) -> np.ndarray:
        """All keys."""
        return row_keys(self.site, len(self))

    @property
    def of_persons(self) -> bool:
        """Whether rows are keyed by persons: not in partitions."""
        return False

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each partition."""
        sizes: np.ndarray = self.spread.sizes[:, int(self.test)]
        return sizes

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def pieces(self) -> Iterator[Part]:
        """Yield the rows of each partition, moved to the site's own process."""
        first = 0
        for X, y in self._each(attrgetter("X", "y")):
            yield Part(X, y, row_keys(self.site, len(X), first))
            first += len(X)

    def answers(self, forest: Forest, absent: np.ndarray, n_jobs: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Score all rows on the cluster."""
        model = self.spread.cluster.send(forest.to_bytes())
        scored = self.spread.each(of_part, self.test, score_rows, model, absent, self.spread.n_jobs)
        scores, decided = (np.concatenate(column) for column in zip(*scored, strict=True))
        return scores, decided

    def take(self, places: np.ndarray) -> np.ndarray:
        """Return the features of some rows, ascending."""
        ends = np.cumsum(self.sizes)
        bounds = np.searchsorted(places, [0, *ends])
        here = [(places[a:b] - (end - n),) for a, b, end, n in zip(bounds, bounds[1:], ends, self.sizes, strict=False)]
        return np.concatenate(list(self._each(Part.take, among=here)))

    def columns(self, columns: Sequence[int]) -> np.ndarray:
        """Return some features of all rows."""
        return np.concatenate(list(self._each(Part.columns, list(columns))))

    def _each(self, function: Callable[..., Any], *given: Any, **more: Any) -> Iterator[Any]:
        return self.spread.each(of_part, self.test, function, *given, **more)


class PartitionedSite(Site):
    """A site whose table is in partitions."""

    in_one_place = False

    @property
    def _partitions(self) -> Partitioned:
        table = self.table
        assert isinstance(table, Partitioned)  # noqa: S101
        return table

    def sizes_apart(self) -> dict[str, Sizes]:
        """Return the sizes of all numeric columns, added up over partitions."""
        table, total = self._partitions, dict[str, Sizes]()
        names = [name for name in table.of_numbers if name in table.names and name != self.label]
        asked = [table.cluster.submit(sizes_in, source, names, table.casts) for source in table.sources]
        for found in table.cluster.collect(asked) if names else []:
            for name, sizes in found.items():
                total.setdefault(name, Sizes()).merge(**sizes)
        return total

    def check_kind(self, kind: type[Request]) -> None:
        """Refuse requests that need all rows in one place."""
        if kind.of_rows and kind.partitions is None:
            raise RefusedError(IN_PARTITIONS)

    def work(self, handler: Callable[[Any, Any], Reply], request: Request) -> Reply:
        """Answer a request from the partitions' replies."""
        self.check_kind(type(request))
        if request.partitions != "add up":
            return super().work(handler, request)
        blobs = {hash_: self.blob(hash_) for hash_ in blobs_in(request)}
        spread = self._spread(Schema.from_json(blobs[getattr(request, "schema").hash]), strict=True)  # noqa: B009
        asked = PartitionRequest(request.kind(), wire.encode(request), blobs, self.sampling_key, spread.n_jobs)
        total = spread.total(handler, wire.encode(asked))
        return request.reply(**total)

    def part(self, schema: Schema, test: bool = False, *, strict: bool = True) -> Part:
        """Return the training rows, or the test rows, which stay on the cluster."""
        return SpreadPart(self.name, self._spread(schema, strict), test)

    def _spread(self, schema: Schema, strict: bool) -> Spread:
        """Encode all partitions on the cluster."""

        def encode() -> Spread:
            table = self._partitions
            wanted = encoded_columns(schema, table)
            ends = np.cumsum(table.sizes)
            first, sizes, futures = (0, 0, 0), [], []
            for place, (size, stop) in enumerate(zip(table.sizes.tolist(), ends.tolist(), strict=True)):
                held = self.held_out.between(stop - size, stop)
                how = Encoding(
                    site=self.name,
                    schema=schema.to_json(),
                    strict=strict,
                    names=wanted,
                    casts=table.casts,
                    place=place,
                    partition=table.name_of(place),
                    rows=size,
                    n_train=self.n_train,
                    held_out=np.packbits(held).tobytes(),
                    first=first,
                )
                futures.append(
                    table.cluster.submit(encode_partition, table.sources[place], msgspec.msgpack.encode(how))
                )
                kept = int(held.sum())
                sizes.append((size - kept, kept))
                first = (first[0] + size, first[1] + size - kept, first[2] + kept)
            names = [table.name_of(place) for place in range(len(sizes))]
            return Spread(table.cluster, futures, names, np.array(sizes, np.int64))

        return self.cache.once(CacheKey[Spread]("part", schema.hash, strict), encode)


def site_of(name: str, source: Any, *given: Any, **settings: Any) -> Site:
    """Make a site for a table, in partitions on a cluster or not."""
    kind = PartitionedSite if is_partitioned(source) else Site
    return kind(name, source, *given, **settings)
