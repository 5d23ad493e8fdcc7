"""The cohort query: parsed, refused unless it only selects from known tables, and written for a site's database.

A study's author writes SQL that runs at other people's sites. All allowed elements are listed; anything else is
refused. Arithmetic with dates, which databases write differently, is recognised by its types.
"""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from silvan.data.hospital.cdm_tables import TABLES
from silvan.data.hospital.cohort import INDEX_DATE, PERSON
from silvan.errors import InputError

_CLAUSES = """
    Select From Join Where Group Having With CTE Subquery Table TableAlias Union Intersect Except Distinct Window
    WindowSpec Order Ordered
"""
_VALUES = """
    Column Identifier Alias Literal Star Null Boolean Paren Tuple Between In Exists And Or Not EQ NEQ GT GTE LT LTE Is
    Case If Cast DataType DataTypeParam Interval Var Add Sub Mul Div Mod Neg Like
"""
_FUNCTIONS = """
    Count Sum Min Max Avg Coalesce Nullif Abs Round Floor Ceil Greatest Least Lower Upper Extract RowNumber Rank
    DenseRank Lag Lead FirstValue LastValue
"""
_ALLOWED = frozenset(f"{_CLAUSES} {_VALUES} {_FUNCTIONS}".split())
"""The allowed elements of a query, by sqlglot's names."""

_NEEDED = PERSON, INDEX_DATE
_DATES = ("DATE", "TIMESTAMP")
_MOST_STEPS = 200  # pieces of date arithmetic in a query


class Dialect(NamedTuple):
    """The syntax of a database: dates, their parts, days between two, a moment, and a list of ids."""

    name: str  # sqlglot's name for it
    date: str
    part: str
    days: str
    later: str
    moment: str
    ids: str


DIALECTS: Mapping[str, Dialect] = {
    "postgresql": Dialect(
        "postgres",
        "CAST({0} AS DATE)",
        "CAST(EXTRACT({1} FROM {0}) AS INTEGER)",
        "(CAST({0} AS DATE) - CAST({1} AS DATE))",
        "(CAST({0} AS DATE) + CAST({1} AS INTEGER))",
        "CAST({0} AS TIMESTAMP)",
        "VALUES {0}",
    ),
    "sqlite": Dialect(
        "sqlite",
        "DATE({0})",
        "CAST(STRFTIME('%{2}', {0}) AS INTEGER)",
        "CAST(ROUND(JULIANDAY(DATE({0})) - JULIANDAY(DATE({1}))) AS INTEGER)",
        "DATE({0}, ({1}) || ' days')",
        "DATETIME({0})",
        "VALUES {0}",
    ),
    "mssql": Dialect(
        "tsql",
        "CAST({0} AS DATE)",
        "DATEPART({1}, {0})",
        "DATEDIFF(DAY, {1}, {0})",
        "DATEADD(DAY, {1}, CAST({0} AS DATE))",
        "CAST({0} AS DATETIME2)",
        "SELECT one FROM (VALUES {0}) AS silvan_ids(one)",
    ),
}
"""The databases that a cohort can be read from."""

PARTS = {"YEAR": "Y", "MONTH": "m", "DAY": "d"}


class CohortQuery:
    """A checked cohort query. ``columns`` are its output besides the person and the index date."""

    def __init__(self, text: str, concepts: list[str]) -> None:
        self._glot = import_sqlglot()
        self._concepts = {name for name in concepts if re.fullmatch(r"[a-z_][a-z0-9_]*", name)}
        self._tree = self._typed(self._allowed(text))
        names = [select.alias_or_name for select in self._selects()]
        lacking = [name for name in _NEEDED if name not in names]
        if lacking:
            raise InputError(f"the cohort query does not return {' and '.join(lacking)}; name the column with AS")
        if len(set(names)) < len(names):
            raise InputError("the cohort query returns two columns of the same name; name them apart with AS")
        self.columns = [name for name in names if name not in _NEEDED]
        self.used = {table.name for table in self._tree.find_all(self._glot.exp.Table)} & self._concepts

    def _selects(self) -> list[Any]:
        return list(self._tree.selects)

    def _allowed(self, text: str) -> Any:
        """Parse the text; raise ``InputError`` unless it is one SELECT of allowed pieces."""
        exp = self._glot.exp
        try:
            parsed = [tree for tree in self._glot.parse(text, read="postgres") if tree is not None]
        except (self._glot.errors.SqlglotError, RecursionError) as error:
            raise InputError(f"the cohort query cannot be read as SQL: {_plain(error)}") from None
        if len(parsed) != 1 or not isinstance(parsed[0], exp.Select | exp.SetOperation):
            raise InputError("the cohort query must be a single SELECT: a site's database is only read")
        (tree,) = parsed
        for node in tree.walk():
            kind = type(node).__name__
            if kind not in _ALLOWED:
                raise InputError(
                    f"the cohort query uses {_shown(node)}, which is not allowed: it may only select, join, group and "
                    "compare, with common functions"
                )
            if isinstance(node, exp.Table) and (node.db or node.catalog):
                raise InputError(f"the cohort query names {_shown(node)}; tables of the OMOP CDM stand without schema")
            if isinstance(node, exp.With) and (node.parent is not tree or node.args.get("recursive")):
                raise InputError(
                    "the cohort query has a WITH that is recursive or inside of it; put it at the beginning"
                )
            if isinstance(node, exp.Order) and not isinstance(node.parent, exp.Window):
                raise InputError("the cohort query has an ORDER BY; leave it out, for rows are sorted anyway")
            if isinstance(node, exp.Extract) and node.name.upper() not in PARTS:
                raise InputError(f"the cohort query uses {_shown(node)}; EXTRACT takes YEAR, MONTH or DAY")
        self._check_tables(tree)
        return tree

    def _check_tables(self, tree: Any) -> None:
        exp, known = self._glot.exp, {*TABLES, *self._concepts}
        own = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
        if taken := sorted(own & known | {name for name in own if name.startswith("silvan_")}):
            raise InputError(f"the cohort query calls a part of it {taken[0]!r}, which is taken; choose another name")
        for table in tree.find_all(exp.Table):
            if table.name.lower() not in known | own:
                raise InputError(
                    f"the cohort query reads {table.name!r}, which is neither a table of the OMOP CDM that studies may "
                    "read nor a name of [concepts]"
                )

    def _typed(self, tree: Any) -> Any:
        """Resolve all columns and their types, and normalise arithmetic with dates."""
        from sqlglot.optimizer.annotate_types import annotate_types
        from sqlglot.optimizer.qualify import qualify
        from sqlglot.schema import MappingSchema

        known: dict[str, Any] = {**{name: dict(columns) for name, columns in TABLES.items()}}
        known |= {name: {"concept_id": "BIGINT"} for name in self._concepts}
        schema = MappingSchema(known, dialect="postgres")
        try:
            tree = qualify(tree, schema=schema, dialect="postgres", quote_identifiers=False)
            for _ in range(_MOST_STEPS):
                tree = annotate_types(tree, schema=schema, dialect="postgres")
                if not self._one_step(tree):
                    break
        except (self._glot.errors.SqlglotError, RecursionError) as error:
            raise InputError(f"the cohort query cannot be understood: {_plain(error)}") from None
        for select in tree.selects:
            if select.type is not None and select.type.this.name == "BOOLEAN":
                name = select.alias_or_name
                raise InputError(
                    f"{name!r} of the cohort query is true or false; write CASE WHEN ... THEN 1 ELSE 0 END"
                )
        return tree

    def _one_step(self, tree: Any) -> bool:
        """Convert the first piece of arithmetic with dates, innermost first, to ``DateDiff`` or ``DateAdd``."""
        from sqlglot.optimizer.scope import traverse_scope

        exp = self._glot.exp
        for scope in traverse_scope(tree):
            for node in reversed(list(scope.expression.find_all(exp.Add, exp.Sub))):
                left, right = node.this, node.expression
                if not _is_date(left):
                    if _is_date(right) or isinstance(right, exp.Interval):
                        raise InputError(f"the cohort query has {_shown(node)}; write the date first")
                    continue
                if _is_date(right) and not isinstance(right, exp.Interval):
                    if isinstance(node, exp.Add):
                        raise InputError(f"the cohort query adds two dates: {_shown(node)}")
                    node.replace(exp.DateDiff(this=left.copy(), expression=right.copy(), unit=exp.var("DAY")))
                    return True
                days = self._days(right)
                days = exp.Neg(this=exp.Paren(this=days)) if isinstance(node, exp.Sub) else days
                node.replace(exp.DateAdd(this=left.copy(), expression=days, unit=exp.var("DAY")))
                return True
        return False

    def _days(self, node: Any) -> Any:
        """Return a number of days, which may also be given as an interval."""
        exp = self._glot.exp
        if not isinstance(node, exp.Interval):
            return node.copy()
        unit, count = str(node.args.get("unit") or "").upper().rstrip("S"), node.this
        if unit != "DAY" or not isinstance(count, exp.Literal) or not count.name.lstrip("-").isdigit():
            raise InputError(f"the cohort query has {_shown(node)}; databases differ in months, so write days")
        return exp.convert(int(count.name))

    def written(self, dialect: Dialect, place: Callable[[str], str]) -> list[tuple[str, str]]:
        """Return the parts of the query by name, the query itself last as "silvan_cohort", for a database.

        ``place`` returns how a table of the CDM is called there.
        """
        exp, tree = self._glot.exp, self._tree.copy()
        for table in list(tree.find_all(exp.Table)):
            name = table.name
            if name in TABLES or name in self._concepts:
                whole = exp.to_table(place(name), dialect=dialect.name) if name in TABLES else exp.Table()
                table.set("db", whole.args.get("db"))
                table.set("this", whole.this if name in TABLES else exp.to_identifier(name, quoted=True))
        tree = tree.transform(lambda node: self._of_dialect(node, dialect))
        parts = tree.args.pop("with_", None) or tree.args.pop("with", None)
        found = [] if parts is None else [(cte.alias, cte.this) for cte in parts.expressions]
        return [
            (name, one.sql(dialect=dialect.name, comments=False)) for name, one in [*found, ("silvan_cohort", tree)]
        ]

    def _of_dialect(self, node: Any, dialect: Dialect) -> Any:
        exp = self._glot.exp

        def filled(template: str, *pieces: Any) -> Any:
            texts = [p if isinstance(p, str) else self._in(p, dialect) for p in pieces]
            return exp.maybe_parse(template.format(*texts), dialect=dialect.name)

        if isinstance(node, exp.DateDiff):
            return filled(dialect.days, node.this, node.expression)
        if isinstance(node, exp.DateAdd):
            return filled(dialect.later, node.this, node.expression)
        if isinstance(node, exp.Extract):
            part = node.name.upper()
            return filled(dialect.part, node.expression, part, PARTS[part])
        return node

    def _in(self, node: Any, dialect: Dialect) -> str:
        return node.copy().transform(lambda inner: self._of_dialect(inner, dialect)).sql(dialect=dialect.name)


def import_sqlglot() -> Any:
    """Return the library that reads and writes SQL; its log messages become errors."""
    try:
        import sqlglot
    except ImportError:
        raise InputError("a study with a [cohort] needs sqlglot; run: pip install 'silvan[omop]'") from None
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    return sqlglot


def _is_date(node: Any) -> bool:
    return node.type is not None and node.type.this.name.startswith(_DATES)


def _shown(node: Any) -> str:
    return repr(node.sql(dialect="postgres")[:80])


def _plain(error: Exception) -> str:
    text = re.sub(r"\x1b\[\d+m", "", str(error)).splitlines()
    return re.sub(r" but got <.*?>(?=\. Line|$)", "", text[0] if text else "it is too long").rstrip(".")[:200]
