"""Explains a study to a site's owner: what it learns, which messages would leave, what privacy budget it takes.

A trial shows which messages would leave. An approval contains exactly this list, and a site replies to nothing else.
"""

from typing import NamedTuple

import msgspec

from silvan.algorithms.kept_results import KeepResults
from silvan.deploy.membership.site_files import SiteFiles
from silvan.deploy.studies.consent import Consent, consent
from silvan.deploy.studies.send_results import LEAST
from silvan.deploy.studies.trial import TrialRun, try_out
from silvan.errors import InputError
from silvan.federation.handlers import HANDLERS
from silvan.privacy.ledger_heads import CompareLedgers
from silvan.privacy.noise.noisy_request import Noisy
from silvan.privacy.policy import Policy
from silvan.privacy.site_folder import Approval
from silvan.study.parse import check_parameters
from silvan.study.run_folder import Kind
from silvan.study.steps import describe_kinds
from silvan.study.study import Study
from silvan.tree.fit import Settings
from silvan.util.acting_user import acting_user
from silvan.util.readable import count_of

_SECRET_LEAF = 20
"""Leaf size at which partitions reveal hardly more about labels than columns do, see docs/vertical.md."""


class Explanation(NamedTuple):
    """A study as a site's owner should see it."""

    lines: list[str]
    leaves: list[Kind]
    asked: Approval | None  # what an approval would contain; None if a trial does not show what would leave
    consent: Consent | None = None  # its meaning for the people in the table; None if the study cannot run


def explain(member: SiteFiles, study: Study) -> Explanation:
    """Describe the requests of a study to a site."""
    sites = member.sites_of(study)
    lost = study.losses(sites)
    try:
        check_parameters(study)  # which a site's process does not do
    except InputError as error:
        return Explanation(["It cannot run: its text is wrong.", str(error)], [], None)
    lines = _lines_for_party(study, sites) if study.by_columns else _lines(study, sites)
    if study.spec.uses_sums:
        lines.append(f"Sums are {_SUMS[study.sums]}.")
    lines.append(f"{f'Up to {lost}' if lost else 'None'} of {count_of(len(sites), 'site')} may be lost.")
    if study.left_out:
        lines.append(f"Columns left out: {', '.join(study.left_out)}.")
    if study.cohort_plan is not None:
        lines += study.cohort_plan.words()
    lines += _cost(member, study.max_epsilon(sites))
    trial, asked = try_out(study, len(sites)), None
    if trial is not None:  # between machines ledgers are compared first, and results are stored last
        last = [] if study.predict is not None else [KeepResults.kind()]
        trial = TrialRun([CompareLedgers.kind(), *trial.kinds, *last], trial.tasks)
    if trial is None:
        lines.append("What would leave is unknown: a trial of the study fails. It can only be approved by kind.")
    else:
        asked = Approval(study=study.unique_name, messages=trial.kinds, tasks=trial.tasks, sites=sites, losses=lost)
        each = ", and as many in each split" if study.on_splits else ""
        lines.append(f"Models and evaluations: {trial.tasks} in all{each}.")
        lines += [] if study.predict is not None else [_results(study, len(sites)), _auditor(study)]
        if study.max_models and study.predict is None:
            each = " in each split" if study.on_splits else ""
            lines.append(f"Models of others that are evaluated on your rows: at most {study.max_models}{each}.")
        lines += _refused(member.policy, trial.kinds)
    answers = consent(study, sites, member.policy)
    return Explanation(lines, describe_kinds([] if trial is None else trial.kinds), asked, answers)


def _auditor(study: Study) -> str:
    """Describe who verifies the study, and what that discloses to whom."""
    signs = "At the end your site signs what it was asked and answered, by digests"
    if study.auditor is None:
        return f"{signs}. Nobody is named as auditor: the coordinator's decisions are not verified."
    return (
        f"{signs}. {study.auditor} verifies the study by that, and sees what the coordinator sees: all sums over sites "
        "and all replies."
    )


def _refused(policy: Policy, kinds: list[str]) -> list[str]:
    """Describe which kinds of messages a site would refuse by its policy, whatever its owner approves."""
    of_rows = [kind for kind in kinds if HANDLERS[kind][0].of_rows]
    closed = [kind for kind in of_rows if not policy.allows(kind)]
    exact = [kind for kind in of_rows if not issubclass(HANDLERS[kind][0], Noisy)]
    unnamed = [kind for kind in exact if policy.allows(kind) and not policy.allows_exact(kind)]
    lines = [f"Your policy does not allow {', '.join(closed)}: the site would refuse."] if closed else []
    if unnamed:
        lines.append(
            f"Your policy has a privacy budget, and {', '.join(unnamed)} would be answered without noise: the site "
            "would refuse, unless messages in the policy names them."
        )
    return lines


def _lines(study: Study, sites: list[str]) -> list[str]:
    """Describe what a study over rows learns."""
    others = f"all sites of the federation ({', '.join(sites)})" if study.site_names is None else ", ".join(sites)
    more = []
    if study.repeats:
        times = "once" if study.repeats == 1 else f"{study.repeats} times"
        more.append(
            f"Besides, every row of yours is evaluated {times}, by models of other rows: all of it is asked anew for "
            f"each of {count_of(len(study.splits(sites)), 'split')}. Only you know which rows are in which."
        )
    if study.split == "sites":
        more.append(
            "Besides, each site is left out in turn: the other sites train a model, for which all of it is asked anew, "
            "and all rows of the site left out evaluate it. Your rows are in every other model, and evaluate the one "
            "without them."
        )
    if study.group is not None:
        more.append(
            f"Your rows of one {study.group!r} are a person's: all of them are test rows or none, and counts of rows "
            "are of persons. No id leaves."
        )
    if study.evaluation.by:
        more.append(
            f"Metrics of your test rows leave by {', '.join(study.evaluation.by)} too, of large enough subgroups."
        )
    if study.evaluation.importance:
        more.append("How much columns matter is disclosed as errors with a column shuffled, summed over sites.")
    if study.evaluation.dependence:
        names = ", ".join(study.evaluation.dependence)
        more.append(f"Mean predictions of your test rows leave, summed over sites, with these columns set: {names}.")
    return [
        f"Learns to predict {_label(study)} by {study.kind} ({_parameters(study)}), over {others}.",
        _test_rows(study),
        *more,
    ]


def _label(study: Study) -> str:
    """Name what is predicted."""
    if study.event is None:
        return repr(study.label)
    return f"the time {study.label!r} until the event {study.event!r}"


def _test_rows(study: Study) -> str:
    """Describe which rows of a site are test rows."""
    split = study.date_split
    if split is not None:
        which = f"Your rows {split.test}" if split.since else f"The {split.test} of your rows"
        return f"{which}, by {split.by!r}, are test rows, and only metrics of them leave."
    if study.test:
        return f"{study.test:.0%} of your rows are kept as test rows, and only metrics of them leave."
    return "No rows are kept as test rows of the study's own model."


def _parameters(study: Study) -> str:
    return ", ".join(f"{key} {value}" for key, value in study.parameters.items()) or "all parameters as they are"


def _results(study: Study, n_sites: int) -> str:
    """Describe the results that sites receive at the end."""
    if study.by_columns:
        return "At the end every party has its share of the model, and the label holder is sent the metrics."
    if study.metrics == "all":
        return "At the end every site is sent the model and the metrics of all sites, yours too."
    what = (
        "the model, your own metrics and those over all sites" if n_sites >= LEAST else "the model and your own metrics"
    )
    return f"At the end you are sent {what}; no other site is sent yours."


def approve_study(
    member: SiteFiles,
    study: Study,
    messages: list[str] | None = None,
    tasks: int | None = None,
    by: str | None = None,
) -> Approval:
    """Approve what ``explain`` shows of a study, for the site's owner, or the kinds and tasks that are named.

    ``by`` is the person; by default the user of the operating system.
    """
    asked = explain(member, study).asked
    if asked is None:
        if not messages:
            raise InputError(
                "what would leave is unknown, since a trial of the study fails: name each kind that may leave "
                "(--message KIND)"
            )
        named = member.sites_of(study)
        asked = Approval(study=study.unique_name, messages=[], sites=named, losses=study.losses(named))
    if study.site_names is None and member.roster() is None:
        raise InputError("not all sites have joined, so it is not known who takes part; approve it when they have")
    made = msgspec.structs.replace(asked, messages=messages or asked.messages, tasks=tasks or asked.tasks)
    member.policy.check_approval(made)
    member.undo_decline(study)
    return member.approve(msgspec.structs.replace(made, by=by or acting_user()))


_SUMS = {
    "trusted": "added up by the coordinator, which sees each site's part",
    "ring": "passed round the sites with noise: the coordinator sees only the sum",
    "masked": "masked: the coordinator sees only the sum",
}


def _cost(member: SiteFiles, epsilon: float) -> list[str]:
    budget = member.budget()
    limit = "no limit is set" if budget.limit is None else f"of {budget.limit:g} in all"
    spent = f"Privacy budget: {budget.spent:g} spent ({limit})"
    if not epsilon:
        return [f"{spent}; this study has no differential privacy, so it costs nothing of it."]
    after = f"{spent}; this study costs up to {epsilon:g}, so {budget.spent + epsilon:g} afterwards."
    if budget.limit is not None and budget.spent + epsilon > budget.limit:
        after += " That is more than there is: the site will refuse."
    return [after]


# -- for a party of a study over columns: what the others learn about its rows


def _lines_for_party(study: Study, parties: list[str]) -> list[str]:
    """Describe what a study over columns learns, and what others learn about a party's rows."""
    among = f"columns of the rows that {', '.join(parties)} all have"
    holder = (
        "The study does not name the party that holds the label: whoever says so, with the coordinator, can be it."
        if study.label_holder is None
        else f"The label is held by {study.label_holder}, and yours computes on no labels but those it signed."
    )
    if study.predict is not None:
        return [
            f"Predicts {study.label!r} with model {study.predict.model[:12]} of the study {study.name!r}, "
            f"from {among}.",
            f"It is prediction {study.predict.number} with this model; nothing is trained.",
            _MATCHED[study.match],
            _scored(study),
            holder,
            "The label holder keeps the predictions, with ids, in its own folder.",
        ]
    lines = [
        f"Learns to predict {study.label!r} by {study.kind} ({_parameters(study)}), from {among}.",
        _MATCHED[study.match],
        holder,
        "The coordinator learns what your columns, categories and classes are called."
        if study.names == "shown"
        else "The coordinator learns kinds of your columns and how many categories they have; names stay with you.",
        *(_of_forest(study) if study.spec.trees == "forest" else _of_linear(study)),
    ]
    if study.test:
        lines.append(
            f"{study.test:.0%} of the rows in common are held out for evaluation. {_scored(study)} The label holder "
            "compares the scores with its labels, and only metrics leave it."
        )
    return lines


_MATCHED = {
    "keyed": "Rows are matched by keyed digests of ids: the coordinator sees how many rows you have and which of them "
    "others have too, not whose they are. No id leaves.",
    "psi": "Rows are matched by private set intersection: the label holder learns which of its ids you have, and the "
    "coordinator sees keyed digests of the rows in common. No id leaves.",
}


def _of_forest(study: Study) -> list[str]:
    smallest = study.parameters.get("min_samples_leaf", Settings.min_samples_leaf)
    encrypted = study.parameters.get("labels") == "encrypted"
    lines = [
        "Labels travel encrypted: the parties see no label and the label holder sees sums of them."
        if encrypted
        else "Labels travel in code: every party learns which rows are of one class, and soon which class is which.",
        "Partitions: at each split, who goes left is disclosed to all parties and to the coordinator. So the others "
        "learn which of the rows are alike by your columns, and you by theirs; no value and no threshold is disclosed.",
    ]
    if smallest < _SECRET_LEAF:
        lines.append(
            f"Leaves may have {count_of(smallest, 'row')}: partitions then tell which rows share a label, encrypted or "
            f"not. Where labels must stay secret, min_samples_leaf should be {_SECRET_LEAF} or more (min_leaf in your "
            "policy)."
        )
    if study.parameters.get("auditor"):
        lines.append("Your splits, column by number and threshold, are shown to the coordinator (auditor = true).")
    else:
        lines.append("Your splits, column and threshold, are your share of the forest and stay with you.")
    return lines


def _of_linear(study: Study) -> list[str]:
    seen = "the coordinator and the label holder see" if study.sums == "trusted" else "the label holder sees, as a sum,"
    return [
        "All parties learn the label: the sign of a residual is the class.",
        f"In every step {seen} one combination of your columns for each row; of a single column, that column up "
        "to its scale. Your coefficients stay with you.",
    ]


def _scored(study: Study) -> str:
    if study.spec.trees == "forest":
        return "To score a row you tell the coordinator which leaves it can reach, as far as your columns tell."
    return "To score a row you tell what your columns add to its predictor, as part of a sum."
