"""A site's FHIR files: bulk NDJSON is converted to some OMOP CDM tables in a file, and the same query reads them.

A study names sets of codes. Each event gets a concept id for the names that its codes belong to, so that an event stays
one row however many codes it has. The file is deleted when the rows have been read.
"""

import gzip
import importlib
import logging
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any, Self

import msgspec

from silvan.data.hospital.cdm_tables import DOMAINS, TABLES, create_statements
from silvan.data.hospital.cohort import CohortPlan
from silvan.data.hospital.cohort_query import CohortQuery
from silvan.data.hospital.covariate_query import Cdm, CovariateQuery
from silvan.data.hospital.omop import checked
from silvan.data.hospital.views import EVENTS, NO_EVENT, PATIENT
from silvan.data.readers.query import Query
from silvan.errors import InputError
from silvan.util.readable import count_of, format_names

log = logging.getLogger("silvan.data")

PREFIX = "fhir:"
_BATCH = 2_000  # lines that are flattened together
_SEXES = {"male": 8507, "female": 8532}
_UNITS_FROM = 1_000_000  # concept ids of units begin here, those of events at 1
_SHOWN = 5
_START = {domain.table: domain for domain in DOMAINS.values()}

_FILLED = ("person", "death", "concept", *sorted({events.table for events in EVENTS.values()}))
_RENAMED = ", ".join(f"{name} AS {name.replace('measurement', 'observation')}" for name in TABLES["measurement"])
_OBSERVATIONS = f"CREATE VIEW observation AS SELECT {_RENAMED} FROM measurement"
_PERIODS = """
CREATE TABLE observation_period AS SELECT person_id AS observation_period_id, person_id,
MIN(day) AS observation_period_start_date, MAX(day) AS observation_period_end_date
FROM ({}) GROUP BY person_id"""


@dataclass(frozen=True)
class Fhir:
    """A folder of bulk FHIR files, as ``fhir:exports/2026``."""

    folder: Path
    text: str

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the folder of an address."""
        return cls(Path(text.removeprefix(PREFIX)), text)

    @property
    def where(self) -> str:
        """The address, for messages."""
        return f"the FHIR files in {str(self.folder)!r}"

    def beside(self, folder: Path) -> Self:
        """Return it with a relative path resolved against a folder."""
        path = folder / self.folder
        return replace(self, folder=path, text=f"{PREFIX}{path}")

    def check(self) -> int:
        """Raise ``InputError`` unless the files can be read; return the number of patients."""
        _evaluate()
        counted: Counter[str] = Counter()
        for _, resources in _Lines(self).batches():
            counted.update(str(one["resourceType"]) for one in resources)
        if not counted["Patient"]:
            raise InputError(f"{self.where} hold no Patient; export Patient along with the other types")
        return counted["Patient"]

    @contextmanager
    def opened(self, plan: CohortPlan, folder: Any) -> Iterator[Query]:
        """Yield the query for the table of a study."""
        cohort = CohortQuery(plan.query, list(plan.concepts))
        used = CovariateQuery(plan, cohort, Cdm("sqlite:///unknown")).concepts
        lacking = [name for name, one in used.items() if not one.fhir]
        if lacking:
            raise InputError(f"[concepts] has no FHIR codes for {format_names(lacking)}, and this site has FHIR files")
        with tempfile.TemporaryDirectory(prefix=".silvan-fhir-", dir=folder) as place:
            path = Path(place) / "fhir.sqlite"
            with closing(sqlite3.connect(path, isolation_level=None)) as database:
                ids = _Flattened(database, plan).fill(self)
            cdm = Cdm(f"sqlite:///{path}", ids=ids)
            yield checked(CovariateQuery(plan, cohort, cdm), plan, cdm, self.where)


def _evaluate() -> Any:
    """Return the function that applies a view definition to resources."""
    try:
        return importlib.import_module("sqlonfhir").evaluate
    except ImportError:
        raise InputError("reading FHIR files needs sqlonfhir; run: pip install 'silvan[fhir]'") from None


class _Lines:
    """The resources of all files, some lines at a time; broken lines are collected, and refused at the end."""

    def __init__(self, source: Fhir) -> None:
        self._source, self._broken = source, list[str]()
        if not source.folder.is_dir():
            raise InputError(f"there is no folder {str(source.folder)!r} of FHIR files; check the path")
        self._files = sorted(p for p in source.folder.rglob("*") if p.name.endswith((".ndjson", ".ndjson.gz")))
        if not self._files:
            raise InputError(f"{str(source.folder)!r} has no files called *.ndjson, as FHIR bulk exports have them")

    def batches(self) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
        """Yield resources of a file."""
        for path in self._files:
            with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
                try:
                    numbered = enumerate(file, 1)
                    while lines := list(islice(numbered, _BATCH)):
                        yield path, [one for number, line in lines if (one := self._read(path, number, line))]
                except (EOFError, gzip.BadGzipFile):
                    raise InputError(f"{path} is cut short, or no gzip file; copy it again") from None
        if self._broken:
            n, more = len(self._broken), "and others" * (len(self._broken) > _SHOWN)
            raise InputError(
                f"{count_of(n, 'line')} of {self._source.where} {'is' if n == 1 else 'are'} no FHIR resource in JSON: "
                f"{', '.join(self._broken[:_SHOWN])} {more}".rstrip()
                + "; export or copy the files again"
            )

    def _read(self, path: Path, number: int, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            found = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            found = None
        if isinstance(found, dict) and isinstance(found.get("resourceType"), str):
            return found
        self._broken.append(f"{path.name}:{number}")
        return None


class _Flattened:
    """Tables of the CDM that are filled from FHIR resources."""

    def __init__(self, database: sqlite3.Connection, plan: CohortPlan) -> None:
        self._database, self._evaluate = database, _evaluate()
        self._names = list(plan.concepts)
        self._masks: dict[str, int] = {}
        for bit, one in enumerate(plan.concepts.values()):
            for code in one.fhir:
                self._masks[code] = self._masks.get(code, 0) | 1 << bit
        self._persons: dict[str, int] = {}
        self._concepts: dict[int, int] = {0: 0}
        self._units: dict[str, int] = {}
        self._skipped: Counter[str] = Counter()
        self._number = 0

    def fill(self, source: Fhir) -> dict[str, list[int]]:
        """Read all files; return the concept ids of the study's names."""
        run = self._database.execute
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            "BEGIN",
            *create_statements(_FILLED),
        ):
            run(statement)
        run("CREATE TABLE resource (key TEXT)")
        for path, resources in _Lines(source).batches():
            by_type: dict[str, list[dict[str, Any]]] = {}
            for one in resources:
                by_type.setdefault(one["resourceType"], []).append(one)
            for kind, some in by_type.items():
                self._add(kind, some, path)
        self._finish(source)
        return {
            name: [number for mask, number in self._concepts.items() if mask >> bit & 1]
            for bit, name in enumerate(self._names)
        }

    def _add(self, kind: str, resources: list[dict[str, Any]], path: Path) -> None:
        if kind != "Patient" and kind not in EVENTS:
            self._skipped[f"of type {kind[:40]}"] += len(resources)
            return
        keys = [[f"{kind}/{one.get('id')}"] for one in resources]
        self._database.executemany("INSERT INTO resource VALUES (?)", keys)
        if kind == "Patient":
            self._add_persons(self._rows(PATIENT, resources, path))
            return
        for view in EVENTS[kind].views:
            self._add_events(EVENTS[kind].table, self._rows(view, resources, path))

    def _rows(self, view: dict[str, Any], resources: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
        try:
            return list(self._evaluate(resources, view))
        except Exception:  # the engine's messages may quote values
            raise InputError(
                f"some {view['name']} in {path.name} is not written as FHIR R4 has it; check the export"
            ) from None

    def _add_persons(self, rows: list[dict[str, Any]]) -> None:
        people, deaths = [], []
        for row in rows:
            person, born = self._person(f"Patient/{row['id']}"), str(row["born"] or "").split("-")
            year, month, day = ([int(part) for part in born if part.isdecimal()] + [None] * 3)[:3]
            people.append((person, _SEXES.get(str(row["sex"]), 0), year, month, day))
            if died := _day(row["died"]):
                deaths.append((person, died))
        columns = "person_id, gender_concept_id, year_of_birth, month_of_birth, day_of_birth"
        self._database.executemany(f"INSERT INTO person ({columns}) VALUES (?, ?, ?, ?, ?)", people)
        self._database.executemany("INSERT INTO death (person_id, death_date) VALUES (?, ?)", deaths)

    def _add_events(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        """Add events; rows of the same event, with one code each, are consecutive."""
        found: list[list[Any]] = []
        last: Any = None
        for row in rows:
            when = next((row[f"date{i}"] for i in range(3) if row.get(f"date{i}")), None)
            mask = self._masks.get(f"{row['system']}|{row['code']}", 0)
            event = [row["id"], *(row.get(key) for key in ("value0", "value1", "unit0", "unit1"))]
            if event == last and found:
                found[-1][1] |= mask
                continue
            last = event
            if row["status"] in NO_EVENT:
                self._skipped["entered in error, refuted or cancelled"] += 1
                last = None
            elif not (day := _day(when)):
                self._skipped["without a full date"] += 1
                last = None
            else:
                person = self._person(str(row["person"] or ""))
                value, unit = self._value(row)
                found.append([person, mask, day, str(when)[:19].replace("T", " "), _day(row.get("ends")), value, unit])
        self._insert(table, found)

    def _insert(self, table: str, found: list[list[Any]]) -> None:
        domain = _START[table]
        columns = ["person_id", domain.concept, domain.date, domain.datetime, f"{table}_id"]
        more = ["value_as_number", "unit_concept_id"] if table == "measurement" else []
        more += [domain.date.replace("start", "end")] if "start" in domain.date else []
        rows = []
        for person, mask, day, moment, end, value, unit in found:
            self._number += 1
            concept = self._concepts.setdefault(mask, len(self._concepts))
            rest = [value, unit] if table == "measurement" else []
            rest += [end] if "start" in domain.date else []
            rows.append((person, concept, day, moment, self._number, *rest))
        marks = ", ".join("?" * (len(columns) + len(more)))
        self._database.executemany(f"INSERT INTO {table} ({', '.join(columns + more)}) VALUES ({marks})", rows)

    def _person(self, reference: str) -> int:
        """Return the number of a person, by a reference to a Patient, which may be a full URL."""
        key = "/".join(reference.split("/_history/")[0].split("/")[-2:])
        return self._persons.setdefault(key, len(self._persons) + 1)

    def _value(self, row: dict[str, Any]) -> tuple[float | None, int]:
        value = next((row[key] for key in ("value0", "value1") if row.get(key) is not None), None)
        unit = next((str(row[key]) for key in ("unit0", "unit1") if row.get(key)), None)
        number = 0 if unit is None else self._units.setdefault(unit, _UNITS_FROM + len(self._units))
        try:
            return None if value is None else float(value), number
        except (TypeError, ValueError):
            return None, number

    def _finish(self, source: Fhir) -> None:
        """Check for duplicates, leave out events of unknown persons, and report skipped records."""
        run = self._database.execute
        try:
            run("CREATE UNIQUE INDEX once ON resource (key)")
        except sqlite3.IntegrityError:
            (n,) = run("SELECT COUNT(*) - COUNT(DISTINCT key) FROM resource").fetchone()
            raise InputError(
                f"{count_of(n, 'resource')} of {source.where} {'stands' if n == 1 else 'stand'} there twice; leave out "
                "files that are of an earlier export"
            ) from None
        run("DROP TABLE resource")
        tables = [events.table for events in EVENTS.values()]
        for table in tables:
            gone = run(f"DELETE FROM {table} WHERE person_id NOT IN (SELECT person_id FROM person)").rowcount
            self._skipped["about nobody of the Patients"] += gone
            run(f"CREATE INDEX of_person_{table} ON {table} (person_id)")
        run("CREATE UNIQUE INDEX persons ON person (person_id)")
        run(_PERIODS.format(" UNION ALL ".join(f"SELECT person_id, {_START[t].date} AS day FROM {t}" for t in tables)))
        run(_OBSERVATIONS)
        units = [(number, "UCUM", unit) for unit, number in self._units.items()]
        run("COMMIT")
        self._database.executemany(
            "INSERT INTO concept (concept_id, vocabulary_id, concept_code) VALUES (?, ?, ?)", units
        )
        for why, n in sorted(self._skipped.items()):
            if n:
                log.warning("%s of %s: %s skipped", count_of(n, "resource"), source.where, why)


def _day(value: Any) -> str | None:
    """Return the day of a date or a moment that has one."""
    text = str(value or "")[:10]
    try:
        return date.fromisoformat(text).isoformat() if len(text) == 10 else None
    except ValueError:
        return None
