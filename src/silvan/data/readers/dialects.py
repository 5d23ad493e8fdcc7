"""The differences between databases: connecting, first statements, column types, error codes.

``database.py`` has what they share: each driver has the interface of PEP 249. SQLite's driver is in the standard
library, PostgreSQL's is called directly, and SQLAlchemy finds the others.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from silvan.data.readers import postgres_copy, sqlite_values
from silvan.data.readers.password import ADVICE, OWN_ADVICE
from silvan.data.readers.server_address import Address

_WOULD_WRITE = "the query would write, but a site's database is only read: use a plain SELECT"
_NO_DATABASE = "{where} is not an SQLite database, or is damaged"
_BROKE = "broke the connection"
_RESTARTS = "is being stopped or started"
TOO_LONG = "ended the query because it took too long (statement_timeout), or somebody cancelled it"
_LOCKED = "ended the query because another program holds the rows"
_CROWDED = "has no room for another connection"
_GAPS_LAST = "CASE WHEN {1} IS NULL THEN 1 ELSE 0 END, {0}"  # the ordered text, and the column
_BUSY = "{where} is being written by another program; try again when it is done"


def _of_server(error: BaseException) -> tuple[str, str]:
    """Return the code and the text of an error of MySQL, SQL Server or Oracle."""
    first = error.args[0] if error.args else ""
    return str(getattr(first, "code", first)), " ".join(str(error.args[-1]).split())[:300] if error.args else ""


class Dialect(NamedTuple):
    """The rules for one kind of database.

    ``begin`` are the first statements: a read-only transaction on one state of the database, if the server supports it.
    ``text_order`` orders texts by bytes, since the server's locale may change. ``gaps_last`` puts missing
    values last, so that the same rows are the same table in all databases. ``connect`` takes the driver, an address
    (SQLite: a query) and a password. ``kind`` maps a column description to a Python type, or to the name of an unusable
    type; it is None if only values have types. ``errors`` maps error codes, or classes of codes, to explanations.
    """

    title: str
    extra: str  # the optional dependency with the driver
    driver: str  # SQLAlchemy's name of database and driver; or a module, if SQLAlchemy is not needed
    port: int
    begin: tuple[str, ...]
    text_order: str
    connect: Callable[[Any, Any, str | None], Any]
    kind: Callable[[Sequence[Any]], type | str] | None
    errors: Mapping[str, str] = MappingProxyType({})
    said: Callable[[BaseException], tuple[str, str]] = _of_server  # the code and the text of a driver's error
    faulty: str = ""  # first characters of error codes about the query itself, whose text quotes no value
    password_advice: str = OWN_ADVICE
    gaps_last: str = "{}"
    limit: Callable[[Any, float], object] | None = None  # has a connection end what takes more seconds
    passing: Mapping[str, str] = MappingProxyType({})  # temporary errors, by code or its beginning

    def passing_of(self, code: str) -> str:
        """Describe a temporary server error; empty for any other error."""
        return next((self.passing[code[:n]] for n in (len(code), 3, 2) if code[:n] in self.passing), "")


# -- MySQL and MariaDB, by PyMySQL


def _connect_mysql(driver: Any, address: Address, password: str | None) -> Any:
    import pymysql.cursors

    context = address.tls()
    named: dict[str, Any] = {"ssl_disabled": True} if address.ssl == "disable" else {}
    named |= {} if context is None else {"ssl": context}
    named |= {"database": address.database, "charset": "utf8mb4", "connect_timeout": address.timeout}
    rows_as_they_come = pymysql.cursors.SSCursor
    return driver.connect(**address.login(password or ""), cursorclass=rows_as_they_come, **named)


_MYSQL: dict[int, type | str] = {
    **dict.fromkeys((1, 2, 3, 8, 9, 13), int),
    **dict.fromkeys((0, 4, 5, 6, 246), float),  # 6: nothing but NULL
    **dict.fromkeys((247, 248, 15, 249, 250, 251, 252, 253, 254), str),
    **dict.fromkeys((10, 14), date),
    **dict.fromkeys((7, 12), datetime),
    11: "time",
    245: "json",
    255: "geometry",
}


def _mysql_kind(column: Sequence[Any]) -> type | str:
    """Return the type of a column by its number in the protocol; BIT(1) is a boolean, TINYINT(1) a number."""
    if column[1] == 16:
        return bool if column[3] == 1 else int
    return _MYSQL.get(column[1], f"number {column[1]}")


# -- SQL Server, by pyodbc


def odbc_text(address: Address, password: str | None) -> str:
    """Return an ODBC connection string, with the password escaped."""
    import sqlalchemy

    encrypt = {"disable": "no", "prefer": "optional"}.get(address.ssl, "yes")
    driver = address.driver or "ODBC Driver 18 for SQL Server"
    asked = {"driver": driver, "Encrypt": encrypt, "ApplicationIntent": "ReadOnly", "APP": "silvan"}
    if address.ssl in ("prefer", "require"):
        asked["TrustServerCertificate"] = "yes"
    url = sqlalchemy.URL.create(
        "mssql+pyodbc", address.user, password or "", address.host, address.port, address.database, query=asked
    )
    return str(url.get_dialect()().create_connect_args(url)[0][0])


def _mssql_kind(column: Sequence[Any]) -> type | str:
    """Return the type of a column by the type that pyodbc returns."""
    kind = column[1]
    name = str(kind.__name__)
    return kind if kind in (bool, int, float, str, date, datetime) else {"Decimal": float, "UUID": str}.get(name, name)


# -- Oracle, by oracledb without Oracle's own client


def _connect_oracle(driver: Any, address: Address, password: str | None) -> Any:
    context = address.tls()
    named: dict[str, Any] = {"protocol": "tcp"}
    if context is not None:
        named = {"protocol": "tcps", "ssl_context": context, "ssl_server_dn_match": address.ssl == "verify-full"}
    named |= {"service_name": address.database, "tcp_connect_timeout": address.timeout}
    return driver.connect(**address.login(password), **named)


_ORACLE: dict[str, type | str] = {
    **dict.fromkeys(("BINARY_FLOAT", "BINARY_DOUBLE"), float),
    **dict.fromkeys(("VARCHAR", "NVARCHAR", "CHAR", "NCHAR"), str),
    **dict.fromkeys(("DATE", "TIMESTAMP", "TIMESTAMP_TZ", "TIMESTAMP_LTZ"), datetime),
    "BINARY_INTEGER": int,
    "BOOLEAN": bool,
}


def _oracle_kind(column: Sequence[Any]) -> type | str:
    """Return the type of a column; a NUMBER without decimals is a whole number."""
    name = column[1].name.removeprefix("DB_TYPE_")
    if name == "NUMBER":
        return int if column[5] == 0 and column[4] else float
    return _ORACLE.get(name, name.lower())


DIALECTS = {
    "sqlite": Dialect(
        title="SQLite",
        extra="",
        driver="sqlite3",
        port=0,
        begin=("BEGIN",),
        text_order="{}",
        connect=sqlite_values.connect,
        kind=None,
        errors={
            **dict.fromkeys(("SQLITE_AUTH", "SQLITE_READONLY"), _WOULD_WRITE),
            **dict.fromkeys(("SQLITE_NOTADB", "SQLITE_CORRUPT"), _NO_DATABASE),
            **dict.fromkeys(("SQLITE_BUSY", "SQLITE_LOCKED"), _BUSY),
        },
        said=sqlite_values.said,
        limit=sqlite_values.limit,
        gaps_last="{} NULLS LAST",
        passing={"SQLITE_INTERRUPT": TOO_LONG},
    ),
    "postgresql": Dialect(
        title="PostgreSQL",
        extra="sql",
        driver="pg8000",
        port=5432,
        begin=(
            "START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
            "SET LOCAL client_encoding TO 'UTF8'",
            "SET LOCAL extra_float_digits TO 3",
            "SET LOCAL datestyle TO 'ISO'",
            "SET LOCAL timezone TO 'UTC'",
        ),
        text_order='{}::text COLLATE "C"',
        connect=postgres_copy.connect,
        kind=postgres_copy.kind,
        errors={
            "28": "{host!r} refuses the password of user {user!r}; {advice}",
            "3D000": "{host!r} has no database {database!r}; check the URL",
            **dict.fromkeys(("25006", "0A000"), _WOULD_WRITE),
        },
        said=postgres_copy.said,
        limit=lambda connection, seconds: connection.execute(f"SET statement_timeout TO {int(1000 * seconds)}"),
        faulty="42",
        password_advice=ADVICE,
        passing={
            "08": _BROKE,
            "57014": TOO_LONG,
            "57P": _RESTARTS,
            "53": _CROWDED,
            **dict.fromkeys(("40001", "40P01", "55P03"), _LOCKED),
        },
    ),
    "mysql": Dialect(
        title="MySQL",
        extra="mysql",
        driver="mysql+pymysql",
        port=3306,
        begin=(
            "SET SESSION time_zone = '+00:00'",
            "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
        ),
        text_order="CAST({} AS BINARY)",
        connect=_connect_mysql,
        kind=_mysql_kind,
        gaps_last=_GAPS_LAST,
        errors={"1792": _WOULD_WRITE},
        passing={
            **dict.fromkeys(("0", "2006", "2013", "1927", "1158", "1159", "1160", "1161"), _BROKE),
            **dict.fromkeys(("1053", "1077", "1079"), _RESTARTS),
            **dict.fromkeys(("3024", "1969", "1317"), TOO_LONG),
            **dict.fromkeys(("1205", "1213"), _LOCKED),
            **dict.fromkeys(("1040", "1203", "1226"), _CROWDED),
        },
    ),
    "mssql": Dialect(
        title="SQL Server",
        extra="sqlserver",
        driver="mssql+pyodbc",
        port=1433,
        begin=(),
        text_order="{} COLLATE Latin1_General_100_BIN2",
        connect=lambda driver, to, password: driver.connect(odbc_text(to, password), timeout=int(to.timeout)),
        kind=_mssql_kind,
        gaps_last=_GAPS_LAST,
        limit=lambda connection, seconds: setattr(connection, "timeout", int(seconds)),
        passing={"08": _BROKE, "HYT": TOO_LONG, "40001": _LOCKED},
    ),
    "oracle": Dialect(
        title="Oracle",
        extra="oracle",
        driver="oracle+oracledb",
        port=1521,
        begin=("SET TRANSACTION READ ONLY",),
        text_order="NLSSORT({}, 'NLS_SORT=BINARY')",
        connect=_connect_oracle,
        kind=_oracle_kind,
        errors={"1456": _WOULD_WRITE},
        passing={
            **dict.fromkeys(("3113", "3114", "3135", "12170", "12537", "12547", "28"), _BROKE),
            **dict.fromkeys(("1033", "1034", "1089", "1090", "12528", "12541"), _RESTARTS),
            **dict.fromkeys(("18", "20", "12516", "12520"), _CROWDED),
            **dict.fromkeys(("1013", "3136"), TOO_LONG),
        },
    ),
}
