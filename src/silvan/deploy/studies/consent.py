"""What a study means for the people in a site's table, in words for an owner who is not a computer scientist.

It has three parts, in this order: what is learned and about whom, who sees what, and what cannot or could be learned.
The technical list of ``explain`` follows; both are made from the study's text and the site's policy.
"""

from typing import NamedTuple

from silvan.privacy.policy import Policy
from silvan.study.study import Study
from silvan.util.readable import count_of, list_some

_MOST_NAMED = 6


class Consent(NamedTuple):
    """Answers to an owner's questions, each a few sentences."""

    learned: list[str]
    seen: list[str]
    limits: list[str]

    def parts(self) -> list[tuple[str, list[str]]]:
        """Return the questions with their answers."""
        return [
            ("What is learned, and about whom?", self.learned),
            ("Who sees what?", self.seen),
            ("What cannot be learned, and what could be?", self.limits),
        ]


def consent(study: Study, sites: list[str], policy: Policy) -> Consent:
    """Return what an owner should know before approving a study."""
    return _of_columns(study, sites) if study.by_columns else _of_rows(study, sites, policy)


def _of_rows(study: Study, sites: list[str], policy: Policy) -> Consent:
    """Answer for a study over rows: every site has its own people, described by the same columns."""
    label, private = f"“{study.label}”", study.parameters.get("epsilon")
    label = label if study.event is None else f"the time “{study.label}” until the event “{study.event}”"
    others = list_some(sites, "site", _MOST_NAMED)
    columns = "all other columns of your table"
    if study.left_out:
        columns += f" except {list_some(list(study.left_out), 'column', _MOST_NAMED)}"
    learned = [
        f"The study trains a model that predicts {label} from {columns}. It learns rules that hold for groups of "
        "people, such as “above this age, with that finding, the label is more likely”.",
        f"It learns from the rows of {count_of(len(sites), 'site')}: {others}.",
    ]
    if study.cohort_plan is not None:
        learned.append(study.cohort_plan.consent())
    learned.append(_evaluation(study))
    if study.spec.uses_sums and study.sums != "trusted":
        counts = "The coordinator sees counts over all sites together, never those of your site alone."
    elif study.spec.uses_sums:
        counts = "The coordinator sees your site's counts, such as how many of your rows lie below a threshold."
    else:
        counts = "The coordinator sees what your site sends, listed below."
    seen = ["Nobody outside your site sees a row of your table. The study's programs run here.", counts]
    if study.spec.refits_leaves or study.spec.trees == "stumps":
        seen.append("Models trained on your rows alone are sent to the coordinator and the other sites.")
    seen.append(
        "Every site gets the finished model"
        + (" and the metrics of all sites, including yours." if study.metrics == "all" else " and its own metrics.")
    )
    if study.auditor is not None:
        seen.append(f"{study.auditor} checks the study afterwards and sees what the coordinator sees.")
    limits = ["No name, no id and no row can be read from what leaves: only counts, thresholds, scores and models do."]
    if private is not None:
        limits.append(
            f"Noise is added so that the model is almost the same whether or not a single row is in your table "
            f"(differential privacy, epsilon {private:g}; smaller protects more)."
        )
    else:
        limits.append(
            "No noise is added. Somebody who has the model, and knows much about a person with unusual values, could "
            "sometimes find out whether that person is in a table, or guess the label. `silvan audit` measures how "
            "often that succeeds."
        )
    if policy.min_leaf > 2:
        limits.append(
            f"Your policy keeps rules in models that leave from resting on fewer than {policy.min_leaf} rows."
        )
    return Consent(learned, seen, limits)


def _evaluation(study: Study) -> str:
    """Describe how models are tested on the site's rows."""
    tested = "To test it, models are evaluated on rows of yours that they did not train on"
    if study.repeats or study.split == "sites":
        tested += ", in turn for all your rows"
    elif not study.holds_out:
        return "Nothing is tested on your rows."
    return f"{tested}; error rates leave, not predictions for single rows."


def _of_columns(study: Study, parties: list[str]) -> Consent:
    """Answer for a study over columns: parties know different things about the same people."""
    label, others = f"“{study.label}”", list_some(parties, "party", _MOST_NAMED)
    if study.predict is not None:
        learned = [f"A finished model predicts {label} for the people that {others} all have. Nothing is learned anew."]
    else:
        learned = [f"The study trains a model that predicts {label} from columns of the people that {others} all have."]
    matching = (
        "The label holder learns which of its people you know too."
        if study.match == "psi"
        else "The coordinator learns how many people you have, and which of them others have, under keyed codes."
    )
    seen = ["No value of your columns leaves your site, and no id does.", matching]
    if study.spec.trees == "none":
        seen.append("In each step others see one mixture of your columns for each person.")
        limits = ["Your coefficients stay with you.", "All parties learn the label of each person in the study."]
    else:
        seen.append("At each rule, others see which people are on the same side: who is alike, not why.")
        coded = study.parameters.get("labels") != "encrypted"
        limits = [
            "Your columns, thresholds and rules stay with you.",
            "Other parties can work out who has the same label, and soon which label it is."
            if coded
            else "Labels travel encrypted; from small groups others can still see that people share a label.",
        ]
    return Consent(learned, seen, limits)
