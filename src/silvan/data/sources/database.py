"""Read the rows of a query, in batches or all at once, from the database that its URL names."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from silvan.data.sources.postgres import read_postgres
from silvan.data.sources.query import Query
from silvan.data.sources.sqlite import read_sqlite

if TYPE_CHECKING:
    import polars as pl

_BATCH_BYTES = 1 << 26
"""Bytes of a batch, where no limit is given."""


def read_batches(query: Query, sink: Callable[["pl.DataFrame"], object], room: int = _BATCH_BYTES) -> None:
    """Pass all rows to ``sink``, in batches of about ``room`` bytes, at least one and perhaps empty."""
    read = read_sqlite if query.scheme == "sqlite" else read_postgres
    read(query, sink, room)


def read_query(query: Query) -> "pl.DataFrame":
    """Read all rows into memory."""
    import polars as pl

    batches: list[pl.DataFrame] = []
    read_batches(query, batches.append)
    return pl.concat(batches)
