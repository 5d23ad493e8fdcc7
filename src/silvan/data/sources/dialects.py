"""What differs between MySQL (MariaDB too), SQL Server and Oracle: connecting, what is sent, types of columns."""

import getpass
import ssl
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from silvan.data.sources.query import Query, quoted
from silvan.errors import InputError

_SSL = ("disable", "prefer", "require", "verify-full")


class ServerAddress(NamedTuple):
    """A server, a database on it, and who connects how."""

    host: str
    port: int
    database: str
    user: str
    ssl: str
    root: str | None
    timeout: float
    driver: str


class Dialect(NamedTuple):
    """The rules for one kind of server."""

    title: str
    name: str
    """What SQLAlchemy calls the server and its driver."""
    extra: str
    """The optional dependency that has the driver."""
    port: int
    begin: tuple[str, ...]
    """What is sent first: one state of the database, where the server can do that, and only reading."""
    text_order: str
    """The order of texts by their bytes: the server's language may change."""
    arguments: Callable[[ServerAddress, str | None], tuple[list[Any], dict[str, Any]]]
    kind: Callable[[Sequence[Any]], type | str]
    """Python's type for a column as the driver describes it, or the name of a type that cannot be used."""


def server_address(query: Query) -> ServerAddress:
    """Return the address that a URL gives."""
    parts, settings, dialect = query.parts, query.settings(), DIALECTS[query.scheme]
    host = parts.hostname or "localhost"
    near = host.startswith("127.") or host in ("localhost", "::1")
    mode = settings.get("sslmode") or ("prefer" if near else "verify-full")
    if mode not in _SSL:
        raise InputError(f"sslmode must be one of {', '.join(_SSL)}; got {mode!r}")
    try:
        timeout = float(settings.get("connect_timeout") or 15)
    except ValueError:
        raise InputError("connect_timeout of a database must be a number") from None
    database = unquote(parts.path.lstrip("/"))
    if not database:
        raise InputError(f"the URL must name the database: {parts.scheme}://user@{host}/DATABASE")
    user = unquote(parts.username or "") or getpass.getuser()
    root, driver = settings.get("sslrootcert"), settings.get("driver") or "ODBC Driver 18 for SQL Server"
    return ServerAddress(host, parts.port or dialect.port, database, user, mode, root, timeout, driver)


def statements(query: Query) -> tuple[str, ...]:
    """Return what is sent before the rows are asked for; the last one has the columns and no row."""
    return *DIALECTS[query.scheme].begin, f"SELECT * FROM {query.select()} WHERE 1 = 0"  # noqa: S608, the owner's own query


def rows_statement(query: Query, columns: dict[str, type]) -> str:
    """Return what asks for the rows, in the order of all columns."""
    by_bytes = DIALECTS[query.scheme].text_order
    names = {name: quoted(name, query.scheme) for name in columns}
    order = ", ".join(by_bytes.format(names[name]) if kind is str else names[name] for name, kind in columns.items())
    return f"SELECT * FROM {query.select()} ORDER BY {order}"  # noqa: S608


def _tls(address: ServerAddress) -> ssl.SSLContext | None:
    """Return the rules for an encrypted connection; None where none is asked for."""
    if address.ssl in ("disable", "prefer"):
        return None
    try:
        context = ssl.create_default_context(cafile=address.root)
    except OSError:
        raise InputError(f"sslrootcert {address.root!r} cannot be read; check the path") from None
    if address.ssl == "require":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


# -- MySQL and MariaDB, by PyMySQL


def _mysql_arguments(address: ServerAddress, password: str | None) -> tuple[list[Any], dict[str, Any]]:
    import pymysql.cursors
    import sqlalchemy

    url = sqlalchemy.URL.create(
        "mysql+pymysql", address.user, password or "", address.host, address.port, address.database
    )
    positional, given = url.get_dialect()().create_connect_args(url)
    named: dict[str, Any] = {**given, "charset": "utf8mb4", "connect_timeout": address.timeout}
    named["cursorclass"] = pymysql.cursors.SSCursor  # rows as they come
    context = _tls(address)
    if context is not None:
        named["ssl"] = context
    elif address.ssl == "disable":
        named["ssl_disabled"] = True
    return list(positional), named


_MYSQL: dict[int, type | str] = {
    **dict.fromkeys((1, 2, 3, 8, 9, 13), int),
    **dict.fromkeys((0, 4, 5, 6, 246), float),  # 6: nothing but NULL
    **dict.fromkeys((247, 248, 15, 249, 250, 251, 252, 253, 254), str),
    **dict.fromkeys((10, 14), "date"),
    **dict.fromkeys((7, 12), "datetime"),
    11: "time",
    245: "json",
    255: "geometry",
}


def _mysql_kind(column: Sequence[Any]) -> type | str:
    """Return the type of a column by its number in the protocol; BIT(1) is a truth value, TINYINT(1) a number."""
    if column[1] == 16:
        return bool if column[3] == 1 else int
    return _named(_MYSQL.get(column[1], f"number {column[1]}"))


# -- SQL Server, by pyodbc


def _mssql_arguments(address: ServerAddress, password: str | None) -> tuple[list[Any], dict[str, Any]]:
    import sqlalchemy

    encrypt = {"disable": "no", "prefer": "optional"}.get(address.ssl, "yes")
    asked = {"driver": address.driver, "Encrypt": encrypt, "ApplicationIntent": "ReadOnly", "APP": "silvan"}
    if address.ssl in ("prefer", "require"):
        asked["TrustServerCertificate"] = "yes"
    url = sqlalchemy.URL.create(
        "mssql+pyodbc", address.user, password or "", address.host, address.port, address.database, query=asked
    )
    positional, named = url.get_dialect()().create_connect_args(url)
    return list(positional), {**named, "timeout": int(address.timeout)}


def _mssql_kind(column: Sequence[Any]) -> type | str:
    """Return the type of a column by the one that pyodbc reads it as."""
    return _named({"Decimal": float, "UUID": str}.get(column[1].__name__, column[1].__name__))


# -- Oracle, by oracledb without Oracle's own client


def _oracle_arguments(address: ServerAddress, password: str | None) -> tuple[list[Any], dict[str, Any]]:
    context = _tls(address)
    named: dict[str, Any] = {
        "user": address.user,
        "password": password,
        "host": address.host,
        "port": address.port,
        "service_name": address.database,
        "protocol": "tcp" if context is None else "tcps",
        "tcp_connect_timeout": address.timeout,
    }
    if context is not None:
        named |= {"ssl_context": context, "ssl_server_dn_match": address.ssl == "verify-full"}
    return [], named


_ORACLE: dict[str, type | str] = {
    "BINARY_FLOAT": float,
    "BINARY_DOUBLE": float,
    "BINARY_INTEGER": int,
    "BOOLEAN": bool,
    "VARCHAR": str,
    "NVARCHAR": str,
    "CHAR": str,
    "NCHAR": str,
    "DATE": "datetime",
    "TIMESTAMP": "datetime",
    "TIMESTAMP_TZ": "datetime",
    "TIMESTAMP_LTZ": "datetime",
}


def _oracle_kind(column: Sequence[Any]) -> type | str:
    """Return the type of a column; a NUMBER with digits before the point only is a whole one."""
    name = column[1].name.removeprefix("DB_TYPE_")
    if name == "NUMBER":
        return int if column[5] == 0 and column[4] else float
    return _named(_ORACLE.get(name, name.lower()))


def _named(kind: type | str) -> type | str:
    """Return the type of that name, or the name of a type that cannot be used."""
    from datetime import date, datetime

    known: dict[str, type] = {kind.__name__: kind for kind in (bool, int, float, str, date, datetime)}
    return known.get(kind, kind) if isinstance(kind, str) else kind


DIALECTS = {
    "mysql": Dialect(
        "MySQL",
        "mysql+pymysql",
        "mysql",
        3306,
        (
            "SET SESSION time_zone = '+00:00'",
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        ),
        "CAST({} AS BINARY)",
        _mysql_arguments,
        _mysql_kind,
    ),
    "mssql": Dialect(
        "SQL Server",
        "mssql+pyodbc",
        "sqlserver",
        1433,
        (),
        "{} COLLATE Latin1_General_100_BIN2",
        _mssql_arguments,
        _mssql_kind,
    ),
    "oracle": Dialect(
        "Oracle",
        "oracle+oracledb",
        "oracle",
        1521,
        ("SET TRANSACTION READ ONLY",),
        "NLSSORT({}, 'NLS_SORT=BINARY')",
        _oracle_arguments,
        _oracle_kind,
    ),
}
