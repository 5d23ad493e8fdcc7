"""Small studies whose sites sign, run in this process by a coordinator that sees no site, and then verified."""

from pathlib import Path

from helpers.column_studies import ID, split, wide
from helpers.studies import parts, table

import silvan as sv
from silvan.federation.federation import Federation
from silvan.federation.in_process import InProcess
from silvan.federation.site import Site
from silvan.study.listener import Listener
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import JOURNAL, ROSTER, Record, Run
from silvan.study.run_study import run_study
from silvan.study.steps import agree, start_record
from silvan.study.study import Study

ROWS_KEYS = ("sums", "quorum", "timeout", "policy", "cold", "transport")


class OutOfSight(InProcess):
    """Sites in this process that the coordinator knows nothing else of, as between machines."""

    def __init__(self, sites: dict[str, Site], *, cold: bool = False) -> None:
        super().__init__(sites, cold=cold)
        self.sites, self.local_sites = sites, {}

    def _answer(self, name: str, data: bytes, verb: str) -> bytes:
        if self.cold:
            self.sites[name] = self.sites[name].rebuilt()
        return self.sites[name].receive(data, verb)


def rows_study(learner: str = 'kind = "HistogramForest"\nn_estimators = 2\nmax_depth = 2', more: str = "") -> Study:
    return parse_remote_study(f'test = 0.3\nauditor = "Ada"\n{more}\n[learner]\n{learner}\n')


def columns_study(more: str = "") -> Study:
    learner = 'kind = "VerticalForest"\nn_estimators = 2\nmax_depth = 2'
    return parse_remote_study(f'test = 0.3\nauditor = "Ada"\n{more}\n[learner]\n{learner}\n')


def make(study: Study, folder: Path, n_sites: int = 3, rows: int = 90, **options: object) -> Federation:
    """Make the federation of a study's sites, which agree when they are first asked."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {"transport": OutOfSight, "signed": True, "label": study.label, "journal": str(folder / JOURNAL)}
    given |= {
        "sums": study.sums,
        "policy": sv.Policy(approve=True, min_leaf=1),
        "test": study.test,
        "quorum": study.quorum,
    }
    given |= {"schema": study.schema} | options
    if study.by_columns:
        made = sv.federate_columns(split(wide("binary", n=rows), n_sites), id=ID, n_jobs=1, **given)
    else:
        made = sv.federate_rows(parts(table(n=rows), n_sites), n_jobs=1, **given)
    made.study = study.unique_name
    made.agree_later = lambda: agree(made, study)
    for site in made.transport.sites.values():
        if site.outbox.policy.approve and site.outbox.approvals.find(made.study) is None:
            site.outbox.approve(made.study, ["*"])
    return made


def carry_out(study: Study, folder: Path, federation: Federation | None = None, **options: object) -> Record:
    """Run a study to its end, as a coordinator's machine does; ``folder`` is its run folder."""
    made, run = make(study, folder, **options) if federation is None else federation, Run(folder)
    run.file("study.toml").write_bytes(study.text.encode())
    made.roster.save(run.file(ROSTER))
    record = start_record(study, study.unique_name)
    try:
        return run_study(study, made, run, record, Listener(), secret_sampling=study.secret)
    finally:
        made.close()
