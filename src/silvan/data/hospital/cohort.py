"""A study's definition of its rows at sites with OMOP databases or FHIR files: a cohort, concepts and covariates.

The same text gives the same columns at every site. Concepts have a name in the study, and stand for concept ids at
sites with OMOP and for codes at sites with FHIR. Everything here is part of the study's text, so owners approve it.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from silvan.data.hospital.cdm_tables import DOMAINS, TABLES
from silvan.util.declared import NOT_EMPTY, about
from silvan.util.readable import count_of, format_names

Text = Annotated[str, Meta(pattern=NOT_EMPTY)]
PERSON, INDEX_DATE = "person_id", "index_date"
NO_UNIT = "none"
ALWAYS = 1_000_000
"""Days before the index date that precede all records."""

_CODE = re.compile(r"[^|\s]+\|\S.*")
_MOST_NAMED = 12


def _check_codes(codes: tuple[str, ...]) -> None:
    if not all(map(_CODE.fullmatch, codes)):
        raise ValueError


def _check_days(days: int | tuple[int, ...] | None) -> None:
    if isinstance(days, tuple) and (len(days) != 2 or days[0] < days[1]):
        raise ValueError


def _check_factors(by_unit: dict[str, float | tuple[float, ...]]) -> None:
    for how in by_unit.values():
        numbers = how if isinstance(how, tuple) else (how, 0.0)
        if len(numbers) != 2 or numbers[0] == 0 or not all(map(math.isfinite, numbers)):
            raise ValueError


_Day = Annotated[int, Meta(ge=0, le=ALWAYS)]
_DAYS = about(
    expected="a number of days before the index date, or two with the earlier day first, as [365, 1]",
    check=_check_days,
)
_CODES = about(expected="a list of codes as 'system|code', such as 'http://loinc.org|4548-4'", check=_check_codes)
_FACTORS = about(expected="a factor other than 0, or [factor, sum], by unit", check=_check_factors)


class Cohort(msgspec.Struct, frozen=True, kw_only=True):
    """The persons of a study.

    Parameters
    ----------
    query
        one SELECT over tables of the OMOP CDM and the names of `[concepts]`, in the words of PostgreSQL: one row per
        person with `person_id`, `index_date` and the outcome. All other columns become columns of the table
    """

    query: Text


class Concepts(msgspec.Struct, frozen=True, kw_only=True):
    """What a name stands for.

    Parameters
    ----------
    omop
        concept ids, for sites with an OMOP database
    descendants
        whether all descendants of these concepts count too, by the site's vocabulary
    fhir
        codes as `"system|code"`, for sites with FHIR files
    """

    omop: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], about(expected="a list of concept ids above 0")] = ()
    descendants: bool = False
    fhir: Annotated[tuple[str, ...], _CODES] = ()

    def words(self) -> str:
        """Describe what counts."""
        more = " with all descendants" if self.descendants else ""
        concepts = f"OMOP {'concept' if len(self.omop) == 1 else 'concepts'} {', '.join(map(str, self.omop))}{more}"
        codes = f"FHIR {'code' if len(self.fhir) == 1 else 'codes'} {', '.join(self.fhir)}"
        return "; ".join([concepts] * bool(self.omop) + [codes] * bool(self.fhir))


class Covariate(msgspec.Struct, frozen=True, kw_only=True):
    """A column of the table, from what is known of a person at the index date.

    Parameters
    ----------
    domain
        `"age"` (whole years at the index date), `"sex"`, or what is looked at: `"condition"`, `"drug"`, `"procedure"`,
        `"measurement"`, `"observation"` or `"visit"`
    concepts
        a name of `[concepts]`; without it every record of the domain counts
    take
        `"any"` (1 if there is a record, else 0), `"count"` (the number of records) or `"last"` (the value of the latest
        measurement or observation, missing if there is none; of several at the same moment, the largest)
    days
        the days before the index date that count: `365` for the year up to the index date, `[365, 1]` for the same
        without the index date; without it, all days up to the index date
    unit
        with `take = "last"`: the UCUM code of the unit, such as `"mmol/L"`, or `"none"` for values without one
    convert
        values in other units: `{ "mg/dL" = 0.0555 }` multiplies, `{ "mmol/mol" = [0.0915, 2.15] }` also adds
    other_units
        what happens to values in units that are not named: `"refuse"`, or `"leave out"`
    """

    domain: Literal["age", "sex", "condition", "drug", "procedure", "measurement", "observation", "visit"]
    concepts: Text | None = None
    take: Literal["any", "count", "last"] = "any"
    days: Annotated[_Day | tuple[_Day, ...] | None, _DAYS] = None
    unit: Text | None = None
    convert: Annotated[dict[str, float | tuple[float, ...]], _FACTORS] = {}
    other_units: Literal["refuse", "leave out"] = "refuse"

    @property
    def window(self) -> tuple[int, int]:
        """The first and the last day, counted back from the index date."""
        if self.days is None:
            return ALWAYS, 0
        return (self.days[0], self.days[1]) if isinstance(self.days, tuple) else (self.days, 0)

    @property
    def units(self) -> dict[str, tuple[float, float]]:
        """The factor and the sum that turn a value into the covariate's unit, by unit."""
        pairs = {unit: (how[0], how[1]) if isinstance(how, tuple) else (how, 0.0) for unit, how in self.convert.items()}
        return {} if self.unit is None else {self.unit: (1.0, 0.0), **pairs}

    def contradictions(self) -> list[tuple[str, str]]:
        """Return the keys that do not go together, each with the reason."""
        found = []
        if self.domain in ("age", "sex"):
            given = [key for key in ("concepts", "days", "unit", "convert") if getattr(self, key)]
            found += [(key, f"{key} is for records, and {self.domain} has none; leave it out") for key in given]
        elif self.take == "last":
            if self.domain not in ("measurement", "observation"):
                found.append(("take", f"take = 'last' is for measurements and observations, not for {self.domain}"))
            elif self.concepts is None:
                found.append(("concepts", "take = 'last' needs concepts: values of all kinds are no column"))
            elif self.unit is None:
                found.append(("unit", 'take = \'last\' needs a unit, such as unit = "mmol/L", or "none"'))
        elif self.unit is not None or self.convert:
            found.append(("unit", f"unit and convert are for take = 'last', not for {self.take!r}; leave them out"))
        return found

    def words(self, concepts: "dict[str, Concepts]") -> str:
        """Describe the column."""
        if self.domain in ("age", "sex"):
            return "age in whole years at the index date" if self.domain == "age" else "sex"
        first, last = self.window
        when = f"in the {first:,} days up to the index date"
        if self.days is None:
            when = "at any time up to the index date"
        elif last:
            when = f"from {first:,} to {last:,} days before the index date"
        what = DOMAINS[self.domain].words
        if self.concepts is not None:
            what += f" of {self.concepts} ({concepts[self.concepts].words()})"
        if self.take == "last":
            turned = f", values in {', '.join(self.convert)} converted" if self.convert else ""
            others = "refused" if self.other_units == "refuse" else "left out"
            return f"the last value of {what} {when}, in {self.unit}{turned}, other units {others}"
        return f"{'whether there are' if self.take == 'any' else 'the number of'} {what} {when}"


@dataclass(frozen=True)
class CohortPlan:
    """All that makes a table of a database: the query, what names stand for, and the columns."""

    query: str
    concepts: dict[str, Concepts] = field(default_factory=dict)
    covariates: dict[str, Covariate] = field(default_factory=dict)
    with_date: bool = False  # whether the index date is a column, by which rows are split

    def words(self) -> list[str]:
        """Describe the rows and columns for the approving owner; the query comes last, as written."""
        columns = [f"{name}: {one.words(self.concepts)}." for name, one in self.covariates.items()]
        return [
            "Rows are made at your site, one per person, from your OMOP database or FHIR files: the cohort query below "
            "runs there, only reads, and no row leaves.",
            f"Besides what the query returns there are {count_of(len(columns), 'column')}:",
            *columns,
            f"The cohort query:\n{self.query.strip()}",
            *(f"In it, {name} stands for {one.words()}." for name, one in self.concepts.items()),
        ]

    def consent(self) -> str:
        """Describe in a sentence what is read of persons."""
        names = format_names(list(self.covariates), _MOST_NAMED)
        return (
            "The rows are persons whom a query of the study selects in your database or export; of each it takes the "
            f"outcome{f' and {names}' if names else ''}, as listed below."
        )


def taken(name: str) -> bool:
    """Whether a name of concepts is already that of a table."""
    return name.lower() in TABLES or name.lower().startswith("silvan_")
