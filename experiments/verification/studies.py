"""Small studies of signing sites, run in this process by a coordinator without access to sites, and then verified."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import silvan as sv
from silvan.federation.federation import Federation
from silvan.federation.message import Verb
from silvan.federation.site import Site
from silvan.federation.transport import InProcess
from silvan.study.listener import Listener
from silvan.study.parse import parse_remote_study
from silvan.study.run_folder import JOURNAL, ROSTER, Record, Run
from silvan.study.run_study import run_study
from silvan.study.steps import agree, start_record
from silvan.study.study import Study
from silvan.study.study_text import text_of

ID = "person"

HISTOGRAM = 'kind = "HistogramForest"\nn_estimators = 2\nmax_depth = 2'
MERGED = 'kind = "MergedForest"\nn_estimators = 4\nmax_depth = 3'
VERTICAL = 'kind = "VerticalForest"\nn_estimators = 2\nmax_depth = 2'
LINEAR = 'kind = "VerticalLinear"\nmax_iter = 3'
NOISY = 'kind = "HistogramForest"\nn_estimators = 2\nmax_depth = 2\nepsilon = 4.0'
SCHEMA = """
[schema]
label = { classes = ["no", "yes"] }
age = { bounds = [0, 120] }
dose = { bounds = [0, 10] }
sex = { categories = ["f", "m"] }
"""


class OutOfSight(InProcess):
    """Sites in this process of which the coordinator sees only messages, as between machines."""

    def __init__(self, sites: dict[str, Site], *, cold: bool = False) -> None:
        super().__init__(sites, cold=cold)
        self.sites, self.local_sites = sites, {}

    def _answer(self, name: str, data: bytes, verb: Verb) -> bytes:
        if self.cold:
            self.sites[name] = self.sites[name].rebuilt()
        return self.sites[name].receive(data, verb)


def study_of(learner: str = HISTOGRAM, more: str = "", sections: str = "", auditor: str = "Ada") -> Study:
    """Return a study between machines, with an auditor."""
    return parse_remote_study(f'test = 0.3\nauditor = "{auditor}"\n{more}\n[learner]\n{learner}\n{sections}')


def table(n: int, seed: int = 0) -> pl.DataFrame:
    """Return rows with numbers, a category and a label that depends on them."""
    rng = np.random.default_rng(seed)
    age, dose, sex = rng.normal(50, 12, n).round(1), rng.integers(1, 6, n), rng.choice(["f", "m"], n)
    signal = age / 10 + dose + 2 * (sex == "f") + rng.normal(size=n)
    label = np.where(signal > np.median(signal), "yes", "no")
    return pl.DataFrame({ID: np.arange(n), "age": age, "dose": dose, "sex": sex, "label": label})


def make_federation(
    study: Study,
    folder: Path,
    sites: int = 3,
    rows: int = 90,
    seed: int = 0,
    transport: Callable[..., Any] = OutOfSight,
    **options: Any,
) -> Federation:
    """Make the federation of a study's sites, who agree at the first request and enforce the study's text."""
    folder.mkdir(parents=True, exist_ok=True)
    frame = table(rows, seed)
    given: dict[str, Any] = {"signed": True, "label": study.label, "journal": str(folder / JOURNAL), "n_jobs": 1}
    given |= {"sums": study.sums, "policy": sv.Policy(approve=True), "test": study.test, "schema": study.schema}
    given |= {"transport": transport, "quorum": study.quorum} | options
    if study.by_columns:
        columns = ["age", "dose", "sex"]
        tables = {
            f"party {i}": frame.select(ID, *columns[i::sites], *["label"] * (i == 0)).sample(
                fraction=1.0, shuffle=True, seed=i
            )
            for i in range(sites)
        }
        made = sv.federate_columns(tables, id=ID, **given)
    else:
        frame = frame.drop(ID)
        by_row = {"test_by": "row"} if study.private else {}
        made = sv.federate_rows({f"site {i}": frame[i::sites] for i in range(sites)}, **given, **by_row)
    made.study = study.unique_name
    made.agree_later = lambda: agree(made, study)
    for site in sites_of(made).values():
        site.published = not study.secret
        gate: Any = site.outbox
        gate.terms = replace(
            gate.terms,
            study=made.study,
            sites=list(made.sites),
            losses=study.losses(made.sites),
            epsilon=study.max_epsilon(made.sites),
            text=text_of(study),
        )
        if gate.policy.approve:
            gate.approve(made.study, ["*"])
    return made


def sites_of(federation: Federation) -> dict[str, Site]:
    """Return the sites that the coordinator does not see."""
    transport: Any = federation.transport
    sites: dict[str, Site] = transport.sites
    return sites


def carry_out(study: Study, folder: Path, federation: Federation | None = None, **options: Any) -> Record:
    """Run a study to its end, as a coordinator's machine does; ``folder`` is its run folder."""
    made, run = federation or make_federation(study, folder, **options), Run(folder)
    run.file("study.toml").write_bytes(study.text.encode())
    assert made.roster is not None  # noqa: S101
    made.roster.save(run.file(ROSTER))
    record = start_record(study, study.unique_name)
    try:
        return run_study(study, made, run, record, Listener(), secret_sampling=study.secret)
    finally:
        made.close()
