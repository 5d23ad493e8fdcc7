"""Brings the results of a finished study to its sites, and reads them there.

A site keeps a run folder of its own. Who was away when the study ended gets its results when the study is run again.
"""

import logging
from pathlib import Path
from typing import NamedTuple

import msgspec

from silvan.algorithms.kept_results import MADE_MODEL, OWN_MODEL, SIGNATURE, KeepResults, check_signature, send
from silvan.deploy.studies.site_copy import copy_for, files_of
from silvan.errors import FormatError, InputError, SilvanError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.forest.forest import Forest
from silvan.study.run_folder import MODEL, RUN, Record, Run, read_record
from silvan.study.study import Study

log = logging.getLogger("silvan.results")

_MOST_BYTES = wire.MAX_MESSAGE - (1 << 20)


# -- at a site


class KeptResults(NamedTuple):
    """Results as a site keeps them, checked."""

    run: Run
    record: Record
    models: dict[str, bytes]

    @property
    def model(self) -> bytes | None:
        """The model that the site should use, its own if there is one; None where it is in shares."""
        return self.models.get(MADE_MODEL, self.models.get(OWN_MODEL, self.models.get(MODEL)))


def read_results(folder: Path, coordinator: bytes, study: str, site: str) -> KeptResults:
    """Read the results that a site keeps of a study; raise an error if they are not the coordinator's for it."""
    if not (folder / RUN).is_file():
        raise InputError("the results of this study have not come yet: they do at its end, or when it is run again")
    files = {name: (folder / name).read_bytes() for name in (MODEL, OWN_MODEL) if (folder / name).is_file()}
    signature = (folder / SIGNATURE).read_bytes() if (folder / SIGNATURE).is_file() else b""
    kept = KeepResults(record=(folder / RUN).read_bytes(), models=files, signature=signature)
    try:
        check_signature(coordinator, study, site, kept)
        record = read_record(kept.record)
        forests = {model.file: model.hash for model in record.models} if record.by == "rows" else {}
        if record.copy_for != site or {name: Forest.from_bytes(data).hash for name, data in files.items()} != forests:
            raise FormatError("the models are not those that the record names")
    except FormatError as error:
        raise FormatError(f"{folder}: {error}; run the study again with the folder removed, to get them anew") from None
    made = {MADE_MODEL: Run(folder).made_here().to_bytes()} if site in record.at_sites else {}
    return KeptResults(Run(folder), record, files | made)


# -- at the coordinator


def sites_without_results(run: Run, study: Study, sites: list[str]) -> list[str]:
    """Return the sites that have not got the results of a study that is done."""
    if study.predict is not None:
        return []
    received = run.read().received
    return [site for site in sites if site not in received]


def send_results(federation: Federation, study: Study, run: Run, holder: str = "") -> dict[str, SilvanError]:
    """Send each site the results that it lacks, one site after the other; return what went wrong where.

    The run folder notes who has got them. ``holder`` has the label, in a study over columns.
    """
    failed: dict[str, SilvanError] = {}
    for site in sites_without_results(run, study, federation.sites):
        record = run.read()
        try:
            send(federation, site, _results(run, record, study, site, holder))
        except SilvanError as error:
            log.warning("site %s did not get the results: %s", site, error)
            failed[site] = error
        else:
            record.received = [*record.received, site]
            run.write(record)
    return failed


def _results(run: Run, record: Record, study: Study, site: str, holder: str) -> KeepResults:
    copy = msgspec.json.format(msgspec.json.encode(copy_for(record, study, site, holder)), indent=1)
    models = {name: run.file(Path(file).name).read_bytes() for name, file in files_of(record, study, site).items()}
    if len(copy) + sum(map(len, models.values())) > _MOST_BYTES:
        raise InputError("the model is too large for a message; hand it to the sites by other means")
    return KeepResults(record=copy, models=models)
