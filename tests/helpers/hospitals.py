"""Hospitals of made-up patients for tests: their study, their databases, and their table worked out one by one."""

import csv
import io
import tomllib

import msgspec

from silvan.data.hospital.cdm_tables import TABLES, create_statements
from silvan.data.hospital.cohort import CohortPlan, Concepts, Covariate
from silvan.data.hospital.cohort_rows import CohortRows, hospital_rows
from silvan.data.table import read_table
from silvan.study.demo_hospitals import CODED, STUDY, omop_rows


def plan_of(text=STUDY, **more):
    """The plan that sections of a study file describe."""
    data = tomllib.loads(text)
    concepts = msgspec.convert(data.get("concepts", {}), dict[str, Concepts])
    covariates = msgspec.convert(data.get("covariates", {}), dict[str, Covariate])
    return CohortPlan(data["cohort"]["query"], concepts, covariates, **more)


def rows_of(address, plan=None):
    """The table that a plan makes of a hospital's data."""
    return read_table(CohortRows(hospital_rows(address).source, plan or plan_of())).to_native()


def load_postgres(server, schema, made, version="v5.4"):
    """Put patients into a schema of a database."""
    with server.connected() as connection:
        connection.run(f"CREATE SCHEMA {schema}")
        connection.run(f"SET search_path TO {schema}")
        for statement in create_statements():
            connection.run(statement)
        for table, rows in omop_rows(*made, version).items():
            text = io.StringIO(newline="")
            csv.writer(text).writerows([["" if value is None else value for value in row] for row in rows])
            columns = ", ".join(TABLES[table])
            copy = f"COPY {table} ({columns}) FROM STDIN WITH (FORMAT csv)"
            connection.run(copy, stream=io.BytesIO(text.getvalue().encode()))
        connection.run(f"GRANT USAGE ON SCHEMA {schema} TO reader")
        connection.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader")


def naive_table(people, events, plan, outcome_days=730):
    """The table of the demo's study, person by person, without any SQL: a list of sorted rows."""
    by_person = {}
    for event in events:
        by_person.setdefault(event.person, []).append(event)
    rows = []
    for person in people:
        own = by_person.get(person.number, [])
        days = [e.day for e in own if e.what == "fibrillation"]
        if not days:
            continue
        index = min(days)
        after = [(e.day - index).days for e in own if e.what == "stroke"]
        row = {"stroke_in_two_years": "yes" if any(0 < n <= outcome_days for n in after) else "no"}
        for name, how in plan.covariates.items():
            row[name] = naive_value(person, own, index, how, plan)
        rows.append(row)
    return rows


def naive_value(person, own, index, how, plan):
    if how.domain == "sex":
        return person.sex
    if how.domain == "age":
        born = person.born
        return index.year - born.year - ((index.month, index.day) < (born.month, born.day))
    first, last = how.window
    counting = [e for e in own if CODED[e.what].domain == how.domain and last <= (index - e.day).days <= first]
    if how.concepts is not None:
        codes = plan.concepts[how.concepts].fhir
        counting = [e for e in counting if f"{CODED[e.what].system}|{CODED[e.what].code}" in codes]
    if how.take == "any":
        return int(bool(counting))
    if how.take == "count":
        return len(counting)
    values = [(e.day, e.value * how.units[e.unit][0] + how.units[e.unit][1]) for e in counting]
    return max(values)[1] if values else None
