"""Explains a study over columns to a party's owner: what the others learn of its rows."""

from silvan.study.study import Study
from silvan.tree.fit import Settings
from silvan.util.readable import count_of

_SECRET_LEAF = 20
"""Rows of a leaf from which on partitions tell hardly more of labels than columns do, see docs/vertical.md."""


def lines_for_party(study: Study, parties: list[str]) -> list[str]:
    """Describe what a study over columns learns, and what others are told of a party's rows."""
    plan = study
    parameters = ", ".join(f"{key} {value}" for key, value in plan.parameters.items()) or "all parameters as they are"
    among = f"columns of the rows that {', '.join(parties)} all have"
    if study.predict is not None:
        return [
            f"Predicts {plan.label!r} with model {study.predict.model[:12]} of the study {plan.name!r}, from {among}.",
            f"It is prediction {study.predict.number} with this model; nothing is learnt.",
            _MATCHED[plan.match],
            _scored(plan),
            "The label holder keeps the predictions, with ids, in its own folder.",
        ]
    lines = [
        f"Learns to predict {plan.label!r} by {plan.kind} ({parameters}), from {among}.",
        _MATCHED[plan.match],
        "The coordinator is told what your columns, categories and classes are called."
        if plan.names == "shown"
        else "The coordinator is told kinds of your columns and how many categories they have; names stay with you.",
        *(_of_forest(plan) if plan.spec.trees == "forest" else _of_linear(plan)),
    ]
    if plan.test:
        lines.append(
            f"{plan.test:.0%} of the rows in common are kept for judging. {_scored(plan)} The label holder compares "
            "the scores with its labels, and only figures of merit leave it."
        )
    return lines


_MATCHED = {
    "keyed": "Rows are matched by keyed digests of ids: the coordinator sees how many rows you have and which of them "
    "others have too, not whose they are. No id leaves.",
    "psi": "Rows are matched by private set intersection: the label holder learns which of its ids you have, and the "
    "coordinator sees keyed digests of the rows in common. No id leaves.",
}


def _of_forest(plan: Study) -> list[str]:
    smallest = plan.parameters.get("min_samples_leaf", Settings.min_samples_leaf)
    encrypted = plan.parameters.get("labels") == "encrypted"
    lines = [
        "Labels travel encrypted: the parties see no label and the label holder sees sums of them."
        if encrypted
        else "Labels travel in code: every party learns which rows are of one class, and soon which class is which.",
        "Partitions: at each split, who goes left is told to all parties and to the coordinator. So the others learn "
        "which of the rows are alike by your columns, and you by theirs; no value and no threshold is told.",
    ]
    if smallest < _SECRET_LEAF:
        lines.append(
            f"Leaves may have {count_of(smallest, 'row')}: partitions then tell which rows share a label, encrypted or "
            "not. Where "
            f"labels must stay secret, min_samples_leaf should be {_SECRET_LEAF} or more (min_leaf in your policy)."
        )
    if plan.parameters.get("auditor"):
        lines.append("Your splits, column by number and threshold, are shown to the coordinator (auditor = true).")
    else:
        lines.append("Your splits, column and threshold, are your share of the forest and stay with you.")
    return lines


def _of_linear(plan: Study) -> list[str]:
    seen = "the coordinator and the label holder see" if plan.sums == "trusted" else "the label holder sees, as a sum,"
    return [
        "All parties learn the label: the sign of a residual is the class.",
        f"In every step {seen} one combination of your columns for each row; of a single column, that column up "
        "to its scale. Your coefficients stay with you.",
    ]


def _scored(plan: Study) -> str:
    if plan.spec.trees == "forest":
        return "To score a row you tell the coordinator which leaves it can reach, as far as your columns tell."
    return "To score a row you tell what your columns add to its predictor, as part of a sum."
