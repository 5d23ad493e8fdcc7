"""Explains a study to a site's owner: what it learns, which messages would leave, what privacy budget it takes.

Which messages would leave is found by a trial: the study is run with random rows of simulated sites, from agreement to
judging, and the kinds of messages that were answered are listed, with those that its learner announces to sites. So the
list is what the program does, not what a text says about it. An approval holds exactly this list, and a site answers
nothing else.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from silvan.algorithms.results.kept_results import KeepResults
from silvan.deploy.by_columns.explain_parties import lines_for_party, random_rows, try_parties
from silvan.deploy.results.site_copy import LEAST
from silvan.deploy.site_files import SiteFiles
from silvan.errors import InputError, SilvanError
from silvan.federate.by_rows import federate_rows
from silvan.federation.agreement.agree import agree_on, ask_rows
from silvan.federation.site import HANDLERS
from silvan.privacy.gate.announce import announce
from silvan.privacy.gate.gate import Policy
from silvan.privacy.gate.site_folder import Approval
from silvan.privacy.noise.noisy_request import Noisy
from silvan.privacy.sampling_key import share_sampling_key
from silvan.study import steps
from silvan.study.learner_section import check_parameters
from silvan.study.message_kinds import describe_kinds
from silvan.study.remote_study import RemoteStudy
from silvan.study.run_folder import Kind
from silvan.study.study_file import make_learner
from silvan.study.toml_lines import Problems
from silvan.util.readable import count_of

_ROWS = 90
_SITES = 3, 12  # fewest and most in a trial
_TEST = 0.25
"""The share of rows for judging in a trial of a study that judges every row, whatever its own."""


class Trial(NamedTuple):
    """What a trial of a study showed: the kinds of messages that left, and for how many models and judgements."""

    kinds: list[str]
    tasks: int


class Explanation(NamedTuple):
    """A study as a site's owner should see it."""

    id: str
    digest: str
    approved: Approval | None
    lines: list[str]
    leaves: list[Kind]
    text: str
    asked: Approval | None  # what an approval of it would hold; None if a trial does not show what would leave


def explain(member: SiteFiles, study: RemoteStudy) -> Explanation:
    """Describe what a study asks of a site."""
    plan, sites = study.study, member.sites_of(study)
    lost, found = study.losses(sites), member.folder.approvals.find(study.id)
    if wrong := _wrong_parameters(study):
        lines = ["It cannot run: its text is wrong.", *wrong]
        return Explanation(study.id, study.digest, found, lines, [], study.text, None)
    lines = lines_for_party(study, sites) if plan.by_columns else _lines(study, sites)
    if plan.kind != "VerticalForest":  # which has none
        lines.append(f"Sums are {_SUMS[plan.sums]}.")
    lines.append(f"{f'Up to {lost}' if lost else 'None'} of {count_of(len(sites), 'site')} may be lost.")
    if plan.exclude:
        lines.append(f"Columns left out: {', '.join(plan.exclude)}.")
    lines += _cost(member, plan.parameters.get("epsilon"), plan.evaluation_epsilon)
    trial, asked = try_out(study, len(sites)), None
    if trial is not None and study.predict is None:
        trial = Trial([*trial.kinds, KeepResults.kind()], trial.tasks)
    if trial is None:
        lines.append("What would leave cannot be told: a trial of the study fails. It can only be approved by kind.")
    else:
        asked = Approval(study=study.id, messages=trial.kinds, tasks=trial.tasks, sites=sites, losses=lost)
        each = ", and as many in each split" if plan.repeats else ""
        lines.append(f"Models and judgements: {trial.tasks} in all{each}.")
        lines += [] if study.predict is not None else [_results(study, len(sites))]
        if plan.models_judged and study.predict is None:
            each = " in each split" if plan.repeats else ""
            lines.append(f"Models of others that your rows judge: {plan.models_judged} at most{each}.")
        lines += _refused(member.policy, trial.kinds)
    leaves = describe_kinds([] if trial is None else trial.kinds)
    return Explanation(study.id, study.digest, found, lines, leaves, study.text, asked)


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


def _wrong_parameters(study: RemoteStudy) -> list[str]:
    """Return what is wrong with the learner's parameters, which a site's process does not check."""
    plan = study.study
    problems = Problems(plan.path, plan.lines)
    check_parameters(plan.kind, plan.parameters, problems)
    return [text for _, text in problems.found]


def _lines(study: RemoteStudy, sites: list[str]) -> list[str]:
    """Describe what a study over rows learns."""
    plan = study.study
    parameters = ", ".join(f"{key} {value}" for key, value in plan.parameters.items()) or "all parameters as they are"
    others = f"all sites of the federation ({', '.join(sites)})" if study.sites is None else ", ".join(sites)
    more = []
    if plan.repeats:
        times = "once" if plan.repeats == 1 else f"{plan.repeats} times"
        more.append(
            f"Besides, every row of yours is judged {times}, by models of other rows: all of it is asked anew for each "
            f"of {count_of(len(plan.folds), 'split')}. Only you know which rows are in which."
        )
    if plan.by:
        more.append(f"Figures of your test rows leave by {', '.join(plan.by)} too, of subgroups that are large enough.")
    if plan.importance:
        more.append("How much columns matter is told as errors with a column shuffled, summed over sites.")
    if plan.dependence:
        names = ", ".join(plan.dependence)
        more.append(f"Mean predictions of your test rows leave, summed over sites, with these columns set: {names}.")
    return [
        f"Learns to predict {plan.label!r} by {plan.kind} ({parameters}), over {others}.",
        f"{plan.test:.0%} of your rows are kept for judging, and only figures of merit of them leave."
        if plan.test
        else "No rows are kept for judging.",
        *more,
    ]


def _results(study: RemoteStudy, n_sites: int) -> str:
    """Describe what sites are sent at the end."""
    if study.study.by_columns:
        return "At the end every party has its share of the model, and the label holder is sent the figures."
    if study.figures == "all":
        return "At the end every site is sent the model and the figures of all sites, yours too."
    what = (
        "the model, your own figures and those over all sites" if n_sites >= LEAST else "the model and your own figures"
    )
    return f"At the end you are sent {what}; no other site is sent yours."


def approve_study(
    member: SiteFiles,
    study: RemoteStudy,
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
        asked = Approval(study=study.id, sites=named, losses=study.losses(named))
    if study.sites is None and member.roster() is None:
        raise InputError("not all sites have joined, so it is not known who takes part; approve it when they have")
    made = Approval(
        study=study.id,
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


def try_out(study: RemoteStudy, n_sites: int = _SITES[0]) -> Trial | None:
    """Run a study with random rows; return what left the sites, or None if it cannot be run."""
    plan, n = study.study, min(max(n_sites, _SITES[0]), _SITES[1])
    if plan.by_columns:
        found = try_parties(study, n)
        return None if found is None else Trial(*found)
    if plan.schema is not None:
        tables = [random_rows(plan.schema, n * _ROWS)]
    else:
        tasks = ["classification", "regression"] if plan.task is None else [plan.task]
        tables = [_some_rows(study, n * _ROWS, task) for task in tasks]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are about rows that nobody has
        # random clusters may be too small for sums that hide their parts; the kinds of messages are the same
        trials = [_try(study, n, table, plan.sums) or _try(study, n, table, "trusted") for table in tables]
    passed = [trial for trial in trials if trial is not None]
    if not passed:
        return None
    kinds = dict.fromkeys(kind for trial in passed for kind in trial.kinds)
    return Trial(list(kinds), max(trial.tasks for trial in passed))


def _try(study: RemoteStudy, n: int, table: pl.DataFrame, sums: Any) -> Trial | None:
    """Run a study as the coordinator does, in small."""
    plan = study.study
    policy = Policy(approve=True, messages=tuple(HANDLERS), min_leaf=1)
    try:
        federation = federate_rows(
            {f"site {i}": table[i::n] for i in range(n)},
            label=plan.label,
            test=plan.test or (_TEST if plan.repeats else 0.0),
            test_by="row" if plan.private else None,
            task=plan.task,
            schema=plan.schema,
            sums=sums,
            policy=policy,
            signed=True,
        )
        sites = federation.local_sites.values()
        for site in sites:
            site.outbox.approve(federation.study, list(HANDLERS))  # type: ignore[union-attr]
        federation.agreement = agree_on(
            federation, plan.label, plan.task, plan.schema, count_rows=False, kinds=plan.kinds
        )
        model = make_learner(plan, federation.schema)
        announced = steps.questions_of(plan, federation, model, sampling=study.secret)
        announce(federation, announced)
        small = {"n_estimators": 2, "max_depth": 2}
        model.set_params(**{k: v for k, v in small.items() if k in model.get_params()})
        if study.secret:
            share_sampling_key(federation)
        model.fit(federation)
        if plan.repeats and federation.rows:
            ask_rows(federation)
        if plan.test and plan.evaluation_epsilon is not None:
            model.judge_with_noise(federation, plan.evaluation_epsilon)
        elif plan.test or plan.repeats:
            model.evaluate(federation)
            if plan.importance and model.forest_ is not None:
                model.permutation_importance(federation, repeats=1)
            if plan.dependence and model.forest_ is not None:
                model.dependence(federation, federation.schema.names[:1])
    except SilvanError:
        return None
    lines = [line for site in sites for line in site.outbox.ledger.lines()]  # type: ignore[union-attr]
    answered = [line.kind for line in lines if line.outcome == "answered"]
    kinds = dict.fromkeys([*answered, *(kind.kind() for kind in announced.kinds)])
    return Trial(list(kinds), max(announced.tasks, len({line.task for line in lines if line.task})))


def _some_rows(study: RemoteStudy, n: int, task: str) -> pl.DataFrame:
    """Draw rows of a number and a category, where the number tells something of the label."""
    label, rng = study.study.label, np.random.default_rng(0)
    weights = study.study.parameters.get("class_weight")
    classes = list(weights) if isinstance(weights, dict) and len(weights) > 1 else ["no", "yes"]
    code = rng.permuted(np.arange(n) % len(classes))
    return pl.DataFrame(
        {
            f"{label} (a number)": code + rng.normal(size=n),
            f"{label} (a text)": rng.choice(["some", "more"], n),
            label: code + rng.normal(size=n) if task == "regression" else np.array(classes)[code],
        }
    )
