"""Explains a study to a site's owner: what it learns, which messages would leave, what privacy budget it takes.

Which messages would leave is found by a trial: the study's learner is fitted to random rows of three simulated sites
with a label of the study's kind, and the kinds of messages that were answered are listed. So the list is what the
program does, not what a text says about it.
"""

from typing import Any, NamedTuple

import numpy as np
import polars as pl

from silvan.deploy.member import Member
from silvan.errors import SilvanError
from silvan.federate.by_rows import federate_rows
from silvan.privacy.gate.gate import Policy
from silvan.privacy.gate.site_folder import Approval
from silvan.study.remote_study import RemoteStudy
from silvan.study.run_folder import Kind, Record
from silvan.study.steps import note_traffic

_ROWS = 90


class Explanation(NamedTuple):
    """A study as a site's owner should see it."""

    id: str
    approved: Approval | None
    lines: list[str]
    leaves: list[Kind]
    text: str


def explain(member: Member, study: RemoteStudy) -> Explanation:
    """Describe what a study asks of a site."""
    plan = study.study
    parameters = ", ".join(f"{key} {value}" for key, value in plan.parameters.items()) or "all parameters as they are"
    others = "all sites of the federation" if study.sites is None else ", ".join(study.sites)
    lines = [
        f"Learns to predict {plan.label!r} by {plan.kind} ({parameters}), over {others}.",
        f"Sums are {_SUMS[plan.sums]}.",
        f"{plan.test:.0%} of your rows are kept for judging, and only figures of merit of them leave."
        if plan.test
        else "No rows are kept for judging.",
    ]
    if plan.exclude:
        lines.append(f"Columns left out: {', '.join(plan.exclude)}.")
    lines += _cost(member, plan.parameters.get("epsilon"))
    found = member.folder.approvals.find(study.id)
    return Explanation(study.id, found, lines, kinds_that_leave(study), study.text)


_SUMS = {
    "trusted": "added up by the coordinator, which sees each site's part",
    "ring": "passed round the sites with noise: the coordinator sees only the sum",
    "masked": "masked: the coordinator sees only the sum",
}


def _cost(member: Member, epsilon: Any) -> list[str]:
    budget = member.budget()
    limit = "no limit is set" if budget.limit is None else f"of {budget.limit:g} in all"
    spent = f"Privacy budget: {budget.spent:g} spent ({limit})"
    if epsilon is None:
        return [f"{spent}; this study has no differential privacy, so it costs nothing of it."]
    after = f"{spent}; this study costs up to {float(epsilon):g}, so {budget.spent + float(epsilon):g} afterwards."
    if budget.limit is not None and budget.spent + float(epsilon) > budget.limit:
        after += " That is more than there is: the site will refuse."
    return [after]


def kinds_that_leave(study: RemoteStudy) -> list[Kind]:
    """Return the kinds of messages that a trial of the study answers; none if it cannot be tried."""
    plan, rng = study.study, np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "number": rng.normal(size=3 * _ROWS),
            "words": rng.choice(["some", "more"], 3 * _ROWS),
            plan.label: rng.normal(size=3 * _ROWS)
            if plan.task == "regression"
            else rng.permuted(np.arange(3 * _ROWS) % 2),
        }
    )
    parts = {f"site {i}": table[i * _ROWS : (i + 1) * _ROWS] for i in range(3)}
    small = {"n_estimators": 2, "max_depth": 2}
    try:
        federation = federate_rows(
            parts, label=plan.label, test=plan.test, task=plan.task, sums=plan.sums, policy=Policy()
        )
        model = plan.learner(federation.schema)
        model.set_params(**{k: v for k, v in small.items() if k in model.get_params()})
        model.fit(federation)
        if plan.test:
            model.evaluate(federation)
    except SilvanError:
        return []
    record = Record(name="")
    note_traffic(record, federation)
    return record.kinds
