"""A million persons with 50 covariates from an OMOP database in PostgreSQL: time and memory.

python -m benchmarks.omop postgresql://owner@host/database     # a user that may create a schema there

The events are made in the database by ``generate_series``; the schema is dropped in the end. The table is read as a
site reads it, with 2 GB for its rows, by a process of its own.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from urllib.parse import urlsplit

import pg8000.native

from silvan.data.batches import Batched
from silvan.data.hospital.cdm_tables import DOMAINS, create_statements
from silvan.data.hospital.cohort import CohortPlan, Concepts, Covariate
from silvan.data.hospital.cohort_rows import CohortRows, hospital_rows

SCHEMA = "silvan_benchmark"
ROWS = {"condition": 3.0, "drug": 3.0, "procedure": 0.5, "visit": 1.5, "measurement": 4.0}  # per person
_FIRST = {"condition": 1000, "drug": 2000, "procedure": 3000, "visit": 9201, "measurement": 5000}
_KINDS = {"condition": 200, "drug": 200, "procedure": 50, "visit": 3, "measurement": 50}
_ROOM = 1 << 31
_QUERY = """
SELECT o.person_id, o.observation_period_end_date AS index_date,
  CASE WHEN d.death_date <= o.observation_period_end_date + 365 THEN 1 ELSE 0 END AS died
FROM observation_period o LEFT JOIN death d ON d.person_id = o.person_id
"""


def plan() -> CohortPlan:
    """Return a plan with 50 covariates."""
    concepts, covariates = {}, {"age": Covariate(domain="age"), "sex": Covariate(domain="sex")}

    def add(domain: str, n: int, size: int, **how: object) -> None:
        for i in range(n):
            name, first = f"{domain}_{how['take']}_{i}", _FIRST[domain] + size * i
            concepts[name] = Concepts(omop=tuple(range(first, first + size)))
            covariates[name] = Covariate(domain=domain, concepts=name, **how)  # type: ignore[arg-type]

    add("condition", 16, 4, take="any")
    add("drug", 12, 4, take="any", days=180)
    add("drug", 4, 10, take="count", days=365)
    add("procedure", 3, 5, take="any", days=730)
    add("visit", 3, 1, take="count", days=365)
    add("measurement", 10, 2, take="last", days=730, unit="u1", convert={"u2": 0.5})
    concepts |= {"u1": Concepts(omop=(1,)), "u2": Concepts(omop=(2,))}
    return CohortPlan(_QUERY, concepts, covariates)


def fill(connection: pg8000.native.Connection, persons: int) -> int:
    """Make the tables; return the number of events."""
    run, total = connection.run, 0
    run(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    run(f"CREATE SCHEMA {SCHEMA}")
    run(f"SET search_path TO {SCHEMA}")
    run("SELECT setseed(0.5)")
    for statement in create_statements():
        run(statement)
    run("INSERT INTO cdm_source VALUES ('benchmark', 'v5.4')")
    some = f"generate_series(1, {persons}) i"
    person = "i, 8507 + 25 * (random() * 1.99)::int, 1930 + (random() * 60)::int, 1 + (random() * 11)::int, 1"
    columns = "person_id, gender_concept_id, year_of_birth, month_of_birth, day_of_birth"
    run(f"INSERT INTO person ({columns}) SELECT {person} FROM {some}")
    period = "i, i, DATE '2015-01-01', DATE '2021-01-01' + (random() * 700)::int"
    run(f"INSERT INTO observation_period SELECT {period} FROM {some}")
    died = f"SELECT i, DATE '2021-06-01' + (random() * 900)::int FROM {some} WHERE i % 5 = 0"
    run(f"INSERT INTO death (person_id, death_date) {died}")
    for name, share in ROWS.items():
        domain, n = DOMAINS[name], int(persons * share)
        more = ", value_as_number, unit_concept_id" if name == "measurement" else ""
        values = ", round((random() * 100)::numeric, 1), 1 + (random() < 0.2)::int" if more else ""
        run(
            f"INSERT INTO {domain.table} ({domain.table}_id, person_id, {domain.concept}, {domain.date}{more}) "
            f"SELECT i, 1 + (random() * {persons - 1})::int, {_FIRST[name]} + (random() * {_KINDS[name] - 1})::int, "
            f"DATE '2015-01-01' + (random() * 2900)::int{values} FROM generate_series(1, {n}) i"
        )
        run(f"CREATE INDEX ON {domain.table} (person_id)")
        total += n
    run("CREATE INDEX ON person (person_id)")
    connection.run("ANALYZE")
    return total


def read(address: str) -> dict[str, float]:
    """Read the table in batches, as a site does; return what it took."""
    before = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        table = Batched(CohortRows(hospital_rows(address).source, plan()), "died", _ROOM // 8, folder)
        columns = len(table.names)
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return {"rows": len(table), "columns": columns, "s": time.perf_counter() - before, "cpu_s": cpu, "peak_mb": peak}


def main() -> None:
    """Make the database, read it, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--persons", type=int, default=1_000_000)
    parser.add_argument("--read", action="store_true", help="only read what is there")
    given = parser.parse_args()
    parts = urlsplit(given.url)
    if given.read:
        print(json.dumps(read(f"omop:{given.url}{'&' if parts.query else '?'}schema={SCHEMA}")))
        return
    with pg8000.native.Connection(
        parts.username or "",
        host=parts.hostname or "localhost",
        port=parts.port or 5432,
        database=parts.path[1:],
        password=os.environ.get("PGPASSWORD"),
    ) as connection:
        began = time.perf_counter()
        events = fill(connection, given.persons)
        print(
            f"{events:,} events of {given.persons:,} persons, made in {time.perf_counter() - began:.0f} s", flush=True
        )
        try:
            words = [sys.executable, "-m", "benchmarks.omop", given.url, "--read"]
            done = subprocess.run(words, check=True, capture_output=True, text=True)
            print(done.stdout.strip())
        finally:
            connection.run(f"DROP SCHEMA {SCHEMA} CASCADE")


if __name__ == "__main__":
    main()
