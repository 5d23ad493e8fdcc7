"""The coordinator's side of a study, in the server's process of a FLARE job."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

from silvan.data.holdout import Fold
from silvan.deploy.by_columns.new_rows import predict_new_rows
from silvan.deploy.hub import HUB, Hub
from silvan.deploy.job_progress import INTERRUPTED, ProgressWriter
from silvan.deploy.native.flare_folder import FOLDER, FlareServer, Parties, copy_results, is_done
from silvan.deploy.operations.tidy import remove_journal, remove_old_jobs
from silvan.deploy.results.send_results import send_results, sites_without_results
from silvan.errors import SilvanError
from silvan.federate.alignment import Alignment, agree_on_columns
from silvan.federate.options import make_sums
from silvan.federation.agreement.agree import agree_on, ask_rows
from silvan.federation.agreement.agreement import Agreement
from silvan.federation.federation import Federation
from silvan.federation.journal import Journal
from silvan.federation.keys import COORDINATOR
from silvan.federation.signed import Signer
from silvan.federation.transports.flare import AbortedError, Controlling, FlareTransport, JobFolders
from silvan.federation.transports.transport import Transport
from silvan.privacy.sampling_key import share_sampling_key
from silvan.report.html import write_report
from silvan.study import column_steps, steps
from silvan.study.plan import Study
from silvan.study.progress_bars import Progress as Bars
from silvan.study.remote_study import RemoteStudy, parse_remote_study
from silvan.study.repeat_steps import judge_repeatedly
from silvan.study.run_folder import JOURNAL, Run
from silvan.study.study_file import make_learner
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

    def _work(self, study: RemoteStudy, run: Run, folders: JobFolders, meet: Callable[[Run], Parties]) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(run.folder, wait=_LOCK_SECONDS):
            write_whole(run.file("study.toml"), study.text.encode())
            progress_file = ProgressWriter(run, folders.job, folders.root / folders.job)
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
            if plan.by_columns:  # what parties are asked depends on no column
                steps.check_with_sites(plan, federation, make_learner(plan, None))
            federation.agreement = agree(federation, plan)
            record = steps.start_remote_record(study, federation)
            run.write(record)
            model = make_learner(plan, federation.schema)
            if not plan.by_columns:
                steps.check_with_sites(plan, federation, model, sampling=study.secret)
            if study.secret:
                share_sampling_key(federation)
            last = 0 if model.expected_rounds is None else federation.rounds + model.expected_rounds
            progress_file.stage("training", last)
            transport.spent.clear()
            start = time.monotonic()
            model.fit(federation)
            progress_file.now.spent = {**transport.spent, "all": time.monotonic() - start}
            steps.note_training(record, run, federation, model, time.monotonic() - start)
            run.write(record)
            progress_file.stage("judging")
            if plan.repeats:
                federation.split_later(lambda fold: _split(federation, plan, run, progress_file, fold))
                judge_repeatedly(record, federation, model, plan, Bars())
            elif plan.test > 0:
                steps.judge(record, federation, model, Bars(), epsilon=plan.evaluation_epsilon, by=plan.by)
                steps.note_test_rows(record)
            if record.evaluation:
                steps.explain_model(record, federation, model, plan, Bars())
                run.write_evaluation(record.evaluation)
            record.status = "done"
            run.write(record)
            write_report(run)
            progress_file.stage("sending the results")
            send_to_all(transport, parties, study, run)
        finally:
            federation.close()


def _split(federation: Federation, plan: Study, run: Run, progress_file: ProgressWriter, fold: Fold) -> Federation:
    """Return a federation of the sites that are left, which keep the rows of a fold for judging."""
    at = plan.folds.index(fold)
    progress_file.stage(f"judging, split {at + 1} of {len(plan.folds)}")
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
    made.watch(progress_file.on)
    made.agreement = replace(federation.agreement, rows=ask_rows(made) if federation.rows else {})
    return made


def send_to_all(transport: Transport, parties: Parties, study: RemoteStudy, run: Run) -> None:
    """Send all sites the results that they lack; raise ``AbortedError`` if a site left the job before it had them."""
    sums, _ = make_sums(study.study.sums)
    holder = ""
    if study.study.by_columns:
        holder = column_steps.coordinators_part(column_steps.read_model(run, run.read())).label_holder
    # a federation of its own: the study is over, and no journal of it is needed for this
    federation = Federation(
        transport, parties.sites, sums, study=study.id, timeout=study.timeout, patience=0.0, signer=parties.signer
    )
    for error in send_results(federation, study, run, holder).values():
        if isinstance(error, AbortedError):
            raise error


def agree(federation: Federation, plan: Study) -> Agreement:
    """Find out what the sites, or parties, of a study have in common."""
    if plan.by_columns:
        how = Alignment(plan.label, plan.match, test=plan.test, task=plan.task, schema=plan.schema)
        return agree_on_columns(federation, how)
    # with a given schema sites may not even say how many rows they have
    return agree_on(federation, plan.label, plan.task, plan.schema, count_rows=False, kinds=plan.kinds)
