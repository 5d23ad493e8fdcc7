"""Read a query from a MySQL, MariaDB, SQL Server or Oracle server.

Columns are asked for first, without a row, and then all rows, which come as the server sends them. A server's own words
are repeated only where no row has been looked at: later ones may quote values.
"""

from collections.abc import Callable
from contextlib import closing
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from silvan.data.sources.dialects import DIALECTS, ServerAddress, rows_statement, server_address, statements
from silvan.data.sources.password import OWN_ADVICE, own_password
from silvan.data.sources.query import Query
from silvan.data.sources.tcp import open_socket
from silvan.errors import InputError, SchemaError

if TYPE_CHECKING:
    import polars as pl

_CELL = 96
"""Bytes that a value takes while it is read, about."""


def read_server(query: Query, sink: Callable[["pl.DataFrame"], object], room: int) -> None:
    """Read all rows of a query in batches."""
    dialect, address = DIALECTS[query.scheme], server_address(query)
    try:
        import sqlalchemy

        entry: Any = sqlalchemy.make_url(f"{dialect.name}://").get_dialect()
        driver = entry.import_dbapi()
    except ImportError:
        raise InputError(f"reading {dialect.title} needs a driver; run: pip install '.[{dialect.extra}]'") from None
    open_socket(address.host, address.port, address.timeout, dialect.title).close()
    positional, named = dialect.arguments(address, own_password())
    try:
        connection = driver.connect(*positional, **named)
    except (driver.Error, OSError) as error:
        raise InputError(_not_connected(error, address)) from None
    with closing(connection), closing(connection.cursor()) as cursor:
        columns = _columns(cursor, query, driver)
        try:
            cursor.execute(rows_statement(query, columns))
            _pass_on(cursor, columns, sink, room)
        except (driver.Error, OSError) as error:
            raise InputError(_not_read(error, query)) from None


def _not_connected(error: BaseException, address: ServerAddress) -> str:
    """Return why there is no connection; what the driver says is not repeated."""
    text = str(error).lower()
    if "certificate" in text:
        return (
            f"the certificate of {address.host!r} cannot be trusted; name its authority in the URL: sslrootcert=FILE, "
            "or say sslmode=require if anybody may answer for it"
        )
    if "ssl" in text or "tls" in text:
        return f"{address.host!r} offers no TLS; set it up, or say sslmode=disable in the URL if you trust the network"
    return (
        f"{address.host!r} does not let {address.user!r} read database {address.database!r}; check the names in the "
        f"URL and the password; {OWN_ADVICE}"
    )


_WOULD_WRITE = (1792, 1456)
"""The numbers of this error at MySQL and Oracle."""


def _not_read(error: BaseException, query: Query) -> str:
    """Return why rows could not be read, by the number of an error: its text may quote values."""
    first = error.args[0] if error.args else None
    code = getattr(first, "code", first)
    if code in _WOULD_WRITE:
        return "the query would write; a site's database is only read: ask with a plain SELECT"
    named = f" (its error {code})" if isinstance(code, int) else ""
    return (
        f"the query on {query.where} fails on some row, or the connection broke{named}; try it in a client of the "
        "database"
    )


def _columns(cursor: Any, query: Query, driver: Any) -> dict[str, type]:
    """Begin a transaction, and return the columns of the query with their types."""
    try:
        for statement in statements(query):
            cursor.execute(statement)
    except driver.Error as error:
        first = error.args[0] if error.args else None
        if getattr(first, "code", first) in _WOULD_WRITE or str(first).startswith("22"):  # 22: a state of values
            raise InputError(_not_read(error, query)) from None
        said = " ".join(str(error.args[-1]).split())[:300] if error.args else ""
        raise InputError(f"the query on {query.where} cannot be run: {said}; correct the query or the name") from None
    described = cursor.description
    cursor.fetchall()
    query.check_columns([column[0] for column in described])
    kinds = {column[0]: DIALECTS[query.scheme].kind(column) for column in described}
    for name, kind in kinds.items():
        if isinstance(kind, str):
            raise _unusable(name, kind)
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type)}


def _unusable(name: str, kind: str) -> SchemaError:
    return SchemaError(
        f"column {name!r} is of type {kind}; only numbers, booleans and text can be used: leave it out of the query, "
        "or say in it what you want of it"
    )


def _pass_on(cursor: Any, columns: dict[str, type], sink: Callable[["pl.DataFrame"], object], room: int) -> None:
    import polars as pl

    size, first = max(1, room // (_CELL * len(columns))), True
    cursor.arraysize = min(size, 10_000)
    while (rows := cursor.fetchmany(size)) or first:
        values = zip(*rows, strict=True) if rows else [()] * len(columns)
        sink(pl.DataFrame([_column(*parts) for parts in zip(columns, columns.values(), values, strict=True)]))
        first = False


def _column(name: str, kind: type, values: Any) -> "pl.Series":
    """Return a column of values that a driver read."""
    import polars as pl

    if kind is str:
        if any(isinstance(value, bytes | bytearray) for value in values):
            raise _unusable(name, "bytes")
        return pl.Series(name, values, pl.String)
    if kind in (date, datetime):  # dates that there are none of, 0000-00-00, come as text
        dtype: Any = pl.Date if kind is date else pl.Datetime
        plain = [value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in values]
        return pl.Series(name, [value if isinstance(value, date) else None for value in plain], dtype)
    if kind in (bool, int) and any(isinstance(value, bytes) for value in values):
        values = [int.from_bytes(value, "big") if isinstance(value, bytes) else value for value in values]
    try:
        typed = [None if value is None else kind(value) for value in values]
        return pl.Series(name, typed, {bool: pl.Boolean, int: pl.Int64, float: pl.Float64}[kind])
    except (OverflowError, TypeError):
        raise SchemaError(
            f"column {name!r} holds whole numbers of more than 64 bits; say in the query what you want of them"
        ) from None
