"""The coordinator's side of a study, in the server's process of a FLARE job."""

import contextlib
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from silvan.data.holdout import Split
from silvan.deploy.jobs.job_folder import remove_journal, remove_old_jobs
from silvan.deploy.jobs.job_progress import INTERRUPTED, ProgressWriter
from silvan.deploy.membership.coordinator_folder import HUB, CoordinatorFiles
from silvan.deploy.membership.flare_folder import FOLDER, FlareServer, Parties, copy_results
from silvan.deploy.studies.new_rows import predict_new_rows
from silvan.deploy.studies.send_results import is_done, send_results, sites_without_results
from silvan.errors import SilvanError
from silvan.federate.options import make_sums
from silvan.federation.agree import ask_rows
from silvan.federation.federation import Federation
from silvan.federation.flare import AbortedError, Controlling, FlareTransport, JobFolders
from silvan.federation.journal import Journal
from silvan.federation.keys import COORDINATOR
from silvan.federation.signed import Signer
from silvan.federation.transport import Transport
from silvan.privacy.close_study import make_verifiable
from silvan.privacy.ledger import Head
from silvan.privacy.ledger_heads import compare_ledgers, merged
from silvan.report.html import write_report
from silvan.study.column_steps import read_model
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import JOURNAL, ROSTER, Record, Run, split_journal
from silvan.study.run_study import run_study
from silvan.study.steps import agree, start_record
from silvan.study.study import Study
from silvan.util.files import try_json, write_whole
from silvan.util.folder_lock import lock_folder

log = logging.getLogger("silvan.jobs")

LEDGERS = "ledgers.json"
"""A file in the coordinator's folder: the length of each site's ledger, and the signed digest of its last line."""

_LOCK_SECONDS = 5.0
"""Seconds that a job waits for another job of the same study to end, or for the check whether there is one."""


class Coordinator(Controlling):
    """The coordinator's side of a study, in the server's process of a job."""

    __module__ = "silvan.deploy.jobs"  # the name that jobs use

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
            hub = CoordinatorFiles(folders.root.parent)
            remove_old_jobs(folders.root, but=folders.job)

            def meet_sites() -> Parties:
                return Parties(self.sites, self.without, Signer(COORDINATOR, hub.key, hub.roster(self.sites)))

            self._work(study, Run(hub.path / "runs" / study.folder), folders, meet_sites)
            return
        server = FlareServer(folders.root)
        run = server.run(study)
        try:
            self._work(study, run, folders, lambda: server.meet(self, study, run))
        finally:
            copy_results(run, folders.results / FOLDER)

    def _work(self, study: Study, run: Run, folders: JobFolders, meet: Callable[[], Parties]) -> None:
        run.folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(run.folder, wait=_LOCK_SECONDS):
            write_whole(run.file("study.toml"), study.text.encode())
            progress_file = _JobProgress(run, folders.job, folders.root / folders.job)
            try:
                if not is_done(run):
                    self._run(meet(), study, run, progress_file)
                elif sites_without_results(run, study, self.sites):
                    self._send_results(meet(), study, run, progress_file)
                if study.auditor is None:
                    remove_journal(run)
                progress_file.stage("done", final=True)
            except AbortedError as error:
                progress_file.now.error = str(error)
                progress_file.stage(INTERRUPTED)
                raise
            except Exception as error:
                progress_file.now.error = str(error)
                if not isinstance(error, SilvanError):
                    log.exception("the study failed")
                    progress_file.now.error = f"a bug in silvan: {type(error).__name__}: {error}"
                progress_file.stage("failed", final=True)
                raise

    def _run(self, parties: Parties, study: Study, run: Run, progress_file: "_JobProgress") -> None:
        journal = Journal(run.file(JOURNAL))
        if parties.signer is not None:
            parties.signer.roster.save(run.file(ROSTER))
        journal.belongs_to(f"{study.unique_name} {version('silvan')} {parties.sites}")
        progress_file.transport = FlareTransport(self, parties.sites, parties.without)
        patience = None if study.approval_days is None else study.approval_days * 86400
        more: dict[str, Any] = {"journal": journal, "quorum": study.quorum, "patience": patience}
        federation = _federation(progress_file.transport, parties.sites, study, parties.signer, **more)
        ledgers = run.folder.parent.parent / LEDGERS
        try:
            progress_file.stage("agreeing on columns")
            federation.watch(progress_file.on)
            note_ledgers(federation, ledgers)
            if study.predict is not None:
                predict_new_rows(federation, study, run, progress_file.stage)
                return
            federation.agree_later = lambda: agree(federation, study)
            federation.split_later = lambda split: _split(federation, study, run, split)
            record = start_record(study, study.unique_name)
            run_study(study, federation, run, record, progress_file, secret_sampling=study.secret)
            with contextlib.suppress(SilvanError):  # the study is done, whoever is away now
                note_ledgers(federation, ledgers)
            write_report(run)
            progress_file.stage("sending the results")
            send_to_all(progress_file.transport, parties, study, run)
        finally:
            federation.close()

    def _send_results(self, parties: Parties, study: Study, run: Run, progress_file: "_JobProgress") -> None:
        progress_file.stage("sending the results")
        transport = FlareTransport(self, parties.sites, parties.without)
        try:
            send_to_all(transport, parties, study, run)
        finally:
            transport.close()


class _JobProgress(ProgressWriter):
    """The progress file of a job, which also records how the training time was spent."""

    transport: FlareTransport

    def stage(self, name: str, rounds: int = 0, *, final: bool = False) -> None:
        """Record that a stage begins."""
        if name == "training":
            self.transport.spent.clear()
        super().stage(name, rounds, final=final)

    def trained(self, record: Record) -> None:
        """Record how long sites and the wire took."""
        self.now.spent = {**self.transport.spent, "all": record.seconds}


def note_ledgers(federation: Federation, path: Path) -> None:
    """Compare the sites' ledgers with earlier states known here and at other sites, and store the new states."""
    found = compare_ledgers(federation, try_json(path, dict[str, Head]) or {})
    with lock_folder(path.parent, wait=math.inf):
        known = try_json(path, dict[str, Head]) or {}  # another study may have been faster
        if federation.roster is not None:
            found = {**known, **merged(known, found, federation.roster)}
            write_whole(path, msgspec.json.format(msgspec.json.encode(found)) + b"\n")


def _federation(
    transport: Transport, sites: list[str], study: Study, signer: Signer | None, name: str = "", **more: Any
) -> Federation:
    """Return a federation of a study's sites; a ``name`` is that of another study under the same approval."""
    sums, _ = make_sums(study.sums)
    name = name or study.unique_name
    return make_verifiable(Federation(transport, sites, sums, study=name, timeout=study.timeout, signer=signer, **more))


def _split_journal(run: Run, study: Study, number: int) -> Journal:
    """Return the journal of a split, which an auditor reads when the study is done."""
    return Journal(run.file(split_journal(number)), lasting=study.auditor is not None)


def _split(federation: Federation, study: Study, run: Run, split: Split) -> Federation:
    """Return a federation of a split's remaining sites, with the split's test rows."""
    at, members = study.parts_of_splits(federation.sites).index(split), split.members(federation.active)
    name, journal = split.study(federation.study), _split_journal(run, study, at)
    journal.belongs_to(f"{name} {version('silvan')} {members}")
    # it is approved with the study, so nobody is waited for
    quorum = federation.quorum and min(federation.quorum, len(members))
    more: dict[str, Any] = {"journal": journal, "quorum": quorum, "patience": 0.0}
    made = _federation(federation.transport, members, study, federation.signer, name, **more)
    made.agreement = replace(
        federation.agreement,
        rows=ask_rows(made, grouped=federation.agreement.grouped) if federation.rows and split.test < 1.0 else {},
    )
    return made


def send_to_all(transport: Transport, parties: Parties, study: Study, run: Run) -> None:
    """Send all sites the results that they lack; raise ``AbortedError`` if a site left the job before it had them."""
    holder = read_model(run, run.read()).kept.label_holder if study.by_columns else ""
    # a separate federation: the study is over, and its journal is not needed for this
    federation = _federation(transport, parties.sites, study, parties.signer, patience=0.0)
    for error in send_results(federation, study, run, holder).values():
        if isinstance(error, AbortedError):
            raise error
