"""A party of a study over columns, made from a site's folder."""

from silvan.deploy.membership.site_files import SiteFiles
from silvan.deploy.studies.study_table import study_source, table_settings
from silvan.errors import FederationError
from silvan.federate.options import make_sums
from silvan.federation.keys import Roster
from silvan.federation.party import Party
from silvan.study.study import Study

PREDICTIONS = "predictions"
"""The folder of predictions in the label holder's folder."""


def make_party(member: SiteFiles, study: Study, roster: Roster | None = None, n_jobs: int | None = None) -> Party:
    """Make a party from a site's folder and a study; raise ``FederationError`` if the site cannot be one."""
    settings = member.settings
    if "id" not in settings:
        raise FederationError(
            "it names no column of ids, by which rows of other parties are matched; its owner can add it to site.toml, "
            'as id = "patient"'
        )
    if "memory" in settings:
        raise FederationError(
            "its site.toml limits memory, and a party of a study over columns has its columns in memory; its owner can "
            "take memory out"
        )
    seals = {} if roster is None else roster.seals
    _, cover = make_sums(study.sums, None if roster is None else seals)
    return Party(
        member.name,
        study_source(member, study),
        table_settings(member, study, n_jobs),
        id_column=settings["id"],
        seals={name: seals[name] for name in member.sites_of(study) if name in seals},
        seed=study.random_state,
        given=study.schema,
        show_names=study.names == "shown",
        only_study=study.unique_name,
        predictions=None if study.predict is None else member.path / PREDICTIONS / f"{study.folder}.csv",
        model=None if study.predict is None else study.predict.model,
        store=member.store,
        outbox=member.gate(study),
        cover=cover,
    )
