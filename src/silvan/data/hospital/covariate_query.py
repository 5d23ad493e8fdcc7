"""One query for a whole table: the cohort, joined with each covariate's summary of a person's records.

Records are read once per domain: joined with the relevant concepts and days, and summarised by person. So a database
reads each of its tables once, however many covariates there are, and sends one row per person.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from silvan.data.hospital.cdm_tables import DOMAINS, VOCABULARY
from silvan.data.hospital.cohort import CohortPlan, Concepts, Covariate
from silvan.data.hospital.cohort_query import DIALECTS, PARTS, CohortQuery, Dialect
from silvan.data.readers.query import Query, quoted

Accepted = Mapping[int, Sequence[tuple[int, float, float]]]
"""The accepted units of a covariate, by its number, each with a factor and an offset."""


@dataclass(frozen=True)
class Cdm:
    """A database with tables of the OMOP CDM.

    ``ids`` are the concept ids that the names of a study stand for, where the database was made of FHIR files.
    """

    url: str
    schema: str = ""
    vocabulary: str = ""
    seconds: float | None = None
    ids: Mapping[str, Sequence[int]] | None = None

    @property
    def scheme(self) -> str:
        """The kind of database."""
        return Query(self.url, "SELECT 1").scheme

    def table(self, name: str) -> str:
        """Return a table's name in the database."""
        schema = self.vocabulary if self.vocabulary and name in VOCABULARY else self.schema
        return f"{quoted(schema, self.scheme)}.{name}" if schema else name

    def query(self, select: str, parts: Sequence[tuple[str, str]] = ()) -> Query:
        """Return a query with named parts before it."""
        before = ",\n".join(f"{name} AS ({text})" for name, text in parts)
        return Query(self.url, select, before=f"WITH {before}\n" if before else "", seconds=self.seconds)


class _Asked(NamedTuple):
    number: int
    name: str
    how: Covariate


class CovariateQuery:
    """The queries of a plan for one database."""

    def __init__(self, plan: CohortPlan, cohort: CohortQuery, cdm: Cdm) -> None:
        self._plan, self._cohort, self._cdm = plan, cohort, cdm
        self._dialect: Dialect = DIALECTS[cdm.scheme]
        self._asked = [_Asked(number, name, how) for number, (name, how) in enumerate(plan.covariates.items())]
        used = cohort.used | {one.how.concepts for one in self._asked if one.how.concepts is not None}
        self.concepts = {name: plan.concepts[name] for name in plan.concepts if name in used}
        self.with_units = [one.number for one in self._asked if one.how.take == "last"]

    # -- checks
    def persons(self) -> Query:
        """Return the query for the numbers of rows, persons and index dates of the cohort."""
        counts = "COUNT(*) AS n, COUNT(DISTINCT person_id) AS persons, COUNT(index_date) AS dates"
        return self._cdm.query(f"SELECT {counts} FROM silvan_index", self._cohort_parts())

    def units(self) -> Query:
        """Return the query for the numbers of values by covariate and unit."""
        groups = self._groups(lasting=True)
        parts = [*self._cohort_parts(), *(self._windows(group) for group in groups)]
        counted = [
            f"SELECT s.k AS k, COALESCE(e.unit_concept_id, 0) AS unit, COUNT(*) AS n {self._joined(group)} "
            "AND e.value_as_number IS NOT NULL GROUP BY s.k, COALESCE(e.unit_concept_id, 0)"
            for group in groups
        ]
        return self._cdm.query(" UNION ALL ".join(counted), parts)

    # -- the table
    def table(self, accepted: Accepted) -> Query:
        """Return the query for the table."""
        parts, joins, columns = self._cohort_parts(), "", {}
        for lasting in (False, True):
            for group in self._groups(lasting):
                place = _name_of(group)
                parts.append(self._windows(group))
                parts += self._lasting(group, accepted) if lasting else [(place, self._summed(group))]
                joins += f" LEFT JOIN {place} ON {place}.person_id = c.person_id"
                for one in group:
                    column = f"{place}.{self._quoted(one.name)}"
                    columns[one.number] = column if lasting else f"COALESCE({column}, 0)"
        for one in self._asked:
            if one.how.domain in ("age", "sex"):
                columns[one.number] = self._age() if one.how.domain == "age" else _SEX_COLUMN
        shown = [f"c.{self._quoted(name)} AS {self._quoted(name)}" for name in self._kept]
        shown += [f"{columns[one.number]} AS {self._quoted(one.name)}" for one in self._asked]
        person = f" LEFT JOIN {self._cdm.table('person')} p ON p.person_id = c.person_id"
        return self._cdm.query(f"SELECT {', '.join(shown)} FROM silvan_index c{person}{joins}", parts)

    @property
    def _kept(self) -> list[str]:
        return ["index_date"] * self._plan.with_date + self._cohort.columns

    def _quoted(self, name: str) -> str:
        return quoted(name, self._cdm.scheme)

    def _cohort_parts(self) -> list[tuple[str, str]]:
        """Return the concepts by name, the author's query, and its rows with a date."""
        parts = [(f"{self._quoted(name)} (concept_id)", self._ids(name, one)) for name, one in self.concepts.items()]
        parts += self._cohort.written(self._dialect, self._cdm.table)
        others = "".join(f", {self._quoted(name)}" for name in self._cohort.columns)
        date = self._dialect.date.format("index_date")
        return [*parts, ("silvan_index", f"SELECT person_id, {date} AS index_date{others} FROM silvan_cohort")]

    def _ids(self, name: str, one: Concepts) -> str:
        ids = one.omop if self._cdm.ids is None else self._cdm.ids.get(name, ())
        listed = self._dialect.ids.format(", ".join(f"({number})" for number in ids or [-1]))
        if self._cdm.ids is not None or not one.descendants:
            return listed
        among = ", ".join(map(str, ids))
        return (
            f"SELECT descendant_concept_id FROM {self._cdm.table('concept_ancestor')} "
            f"WHERE ancestor_concept_id IN ({among}) UNION {listed}"
        )

    def _groups(self, lasting: bool) -> list[list[_Asked]]:
        """Return the covariates that are read together: of the same table, with concepts or without."""
        groups: dict[tuple[str, bool], list[_Asked]] = {}
        for one in self._asked:
            if one.how.domain in DOMAINS and (one.how.take == "last") == lasting:
                groups.setdefault((one.how.domain, one.how.concepts is None), []).append(one)
        return list(groups.values())

    def _windows(self, group: list[_Asked]) -> tuple[str, str]:
        """Return the concepts of each covariate, with their first and last day."""
        rows = []
        for one in group:
            first, last = one.how.window
            source = "" if one.how.concepts is None else f" FROM {self._quoted(one.how.concepts)}"
            concept = "0" if one.how.concepts is None else "concept_id"
            rows.append(f"SELECT {one.number} AS k, {concept} AS concept_id, {first} AS since, {last} AS until{source}")
        return f"{_name_of(group)}_days", " UNION ALL ".join(rows)

    def _joined(self, group: list[_Asked]) -> str:
        """Return records of the cohort that count for some covariate of a group."""
        domain = DOMAINS[group[0].how.domain]
        counts = "1 = 1" if group[0].how.concepts is None else f"s.concept_id = e.{domain.concept}"
        days = self._dialect.days.format("c.index_date", f"e.{domain.date}")
        return (
            f"FROM silvan_index c JOIN {self._cdm.table(domain.table)} e ON e.person_id = c.person_id "
            f"JOIN {_name_of(group)}_days s ON {counts} WHERE {days} BETWEEN s.until AND s.since"
        )

    def _summed(self, group: list[_Asked]) -> str:
        """Return counts of records by person."""
        how = {"any": "MAX", "count": "SUM"}
        sums = (
            f"{how[one.how.take]}(CASE WHEN s.k = {one.number} THEN 1 ELSE 0 END) AS {self._quoted(one.name)}"
            for one in group
        )
        return f"SELECT c.person_id, {', '.join(sums)} {self._joined(group)} GROUP BY c.person_id"

    def _lasting(self, group: list[_Asked], accepted: Accepted) -> list[tuple[str, str]]:
        """Return the last values by person, in the covariates' units."""
        place, domain = _name_of(group), DOMAINS[group[0].how.domain]
        units = [
            f"SELECT {one.number} AS k, {unit} AS unit, CAST({factor!r} AS DOUBLE PRECISION) AS factor, "
            f"CAST({more!r} AS DOUBLE PRECISION) AS more"
            for one in group
            for unit, factor, more in accepted.get(one.number, ())
        ]
        none = "SELECT -1 AS k, -1 AS unit, CAST(1 AS DOUBLE PRECISION) AS factor, CAST(0 AS DOUBLE PRECISION) AS more"
        value = "CAST(e.value_as_number AS DOUBLE PRECISION) * u.factor + u.more"
        moment = self._dialect.moment.format(f"COALESCE(e.{domain.datetime}, e.{domain.date})")
        joined = self._joined(group).replace(
            " WHERE ", f" JOIN {place}_units u ON u.k = s.k AND u.unit = COALESCE(e.unit_concept_id, 0) WHERE ", 1
        )
        ranked = (
            f"SELECT c.person_id, s.k, {value} AS value, ROW_NUMBER() OVER (PARTITION BY c.person_id, s.k ORDER BY "
            f"e.{domain.date} DESC, {moment} DESC, {value} DESC) AS place {joined} AND e.value_as_number IS NOT NULL"
        )
        last = (f"MAX(CASE WHEN k = {one.number} THEN value END) AS {self._quoted(one.name)}" for one in group)
        return [
            (f"{place}_units", " UNION ALL ".join(units or [none])),
            (f"{place}_ranked", ranked),
            (place, f"SELECT person_id, {', '.join(last)} FROM {place}_ranked WHERE place = 1 GROUP BY person_id"),
        ]

    def _age(self) -> str:
        def part(name: str) -> str:
            return self._dialect.part.format("c.index_date", name, PARTS[name])

        today, birthday = (
            f"({part('MONTH')} * 100 + {part('DAY')})",
            "(p.month_of_birth * 100 + COALESCE(p.day_of_birth, 1))",
        )
        before = f"CASE WHEN p.month_of_birth IS NOT NULL AND {today} < {birthday} THEN 1 ELSE 0 END"
        return f"({part('YEAR')} - p.year_of_birth - {before})"


_SEX_COLUMN = "CASE p.gender_concept_id WHEN 8507 THEN 'male' WHEN 8532 THEN 'female' END"


def _name_of(group: list[_Asked]) -> str:
    """Return the name of a part of the query."""
    one = group[0].how
    return f"silvan_{'last' if one.take == 'last' else 'all' if one.concepts is None else 'some'}_{one.domain}"
