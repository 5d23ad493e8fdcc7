"""A site's table, as its owner names it: a file, or a query to a database."""

from pathlib import Path
from typing import Any

from silvan.data.database import Query, is_url
from silvan.data.table import read_table
from silvan.errors import InputError, SchemaError


def absolute(table: str) -> str:
    """Name a file so that it is found from anywhere."""
    if is_url(table):
        return table
    path = Path(table).resolve()
    if not path.exists():
        raise InputError(f"{table}: there is no such table; check the path")
    return str(path)


def source_of(table: str, query: str | None) -> Any:
    """Give what is read."""
    if is_url(table):
        return Query(table, query or "")
    if query is not None:
        raise InputError("query is for databases; a file is read as it is")
    return table


def look(table: str, query: str | None, wanted: list[str]) -> tuple[list[str], str]:
    """Read the table once: its columns, and its rows in words; those agreed on must be there."""
    frame = read_table(source_of(table, query))
    lacking = [column for column in wanted if column not in frame.columns]
    if lacking:
        raise SchemaError(
            f"the table lacks {', '.join(map(repr, lacking))}, which the federation agreed on; it has "
            f"{', '.join(map(repr, frame.columns))}"
        )
    return list(frame.columns), f"{len(frame):,} rows"
