"""A site whose rows are partitions on the workers of a Dask cluster.

Questions whose answers are sums of rows are answered where partitions lie, and added up; models score rows there too.
The site itself adds, judges and describes. Its gate, its ledger and whoever asks see one site.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from silvan.data.bins.column_summary import Sizes
from silvan.data.partition_files import is_partitioned
from silvan.data.partitioned_table import Partitioned
from silvan.data.schema import Schema
from silvan.errors import RefusedError
from silvan.federation import wire
from silvan.federation.cache import CacheKey
from silvan.federation.message import Reply, Request, blobs_in
from silvan.federation.part import Part
from silvan.federation.partition_worker import Encoding, PartitionQuestion, encode_partition, sizes_in
from silvan.federation.site import Site
from silvan.federation.spread_part import IN_PARTITIONS, Spread, SpreadPart


class PartitionedSite(Site):
    """A site whose table is in partitions."""

    in_one_place = False

    @property
    def _partitions(self) -> Partitioned:
        table = self.table
        assert isinstance(table, Partitioned)  # noqa: S101
        return table

    def sizes_apart(self) -> dict[str, Sizes]:
        """Return the sizes of all columns of numbers, added up over partitions."""
        table, total = self._partitions, dict[str, Sizes]()
        names = [name for name in table.of_numbers if name in table.names and name != self.label]
        asked = [table.cluster.submit(sizes_in, source, names, table.casts) for source in table.sources]
        for found in table.cluster.collect(asked) if names else []:
            for name, sizes in found.items():
                total.setdefault(name, Sizes()).merge(**sizes)
        return total

    def check_kind(self, kind: type[Request]) -> None:
        """Refuse questions that need all rows in one place."""
        if kind.of_rows and kind.partitions is None:
            raise RefusedError(IN_PARTITIONS)

    def work(self, handler: Callable[[Any, Any], Reply], request: Request) -> Reply:
        """Answer a question from what partitions answer."""
        self.check_kind(type(request))
        if request.partitions != "add up":
            return super().work(handler, request)
        blobs = {hash_: self.blob(hash_) for hash_ in blobs_in(request)}
        spread = self._spread(Schema.from_json(blobs[getattr(request, "schema").hash]), strict=True)  # noqa: B009
        asked = PartitionQuestion(request.kind(), wire.encode(request), blobs, self.sampling_key, spread.n_jobs)
        total = spread.total(handler, wire.encode(asked))
        return request.reply(**total)

    def part(self, schema: Schema, test: bool = False, *, strict: bool = True) -> Part:
        """Return the training rows, or those kept for judging, which stay where they are."""
        return SpreadPart(self.name, self._spread(schema, strict), test)

    def _spread(self, schema: Schema, strict: bool) -> Spread:
        """Encode all partitions, where they lie."""

        def encode() -> Spread:
            table = self._partitions
            wanted = [name for name in dict.fromkeys((*schema.columns, schema.label.name)) if name in table.names]
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
    """Make a site of a table: of one that is in partitions on a cluster, or of any other."""
    kind = PartitionedSite if is_partitioned(source) else Site
    return kind(name, source, *given, **settings)
