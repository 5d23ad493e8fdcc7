"""A site's side of a study, in the site's process of a FLARE job.

Every site starts such a process for every study: nothing that only a coordinator needs is imported here, neither
learners nor scikit-learn.
"""

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version

from silvan.deploy.jobs.job_folder import mark_in_use, remove_old_jobs
from silvan.deploy.jobs.splits import SiteWithSplits, check_splits
from silvan.deploy.membership.flare_folder import SETTINGS, FlareSite
from silvan.deploy.membership.introductions import IntroducedSite, Ready, Receive, SignedKeys
from silvan.deploy.membership.joined_site import MEMBER, JoinedSite
from silvan.deploy.membership.site_files import PREDICTIONS, SiteFiles
from silvan.deploy.membership.site_log import keep_log, note_error
from silvan.deploy.studies.notice import notify
from silvan.deploy.studies.study_table import ChangedTableError, check_study_table, study_source, table_settings
from silvan.errors import FederationError, InputError, RepeatedError, SilvanError, UnavailableError
from silvan.federate.options import make_sums
from silvan.federation.chunks import ChunkReply, ChunkServer
from silvan.federation.flare import Answering, JobFolders
from silvan.federation.keys import Roster
from silvan.federation.message import UNAVAILABLE, Verb
from silvan.federation.partitioned_site import site_of
from silvan.federation.party import Party
from silvan.federation.signed import Signer
from silvan.federation.site import Site
from silvan.privacy.gate import Gate
from silvan.privacy.identity.shared_key import restore_sampling_key
from silvan.study.parse import parse_remote_study
from silvan.study.study import Study
from silvan.util.acting_user import owner_of

log = logging.getLogger("silvan.jobs")


class SiteExecutor(Answering):
    """A site's side of a study, in the site's process of a job."""

    __module__ = "silvan.deploy.jobs"  # the name that jobs use

    def __init__(self, study: str, sites: list[str], without: dict[str, str], version: str) -> None:
        super().__init__(study)
        self.sites, self.version = sites, version

    def make_server(self, folders: JobFolders) -> ChunkServer:
        """Create the site from its folder; it replies once its owner has approved, and reads its table only then."""
        files: SiteFiles | None = None
        try:
            if not (folders.root.parent / MEMBER).is_file() and (folders.local / SETTINGS).is_file():
                files = flare_site = FlareSite.of_job(folders.root, folders.name)
                return self._serve_flare_site(flare_site, self._read_study(), folders)
            try:
                files = member = JoinedSite(folders.root.parent)
            except SilvanError as error:
                log.error("%s", error)
                raise FederationError("its folder is gone or damaged; its owner must put it back") from None
            keep_log(member.path)
            return self._serve_member(member, self._read_study(), folders)
        except Exception as error:  # FLARE would write it to a log that it may send to the server
            refusal = _refusal(error, files)
            return ChunkServer(lambda data, verb: b"", lambda: refusal)

    def _read_study(self) -> Study:
        _check_version(self.version)  # first: this version may be unable to read the text
        return parse_remote_study(self.study)

    def _serve_member(self, member: JoinedSite, study: Study, folders: JobFolders) -> ChunkServer:
        """Serve a study at a site that has joined."""
        remove_old_jobs(folders.root, but=folders.job)
        member.note_policy(owner_of(member.settings_file))  # it may have changed without a restart
        member.note_study(study)
        if (member.roster() or member.pin_roster()) is None:
            raise InputError("not all sites have joined")
        member.note_sites(study, self.sites)
        return ChunkServer(*_answering(member, study, member.roster, folders))

    def _serve_flare_site(self, site: FlareSite, study: Study, folders: JobFolders) -> ChunkServer:
        """Serve a study at a site of a federation that FLARE provisioned: first all introduce themselves."""
        site.note_policy(owner_of(site.settings_file))
        site.note_study(study)

        def begin(everybody: Sequence[SignedKeys]) -> tuple[Receive, Ready]:
            roster = site.pin_roster(study, everybody)
            return _answering(site, study, lambda: roster, folders)

        def plain(error: Exception) -> str:
            return _refusal(error, site, study).text

        introduced = IntroducedSite(site.introduction(study), begin, plain)
        return ChunkServer(introduced.receive, introduced.ready)


def _answering(
    files: SiteFiles, study: Study, roster: Callable[[], Roster | None], folders: JobFolders
) -> tuple[Receive, Ready]:
    """Return the responder of a site that knows everybody's keys, and a function that explains why it is not ready."""
    waits = _waits(files, study)
    if waits is not None and waits.what == "waiting":
        notify(files, study)
    opened: list[SiteWithSplits] = []

    def ready() -> ChunkReply | None:
        mark_in_use(folders.root / folders.job)
        try:
            waits = _waits(files, study)
            if waits is None and not opened:
                opened.append(open_site_of(files, study, roster()))
        except SilvanError as error:
            return _refusal(error, files, study)
        return waits

    def receive(data: bytes, verb: Verb) -> bytes:
        answer = opened[0].receive(data, verb)
        error = opened[0].last_error
        if error is not None and not isinstance(error, RepeatedError):
            note_error(files.path, study.unique_name, error)
        return answer

    return receive, ready


def _waits(member: SiteFiles, study: Study) -> ChunkReply | None:
    """Return what a site reports while its owner has not approved a study, or has declined it; None if approved."""
    why = member.declined(study)
    if why is not None:
        return ChunkReply("declined", text=f"its owner declined the study: {why}")
    if member.policy.approve and member.folder.approvals.find(study.unique_name) is None:
        return ChunkReply("waiting", text="its owner has not approved the study yet")
    return None


def open_site_of(files: SiteFiles, study: Study, roster: Roster | None) -> SiteWithSplits:
    """Create a site that replies, if its table is unchanged."""
    if roster is None:
        raise InputError("there is no list of keys any more; without one nothing is answered")
    check_splits(files, study)
    site = make_site(files, study, roster)
    try:
        check_study_table(files, study, site)
    except ChangedTableError as error:
        if not isinstance(site.outbox, Gate):
            raise
        log.error("%s", error)
        site.outbox.close_rows(str(error))  # it may still accept the results of a finished study
    site.signer = Signer(files.name, files.folder.key, roster)
    if not study.by_columns:
        restore_sampling_key(site, study.unique_name)
    return SiteWithSplits(site, files, study)


def _refusal(error: Exception, files: SiteFiles | None, study: Study | None = None) -> ChunkReply:
    """Record an error for the site's owner, and return what others may know about it."""
    log.error("%s", error, exc_info=not isinstance(error, SilvanError))
    if files is not None:
        note_error(files.path, "" if study is None else study.unique_name, error)
    if isinstance(error, UnavailableError):
        return ChunkReply("later", text=UNAVAILABLE)
    plain = str(error) if isinstance(error, FederationError) else "it cannot take part; its owner sees why"
    return ChunkReply("refused", text=plain)


def _check_version(theirs: str) -> None:
    ours = version("silvan")
    if ours != theirs:
        raise FederationError(
            f"silvan is {ours} at the site and {theirs} at the coordinator; install the same version on all machines"
        )


def make_site(member: SiteFiles, study: Study, roster: Roster | None = None, n_jobs: int | None = None) -> Site:
    """Make a site, or a party, from its folder, a study and everybody's keys, if they are known."""
    if study.by_columns:
        return _make_party(member, study, roster, n_jobs)
    _, secure_sum = make_sums(study.sums, None if roster is None else roster.seals)
    return site_of(
        member.name,
        study_source(member, study),
        table_settings(member, study, n_jobs),
        store=member.store,
        outbox=member.gate(study),
        secure_sum=secure_sum,
    )


def _make_party(member: SiteFiles, study: Study, roster: Roster | None, n_jobs: int | None) -> Party:
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
    _, secure_sum = make_sums(study.sums, None if roster is None else seals)
    return Party(
        member.name,
        study_source(member, study),
        table_settings(member, study, n_jobs),
        id_column=settings["id"],
        match=study.match,
        seals={name: seals[name] for name in member.sites_of(study) if name in seals},
        seed=study.random_state,
        given=study.schema,
        show_names=study.names == "shown",
        only_study=study.unique_name,
        label_holder=None if study.predict is not None else study.label_holder,  # rows to predict have no label
        predictions=None if study.predict is None else member.path / PREDICTIONS / f"{study.folder}.csv",
        model=None if study.predict is None else study.predict.model,
        store=member.store,
        outbox=member.gate(study),
        secure_sum=secure_sum,
    )
