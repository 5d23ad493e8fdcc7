"""The tables of the OMOP Common Data Model that a study may read, with the columns that versions 5.3 and 5.4 share.

A column's type follows from its name, as in the model itself.
"""

import re
from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

_COLUMNS = """
person: person_id gender_concept_id year_of_birth month_of_birth day_of_birth birth_datetime race_concept_id
    ethnicity_concept_id person_source_value
observation_period: observation_period_id person_id observation_period_start_date observation_period_end_date
death: person_id death_date death_datetime cause_concept_id
visit_occurrence: visit_occurrence_id person_id visit_concept_id visit_start_date visit_start_datetime visit_end_date
    visit_end_datetime visit_type_concept_id
condition_occurrence: condition_occurrence_id person_id condition_concept_id condition_start_date
    condition_start_datetime condition_end_date condition_type_concept_id visit_occurrence_id
drug_exposure: drug_exposure_id person_id drug_concept_id drug_exposure_start_date drug_exposure_start_datetime
    drug_exposure_end_date drug_type_concept_id quantity days_supply visit_occurrence_id
procedure_occurrence: procedure_occurrence_id person_id procedure_concept_id procedure_date procedure_datetime
    procedure_type_concept_id visit_occurrence_id
device_exposure: device_exposure_id person_id device_concept_id device_exposure_start_date device_exposure_end_date
    visit_occurrence_id
measurement: measurement_id person_id measurement_concept_id measurement_date measurement_datetime
    measurement_type_concept_id value_as_number value_as_concept_id unit_concept_id visit_occurrence_id
observation: observation_id person_id observation_concept_id observation_date observation_datetime
    observation_type_concept_id value_as_number value_as_concept_id unit_concept_id visit_occurrence_id
condition_era: condition_era_id person_id condition_concept_id condition_era_start_date condition_era_end_date
    condition_occurrence_count
drug_era: drug_era_id person_id drug_concept_id drug_era_start_date drug_era_end_date drug_exposure_count gap_days
concept: concept_id concept_name domain_id vocabulary_id concept_class_id standard_concept concept_code
concept_ancestor: ancestor_concept_id descendant_concept_id min_levels_of_separation max_levels_of_separation
cdm_source: cdm_source_name cdm_version
"""
_TEXT = ("_source_value", "_name", "domain_id", "vocabulary_id", "concept_class_id", "standard_concept", "concept_code")
_ENDINGS = {"_date": "DATE", "_datetime": "TIMESTAMP", "_number": "DOUBLE PRECISION", "quantity": "DOUBLE PRECISION"}
VOCABULARY = frozenset({"concept", "concept_ancestor"})
"""The tables that may be in a separate schema."""


def _type_of(column: str) -> str:
    if column.endswith(_TEXT) or column == "cdm_version":
        return "VARCHAR(255)"
    return next((kind for ending, kind in _ENDINGS.items() if column.endswith(ending)), "BIGINT")


TABLES = MappingProxyType(
    {
        name: MappingProxyType({column: _type_of(column) for column in columns.split()})
        for name, columns in re.findall(r"^(\w+): (.*(?:\n    .*)*)", _COLUMNS, re.M)
    }
)
"""The types of columns by table."""


class Domain(NamedTuple):
    """A table of events: its names, and the relevant columns."""

    words: str
    table: str
    concept: str
    date: str
    datetime: str


def _domain(words: str, table: str, what: str, start: str) -> Domain:
    return Domain(words, table, f"{what}_concept_id", f"{start}_date", f"{start}_datetime")


DOMAINS = MappingProxyType(
    {
        "condition": _domain("diagnoses", "condition_occurrence", "condition", "condition_start"),
        "drug": _domain("drug records", "drug_exposure", "drug", "drug_exposure_start"),
        "procedure": _domain("procedures", "procedure_occurrence", "procedure", "procedure"),
        "measurement": _domain("measurements", "measurement", "measurement", "measurement"),
        "observation": _domain("observations", "observation", "observation", "observation"),
        "visit": _domain("visits", "visit_occurrence", "visit", "visit_start"),
    }
)
"""The tables of events by domain."""


def create_statements(names: Sequence[str] = tuple(TABLES)) -> list[str]:
    """Return the statements that make empty tables."""
    kinds = {name: ", ".join(f"{column} {kind}" for column, kind in TABLES[name].items()) for name in names}
    return [f"CREATE TABLE {name} ({columns})" for name, columns in kinds.items()]
