"""A site's OMOP database: its address, and all checks before a study's query runs in it.

Small queries first check what could change a study's meaning silently: the version of the model, whether the vocabulary
knows the concepts, whether a person has two rows, and the units of values.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

from silvan.data.hospital.cohort import NO_UNIT, CohortPlan
from silvan.data.hospital.cohort_query import DIALECTS, CohortQuery
from silvan.data.hospital.covariate_query import Cdm, CovariateQuery
from silvan.data.readers.database import read_batches
from silvan.data.readers.query import Query
from silvan.errors import InputError, UnavailableError
from silvan.util.readable import count_of, format_names

log = logging.getLogger("silvan.data")

PREFIX = "omop:"
_SECONDS = 3600.0
_OWN = ("schema", "vocabulary", "seconds")
_VERSION = re.compile(r"\D*(5\.[34])(\D.*)?")
_MOST_IDS = 20


@dataclass(frozen=True)
class Omop:
    """An OMOP database, as ``omop:postgresql://reader@host/database?schema=cdm``.

    ``schema`` and ``vocabulary`` say where its tables are, if not where the user finds them anyway; ``seconds`` is how
    long a query may take.
    """

    cdm: Cdm
    text: str

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the database of an address."""
        address, _, settings = text.removeprefix(PREFIX).partition("?")
        given = dict(parse_qsl(settings, keep_blank_values=True))
        own = {key: given.pop(key) for key in _OWN if key in given}
        try:
            seconds = float(own.pop("seconds", _SECONDS))
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < 1e6:
            raise InputError("seconds in the address of an OMOP database must be a number above 0")
        cdm = Cdm(
            f"{address}?{urlencode(given, safe='/')}" if given else address,
            own.get("schema", ""),
            own.get("vocabulary", ""),
            seconds,
        )
        if Query(cdm.url, "SELECT 1").scheme not in DIALECTS:
            raise InputError("OMOP databases are read in PostgreSQL, SQLite and SQL Server; use one of these")
        return cls(cdm, text)

    @property
    def where(self) -> str:
        """The name of the database, for messages."""
        return f"the OMOP database {Query(self.cdm.url, 'SELECT 1').where}"

    def beside(self, folder: Path) -> Self:
        """Return it with the relative path of an SQLite file resolved against a folder."""
        url = Query(self.cdm.url, "SELECT 1").beside(folder).url
        tail = f"?{self.text.split('?', 1)[1]}" if "?" in self.text else ""
        return replace(self, cdm=replace(self.cdm, url=url), text=f"{PREFIX}{url.split('?')[0]}{tail}")

    def check(self) -> int:
        """Raise ``InputError`` unless it can be read; return the number of persons."""
        self._check_version()
        return int(rows(self.cdm.query(f"SELECT COUNT(*) AS n FROM {self.cdm.table('person')}"))[0][0])

    @contextmanager
    def opened(self, plan: CohortPlan, folder: Any) -> Iterator[Query]:
        """Yield the query for the table of a study."""
        self._check_version()
        cohort = CohortQuery(plan.query, list(plan.concepts))
        query = CovariateQuery(plan, cohort, self.cdm)
        lacking = [name for name, one in query.concepts.items() if not one.omop]
        if lacking:
            raise InputError(f"[concepts] has no OMOP concept ids for {format_names(lacking)}, and this site has OMOP")
        self._check_concepts(query)
        yield checked(query, plan, self.cdm, self.where)

    def _check_version(self) -> None:
        rows(self.cdm.query("SELECT 1 AS one"))  # reports if there is no database
        try:
            versions = rows(self.cdm.query(f"SELECT cdm_version FROM {self.cdm.table('cdm_source')}"))
        except UnavailableError:
            raise
        except InputError as error:
            raise InputError(
                f"{self.where} has no cdm_source that can be read, which says its version ({error}); if its tables are "
                "in a schema, name it in the address: ?schema=cdm"
            ) from None
        wrong = [str(version) for (version,) in versions if not _VERSION.fullmatch(str(version))]
        if wrong or not versions:
            said = f"version {wrong[0]!r}" if versions else "no version"
            raise InputError(f"{self.where} has {said} of the CDM in cdm_source; versions 5.3 and 5.4 can be read")

    def _check_concepts(self, query: CovariateQuery) -> None:
        """Raise ``InputError`` for ids that the vocabulary does not have, or for descendants where there is none."""
        known = self._vocabulary("concept", "concept_id", query)
        missing = [
            f"{number} ({name})"
            for name, one in query.concepts.items()
            for number in one.omop
            if known is not None and number not in known
        ]
        if missing:
            raise InputError(
                f"the vocabulary of {self.where} does not know {count_of(len(missing), 'concept id')} of the study: "
                f"{', '.join(missing[:_MOST_IDS])}; correct [concepts], or load a newer vocabulary"
            )
        asking = [name for name, one in query.concepts.items() if one.descendants]
        if asking and self._vocabulary("concept_ancestor", "ancestor_concept_id", query) is None:
            raise InputError(
                f"{self.where} has no vocabulary (concept_ancestor is absent or empty), and {format_names(asking)} "
                "asks for descendants; load the vocabulary, or list all concept ids"
            )

    def _vocabulary(self, table: str, column: str, query: CovariateQuery) -> set[int] | None:
        """Return which concept ids of the study a table of the vocabulary has; None if it has no row at all."""
        ids = sorted({number for one in query.concepts.values() for number in one.omop})
        place = self.cdm.table(table)
        biggest = rows_if_any(self.cdm.query(f"SELECT MAX({column}) AS n FROM {place}"))
        if biggest in ([], [(None,)]):
            return None
        among = ", ".join(map(str, ids or [-1]))
        found = rows(self.cdm.query(f"SELECT DISTINCT {column} AS n FROM {place} WHERE {column} IN ({among})"))
        return {int(number) for (number,) in found}


# -- checks that apply to FHIR files too, once they are tables


def checked(query: CovariateQuery, plan: CohortPlan, cdm: Cdm, where: str) -> Query:
    """Check the persons and the units of a cohort; return the query for its table."""
    n, persons, dates = (int(value) for value in rows(query.persons())[0])
    if not n:
        raise InputError(f"the cohort query finds no person in {where}")
    if n > persons:
        raise InputError(
            f"the cohort query returns {n:,} rows for {count_of(persons, 'person')} in {where}; each person must "
            "have one row: GROUP BY person_id, or choose one with ROW_NUMBER"
        )
    if dates < n:
        raise InputError(
            f"the cohort query returns no index_date that is a date for {count_of(n - dates, 'person')} in {where}; "
            "leave them out with WHERE, and write dates as 2020-01-31"
        )
    return query.table(_accepted(query, plan, cdm, where) if query.with_units else {})


def _accepted(
    query: CovariateQuery, plan: CohortPlan, cdm: Cdm, where: str
) -> dict[int, list[tuple[int, float, float]]]:
    """Return the accepted units of covariates, by concept id; raise ``InputError`` if there are values in others."""
    counts: dict[int, dict[int, int]] = {}
    for k, unit, n in rows(query.units()):
        counts.setdefault(int(k), {})[int(unit)] = int(n)
    named = list(plan.covariates.items())
    ids = _unit_ids({unit for _, one in named for unit in one.units}, plan, cdm)
    accepted = {}
    for number in query.with_units:
        name, one = named[number]
        accepted[number] = [(i, *how) for unit, how in one.units.items() for i in ids[unit]]
        taken, found = {i for i, _, _ in accepted[number]}, counts.get(number, {})
        others = {i: n for i, n in found.items() if i not in taken}
        if not others:
            continue
        units = ", ".join(_unit_names(list(others)[:_MOST_IDS], cdm))
        said = f"{sum(others.values()):,} of {sum(found.values()):,} values of {name!r} in {where} are in {units}"
        if one.other_units == "refuse":
            raise InputError(
                f"{said}, not in {' or '.join(one.units)}; say in the study how to convert them, as convert = "
                '{ "mg/dL" = 0.0555 }, or set other_units = "leave out"'
            )
        log.warning("%s and are left out", said)
    return accepted


def _unit_ids(units: set[str], plan: CohortPlan, cdm: Cdm) -> dict[str, list[int]]:
    """Return the concept ids of units: those of the study, otherwise those of UCUM codes in the vocabulary."""
    found: dict[str, list[int]] = {NO_UNIT: [0]}
    if cdm.ids is None:
        found |= {unit: list(plan.concepts[unit].omop) for unit in units if unit in plan.concepts}
    for unit in sorted(units - found.keys()):
        code = unit.replace("'", "''")
        where = f"WHERE vocabulary_id = 'UCUM' AND concept_code = '{code}'"
        known = rows_if_any(cdm.query(f"SELECT concept_id FROM {cdm.table('concept')} {where}"))
        found[unit] = [int(row[0]) for row in known]
        if not known and cdm.ids is None:
            raise InputError(
                f"the vocabulary of this site's database has no unit {unit!r}; name its concept id in the study: "
                f'"{unit}" = {{ omop = [...] }} in [concepts]'
            )
    return found


def _unit_names(ids: Sequence[int], cdm: Cdm) -> list[str]:
    """Return the UCUM codes of units, or their ids."""
    among = f"concept_id IN ({', '.join(map(str, ids))})"
    found = rows_if_any(cdm.query(f"SELECT concept_id, concept_code FROM {cdm.table('concept')} WHERE {among}"))
    codes = {int(row[0]): str(row[1]) for row in found} | {0: "no unit"}
    return [codes.get(i, f"unit {i}") for i in ids]


def rows(query: Query) -> list[tuple[Any, ...]]:
    """Return the rows of a small query."""
    found: list[tuple[Any, ...]] = []
    read_batches(query, lambda frame: found.extend(frame.rows()))
    return found


def rows_if_any(query: Query) -> list[tuple[Any, ...]]:
    """Return the rows of a small query; none if it cannot run because the table does not exist."""
    try:
        return rows(query)
    except UnavailableError:
        raise
    except InputError:
        return []
