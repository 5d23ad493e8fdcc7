"""A site's table that a study creates: rows of persons from an OMOP database or FHIR files."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from silvan.data.hospital import fhir, omop
from silvan.data.hospital.cohort import CohortPlan
from silvan.data.readers.query import Query
from silvan.errors import InputError

Hospital = omop.Omop | fhir.Fhir


def is_hospital(source: Any) -> bool:
    """Whether a source is the address of an OMOP database, or of FHIR files."""
    return isinstance(source, str) and source.startswith((omop.PREFIX, fhir.PREFIX))


NEEDS_COHORT = "an OMOP database or FHIR files need a study with a [cohort], which says what its rows are"
NEEDS_HOSPITAL = "the study has a [cohort], so a table must be omop:DATABASE or fhir:FOLDER"


@dataclass(frozen=True)
class CohortRows:
    """The rows of a study's cohort at a site; before there is a study, only their source."""

    source: Hospital
    plan: CohortPlan | None = None

    def beside(self, folder: Path) -> "CohortRows":
        """Return it with a relative path resolved against a folder."""
        return replace(self, source=self.source.beside(folder))

    @contextmanager
    def opened(self, folder: Any = None) -> Iterator[Query]:
        """Yield the query for the rows; temporary files are removed afterwards."""
        if self.plan is None:
            raise InputError(NEEDS_COHORT)
        with self.source.opened(self.plan, folder) as query:
            yield query


def hospital_rows(text: str) -> CohortRows:
    """Return the rows of the database or the files that an address names."""
    return CohortRows(omop.Omop.read(text) if text.startswith(omop.PREFIX) else fhir.Fhir.read(text))
