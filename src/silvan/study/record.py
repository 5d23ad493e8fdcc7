"""What a study over machines leaves in its run folder: the same as ``silvan fit``, but for what only sites know."""

from datetime import UTC, datetime

import msgspec

from silvan.federation.federation import OVERALL, Federation
from silvan.study.remote_study import RemoteStudy
from silvan.study.run_folder import Difference, Record, Site
from silvan.study.steps import versions


def begin(study: RemoteStudy, federation: Federation) -> Record:
    """Begin the record of a run: who takes part, and how their tables differ."""
    schema = federation.schema
    return Record(
        name=study.study.name,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=versions(),
        study=study.study.settings(),
        study_file="study.toml",
        fingerprint=study.id,
        schema_hash=schema.hash,
        features=len(schema.features),
        label=schema.label.name,
        classes=None if schema.label.classes is None else [str(c) for c in schema.label.classes],
        sums=federation.sums.name,
        sites=[Site(name, federation.rows.get(name, 0)) for name in federation.sites],
        differences=[Difference(*note) for note in federation.differences.notes],
        warnings=list(federation.differences.warnings),
        agreement_rounds=federation.agreement_rounds,
    )


def note_test_rows(record: Record) -> None:
    """Note how many rows each site judged by, which is known once it has."""
    judged = {row.site: row.rows for row in record.evaluation if row.site != OVERALL}
    record.sites = [msgspec.structs.replace(site, test_rows=judged.get(site.name, 0)) for site in record.sites]
