"""What runs inside FLARE's jobs: the coordinator's side of a study, and a site's. Jobs name these classes.

Everything that must survive is outside the folders of FLARE's jobs: the coordinator's journal and results in the run
folder, a site's store and books in the site's. What is found there decides how parties know each other: by the keys of
silvan's own joining, or by the certificates of a federation that FLARE provisioned. A job cannot choose.
"""

import logging
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from silvan.deploy.by_columns.new_rows import predict_new_rows
from silvan.deploy.by_columns.party_folder import make_party
from silvan.deploy.hub import HUB, Hub
from silvan.deploy.job_progress import INTERRUPTED, ProgressWriter
from silvan.deploy.member import MEMBER, Member, SiteFiles
from silvan.deploy.native.flare_folder import FOLDER, SETTINGS, FlareServer, FlareSite, Parties, copy_results, is_done
from silvan.deploy.native.introductions import IntroducedSite, Introduction, Ready, Receive
from silvan.deploy.operations.notice import notify
from silvan.deploy.operations.tidy import mark_in_use, remove_journal, remove_old_jobs
from silvan.deploy.study_table import check_study_table, study_source, table_settings
from silvan.errors import FederationError, InputError, SilvanError
from silvan.federate.alignment import Alignment, agree_on_columns
from silvan.federate.options import make_sums
from silvan.federation.agreement.agree import agree_on
from silvan.federation.agreement.agreement import Agreement
from silvan.federation.federation import Federation
from silvan.federation.journal import Journal
from silvan.federation.keys import COORDINATOR, Roster
from silvan.federation.signed import Signer
from silvan.federation.site import Site
from silvan.federation.transports.chunks import ChunkReply, ChunkServer
from silvan.federation.transports.flare import AbortedError, Answering, Controlling, FlareTransport, JobFolders
from silvan.privacy.sampling_key import restore_sampling_key, share_sampling_key
from silvan.report.html import write_report
from silvan.study import steps
from silvan.study.progress_bars import Progress as Bars
from silvan.study.remote_study import RemoteStudy, parse_remote_study
from silvan.study.run_folder import JOURNAL, Run
from silvan.study.study_file import Study
from silvan.util.files import write_whole
from silvan.util.folder_lock import lock_folder

log = logging.getLogger("silvan.jobs")

_LOCK_SECONDS = 5.0
"""Seconds that a job waits for one of the same study that is about to end, or for who looks whether there is one."""


class Coordinator(Controlling):
    """The coordinator's side of a study, in the server's process of a job."""

    def __init__(self, study: str, sites: list[str], without: dict[str, str], version: str) -> None:
        super().__init__(study)
        self.sites, self.without, self.version = sites, without, version

    def work(self, folders: JobFolders) -> None:
        """Run the study; how it ended is in the run folder.

        That is in the coordinator's folder, or in the server's folder of a federation that FLARE provisioned; there
        its files are copied to the job's results as well.
        """
        study = parse_remote_study(self.study)
        if (folders.root.parent / HUB).is_file():
            hub = Hub(folders.root.parent)
            remove_old_jobs(folders.root, but=folders.job)

            def meet_members(run: Run) -> Parties:
                return Parties(self.sites, self.without, Signer(COORDINATOR, hub.key, hub.roster(self.sites)))

            self._work(study, Run(hub.path / "runs" / study.folder), folders, meet_members)
            return
        server = FlareServer(folders.root)
        run = server.run(study)
        try:
            if not is_done(run):
                self._work(study, run, folders, lambda run: server.meet(self, study, run))
        finally:
            copy_results(run, folders.results / FOLDER)

    def _work(self, study: RemoteStudy, run: Run, folders: JobFolders, meet: Callable[[Run], Parties]) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(run.folder, wait=_LOCK_SECONDS):
            write_whole(run.file("study.toml"), study.text.encode())
            progress_file = ProgressWriter(run, folders.job, folders.root / folders.job)
            try:
                self._run(meet(run), study, run, progress_file)
                remove_journal(run)
                progress_file.now.final = True
                progress_file.stage("done")
            except AbortedError as error:
                progress_file.now.error = str(error)
                progress_file.stage(INTERRUPTED)
                raise
            except SilvanError as error:
                progress_file.now.error, progress_file.now.final = str(error), True
                progress_file.stage("failed")
                raise
            except Exception as error:
                log.exception("the study failed")
                progress_file.now.error, progress_file.now.final = (
                    f"a mistake in silvan: {type(error).__name__}: {error}",
                    True,
                )
                progress_file.stage("failed")
                raise

    def _run(self, parties: Parties, study: RemoteStudy, run: Run, progress_file: ProgressWriter) -> None:
        plan = study.study
        sums, _ = make_sums(plan.sums)
        journal = Journal(run.file(JOURNAL))
        journal.belongs_to(f"{study.id} {version('silvan')} {parties.sites}")
        transport = FlareTransport(self, parties.sites, parties.without)
        federation = Federation(
            transport,
            parties.sites,
            sums,
            study=study.id,
            journal=journal,
            quorum=study.quorum,
            timeout=study.timeout,
            patience=None if study.approval_days is None else study.approval_days * 86400,
            signer=parties.signer,
        )
        federation.watch(progress_file.on)
        try:
            if study.predict is not None:
                predict_new_rows(federation, study, run, progress_file.stage)
                return
            progress_file.stage("agreeing on columns")
            federation.agreement = agree(federation, plan)
            record = steps.start_remote_record(study, federation)
            run.write(record)
            model = plan.learner(federation.schema)
            steps.check_with_sites(plan, federation, model, sampling=study.secret)
            if study.secret:
                share_sampling_key(federation)
            progress_file.stage("training")
            transport.spent.clear()
            start = time.monotonic()
            model.fit(federation)
            progress_file.now.spent = {**transport.spent, "all": time.monotonic() - start}
            steps.note_training(record, run, federation, model, time.monotonic() - start)
            run.write(record)
            progress_file.stage("judging")
            if plan.test > 0:
                steps.judge(record, federation, model, Bars(), epsilon=plan.evaluation_epsilon)
                steps.note_test_rows(record)
                run.write_evaluation(record.evaluation)
            record.status = "done"
            run.write(record)
            write_report(run)
        finally:
            federation.close()


def agree(federation: Federation, plan: Study) -> Agreement:
    """Find out what the sites, or parties, of a study have in common."""
    if plan.by_columns:
        how = Alignment(plan.label, plan.match, test=plan.test, task=plan.task, schema=plan.schema)
        return agree_on_columns(federation, how)
    # with a given schema sites may not even say how many rows they have
    return agree_on(federation, plan.label, plan.task, plan.schema, count_rows=False, kinds=plan.kinds)


class SiteExecutor(Answering):
    """A site's side of a study, in the site's process of a job."""

    def __init__(self, study: str, sites: list[str], without: dict[str, str], version: str) -> None:
        super().__init__(study)
        self.sites, self.version = sites, version

    def make_server(self, folders: JobFolders) -> ChunkServer:
        """Make the site from its folder; it answers when its owner agrees, and reads its table only then."""
        try:
            study = parse_remote_study(self.study)
            _check_version(self.version)
            if not (folders.root.parent / MEMBER).is_file() and (folders.local / SETTINGS).is_file():
                return self._serve_flare_site(FlareSite.of_job(folders.root, folders.name), study, folders)
            return self._serve_member(_member_at(folders.root.parent), study, folders)
        except Exception as error:  # FLARE would write it to a log that it may send to the server
            refusal = _refusal(error)
            return ChunkServer(lambda data, verb: b"", lambda: refusal)

    def _serve_member(self, member: Member, study: RemoteStudy, folders: JobFolders) -> ChunkServer:
        """Serve a study at a site that has joined."""
        remove_old_jobs(folders.root, but=folders.job)
        member.note_study(study)
        if (member.roster() or member.pin_roster()) is None:
            raise InputError("not all sites have joined")
        member.note_sites(study, self.sites)
        return ChunkServer(*_answering(member, study, member.roster, folders))

    def _serve_flare_site(self, site: FlareSite, study: RemoteStudy, folders: JobFolders) -> ChunkServer:
        """Serve a study at a site of a federation that FLARE provisioned: first all introduce themselves."""
        site.note_study(study)

        def begin(everybody: Sequence[Introduction]) -> tuple[Receive, Ready]:
            roster = site.pin_roster(study, everybody)
            return _answering(site, study, lambda: roster, folders)

        introduced = IntroducedSite(site.introduction(study), begin, _plain)
        return ChunkServer(introduced.receive, introduced.ready)


def _member_at(folder: Path) -> Member:
    try:
        return Member(folder)
    except SilvanError as error:
        log.error("%s", error)
        raise FederationError("its folder is gone or damaged; its owner must put it back") from None


def _answering(
    files: SiteFiles, study: RemoteStudy, roster: Callable[[], Roster | None], folders: JobFolders
) -> tuple[Receive, Ready]:
    """Return what answers at a site that knows everybody's keys, and what says why it does not yet."""
    waits = _waits(files, study)
    if waits is not None and waits.what == "waiting":
        notify(files, study)
    opened: list[Site] = []

    def ready() -> ChunkReply | None:
        mark_in_use(folders.root / folders.job)
        try:
            waits = _waits(files, study)
            if waits is None and not opened:
                opened.append(_open_site(files, study, roster()))
        except SilvanError as error:
            return _refusal(error)
        return waits

    return lambda data, verb: opened[0].receive(data, verb), ready


def _waits(member: SiteFiles, study: RemoteStudy) -> ChunkReply | None:
    """Return what a site says while its owner has not approved a study, or has declined it; None if it answers."""
    why = member.declined(study)
    if why is not None:
        return ChunkReply("declined", text=f"its owner declined the study: {why}")
    if member.policy.approve and member.folder.approvals.find(study.id) is None:
        return ChunkReply("waiting", text="its owner has not approved the study yet")
    return None


def _open_site(files: SiteFiles, study: RemoteStudy, roster: Roster | None) -> Site:
    """Make a site that answers, if its table is the one that it was."""
    if roster is None:
        raise InputError("there is no list of keys any more; without one nothing is answered")
    site = make_site(files, study, roster)
    check_study_table(files, study, site)
    site.signer = Signer(files.name, files.folder.key, roster)
    if study.secret:
        restore_sampling_key(site, study.id)
    return site


def _refusal(error: Exception) -> ChunkReply:
    log.error("%s", error, exc_info=not isinstance(error, SilvanError))
    return ChunkReply("refused", text=_plain(error))


def _plain(error: Exception) -> str:
    """Return what others may know of an error."""
    return str(error) if isinstance(error, FederationError) else "it cannot take part; its own log says why"


def _check_version(theirs: str) -> None:
    ours = version("silvan")
    if ours != theirs:
        raise FederationError(f"it has silvan {ours}, the coordinator {theirs}; install the same")


def make_site(member: SiteFiles, study: RemoteStudy, roster: Roster | None = None, n_jobs: int | None = None) -> Site:
    """Make a site, or a party, from its folder, a study and everybody's keys, if they are known."""
    if study.study.by_columns:
        return make_party(member, study, roster, n_jobs)
    _, cover = make_sums(study.study.sums, None if roster is None else roster.seals)
    return Site(
        member.name,
        study_source(member, study),
        table_settings(member, study, n_jobs),
        store=member.store,
        outbox=member.gate(study),
        cover=cover,
    )
