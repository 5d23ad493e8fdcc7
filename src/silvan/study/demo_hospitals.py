"""Hospitals of made-up patients, as OMOP databases and as FHIR files: the same patients either way.

Nobody's data may be passed around, so `silvan demo`, the tutorials and the tests make theirs. Who has a stroke after
atrial fibrillation depends on age, sex, earlier diagnoses, drugs and values, as a model should find out again.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from silvan.data.hospital.cdm_tables import DOMAINS, TABLES, create_statements

_SNOMED, _LOINC = "http://snomed.info/sct", "http://loinc.org"
_RXNORM, _UCUM = "http://www.nlm.nih.gov/research/umls/rxnorm", "http://unitsofmeasure.org"
_ACT = "http://terminology.hl7.org/CodeSystem/v3-ActCode"
_FIRST_DAY = date(2015, 1, 1)


class Coded(NamedTuple):
    """What an event is: its domain, its concept id, and its code."""

    domain: str
    concept: int
    system: str
    code: str


CODED = {
    "fibrillation": Coded("condition", 313217, _SNOMED, "49436004"),
    "stroke": Coded("condition", 381316, _SNOMED, "230690007"),
    "heart_failure": Coded("condition", 316139, _SNOMED, "84114007"),
    "hypertension": Coded("condition", 320128, _SNOMED, "59621000"),
    "diabetes": Coded("condition", 201820, _SNOMED, "73211009"),
    "diabetes_2": Coded("condition", 201826, _SNOMED, "44054006"),
    "anticoagulant": Coded("drug", 1310149, _RXNORM, "11289"),
    "echo": Coded("procedure", 4230911, _SNOMED, "40701008"),
    "creatinine": Coded("measurement", 3016723, _LOINC, "2160-0"),
    "systolic": Coded("measurement", 3004249, _LOINC, "8480-6"),
    "inpatient": Coded("visit", 9201, _ACT, "IMP"),
    "outpatient": Coded("visit", 9202, _ACT, "AMB"),
}
UNITS = {"mg/dL": 8840, "umol/L": 8749, "mm[Hg]": 8876}
_RESOURCES = {"condition": "Condition", "drug": "MedicationRequest", "procedure": "Procedure", "visit": "Encounter"}

STUDY = '''
[cohort]
query = """
WITH first AS (
  SELECT person_id, MIN(condition_start_date) AS index_date
  FROM condition_occurrence
  WHERE condition_concept_id IN (SELECT concept_id FROM fibrillation)
  GROUP BY person_id
)
SELECT f.person_id, f.index_date,
  CASE WHEN EXISTS (
    SELECT 1 FROM condition_occurrence c
    WHERE c.person_id = f.person_id
      AND c.condition_concept_id IN (SELECT concept_id FROM stroke)
      AND c.condition_start_date > f.index_date
      AND c.condition_start_date <= f.index_date + 730
  ) THEN 'yes' ELSE 'no' END AS stroke_in_two_years
FROM first f
"""

[concepts]
fibrillation = { omop = [313217], fhir = ["http://snomed.info/sct|49436004"] }
stroke = { omop = [381316], fhir = ["http://snomed.info/sct|230690007"] }
heart_failure = { omop = [316139], fhir = ["http://snomed.info/sct|84114007"] }
hypertension = { omop = [320128], fhir = ["http://snomed.info/sct|59621000"] }
anticoagulant = { omop = [1310149], fhir = ["http://www.nlm.nih.gov/research/umls/rxnorm|11289"] }
echo = { omop = [4230911], fhir = ["http://snomed.info/sct|40701008"] }
creatinine = { omop = [3016723], fhir = ["http://loinc.org|2160-0"] }
systolic = { omop = [3004249], fhir = ["http://loinc.org|8480-6"] }
inpatient = { omop = [9201], fhir = ["http://terminology.hl7.org/CodeSystem/v3-ActCode|IMP"] }

[concepts.diabetes]
omop = [201820]
descendants = true
fhir = ["http://snomed.info/sct|73211009", "http://snomed.info/sct|44054006"]

[covariates]
age = { domain = "age" }
sex = { domain = "sex" }
heart_failure = { domain = "condition", concepts = "heart_failure" }
hypertension = { domain = "condition", concepts = "hypertension" }
diabetes = { domain = "condition", concepts = "diabetes" }
earlier_stroke = { domain = "condition", concepts = "stroke", days = [3650, 1] }
anticoagulant = { domain = "drug", concepts = "anticoagulant", days = 180 }
echo = { domain = "procedure", concepts = "echo", days = 365 }
hospital_stays = { domain = "visit", concepts = "inpatient", take = "count", days = 365 }
visits = { domain = "visit", take = "count", days = 365 }
systolic = { domain = "measurement", concepts = "systolic", take = "last", days = 365, unit = "mm[Hg]" }

[covariates.creatinine]
domain = "measurement"
concepts = "creatinine"
take = "last"
days = 365
unit = "mg/dL"
convert = { "umol/L" = 0.0113 }
'''
"""The sections of the study file that say where its rows come from."""


class Event(NamedTuple):
    """Something that was recorded of a person."""

    person: int
    what: str
    day: date
    value: float | None = None
    unit: str = ""


class Person(NamedTuple):
    """A made-up patient."""

    number: int
    sex: str
    born: date


def write_hospitals(folder: Path, names: Sequence[str], kind: str, n: int = 800) -> dict[str, str]:
    """Write patients of some hospitals, and return the addresses of their data; the last one measures in umol/L."""
    places = {}
    for i, name in enumerate(names):
        made = make_patients(n, seed=i, first=1 + i * n, unit="umol/L" if i == len(names) - 1 else "mg/dL")
        if kind == "omop":
            path = f"sites/{name.lower()}.db"
            write_omop(folder / path, *made, version="v5.3" if i == 0 else "v5.4")
            places[name] = f"omop:sqlite:///{path}"
        else:
            write_fhir(folder / "sites" / name.lower(), *made)
            places[name] = f"fhir:sites/{name.lower()}"
    return places


def make_patients(n: int, seed: int, first: int = 1, unit: str = "mg/dL") -> tuple[list[Person], list[Event]]:
    """Return patients with what was recorded of them; creatinine is measured in some unit."""
    rng = np.random.default_rng(seed)
    people, events = [], []
    for number in range(first, first + n):
        age, sex = float(np.clip(rng.normal(70, 11), 30, 96)), "female" if rng.random() < 0.5 else "male"
        index = _FIRST_DAY + timedelta(int(rng.integers(800, 2500)))
        people.append(Person(number, sex, index - timedelta(int(age * 365.25))))
        pressure, kidney = rng.normal(135, 18), np.exp(rng.normal(0.05, 0.3))
        has = {name: rng.random() < share for name, share in _SHARES.items()}
        risk = -2.3 + 0.05 * (age - 70) + 0.02 * (pressure - 135) + 1.1 * (kidney - 1)
        risk += 0.4 * (sex == "female") + sum(_EFFECTS[name] for name, there in has.items() if there)
        ill = [(name, index - timedelta(int(rng.integers(1, 700)))) for name, there in has.items() if there]
        ill = [(name if name != "diabetes" or rng.random() < 0.3 else "diabetes_2", day) for name, day in ill]
        if rng.random() < 0.9:
            ill.append(("fibrillation", index))
            ill += [("fibrillation", index + timedelta(int(rng.integers(20, 400))))] * bool(rng.random() < 0.5)
        if rng.random() < 1 / (1 + np.exp(-risk)):
            ill.append(("stroke", index + timedelta(int(rng.integers(1, 731)))))
        found = [Event(number, name, day) for name, day in ill]
        for _ in range(int(rng.poisson(5))):
            day = index - timedelta(int(rng.integers(-200, 600)))
            found.append(Event(number, "inpatient" if rng.random() < 0.2 else "outpatient", day))
            if rng.random() < 0.7:
                found.append(Event(number, "systolic", day, float(round(pressure + rng.normal(0, 6))), "mm[Hg]"))
            if rng.random() < 0.5:
                value = kidney * (1.0 if unit == "mg/dL" else 88.4) * np.exp(rng.normal(0, 0.05))
                found.append(Event(number, "creatinine", day, round(float(value), 2), unit))
        events += found
    return people, events


_SHARES = {
    "heart_failure": 0.25,
    "hypertension": 0.6,
    "diabetes": 0.25,
    "stroke": 0.1,
    "anticoagulant": 0.4,
    "echo": 0.3,
}
_EFFECTS = {
    "heart_failure": 0.5,
    "hypertension": 0.5,
    "diabetes": 0.6,
    "stroke": 1.6,
    "anticoagulant": -1.2,
    "echo": 0.0,
}


# -- as OMOP


def write_omop(path: Path, people: list[Person], events: list[Event], version: str = "v5.4") -> None:
    """Write patients as an OMOP database in an SQLite file."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        for statement in create_statements():
            database.execute(statement)
        for table, rows in omop_rows(people, events, version).items():
            marks = ", ".join("?" * len(TABLES[table]))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)  # noqa: S608
        for domain in DOMAINS.values():
            database.execute(f"CREATE INDEX of_person_{domain.table} ON {domain.table} (person_id)")
        database.commit()


def omop_rows(people: list[Person], events: list[Event], version: str) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of the tables of an OMOP database."""
    found: dict[str, list[dict[str, Any]]] = {"cdm_source": [{"cdm_source_name": "made up", "cdm_version": version}]}
    found["person"] = [
        {
            "person_id": one.number,
            "gender_concept_id": 8532 if one.sex == "female" else 8507,
            "year_of_birth": one.born.year,
            "month_of_birth": one.born.month,
            "day_of_birth": one.born.day,
        }
        for one in people
    ]
    for number, event in enumerate(events, 1):
        coded = CODED[event.what]
        domain = DOMAINS[coded.domain]
        row: dict[str, Any] = {f"{domain.table}_id": number, "person_id": event.person, domain.concept: coded.concept}
        row |= {domain.date: str(event.day), domain.datetime: f"{event.day} 00:00:00"}
        if event.value is not None:
            row |= {"value_as_number": event.value, "unit_concept_id": UNITS[event.unit]}
        found.setdefault(domain.table, []).append(row)
    ids = {one.concept: one.code for one in CODED.values()}
    found["concept"] = [{"concept_id": i, "vocabulary_id": "SNOMED", "concept_code": code} for i, code in ids.items()]
    found["concept"] += [{"concept_id": i, "vocabulary_id": "UCUM", "concept_code": u} for u, i in UNITS.items()]
    pairs = [*((i, i) for i in ids), (CODED["diabetes"].concept, CODED["diabetes_2"].concept)]
    found["concept_ancestor"] = [{"ancestor_concept_id": a, "descendant_concept_id": b} for a, b in pairs]
    return {table: [tuple(row.get(c) for c in TABLES[table]) for row in rows] for table, rows in found.items()}


# -- as FHIR


def write_fhir(folder: Path, people: list[Person], events: list[Event]) -> None:
    """Write patients as FHIR R4 in NDJSON, a file per type, as a bulk export has them."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_lines(
        folder / "Patient.ndjson",
        (
            {"resourceType": "Patient", "id": f"p{one.number}", "gender": one.sex, "birthDate": str(one.born)}
            for one in people
        ),
    )
    by_type: dict[str, list[dict[str, Any]]] = {}
    for number, event in enumerate(events, 1):
        resource = _resource(number, event)
        by_type.setdefault(resource["resourceType"], []).append(resource)
    for name, resources in by_type.items():
        _write_lines(folder / f"{name}.ndjson", resources)


def _resource(number: int, event: Event) -> dict[str, Any]:
    coded = CODED[event.what]
    kind = _RESOURCES.get(coded.domain, "Observation")
    found: dict[str, Any] = {"resourceType": kind, "id": f"e{number}"}
    patient, code = {"reference": f"Patient/p{event.person}"}, {"system": coded.system, "code": coded.code}
    found |= {"subject": patient, "status": "final" if kind == "Observation" else "completed"}
    if kind == "Encounter":
        return found | {"class": code, "period": {"start": str(event.day), "end": str(event.day)}}
    if kind == "MedicationRequest":
        about = {"intent": "order", "medicationCodeableConcept": {"coding": [code]}, "authoredOn": str(event.day)}
        return found | about
    when = {"Condition": "onsetDateTime", "Procedure": "performedDateTime", "Observation": "effectiveDateTime"}[kind]
    found |= {"code": {"coding": [code]}, when: str(event.day)}
    if event.value is not None:
        unit = {"unit": event.unit, "system": _UCUM, "code": event.unit}
        found["valueQuantity"] = {"value": event.value, **unit}
    return found


def _write_lines(path: Path, resources: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{json.dumps(one)}\n" for one in resources)
