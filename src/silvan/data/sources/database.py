"""Read the rows of a query, in batches or all at once, from the database that its URL names."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from silvan.data.sources.postgres import read_postgres
from silvan.data.sources.query import Query, Retyped
from silvan.data.sources.server_rows import read_server
from silvan.data.sources.sqlite import read_sqlite

if TYPE_CHECKING:
    import polars as pl

_BATCH_BYTES = 1 << 26
"""Bytes of a batch, where no limit is given."""


def read_batches(query: Query, sink: Callable[["pl.DataFrame"], object], room: int = _BATCH_BYTES) -> Retyped:
    """Pass all rows to ``sink``, in batches of about ``room`` bytes, at least one and perhaps empty."""
    if query.scheme == "sqlite":
        return read_sqlite(query, sink, room)
    read = read_postgres if query.scheme == "postgresql" else read_server
    read(query, sink, room)
    return Retyped({}, {})


def read_query(query: Query) -> "tuple[pl.DataFrame, Retyped]":
    """Read all rows into memory."""
    import polars as pl

    batches: list[pl.DataFrame] = []
    retyped = read_batches(query, batches.append)
    return pl.concat(batches), retyped
