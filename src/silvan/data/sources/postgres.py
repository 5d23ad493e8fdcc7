"""Tables in PostgreSQL.

One read-only transaction sees one state of the database. The rows come by COPY, which the server sends as they are
found: nothing waits for all of them, here or there. The server's own messages are repeated only where they are about
the query, before a row is looked at: later ones may quote values.
"""

import getpass
import os
import socket
import ssl
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from silvan.data.sources.csv_pieces import Rows
from silvan.data.sources.password import ADVICE, find_password
from silvan.data.sources.query import Query, Sink, quoted
from silvan.errors import InputError, SchemaError

if TYPE_CHECKING:
    import polars as pl

_WHOLE, _NUMBER, _TRUTH = (20, 21, 23, 26), (700, 701, 1700), (16,)
_TEXT, _DAY, _TIME = (18, 19, 25, 1042, 1043, 2950), (1082,), (1114, 1184)
"""Types by their numbers in the server's catalogue, which are the same in all versions."""

_SSL = ("disable", "prefer", "require", "verify-full")


class Place(NamedTuple):
    """Where a database is and who asks."""

    host: str
    port: int
    database: str
    user: str
    ssl: str
    root: str | None
    timeout: float

    @property
    def local(self) -> str:
        """The socket's file, if the server is reached by one."""
        return f"{self.host.rstrip('/')}/.s.PGSQL.{self.port}" if self.host.startswith("/") else ""


def read_postgres(query: Query, sink: Sink, room: int) -> None:
    """Read all rows of a query in batches."""
    try:
        import pg8000.native
    except ImportError:
        raise InputError("reading PostgreSQL needs a driver; run: pip install 'silvan[sql]'") from None
    place = _place(query)
    try:
        with closing(_connect(place)) as connection:
            _read(connection, query, sink, room)
    except pg8000.exceptions.DatabaseError as error:
        raise _explained(error, query, place) from None
    except (pg8000.exceptions.InterfaceError, OSError):
        raise InputError(f"the connection to {query.where} broke; try again") from None


def _place(query: Query) -> Place:
    """Put together what the URL says and, where it is silent, what the environment does."""
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
    return Place(host, port, database, user, mode, root, timeout)


def _connect(place: Place) -> Any:
    import pg8000.native

    password = find_password(place.host, place.port, place.database, place.user)
    sock = _socket(place)
    try:
        connection = pg8000.native.Connection(
            place.user,
            host=place.host,
            database=place.database,
            password=password,
            sock=sock,
            ssl_context=_ssl(place),
            application_name="silvan",
        )
    except ssl.SSLError:
        sock.close()
        raise InputError(
            f"the certificate of {place.host!r} cannot be trusted; name its authority in the URL: sslrootcert=FILE, "
            "or say sslmode=require if anybody may answer for it"
        ) from None
    except (pg8000.exceptions.InterfaceError, AttributeError) as error:
        sock.close()
        if password is None and ("password" in str(error) or isinstance(error, AttributeError)):
            raise InputError(f"{place.host!r} asks {place.user!r} for a password and there is none; {ADVICE}") from None
        if "SSL" in str(error):
            raise InputError(
                f"{place.host!r} offers no TLS; set it up, or say sslmode=disable in the URL if you trust the network"
            ) from None
        raise
    except BaseException:
        sock.close()
        raise
    connection._usock.settimeout(None)  # a query may take its time, a connection may not
    return connection


def _socket(place: Place) -> socket.socket:
    try:
        if place.local:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(place.timeout)
            sock.connect(place.local)
            return sock
        sock = socket.create_connection((place.host, place.port), place.timeout)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return sock
    except socket.gaierror:
        raise InputError(f"there is no host {place.host!r}; check the name in the URL, and the network") from None
    except TimeoutError:
        raise InputError(
            f"{place.host!r} does not answer within {place.timeout:g} s; check host, port, firewall"
        ) from None
    except OSError:
        raise InputError(
            f"no PostgreSQL server listens at {place.host!r}, port {place.port}; check host and port, and that it runs"
        ) from None


def _ssl(place: Place) -> Any:
    if place.ssl == "disable" or place.local:
        return False
    if place.ssl == "prefer":
        return None
    if place.ssl == "require":
        return True
    try:
        return ssl.create_default_context(cafile=place.root)
    except OSError:
        raise InputError(f"sslrootcert {place.root!r} cannot be read; check the path") from None


def _explained(error: Any, query: Query, place: Place) -> InputError:
    """Turn a server's error into one line."""
    replies = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
    code, text = replies.get("C", ""), str(replies.get("M", "")).splitlines()[:1]
    if code.startswith("28"):
        return InputError(f"{place.host!r} refuses the password of user {place.user!r}; {ADVICE}")
    if code == "3D000":
        return InputError(f"{place.host!r} has no database {place.database!r}; check the URL")
    if code in ("25006", "0A000"):
        return InputError("the query would write; a site's database is only read: ask with a plain SELECT")
    if code.startswith("42") and text:
        return InputError(f"the query on {query.where} cannot be run: {text[0]}; correct the query or the name")
    if code.startswith("22"):
        return InputError(f"the query on {query.where} fails on some row (SQLSTATE {code}); try it in psql")
    return InputError(f"{query.where} cannot answer (SQLSTATE {code or 'unknown'}); the server's log says more")


def _read(connection: Any, query: Query, sink: Sink, room: int) -> None:
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
    """Find the type of every column; what is neither a number, text nor a date is refused."""
    import polars as pl

    known: dict[int, Any] = dict.fromkeys(_WHOLE, pl.Int64) | dict.fromkeys(_NUMBER, pl.Float64)
    known |= dict.fromkeys(_TRUTH, pl.Boolean) | dict.fromkeys(_TEXT, pl.String)
    known |= dict.fromkeys(_DAY, pl.Date) | dict.fromkeys(_TIME, pl.Datetime)
    others = sorted(set(kinds) - known.keys())
    said = {}
    if others:
        listed = ", ".join(map(str, others))
        asked = f"SELECT oid, typcategory, typname FROM pg_catalog.pg_type WHERE oid IN ({listed})"  # noqa: S608
        for kind, category, name in run(asked).rows:
            said[int(kind)] = name
            if category in ("E", "S"):  # enumerations, and texts of other modules
                known[int(kind)] = pl.String
    for name, kind in zip(names, kinds, strict=True):
        if kind not in known:
            raise SchemaError(
                f"column {name!r} is of type {said.get(kind, kind)}; only numbers, booleans and text can be used: "
                "leave it out of the query, or say in it what you want of it"
            )
    return [known[kind] for kind in kinds]


def _ordered(name: str, dtype: Any) -> str:
    """Order by a column, texts by their bytes: the server's language may change."""
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
