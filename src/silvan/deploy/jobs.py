"""What runs inside FLARE's jobs: the coordinator's side of a study, and a site's. Jobs name these classes.

Everything that must survive is outside FLARE's folders: the coordinator's journal and results in the run folder, a
site's store and books in the site's.
"""

import logging
import time
from importlib.metadata import version
from pathlib import Path

from silvan.deploy.hub import Hub
from silvan.deploy.job_progress import INTERRUPTED, ProgressWriter
from silvan.deploy.member import Member
from silvan.deploy.operations.notice import notify
from silvan.deploy.operations.tidy import mark_in_use, remove_journal, remove_old_jobs
from silvan.deploy.study_table import check_study_table, study_source, table_settings
from silvan.errors import FederationError, InputError, SilvanError
from silvan.federate.options import make_sums
from silvan.federation.agreement.agree import agree_on
from silvan.federation.federation import Federation
from silvan.federation.journal import Journal
from silvan.federation.keys import COORDINATOR
from silvan.federation.signed import Signer
from silvan.federation.site import Site
from silvan.federation.transports.chunks import ChunkReply, ChunkServer
from silvan.federation.transports.flare import AbortedError, Answering, Controlling, FlareTransport
from silvan.privacy.sampling_key import restore_sampling_key, share_sampling_key
from silvan.report.html import write_report
from silvan.study import steps
from silvan.study.progress_bars import Progress as Bars
from silvan.study.remote_study import RemoteStudy, parse_remote_study
from silvan.study.run_folder import JOURNAL, Run
from silvan.util.folder_lock import lock_folder

log = logging.getLogger("silvan.jobs")

_LOCK_SECONDS = 5.0
"""Seconds that a job waits for one of the same study that is about to end, or for who looks whether there is one."""


class Coordinator(Controlling):
    """The coordinator's side of a study, in the server's process of a job."""

    def __init__(self, study: str, sites: list[str], without: dict[str, str], version: str) -> None:
        super().__init__(study)
        self.sites, self.without, self.version = sites, without, version

    def work(self, workspace: Path, job: str) -> None:
        """Run the study; how it ended is in the run folder."""
        hub, study = Hub(workspace.parent), parse_remote_study(self.study)
        remove_old_jobs(workspace, but=job)
        run = Run(hub.path / "runs" / study.folder)
        run.folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(run.folder, wait=_LOCK_SECONDS):
            progress_file = ProgressWriter(run, job, workspace / job)
            try:
                self._run(hub, study, run, progress_file)
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

    def _run(self, hub: Hub, study: RemoteStudy, run: Run, progress_file: ProgressWriter) -> None:
        plan = study.study
        sums, _ = make_sums(plan.sums)
        roster = hub.roster(self.sites)
        journal = Journal(run.file(JOURNAL))
        journal.belongs_to(f"{study.id} {version('silvan')} {self.sites}")
        transport = FlareTransport(self, self.sites, self.without)
        federation = Federation(
            transport,
            self.sites,
            sums,
            study=study.id,
            journal=journal,
            quorum=study.quorum,
            timeout=study.timeout,
            patience=None if study.approval_days is None else study.approval_days * 86400,
            signer=Signer(COORDINATOR, hub.key, roster),
        )
        federation.watch(progress_file.on)
        try:
            progress_file.stage("agreeing on columns")
            # with a given schema sites may not even say how many rows they have
            federation.agreement = agree_on(federation, plan.label, plan.task, plan.schema, count_rows=False)
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
        remove_journal(run)
        progress_file.now.final = True
        progress_file.stage("done")


class SiteExecutor(Answering):
    """A site's side of a study, in the site's process of a job."""

    def __init__(self, study: str, sites: list[str], without: dict[str, str], version: str) -> None:
        super().__init__(study)
        self.sites, self.version = sites, version

    def make_server(self, workspace: Path) -> ChunkServer:
        """Make the site from its folder; it answers when its owner agrees, and reads its table only then."""
        try:
            member = Member(workspace.parent)
        except SilvanError as error:
            log.error("%s", error)
            gone = ChunkReply("refused", text="its folder is gone or damaged; its owner must put it back")
            return ChunkServer(lambda data, verb: b"", lambda: gone)
        remove_old_jobs(workspace, but=self.job)
        try:
            study = parse_remote_study(self.study)
            _check_version(self.version)
            member.note_study(study)
            if (member.roster() or member.pin_roster()) is None:
                raise InputError("not all sites have joined")
            member.note_sites(study, self.sites)
            waits = _waits(member, study)
        except SilvanError as error:
            refusal = _refusal(error)
            return ChunkServer(lambda data, verb: b"", lambda: refusal)
        if waits is not None and waits.what == "waiting":
            notify(member, study)
        opened: list[Site] = []

        def ready() -> ChunkReply | None:
            mark_in_use(workspace / self.job)
            try:
                waits = _waits(member, study)
                if waits is None and not opened:
                    opened.append(_open_site(member, study))
            except SilvanError as error:
                return _refusal(error)
            return waits

        return ChunkServer(lambda data, verb: opened[0].receive(data, verb), ready)


def _waits(member: Member, study: RemoteStudy) -> ChunkReply | None:
    """Return what a site says while its owner has not approved a study, or has declined it; None if it answers."""
    why = member.declined(study)
    if why is not None:
        return ChunkReply("declined", text=f"its owner declined the study: {why}")
    if member.policy.approve and member.folder.approvals.find(study.id) is None:
        return ChunkReply("waiting", text="its owner has not approved the study yet")
    return None


def _open_site(member: Member, study: RemoteStudy) -> Site:
    """Make a site that answers, if its table is the one that it was."""
    site, roster = make_site(member, study), member.roster()
    if roster is None:
        raise InputError("there is no list of keys any more; without one nothing is answered")
    check_study_table(member, study, site)
    site.signer = Signer(member.name, member.folder.key, roster)
    if study.secret:
        restore_sampling_key(site, study.id)
    return site


def _refusal(error: SilvanError) -> ChunkReply:
    log.error("%s", error)
    return ChunkReply("refused", text=str(error) if isinstance(error, FederationError) else _PLAIN)


_PLAIN = "it cannot take part; its own log says why"


def _check_version(theirs: str) -> None:
    ours = version("silvan")
    if ours != theirs:
        raise FederationError(f"it has silvan {ours}, the coordinator {theirs}; install the same")


def make_site(member: Member, study: RemoteStudy, n_jobs: int | None = None) -> Site:
    """Make a site from its folder and a study."""
    plan, roster = study.study, member.roster()
    _, cover = make_sums(plan.sums, None if roster is None else roster.seals)
    return Site(
        member.name,
        study_source(member, study),
        table_settings(member, study, n_jobs),
        store=member.store,
        outbox=member.gate(study),
        cover=cover,
    )
