"""Delivers the results of a finished study to its sites, and reads them there.

A site keeps its own run folder. A site that was away when the study ended gets its results when the study is run again.
"""

import logging
from pathlib import Path
from typing import NamedTuple

import msgspec

from silvan.algorithms.kept_results import MADE_MODEL, OWN_MODEL, SIGNATURE, KeepResults, check_signature, send
from silvan.algorithms.table_one import TableOne
from silvan.deploy.membership.site_files import SiteFiles
from silvan.errors import FormatError, InputError, SilvanError
from silvan.federation import wire
from silvan.federation.federation import Federation
from silvan.federation.members import OVERALL
from silvan.forest.forest import Forest
from silvan.study.run_folder import MODEL, RUN, Counts, MetricsRow, Model, Record, Run, read_record
from silvan.study.study import Study

log = logging.getLogger("silvan.results")

_MOST_BYTES = wire.MAX_MESSAGE - (1 << 20)

LEAST = 3
"""Fewest sites whose figures over all of them a site is sent: of two, it could take its own off."""

_SHARED = (
    *("format", "version", "name", "status", "by", "made", "seconds", "versions", "study_file", "study", "fingerprint"),
    *(
        "schema_hash",
        "features",
        "label",
        "classes",
        "positive",
        "sums",
        "rounds",
        "agreement_rounds",
        "kinds",
        "importances",
    ),
    *("repeats", "folds", "shared_forest", "threshold", "verification"),
)
"""Fields of the record that tell of no single site. What is not named here or below is left out of copies."""

_OF_ALL_SITES = ("differences", "warnings", "columns", "weights", "clusters", "distances")
"""Fields that tell of every site: for studies whose sites see all metrics."""

_OVERALL = ("permutation", "dependence", "curves")
"""Fields of sums over all sites."""


# -- at a site


class KeptResults(NamedTuple):
    """Results as stored by a site, checked."""

    run: Run
    record: Record
    models: dict[str, bytes]

    @property
    def model(self) -> bytes | None:
        """The model that the site should use, a personal one if it exists; None if the model is in shares."""
        return self.models.get(MADE_MODEL, self.models.get(OWN_MODEL, self.models.get(MODEL)))


def read_results(site: SiteFiles, study: Study) -> KeptResults:
    """Read a site's results of a study; raise an error if they are not the coordinator's for it."""
    folder, coordinator = site.results_folder(study), site.coordinator_key(study)
    if not (folder / RUN).is_file():
        raise InputError("the results of this study have not come yet: they do at its end, or when it is run again")
    files = {name: (folder / name).read_bytes() for name in (MODEL, OWN_MODEL) if (folder / name).is_file()}
    signature = (folder / SIGNATURE).read_bytes() if (folder / SIGNATURE).is_file() else b""
    kept = KeepResults(record=(folder / RUN).read_bytes(), models=files, signature=signature)
    try:
        check_signature(coordinator, study.unique_name, site.name, kept)
        record = read_record(kept.record)
        forests = {model.file: model.hash for model in record.models} if record.by == "rows" else {}
        if (
            record.copy_for != site.name
            or {name: Forest.from_bytes(data).hash for name, data in files.items()} != forests
        ):
            raise FormatError("the models are not those that the record names")
    except FormatError as error:
        raise FormatError(f"{folder}: {error}; run the study again with the folder removed, to get them anew") from None
    made = {MADE_MODEL: Run(folder).made_here().to_bytes()} if site.name in record.at_sites else {}
    return KeptResults(Run(folder), record, files | made)


# -- at the coordinator


def is_done(run: Run) -> bool:
    """Whether a study is done."""
    return run.file(RUN).exists() and run.read().status == "done"


def sites_without_results(run: Run, study: Study, sites: list[str]) -> list[str]:
    """Return the sites that lack the results of a finished study."""
    if study.predict is not None:
        return []
    received = run.read().received
    return [site for site in sites if site not in received]


def send_results(federation: Federation, study: Study, run: Run, holder: str = "") -> dict[str, SilvanError]:
    """Send each site the results that it lacks, one site after the other; return the failures by site.

    The run folder records who has them. ``holder`` has the label, in a study over columns.
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
    models = {}
    if not study.by_columns:  # each party has had its share since training
        mine = [model for model in record.models if model.site in ("", site)]
        models = {_renamed(model, site).file: run.file(Path(model.file).name).read_bytes() for model in mine}
    if len(copy) + sum(map(len, models.values())) > _MOST_BYTES:
        raise InputError("the model is too large for a message; hand it to the sites by other means")
    return KeepResults(record=copy, models=models)


# -- a site's copy of a run's record: its own metrics and those over all sites, and nothing about single other sites


def copy_for(record: Record, study: Study, site: str, holder: str = "") -> Record:
    """Return the copy for a site; in a study over columns only the label's ``holder`` gets metrics."""
    everything = study.metrics == "all"
    overall = everything or _sees_overall(record, site, holder)
    whole = (*_SHARED, *(_OF_ALL_SITES if everything else ()), *(_OVERALL if overall else ()))
    return Record(
        **{name: getattr(record, name) for name in whole},
        copy_for=site,
        among=[one.name for one in record.sites],
        sites=[one for one in record.sites if everything or record.by == "columns" or one.name == site],
        table_one=_table_one(record, site, everything=everything, overall=overall),
        choices={name: text for name, text in record.choices.items() if everything or name == site},
        models=[_renamed(model, site) for model in record.models if model.site in ("", site)],
        at_sites=[name for name in record.at_sites if name == site],
        bytes={name: n for name, n in record.bytes.items() if name == site},
        traffic=[line for line in record.traffic if line.site == site],
        evaluation=[row for row in record.evaluation if _may_see(record, study, site, holder, row)],
        subgroups=[row for row in record.subgroups if _may_see(record, study, site, holder, row)],
        counts=[counts for counts in record.counts if _may_see(record, study, site, holder, counts)],
    )


def _table_one(record: Record, site: str, *, everything: bool, overall: bool) -> TableOne | None:
    if record.table_one is None or everything:
        return record.table_one
    return record.table_one.seen_by(site, overall=overall)


def _renamed(model: Model, site: str) -> Model:
    """Return a model under the name in a site's copy: the number in a file's name would reveal other sites."""
    return msgspec.structs.replace(model, file=OWN_MODEL if model.site == site and site else MODEL)


def _may_see(record: Record, study: Study, site: str, holder: str, row: MetricsRow | Counts) -> bool:
    if record.by == "columns":
        return site == holder
    if study.metrics == "all" or row.site == site:
        return True
    noisy = isinstance(row, MetricsRow) and row.epsilon is not None
    return row.site == OVERALL and (noisy or _sees_overall(record, site, holder))


def _sees_overall(record: Record, site: str, holder: str) -> bool:
    return site == holder if record.by == "columns" else len(record.sites) >= LEAST
