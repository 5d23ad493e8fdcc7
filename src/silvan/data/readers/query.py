"""A table in a database: a URL and a query, both checked before connecting. Databases are only read.

The query becomes a subquery, which only works for a plain SELECT. Rows are sorted by all columns, so that the same rows
always make the same table, in whatever order the server reads them.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from silvan.data.readers.password import ADVICE
from silvan.errors import InputError, SchemaError
from silvan.util.readable import format_names

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_SCHEMES = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "sqlite": "sqlite",
    "mysql": "mysql",
    "mariadb": "mysql",
    "mssql": "mssql",
    "sqlserver": "mssql",
    "oracle": "oracle",
}
_KNOWN = "postgresql://, mysql://, mssql://, oracle:// or sqlite:///"
_SETTINGS = {
    "postgresql": {"table", "host", "sslmode", "sslrootcert", "connect_timeout"},
    "sqlite": {"table"},
    "mysql": {"table", "sslmode", "sslrootcert", "connect_timeout"},
    "mssql": {"table", "sslmode", "connect_timeout", "driver"},
    "oracle": {"table", "sslmode", "sslrootcert", "connect_timeout"},
}
_QUOTES = {"mysql": ("`", "`"), "mssql": ("[", "]")}
_SELECT = re.compile(r"(\s|--[^\n]*\n|/\*.*?\*/|\()*(select|with|values)\b", re.IGNORECASE | re.DOTALL)


class Retyped(NamedTuple):
    """Columns whose type depends on all their values, which are passed on as text."""

    types: dict[str, Any]  # the type that fits all values, by column
    refused: dict[str, str]  # the reason if there is none, by column
    mixed: frozenset[str] = frozenset()  # columns with both numbers and text


def is_url(source: Any) -> bool:
    """Whether a source is a URL rather than a path."""
    return isinstance(source, str) and _URL.match(source) is not None


@dataclass(frozen=True)
class Query:
    """A table in a database.

    Parameters
    ----------
    url
        ``postgresql://user@host:port/database``, likewise ``mysql://``, ``mssql://`` and ``oracle://``, or
        ``sqlite:///path``; a path with another leading slash is absolute. The password must not be in the URL: it
        comes from the environment or a file.
    query
        A query that begins with SELECT or WITH, or the name of a table or view, which may also be in the URL:
        ``sqlite:///clinic.db?table=visits``.
    columns
        The agreed columns, to refuse a query that returns others.
    before
        A WITH clause to put before the query, if it is not part of it.
    seconds
        How long the database may take.

    Examples
    --------
    >>> import silvan as sv
    >>> sv.Query("postgresql://reader@db.clinic.example/records", "select age, sex, label from visits")
    Query('postgresql://reader@db.clinic.example/records', 'select age, sex, label from visits')
    """

    url: str
    query: str = ""
    columns: tuple[str, ...] | None = None
    before: str = ""
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Raise ``InputError`` for an invalid query; never repeat a password in the URL."""
        scheme, settings = self.scheme, self.settings()
        if self.parts.password is not None or "password" in settings:
            raise InputError(f"the URL of a database must not hold a password; {ADVICE}")
        unknown = sorted(settings.keys() - _SETTINGS[scheme])
        if unknown:
            known = ", ".join(sorted(_SETTINGS[scheme]))
            raise InputError(f"the URL of a database sets {unknown[0]!r}; it may only set {known}")
        if self.parts.fragment:
            raise InputError("the URL of a database has a '#'; write it as %23")
        query = self.query or settings.get("table", "")
        if self.query and "table" in settings:
            raise InputError("name a table in the URL or pass a query, not both")
        object.__setattr__(self, "query", query.strip().rstrip(";").rstrip())
        if not self.query:
            raise InputError("a database needs a query, or the name of a table: pass it, or add ?table=NAME to the URL")
        if not self.is_table and not _SELECT.match(self.query):
            raise InputError("the query must begin with SELECT or WITH: a site's database is only read, never written")
        if scheme == "mssql" and (";" in self.query or re.match(r"with\b", self.query, re.IGNORECASE)):
            raise InputError("SQL Server takes no ';' and no WITH inside of a query; make it a view, and name that")
        if self.columns is not None:
            object.__setattr__(self, "columns", tuple(self.columns))

    @property
    def parts(self) -> SplitResult:
        """The parts of the URL."""
        return urlsplit(self.url)

    def settings(self) -> dict[str, str]:
        """Return the settings after the URL's question mark."""
        return dict(parse_qsl(self.parts.query, keep_blank_values=True))

    @property
    def scheme(self) -> str:
        """The kind of database; raises ``InputError`` if the URL cannot be read."""
        if not is_url(self.url):
            raise InputError(f"the URL of a database must begin with {_KNOWN}")
        try:
            parts = self.parts
            parts.port  # noqa: B018, raises
        except ValueError:
            raise InputError("the URL of a database cannot be read; its port must be a number") from None
        if parts.scheme not in _SCHEMES:
            raise InputError(f"{parts.scheme}:// is not a supported database; use {_KNOWN}")
        return _SCHEMES[parts.scheme]

    @property
    def is_table(self) -> bool:
        """Whether a table is named instead of a query."""
        return re.fullmatch(r"[^\s();,'\"]+", self.query) is not None

    @property
    def path(self) -> Path:
        """The file of an SQLite database."""
        return Path(unquote(self.parts.path.removeprefix("/")))

    @property
    def where(self) -> str:
        """The name of the database, for messages."""
        if self.scheme == "sqlite":
            return repr(str(self.path))
        return f"{unquote(self.parts.path.lstrip('/'))!r} at {self.parts.hostname or self.settings().get('host')!r}"

    def __repr__(self) -> str:
        return f"Query({self.url!r}, {self.query!r})"

    def beside(self, folder: Path) -> "Query":
        """Return the query with the relative path of an SQLite file resolved against a folder."""
        if self.scheme != "sqlite" or self.path.is_absolute():
            return self
        return replace(self, url=f"sqlite:///{quote(str((folder / self.path).absolute()))}")

    def select(self) -> str:
        """Return the query as a subquery."""
        if self.is_table:
            return ".".join(_table_name(part, self.scheme) for part in self.query.split("."))
        return f"(\n{self.query}\n) {'' if self.scheme == 'oracle' else 'AS '}silvan_rows"

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise an error if two columns have the same name, or the columns are not the agreed ones."""
        if self.scheme == "sqlite" and not self.is_table:  # SQLite renames a second column "name" to "name:1"
            names = [re.sub(r":\d+$", "", name) for name in names]
        twice = [name for name, n in Counter(names).items() if n > 1]
        if twice:
            raise InputError(
                f"the query returns more than one column called {format_names(twice)}; rename them with AS"
            )
        if self.columns is None or set(self.columns) == set(names):
            return
        lacks = [name for name in self.columns if name not in names]
        extra = [name for name in names if name not in self.columns]
        parts = [f"lacks {format_names(lacks, 50)}"] * bool(lacks)
        parts += [f"has {format_names(extra, 50)} besides"] * bool(extra)
        raise SchemaError(
            f"the query does not return the columns agreed on: it {' and '.join(parts)}; change the query"
        )


def quoted(name: str, scheme: str = "") -> str:
    """Return a name in SQL quotes, which differ in MySQL and SQL Server."""
    first, last = _QUOTES.get(scheme, ('"', '"'))
    return first + name.replace(last, 2 * last) + last


def _table_name(name: str, scheme: str) -> str:
    """Return a table's name in quotes; Oracle ignores the case of plain names only without quotes."""
    plain = scheme == "oracle" and re.fullmatch(r"[A-Za-z][A-Za-z0-9_$#]*", name)
    return name if plain else quoted(name, scheme)
