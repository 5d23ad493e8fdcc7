"""Explains a study to a site's owner: what it learns, which messages would leave, what privacy budget it takes.

Which messages would leave is found by a trial. An approval holds exactly this list, and a site answers nothing else.
"""

from typing import NamedTuple

from silvan.algorithms.kept_results import KeepResults
from silvan.deploy.membership.site_files import SiteFiles
from silvan.deploy.studies.explain_parties import lines_for_party
from silvan.deploy.studies.site_copy import LEAST
from silvan.deploy.studies.trial import Trial, try_out
from silvan.errors import InputError
from silvan.federation.handlers import HANDLERS
from silvan.privacy.gate import Policy
from silvan.privacy.noise.noisy_request import Noisy
from silvan.privacy.site_folder import Approval
from silvan.study.parse import check_parameters
from silvan.study.run_folder import Kind
from silvan.study.steps import describe_kinds
from silvan.study.study import Study
from silvan.util.readable import count_of


class Explanation(NamedTuple):
    """A study as a site's owner should see it."""

    id: str
    digest: str
    approved: Approval | None
    lines: list[str]
    leaves: list[Kind]
    text: str
    asked: Approval | None  # what an approval of it would hold; None if a trial does not show what would leave


def explain(member: SiteFiles, study: Study) -> Explanation:
    """Describe what a study asks of a site."""
    plan, sites = study, member.sites_of(study)
    lost, found = study.losses(sites), member.folder.approvals.find(study.unique_name)
    if wrong := _wrong_parameters(study):
        lines = ["It cannot run: its text is wrong.", *wrong]
        return Explanation(study.unique_name, study.digest, found, lines, [], study.text, None)
    lines = lines_for_party(study, sites) if plan.by_columns else _lines(study, sites)
    if plan.spec.uses_sums:
        lines.append(f"Sums are {_SUMS[plan.sums]}.")
    lines.append(f"{f'Up to {lost}' if lost else 'None'} of {count_of(len(sites), 'site')} may be lost.")
    if plan.exclude:
        lines.append(f"Columns left out: {', '.join(plan.exclude)}.")
    lines += _cost(member, plan.parameters.get("epsilon"), plan.evaluation.epsilon)
    trial, asked = try_out(study, len(sites)), None
    if trial is not None and study.predict is None:
        trial = Trial([*trial.kinds, KeepResults.kind()], trial.tasks)
    if trial is None:
        lines.append("What would leave cannot be told: a trial of the study fails. It can only be approved by kind.")
    else:
        asked = Approval(study=study.unique_name, messages=trial.kinds, tasks=trial.tasks, sites=sites, losses=lost)
        each = ", and as many in each split" if plan.repeats else ""
        lines.append(f"Models and judgements: {trial.tasks} in all{each}.")
        lines += [] if study.predict is not None else [_results(study, len(sites))]
        if plan.models_judged and study.predict is None:
            each = " in each split" if plan.repeats else ""
            lines.append(f"Models of others that your rows judge: {plan.models_judged} at most{each}.")
        lines += _refused(member.policy, trial.kinds)
    leaves = describe_kinds([] if trial is None else trial.kinds)
    return Explanation(study.unique_name, study.digest, found, lines, leaves, study.text, asked)


def _refused(policy: Policy, kinds: list[str]) -> list[str]:
    """Describe which of the kinds of messages a site would refuse by its policy, whatever its owner approves."""
    closed = [kind for kind in kinds if not policy.allows(kind)]
    exact = [kind for kind in kinds if HANDLERS[kind][0].of_rows and not issubclass(HANDLERS[kind][0], Noisy)]
    unnamed = [kind for kind in exact if policy.allows(kind) and not policy.allows_exact(kind)]
    lines = [f"Your policy does not allow {', '.join(closed)}: the site would refuse."] if closed else []
    if unnamed:
        lines.append(
            f"Your policy has a privacy budget, and {', '.join(unnamed)} would be answered without noise: the site "
            "would refuse, unless messages in the policy names them."
        )
    return lines


def _wrong_parameters(study: Study) -> list[str]:
    """Return what is wrong with the learner's parameters, which a site's process does not check."""
    try:
        check_parameters(study)
    except InputError as error:
        return [str(error)]
    return []


def _lines(study: Study, sites: list[str]) -> list[str]:
    """Describe what a study over rows learns."""
    plan = study
    parameters = ", ".join(f"{key} {value}" for key, value in plan.parameters.items()) or "all parameters as they are"
    others = f"all sites of the federation ({', '.join(sites)})" if study.site_names is None else ", ".join(sites)
    more = []
    if plan.repeats:
        times = "once" if plan.repeats == 1 else f"{plan.repeats} times"
        more.append(
            f"Besides, every row of yours is judged {times}, by models of other rows: all of it is asked anew for each "
            f"of {count_of(len(plan.folds), 'split')}. Only you know which rows are in which."
        )
    if plan.evaluation.by:
        more.append(
            f"Figures of your test rows leave by {', '.join(plan.evaluation.by)} too, of large enough subgroups."
        )
    if plan.evaluation.importance:
        more.append("How much columns matter is told as errors with a column shuffled, summed over sites.")
    if plan.evaluation.dependence:
        names = ", ".join(plan.evaluation.dependence)
        more.append(f"Mean predictions of your test rows leave, summed over sites, with these columns set: {names}.")
    return [
        f"Learns to predict {plan.label!r} by {plan.kind} ({parameters}), over {others}.",
        f"{plan.test:.0%} of your rows are kept for judging, and only figures of merit of them leave."
        if plan.test
        else "No rows are kept for judging.",
        *more,
    ]


def _results(study: Study, n_sites: int) -> str:
    """Describe what sites are sent at the end."""
    if study.by_columns:
        return "At the end every party has its share of the model, and the label holder is sent the figures."
    if study.figures == "all":
        return "At the end every site is sent the model and the figures of all sites, yours too."
    what = (
        "the model, your own figures and those over all sites" if n_sites >= LEAST else "the model and your own figures"
    )
    return f"At the end you are sent {what}; no other site is sent yours."


def approve_study(
    member: SiteFiles,
    study: Study,
    messages: list[str] | None = None,
    sites: list[str] | None = None,
    tasks: int | None = None,
) -> Approval:
    """Approve what ``explain`` shows of a study, for the site's owner, or the kinds, sites and tasks that are named."""
    asked = explain(member, study).asked
    if asked is None:
        if not messages:
            raise InputError(
                "what would leave cannot be told, since a trial of the study fails: name each kind that may leave "
                "(--message KIND)"
            )
        named = member.sites_of(study)
        asked = Approval(study=study.unique_name, messages=[], sites=named, losses=study.losses(named))
    if study.site_names is None and member.roster() is None:
        raise InputError("not all sites have joined, so it is not known who takes part; approve it when they have")
    made = Approval(
        study=study.unique_name,
        messages=messages or asked.messages,
        tasks=tasks or asked.tasks,
        sites=[*sites, member.name] if sites else asked.sites,
        losses=asked.losses,
    )
    member.policy.check_approval(made)
    member.undo_decline(study)
    return member.folder.approvals.approve(made)


_SUMS = {
    "trusted": "added up by the coordinator, which sees each site's part",
    "ring": "passed round the sites with noise: the coordinator sees only the sum",
    "masked": "masked: the coordinator sees only the sum",
}


def _cost(member: SiteFiles, *epsilons: float | None) -> list[str]:
    budget = member.budget()
    limit = "no limit is set" if budget.limit is None else f"of {budget.limit:g} in all"
    spent = f"Privacy budget: {budget.spent:g} spent ({limit})"
    epsilon = sum(float(one) for one in epsilons if one is not None)
    if not epsilon:
        return [f"{spent}; this study has no differential privacy, so it costs nothing of it."]
    after = f"{spent}; this study costs up to {epsilon:g}, so {budget.spent + epsilon:g} afterwards."
    if budget.limit is not None and budget.spent + epsilon > budget.limit:
        after += " That is more than there is: the site will refuse."
    return [after]
