"""Read a query from a PostgreSQL server.

One read-only transaction sees one state of the database. The rows come by COPY, which the server sends as they are
found: nothing waits for all of them, here or there. The server's own messages are repeated only where they are about
the query, before a row is looked at: later ones may quote values.
"""

import getpass
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from silvan.data.sources.csv_pieces import Rows
from silvan.data.sources.password import ADVICE, find_password
from silvan.data.sources.query import Query, quoted
from silvan.data.sources.tcp import open_socket
from silvan.errors import InputError, SchemaError

if TYPE_CHECKING:
    import polars as pl

_WHOLE, _NUMBER, _TRUTH = (20, 21, 23, 26), (700, 701, 1700), (16,)
_TEXT, _DAY, _TIME = (18, 19, 25, 1042, 1043, 2950), (1082,), (1114, 1184)
"""Types by their numbers in the server's catalogue, which are the same in all versions."""

_SSL = ("disable", "prefer", "require", "verify-full")


class Address(NamedTuple):
    """A server, a database on it, and who connects how."""

    host: str
    port: int
    database: str
    user: str
    ssl: str
    root: str | None
    timeout: float

    @property
    def socket_file(self) -> str:
        """The file of the server's socket, if it is reached by one."""
        return f"{self.host.rstrip('/')}/.s.PGSQL.{self.port}" if self.host.startswith("/") else ""


def read_postgres(query: Query, sink: Callable[["pl.DataFrame"], object], room: int) -> None:
    """Read all rows of a query in batches."""
    try:
        import pg8000.native
    except ImportError:
        raise InputError("reading PostgreSQL needs a driver; run: pip install '.[sql]'") from None
    address = address_of(query)
    try:
        with closing(_connect(address)) as connection:
            _read(connection, query, sink, room)
    except pg8000.exceptions.DatabaseError as error:
        raise _input_error(error, query, address) from None
    except (pg8000.exceptions.InterfaceError, OSError):
        raise InputError(f"the connection to {query.where} broke; try again") from None


def address_of(query: Query) -> Address:
    """Return the address that the URL gives; what it leaves out comes from the environment."""
    parts, settings, given = query.parts, query.settings(), os.environ
    user = unquote(parts.username or "") or given.get("PGUSER") or getpass.getuser()
    host = settings.get("host") or parts.hostname or given.get("PGHOST") or "localhost"
    near = host.startswith(("/", "127.")) or host in ("localhost", "::1")
    mode = settings.get("sslmode") or given.get("PGSSLMODE") or ("prefer" if near else "verify-full")
    if mode not in _SSL:
        raise InputError(f"sslmode must be one of {', '.join(_SSL)}; got {mode!r}")
    try:
        port = int(parts.port or given.get("PGPORT") or 5432)
        timeout = float(settings.get("connect_timeout") or given.get("PGCONNECT_TIMEOUT") or 15)
    except ValueError:
        raise InputError("the port and connect_timeout of a database must be numbers") from None
    database = unquote(parts.path.lstrip("/")) or given.get("PGDATABASE") or user
    root = settings.get("sslrootcert") or given.get("PGSSLROOTCERT")
    return Address(host, port, database, user, mode, root, timeout)


def _connect(address: Address) -> Any:
    import pg8000.native

    password = find_password(address.host, address.port, address.database, address.user)
    sock = _socket(address)
    try:
        connection = pg8000.native.Connection(
            address.user,
            host=address.host,
            database=address.database,
            password=password,
            sock=sock,
            ssl_context=_ssl(address),
            application_name="silvan",
        )
    except ssl.SSLError:
        sock.close()
        raise InputError(
            f"the certificate of {address.host!r} cannot be trusted; name its authority in the URL: sslrootcert=FILE, "
            "or say sslmode=require if anybody may answer for it"
        ) from None
    except (pg8000.exceptions.InterfaceError, AttributeError) as error:
        sock.close()
        if password is None and ("password" in str(error) or isinstance(error, AttributeError)):
            raise InputError(
                f"{address.host!r} asks {address.user!r} for a password and there is none; {ADVICE}"
            ) from None
        if "SSL" in str(error):
            raise InputError(
                f"{address.host!r} offers no TLS; set it up, or say sslmode=disable in the URL if you trust the network"
            ) from None
        raise
    except BaseException:
        sock.close()
        raise
    connection._usock.settimeout(None)  # a query may take its time, a connection may not
    return connection


def _socket(address: Address) -> socket.socket:
    if not address.socket_file:
        sock = open_socket(address.host, address.port, address.timeout, "PostgreSQL")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return sock
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(address.timeout)
        sock.connect(address.socket_file)
        return sock
    except OSError:
        raise InputError(
            f"no PostgreSQL server listens at {address.host!r}, port {address.port}; check host and port, and that it "
            "runs"
        ) from None


def _ssl(address: Address) -> Any:
    if address.ssl == "disable" or address.socket_file:
        return False
    if address.ssl == "prefer":
        return None
    if address.ssl == "require":
        return True
    try:
        return ssl.create_default_context(cafile=address.root)
    except OSError:
        raise InputError(f"sslrootcert {address.root!r} cannot be read; check the path") from None


def _input_error(error: Any, query: Query, address: Address) -> InputError:
    """Return an error of one line for a server's error."""
    fields = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
    code, text = fields.get("C", ""), str(fields.get("M", "")).splitlines()[:1]
    if code.startswith("28"):
        return InputError(f"{address.host!r} refuses the password of user {address.user!r}; {ADVICE}")
    if code == "3D000":
        return InputError(f"{address.host!r} has no database {address.database!r}; check the URL")
    if code in ("25006", "0A000"):
        return InputError("the query would write; a site's database is only read: ask with a plain SELECT")
    if code.startswith("42") and text:
        return InputError(f"the query on {query.where} cannot be run: {text[0]}; correct the query or the name")
    if code.startswith("22"):
        return InputError(f"the query on {query.where} fails on some row (SQLSTATE {code}); try it in psql")
    return InputError(f"{query.where} cannot answer (SQLSTATE {code or 'unknown'}); the server's log says more")


def _read(connection: Any, query: Query, sink: Callable[["pl.DataFrame"], object], room: int) -> None:
    run = connection.execute_unnamed  # one statement at a time, whatever is in the query
    run("START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    for setting in ("client_encoding TO 'UTF8'", "extra_float_digits TO 3", "datestyle TO 'ISO'", "timezone TO 'UTC'"):
        run(f"SET LOCAL {setting}")
    source = query.select()
    described = run(f"SELECT * FROM {source} LIMIT 0").columns  # noqa: S608, the owner's own query
    names, kinds = [column["name"] for column in described], [column["type_oid"] for column in described]
    query.check_columns(names)
    types = _types(run, names, kinds)
    order = ", ".join(_ordered(name, dtype) for name, dtype in zip(names, types, strict=True))
    rows = Rows(room // 4, lambda text: sink(_frame(text, names, types)))
    run(f"COPY (SELECT * FROM {source} ORDER BY {order}) TO STDOUT (FORMAT csv)", stream=rows)  # noqa: S608
    rows.close()
    run("ROLLBACK")


def _types(run: Any, names: list[str], kinds: list[int]) -> list[Any]:
    """Find the type of every column; raise ``SchemaError`` for what is neither a number, text nor a date."""
    import polars as pl

    known: dict[int, Any] = dict.fromkeys(_WHOLE, pl.Int64) | dict.fromkeys(_NUMBER, pl.Float64)
    known |= dict.fromkeys(_TRUTH, pl.Boolean) | dict.fromkeys(_TEXT, pl.String)
    known |= dict.fromkeys(_DAY, pl.Date) | dict.fromkeys(_TIME, pl.Datetime)
    others = sorted(set(kinds) - known.keys())
    type_names = {}
    if others:
        listed = ", ".join(map(str, others))
        asked = f"SELECT oid, typcategory, typname FROM pg_catalog.pg_type WHERE oid IN ({listed})"  # noqa: S608
        for kind, category, name in run(asked).rows:
            type_names[int(kind)] = name
            if category in ("E", "S"):  # enumerations, and texts of other modules
                known[int(kind)] = pl.String
    for name, kind in zip(names, kinds, strict=True):
        if kind not in known:
            raise SchemaError(
                f"column {name!r} is of type {type_names.get(kind, kind)}; only numbers, booleans and text can be "
                "used: leave it out of the query, or say in it what you want of it"
            )
    return [known[kind] for kind in kinds]


def _ordered(name: str, dtype: Any) -> str:
    """Return the order by a column, of texts by their bytes: the server's language may change."""
    import polars as pl

    return f'{quoted(name)}::text COLLATE "C"' if dtype == pl.String else quoted(name)


def _frame(text: bytes, names: list[str], types: list[Any]) -> "pl.DataFrame":
    """Read rows that the server wrote."""
    import polars as pl

    plain = {name: t if t in (pl.Int64, pl.Float64) else pl.String for name, t in zip(names, types, strict=True)}
    frame = pl.read_csv(text, has_header=False, schema=plain, raise_if_empty=False)
    typed = []
    for name, dtype in zip(names, types, strict=True):
        if dtype == pl.Boolean:
            typed.append(pl.col(name) == "t")
        elif dtype == pl.Date:
            typed.append(pl.col(name).str.to_date("%Y-%m-%d", strict=False))
        elif dtype == pl.Datetime:
            typed.append(pl.col(name).str.slice(0, 19).str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False))
    return frame.with_columns(typed)
