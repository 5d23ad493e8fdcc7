"""A site's own copy of a run's record: its own figures and those over all sites, and nothing of other sites alone."""

import msgspec

from silvan.algorithms.kept_results import OWN_MODEL
from silvan.federation.federation import OVERALL
from silvan.study.run_folder import MODEL, Counts, Figures, Model, Record
from silvan.study.study import Study

LEAST = 3
"""Fewest sites whose figures over all of them a site is sent: of two, it could take its own off."""


_SHARED = (
    *("format", "version", "name", "status", "by", "made", "seconds", "versions", "study_file", "study", "fingerprint"),
    *("schema_hash", "features", "label", "classes", "sums", "rounds", "agreement_rounds", "kinds", "importances"),
    *("repeats", "folds", "shared_forest", "threshold"),
)
"""Fields of the record that tell of no single site. What is not named here or below is left out of copies."""


def copy_for(record: Record, study: Study, site: str, holder: str = "") -> Record:
    """Return the copy for a site; in a study over columns only the label's ``holder`` gets figures."""
    everything = study.figures == "all"
    return Record(
        **{name: getattr(record, name) for name in _SHARED},
        copy_for=site,
        among=[one.name for one in record.sites],
        sites=[one for one in record.sites if everything or record.by == "columns" or one.name == site],
        differences=record.differences if everything else [],
        warnings=record.warnings if everything else [],
        columns=record.columns if everything else [],
        weights=record.weights if everything else [],
        choices={name: text for name, text in record.choices.items() if everything or name == site},
        clusters=record.clusters if everything else {},
        distances=record.distances if everything else {},
        models=[_renamed(model, site) for model in record.models if model.site in ("", site)],
        at_sites=[name for name in record.at_sites if name == site],
        bytes={name: n for name, n in record.bytes.items() if name == site},
        traffic=[line for line in record.traffic if line.site == site],
        evaluation=[row for row in record.evaluation if _may_see(record, study, site, holder, row)],
        subgroups=[row for row in record.subgroups if _may_see(record, study, site, holder, row)],
        counts=[counts for counts in record.counts if _may_see(record, study, site, holder, counts)],
        permutation=record.permutation if everything or _sees_overall(record, site, holder) else None,
        dependence=record.dependence if everything or _sees_overall(record, site, holder) else [],
        curves=record.curves if everything or _sees_overall(record, site, holder) else [],
    )


def files_of(record: Record, study: Study, site: str) -> dict[str, str]:
    """Return the model files that a site gets: how each is called at the site, and in the run folder."""
    if study.by_columns:
        return {}  # each party has its share since training
    return {_renamed(model, site).file: model.file for model in record.models if model.site in ("", site)}


def _renamed(model: Model, site: str) -> Model:
    """Return a model as a site's copy names it: the number in a file's name tells of other sites."""
    return msgspec.structs.replace(model, file=OWN_MODEL if model.site == site and site else MODEL)


def _may_see(record: Record, study: Study, site: str, holder: str, row: Figures | Counts) -> bool:
    if record.by == "columns":
        return site == holder
    if study.figures == "all" or row.site == site:
        return True
    noisy = isinstance(row, Figures) and row.epsilon is not None
    return row.site == OVERALL and (noisy or _sees_overall(record, site, holder))


def _sees_overall(record: Record, site: str, holder: str) -> bool:
    return site == holder if record.by == "columns" else len(record.sites) >= LEAST
