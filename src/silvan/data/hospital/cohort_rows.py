"""A site's table where a study makes it: rows of persons from an OMOP database or FHIR files."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from silvan.data.hospital import fhir, omop
from silvan.data.hospital.cohort import CohortPlan
from silvan.data.readers.query import Query

Hospital = omop.Omop | fhir.Fhir


def is_hospital(source: Any) -> bool:
    """Whether a source is the address of an OMOP database, or of FHIR files."""
    return isinstance(source, str) and source.startswith((omop.PREFIX, fhir.PREFIX))


def read_hospital(text: str) -> Hospital:
    """Return the database or the files that an address names."""
    return omop.Omop.read(text) if text.startswith(omop.PREFIX) else fhir.Fhir.read(text)


@dataclass(frozen=True)
class CohortRows:
    """The rows of a study's cohort at a site."""

    source: Hospital
    plan: CohortPlan

    @contextmanager
    def opened(self, folder: Any = None) -> Iterator[Query]:
        """Yield the query for the rows; files that were made for it are gone afterwards."""
        with self.source.opened(self.plan, folder) as query:
            yield query
