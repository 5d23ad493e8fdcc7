"""The coordinator's side of a study, in the server's process of a FLARE job."""

import logging
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

from silvan.data.holdout import Fold
from silvan.deploy.jobs.job_progress import INTERRUPTED, ProgressWriter
from silvan.deploy.jobs.tidy import remove_journal, remove_old_jobs
from silvan.deploy.membership.coordinator_folder import HUB, Hub
from silvan.deploy.membership.flare_folder import FOLDER, FlareServer, Parties, copy_results, is_done
from silvan.deploy.studies.new_rows import predict_new_rows
from silvan.deploy.studies.send_results import send_results, sites_without_results
from silvan.errors import SilvanError
from silvan.federate.options import make_sums
from silvan.federation.agree import ask_rows
from silvan.federation.federation import Federation
from silvan.federation.flare import AbortedError, Controlling, FlareTransport, JobFolders
from silvan.federation.journal import Journal
from silvan.federation.keys import COORDINATOR
from silvan.federation.signed import Signer
from silvan.federation.transport import Transport
from silvan.report.html import write_report
from silvan.study.column_steps import read_model
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import JOURNAL, Record, Run
from silvan.study.run_study import run_study
from silvan.study.steps import agree, start_record
from silvan.study.study import Study
from silvan.util.files import write_whole
from silvan.util.folder_lock import lock_folder

log = logging.getLogger("silvan.jobs")

_LOCK_SECONDS = 5.0
"""Seconds that a job waits for one of the same study that is about to end, or for who looks whether there is one."""


class Coordinator(Controlling):
    """The coordinator's side of a study, in the server's process of a job."""

    __module__ = "silvan.deploy.jobs"  # as jobs name it

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
            self._work(study, run, folders, lambda run: server.meet(self, study, run))
        finally:
            copy_results(run, folders.results / FOLDER)

    def _work(self, study: Study, run: Run, folders: JobFolders, meet: Callable[[Run], Parties]) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(run.folder, wait=_LOCK_SECONDS):
            write_whole(run.file("study.toml"), study.text.encode())
            progress_file = _JobProgress(run, folders.job, folders.root / folders.job)
            try:
                if not is_done(run):
                    self._run(meet(run), study, run, progress_file)
                elif sites_without_results(run, study, self.sites):
                    progress_file.stage("sending the results")
                    parties = meet(run)
                    transport = FlareTransport(self, parties.sites, parties.without)
                    try:
                        send_to_all(transport, parties, study, run)
                    finally:
                        transport.close()
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

    def _run(self, parties: Parties, study: Study, run: Run, progress_file: "_JobProgress") -> None:
        plan = study
        sums, _ = make_sums(plan.sums)
        journal = Journal(run.file(JOURNAL))
        journal.belongs_to(f"{study.unique_name} {version('silvan')} {parties.sites}")
        transport = FlareTransport(self, parties.sites, parties.without)
        progress_file.transport = transport
        federation = Federation(
            transport,
            parties.sites,
            sums,
            study=study.unique_name,
            journal=journal,
            quorum=study.quorum,
            timeout=study.timeout,
            patience=None if study.approval_days is None else study.approval_days * 86400,
            signer=parties.signer,
        )
        try:
            if study.predict is not None:
                federation.watch(progress_file.on)
                predict_new_rows(federation, study, run, progress_file.stage)
                return
            federation.agree_later = lambda: agree(federation, plan)
            federation.split_later = lambda fold: _split(federation, plan, run, fold)
            record = start_record(plan, study.unique_name)
            run_study(plan, federation, run, record, progress_file, secret_sampling=study.secret)
            write_report(run)
            progress_file.stage("sending the results")
            send_to_all(transport, parties, study, run)
        finally:
            federation.close()


class _JobProgress(ProgressWriter):
    """The progress file of a job, which also has where the time of training went."""

    transport: FlareTransport

    def stage(self, name: str, rounds: int = 0, *, final: bool = False) -> None:
        """Note that a stage begins."""
        if name == "training":
            self.transport.spent.clear()
        super().stage(name, rounds, final=final)

    def trained(self, record: Record) -> None:
        """Note how long sites and the wire took."""
        self.now.spent = {**self.transport.spent, "all": record.seconds}


def _split(federation: Federation, plan: Study, run: Run, fold: Fold) -> Federation:
    """Return a federation of the sites that are left, which keep the rows of a fold for judging."""
    at = plan.folds.index(fold)
    study, journal = fold.study(federation.study), Journal(run.file(f"{JOURNAL}.split-{at}"))
    journal.belongs_to(f"{study} {version('silvan')} {federation.active}")
    made = Federation(
        federation.transport,
        federation.active,
        make_sums(plan.sums)[0],
        study=study,
        journal=journal,
        quorum=federation.quorum,
        timeout=federation.timeout,
        patience=0.0,  # it is approved with the study
        signer=federation.signer,
    )
    made.agreement = replace(federation.agreement, rows=ask_rows(made) if federation.rows else {})
    return made


def send_to_all(transport: Transport, parties: Parties, study: Study, run: Run) -> None:
    """Send all sites the results that they lack; raise ``AbortedError`` if a site left the job before it had them."""
    sums, _ = make_sums(study.sums)
    holder = ""
    if study.by_columns:
        holder = read_model(run, run.read()).kept.label_holder
    # a federation of its own: the study is over, and no journal of it is needed for this
    federation = Federation(
        transport,
        parties.sites,
        sums,
        study=study.unique_name,
        timeout=study.timeout,
        patience=0.0,
        signer=parties.signer,
    )
    for error in send_results(federation, study, run, holder).values():
        if isinstance(error, AbortedError):
            raise error
