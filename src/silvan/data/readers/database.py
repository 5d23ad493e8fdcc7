"""Read the rows of a query in batches from the database named in its URL.

A read-only transaction sees one state of the database. It first reads the columns without any row, then all rows as the
server sends them. Server messages are repeated only if they concern the query and no row has been read, because later
ones may quote values.
"""

import importlib
from collections.abc import Callable
from contextlib import closing
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from silvan.data.readers import postgres_copy, sqlite_values
from silvan.data.readers.dialects import DIALECTS, TOO_LONG, Dialect
from silvan.data.readers.password import find_password, own_password
from silvan.data.readers.query import Query, Retyped, quoted
from silvan.data.readers.server_address import Address, find_address
from silvan.errors import InputError, SchemaError, UnavailableError
from silvan.util.cell_text import value_text

if TYPE_CHECKING:
    import polars as pl

_BATCH_BYTES = 1 << 26  # default bytes of a batch
_CELL = 96  # approximate bytes per value while reading

_LEAVE_OUT = "leave it out of the query, or convert it there"


def read_batches(query: Query, sink: Callable[["pl.DataFrame"], object], room: int = _BATCH_BYTES) -> Retyped:
    """Pass all rows to ``sink`` in batches of about ``room`` bytes; there is at least one batch, which may be empty."""
    dialect = DIALECTS[query.scheme]
    driver = _driver(dialect)
    connection = _connect(driver, dialect, query)
    reading = False
    with closing(connection), closing(connection.cursor()) as cursor:
        try:
            if query.seconds is not None and dialect.limit is not None:
                dialect.limit(connection, query.seconds)
            columns, retyped = _columns(cursor, query, dialect)
            reading = True
            if query.scheme == "postgresql":
                postgres_copy.copy_rows(cursor, rows_statement(query, columns), columns, sink, room)
            else:
                cursor.execute(rows_statement(query, columns))
                _pass_on(cursor, columns, sink, room)
        except (driver.Error, OSError) as error:
            raise _explained(error, query, dialect, reading) from None
    return retyped


# -- connecting


def _driver(dialect: Dialect) -> Any:
    try:
        if "+" not in dialect.driver:
            return importlib.import_module(dialect.driver)
        import sqlalchemy

        entry: Any = sqlalchemy.make_url(f"{dialect.driver}://").get_dialect()
        return entry.import_dbapi()
    except ImportError:
        extra = f"silvan[{dialect.extra}]"
        raise InputError(f"reading {dialect.title} needs a driver; run: pip install '{extra}'") from None


def _connect(driver: Any, dialect: Dialect, query: Query) -> Any:
    """Return a connection; errors do not repeat the driver's text."""
    if query.scheme == "sqlite":
        try:
            return dialect.connect(driver, query, None)
        except driver.Error as error:
            raise _explained(error, query, dialect, reading=False) from None
    address = find_address(query, dialect.port)
    who = (address.host, address.port, address.database, address.user)
    password = find_password(*who) if query.scheme == "postgresql" else own_password()
    try:
        return dialect.connect(driver, address, password)
    except (driver.Error, OSError, postgres_copy.NoPasswordError) as error:
        failed = error
    address.open(dialect.title).close()  # raises an error if no server is there
    passing = dialect.passing_of(dialect.said(failed)[0])
    if passing:
        raise UnavailableError(f"{address.host!r} {passing}; try again in a moment") from None
    raise InputError(_not_connected(failed, address, dialect)) from None


def _not_connected(error: BaseException, address: Address, dialect: Dialect) -> str:
    """Explain why a reachable server refuses the connection."""
    host, user, advice = address.host, address.user, dialect.password_advice
    meaning, text = _meaning(dialect, dialect.said(error)[0]), str(error).lower()
    if meaning:
        return meaning.format(host=host, user=user, database=address.database, advice=advice)
    if isinstance(error, postgres_copy.NoPasswordError):
        return f"{host!r} asks {user!r} for a password, but none is set; {advice}"
    if "certificate" in text:
        return (
            f"the certificate of {host!r} cannot be trusted; name its authority in the URL: sslrootcert=FILE, "
            "or set sslmode=require to skip this check"
        )
    if "ssl" in text or "tls" in text:
        return f"{host!r} offers no TLS; set it up, or set sslmode=disable in the URL if you trust the network"
    return (
        f"{host!r} does not allow {user!r} to read database {address.database!r}; check the names in the URL and the "
        f"password; {advice}"
    )


def _meaning(dialect: Dialect, code: str) -> str:
    """Return the meaning of an error, by its code or its class."""
    return dialect.errors.get(code) or dialect.errors.get(code[:2]) or ""


def _explained(error: BaseException, query: Query, dialect: Dialect, reading: bool) -> InputError:
    """Explain why rows could not be read, by the code of the error, since its text may quote values."""
    code, text = dialect.said(error)
    meaning, passing = _meaning(dialect, code), dialect.passing_of(code)
    if meaning:
        return InputError(meaning.format(where=query.where))
    if passing == TOO_LONG and query.seconds is not None:
        return InputError(
            f"the query on {query.where} took longer than {query.seconds:g} s, or than the server allows; make it "
            "smaller, or allow more in the address of the database: seconds=..."
        )
    if passing or isinstance(error, OSError) or (dialect.port and not code):  # the driver has lost the server
        why = passing or "broke the connection"
        return UnavailableError(f"the database of the query on {query.where} {why}", connected=True)
    if not reading and text and code.startswith(dialect.faulty) and not code.startswith("22"):
        return InputError(
            f"the query on {query.where} cannot be run: {text.rstrip('.')}; correct the query or the name"
        )
    return InputError(
        f"the query on {query.where} fails on some row (error {code}); try it in a client of the database"
    )


# -- columns and rows


def columns_statements(query: Query) -> tuple[str, ...]:
    """Return the statements before the query for rows; the last one returns the columns without rows."""
    return *DIALECTS[query.scheme].begin, f"{query.before}SELECT * FROM {query.select()} WHERE 1 = 0"  # noqa: S608, the owner's own query


def rows_statement(query: Query, columns: dict[str, type]) -> str:
    """Return the query for the rows, ordered by all columns."""
    dialect = DIALECTS[query.scheme]
    names = {name: quoted(name, query.scheme) for name in columns}
    by_bytes = {name: dialect.text_order.format(names[name]) for name, kind in columns.items() if kind is str}
    order = ", ".join(dialect.gaps_last.format(by_bytes.get(name, names[name]), names[name]) for name in columns)
    return f"{query.before}SELECT * FROM {query.select()} ORDER BY {order}"  # noqa: S608


def _columns(cursor: Any, query: Query, dialect: Dialect) -> tuple[dict[str, type], Retyped]:
    """Begin a transaction, and return the columns of the query with their types."""
    for statement in columns_statements(query):
        cursor.execute(statement)
    described = cursor.description
    cursor.fetchall()
    names = [column[0] for column in described]
    query.check_columns(names)
    if dialect.kind is None:
        return sqlite_values.find_types(cursor, query, names)
    columns: dict[str, type] = {}
    for column in described:
        kind = dialect.kind(column)
        if isinstance(kind, str):
            raise _unusable(column[0], kind)
        columns[column[0]] = kind
    return columns, Retyped({}, {})


def _unusable(name: str, kind: str) -> SchemaError:
    return SchemaError(f"column {name!r} is of type {kind}; only numbers, booleans and text can be used: {_LEAVE_OUT}")


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

    if kind is object:
        return pl.Series(name, list(map(value_text, values)), pl.String)
    if kind is str:
        if any(isinstance(value, bytes | bytearray) for value in values):
            raise _unusable(name, "bytes")
        return pl.Series(name, values, pl.String)
    if kind in (date, datetime):  # impossible dates, such as 0000-00-00, arrive as text
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
            f"column {name!r} holds whole numbers of more than 64 bits; convert them in the query"
        ) from None
