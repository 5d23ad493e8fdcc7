"""The same patients give the same table, from OMOP in SQLite and PostgreSQL, from FHIR, and worked out by hand."""

import gzip
import json
import logging
import sqlite3
import sys
from contextlib import closing

import polars as pl
import pytest

pytest.importorskip("sqlglot", reason="sqlglot is not installed: pip install 'silvan[omop]'")
pytest.importorskip("sqlonfhir", reason="sqlonfhir is not installed: pip install 'silvan[fhir]'")

from helpers.hospitals import load_postgres, naive_table, plan_of, rows_of
from helpers.postgres import postgres  # noqa: F401  a fixture

from silvan.data.hospital.cohort_rows import CohortRows, hospital_rows
from silvan.data.readers.database import read_batches
from silvan.data.readers.query import Query
from silvan.data.table import read_table
from silvan.errors import InputError
from silvan.study.demo_hospitals import STUDY, make_patients, write_fhir, write_omop


@pytest.fixture(scope="module")
def made():
    return make_patients(2000, seed=3, unit="umol/L")


@pytest.fixture(scope="module")
def omop(made, tmp_path_factory):
    path = tmp_path_factory.mktemp("omop") / "clinic.db"
    write_omop(path, *made)
    return path


@pytest.fixture
def changed(omop, tmp_path):
    """A copy of the database, changed by statements; its address."""

    def change(*statements, settings=""):
        path = tmp_path / "changed.db"
        path.write_bytes(omop.read_bytes())
        with closing(sqlite3.connect(path)) as database:
            for statement in statements:
                database.execute(statement)
            database.commit()
        return f"omop:sqlite:///{path}{settings}"

    return change


@pytest.fixture
def server(postgres, monkeypatch):  # noqa: F811
    monkeypatch.setenv("SILVAN_DATABASE_PASSWORD", postgres.password)
    return postgres


@pytest.fixture(scope="module")
def few():
    return make_patients(60, seed=5)


@pytest.fixture
def fhir(few, tmp_path):
    write_fhir(tmp_path / "fhir", *few)
    return tmp_path / "fhir"


def line(folder, name, resource):
    with (folder / f"{name}.ndjson").open("a") as file:
        file.write(f"{json.dumps(resource) if isinstance(resource, dict) else resource}\n")


# -- equal tables


def test_omop_gives_the_table_worked_out_by_hand(made, omop):
    found = rows_of(f"omop:sqlite:///{omop}")
    expected = pl.DataFrame(naive_table(*made, plan_of()))
    assert len(found) > 1500
    order = found.columns
    assert found.sort(order, nulls_last=True).equals(expected.select(order).sort(order, nulls_last=True))


def test_fhir_gives_the_table_of_omop(made, omop, tmp_path):
    people, events = made[0][:300], [event for event in made[1] if event.person <= 300]
    write_fhir(tmp_path / "fhir", people, events)
    write_omop(tmp_path / "a.db", people, events)
    assert rows_of(f"fhir:{tmp_path / 'fhir'}").equals(rows_of(f"omop:sqlite:///{tmp_path / 'a.db'}"))


def test_postgres_gives_the_table_of_sqlite(made, omop, server):
    load_postgres(server, "cdm", made)
    url = server.url(schema="cdm", sslmode="disable")
    assert rows_of(f"omop:{url}").equals(rows_of(f"omop:sqlite:///{omop}"))


def test_a_table_larger_than_memory_is_read_in_batches(omop):
    from silvan.data.batches import Batched

    source = CohortRows(hospital_rows(f"omop:sqlite:///{omop}").source, plan_of())
    table = Batched(source, "stroke_in_two_years", 1 << 14)
    batches = list(table.batches())
    assert len(batches) > 5
    assert sum(map(len, batches)) == len(table) == len(read_table(source))


def test_times_and_events_pass_through(changed):
    query = """
    SELECT f.person_id, MIN(f.condition_start_date) AS index_date,
      MAX(d.death_date) - MIN(f.condition_start_date) AS time,
      CASE WHEN MAX(d.death_date) IS NULL THEN 0 ELSE 1 END AS event
    FROM condition_occurrence f LEFT JOIN death d ON d.person_id = f.person_id
    WHERE f.condition_concept_id IN (SELECT concept_id FROM fibrillation) GROUP BY f.person_id
    """
    first = "SELECT person_id, MIN(condition_start_date) AS day FROM condition_occurrence"
    some = (
        f"SELECT person_id, date(day, '42 days') FROM ({first} WHERE condition_concept_id = 313217 GROUP BY 1 LIMIT 7)"
    )
    address = changed(f"INSERT INTO death (person_id, death_date) {some}")
    plan = plan_of(f'[cohort]\nquery = """{query}"""\n[concepts]\nfibrillation = {{ omop = [313217] }}\n')
    found = rows_of(address, plan)
    assert found.columns == ["time", "event"]
    assert found["event"].sum() == 7
    assert found["time"].drop_nulls().unique().to_list() == [42]


def test_the_index_date_is_a_column_where_rows_are_split_by_it(omop):
    found = rows_of(f"omop:sqlite:///{omop}", plan_of(with_date=True))
    assert found.columns[0] == "index_date"
    assert found["index_date"].str.to_date().null_count() == 0


LAST = """
[cohort]
query = "SELECT person_id, death_date AS index_date FROM death"
[concepts]
creatinine = { omop = [3016723], fhir = ["l|2160-0"] }
[covariates]
value = { domain = "measurement", concepts = "creatinine", take = "last", days = DAYS, unit = "mg/dL", OTHERS }
times = { domain = "measurement", concepts = "creatinine", take = "count", days = DAYS }
"""
MEASURED = [  # of one person, who dies on 2020-06-30: when, value, unit
    ("2020-06-30", "2020-06-30 08:00:00", 1.0, 8840),
    ("2020-06-30", "2020-06-30 09:00:00", 2.0, 8840),
    ("2020-06-30", "2020-06-30 09:00:00", 1.5, 8840),
    ("2020-06-29", None, 3.0, 8840),
    ("2020-07-01", None, 9.0, 8840),
    ("2020-06-20", None, 88.4, 8749),
    ("2020-06-19", None, None, 8840),
]


@pytest.mark.parametrize(
    ("days", "others", "expected", "times"),
    [
        ("30", 'other_units = "leave out"', 2.0, 6),
        ("[30, 1]", 'other_units = "leave out"', 3.0, 3),
        ("[30, 2]", 'convert = { "umol/L" = 0.01 }', 0.884, 2),
        ("[30, 2]", 'convert = { "umol/L" = [0.01, 1] }', 1.884, 2),
        ("[30, 11]", "", None, 1),
        ("[300, 100]", "", None, 0),
    ],
)
def test_windows_last_values_and_units(changed, days, others, expected, times):
    values = ", ".join(
        f"({i}, 1, 3016723, '{day}', {'NULL' if at is None else repr(at)}, {'NULL' if v is None else v}, {unit})"
        for i, (day, at, v, unit) in enumerate(MEASURED, 10_000_000)
    )
    columns = (
        "measurement_id, person_id, measurement_concept_id, measurement_date, measurement_datetime, value_as_number"
    )
    address = changed(
        "DELETE FROM measurement",
        f"INSERT INTO measurement ({columns}, unit_concept_id) VALUES {values}",
        "INSERT INTO death (person_id, death_date) VALUES (1, '2020-06-30')",
    )
    found = rows_of(address, plan_of(LAST.replace("DAYS", days).replace(", OTHERS", f", {others}" if others else "")))
    assert found["value"][0] == pytest.approx(expected) if expected is not None else found["value"][0] is None
    assert found["times"].to_list() == [times]


@pytest.mark.parametrize(
    ("born", "age"), [((1950, 6, 30), 70), ((1950, 7, 1), 69), ((1950, 6, None), 70), ((1950, None, None), 70)]
)
def test_age_counts_birthdays_as_far_as_they_are_known(changed, born, age):
    year, month, day = ("NULL" if part is None else part for part in born)
    address = changed(
        f"UPDATE person SET year_of_birth = {year}, month_of_birth = {month}, day_of_birth = {day} WHERE person_id = 1",
        "INSERT INTO death (person_id, death_date) VALUES (1, '2020-06-30')",
    )
    query = "SELECT person_id, death_date AS index_date FROM death"
    text = f'[cohort]\nquery = "{query}"\n[covariates]\nage = {{ domain = "age" }}'
    assert rows_of(address, plan_of(text))["age"].to_list() == [age]


# -- bad input

TWICE = STUDY.replace("GROUP BY person_id\n)", "GROUP BY person_id, condition_start_date\n)")
ENDLESS = """
[cohort]
query = '''
SELECT a.person_id, MAX(b.condition_start_date) AS index_date FROM person a
JOIN condition_occurrence b ON b.person_id <> a.person_id JOIN measurement c ON c.person_id <> b.person_id
GROUP BY a.person_id
'''
"""
BAD = {
    "two rows for a person": (TWICE, [], "rows for 1,8.. persons in .*each person must have one row"),
    "nobody": (STUDY, ["DELETE FROM condition_occurrence"], "finds no person"),
    "dates that are none": (
        STUDY,
        ["UPDATE condition_occurrence SET condition_start_date = 1262304000 WHERE person_id = 1"],
        "no index_date that is a date for 1 person",
    ),
    "unknown concepts": (
        STUDY.replace("[381316]", "[381316, 999999901]"),
        [],
        r"does not know 1 concept id of the study: 999999901 \(stroke\)",
    ),
    "no ancestors": (STUDY, ["DELETE FROM concept_ancestor"], "has no vocabulary .*'diabetes' asks for descendants"),
    "no table of ancestors": (STUDY, ["DROP TABLE concept_ancestor"], "has no vocabulary .*'diabetes' asks"),
    "old version": (STUDY, ["UPDATE cdm_source SET cdm_version = 'v5.2.2'"], "'v5.2.2' of the CDM .*5.3 and 5.4"),
    "new version": (STUDY, ["UPDATE cdm_source SET cdm_version = '6.0'"], "'6.0' of the CDM .*5.3 and 5.4"),
    "no version": (STUDY, ["DELETE FROM cdm_source"], "no version of the CDM"),
    "no CDM": (STUDY, ["DROP TABLE cdm_source"], "no cdm_source that can be read"),
    "units": (
        STUDY.replace('convert = { "umol/L" = 0.0113 }\n', ""),
        [],
        r"of 'creatinine' in .* are in umol/L, not in mg/dL; say in the study how to convert",
    ),
    "no unit": (
        STUDY,
        ["UPDATE measurement SET unit_concept_id = NULL WHERE measurement_concept_id = 3004249"],
        r"of 'systolic' in .* are in no unit, not in mm\[Hg\]",
    ),
    "a unit that the vocabulary lacks": (
        STUDY.replace('"mm[Hg]"', '"kPa"'),
        [],
        r"no unit 'kPa'; name its concept id in the study",
    ),
    "a table that is absent": (STUDY, ["DROP TABLE visit_occurrence"], "no such table: visit_occurrence"),
    "no concept ids": (STUDY.replace("omop = [4230911], ", ""), [], "no OMOP concept ids for 'echo'"),
}


@pytest.mark.parametrize(("text", "statements", "why"), BAD.values(), ids=BAD)
def test_bad_databases_are_refused_in_one_sentence(changed, text, statements, why):
    with pytest.raises(InputError, match=why) as error:
        rows_of(changed(*statements), plan_of(text))
    assert "\n" not in str(error.value)


UNITS = '[concepts]\n"mg/dL" = { omop = [8840] }\n"umol/L" = { omop = [8749] }\n"mm[Hg]" = { omop = [8876] }\n'
GOOD = {
    "an older version": (STUDY, ["UPDATE cdm_source SET cdm_version = 'CDM v5.3.1'"]),
    "no vocabulary where all is listed": (
        STUDY.replace("[concepts]\n", UNITS).replace("omop = [201820]\ndescendants = true", "omop = [201820, 201826]"),
        ["DROP TABLE concept", "DROP TABLE concept_ancestor"],
    ),
}


@pytest.mark.parametrize(("text", "statements"), GOOD.values(), ids=GOOD)
def test_what_need_not_be_there_is_not_missed(changed, omop, text, statements):
    assert rows_of(changed(*statements), plan_of(text)).equals(rows_of(f"omop:sqlite:///{omop}"))


def test_a_query_that_takes_too_long_is_ended(changed):
    with pytest.raises(InputError, match=r"took longer than 0\.05 s.*seconds="):
        rows_of(changed(settings="?seconds=0.05"), plan_of(ENDLESS))


def test_a_query_that_takes_too_long_is_ended_by_the_server(server, few):
    load_postgres(server, "small", make_patients(1500, seed=1))
    url = server.url(schema="small", seconds="0.3", sslmode="disable")
    with pytest.raises(InputError, match=r"took longer than 0\.3 s"):
        rows_of(f"omop:{url}", plan_of(ENDLESS))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("omop:mysql://a@b/c", "PostgreSQL, SQLite and SQL Server"),
        ("omop:sqlite:///nothing.db", "there is no database 'nothing.db'"),
        ("omop:nothing.db", "must begin with"),
        ("omop:sqlite:///a.db?seconds=x", "seconds"),
        ("fhir:nothing", "no folder 'nothing'"),
    ],
)
def test_bad_addresses_are_refused(address, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=why):
        rows_of(address)


# -- bad FHIR


@pytest.mark.parametrize(
    "text", ["{", '{"resourceType": "Observation"', "[1]", '"a secret"', '{"id": "x"}', "\x00\xff"]
)
def test_a_broken_line_is_named_and_not_shown(fhir, text):
    n = len((fhir / "Observation.ndjson").read_text().splitlines())
    line(fhir, "Observation", text)
    with pytest.raises(InputError, match=rf"1 line of .* Observation\.ndjson:{n + 1}; export") as error:
        rows_of(f"fhir:{fhir}")
    assert "secret" not in str(error.value)


def test_all_broken_lines_are_counted(fhir):
    for _ in range(9):
        line(fhir, "Condition", "{")
    with pytest.raises(InputError, match=r"9 lines of .* and others"):
        rows_of(f"fhir:{fhir}")


SKIPPED = {
    "another type": ("AllergyIntolerance", {"id": "a1"}, "of type AllergyIntolerance"),
    "an unknown type": ("Nonsense", {"id": "a1"}, "of type Nonsense"),
    "in error": ("Condition", {"id": "x", "verificationStatus": {"coding": [{"code": "refuted"}]}}, "entered in error"),
    "no date": ("Condition", {"id": "x", "onsetDateTime": "2019-05"}, "without a full date"),
    "nobody": (
        "Condition",
        {"id": "x", "onsetDateTime": "2019-05-01", "subject": {"reference": "Patient/zz"}},
        "nobody",
    ),
}


@pytest.mark.parametrize(("kind", "resource", "why"), SKIPPED.values(), ids=SKIPPED)
def test_what_cannot_be_read_is_skipped_and_counted(fhir, caplog, kind, resource, why):
    before = rows_of(f"fhir:{fhir}")
    code = {"coding": [{"system": "http://snomed.info/sct", "code": "49436004"}]}
    line(fhir, kind, {"subject": {"reference": "Patient/p1"}, "code": code, "resourceType": kind, **resource})
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert rows_of(f"fhir:{fhir}").equals(before)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("1 resource of the FHIR files")
    assert why in said


def test_resources_that_stand_twice_are_refused(fhir):
    (fhir / "older.ndjson").write_text((fhir / "Condition.ndjson").read_text().splitlines(keepends=True)[0])
    with pytest.raises(InputError, match=r"1 resource of .* stands there twice"):
        rows_of(f"fhir:{fhir}")


def test_files_without_codes_of_the_study_or_without_patients_are_refused(fhir, tmp_path):
    with pytest.raises(InputError, match="no FHIR codes for 'echo'"):
        rows_of(f"fhir:{fhir}", plan_of(STUDY.replace(', fhir = ["http://snomed.info/sct|40701008"]', "")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no files called \*\.ndjson"):
        rows_of(f"fhir:{tmp_path / 'empty'}")
    (fhir / "Patient.ndjson").unlink()
    with pytest.raises(InputError, match="hold no Patient"):
        hospital_rows(f"fhir:{fhir}").source.check()
    with pytest.raises(InputError, match="finds no person"):
        rows_of(f"fhir:{fhir}")


def test_packed_files_several_codes_components_and_other_units(fhir):
    """An event with two codes is one event, and each component of an observation one of its own."""
    before = rows_of(f"fhir:{fhir}")
    path = fhir / "Condition.ndjson"
    other = {"system": "http://snomed.info/sct", "code": "44054006"}
    resources = [json.loads(text) for text in path.read_text().splitlines()]
    for one in resources:
        one["code"]["coding"] += [other] * (one["code"]["coding"][0]["code"] == "73211009")
        one["subject"]["reference"] = f"https://example.org/fhir/{one['subject']['reference']}/_history/2"
    with gzip.open(fhir / "Condition.ndjson.gz", "wt") as file:
        file.writelines(f"{json.dumps(one)}\n" for one in resources)
    path.unlink()
    path = fhir / "Encounter.ndjson"
    visits = [json.loads(text) for text in path.read_text().splitlines()]
    for one in visits:
        one["type"] = [{"coding": [{"system": "http://example.org/kinds", "code": "visit"}]}]
    path.write_text("".join(f"{json.dumps(one)}\n" for one in visits))
    path = fhir / "Observation.ndjson"
    measured = [json.loads(text) for text in path.read_text().splitlines()]
    for one in measured:
        if one["code"]["coding"][0]["code"] == "8480-6":
            value = one.pop("valueQuantity")
            one["component"] = [{"code": one["code"], "valueQuantity": value}, {"code": {"text": "nothing"}}]
            one["code"] = {"coding": [{"system": "http://loinc.org", "code": "85354-9"}]}
    path.write_text("".join(f"{json.dumps(one)}\n" for one in measured))
    assert rows_of(f"fhir:{fhir}").equals(before)


@pytest.mark.parametrize(("module", "extra"), [("sqlglot", "omop"), ("sqlonfhir", "fhir")])
def test_a_library_that_is_not_installed_is_named(fhir, monkeypatch, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=rf"pip install 'silvan\[{extra}\]'"):
        rows_of(f"fhir:{fhir}")


# -- an attack: a study's author wants a file of the database's machine, and another program's file there

READS = "SELECT 1 AS person_id, DATE '2020-01-01' AS index_date, pg_read_file('{}') AS stolen FROM person"
WRITES = "SELECT 1 AS person_id, DATE '2020-01-01' AS index_date, lo_export({}, '{}') AS done FROM person"


def test_a_cohort_query_reads_and_writes_no_file_where_another_query_does(server, few, monkeypatch):
    """The owner was careless, and gave silvan a user that may do anything: PostgreSQL's transaction is no help."""
    monkeypatch.setenv("SILVAN_DATABASE_PASSWORD", server.owner_password)
    load_postgres(server, "open_door", few)
    secret, target = server.folder / "data" / "PG_VERSION", server.folder / "data" / "planted"
    with server.connected() as connection:
        ((number,),) = connection.run("SELECT lo_from_bytea(0, 'planted'::bytea)")
    url = server.url(user="owner", sslmode="disable")
    found = []
    reads = READS.format(secret).replace("FROM person", "")
    read_batches(Query(url, reads), found.append)
    assert found[0]["stolen"][0].strip() == secret.read_text().strip()
    read_batches(Query(url, WRITES.format(number, target).replace("FROM person", "")), found.append)
    assert target.read_bytes() == b"planted"
    target.unlink()
    for query in (READS.format(secret), WRITES.format(number, target)):
        text = f'[cohort]\nquery = """{query}"""\n'
        with pytest.raises(InputError, match="is not allowed"):
            rows_of(f"omop:{server.url(user='owner', schema='open_door', sslmode='disable')}", plan_of(text))
    assert not target.exists()
