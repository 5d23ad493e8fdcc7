"""The model card of a run: what the model is for, its limits, its data, who saw what, and what to cite."""

from typing import Any

from silvan.learners.registry import LEARNERS
from silvan.study.run_folder import Record
from silvan.util.readable import count_of, format_count, list_some

SEEN = {
    "trusted": "Sums were trusted: the coordinator added the sites' parts, and saw each of them; with "
    'sums = "masked" it sees the sums only.',
    "ring": "Sums were passed round a ring of the sites, sealed from each to the next: the coordinator and the first "
    "site of the ring saw the sums only, and both neighbours of a site together could tell its part.",
    "masked": "What went into sums was hidden by masks that cancel when all of it is added: the coordinator saw the "
    "sums only.",
}
"""Who sees what of sums, by how they are formed."""

_FAR_SLOPE = (0.8, 1.25)
"""Beyond these a calibration slope is named among the limits, if it is of enough rows."""

_ENOUGH = 200

_NADEAU = "C. Nadeau, Y. Bengio: Inference for the Generalization Error. Machine Learning 52, 2003"

_MOST_WARNINGS = 3


def model_card(record: Record, summary: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the card: titles, each with its sentences."""
    parts = {"What it is for": _use, "Limits": _limits, "Data": _data, "Privacy": _privacy}
    card = {title: write(record, summary) for title, write in parts.items()} | {"To cite": _citations(record)}
    return [(title, texts) for title, texts in card.items() if texts]


def importance_note(record: Record) -> str:
    """Return why there are no importances."""
    learner = record.study.get("learner", {})
    trees = any(model.trees for model in record.models)
    if not record.models:
        return "Not known: nothing is trained yet."
    if learner.get("epsilon") is not None:
        return "Not known: the trees are made of noisy counts and keep no gains; counting costs privacy budget."
    if record.by == "columns":
        return "Not known: each party keeps the splits on its own columns." if trees else ""
    if all(model.site for model in record.models):
        return "Not known for all sites together: every site has a model of its own."
    spec = LEARNERS.get(learner.get("kind"))
    if spec is not None and spec.trees == "stumps":
        return "Not known: stumps are weighed by how they vote, and keep no gains."
    return "Not known: trees that leave a site carry no gains; importance = true in [evaluation] asks the sites."


def _use(record: Record, summary: dict[str, Any]) -> list[str]:
    kind = record.study.get("learner", {}).get("kind", "a forest")
    what = (
        "a number"
        if record.classes is None
        else f"one of {count_of(len(record.classes), 'class', words=True)}: {', '.join(record.classes[:6])}"
        + (" and others" if len(record.classes) > 6 else "")
        + (f"; the positive class is {record.positive}" if record.positive is not None else "")
    )
    who = "parties" if record.by == "columns" else "sites"
    return [
        f"Predicts {record.label} ({what}) from {count_of(record.features, 'feature')}, trained by {kind} "
        f"at {format_count(len(summary['among']))} {who}.",
        "For rows that come about as theirs did: the same columns, measured alike, of people or things of one kind.",
        "It shows what goes together in these rows, not what causes what. Before it decides about anybody, have it "
        "checked by those who know the field, on rows of the place where it will be used.",
    ]


def _limits(record: Record, summary: dict[str, Any]) -> list[str]:
    more = len(record.warnings) - _MOST_WARNINGS
    texts = record.warnings[:_MOST_WARNINGS] + ([f"{more} more warnings are listed above."] if more > 0 else [])
    metric, sites = summary["metric"], summary["sites"]
    if not record.evaluation:
        return [*texts, "It has not been evaluated: there are no test rows."]
    few = [site["title"] for site in sites if site["certainty"] == "few"]
    level = [site["title"] for site in sites if site["certainty"] == "noise"]
    lost = [site["title"] for site in sites if site["certainty"] == "lost"]
    undefined = [site["title"] for site in sites if not any(v is not None for v in site["metrics"].values())]
    if undefined and summary["noisy"] is None and metric is not None and not record.copy_for and record.by == "rows":
        texts.append(
            f"No {metric['title']} is known at {list_some(undefined, 'site', 6)}: no test rows, or one class only."
        )
    if few:
        texts.append(f"Too few test rows for a confidence interval of the gain: {list_some(few, 'site', 6)}.")
    if level:
        texts.append(f"Not significantly better or worse than the local model: {list_some(level, 'site', 6)}.")
    if lost:
        texts.append(f"Significantly worse than the local model: {list_some(lost, 'site', 6)}.")
    texts += cautions(record, summary)
    known = "other places" if record.date_split is not None else "other times" if record.left_out else ""
    texts.append(
        f"Nothing is known of rows of {known or 'other places or other times'} than those it was evaluated on."
    )
    return texts


def cautions(record: Record, summary: dict[str, Any]) -> list[str]:
    """Return why scores of the model should not be read as probabilities."""
    texts, model = list[str](), summary["leading"]
    slopes = {
        site["title"]: slope
        for site in summary["evaluated"]
        if model in site["models"] and site["models"][model]["rows"] >= _ENOUGH
        if (slope := site["models"][model]["more"].get("calibration_slope")) is not None
    }
    off = [f"{site} ({slope:.2f})" for site, slope in slopes.items() if not _FAR_SLOPE[0] <= slope <= _FAR_SLOPE[1]]
    if off:
        texts.append(
            f"Scores are not calibrated probabilities at {list_some(off, 'site', 6)}: the calibration slope in brackets"
            " should be near 1. Recalibrate before using them as risks."
        )
    if record.study.get("learner", {}).get("class_weight") == "balanced":
        texts.append("Classes were balanced in training, so scores overstate the probability of rare classes.")
    return texts


def _data(record: Record, summary: dict[str, Any]) -> list[str]:
    own = len(summary["among"]) > len(record.sites)
    rows = f"{count_of(summary['rows'], 'training row')}" + (" at this site" if own else "") if summary["rows"] else ""
    test = f"{summary['test_rows']:,} test rows" if summary["test_rows"] else ""
    noun, who = ("party", "parties") if record.by == "columns" else ("site", "sites")
    told = ", ".join(filter(None, [rows, test])) or "The number of rows is not disclosed"
    texts = [f"{told}; {who}: {list_some(summary['among'], noun, 6)}." if summary["among"] else ""]
    if record.repeats:
        times = "once" if record.repeats == 1 else f"{record.repeats} times"
        texts.append(f"Every row was evaluated {times}, in {count_of(record.repeats * record.folds, 'split')}.")
    if record.left_out:
        texts.append("Each site was left out in turn, and all its rows were evaluated by a model of the other sites.")
    positives = [s.positives for s in record.sites if s.positives is not None]
    if positives and record.positive is not None:
        between = f"{min(positives):.0%}" + (f" to {max(positives):.0%}" if len(positives) > 1 else "")
        texts.append(f"{record.label} is {record.positive} in {between} of a site's rows.")
    if record.differences:
        n = len(record.differences)
        texts.append(f"The tables differ in {format_count(n)} {'way' if n == 1 else 'ways'}, listed above.")
    texts.append(f"Made {record.made.replace('T', ' ').replace('+00:00', ' UTC')}." if record.made else "")
    return [text for text in texts if text]


def _privacy(record: Record, summary: dict[str, Any]) -> list[str]:
    columns = record.by == "columns"
    texts = ["No feature left its party." if columns else "No row left its site."]
    if not columns and any(kind.verb == "total" for kind in record.kinds):
        texts.append(SEEN.get(record.sums, ""))
    epsilon = record.study.get("learner", {}).get("epsilon")
    noisy = summary["noisy"]
    if epsilon is not None:
        spent = epsilon + (noisy["epsilon"] if noisy else 0.0)
        texts.append(
            f"The model is differentially private, epsilon {epsilon:g} for training"
            + (f" and {noisy['epsilon']:g} for evaluation, {spent:g} in all." if noisy else ".")
        )
    else:
        texts.append(
            "The model has no differential privacy: whoever gets it may learn something of single rows from its "
            "leaves. An audit measures how much."
        )
    audit = summary["audit"]
    for report in audit["reports"] if audit else []:
        failed = [f["title"] for f in report["findings"] if f["verdict"] == "exceeded"]
        ran = sum(f["verdict"] != "not run" for f in report["findings"])
        found = f"above their limits: {'; '.join(failed)}" if failed else "none did better than its limit"
        texts.append(f"Audit of model {report['hash'][:12]}: of {ran} attacks, {found}.")
    if not audit and summary["looked_beside"] and record.by == "rows" and not record.copy_for:
        texts.append("It has not been audited; silvan audit RUN does that.")
    return [text for text in texts if text]


def _citations(record: Record) -> list[str]:
    learner = record.study.get("learner", {})
    version = record.versions.get("silvan", "")
    spec = LEARNERS.get(learner.get("kind"))
    texts = [] if spec is None else list(spec.papers)
    if learner.get("epsilon") is not None:
        texts.append("C. Dwork, A. Roth: The Algorithmic Foundations of Differential Privacy. 2014.")
    if record.repeats:
        texts.append(f"{_NADEAU} (intervals).")
    return [*texts, f"silvan {version}, the software that made it.".replace(" ,", ",")]
